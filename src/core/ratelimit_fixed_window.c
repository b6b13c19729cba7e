
/*
 * Windows of one period, aligned to the wall clock when they open; from then
 * on only the monotonic clock counts, so that a step of the wall clock neither
 * prolongs a window nor opens a second one.
 */


#include "core/ratelimit_fixed_window.h"


static void ratelimit_fixed_window_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static void ratelimit_fixed_window_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static void ratelimit_fixed_window_add(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static uint32_t ratelimit_fixed_window_stamps(const ratelimit_shape_t *shape);
static uint64_t ratelimit_fixed_window_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state);
static uint64_t ratelimit_fixed_window_past(const ratelimit_shape_t *shape,
    uint64_t period, uint64_t now);
static size_t ratelimit_fixed_window_size(const ratelimit_shape_t *shape);
static void ratelimit_fixed_window_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from);


const ratelimit_algorithm_t  ratelimit_fixed_window = {
    "fixed_window",
    'f',
    0,
    RATELIMIT_FORM_TIME_COUNT,
    0, 0, 1, 0,                            /* drips, sized, aligned, head */
    ratelimit_fixed_window_look,
    ratelimit_fixed_window_charge,
    ratelimit_fixed_window_charge,         /* punish */
    ratelimit_fixed_window_describe,
    NULL,                                  /* reserve */
    NULL,                                  /* commit */
    ratelimit_fixed_window_refund,
    ratelimit_fixed_window_add,
    ratelimit_fixed_window_stamps,
    ratelimit_fixed_window_expires,
    ratelimit_fixed_window_past,
    ratelimit_fixed_window_size,
    NULL,                                  /* fit */
    NULL,                                  /* most */
    ratelimit_fixed_window_copy
};


static void
ratelimit_fixed_window_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint64_t                  left;
    ratelimit_fixed_window_t  window;

    (void) shape;

    ratelimit_fixed_window_load(rule, state, clock, &window);
    ratelimit_describe_used(rule, window.count, cost, verdict);

    left = window.end - clock->now;

    verdict->reset_after = (window.count || (cost && verdict->allowed)) ? left
                                                                        : 0;

    if (!verdict->allowed) {
        verdict->retry_after = (cost > rule->ceiling) ? rule->period : left;
    }
}


static void
ratelimit_fixed_window_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    uint64_t  count;

    (void) shape;
    (void) rule;

    if (state[0] != stamp
        && (stamp != RATELIMIT_LATEST || state[0] <= clock->now))
    {
        return;
    }

    count = ratelimit_sub(state[1], cost);
    ratelimit_set(&state[1], count);

    /* all zeros are a state never seen, and are seen to be past at once */

    if (count == 0) {
        ratelimit_set(&state[0], 0);
    }
}


/* the window of the stamp is the one that is open, or it is past */

static void
ratelimit_fixed_window_add(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    ratelimit_verdict_t  verdict;

    ratelimit_fixed_window_look(shape, rule, state, clock, cost, &verdict);

    if (stamp >= verdict.stamp) {
        ratelimit_fixed_window_charge(shape, rule, state, clock, cost,
                                      &verdict);
    }
}


static uint32_t
ratelimit_fixed_window_stamps(const ratelimit_shape_t *shape)
{
    (void) shape;

    return 1;
}


static uint64_t
ratelimit_fixed_window_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state)
{
    (void) shape;
    (void) rule;

    return state[1] ? state[0] : 0;
}


static uint64_t
ratelimit_fixed_window_past(const ratelimit_shape_t *shape, uint64_t period,
    uint64_t now)
{
    (void) shape;
    (void) period;

    return now + 1;
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

    ratelimit_set(&state[1], from[1]);
    ratelimit_set(&state[0], from[0]);
}
