
/*
 * The algorithms by number and by name, and the shapes that they need.
 */


#include <string.h>

#include "core/ratelimit.h"


#define ratelimit_algorithm_address(NAME, name)  &ratelimit_##name,

const ratelimit_algorithm_t *const
    ratelimit_algorithms[RATELIMIT_ALGORITHMS] =
{
    ratelimit_each_algorithm(ratelimit_algorithm_address)
};


ratelimit_algorithm_e
ratelimit_algorithm_find(const char *name, size_t len)
{
    unsigned     i;
    const char  *candidate;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        candidate = ratelimit_algorithms[i]->name;

        if (strlen(candidate) == len && memcmp(candidate, name, len) == 0) {
            return (ratelimit_algorithm_e) i;
        }
    }

    return RATELIMIT_ALGORITHMS;
}


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
