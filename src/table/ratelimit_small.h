
/*
 * Small states, which are one word: 38 bits of time (ms) and 26 of count, or
 * for a sliding_window of one bucket 28 bits of the newest window's number and
 * twice 18 of count.
 */


#ifndef _RATELIMIT_SMALL_H_INCLUDED_
#define _RATELIMIT_SMALL_H_INCLUDED_


#include "core/ratelimit_counters.h"
#include "core/ratelimit_math.h"


#define RATELIMIT_SMALL_COUNT_BITS   26
#define RATELIMIT_SMALL_WINDOW_BITS  18
#define RATELIMIT_SMALL_TICK         1000    /* us */

#define RATELIMIT_SMALL_COUNT        ((1ULL << RATELIMIT_SMALL_COUNT_BITS) - 1)
#define RATELIMIT_SMALL_WINDOW       ((1ULL << RATELIMIT_SMALL_WINDOW_BITS) - 1)


static ratelimit_inline void
ratelimit_small_unpack(ratelimit_algorithm_e algorithm, uint64_t word,
    ratelimit_state_t *words)
{
    if (algorithm == RATELIMIT_SLIDING_WINDOW) {
        words[0] = word >> (2 * RATELIMIT_SMALL_WINDOW_BITS);
        words[1] = ratelimit_counters_pair(word >> RATELIMIT_SMALL_WINDOW_BITS
                                           & RATELIMIT_SMALL_WINDOW,
                                           word & RATELIMIT_SMALL_WINDOW);

    } else {
        words[0] = (word >> RATELIMIT_SMALL_COUNT_BITS) * RATELIMIT_SMALL_TICK;
        words[1] = word & RATELIMIT_SMALL_COUNT;
    }
}


static ratelimit_inline uint64_t
ratelimit_small_pack(ratelimit_algorithm_e algorithm,
    const ratelimit_state_t *words)
{
    uint64_t  first, second;

    if (algorithm == RATELIMIT_SLIDING_WINDOW) {
        first = words[1] >> ratelimit_counters_shift(0) & UINT32_MAX;
        second = words[1] >> ratelimit_counters_shift(1) & UINT32_MAX;

        return words[0] << (2 * RATELIMIT_SMALL_WINDOW_BITS)
               | ratelimit_min(first, RATELIMIT_SMALL_WINDOW)
                 << RATELIMIT_SMALL_WINDOW_BITS
               | ratelimit_min(second, RATELIMIT_SMALL_WINDOW);
    }

    return (words[0] + RATELIMIT_SMALL_TICK - 1) / RATELIMIT_SMALL_TICK
           << RATELIMIT_SMALL_COUNT_BITS
           | ratelimit_min(words[1], RATELIMIT_SMALL_COUNT);
}


#endif /* _RATELIMIT_SMALL_H_INCLUDED_ */
