
/*
 * The arithmetic of both buckets: since a time at which the bucket was whole
 * some requests were taken from it, and N of them return in each period, one
 * by one.
 *
 * state[0]  since
 * state[1]  taken
 *
 * If the shape reserves, there is also what was reserved and not settled yet.
 * It is kept apart, because nothing of it returns:
 *
 * state[2]  the interval of the last reservation, RATELIMIT_RESERVED_TIME each
 * state[3]  what was reserved in that interval and in the one before: that of
 *           even intervals in the lower half, that of odd ones in the upper
 *
 * The exact level of a bucket is a fraction with the period as denominator;
 * so levels are kept multiplied by the period.  A level falls by N each
 * microsecond.
 */


#ifndef _RATELIMIT_BUCKET_H_INCLUDED_
#define _RATELIMIT_BUCKET_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


/*
 * Levels above this count as this: with a cost up to the ceiling on top it is
 * still below 2^64.
 */
#define RATELIMIT_BUCKET_MAX_LEVEL  (3 * RATELIMIT_MAX_PRODUCT)


typedef struct {
    uint64_t                        since;
    uint64_t                        taken;
    uint64_t                        level;    /* taken and not returned yet,
                                                 times period; 0 if whole */
    uint64_t                        reserved; /* that part of the level that
                                                 does not fall */
    uint64_t                        lead;     /* since is so much after now:
                                                 another worker's clock is a
                                                 little ahead */
    unsigned                        rebase;
} ratelimit_bucket_t;


/*
 * Describes as an algorithm does; wait is the longest that admit allows, and
 * what is taken above so many requests is excess.
 */
void ratelimit_bucket_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost, uint64_t wait,
    uint64_t above, ratelimit_verdict_t *verdict);

/* adds what is reserved to a bucket that was loaded */
void ratelimit_bucket_add_reserved(const ratelimit_rule_t *rule,
    const ratelimit_state_t *state, uint64_t now, ratelimit_bucket_t *bucket);

/* the same for both buckets, see ratelimit_algorithm_t */

void ratelimit_bucket_punish(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict);
uint64_t ratelimit_bucket_reserve(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost);
void ratelimit_bucket_commit(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
void ratelimit_bucket_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
void ratelimit_bucket_add(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
uint64_t ratelimit_bucket_expires(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state);
size_t ratelimit_bucket_size(const ratelimit_shape_t *shape);
void ratelimit_bucket_copy(const ratelimit_shape_t *shape,
    ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
    const ratelimit_state_t *from);

/* the traits of both, from charge on; past, fit and most are not needed */

#define ratelimit_bucket_traits(describe)                                     \
    ratelimit_bucket_charge,                                                  \
    ratelimit_bucket_punish,                                                  \
    describe,                                                                 \
    ratelimit_bucket_reserve,                                                 \
    ratelimit_bucket_commit,                                                  \
    ratelimit_bucket_refund,                                                  \
    ratelimit_bucket_add,                                                     \
    NULL,                                                                     \
    ratelimit_bucket_expires,                                                 \
    NULL,                                                                     \
    ratelimit_bucket_size,                                                    \
    NULL,                                                                     \
    NULL,                                                                     \
    ratelimit_bucket_copy


/*
 * Admitted requests never take more than the first test allows; requests that
 * were counted although refused may, and so may a state of another rule.
 */

static ratelimit_inline uint64_t
ratelimit_bucket_bound(const ratelimit_rule_t *rule, uint64_t taken)
{
    if (taken <= rule->ceiling + 2 * rule->limit) {
        return taken;
    }

    return ratelimit_min(taken, RATELIMIT_BUCKET_MAX_LEVEL / rule->period);
}


/*
 * Whole periods, all but the last one, are settled: since moves forward, what
 * they returned is no longer taken.  A charge of the last period can still be
 * refunded.  Returns what has elapsed since then; the bucket is whole if
 * nothing is left taken.
 */

static ratelimit_inline uint64_t
ratelimit_bucket_fold(const ratelimit_rule_t *rule, ratelimit_bucket_t *bucket,
    uint64_t elapsed)
{
    uint64_t  periods;

    periods = elapsed / rule->period;

    if (bucket->taken / rule->limit < periods) {
        bucket->taken = 0;
        return 0;
    }

    periods--;

    bucket->taken -= periods * rule->limit;
    bucket->since += periods * rule->period;

    return elapsed - periods * rule->period;
}


/* the bucket as it is now, without what is reserved */

static ratelimit_inline void
ratelimit_bucket_load(const ratelimit_rule_t *rule,
    const ratelimit_state_t *state, uint64_t now, ratelimit_bucket_t *bucket)
{
    uint64_t  elapsed, level, returned;

    bucket->since = state[0];
    bucket->taken = state[1];
    bucket->level = 0;
    bucket->reserved = 0;
    bucket->lead = 0;
    bucket->rebase = 0;

    if (bucket->taken == 0) {
        return;
    }

    elapsed = 0;

    if (bucket->since <= now) {
        elapsed = now - bucket->since;

        if (elapsed >= 2 * rule->period) {
            elapsed = ratelimit_bucket_fold(rule, bucket, elapsed);
        }

    } else if (bucket->since - now <= RATELIMIT_SKEW) {
        bucket->lead = bucket->since - now;

    } else if (bucket->since - now > RATELIMIT_NO_TIME) {
        return;

    } else {
        /* the clock was set back: all that was taken was taken now */
        bucket->since = now;
        bucket->rebase = 1;
    }

    bucket->taken = ratelimit_bucket_bound(rule, bucket->taken);

    level = bucket->taken * rule->period;
    returned = elapsed * rule->limit;

    bucket->level = ratelimit_sub(level, returned);
}


static ratelimit_inline void
ratelimit_bucket_load_all(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state, uint64_t now,
    ratelimit_bucket_t *bucket)
{
    ratelimit_bucket_load(rule, state, now, bucket);

    if (shape->reserves) {
        ratelimit_bucket_add_reserved(rule, state, now, bucket);
    }
}


static ratelimit_inline void
ratelimit_bucket_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict)
{
    uint64_t            taken;
    ratelimit_bucket_t  bucket;

    (void) shape;
    (void) verdict;

    ratelimit_bucket_load(rule, state, clock->now, &bucket);

    if (bucket.level == 0) {

        if (cost == 0) {
            return;
        }

        /* a bucket of which nothing is taken is whole at any time */

        ratelimit_set(&state[1], 0);
        ratelimit_set(&state[0], clock->now);
        ratelimit_set(&state[1], ratelimit_bucket_bound(rule, cost));

        return;
    }

    taken = ratelimit_bucket_bound(rule, ratelimit_add(bucket.taken, cost));

    /* a worker killed in between leaves too much taken, never too little */

    ratelimit_set(&state[0], bucket.since);
    ratelimit_set(&state[1], taken);
}


/* the time until a level has fallen to another one */

static ratelimit_inline uint64_t
ratelimit_bucket_until(const ratelimit_bucket_t *bucket,
    const ratelimit_rule_t *rule, uint64_t level, uint64_t target)
{
    if (level <= target) {
        return 0;
    }

    return bucket->lead + ratelimit_div_ceil(level - target, rule->limit);
}


/* the time until a cost, at most the ceiling, finds room */

static ratelimit_inline uint64_t
ratelimit_bucket_until_room(const ratelimit_bucket_t *bucket,
    const ratelimit_rule_t *rule, uint64_t cost)
{
    return ratelimit_bucket_until(bucket, rule,
                                  bucket->level + cost * rule->period,
                                  rule->ceiling * rule->period);
}


/* whether a cost goes above the capacity */

static ratelimit_inline unsigned
ratelimit_bucket_above(const ratelimit_rule_t *rule,
    const ratelimit_bucket_t *bucket, uint64_t cost)
{
    return cost > rule->capacity
           || bucket->level > (rule->capacity - cost) * rule->period;
}


/*
 * Sets allowed, delay and soft: a cost that finds no room is allowed and
 * delayed if there will be room within so long a wait.  What a hard limit
 * admits, at once or later, does not go above it.
 */

static ratelimit_inline void
ratelimit_bucket_admit(const ratelimit_rule_t *rule,
    const ratelimit_bucket_t *bucket, uint64_t cost, uint64_t wait,
    ratelimit_verdict_t *verdict)
{
    uint64_t  until;

    verdict->allowed = 1;
    verdict->delay = 0;
    verdict->soft = 0;

    if (cost == 0) {
        verdict->soft = ratelimit_bucket_above(rule, bucket, 0);
        return;
    }

    if (cost > rule->ceiling) {
        verdict->allowed = 0;
        return;
    }

    until = ratelimit_bucket_until_room(bucket, rule, cost);

    if (until > wait) {
        verdict->allowed = 0;
        return;
    }

    verdict->delay = until;

    if (rule->ceiling > rule->capacity) {
        verdict->soft = ratelimit_bucket_above(rule, bucket, cost);
    }
}


/* when all that was taken will have returned, which is before the charge has */

static ratelimit_inline uint64_t
ratelimit_bucket_stamp(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_bucket_t *bucket,
    const ratelimit_clock_t *clock)
{
    uint64_t  stamp;

    stamp = clock->now + bucket->lead
            + ratelimit_div_ceil(bucket->level - bucket->reserved,
                                 rule->limit);

    /* one so far in the future would be taken for that of a reservation */

    if (shape->reserves) {
        stamp = ratelimit_min(stamp, RATELIMIT_RESERVED - 1);
    }

    return stamp;
}


/* what both look at; gives the bucket, too */

static ratelimit_inline void
ratelimit_bucket_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost, uint64_t wait,
    ratelimit_verdict_t *verdict, ratelimit_bucket_t *bucket)
{
    ratelimit_bucket_load_all(shape, rule, state, clock->now, bucket);
    ratelimit_bucket_admit(rule, bucket, cost, wait, verdict);

    verdict->rebase = bucket->rebase;
    verdict->stamp = ratelimit_bucket_stamp(shape, rule, bucket, clock);
}


static ratelimit_inline void
ratelimit_token_bucket_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    ratelimit_bucket_t  bucket;

    ratelimit_bucket_look(shape, rule, state, clock, cost, rule->wait, verdict,
                          &bucket);
}


/*
 * An admitted level never exceeds the ceiling, so there is no delay if so many
 * are free; a request that costs nothing does not queue.
 */

static ratelimit_inline void
ratelimit_leaky_bucket_delay(const ratelimit_rule_t *rule,
    const ratelimit_bucket_t *bucket, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint64_t  level;

    if (!verdict->allowed || cost == 0 || rule->free >= rule->ceiling) {
        return;
    }

    level = bucket->level + cost * rule->period;

    verdict->delay = ratelimit_bucket_until(bucket, rule, level,
                                            (rule->free + 1) * rule->period);
}


static ratelimit_inline void
ratelimit_leaky_bucket_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    ratelimit_bucket_t  bucket;

    ratelimit_bucket_look(shape, rule, state, clock, cost, 0, verdict,
                          &bucket);
    ratelimit_leaky_bucket_delay(rule, &bucket, cost, verdict);
}


#endif /* _RATELIMIT_BUCKET_H_INCLUDED_ */
