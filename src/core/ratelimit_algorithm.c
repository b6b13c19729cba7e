
/*
 * The algorithms by number, and the shapes that they need.
 */


#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


#define ratelimit_algorithm_address(NAME, name)  &ratelimit_##name,

const ratelimit_algorithm_t *const
    ratelimit_algorithms[RATELIMIT_ALGORITHMS] =
{
    ratelimit_each_algorithm(ratelimit_algorithm_address)
};


void
ratelimit_shape_fit(ratelimit_shape_t *shape, uint64_t ceiling)
{
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[shape->algorithm];

    if (algorithm->fit) {
        algorithm->fit(shape, ceiling);
    }
}


uint64_t
ratelimit_shape_most(const ratelimit_shape_t *shape)
{
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[shape->algorithm];

    return algorithm->most ? algorithm->most(shape) : RATELIMIT_MAX_LIMIT;
}


/* where it drips, the bucket would be whole only after that part */

uint64_t
ratelimit_stamp_above(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, uint64_t stamp, uint64_t part)
{
    return ratelimit_algorithms[shape->algorithm]->drips
           ? stamp + part * rule->period / rule->limit : stamp;
}


/* all that was taken from a bucket is alike */

uint64_t
ratelimit_stamp_latest(const ratelimit_shape_t *shape, uint64_t stamp)
{
    return ratelimit_algorithms[shape->algorithm]->drips ? stamp
                                                         : RATELIMIT_LATEST;
}


/* what was not used is not refunded */

uint64_t
ratelimit_verdict_refund(const ratelimit_shape_t *shape,
    ratelimit_verdict_t *verdict, uint64_t cost)
{
    uint64_t  used, debt;

    used = verdict->limit - verdict->remaining;
    debt = ratelimit_algorithms[shape->algorithm]->drips
           ? 0 : verdict->excess / 1000;

    cost = ratelimit_min(cost, used + verdict->excess / 1000);

    verdict->excess = ratelimit_sub(verdict->excess, cost * 1000);
    verdict->remaining += ratelimit_min(used, ratelimit_sub(cost, debt));

    if (verdict->remaining == verdict->limit) {
        verdict->reset_after = 0;
    }

    return cost;
}
