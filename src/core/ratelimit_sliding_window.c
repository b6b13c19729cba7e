
/*
 * A period is cut into sub-windows.  Counted are the requests of the newest
 * "buckets" of them, and of the one before these the share that is still
 * inside the period, rounded up.  The state is described in
 * ratelimit_window.h.
 */


#include <string.h>

#include "core/ratelimit_sliding_window.h"


static void ratelimit_sliding_window_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static void ratelimit_sliding_window_tell(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict, ratelimit_window_sum_t sum);
static uint64_t ratelimit_sliding_window_retry(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_window_t *window, ratelimit_window_sum_t sum,
    uint64_t used, uint64_t room);
static uint64_t ratelimit_sliding_window_reset(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_window_t *window,
    uint64_t used);
static void ratelimit_sliding_window_rotate(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, ratelimit_window_t *window);
static void ratelimit_sliding_window_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static uint64_t ratelimit_sliding_window_expires(
    const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_state_t *state);
static size_t ratelimit_sliding_window_size(const ratelimit_shape_t *shape);
static void ratelimit_sliding_window_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from);


const ratelimit_algorithm_t  ratelimit_sliding_window = {
    "sliding_window",
    'w',
    RATELIMIT_TAKES_BUCKETS,
    0,                                     /* drips */
    0,                                     /* sized */
    ratelimit_sliding_window_look,
    ratelimit_sliding_window_glance,
    ratelimit_sliding_window_charge,
    ratelimit_sliding_window_commit,
    ratelimit_sliding_window_charge,
    ratelimit_sliding_window_refund,
    ratelimit_sliding_window_expires,
    ratelimit_sliding_window_size,
    ratelimit_sliding_window_copy
};


static void
ratelimit_sliding_window_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint64_t                used, units;
    ratelimit_window_t      window;
    ratelimit_window_sum_t  sum;

    ratelimit_window_load(shape, rule, state, clock->now, &window);
    ratelimit_window_sum(shape, state, &window,
                         ratelimit_counters_total(shape, state), &sum);

    used = sum.full + ratelimit_window_share(rule, sum.old, window.elapsed);

    verdict->stamp = window.index;
    verdict->rebase = window.rebase;

    if (ratelimit_admit(rule, used, cost, verdict) && cost) {
        units = window.ahead + (shape->buckets + 1) * rule->period;
        verdict->reset_after = ratelimit_div_ceil(units, shape->buckets);
        return;
    }

    ratelimit_sliding_window_tell(shape, rule, state, clock, cost, verdict,
                                  sum);
}


void
ratelimit_sliding_window_weigh(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict, uint64_t total)
{
    uint64_t                used;
    ratelimit_window_t      window;
    ratelimit_window_sum_t  sum;

    ratelimit_window_load(shape, rule, state, clock->now, &window);
    ratelimit_window_sum(shape, state, &window, total, &sum);

    used = sum.full + ratelimit_window_share(rule, sum.old, window.elapsed);

    verdict->stamp = window.index;
    verdict->rebase = window.rebase;

    ratelimit_admit_only(rule, used, cost, verdict);
}


/* when what was counted before leaves: sets reset_after and retry_after */

static ratelimit_noinline void
ratelimit_sliding_window_tell(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict, ratelimit_window_sum_t sum)
{
    uint64_t            used;
    ratelimit_window_t  window;

    ratelimit_window_reload(shape, state,
                            verdict->rebase ? state[0] : verdict->stamp,
                            &window);

    window.index = verdict->stamp;
    window.ahead = window.index * rule->period - clock->now * shape->buckets;

    used = ratelimit_window_used(shape, state, &window);

    verdict->reset_after = ratelimit_sliding_window_reset(shape, rule, &window,
                                                          used);

    if (verdict->allowed) {
        return;
    }

    if (cost > rule->ceiling) {
        verdict->retry_after = rule->period;
        return;
    }

    verdict->retry_after = ratelimit_sliding_window_retry(shape, rule, state,
                                                          &window, sum, used,
                                                         rule->ceiling - cost);
}


/*
 * The time until no more than room is used: looks into the sub-windows to
 * come, in each of which the share of the oldest one falls steadily.
 */

static uint64_t
ratelimit_sliding_window_retry(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_window_t *window, ratelimit_window_sum_t sum,
    uint64_t used, uint64_t room)
{
    uint32_t  place;
    uint64_t  units, steps;

    steps = 0;

    /* once the current sub-window is the oldest, nothing has full weight */

    used |= (uint64_t) 1 << shape->buckets;

    while (sum.full > room && steps < shape->buckets) {
        used &= ~((uint64_t) 1 << steps);
        steps = __builtin_ctzll(used);

        place = ratelimit_counters_back(shape, window->place,
                                        shape->buckets - steps);
        sum.old = ratelimit_counters_get(shape, state, place);
        sum.full -= sum.old;
    }

    units = window->ahead + steps * rule->period;
    room = ratelimit_sub(room, sum.full);

    if (sum.old > room) {
        units += rule->period - ratelimit_muldiv(room, rule->period, sum.old);
    }

    return ratelimit_div_ceil(units, shape->buckets);
}


/* the time until the newest request that counts has left altogether */

static uint64_t
ratelimit_sliding_window_reset(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_window_t *window,
    uint64_t used)
{
    uint64_t  steps;

    if (used == 0) {
        return 0;
    }

    steps = 64 - __builtin_clzll(used);

    return ratelimit_div_ceil(window->ahead + steps * rule->period,
                              shape->buckets);
}


void
ratelimit_sliding_window_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost)
{
    ratelimit_window_t  window;

    ratelimit_window_load(shape, rule, state, clock->now, &window);

    if (window.rebase) {
        ratelimit_sliding_window_rotate(shape, state, &window);

    } else if (cost == 0) {
        return;
    }

    ratelimit_sliding_window_write(shape, state, &window, cost);
}


/* puts each counter where it belongs when the newest index is another one */

static void
ratelimit_sliding_window_rotate(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, ratelimit_window_t *window)
{
    uint32_t  i, place;
    uint32_t  counts[RATELIMIT_MAX_BUCKETS + 1];

    for (i = 0; i <= shape->buckets; i++) {
        place = ratelimit_counters_back(shape, window->place, i);
        counts[i] = ratelimit_counters_get(shape, state, place);
    }

    window->place = (uint32_t) (window->index % (shape->buckets + 1));

    for (i = 0; i <= shape->buckets; i++) {
        place = ratelimit_counters_back(shape, window->place, i);
        ratelimit_counters_set(shape, state, place, counts[i]);
    }
}


static void
ratelimit_sliding_window_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    uint32_t  place;
    uint64_t  count;

    (void) rule;
    (void) clock;

    if (stamp > state[0] || state[0] - stamp > shape->buckets) {
        return;
    }

    place = (uint32_t) (stamp % (shape->buckets + 1));
    count = ratelimit_counters_get(shape, state, place);
    ratelimit_counters_set(shape, state, place, ratelimit_sub(count, cost));

    /* all zeros are a state never seen, and are seen to be past at once */

    if (count <= cost && ratelimit_counters_empty(shape, state)) {
        state[0] = 0;
    }
}


static uint64_t
ratelimit_sliding_window_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state)
{
    if (ratelimit_counters_total(shape, state) == 0) {
        return 0;
    }

    return ratelimit_muldiv_ceil(state[0] + shape->buckets + 1, rule->period,
                                 shape->buckets);
}


static size_t
ratelimit_sliding_window_size(const ratelimit_shape_t *shape)
{
    size_t  counters;

    counters = (size_t) shape->width * (shape->buckets + 1);

    return sizeof(ratelimit_state_t) + (counters + 7) / 8 * 8;
}


static void
ratelimit_sliding_window_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from)
{
    uint32_t  i;

    memset(state, 0, ratelimit_sliding_window_size(shape));

    for (i = 0; i <= shape->buckets; i++) {
        ratelimit_counters_set(shape, state, i,
                               ratelimit_counters_get(from_shape, from, i));
    }

    ratelimit_store_barrier();

    state[0] = from[0];
}
