
/*
 * SipHash-1-3 with 128 and with 64 bits against a plain transcription of the
 * paper, which is itself checked by the published numbers of SipHash-2-4.
 */


#include <stdlib.h>
#include <string.h>

#include "core/ratelimit_hash.h"

#include "tap.h"


#define HASH_LEN   64
#define HASH_KEYS  65536
#define HASH_BINS  256


typedef void (*hash_pt)(const ratelimit_hash_t *secret, const void *data,
    size_t len, ratelimit_hash_t *hash);


typedef struct {
    uint64_t                        v[4];
} hash_sip_t;


static uint64_t hash_random(void);
static uint64_t hash_rotl(uint64_t x, unsigned bits);
static void hash_rounds(hash_sip_t *s, unsigned n);
static uint64_t hash_word(const uint8_t *data, size_t len);
static void hash_absorb(hash_sip_t *s, const ratelimit_hash_t *secret,
    const uint8_t *data, size_t len, unsigned c, uint64_t wide);
static uint64_t hash_sip_64(const ratelimit_hash_t *secret,
    const uint8_t *data, size_t len, unsigned c, unsigned d);
static void hash_sip(const ratelimit_hash_t *secret, const uint8_t *data,
    size_t len, unsigned c, unsigned d, ratelimit_hash_t *hash);
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


static uint64_t
hash_sip_64(const ratelimit_hash_t *secret, const uint8_t *data, size_t len,
    unsigned c, unsigned d)
{
    hash_sip_t  s;

    hash_absorb(&s, secret, data, len, c, 0);

    s.v[2] ^= 0xff;
    hash_rounds(&s, d);

    return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
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

    tap_ok(hash_sip_64(&secret, data, 0, 2, 4) == 0x726fdb47dd0e0e31ULL
           && hash_sip_64(&secret, data, 1, 2, 4) == 0x74f839c593dc67fdULL,
           "and those of 64 bits");
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

            ratelimit_hash_key(&secret, data, len, &hash);

            if (hash.lo != hash_sip_64(&secret, data, len, 1, 3)) {
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
    hash_test_distribution(ratelimit_hash_key, "64 bits");

    return tap_done();
}
