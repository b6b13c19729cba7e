
/*
 * SipHash-1-3 with 128 bits of output: nobody who does not know the secret
 * can find two keys that share a counter.
 */


#ifndef _RATELIMIT_HASH_H_INCLUDED_
#define _RATELIMIT_HASH_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


typedef struct {
    uint64_t                        lo;
    uint64_t                        hi;
} ratelimit_hash_t;


void ratelimit_hash(const ratelimit_hash_t *secret, const void *data,
    size_t len, ratelimit_hash_t *hash);


#endif /* _RATELIMIT_HASH_H_INCLUDED_ */
