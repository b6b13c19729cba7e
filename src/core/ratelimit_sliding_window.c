
/*
 * A period is cut into sub-windows on a grid of exact rational steps of
 * period / buckets.  Counted are the requests of the newest "buckets" sub-
 * windows, and of the one before them the share that is still inside the
 * period, rounded up.
 *
 * state[0]  index of the newest sub-window
 * then      buckets + 1 counters of shape->width bytes; the one of sub-window
 *           i stands at i modulo (buckets + 1)
 *
 * Positions inside a sub-window are measured in units of 1 us / buckets: so
 * now is now * buckets units, a sub-window has period units, and one division
 * gives both the index and the position.
 */


#include <string.h>

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
} ratelimit_sliding_window_t;


/* what counts: some at full weight, the oldest sub-window at its share */

typedef struct {
    uint64_t                        full;
    uint64_t                        old;
} ratelimit_sliding_window_sum_t;


static inline void ratelimit_sliding_window_load(
    const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_state_t *state, uint64_t now,
    ratelimit_sliding_window_t *window);
static inline void ratelimit_sliding_window_sum(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, const ratelimit_sliding_window_t *window,
    ratelimit_sliding_window_sum_t *sum);
static inline uint64_t ratelimit_sliding_window_share(
    const ratelimit_rule_t *rule, uint64_t count, uint64_t elapsed);
static void ratelimit_sliding_window_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static uint64_t ratelimit_sliding_window_retry(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_sliding_window_t *window,
    ratelimit_sliding_window_sum_t sum, uint64_t room);
static uint64_t ratelimit_sliding_window_reset(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_sliding_window_t *window);
static void ratelimit_sliding_window_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost);
static void ratelimit_sliding_window_rotate(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, ratelimit_sliding_window_t *window);
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
    ratelimit_sliding_window_look,
    ratelimit_sliding_window_charge,
    ratelimit_sliding_window_charge,
    ratelimit_sliding_window_refund,
    ratelimit_sliding_window_expires,
    ratelimit_sliding_window_size,
    ratelimit_sliding_window_copy
};


static inline void
ratelimit_sliding_window_load(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state, uint64_t now,
    ratelimit_sliding_window_t *window)
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
    window->place = (uint32_t) ((ring == 2) ? newest & 1
                                            : ratelimit_mod(newest, ring));
}


static inline void
ratelimit_sliding_window_sum(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, const ratelimit_sliding_window_t *window,
    ratelimit_sliding_window_sum_t *sum)
{
    uint32_t  i, place;

    sum->full = 0;
    sum->old = 0;

    if (window->gap > shape->buckets) {
        return;
    }

    sum->full = ratelimit_counters_total(shape, state);

    for (i = 0; i < window->gap; i++) {
        place = ratelimit_counters_back(shape, window->place, i);
        sum->full -= ratelimit_counters_get(shape, state, place);
    }

    place = ratelimit_counters_back(shape, window->place, shape->buckets);

    sum->old = ratelimit_counters_get(shape, state, place);
    sum->full -= sum->old;
}


/* ceil(count * (period - elapsed) / period) */

static inline uint64_t
ratelimit_sliding_window_share(const ratelimit_rule_t *rule, uint64_t count,
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


static void
ratelimit_sliding_window_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint64_t                        used, room, units;
    ratelimit_sliding_window_t      window;
    ratelimit_sliding_window_sum_t  sum;

    ratelimit_sliding_window_load(shape, rule, state, clock->now, &window);
    ratelimit_sliding_window_sum(shape, state, &window, &sum);

    used = sum.full + ratelimit_sliding_window_share(rule, sum.old,
                                                     window.elapsed);

    verdict->stamp = window.index;
    verdict->rebase = window.rebase;

    if (ratelimit_admit(rule, used, cost, verdict) && cost) {
        units = window.ahead + (shape->buckets + 1) * rule->period;
        verdict->reset_after = ratelimit_div_ceil(units, shape->buckets);
        return;
    }

    verdict->reset_after = ratelimit_sliding_window_reset(shape, rule, state,
                                                          &window);

    if (verdict->allowed) {
        return;
    }

    if (cost > rule->ceiling) {
        verdict->retry_after = rule->period;
        return;
    }

    room = rule->ceiling - cost;
    verdict->retry_after = ratelimit_sliding_window_retry(shape, rule, state,
                                                          &window, sum, room);
}


/*
 * The time until no more than room is used: looks into the sub-windows to
 * come, in each of which the share of the oldest one falls steadily.
 */

static uint64_t
ratelimit_sliding_window_retry(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_sliding_window_t *window,
    ratelimit_sliding_window_sum_t sum, uint64_t room)
{
    uint32_t  distance, place;
    uint64_t  units;

    units = window->ahead;
    distance = shape->buckets;

    /* once the current sub-window is the oldest, nothing has full weight */

    while (sum.full > room && distance) {
        distance--;
        units += rule->period;
        sum.old = 0;

        if (distance >= window->gap) {
            place = ratelimit_counters_back(shape, window->place, distance);
            sum.old = ratelimit_counters_get(shape, state, place);
            sum.full -= sum.old;
        }
    }

    room = ratelimit_sub(room, sum.full);

    if (sum.old > room) {
        units += rule->period - ratelimit_muldiv(room, rule->period, sum.old);
    }

    return ratelimit_div_ceil(units, shape->buckets);
}


/* the time until the newest request that counts has left altogether */

static uint64_t
ratelimit_sliding_window_reset(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_sliding_window_t *window)
{
    uint32_t  distance, place;
    uint64_t  units;

    for (distance = window->gap; distance <= shape->buckets; distance++) {
        place = ratelimit_counters_back(shape, window->place, distance);

        if (ratelimit_counters_get(shape, state, place)) {
            units = (shape->buckets + 1 - distance) * rule->period;
            return ratelimit_div_ceil(window->ahead + units, shape->buckets);
        }
    }

    return 0;
}


static void
ratelimit_sliding_window_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost)
{
    uint32_t                    i, place;
    uint64_t                    count;
    ratelimit_sliding_window_t  window;

    ratelimit_sliding_window_load(shape, rule, state, clock->now, &window);

    if (window.rebase) {
        ratelimit_sliding_window_rotate(shape, state, &window);

    } else if (cost == 0) {
        return;
    }

    /* until the index is written, these counters are those that have left */

    for (i = 0; i < window.gap; i++) {
        place = ratelimit_counters_back(shape, window.place, i);
        ratelimit_counters_set(shape, state, place, 0);
    }

    ratelimit_store_barrier();

    count = ratelimit_counters_get(shape, state, window.place);
    ratelimit_counters_set(shape, state, window.place,
                           ratelimit_add(count, cost));

    ratelimit_store_barrier();

    state[0] = window.index;
}


/* puts each counter where it belongs when the newest index is another one */

static void
ratelimit_sliding_window_rotate(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, ratelimit_sliding_window_t *window)
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
