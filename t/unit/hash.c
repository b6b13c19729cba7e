
/*
 * SipHash-1-3 of 128 bits against a plain transcription of the paper, which is
 * itself checked by the published numbers of SipHash-2-4; and the hash of keys
 * against sums that are written down one by one.
 */


#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/ratelimit_key.h"

#include "tap.h"


#define HASH_LEN     64
#define HASH_KEYS    65536
#define HASH_BINS    256
#define HASH_LOADED  1024

/* longer than what there are secret numbers for */
#define HASH_KEY     (RATELIMIT_KEY_MAX + 20)


typedef void (*hash_pt)(const ratelimit_hash_t *secret, const void *data,
    size_t len, ratelimit_hash_t *hash);

/* the n-th of a row of keys, returns its length */
typedef size_t (*hash_row_pt)(uint8_t *key, uint32_t n);


typedef struct {
    uint64_t                        v[4];
} hash_sip_t;


static uint64_t hash_random(void);
static uint64_t hash_rotl(uint64_t x, unsigned bits);
static void hash_rounds(hash_sip_t *s, unsigned n);
static uint64_t hash_word(const uint8_t *data, size_t len);
static void hash_absorb(hash_sip_t *s, const ratelimit_hash_t *secret,
    const uint8_t *data, size_t len, unsigned c, uint64_t wide);
static void hash_sip(const ratelimit_hash_t *secret, const uint8_t *data,
    size_t len, unsigned c, unsigned d, ratelimit_hash_t *hash);
static void hash_key(const ratelimit_hash_t *secret, const void *data,
    size_t len, ratelimit_hash_t *hash);
static uint64_t hash_tail(const uint8_t *data, size_t len, uint64_t *second);
static uint64_t hash_key_plain(const ratelimit_hasher_t *hasher,
    const uint8_t *data, size_t len, size_t told);
static size_t hash_row_address(uint8_t *key, uint32_t n);
static size_t hash_row_front(uint8_t *key, uint32_t n);
static size_t hash_row_back(uint8_t *key, uint32_t n);
static size_t hash_row_digits(uint8_t *key, uint32_t n);
static size_t hash_row_long(uint8_t *key, uint32_t n);
static size_t hash_row_zeros(uint8_t *key, uint32_t n);
static int hash_compare(const void *a, const void *b);
static void hash_test_key(void);
static void hash_test_secret(void);
static void hash_test_row(hash_row_pt row, uint32_t n, const char *name);
static void hash_test_published(void);
static void hash_test_reference(void);
static void hash_test_alignment(void);
static void hash_test_avalanche(void);
static void hash_test_distribution(hash_pt function, const char *name);


static uint64_t  hash_seed = 0x9e3779b97f4a7c15ULL;


/* xorshift */

static uint64_t
hash_random(void)
{
    hash_seed ^= hash_seed << 13;
    hash_seed ^= hash_seed >> 7;
    hash_seed ^= hash_seed << 17;

    return hash_seed;
}


static uint64_t
hash_rotl(uint64_t x, unsigned bits)
{
    return (x << bits) | (x >> (64 - bits));
}


static void
hash_rounds(hash_sip_t *s, unsigned n)
{
    while (n--) {
        s->v[0] += s->v[1];
        s->v[2] += s->v[3];
        s->v[1] = hash_rotl(s->v[1], 13) ^ s->v[0];
        s->v[3] = hash_rotl(s->v[3], 16) ^ s->v[2];
        s->v[0] = hash_rotl(s->v[0], 32);

        s->v[2] += s->v[1];
        s->v[0] += s->v[3];
        s->v[1] = hash_rotl(s->v[1], 17) ^ s->v[2];
        s->v[3] = hash_rotl(s->v[3], 21) ^ s->v[0];
        s->v[2] = hash_rotl(s->v[2], 32);
    }
}


/* little-endian, at most eight bytes */

static uint64_t
hash_word(const uint8_t *data, size_t len)
{
    size_t    i;
    uint64_t  word;

    word = 0;

    for (i = 0; i < len; i++) {
        word |= (uint64_t) data[i] << (8 * i);
    }

    return word;
}


static void
hash_absorb(hash_sip_t *s, const ratelimit_hash_t *secret, const uint8_t *data,
    size_t len, unsigned c, uint64_t wide)
{
    size_t    i;
    uint64_t  word;

    s->v[0] = secret->lo ^ 0x736f6d6570736575ULL;
    s->v[1] = secret->hi ^ 0x646f72616e646f6dULL ^ wide;
    s->v[2] = secret->lo ^ 0x6c7967656e657261ULL;
    s->v[3] = secret->hi ^ 0x7465646279746573ULL;

    for (i = 0; i <= len / 8; i++) {

        if (i < len / 8) {
            word = hash_word(data + 8 * i, 8);

        } else {
            word = hash_word(data + 8 * i, len % 8);
            word |= (uint64_t) len << 56;
        }

        s->v[3] ^= word;
        hash_rounds(s, c);
        s->v[0] ^= word;
    }
}


static void
hash_sip(const ratelimit_hash_t *secret, const uint8_t *data, size_t len,
    unsigned c, unsigned d, ratelimit_hash_t *hash)
{
    hash_sip_t  s;

    hash_absorb(&s, secret, data, len, c, 0xee);

    s.v[2] ^= 0xee;
    hash_rounds(&s, d);
    hash->lo = s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];

    s.v[1] ^= 0xdd;
    hash_rounds(&s, d);
    hash->hi = s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
}


/* as if it had to be ready for each key */

static void
hash_key(const ratelimit_hash_t *secret, const void *data, size_t len,
    ratelimit_hash_t *hash)
{
    static ratelimit_hasher_t  hasher;

    if (hasher.secret.lo != secret->lo || hasher.secret.hi != secret->hi) {
        ratelimit_hasher_init(&hasher, secret);
    }

    ratelimit_key_hash(&hasher, data, len, hash);
}


/* the words of a key that is not longer than a pair */

static uint64_t
hash_tail(const uint8_t *data, size_t len, uint64_t *second)
{
    if (len >= 8) {
        *second = hash_word(data + len - 8, 8);
        return hash_word(data, 8);
    }

    if (len >= 4) {
        *second = hash_word(data + len - 4, 4);
        return hash_word(data, 4);
    }

    *second = data[len - 1];

    return data[0] | data[len / 2] << 8;
}


/* a product at a time; a long key has another length than its digest */

static uint64_t
hash_key_plain(const ratelimit_hasher_t *hasher, const uint8_t *data,
    size_t len, size_t told)
{
    size_t            i;
    uint64_t          a, b;
    ratelimit_wide_t  sum, v, w, z;

    sum = (ratelimit_wide_t) told * hasher->length;

    for (i = 0; i < len; i += 16) {

        if (len <= 16) {
            a = hash_tail(data, len, &b);

        } else if (len - i < 16) {
            a = hash_word(data + len - 16, 8);
            b = hash_word(data + len - 8, 8);

        } else {
            a = hash_word(data + i, 8);
            b = hash_word(data + i + 8, 8);
        }

        a += hasher->pairs[i / 8];
        b += hasher->pairs[i / 8 + 1];
        sum += (ratelimit_wide_t) a * b;
    }

    v = (ratelimit_wide_t) hasher->v.hi << 64 | hasher->v.lo;
    w = (ratelimit_wide_t) hasher->w.hi << 64 | hasher->w.lo;
    z = (ratelimit_wide_t) hasher->z.hi << 64 | hasher->z.lo;

    sum = v * (uint64_t) sum + w * (uint64_t) (sum >> 64) + z;

    return (uint64_t) (sum >> 64);
}


static void
hash_test_key(void)
{
    size_t               i, len;
    uint8_t             *data;
    uint64_t             want;
    unsigned             round, wrong;
    ratelimit_hash_t     secret, hash;
    ratelimit_hasher_t   hasher;

    wrong = 0;

    for (round = 0; round < 50; round++) {
        secret.lo = hash_random();
        secret.hi = hash_random();
        ratelimit_hasher_init(&hasher, &secret);

        for (len = 0; len <= HASH_KEY; len++) {

            /* of exactly this length, so that nothing behind it is read */
            data = malloc(len ? len : 1);
            if (data == NULL) {
                abort();
            }

            for (i = 0; i < len; i++) {
                data[i] = (uint8_t) (hash_random() >> 32);
            }

            if (len <= RATELIMIT_KEY_MAX) {
                want = hash_key_plain(&hasher, data, len, len);

            } else {
                hash_sip(&secret, data, len, 1, 3, &hash);
                want = hash_key_plain(&hasher, (uint8_t *) &hash, 16, len);
            }

            ratelimit_key_hash(&hasher, data, len, &hash);
            wrong += (hash.lo != want);

            free(data);
        }
    }

    tap_ok(wrong == 0, "the hash of keys of 0 to %d bytes is that of the sums",
           HASH_KEY);
}


/* numbers that are secret are all there, and are others for another secret */

static void
hash_test_secret(void)
{
    size_t              i, k, n;
    unsigned            same;
    uint64_t            numbers[2 * sizeof(ratelimit_hasher_t) / 8];
    ratelimit_hash_t    secret;
    ratelimit_hasher_t  hasher;

    n = offsetof(ratelimit_hasher_t, secret) / 8;
    secret.lo = hash_random();
    secret.hi = hash_random();

    for (i = 0; i < 2; i++) {
        memset(&hasher, 0, sizeof(ratelimit_hasher_t));
        ratelimit_hasher_init(&hasher, &secret);
        memcpy(&numbers[i * n], &hasher, n * 8);
        secret.lo ^= 1;
    }

    same = 0;

    for (i = 0; i < 2 * n; i++) {
        same += (numbers[i] == 0);

        for (k = 0; k < i; k++) {
            same += (numbers[i] == numbers[k]);
        }
    }

    tap_ok(same == 0, "two secrets are twice %zu numbers, all different", n);
}


/* addresses, as $ratelimit_client has them */

static size_t
hash_row_address(uint8_t *key, uint32_t n)
{
    key[0] = 10;
    key[1] = (uint8_t) (n >> 16);
    key[2] = (uint8_t) (n >> 8);
    key[3] = (uint8_t) n;

    return 4;
}


/* a number in one of two words, beside one that is always the same */

static size_t
hash_row_front(uint8_t *key, uint32_t n)
{
    memset(key, 'x', 16);
    memcpy(key, &n, sizeof(uint32_t));

    return 16;
}


static size_t
hash_row_back(uint8_t *key, uint32_t n)
{
    memset(key, 'x', 16);
    memcpy(key + 12, &n, sizeof(uint32_t));

    return 16;
}


static size_t
hash_row_digits(uint8_t *key, uint32_t n)
{
    return (size_t) snprintf((char *) key, HASH_KEY, "user-%08u", n);
}


static size_t
hash_row_long(uint8_t *key, uint32_t n)
{
    memset(key, 'x', HASH_KEY);
    memcpy(key, &n, sizeof(uint32_t));

    return HASH_KEY;
}


/* that differ by their number alone */

static size_t
hash_row_zeros(uint8_t *key, uint32_t n)
{
    memset(key, 0, HASH_KEY);

    return n % HASH_KEY;
}


static int
hash_compare(const void *a, const void *b)
{
    uint64_t  x, y;

    x = *(const uint64_t *) a;
    y = *(const uint64_t *) b;

    return (x > y) - (x < y);
}


/*
 * Keys in a row, with many secrets: no two have one hash, and by those bits
 * that tell where a key stands they are spread as if by chance.
 */

static void
hash_test_row(hash_row_pt row, uint32_t n, const char *name)
{
    uint8_t            key[HASH_KEY];
    uint32_t           i;
    unsigned           round, same, worst;
    ratelimit_hash_t   secret, hash;
    static uint16_t    bins[3][HASH_LOADED];
    static uint64_t    hashes[HASH_KEYS];

    same = 0;
    worst = 0;

    for (round = 0; round < 40; round++) {
        secret.lo = hash_random();
        secret.hi = hash_random();
        memset(bins, 0, sizeof(bins));

        for (i = 0; i < n; i++) {
            hash_key(&secret, key, row(key, i), &hash);
            hashes[i] = hash.lo;

            bins[0][hash.hi >> 54]++;
            bins[1][hash.hi >> 16 & (HASH_LOADED - 1)]++;
            bins[2][hash.hi & (HASH_LOADED - 1)]++;
        }

        qsort(hashes, n, sizeof(uint64_t), hash_compare);

        for (i = 1; i < n; i++) {
            same += (hashes[i] == hashes[i - 1]);
        }

        for (i = 0; i < 3 * HASH_LOADED; i++) {
            if ((&bins[0][0])[i] > worst) {
                worst = (&bins[0][0])[i];
            }
        }
    }

    /* 64 are expected, with a deviation of 8 */
    tap_ok(same == 0 && worst < n / HASH_LOADED + 7 * 8,
           "%s: %u have the hash of another, %u in a bin at most", name, same,
           worst);
}


/* of the authors: key 00 01 .. 0f, no message, and the byte 00 */

static void
hash_test_published(void)
{
    uint8_t           data[1];
    ratelimit_hash_t  secret, hash;

    data[0] = 0;
    secret.lo = 0x0706050403020100ULL;
    secret.hi = 0x0f0e0d0c0b0a0908ULL;

    hash_sip(&secret, data, 0, 2, 4, &hash);
    tap_ok(hash.lo == 0xe6a825ba047f81a3ULL
           && hash.hi == 0x930255c71472f66dULL,
           "the reference gives the published hash of nothing");

    hash_sip(&secret, data, 1, 2, 4, &hash);
    tap_ok(hash.lo == 0x44af996bd8c187daULL
           && hash.hi == 0x45fc229b11597634ULL,
           "the reference gives the published hash of one byte");
}


static void
hash_test_reference(void)
{
    size_t            i, len, wrong;
    uint8_t          *data;
    unsigned          round;
    ratelimit_hash_t  secret, hash, want;

    wrong = 0;

    for (round = 0; round < 50; round++) {
        for (len = 0; len <= HASH_LEN; len++) {

            /* of exactly this length, so that nothing behind it is read */
            data = malloc(len ? len : 1);
            if (data == NULL) {
                abort();
            }

            for (i = 0; i < len; i++) {
                data[i] = (uint8_t) (hash_random() >> 32);
            }

            secret.lo = hash_random();
            secret.hi = hash_random();

            ratelimit_hash(&secret, data, len, &hash);
            hash_sip(&secret, data, len, 1, 3, &want);

            if (hash.lo != want.lo || hash.hi != want.hi) {
                wrong++;
            }

            free(data);
        }
    }

    tap_ok(wrong == 0, "equals the reference for lengths 0 to %d", HASH_LEN);

    len = 65536;

    data = calloc(1, len);
    if (data == NULL) {
        abort();
    }

    ratelimit_hash(&secret, data, len, &hash);
    hash_sip(&secret, data, len, 1, 3, &want);

    tap_ok(hash.lo == want.lo && hash.hi == want.hi,
           "equals the reference for 64 kilobytes");

    free(data);
}


static void
hash_test_alignment(void)
{
    size_t            i;
    uint8_t           data[HASH_LEN + 8];
    unsigned          wrong;
    ratelimit_hash_t  secret, hash, first;

    secret.lo = hash_random();
    secret.hi = hash_random();
    wrong = 0;

    memset(data, 'x', sizeof(data));
    ratelimit_hash(&secret, data, HASH_LEN, &first);

    for (i = 1; i < 8; i++) {
        ratelimit_hash(&secret, data + i, HASH_LEN, &hash);
        wrong += (hash.lo != first.lo || hash.hi != first.hi);
    }

    tap_ok(wrong == 0, "does not depend on the alignment of the data");
}


/* each bit of key, secret and length moves about half of the output */

static void
hash_test_avalanche(void)
{
    size_t            bit;
    uint8_t           data[16];
    unsigned          moved, least;
    ratelimit_hash_t  secret, hash, first;

    least = 128;
    secret.lo = hash_random();
    secret.hi = hash_random();
    memset(data, 0, sizeof(data));
    ratelimit_hash(&secret, data, 16, &first);

    for (bit = 0; bit < 256; bit++) {

        if (bit < 128) {
            data[bit / 8] ^= 1 << (bit % 8);
            ratelimit_hash(&secret, data, 16, &hash);
            data[bit / 8] ^= 1 << (bit % 8);

        } else if (bit < 192) {
            secret.lo ^= 1ULL << (bit - 128);
            ratelimit_hash(&secret, data, 16, &hash);
            secret.lo ^= 1ULL << (bit - 128);

        } else {
            secret.hi ^= 1ULL << (bit - 192);
            ratelimit_hash(&secret, data, 16, &hash);
            secret.hi ^= 1ULL << (bit - 192);
        }

        moved = __builtin_popcountll(hash.lo ^ first.lo)
                + __builtin_popcountll(hash.hi ^ first.hi);

        if (moved < least) {
            least = moved;
        }
    }

    tap_ok(least >= 32, "any bit moves many others, %u at least", least);

    ratelimit_hash(&secret, data, 15, &hash);
    tap_ok(hash.lo != first.lo && hash.hi != first.hi,
           "zeros of another number hash otherwise");
}


/* keys that differ by a counter fill bins evenly, by either half */

static void
hash_test_distribution(hash_pt function, const char *name)
{
    char              key[32];
    int               len;
    unsigned          i, bin, worst, bins[4][HASH_BINS];
    ratelimit_hash_t  secret, hash;

    memset(bins, 0, sizeof(bins));
    secret.lo = hash_random();
    secret.hi = hash_random();
    worst = 0;

    for (i = 0; i < HASH_KEYS; i++) {
        len = snprintf(key, sizeof(key), "10.0.%u.%u", i / 256, i % 256);
        function(&secret, key, len, &hash);

        bins[0][hash.lo & 0xff]++;
        bins[1][hash.lo >> 56]++;
        bins[2][hash.hi & 0xff]++;
        bins[3][hash.hi >> 56]++;
    }

    for (i = 0; i < 4; i++) {
        for (bin = 0; bin < HASH_BINS; bin++) {
            if (bins[i][bin] > worst) {
                worst = bins[i][bin];
            }
        }
    }

    /* 256 are expected, with a deviation of 16 */
    tap_ok(worst < 256 + 8 * 16, "%s: fills bins evenly, %u of 256 at most",
           name, worst);
}


int
main(void)
{
    hash_test_published();
    hash_test_reference();
    hash_test_alignment();
    hash_test_avalanche();
    hash_test_distribution(ratelimit_hash, "128 bits");
    hash_test_distribution(hash_key, "keys");

    hash_test_key();
    hash_test_secret();
    hash_test_row(hash_row_address, HASH_KEYS, "addresses");
    hash_test_row(hash_row_front, HASH_KEYS, "numbers in front");
    hash_test_row(hash_row_back, HASH_KEYS, "numbers behind");
    hash_test_row(hash_row_digits, HASH_KEYS, "digits");
    hash_test_row(hash_row_long, HASH_KEYS, "long keys");
    hash_test_row(hash_row_zeros, HASH_KEY, "zeros");

    return tap_done();
}
