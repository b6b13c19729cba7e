
/*
 * The arithmetic of limit_req: one request is under way and may be followed
 * by as many more as the burst allows, which are delayed so that they leave
 * at the rate, except for the first few that are free.
 */


#include "core/ratelimit_bucket.h"


static void ratelimit_leaky_bucket_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);


const ratelimit_algorithm_t  ratelimit_leaky_bucket = {
    "leaky_bucket",
    'k',
    RATELIMIT_TAKES_BURST,
    RATELIMIT_FORM_TIME_COUNT,
    1, 0, 0, 0,                            /* drips, sized, aligned, head */
    ratelimit_leaky_bucket_look,
    ratelimit_bucket_traits(ratelimit_leaky_bucket_describe)
};


static void
ratelimit_leaky_bucket_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    ratelimit_bucket_describe(shape, rule, state, clock, cost, 0, 1,
                              verdict);
}
