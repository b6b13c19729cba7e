
/*
 * Keys as 64 bits, by sums of products with secret numbers.  Two keys that were
 * chosen without knowing these have one hash with a chance of 2^-63, for which
 * SipHash would take three times as long: t/08-gates.t has no room for that.
 *
 * A key of up to RATELIMIT_KEY_MAX bytes is taken as pairs of words (a, b).
 * The sum, of 128 bits, of all (a + p) * (b + q), with two secret numbers for
 * each pair, and of the length times another one is the same for two keys with
 * a chance of 2^-64.  (That is NH of the UMAC paper by Black, Halevi, Krawczyk,
 * Krovetz and Rogaway.)  Of its halves x and y, v * x + w * y + z is taken, by
 * secret numbers of 128 bits: in the upper half of that, any two sums have any
 * two values with the same chance.  (See "Strongly universal string hashing is
 * fast" by Lemire and Kaser.)
 *
 * A hash reveals something of the secret: it never leaves the machine.
 */


#ifndef _RATELIMIT_KEY_H_INCLUDED_
#define _RATELIMIT_KEY_H_INCLUDED_


#include <string.h>

#include "core/ratelimit_hash.h"
#include "core/ratelimit_math.h"


/* bytes; of a longer key its SipHash is taken */
#define RATELIMIT_KEY_MAX     128

/* odd, its bits are in no order */
#define RATELIMIT_KEY_SPREAD  0xd1b54a32d192ed03ULL


typedef unsigned __int128  ratelimit_wide_t;


/* what is secret, made of 128 bits that are */

typedef struct {
    ratelimit_hash_t                v;
    ratelimit_hash_t                w;
    ratelimit_hash_t                z;
    uint64_t                        length;
    uint64_t                        pairs[RATELIMIT_KEY_MAX / 8];
    ratelimit_hash_t                secret;
} ratelimit_hasher_t;


void ratelimit_hasher_init(ratelimit_hasher_t *hasher,
    const ratelimit_hash_t *secret);

/* the sum for a key of more than 16 bytes */
ratelimit_wide_t ratelimit_key_sum(const ratelimit_hasher_t *hasher,
    const uint8_t *p, size_t len);


static ratelimit_inline uint64_t
ratelimit_key_word(const uint8_t *p)
{
    uint64_t  word;

    memcpy(&word, p, sizeof(uint64_t));

    return word;
}


static ratelimit_inline uint64_t
ratelimit_key_half(const uint8_t *p)
{
    uint32_t  half;

    memcpy(&half, p, sizeof(uint32_t));

    return half;
}


static ratelimit_inline ratelimit_wide_t
ratelimit_key_pair(const uint64_t *pair, uint64_t a, uint64_t b)
{
    return (ratelimit_wide_t) (a + pair[0]) * (b + pair[1]);
}


/*
 * Of a short key the two words are its beginning and its end, which overlap:
 * keys of one length that differ have words that differ, and no more is asked.
 */

static ratelimit_inline ratelimit_wide_t
ratelimit_key_short(const ratelimit_hasher_t *hasher, const uint8_t *p,
    size_t len)
{
    const uint8_t  *end;

    end = p + len;

    if (len >= 8) {
        return ratelimit_key_pair(hasher->pairs, ratelimit_key_word(p),
                                  ratelimit_key_word(end - 8));
    }

    if (len >= 4) {
        return ratelimit_key_pair(hasher->pairs, ratelimit_key_half(p),
                                  ratelimit_key_half(end - 4));
    }

    if (len == 0) {
        return 0;
    }

    return ratelimit_key_pair(hasher->pairs, p[0] | p[len / 2] << 8, end[-1]);
}


static ratelimit_inline void
ratelimit_key_hash(const ratelimit_hasher_t *hasher, const void *data,
    size_t len, ratelimit_hash_t *hash)
{
    uint64_t          x, y;
    ratelimit_wide_t  sum;

    sum = (len <= 16) ? ratelimit_key_short(hasher, data, len)
                      : ratelimit_key_sum(hasher, data, len);

    sum += (ratelimit_wide_t) hasher->length * len;

    x = (uint64_t) sum;
    y = (uint64_t) (sum >> 64);

    sum = (ratelimit_wide_t) hasher->v.lo * x + hasher->z.lo;
    sum += (ratelimit_wide_t) hasher->w.lo * y;

    hash->lo = (uint64_t) (sum >> 64)
               + hasher->v.hi * x + hasher->w.hi * y + hasher->z.hi;

    /* keys in a row have sums in a row: that is not to be seen in the table */

    x = hash->lo ^ hash->lo >> 32;
    sum = (ratelimit_wide_t) x * RATELIMIT_KEY_SPREAD;

    hash->hi = (uint64_t) sum ^ (uint64_t) (sum >> 64);
}


#endif /* _RATELIMIT_KEY_H_INCLUDED_ */
