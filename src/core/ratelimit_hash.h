
/*
 * SipHash-1-3: nobody who does not know the secret can find two keys that
 * share a counter.
 */


#ifndef _RATELIMIT_HASH_H_INCLUDED_
#define _RATELIMIT_HASH_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


typedef struct {
    uint64_t                        lo;
    uint64_t                        hi;
} ratelimit_hash_t;


/* a secret, ready to hash by it */

typedef struct {
    uint64_t                        v0;
    uint64_t                        v1;
    uint64_t                        v2;
    uint64_t                        v3;
} ratelimit_sip_t;


/* 128 bits */
void ratelimit_hash(const ratelimit_hash_t *secret, const void *data,
    size_t len, ratelimit_hash_t *hash);

/*
 * 64 bits, spread over both words: of a million keys that are counted at the
 * same time two share a counter once in 40 million zones.
 */
void ratelimit_hash_key(const ratelimit_hash_t *secret, const void *data,
    size_t len, ratelimit_hash_t *hash);


#endif /* _RATELIMIT_HASH_H_INCLUDED_ */
