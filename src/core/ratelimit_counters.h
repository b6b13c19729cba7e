
/*
 * A ring of buckets + 1 counters, of two or four bytes each, that stands
 * behind the first word of a state.
 */


#ifndef _RATELIMIT_COUNTERS_H_INCLUDED_
#define _RATELIMIT_COUNTERS_H_INCLUDED_


#include <string.h>

#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


static inline uint32_t
ratelimit_counters_get(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, uint32_t place)
{
    if (shape->width == sizeof(uint16_t)) {
        return ((const ratelimit_uint16_t *) &state[1])[place];
    }

    return ((const ratelimit_uint32_t *) &state[1])[place];
}


/* a counter that is full stays so */

static inline void
ratelimit_counters_set(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, uint32_t place, uint64_t count)
{
    if (shape->width == sizeof(uint16_t)) {
        __atomic_store_n(&((ratelimit_uint16_t *) &state[1])[place],
                         (uint16_t) ratelimit_min(count, UINT16_MAX),
                         __ATOMIC_RELEASE);
        return;
    }

    __atomic_store_n(&((ratelimit_uint32_t *) &state[1])[place],
                     (uint32_t) ratelimit_min(count, UINT32_MAX),
                     __ATOMIC_RELEASE);
}


/* where one of two counters of four bytes, which share a word, stands in it */

static inline unsigned
ratelimit_counters_shift(uint32_t place)
{
#if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
    return 32 * (1 - place);
#else
    return 32 * place;
#endif
}


static inline void
ratelimit_counters_add(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, uint32_t place, uint64_t cost)
{
    uint64_t  count;
    unsigned  shift;

    if (shape->buckets == 1 && shape->width == sizeof(uint32_t)) {

        /* both are one word, which need not be taken apart */

        shift = ratelimit_counters_shift(place);
        count = state[1] >> shift & UINT32_MAX;
        cost = ratelimit_min(cost, UINT32_MAX - count);
        ratelimit_set(&state[1], state[1] + (cost << shift));

        return;
    }

    count = ratelimit_counters_get(shape, state, place);
    ratelimit_counters_set(shape, state, place, ratelimit_add(count, cost));
}


/* the place of the sub-window that lies so many before; at most buckets */

static inline uint32_t
ratelimit_counters_back(const ratelimit_shape_t *shape, uint32_t place,
    uint32_t distance)
{
    if (place >= distance) {
        return place - distance;
    }

    return place + shape->buckets + 1 - distance;
}


/* words that all counters take */

static inline uint32_t
ratelimit_counters_words(const ratelimit_shape_t *shape)
{
    return shape->width == sizeof(uint16_t) ? (shape->buckets + 4) / 4
                                            : (shape->buckets + 2) / 2;
}


/*
 * The sum of all counters, a word at a time; what follows the last counter in
 * its word is always zero.
 */

static inline uint64_t
ratelimit_counters_total(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state)
{
    uint32_t  i, words;
    uint64_t  even, odd, word;

    even = 0;
    odd = 0;
    words = ratelimit_counters_words(shape);

    if (shape->width == sizeof(uint16_t)) {

#pragma GCC unroll 4

        for (i = 1; i <= words; i++) {
            word = state[i];
            even += word & 0x0000ffff0000ffff;
            odd += (word >> 16) & 0x0000ffff0000ffff;
        }

        even += odd;

        return (even & 0xffffffff) + (even >> 32);
    }

    /* what is left of all words without their upper halves */

#pragma GCC unroll 8

    for (i = 1; i <= words; i++) {
        word = state[i];
        even += word;
        odd += word >> 32;
    }

    even -= odd << 32;

    return even + odd;
}


static inline void
ratelimit_counters_clear(const ratelimit_shape_t *shape,
    ratelimit_state_t *state)
{
    uint32_t  i;

    for (i = ratelimit_counters_words(shape); i; i--) {
        ratelimit_set(&state[i], 0);
    }
}


#endif /* _RATELIMIT_COUNTERS_H_INCLUDED_ */
