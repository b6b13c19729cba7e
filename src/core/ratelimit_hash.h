
/*
 * SipHash-1-3 of 128 bits: without the secret it can not be distinguished from
 * a random number.
 */


#ifndef _RATELIMIT_HASH_H_INCLUDED_
#define _RATELIMIT_HASH_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


typedef struct {
    uint64_t                        lo;
    uint64_t                        hi;
} ratelimit_hash_t;


/* ratelimit_key.h has a faster one for keys */

void ratelimit_hash(const ratelimit_hash_t *secret, const void *data,
    size_t len, ratelimit_hash_t *hash);


#endif /* _RATELIMIT_HASH_H_INCLUDED_ */
