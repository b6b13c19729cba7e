
/*
 * SipHash with one round for each word and three at the end; see
 * https://github.com/veorq/SipHash.  For who hashes so often that even a call
 * counts; others use ratelimit_hash.h.
 */


#ifndef _RATELIMIT_SIP_H_INCLUDED_
#define _RATELIMIT_SIP_H_INCLUDED_


#include <string.h>

#include "core/ratelimit_hash.h"
#include "core/ratelimit_math.h"


/* odd, so that no two words become one; its high bits depend on all of them */
#define RATELIMIT_HASH_SPREAD  0xd1b54a32d192ed03ULL


static ratelimit_inline void
ratelimit_sip_start(ratelimit_sip_t *sip, const ratelimit_hash_t *secret)
{
    sip->v0 = secret->lo ^ 0x736f6d6570736575;
    sip->v1 = secret->hi ^ 0x646f72616e646f6d;
    sip->v2 = secret->lo ^ 0x6c7967656e657261;
    sip->v3 = secret->hi ^ 0x7465646279746573;
}


static ratelimit_inline uint64_t
ratelimit_sip_rotate(uint64_t word, unsigned bits)
{
    return word << bits | word >> (64 - bits);
}


static ratelimit_inline void
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


static ratelimit_inline void
ratelimit_sip_word(ratelimit_sip_t *sip, uint64_t word)
{
    sip->v3 ^= word;
    ratelimit_sip_round(sip);
    sip->v0 ^= word;
}


static ratelimit_inline uint64_t
ratelimit_sip_finish(ratelimit_sip_t *sip)
{
    ratelimit_sip_round(sip);
    ratelimit_sip_round(sip);
    ratelimit_sip_round(sip);

    return sip->v0 ^ sip->v1 ^ sip->v2 ^ sip->v3;
}


/* words are little endian wherever they are hashed */

static ratelimit_inline uint64_t
ratelimit_sip_load(const uint8_t *p)
{
    uint64_t  word;

    memcpy(&word, p, sizeof(uint64_t));

#if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
    word = __builtin_bswap64(word);
#endif

    return word;
}


static ratelimit_inline uint64_t
ratelimit_sip_load_half(const uint8_t *p)
{
    uint32_t  half;

    memcpy(&half, p, sizeof(uint32_t));

#if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
    half = __builtin_bswap32(half);
#endif

    return half;
}


/*
 * The last bytes, fewer than 8.  What stands before them is read with them and
 * dropped; of a shorter key some bytes are read twice, none beside it.
 */

static ratelimit_inline uint64_t
ratelimit_sip_tail(const uint8_t *end, size_t len)
{
    size_t          rest, half;
    const uint8_t  *p;

    rest = len % 8;

    if (rest == 0) {
        return 0;
    }

    if (len >= 8) {
        return ratelimit_sip_load(end - 8) >> (64 - 8 * rest);
    }

    p = end - len;

    if (len >= 4) {
        return ratelimit_sip_load_half(p)
               | ratelimit_sip_load_half(end - 4) << (8 * len - 32);
    }

    half = len / 2;

    return p[0] | (uint64_t) p[half] << (8 * half)
           | (uint64_t) end[-1] << (8 * len - 8);
}


static ratelimit_inline void
ratelimit_sip_data(ratelimit_sip_t *sip, const uint8_t *p, size_t len)
{
    const uint8_t  *last, *end;

    end = p + len;

    if (len >= 8) {
        last = p + (len & ~(size_t) 7);

        do {
            ratelimit_sip_word(sip, ratelimit_sip_load(p));
            p += 8;
        } while (p != last);
    }

    ratelimit_sip_word(sip, ratelimit_sip_tail(end, len)
                            | (uint64_t) len << 56);
}


/* ratelimit_hash_key() of a secret that was started with */

static ratelimit_inline void
ratelimit_sip_key(const ratelimit_sip_t *start, const void *data, size_t len,
    ratelimit_hash_t *hash)
{
    ratelimit_sip_t  sip;

    sip = *start;

    ratelimit_sip_data(&sip, data, len);

    sip.v2 ^= 0xff;
    hash->lo = ratelimit_sip_finish(&sip);
    hash->hi = hash->lo * RATELIMIT_HASH_SPREAD;
}


#endif /* _RATELIMIT_SIP_H_INCLUDED_ */
