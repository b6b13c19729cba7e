
/*
 * The secret numbers of keys, and keys that are not short.
 */


#include "core/ratelimit_key.h"


static uint64_t ratelimit_hasher_number(const ratelimit_hash_t *secret,
    uint64_t n);


void
ratelimit_hasher_init(ratelimit_hasher_t *hasher,
    const ratelimit_hash_t *secret)
{
    size_t    i;
    uint64_t  n;

    n = 0;

    hasher->v.lo = ratelimit_hasher_number(secret, n++);
    hasher->v.hi = ratelimit_hasher_number(secret, n++);
    hasher->w.lo = ratelimit_hasher_number(secret, n++);
    hasher->w.hi = ratelimit_hasher_number(secret, n++);
    hasher->z.lo = ratelimit_hasher_number(secret, n++);
    hasher->z.hi = ratelimit_hasher_number(secret, n++);
    hasher->length = ratelimit_hasher_number(secret, n++);

    for (i = 0; i < RATELIMIT_KEY_MAX / 8; i++) {
        hasher->pairs[i] = ratelimit_hasher_number(secret, n++);
    }

    hasher->secret = *secret;
}


static uint64_t
ratelimit_hasher_number(const ratelimit_hash_t *secret, uint64_t n)
{
    ratelimit_hash_t  hash;

    ratelimit_hash(secret, &n, sizeof(uint64_t), &hash);

    return hash.lo;
}


/* the last pair is the end of the key, and may overlap the one before */

ratelimit_wide_t
ratelimit_key_sum(const ratelimit_hasher_t *hasher, const uint8_t *p,
    size_t len)
{
    const uint8_t     *end;
    const uint64_t    *pair;
    ratelimit_hash_t   hash;
    ratelimit_wide_t   sum;

    pair = hasher->pairs;

    if (len > RATELIMIT_KEY_MAX) {
        ratelimit_hash(&hasher->secret, p, len, &hash);

        return ratelimit_key_pair(pair, hash.lo, hash.hi);
    }

    sum = 0;
    end = p + len - 16;

    for ( /* void */ ; p < end; p += 16) {
        sum += ratelimit_key_pair(pair, ratelimit_key_word(p),
                                  ratelimit_key_word(p + 8));
        pair += 2;
    }

    return sum + ratelimit_key_pair(pair, ratelimit_key_word(end),
                                    ratelimit_key_word(end + 8));
}
