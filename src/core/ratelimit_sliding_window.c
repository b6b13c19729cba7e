
/*
 * What is rarely needed of a sliding_window, and what describes it.  The state
 * is described in ratelimit_sliding_window.h.
 *
 * Positions inside a sub-window are measured in units of 1 us / buckets: so
 * now is now * buckets units, a sub-window has period units, and one division
 * gives both the index and the position.
 */


#include <string.h>

#include "core/ratelimit_sliding_window.h"


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


static inline void ratelimit_window_load(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state, uint64_t now,
    ratelimit_window_t *window);
static inline void ratelimit_window_sum(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, const ratelimit_window_t *window,
    uint64_t total, ratelimit_window_sum_t *sum);
static inline uint64_t ratelimit_window_fraction(const ratelimit_rule_t *rule,
    uint64_t count, uint64_t elapsed);
static inline uint64_t ratelimit_window_least(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, uint64_t count);
static inline uint64_t ratelimit_window_weight(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, uint64_t count, uint64_t elapsed);
static inline uint64_t ratelimit_window_occupied(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, const ratelimit_window_t *window);
static inline uint64_t ratelimit_sliding_window_used(
    const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t total,
    ratelimit_window_t *window, ratelimit_window_sum_t *sum);
static void ratelimit_sliding_window_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static uint64_t ratelimit_sliding_window_retry(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_window_t *window, ratelimit_window_sum_t sum,
    uint64_t occupied, uint64_t room);
static uint64_t ratelimit_sliding_window_reset(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_window_t *window,
    uint64_t occupied);
static void ratelimit_sliding_window_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static void ratelimit_sliding_window_refund_latest(
    const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    ratelimit_state_t *state, uint64_t now, uint64_t cost);
static void ratelimit_sliding_window_add(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static uint32_t ratelimit_sliding_window_stamps(
    const ratelimit_shape_t *shape);
static uint64_t ratelimit_sliding_window_expires(
    const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_state_t *state);
static uint64_t ratelimit_sliding_window_past(const ratelimit_shape_t *shape,
    uint64_t period, uint64_t now);
static size_t ratelimit_sliding_window_size(const ratelimit_shape_t *shape);
static void ratelimit_sliding_window_fit(ratelimit_shape_t *shape,
    uint64_t ceiling);
static uint64_t ratelimit_sliding_window_most(const ratelimit_shape_t *shape);
static void ratelimit_sliding_window_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from);


const ratelimit_algorithm_t  ratelimit_sliding_window = {
    "sliding_window",
    'w',
    RATELIMIT_TAKES_BUCKETS,
    RATELIMIT_FORM_SUB_WINDOWS,
    0, 0, 0, 0,                            /* drips, sized, aligned, head */
    ratelimit_sliding_window_look,
    ratelimit_sliding_window_charge,
    ratelimit_sliding_window_charge,       /* punish */
    ratelimit_sliding_window_describe,
    NULL,                                  /* reserve */
    NULL,                                  /* commit */
    ratelimit_sliding_window_refund,
    ratelimit_sliding_window_add,
    ratelimit_sliding_window_stamps,
    ratelimit_sliding_window_expires,
    ratelimit_sliding_window_past,
    ratelimit_sliding_window_size,
    ratelimit_sliding_window_fit,
    ratelimit_sliding_window_most,
    ratelimit_sliding_window_copy
};


/* a bit for each counter that is not 0, the first one's is the lowest */

static inline uint64_t
ratelimit_counters_used(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state)
{
    uint32_t  i;
    uint64_t  word, used;

    used = 0;
    i = ratelimit_counters_words(shape);

    if (shape->width == sizeof(uint16_t)) {

        for ( /* void */ ; i; i--) {
            word = state[i];

            /* the highest bit of each counter, then all four side by side */

            word |= (word & 0x7fff7fff7fff7fff) + 0x7fff7fff7fff7fff;
            word = (word >> 15) & 0x0001000100010001;
            used = (used << 4) | (word * 0x0001000200040008) >> 48;
        }

        return used;
    }

    for ( /* void */ ; i; i--) {
        word = state[i];
        used = (used << 2) | (uint64_t) (word >> 32 != 0) << 1
               | ((uint32_t) word != 0);
    }

    return used;
}


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
ratelimit_window_fraction(const ratelimit_rule_t *rule, uint64_t count,
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
 * However little of a sub-window is still inside the period, all of its
 * requests may have come at its end: what is taken to have left is never more
 * than a sub-window's part of the ceiling.
 */

static inline uint64_t
ratelimit_window_least(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, uint64_t count)
{
    return ratelimit_sub(count, rule->ceiling / shape->buckets);
}


/* what is taken to be left of the oldest sub-window */

static inline uint64_t
ratelimit_window_weight(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, uint64_t count, uint64_t elapsed)
{
    return ratelimit_max(ratelimit_window_fraction(rule, count, elapsed),
                         ratelimit_window_least(shape, rule, count));
}


/*
 * The counters that count, a bit for each: that of the oldest sub-window is the
 * lowest, that of the current one is at buckets.
 */

static inline uint64_t
ratelimit_window_occupied(const ratelimit_shape_t *shape,
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


/* requests that count now */

static inline uint64_t
ratelimit_sliding_window_used(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t total,
    ratelimit_window_t *window, ratelimit_window_sum_t *sum)
{
    ratelimit_window_load(shape, rule, state, clock->now, window);
    ratelimit_window_sum(shape, state, window, total, sum);

    return sum->full + ratelimit_window_weight(shape, rule, sum->old,
                                               window->elapsed);
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

    used = ratelimit_sliding_window_used(shape, rule, state, clock, total,
                                         &window, &sum);

    verdict->stamp = window.index;
    verdict->rebase = window.rebase;

    ratelimit_admit(rule, used, cost, verdict);
}


static void
ratelimit_sliding_window_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint64_t                used, occupied;
    ratelimit_window_t      window;
    ratelimit_window_sum_t  sum;

    used = ratelimit_sliding_window_used(shape, rule, state, clock,
                                        ratelimit_counters_total(shape, state),
                                         &window, &sum);

    ratelimit_describe_used(rule, used, cost, verdict);

    occupied = ratelimit_window_occupied(shape, state, &window);

    if (verdict->allowed) {

        if (cost) {
            occupied |= (uint64_t) 1 << shape->buckets;
        }

    } else if (cost > rule->ceiling) {
        verdict->retry_after = rule->period;

    } else {
        verdict->retry_after = ratelimit_sliding_window_retry(shape, rule,
                                                      state, &window, sum,
                                                      occupied,
                                                      rule->ceiling - cost);
    }

    verdict->reset_after = ratelimit_sliding_window_reset(shape, rule, &window,
                                                          occupied);
}


/*
 * The time until no more than room is used: looks into the sub-windows to
 * come, in each of which the share of the oldest one falls steadily, though
 * not below its least.
 */

static uint64_t
ratelimit_sliding_window_retry(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_window_t *window, ratelimit_window_sum_t sum,
    uint64_t occupied, uint64_t room)
{
    uint32_t  place;
    uint64_t  units, steps;

    steps = 0;

    /* once the current sub-window is the oldest, nothing has full weight */

    occupied |= (uint64_t) 1 << shape->buckets;

    while (sum.full > room && steps < shape->buckets) {
        occupied &= ~((uint64_t) 1 << steps);
        steps = __builtin_ctzll(occupied);

        place = ratelimit_counters_back(shape, window->place,
                                        shape->buckets - steps);
        sum.old = ratelimit_counters_get(shape, state, place);
        sum.full -= sum.old;
    }

    units = window->ahead + steps * rule->period;
    room = ratelimit_sub(room, sum.full);

    if (ratelimit_window_least(shape, rule, sum.old) > room) {
        units += rule->period;

    } else if (sum.old > room) {
        units += rule->period - ratelimit_muldiv(room, rule->period, sum.old);
    }

    return ratelimit_div_ceil(units, shape->buckets);
}


/* the time until the newest request that counts has left altogether */

static uint64_t
ratelimit_sliding_window_reset(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_window_t *window,
    uint64_t occupied)
{
    uint64_t  steps;

    if (occupied == 0) {
        return 0;
    }

    steps = 64 - __builtin_clzll(occupied);

    return ratelimit_div_ceil(window->ahead + steps * rule->period,
                              shape->buckets);
}


void
ratelimit_sliding_window_rotate(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, uint64_t index)
{
    uint32_t  i, place;
    uint32_t  counts[RATELIMIT_MAX_BUCKETS + 1];

    place = (uint32_t) (state[0] % (shape->buckets + 1));

    for (i = 0; i <= shape->buckets; i++) {
        counts[i] = ratelimit_counters_get(shape, state,
                                    ratelimit_counters_back(shape, place, i));
    }

    place = (uint32_t) (index % (shape->buckets + 1));

    for (i = 0; i <= shape->buckets; i++) {
        ratelimit_counters_set(shape, state,
                               ratelimit_counters_back(shape, place, i),
                               counts[i]);
    }
}


static void
ratelimit_sliding_window_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    uint32_t  place;
    uint64_t  count;

    if (stamp == RATELIMIT_LATEST) {
        ratelimit_sliding_window_refund_latest(shape, rule, state, clock->now,
                                               cost);

    } else if (stamp <= state[0] && state[0] - stamp <= shape->buckets) {
        place = (uint32_t) (stamp % (shape->buckets + 1));
        count = ratelimit_counters_get(shape, state, place);
        ratelimit_counters_set(shape, state, place, ratelimit_sub(count, cost));
    }

    /* all zeros are a state never seen, and are seen to be past at once */

    if (ratelimit_counters_total(shape, state) == 0) {
        ratelimit_set(&state[0], 0);
    }
}


/*
 * From the newest sub-window on.  Of the oldest one, which counts in part, so
 * many go that the rest counts as much less as was asked.
 */

static void
ratelimit_sliding_window_refund_latest(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state, uint64_t now,
    uint64_t cost)
{
    uint32_t            i, place;
    uint64_t            count, part, left;
    ratelimit_window_t  window;

    ratelimit_window_load(shape, rule, state, now, &window);

    for (i = window.gap; i < shape->buckets && cost; i++) {
        place = ratelimit_counters_back(shape, window.place, i);
        count = ratelimit_counters_get(shape, state, place);
        part = ratelimit_min(count, cost);
        ratelimit_counters_set(shape, state, place, count - part);
        cost -= part;
    }

    if (cost == 0 || window.gap > shape->buckets) {
        return;
    }

    place = ratelimit_counters_back(shape, window.place, shape->buckets);
    count = ratelimit_counters_get(shape, state, place);
    left = ratelimit_sub(ratelimit_window_weight(shape, rule, count,
                                                 window.elapsed),
                         cost);
    part = ratelimit_muldiv(ratelimit_min(left, rule->ceiling), window.elapsed,
                            rule->period - window.elapsed);

    ratelimit_counters_set(shape, state, place, left
                           + ratelimit_min(part,
                                           rule->ceiling / shape->buckets));
}


static void
ratelimit_sliding_window_add(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    uint32_t            ring, place;
    ratelimit_window_t  window;

    ratelimit_window_load(shape, rule, state, clock->now, &window);

    ring = shape->buckets + 1;
    stamp = ratelimit_min(stamp, window.index);

    if (window.index - stamp > shape->buckets) {
        return;
    }

    place = (uint32_t) ratelimit_mod(window.index, ring);

    if (window.rebase) {
        ratelimit_sliding_window_rotate(shape, state, window.index);

    } else {
        ratelimit_sliding_window_advance(shape, state, window.index, place);
    }

    ratelimit_counters_add(shape, state,
                           (uint32_t) ratelimit_mod(stamp, ring), cost);

    ratelimit_set(&state[0], window.index);
}


static uint32_t
ratelimit_sliding_window_stamps(const ratelimit_shape_t *shape)
{
    return shape->buckets + 1;
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


static uint64_t
ratelimit_sliding_window_past(const ratelimit_shape_t *shape, uint64_t period,
    uint64_t now)
{
    if (period == 0) {
        return 0;
    }

    return ratelimit_sub(now * shape->buckets / period, shape->buckets);
}


static size_t
ratelimit_sliding_window_size(const ratelimit_shape_t *shape)
{
    size_t  counters;

    counters = (size_t) shape->width * (shape->buckets + 1);

    return sizeof(ratelimit_state_t) + (counters + 7) / 8 * 8;
}


static void
ratelimit_sliding_window_fit(ratelimit_shape_t *shape, uint64_t ceiling)
{
    uint64_t  width;

    width = (ceiling > UINT16_MAX) ? sizeof(uint32_t) : sizeof(uint16_t);

    shape->width = (uint32_t) ratelimit_max(shape->width, width);
}


static uint64_t
ratelimit_sliding_window_most(const ratelimit_shape_t *shape)
{
    return shape->width == sizeof(uint16_t) ? UINT16_MAX : RATELIMIT_MAX_LIMIT;
}


static void
ratelimit_sliding_window_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from)
{
    uint32_t  i;

    ratelimit_set(&state[0], 0);
    ratelimit_counters_clear(shape, state);

    for (i = 0; i <= shape->buckets; i++) {
        ratelimit_counters_set(shape, state, i,
                               ratelimit_counters_get(from_shape, from, i));
    }

    ratelimit_set(&state[0], from[0]);
}
