
/*
 * A bucket of tokens that is refilled steadily at N in a period; a request
 * takes as many as it costs, and may wait for them for a while.
 */


#include "core/ratelimit_bucket.h"


static void ratelimit_token_bucket_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);


const ratelimit_algorithm_t  ratelimit_token_bucket = {
    "token_bucket",
    't',
    RATELIMIT_TAKES_CAPACITY|RATELIMIT_TAKES_WAIT,
    RATELIMIT_FORM_TIME_COUNT,
    1, 0, 0, 0,                            /* drips, sized, aligned, head */
    ratelimit_token_bucket_look,
    ratelimit_bucket_traits(ratelimit_token_bucket_describe)
};


static void
ratelimit_token_bucket_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    ratelimit_bucket_describe(shape, rule, state, clock, cost, rule->wait,
                              rule->capacity, verdict);
}
