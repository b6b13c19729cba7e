
/*
 * What a decision needs of a fixed_window, to be compiled as a part of it.
 *
 * state[0]  end of the window, monotonic
 * state[1]  requests in it
 */


#ifndef _RATELIMIT_FIXED_WINDOW_H_INCLUDED_
#define _RATELIMIT_FIXED_WINDOW_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


typedef struct {
    uint64_t                        end;
    uint64_t                        count;
    unsigned                        rebase;
} ratelimit_fixed_window_t;


/* the window that is open, or the one that a charge would open */

static ratelimit_inline void
ratelimit_fixed_window_load(const ratelimit_rule_t *rule,
    const ratelimit_state_t *state, const ratelimit_clock_t *clock,
    ratelimit_fixed_window_t *window)
{
    window->end = state[0];
    window->count = state[1];
    window->rebase = 0;

    if (window->end <= clock->now) {
        window->count = 0;

    } else if (window->end - clock->now <= rule->period + RATELIMIT_SKEW) {
        return;

    } else {
        /* the clock was set back: the count stays, the end would be too far */
        window->rebase = (window->count != 0);
    }

    window->end = clock->now + rule->period - clock->wall % rule->period;
}


static ratelimit_inline void
ratelimit_fixed_window_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    ratelimit_fixed_window_t  window;

    (void) shape;

    ratelimit_fixed_window_load(rule, state, clock, &window);

    verdict->stamp = window.end;
    verdict->rebase = window.rebase;

    ratelimit_admit(rule, window.count, cost, verdict);
}


static ratelimit_inline void
ratelimit_fixed_window_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict)
{
    uint64_t  count;

    (void) shape;
    (void) rule;
    (void) clock;

    if (cost == 0 && !verdict->rebase) {
        return;
    }

    count = (state[0] == verdict->stamp || verdict->rebase) ? state[1] : 0;

    /* a count without its end belongs to a window that is past already */

    ratelimit_set(&state[1], ratelimit_add(count, cost));
    ratelimit_set(&state[0], verdict->stamp);
}


#endif /* _RATELIMIT_FIXED_WINDOW_H_INCLUDED_ */
