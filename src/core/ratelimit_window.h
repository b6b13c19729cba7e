
/*
 * Sub-windows, on a grid of exact rational steps of period / buckets, as a
 * state keeps them and as they are at a time.
 *
 * state[0]  index of the newest sub-window
 * then      buckets + 1 counters of shape->width bytes; the one of sub-window
 *           i stands at i modulo (buckets + 1)
 *
 * Positions inside a sub-window are measured in units of 1 us / buckets: so
 * now is now * buckets units, a sub-window has period units, and one division
 * gives both the index and the position.
 */


#ifndef _RATELIMIT_WINDOW_H_INCLUDED_
#define _RATELIMIT_WINDOW_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_counters.h"
#include "core/ratelimit_math.h"


typedef struct {
    uint64_t                        index;    /* of the current sub-window */
    uint64_t                        ahead;    /* units from now to its start;
                                                 it mostly lies behind, then
                                                 this wraps */
    uint64_t                        elapsed;  /* units since its start */
    uint32_t                        place;    /* of its counter */
    uint32_t                        gap;      /* sub-windows entered since the
                                                 last charge, their counters
                                                 are stale */
    uint32_t                        rebase;
} ratelimit_window_t;


/* what counts: some at full weight, the oldest sub-window at its share */

typedef struct {
    uint64_t                        full;
    uint64_t                        old;
} ratelimit_window_sum_t;


static inline void
ratelimit_window_load(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state, uint64_t now,
    ratelimit_window_t *window)
{
    uint32_t  ring;
    uint64_t  units, index, newest;

    ring = shape->buckets + 1;
    units = now * shape->buckets;
    index = units / rule->period;
    newest = state[0];

    window->elapsed = units - index * rule->period;
    window->gap = 0;
    window->rebase = 0;

    if (newest <= index) {
        window->gap = (uint32_t) ratelimit_min(index - newest, ring);
        newest = index;

    } else if (newest
               <= (now + RATELIMIT_SKEW) * shape->buckets / rule->period)
    {
        /* another worker's clock is a little ahead: its time is taken */

        index = newest;
        window->elapsed = 0;

    } else {
        /* the clock was set back: what is newest there becomes current */

        window->rebase = 1;
    }

    window->index = index;
    window->ahead = index * rule->period - units;
    window->place = (uint32_t) ratelimit_mod(newest, ring);
}


/* the same, as far as a verdict tells it, and it does of the newest one */

static inline void
ratelimit_window_reload(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, uint64_t newest,
    ratelimit_window_t *window)
{
    uint32_t  ring;

    ring = shape->buckets + 1;

    window->index = newest;
    window->gap = (uint32_t) ratelimit_min(newest - state[0], ring);
    window->place = (uint32_t) ratelimit_mod(newest, ring);
}


/* of all that is kept, what counts */

static inline void
ratelimit_window_sum(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, const ratelimit_window_t *window,
    uint64_t total, ratelimit_window_sum_t *sum)
{
    uint32_t  i, place;

    sum->full = 0;
    sum->old = 0;

    if (window->gap > shape->buckets) {
        return;
    }

    for (i = 0; i < window->gap; i++) {
        place = ratelimit_counters_back(shape, window->place, i);
        total -= ratelimit_counters_get(shape, state, place);
    }

    place = ratelimit_counters_back(shape, window->place, shape->buckets);

    sum->old = ratelimit_counters_get(shape, state, place);
    sum->full = total - sum->old;
}


/* ceil(count * (period - elapsed) / period) */

static inline uint64_t
ratelimit_window_share(const ratelimit_rule_t *rule, uint64_t count,
    uint64_t elapsed)
{
    uint64_t  left, high, low;

    if (count == 0 || elapsed == 0) {
        return count;
    }

    left = rule->period - elapsed;

    if (count <= rule->ceiling) {
        return ratelimit_muldiv_ceil(count, left, rule->period);
    }

    /* counted under another rule: 32 by 46 bits need two steps */

    high = (count >> 16) * left;
    low = ((high % rule->period) << 16) + (count & 0xffff) * left;

    return ((high / rule->period) << 16)
           + ratelimit_div_ceil(low, rule->period);
}


/*
 * The counters that count, a bit for each: that of the oldest sub-window is the
 * lowest, that of the current one is at buckets.
 */

static inline uint64_t
ratelimit_window_used(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, const ratelimit_window_t *window)
{
    uint32_t  ring, oldest;
    uint64_t  used;

    ring = shape->buckets + 1;
    oldest = (window->place == shape->buckets) ? 0 : window->place + 1;

    used = ratelimit_counters_used(shape, state);
    used = (used >> oldest) | (used << (ring - oldest));

    return used & (((uint64_t) 1 << (ring - window->gap)) - 1);
}


#endif /* _RATELIMIT_WINDOW_H_INCLUDED_ */
