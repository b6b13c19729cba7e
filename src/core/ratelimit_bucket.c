
/*
 * What token_bucket and leaky_bucket have in common.
 */


#include "core/ratelimit_bucket.h"


void
ratelimit_bucket_describe(const ratelimit_rule_t *rule,
    const ratelimit_state_t *state, const ratelimit_clock_t *clock,
    uint64_t cost, uint64_t wait, uint64_t above,
    ratelimit_verdict_t *verdict)
{
    uint64_t            used, part, sum, level;
    ratelimit_bucket_t  bucket;

    ratelimit_bucket_load(rule, state, clock->now, &bucket);

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

    ratelimit_bucket_load(rule, state, clock->now, &bucket);

    if (cost == 0 || bucket.level >= rule->ceiling * rule->period) {
        ratelimit_bucket_charge(shape, rule, state, clock, 0, verdict);
        return;
    }

    state[0] = clock->now + bucket.lead;
    ratelimit_store_barrier();
    state[1] = rule->ceiling;
}


/*
 * What has dripped back meanwhile would have been lost had the charge not been
 * there: all that dripped after the bucket would have been whole, which is
 * what the stamp says.  That much is not refunded a second time.
 */

void
ratelimit_bucket_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost)
{
    uint64_t  lost, left;

    (void) shape;

    if (state[0] > stamp) {
        return;
    }

    left = ratelimit_sub(state[1], cost);

    if (left && clock->now > stamp) {
        lost = ratelimit_muldiv_ceil(ratelimit_min(cost, rule->ceiling),
                                     rule->period, rule->limit);
        lost = ratelimit_min(lost, clock->now - stamp);

        state[0] = ratelimit_min(state[0] + lost, clock->now);
        ratelimit_store_barrier();
    }

    state[1] = left;
}


uint64_t
ratelimit_bucket_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state)
{
    uint64_t  taken;

    (void) shape;

    if (state[1] == 0) {
        return 0;
    }

    taken = ratelimit_bucket_bound(rule, state[1]);

    return state[0] + ratelimit_muldiv_ceil(taken, rule->period, rule->limit);
}


size_t
ratelimit_bucket_size(const ratelimit_shape_t *shape)
{
    (void) shape;

    return 2 * sizeof(ratelimit_state_t);
}


void
ratelimit_bucket_copy(const ratelimit_shape_t *shape, ratelimit_state_t *state,
    const ratelimit_shape_t *from_shape, const ratelimit_state_t *from)
{
    (void) shape;
    (void) from_shape;

    state[0] = from[0];
    ratelimit_store_barrier();
    state[1] = from[1];
}
