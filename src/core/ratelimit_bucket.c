
/*
 * What token_bucket and leaky_bucket have in common.
 */


#include "core/ratelimit_bucket.h"


static uint64_t ratelimit_bucket_interval(const ratelimit_state_t *state,
    uint64_t now);
static unsigned ratelimit_bucket_half(uint64_t interval);
static uint64_t ratelimit_bucket_returned(const ratelimit_rule_t *rule,
    uint64_t elapsed);
static void ratelimit_bucket_release(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, uint64_t stamp, uint64_t cost);


void
ratelimit_bucket_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost, uint64_t wait,
    uint64_t above, ratelimit_verdict_t *verdict)
{
    uint64_t            used, part, sum, level;
    ratelimit_bucket_t  bucket;

    ratelimit_bucket_load_all(shape, rule, state, clock->now, &bucket);

    used = ratelimit_div(bucket.level, rule->period);
    part = bucket.level - used * rule->period;
    sum = ratelimit_add(used, cost);

    verdict->excess = ratelimit_thousandths(ratelimit_sub(sum, above));

    if (part && sum >= above) {
        verdict->excess = ratelimit_add(verdict->excess,
                              ratelimit_muldiv(part, 1000, rule->period));
    }

    /* a request that has not returned altogether is a used one */

    used += (part != 0);
    level = bucket.level;

    verdict->retry_after = 0;

    if (verdict->allowed) {
        used = ratelimit_add(used, cost);
        level += cost * rule->period;

    } else if (cost > rule->ceiling) {
        verdict->retry_after = rule->period;

    } else {
        verdict->retry_after = ratelimit_bucket_until_room(&bucket, rule, cost)
                               - wait;
    }

    verdict->limit = rule->capacity;
    verdict->remaining = ratelimit_sub(rule->capacity, used);
    verdict->reset_after = ratelimit_bucket_until(&bucket, rule, level, 0);
}


/* what had dripped back since the last request is taken again, no more */

void
ratelimit_bucket_punish(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict)
{
    ratelimit_bucket_t  bucket;

    ratelimit_bucket_load_all(shape, rule, state, clock->now, &bucket);

    if (cost == 0 || bucket.level >= rule->ceiling * rule->period) {
        ratelimit_bucket_charge(shape, rule, state, clock, 0, verdict);
        return;
    }

    ratelimit_set(&state[0], clock->now + bucket.lead);
    ratelimit_set(&state[1],
                  rule->ceiling - bucket.reserved / rule->period);
}


/* the present interval, or that of a worker whose clock is a little ahead */

static uint64_t
ratelimit_bucket_interval(const ratelimit_state_t *state, uint64_t now)
{
    uint64_t  interval;

    interval = now / RATELIMIT_RESERVED_TIME;

    return (state[3] && state[2] == interval + 1) ? state[2] : interval;
}


/* where the count of an interval stands in its word */

static unsigned
ratelimit_bucket_half(uint64_t interval)
{
    return 32 * (interval & 1);
}


/* as if all of it were taken just now */

void
ratelimit_bucket_add_reserved(const ratelimit_rule_t *rule,
    const ratelimit_state_t *state, uint64_t now, ratelimit_bucket_t *bucket)
{
    uint64_t  interval, reserved, used;

    reserved = 0;
    interval = ratelimit_bucket_interval(state, now);

    if (state[2] == interval) {
        reserved = (state[3] & UINT32_MAX) + (state[3] >> 32);

    } else if (state[2] + 1 == interval) {
        reserved = state[3] >> ratelimit_bucket_half(state[2]) & UINT32_MAX;
    }

    if (reserved == 0) {
        return;
    }

    used = ratelimit_div(bucket->level, rule->period);

    if (used + reserved >= rule->ceiling + 2 * rule->limit) {

        /* under another rule: the level has an end */

        reserved = ratelimit_min(reserved,
                       ratelimit_sub(RATELIMIT_BUCKET_MAX_LEVEL / rule->period,
                                     used + 1));
    }

    bucket->reserved = reserved * rule->period;
    bucket->level += bucket->reserved;
}


uint64_t
ratelimit_bucket_reserve(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost)
{
    uint64_t            interval, last, count;
    unsigned            half;
    ratelimit_bucket_t  bucket;

    (void) shape;

    /* what has returned is settled, as by a charge */

    ratelimit_bucket_load(rule, state, clock->now, &bucket);

    if (bucket.level) {
        ratelimit_set(&state[0], bucket.since);
        ratelimit_set(&state[1], bucket.taken);

    } else {
        ratelimit_set(&state[1], 0);
    }

    interval = ratelimit_bucket_interval(state, clock->now);
    half = ratelimit_bucket_half(interval);

    if (state[2] != interval) {
        last = (uint64_t) UINT32_MAX << ratelimit_bucket_half(state[2]);

        ratelimit_set(&state[3],
                      (state[2] + 1 == interval) ? state[3] & last : 0);
        ratelimit_set(&state[2], interval);
    }

    count = state[3] >> half & UINT32_MAX;
    ratelimit_set(&state[3], state[3]
                             + (ratelimit_min(cost, UINT32_MAX - count)
                                << half));

    return RATELIMIT_RESERVED | interval;
}


/* what is forgotten already can't be released */

static void
ratelimit_bucket_release(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, uint64_t stamp, uint64_t cost)
{
    uint64_t  interval, count;
    unsigned  half;

    interval = stamp & ~RATELIMIT_RESERVED;
    half = ratelimit_bucket_half(interval);

    if (shape->reserves && (state[2] == interval || state[2] == interval + 1)) {
        count = state[3] >> half & UINT32_MAX;
        ratelimit_set(&state[3],
                      state[3] - (ratelimit_min(cost, count) << half));
    }
}


/* a worker killed in between leaves too much used, never too little */

void
ratelimit_bucket_commit(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    if (!(stamp & RATELIMIT_RESERVED)) {
        return;
    }

    ratelimit_bucket_charge(shape, rule, state, clock, cost, NULL);
    ratelimit_bucket_release(shape, state, stamp, cost);
}


/*
 * What has dripped back meanwhile would have been lost had the charge not been
 * there: all that dripped after the bucket would have been whole, which is
 * what the stamp says.  That much is not refunded a second time.
 *
 * A bucket that has been whole since then holds nothing of the charge.  That it
 * began after the stamp does not say so before all of the charge can be back:
 * with write-back a charge may be added at a later time than it was made.
 */

void
ratelimit_bucket_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    uint64_t  lost, left, elapsed;

    if (stamp & RATELIMIT_RESERVED) {
        ratelimit_bucket_release(shape, state, stamp, cost);
        return;
    }

    left = ratelimit_sub(state[1], cost);
    elapsed = ratelimit_sub(clock->now, stamp);

    if (elapsed && (left || state[0] > stamp)) {
        lost = ratelimit_muldiv_ceil(ratelimit_min(cost, rule->ceiling),
                                     rule->period, rule->limit);

        if (elapsed >= lost && state[0] > stamp) {
            return;
        }

        if (left && state[0] < clock->now) {
            lost = ratelimit_min(lost, elapsed);

            ratelimit_set(&state[0],
                          ratelimit_min(state[0] + lost, clock->now));
        }
    }

    ratelimit_set(&state[1], left);
}


/* whole requests that a bucket gets back in a time */

static uint64_t
ratelimit_bucket_returned(const ratelimit_rule_t *rule, uint64_t elapsed)
{
    uint64_t  periods;

    periods = elapsed / rule->period;

    if (periods > RATELIMIT_MAX_LIMIT) {
        return UINT64_MAX;
    }

    return periods * rule->limit
           + ratelimit_muldiv(elapsed % rule->period, rule->limit,
                              rule->period);
}


/*
 * What was taken at any time since the bucket was whole has the same effect.
 * Of what was taken before that, some had returned by then.
 */

void
ratelimit_bucket_add(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    uint64_t            taken;
    ratelimit_bucket_t  bucket;

    (void) shape;

    stamp = ratelimit_min(stamp, clock->now);

    ratelimit_bucket_load(rule, state, clock->now, &bucket);

    if (bucket.level == 0) {

        if (cost <= ratelimit_bucket_returned(rule, clock->now - stamp)) {
            return;
        }

        ratelimit_set(&state[1], 0);
        ratelimit_set(&state[0], stamp);
        ratelimit_set(&state[1], ratelimit_bucket_bound(rule, cost));

        return;
    }

    taken = ratelimit_bucket_returned(rule,
                                      ratelimit_sub(bucket.since, stamp));
    taken = ratelimit_sub(cost, taken);

    if (taken == 0) {
        return;
    }

    taken = ratelimit_bucket_bound(rule, ratelimit_add(bucket.taken, taken));

    ratelimit_set(&state[0], bucket.since);
    ratelimit_set(&state[1], taken);
}


uint64_t
ratelimit_bucket_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state)
{
    uint64_t  taken, expires, interval;

    expires = 0;

    if (state[1]) {
        taken = ratelimit_bucket_bound(rule, state[1]);
        expires = state[0] + ratelimit_muldiv_ceil(taken, rule->period,
                                                   rule->limit);
    }

    if (!shape->reserves || state[3] == 0) {
        return expires;
    }

    interval = state[2]
            + (state[3] >> ratelimit_bucket_half(state[2]) & UINT32_MAX
               ? 2 : 1);

    return ratelimit_max(expires, interval * RATELIMIT_RESERVED_TIME);
}


size_t
ratelimit_bucket_size(const ratelimit_shape_t *shape)
{
    return (shape->reserves ? 4 : 2) * sizeof(ratelimit_state_t);
}


void
ratelimit_bucket_copy(const ratelimit_shape_t *shape, ratelimit_state_t *state,
    const ratelimit_shape_t *from_shape, const ratelimit_state_t *from)
{
    if (shape->reserves) {
        ratelimit_set(&state[3], from_shape->reserves ? from[3] : 0);
        ratelimit_set(&state[2], from_shape->reserves ? from[2] : 0);
    }

    ratelimit_set(&state[0], from[0]);
    ratelimit_set(&state[1], from[1]);
}
