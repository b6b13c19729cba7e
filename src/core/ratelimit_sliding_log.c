
/*
 * The times of the newest admitted requests in a ring: exact.  The state is
 * described in ratelimit_log_ring.h.
 *
 * The ring has a place more than a request ever needs to look at, so no reader
 * needs the place that is being written.
 */


#include "core/ratelimit.h"
#include "core/ratelimit_log_ring.h"
#include "core/ratelimit_math.h"


static inline uint64_t ratelimit_log_ring_round(uint64_t time, uint64_t tick);
static inline uint32_t ratelimit_log_ring_last(const ratelimit_log_ring_t *log,
    uint32_t i);
static inline uint64_t ratelimit_log_ring_age(const ratelimit_log_ring_t *log,
    uint32_t i);
static inline uint32_t ratelimit_log_ring_younger(
    const ratelimit_log_ring_t *log, uint64_t age);
static inline uint64_t ratelimit_sliding_log_tick(
    const ratelimit_rule_t *rule);
static inline void ratelimit_sliding_log_load(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state, uint64_t now,
    ratelimit_log_ring_t *log);
static inline void ratelimit_sliding_log_move(ratelimit_log_ring_t *log,
    uint64_t now);
static uint32_t ratelimit_sliding_log_used(const ratelimit_rule_t *rule,
    const ratelimit_log_ring_t *log, uint64_t now, uint64_t *span);
static void ratelimit_sliding_log_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static void ratelimit_sliding_log_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict);
static void ratelimit_sliding_log_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static size_t ratelimit_sliding_log_size(const ratelimit_shape_t *shape);
static void ratelimit_sliding_log_rewrite(ratelimit_log_ring_t *log,
    ratelimit_state_t *state, uint64_t tick);
static void ratelimit_sliding_log_prune(ratelimit_log_ring_t *log,
    ratelimit_state_t *state, uint64_t ticks);
static void ratelimit_sliding_log_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static uint32_t ratelimit_sliding_log_latest(const ratelimit_rule_t *rule,
    const ratelimit_log_ring_t *log, uint64_t now, uint64_t cost);
static void ratelimit_sliding_log_add(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static void ratelimit_sliding_log_insert(ratelimit_log_ring_t *log,
    ratelimit_state_t *state, uint32_t later, uint64_t ticks);
static uint64_t ratelimit_sliding_log_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state);
static void ratelimit_sliding_log_fit(ratelimit_shape_t *shape,
    uint64_t ceiling);
static uint64_t ratelimit_sliding_log_most(const ratelimit_shape_t *shape);
static void ratelimit_sliding_log_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from);


const ratelimit_algorithm_t  ratelimit_sliding_log = {
    "sliding_log",
    'l',
    0,
    RATELIMIT_FORM_OTHER,
    0, 1, 0, 2,                            /* drips, sized, aligned, head:
                                              without a length the times do
                                              not matter */
    ratelimit_sliding_log_look,
    ratelimit_sliding_log_charge,
    ratelimit_sliding_log_charge,          /* punish */
    ratelimit_sliding_log_describe,
    NULL,                                  /* reserve */
    NULL,                                  /* commit */
    ratelimit_sliding_log_refund,
    ratelimit_sliding_log_add,
    NULL,                                  /* stamps */
    ratelimit_sliding_log_expires,
    NULL,                                  /* past */
    ratelimit_sliding_log_size,
    ratelimit_sliding_log_fit,
    ratelimit_sliding_log_most,
    ratelimit_sliding_log_copy
};


/* up to a whole tick */

static inline uint64_t
ratelimit_log_ring_round(uint64_t time, uint64_t tick)
{
    if (tick == 1) {
        return time;
    }

    return ratelimit_div_ceil(time, tick) * tick;
}


/* the place of the i'th last time, i is 1 to ring */

static inline uint32_t
ratelimit_log_ring_last(const ratelimit_log_ring_t *log, uint32_t i)
{
    return (log->head >= i) ? log->head - i : log->head + log->ring - i;
}


static inline uint64_t
ratelimit_log_ring_age(const ratelimit_log_ring_t *log, uint32_t i)
{
    uint32_t  place;
    uint64_t  ticks;

    place = ratelimit_log_ring_last(log, i);

    ticks = __atomic_load_n(&log->low[place], __ATOMIC_RELAXED)
            | (uint64_t) __atomic_load_n(&log->high[place], __ATOMIC_RELAXED)
              << 32;

    return (log->base - ticks) & RATELIMIT_LOG_RING_MASK;
}


/* how many times are younger than that; ages grow from the last one on */

static inline uint32_t
ratelimit_log_ring_younger(const ratelimit_log_ring_t *log, uint64_t age)
{
    uint32_t  low, high, middle;

    /* in a full ring the first place may be half written */

    high = (log->n == log->ring) ? log->n - 1 : log->n;

    if (high == 0 || ratelimit_log_ring_age(log, high) < age) {

        if (high < log->n && ratelimit_log_ring_age(log, log->n) < age) {
            return log->n;
        }

        return high;
    }

    low = 0;

    while (high - low > 1) {
        middle = low + (high - low) / 2;

        if (ratelimit_log_ring_age(log, middle) < age) {
            low = middle;

        } else {
            high = middle;
        }
    }

    return low;
}


static inline uint64_t
ratelimit_sliding_log_tick(const ratelimit_rule_t *rule)
{
    if (rule->period < RATELIMIT_LOG_RING_OLDEST) {
        return 1;
    }

    return RATELIMIT_LOG_RING_COARSE;
}


static inline void
ratelimit_sliding_log_load(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state, uint64_t now,
    ratelimit_log_ring_t *log)
{
    ratelimit_log_ring_unpack(shape, state, log);

    if (log->n == 0) {
        log->tick = ratelimit_sliding_log_tick(rule);
        log->time = now;
        return;
    }

    ratelimit_sliding_log_move(log, now);
}


/* if the clock was set back, all times move with it */

static inline void
ratelimit_sliding_log_move(ratelimit_log_ring_t *log, uint64_t now)
{
    if (log->time > now && log->time - now > RATELIMIT_SKEW) {
        log->time = ratelimit_log_ring_round(now, log->tick);
        log->rebase = 1;
    }
}


/*
 * Requests of the period: the times of these lie less than the span before the
 * reference.
 */

static uint32_t
ratelimit_sliding_log_used(const ratelimit_rule_t *rule,
    const ratelimit_log_ring_t *log, uint64_t now, uint64_t *span)
{
    *span = ratelimit_sub(log->time + rule->period, now);

    if (log->n == 0 || *span == 0) {
        return 0;
    }

    return ratelimit_log_ring_younger(log,
                                      ratelimit_div_ceil(*span, log->tick));
}


static void
ratelimit_sliding_log_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint32_t              used;
    uint64_t              span;
    ratelimit_log_ring_t  log;

    ratelimit_sliding_log_load(shape, rule, state, clock->now, &log);

    used = ratelimit_sliding_log_used(rule, &log, clock->now, &span);

    verdict->stamp = ratelimit_log_ring_round(
                                          ratelimit_max(clock->now, log.time),
                                          ratelimit_sliding_log_tick(rule));
    verdict->rebase = log.rebase;

    ratelimit_admit(rule, used, cost, verdict);
}


static void
ratelimit_sliding_log_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint32_t              used, i;
    uint64_t              span;
    ratelimit_log_ring_t  log;

    ratelimit_sliding_log_load(shape, rule, state, clock->now, &log);

    used = ratelimit_sliding_log_used(rule, &log, clock->now, &span);

    ratelimit_describe_used(rule, used, cost, verdict);

    if (verdict->allowed && cost) {
        verdict->reset_after = verdict->stamp + rule->period - clock->now;
        return;
    }

    verdict->reset_after = 0;

    if (used) {
        verdict->reset_after = span
                               - ratelimit_log_ring_age(&log, 1) * log.tick;
    }

    if (verdict->allowed) {
        return;
    }

    if (cost > rule->ceiling) {
        verdict->retry_after = rule->period;
        return;
    }

    /* the one that has to leave; the ceiling is below what was used */

    i = (uint32_t) (rule->ceiling - cost + 1);
    verdict->retry_after = span - ratelimit_log_ring_age(&log, i) * log.tick;
}


static void
ratelimit_sliding_log_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict)
{
    uint64_t              tick, time, ticks;
    ratelimit_log_ring_t  log;

    (void) verdict;

    ratelimit_sliding_log_load(shape, rule, state, clock->now, &log);

    cost = ratelimit_min(cost, log.ring);
    tick = ratelimit_sliding_log_tick(rule);

    if (log.rebase || (cost && log.tick != tick)) {
        ratelimit_sliding_log_rewrite(&log, state, tick);
    }

    if (cost == 0) {
        return;
    }

    time = ratelimit_log_ring_round(ratelimit_max(clock->now, log.time), tick);
    ticks = (tick == 1) ? time : time / tick;

    ratelimit_sliding_log_prune(&log, state, ticks);

    while (cost) {
        ratelimit_log_ring_write(&log, log.head, ticks);

        ratelimit_set(&state[0], time);

        log.head = (log.head + 1 == log.ring) ? 0 : log.head + 1;
        log.n = (log.n == log.ring) ? log.n : log.n + 1;
        ratelimit_log_ring_pack(&log, state);

        cost--;
    }
}


static size_t
ratelimit_sliding_log_size(const ratelimit_shape_t *shape)
{
    size_t  times;

    times = (size_t) shape->ring * RATELIMIT_LOG_RING_BYTES;

    return 2 * sizeof(ratelimit_state_t) + (times + 7) / 8 * 8;
}


/*
 * Writes all times again: after the clock was set back, or when the period of
 * the rule was changed to one that needs another tick.
 */

static void
ratelimit_sliding_log_rewrite(ratelimit_log_ring_t *log,
    ratelimit_state_t *state, uint64_t tick)
{
    uint32_t  i;
    uint64_t  age, base;

    log->n = ratelimit_log_ring_younger(log, RATELIMIT_LOG_RING_OLDEST * tick
                                          / log->tick);

    base = ratelimit_div_ceil(log->time, tick);

    for (i = log->n; i; i--) {
        age = ratelimit_log_ring_age(log, i) * log->tick / tick;
        ratelimit_log_ring_write(log, ratelimit_log_ring_last(log, i),
                                 base - age);
    }

    log->tick = tick;
    log->base = base;
    log->time = base * tick;
    log->rebase = 0;

    ratelimit_set(&state[0], log->time);
    ratelimit_log_ring_pack(log, state);
}


/* drops times that would be too old to be expressed with this reference */

static void
ratelimit_sliding_log_prune(ratelimit_log_ring_t *log,
    ratelimit_state_t *state, uint64_t ticks)
{
    uint64_t  step;

    if (log->n == 0) {
        return;
    }

    step = ticks - log->base;

    if (step + ratelimit_log_ring_age(log, log->n)
        < RATELIMIT_LOG_RING_OLDEST)
    {
        return;
    }

    log->n = ratelimit_log_ring_younger(log,
                              ratelimit_sub(RATELIMIT_LOG_RING_OLDEST, step));

    ratelimit_log_ring_pack(log, state);
}


static void
ratelimit_sliding_log_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    uint32_t              i, later, found;
    uint64_t              age;
    ratelimit_log_ring_t  log;

    ratelimit_log_ring_unpack(shape, state, &log);

    age = log.base - ratelimit_div_ceil(stamp, log.tick);
    age &= RATELIMIT_LOG_RING_MASK;

    if (stamp == RATELIMIT_LATEST) {
        later = 0;
        found = ratelimit_sliding_log_latest(rule, &log, clock->now, cost);

    } else {
        later = ratelimit_log_ring_younger(&log, age);
        found = ratelimit_log_ring_younger(&log, age + 1) - later;
        found = (uint32_t) ratelimit_min(found, cost);
    }

    if (found == 0) {
        return;
    }

    /* half done, some times look later than they were, none earlier */

    for (i = later; i; i--) {
        ratelimit_log_ring_write(&log, ratelimit_log_ring_last(&log, i + found),
                              log.base - ratelimit_log_ring_age(&log, i));
    }

    log.head = (log.head >= found) ? log.head - found
                                   : log.head + log.ring - found;
    log.n -= found;
    ratelimit_log_ring_pack(&log, state);
}


/* how many of the last times go; with all that count, also those that do not */

static uint32_t
ratelimit_sliding_log_latest(const ratelimit_rule_t *rule,
    const ratelimit_log_ring_t *log, uint64_t now, uint64_t cost)
{
    uint64_t              span;
    ratelimit_log_ring_t  moved;

    moved = *log;
    ratelimit_sliding_log_move(&moved, now);

    if (cost < ratelimit_sliding_log_used(rule, &moved, now, &span)) {
        return (uint32_t) cost;
    }

    return log->n;
}


/* between the times of others, which come from clocks of other machines */

static void
ratelimit_sliding_log_add(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    uint32_t              later;
    uint64_t              tick, time;
    ratelimit_clock_t     at;
    ratelimit_log_ring_t  log;

    ratelimit_sliding_log_load(shape, rule, state, clock->now, &log);

    tick = ratelimit_sliding_log_tick(rule);

    if (log.n && (log.rebase || log.tick != tick)) {
        ratelimit_sliding_log_rewrite(&log, state, tick);
    }

    time = ratelimit_min(stamp, ratelimit_max(clock->now, log.time));
    time = ratelimit_log_ring_round(time, tick);

    if (time + rule->period <= clock->now) {
        return;
    }

    if (log.n == 0 || time >= log.time) {
        at.now = time;
        at.wall = time;

        ratelimit_sliding_log_charge(shape, rule, state, &at, cost, NULL);
        return;
    }

    later = ratelimit_log_ring_younger(&log, log.base - time / tick);

    for (cost = ratelimit_min(cost, log.ring); cost; cost--) {
        ratelimit_sliding_log_insert(&log, state, later, time / tick);
    }
}


/*
 * A time behind those that are later, at least one.  Half done, the newest one
 * is there twice, then others: too much counts, never too little.
 */

static void
ratelimit_sliding_log_insert(ratelimit_log_ring_t *log,
    ratelimit_state_t *state, uint32_t later, uint64_t ticks)
{
    uint32_t  i;

    /* the oldest one makes room, unless this one is older still */

    if (later == log->ring) {
        return;
    }

    ratelimit_log_ring_write(log, log->head,
                             log->base - ratelimit_log_ring_age(log, 1));

    log->head = (log->head + 1 == log->ring) ? 0 : log->head + 1;
    log->n = (log->n == log->ring) ? log->n : log->n + 1;
    ratelimit_log_ring_pack(log, state);

    for (i = 2; i <= later; i++) {
        ratelimit_log_ring_write(log, ratelimit_log_ring_last(log, i),
                                 log->base - ratelimit_log_ring_age(log,
                                                                    i + 1));
    }

    ratelimit_log_ring_write(log, ratelimit_log_ring_last(log, later + 1),
                             ticks);
}


static uint64_t
ratelimit_sliding_log_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state)
{
    ratelimit_log_ring_t  log;

    ratelimit_log_ring_unpack(shape, state, &log);

    if (log.n == 0) {
        return 0;
    }

    return log.time - ratelimit_log_ring_age(&log, 1) * log.tick
           + rule->period;
}


static void
ratelimit_sliding_log_fit(ratelimit_shape_t *shape, uint64_t ceiling)
{
    uint64_t  ring;

    ring = ratelimit_min(ratelimit_add(ceiling, 1), RATELIMIT_LOG_RING_MAX);

    shape->ring = (uint32_t) ratelimit_max(shape->ring, ring);
}


static uint64_t
ratelimit_sliding_log_most(const ratelimit_shape_t *shape)
{
    return shape->ring - 1;
}


/* the newest times that find room, from the first place on */

static void
ratelimit_sliding_log_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from)
{
    uint32_t              i, n;
    ratelimit_log_ring_t  log, old;

    ratelimit_set(&state[1], 0);

    ratelimit_log_ring_unpack(from_shape, from, &old);
    ratelimit_log_ring_unpack(shape, state, &log);

    n = (uint32_t) ratelimit_min(old.n, log.ring);

    for (i = 0; i < n; i++) {
        ratelimit_log_ring_write(&log, i, old.base
                                       - ratelimit_log_ring_age(&old, n - i));
    }

    log.tick = old.tick;
    log.head = (n == log.ring) ? 0 : n;
    log.n = n;

    ratelimit_set(&state[0], from[0]);
    ratelimit_log_ring_pack(&log, state);
}
