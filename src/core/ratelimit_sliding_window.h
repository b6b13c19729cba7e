
/*
 * What a decision needs of a sliding_window, for who knows that it is one: then
 * all of it is compiled together with the decision, for a shape that may be
 * known, too.
 */


#ifndef _RATELIMIT_SLIDING_WINDOW_H_INCLUDED_
#define _RATELIMIT_SLIDING_WINDOW_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_counters.h"
#include "core/ratelimit_math.h"
#include "core/ratelimit_window.h"


/* a glance that has to look twice; total is that of all counters */
void ratelimit_sliding_window_weigh(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict, uint64_t total);

void ratelimit_sliding_window_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost);


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
 * Mostly even all that is kept leaves room, or what counts in full leaves none:
 * then nothing need be weighed.
 */

static ratelimit_inline void
ratelimit_sliding_window_glance(const ratelimit_shape_t *shape,
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


static ratelimit_inline void
ratelimit_sliding_window_write(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_window_t *window,
    uint64_t cost)
{
    uint32_t  i, place;

    /* until the index is written, these counters are those that have left */

    if (window->gap > shape->buckets) {
        ratelimit_counters_clear(shape, state);

    } else {
        for (i = 0; i < window->gap; i++) {
            place = ratelimit_counters_back(shape, window->place, i);
            ratelimit_counters_set(shape, state, place, 0);
        }
    }

    ratelimit_store_barrier();

    ratelimit_counters_add(shape, state, window->place, cost);

    ratelimit_store_barrier();

    state[0] = window->index;
}


/* a cost of which the verdict says where it goes; nothing is rebased */

static ratelimit_inline void
ratelimit_sliding_window_count(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_verdict_t *verdict,
    uint64_t cost)
{
    ratelimit_window_t  window;

    ratelimit_window_reload(shape, state, verdict->stamp, &window);
    ratelimit_sliding_window_write(shape, state, &window, cost);
}


static ratelimit_inline void
ratelimit_sliding_window_commit(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict)
{
    if (verdict->rebase || cost == 0) {
        ratelimit_sliding_window_charge(shape, rule, state, clock, cost);
        return;
    }

    ratelimit_sliding_window_count(shape, state, verdict, cost);
}


#endif /* _RATELIMIT_SLIDING_WINDOW_H_INCLUDED_ */
