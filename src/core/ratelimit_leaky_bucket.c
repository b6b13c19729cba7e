
/*
 * The arithmetic of limit_req: one request is under way and may be followed
 * by as many more as the burst allows, which are delayed so that they leave
 * at the rate, except for the first few that are free.
 */


#include "core/ratelimit_bucket.h"


static void ratelimit_leaky_bucket_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);


const ratelimit_algorithm_t  ratelimit_leaky_bucket = {
    "leaky_bucket",
    'k',
    RATELIMIT_TAKES_BURST,
    1,                                     /* drips */
    0,                                     /* sized */
    ratelimit_leaky_bucket_look,
    ratelimit_leaky_bucket_glance,
    ratelimit_bucket_charge,
    ratelimit_bucket_commit,
    ratelimit_bucket_punish,
    ratelimit_bucket_refund,
    ratelimit_bucket_expires,
    ratelimit_bucket_size,
    ratelimit_bucket_copy
};


static void
ratelimit_leaky_bucket_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    ratelimit_bucket_t  bucket;

    (void) shape;

    ratelimit_bucket_load(rule, state, clock->now, &bucket);
    ratelimit_bucket_admit(rule, &bucket, cost, 0, verdict);
    ratelimit_bucket_tell(rule, &bucket, cost, 1, verdict);

    verdict->stamp = ratelimit_bucket_stamp(rule, &bucket, clock);

    ratelimit_leaky_bucket_delay(rule, &bucket, cost, verdict);
}
