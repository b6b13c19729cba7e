
/*
 * Keys as 128 bits, and as 64.
 */


#include "core/ratelimit_sip.h"


void
ratelimit_hash(const ratelimit_hash_t *secret, const void *data, size_t len,
    ratelimit_hash_t *hash)
{
    ratelimit_sip_t  sip;

    ratelimit_sip_start(&sip, secret);

    sip.v1 ^= 0xee;
    ratelimit_sip_data(&sip, data, len);

    sip.v2 ^= 0xee;
    hash->lo = ratelimit_sip_finish(&sip);

    sip.v1 ^= 0xdd;
    hash->hi = ratelimit_sip_finish(&sip);
}


void
ratelimit_hash_key(const ratelimit_hash_t *secret, const void *data,
    size_t len, ratelimit_hash_t *hash)
{
    ratelimit_sip_t  start;

    ratelimit_sip_start(&start, secret);
    ratelimit_sip_key(&start, data, len, hash);
}
