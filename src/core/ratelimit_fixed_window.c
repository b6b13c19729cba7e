
/*
 * Windows of one period, aligned to the wall clock when they open; from then
 * on only the monotonic clock counts, so that a step of the wall clock neither
 * prolongs a window nor opens a second one.
 *
 * state[0]  end of the window, monotonic
 * state[1]  requests in it
 */


#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


typedef struct {
    uint64_t                        end;
    uint64_t                        count;
    unsigned                        rebase;
} ratelimit_fixed_window_t;


static inline void ratelimit_fixed_window_load(const ratelimit_rule_t *rule,
    const ratelimit_state_t *state, const ratelimit_clock_t *clock,
    ratelimit_fixed_window_t *window);
static void ratelimit_fixed_window_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static void ratelimit_fixed_window_glance(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static void ratelimit_fixed_window_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost);
static void ratelimit_fixed_window_commit(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict);
static inline void ratelimit_fixed_window_write(ratelimit_state_t *state,
    uint64_t end, uint64_t count);
static void ratelimit_fixed_window_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static uint64_t ratelimit_fixed_window_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state);
static size_t ratelimit_fixed_window_size(const ratelimit_shape_t *shape);
static void ratelimit_fixed_window_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from);


const ratelimit_algorithm_t  ratelimit_fixed_window = {
    "fixed_window",
    ratelimit_fixed_window_look,
    ratelimit_fixed_window_glance,
    ratelimit_fixed_window_charge,
    ratelimit_fixed_window_commit,
    ratelimit_fixed_window_charge,
    ratelimit_fixed_window_refund,
    ratelimit_fixed_window_expires,
    ratelimit_fixed_window_size,
    ratelimit_fixed_window_copy
};


/* the window that is open, or the one that a charge would open */

static inline void
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


static void
ratelimit_fixed_window_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint64_t                  left;
    ratelimit_fixed_window_t  window;

    (void) shape;

    ratelimit_fixed_window_load(rule, state, clock, &window);

    left = window.end - clock->now;

    verdict->stamp = window.end;
    verdict->rebase = window.rebase;

    if (ratelimit_admit(rule, window.count, cost, verdict)) {
        verdict->reset_after = (window.count || cost) ? left : 0;
        return;
    }

    verdict->reset_after = window.count ? left : 0;
    verdict->retry_after = (cost > rule->ceiling) ? rule->period : left;
}


static void
ratelimit_fixed_window_glance(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    ratelimit_fixed_window_t  window;

    (void) shape;

    ratelimit_fixed_window_load(rule, state, clock, &window);

    verdict->stamp = window.end;
    verdict->rebase = window.rebase;

    ratelimit_admit_only(rule, window.count, cost, verdict);
}


static void
ratelimit_fixed_window_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost)
{
    ratelimit_fixed_window_t  window;

    (void) shape;

    ratelimit_fixed_window_load(rule, state, clock, &window);

    if (cost == 0 && !window.rebase) {
        return;
    }

    ratelimit_fixed_window_write(state, window.end,
                                 ratelimit_add(window.count, cost));
}


static void
ratelimit_fixed_window_commit(const ratelimit_shape_t *shape,
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

    ratelimit_fixed_window_write(state, verdict->stamp,
                                 ratelimit_add(count, cost));
}


/* a count without its end belongs to a window that is past already */

static inline void
ratelimit_fixed_window_write(ratelimit_state_t *state, uint64_t end,
    uint64_t count)
{
    state[1] = count;
    ratelimit_store_barrier();
    state[0] = end;
}


static void
ratelimit_fixed_window_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    (void) shape;
    (void) rule;
    (void) clock;

    if (state[0] == stamp) {
        state[1] = ratelimit_sub(state[1], cost);
    }
}


static uint64_t
ratelimit_fixed_window_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state)
{
    (void) shape;
    (void) rule;

    return state[1] ? state[0] : 0;
}


static size_t
ratelimit_fixed_window_size(const ratelimit_shape_t *shape)
{
    (void) shape;

    return 2 * sizeof(ratelimit_state_t);
}


static void
ratelimit_fixed_window_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from)
{
    (void) shape;
    (void) from_shape;

    state[1] = from[1];
    ratelimit_store_barrier();
    state[0] = from[0];
}
