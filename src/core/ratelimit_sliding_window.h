
/*
 * What a decision needs of a sliding_window, to be compiled as a part of it.
 *
 * A period is cut into sub-windows, on a grid of exact rational steps of
 * period / buckets.  Counted are the requests of the newest "buckets" of them,
 * and of the one before these the share that is still inside the period,
 * rounded up, though no more than a sub-window's part of the ceiling is taken
 * to have left: so any period has at most ceiling + ceiling / buckets.
 *
 * state[0]  index of the newest sub-window
 * then      buckets + 1 counters of shape->width bytes; the one of sub-window
 *           i stands at i modulo (buckets + 1)
 */


#ifndef _RATELIMIT_SLIDING_WINDOW_H_INCLUDED_
#define _RATELIMIT_SLIDING_WINDOW_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_counters.h"
#include "core/ratelimit_math.h"


/* a look that needs the share of the oldest; total is that of all counters */
void ratelimit_sliding_window_weigh(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict, uint64_t total);

/* moves all counters to where they belong if this index is the newest */
void ratelimit_sliding_window_rotate(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, uint64_t index);


/*
 * Whether what counts in full leaves no room, for a state that was charged in
 * the current sub-window; total is that of all counters.
 */

static ratelimit_inline int
ratelimit_sliding_window_is_full(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    uint64_t cost, uint64_t total)
{
    uint32_t  newest, oldest;

    newest = (uint32_t) ratelimit_mod(state[0], shape->buckets + 1);
    oldest = ratelimit_counters_back(shape, newest, shape->buckets);

    total -= ratelimit_counters_get(shape, state, oldest);

    return ratelimit_add(total, cost) > rule->ceiling;
}


/*
 * Mostly even the total of all counters leaves room, or what counts in full
 * leaves none: then the share of the oldest does not matter.
 */

static ratelimit_inline void
ratelimit_sliding_window_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint64_t  index, total;
    unsigned  allowed;

    allowed = 1;
    index = clock->now * shape->buckets / rule->period;
    total = ratelimit_counters_total(shape, state);

    if (state[0] > index || total + cost > rule->limit
        || total + cost > rule->ceiling)
    {
        if (state[0] != index || cost == 0
            || !ratelimit_sliding_window_is_full(shape, rule, state, cost,
                                                 total))
        {
            ratelimit_sliding_window_weigh(shape, rule, state, clock, cost,
                                           verdict, total);
            return;
        }

        allowed = 0;
    }

    verdict->stamp = index;
    verdict->delay = 0;
    verdict->allowed = allowed;
    verdict->soft = 0;
    verdict->rebase = 0;
}


/*
 * Clears the counters of the sub-windows that come with this index: until it is
 * written, these are counters that have left.
 */

static ratelimit_inline void
ratelimit_sliding_window_advance(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, uint64_t index, uint32_t place)
{
    uint32_t  i, gap, stale;

    gap = (uint32_t) ratelimit_min(index - state[0], shape->buckets + 1);

    if (gap > shape->buckets) {
        ratelimit_counters_clear(shape, state);
        return;
    }

    for (i = 0; i < gap; i++) {
        stale = ratelimit_counters_back(shape, place, i);
        ratelimit_counters_set(shape, state, stale, 0);
    }
}


static ratelimit_inline void
ratelimit_sliding_window_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict)
{
    uint32_t  place;

    (void) rule;
    (void) clock;

    place = (uint32_t) ratelimit_mod(verdict->stamp, shape->buckets + 1);

    if (verdict->rebase) {
        ratelimit_sliding_window_rotate(shape, state, verdict->stamp);

    } else if (cost == 0) {
        return;

    } else {
        ratelimit_sliding_window_advance(shape, state, verdict->stamp, place);
    }

    ratelimit_counters_add(shape, state, place, cost);

    ratelimit_set(&state[0], verdict->stamp);
}


#endif /* _RATELIMIT_SLIDING_WINDOW_H_INCLUDED_ */
