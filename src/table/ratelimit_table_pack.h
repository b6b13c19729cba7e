
/*
 * States that are packed into one word: 40 bits of time (ms) and 24 of count,
 * or for a sliding_window of one bucket 30 bits of the newest sub-window's
 * index and twice 17 of count.  Both last for 34 years of uptime.
 */


#ifndef _RATELIMIT_TABLE_PACK_H_INCLUDED_
#define _RATELIMIT_TABLE_PACK_H_INCLUDED_


#include "core/ratelimit_counters.h"
#include "core/ratelimit_math.h"


#define RATELIMIT_PACK_TICK         1000    /* us */
#define RATELIMIT_PACK_COUNT_BITS   24
#define RATELIMIT_PACK_WINDOW_BITS  17

#define RATELIMIT_PACK_COUNT        ((1ULL << RATELIMIT_PACK_COUNT_BITS) - 1)
#define RATELIMIT_PACK_WINDOW       ((1ULL << RATELIMIT_PACK_WINDOW_BITS) - 1)


/* ratelimit_table.c: the highest ceiling that a packed state can count */
uint64_t ratelimit_pack_most(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule);


/* two counters of four bytes, as they stand in a word of a state */

static ratelimit_inline uint64_t
ratelimit_pack_pair(uint64_t first, uint64_t second)
{
    return first << ratelimit_counters_shift(0)
           | second << ratelimit_counters_shift(1);
}


static ratelimit_inline void
ratelimit_unpack(ratelimit_form_e form, uint64_t word,
    ratelimit_state_t *state)
{
    if (form == RATELIMIT_FORM_SUB_WINDOWS) {
        state[0] = word >> (2 * RATELIMIT_PACK_WINDOW_BITS);
        state[1] = ratelimit_pack_pair(word >> RATELIMIT_PACK_WINDOW_BITS
                                       & RATELIMIT_PACK_WINDOW,
                                       word & RATELIMIT_PACK_WINDOW);

    } else {
        state[0] = (word >> RATELIMIT_PACK_COUNT_BITS) * RATELIMIT_PACK_TICK;
        state[1] = word & RATELIMIT_PACK_COUNT;
    }
}


static ratelimit_inline uint64_t
ratelimit_pack(ratelimit_form_e form, const ratelimit_state_t *state)
{
    uint64_t  first, second;

    if (form == RATELIMIT_FORM_SUB_WINDOWS) {
        first = state[1] >> ratelimit_counters_shift(0) & UINT32_MAX;
        second = state[1] >> ratelimit_counters_shift(1) & UINT32_MAX;

        return state[0] << (2 * RATELIMIT_PACK_WINDOW_BITS)
               | ratelimit_min(first, RATELIMIT_PACK_WINDOW)
                 << RATELIMIT_PACK_WINDOW_BITS
               | ratelimit_min(second, RATELIMIT_PACK_WINDOW);
    }

    return (state[0] + RATELIMIT_PACK_TICK - 1) / RATELIMIT_PACK_TICK
           << RATELIMIT_PACK_COUNT_BITS
           | ratelimit_min(state[1], RATELIMIT_PACK_COUNT);
}


#endif /* _RATELIMIT_TABLE_PACK_H_INCLUDED_ */
