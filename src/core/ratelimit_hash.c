
/*
 * SipHash with one round for each word and three at the end; see
 * https://github.com/veorq/SipHash.
 */


#include <string.h>

#include "core/ratelimit_hash.h"


typedef struct {
    uint64_t                        v0;
    uint64_t                        v1;
    uint64_t                        v2;
    uint64_t                        v3;
} ratelimit_sip_t;


static inline uint64_t ratelimit_sip_rotate(uint64_t word, unsigned bits);
static inline void ratelimit_sip_round(ratelimit_sip_t *sip);
static inline void ratelimit_sip_word(ratelimit_sip_t *sip, uint64_t word);
static inline uint64_t ratelimit_sip_load(const uint8_t *p, size_t len);
static uint64_t ratelimit_sip_finish(ratelimit_sip_t *sip);


void
ratelimit_hash(const ratelimit_hash_t *secret, const void *data, size_t len,
    ratelimit_hash_t *hash)
{
    const uint8_t    *p, *last;
    ratelimit_sip_t   sip;

    sip.v0 = secret->lo ^ 0x736f6d6570736575;
    sip.v1 = secret->hi ^ 0x646f72616e646f6d ^ 0xee;
    sip.v2 = secret->lo ^ 0x6c7967656e657261;
    sip.v3 = secret->hi ^ 0x7465646279746573;

    p = data;
    last = p + len / 8 * 8;

    for ( /* void */ ; p != last; p += 8) {
        ratelimit_sip_word(&sip, ratelimit_sip_load(p, 8));
    }

    ratelimit_sip_word(&sip, ratelimit_sip_load(p, len % 8)
                             | (uint64_t) len << 56);

    sip.v2 ^= 0xee;
    hash->lo = ratelimit_sip_finish(&sip);

    sip.v1 ^= 0xdd;
    hash->hi = ratelimit_sip_finish(&sip);
}


static inline uint64_t
ratelimit_sip_rotate(uint64_t word, unsigned bits)
{
    return word << bits | word >> (64 - bits);
}


static inline void
ratelimit_sip_round(ratelimit_sip_t *sip)
{
    sip->v0 += sip->v1;
    sip->v1 = ratelimit_sip_rotate(sip->v1, 13) ^ sip->v0;
    sip->v0 = ratelimit_sip_rotate(sip->v0, 32);

    sip->v2 += sip->v3;
    sip->v3 = ratelimit_sip_rotate(sip->v3, 16) ^ sip->v2;

    sip->v0 += sip->v3;
    sip->v3 = ratelimit_sip_rotate(sip->v3, 21) ^ sip->v0;

    sip->v2 += sip->v1;
    sip->v1 = ratelimit_sip_rotate(sip->v1, 17) ^ sip->v2;
    sip->v2 = ratelimit_sip_rotate(sip->v2, 32);
}


static inline void
ratelimit_sip_word(ratelimit_sip_t *sip, uint64_t word)
{
    sip->v3 ^= word;
    ratelimit_sip_round(sip);
    sip->v0 ^= word;
}


/* little endian, at most 8 bytes */

static inline uint64_t
ratelimit_sip_load(const uint8_t *p, size_t len)
{
    uint64_t  word;

    word = 0;

    if (len) {
        memcpy(&word, p, len);
    }

#if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
    word = __builtin_bswap64(word);
#endif

    return word;
}


static uint64_t
ratelimit_sip_finish(ratelimit_sip_t *sip)
{
    ratelimit_sip_round(sip);
    ratelimit_sip_round(sip);
    ratelimit_sip_round(sip);

    return sip->v0 ^ sip->v1 ^ sip->v2 ^ sip->v3;
}
