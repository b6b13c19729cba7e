
/*
 * A bucket of tokens that is refilled steadily at N in a period; a request
 * takes as many as it costs, and may wait for them for a while.
 */


#include "core/ratelimit_bucket.h"


static void ratelimit_token_bucket_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);


const ratelimit_algorithm_t  ratelimit_token_bucket = {
    "token_bucket",
    't',
    RATELIMIT_TAKES_CAPACITY|RATELIMIT_TAKES_WAIT,
    1,                                     /* drips */
    0,                                     /* sized */
    ratelimit_token_bucket_look,
    ratelimit_token_bucket_glance,
    ratelimit_bucket_charge,
    ratelimit_bucket_commit,
    ratelimit_bucket_punish,
    ratelimit_bucket_refund,
    ratelimit_bucket_expires,
    ratelimit_bucket_size,
    ratelimit_bucket_copy
};


static void
ratelimit_token_bucket_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    ratelimit_bucket_t  bucket;

    (void) shape;

    ratelimit_bucket_load(rule, state, clock->now, &bucket);
    ratelimit_bucket_admit(rule, &bucket, cost, rule->wait, verdict);
    ratelimit_bucket_tell(rule, &bucket, cost, rule->capacity, verdict);

    verdict->stamp = ratelimit_bucket_stamp(rule, &bucket, clock);

    /* who waits for a token of a hard limit does not go above it */

    if (verdict->delay && rule->ceiling <= rule->capacity) {
        verdict->soft = 0;
    }
}
