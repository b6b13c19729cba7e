
/*
 * The algorithms by number and by name, and the shapes that they need.
 */


#include <string.h>

#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


/* a log keeps positions in 31 bits */
#define RATELIMIT_MAX_RING  0x7fffffff


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


/* a shape only grows, so that it can be fitted to one rule after another */

void
ratelimit_shape_fit(ratelimit_shape_t *shape, uint64_t ceiling)
{
    uint64_t  need;

    if (shape->algorithm == RATELIMIT_SLIDING_WINDOW) {
        need = (ceiling > UINT16_MAX) ? sizeof(uint32_t) : sizeof(uint16_t);
        shape->width = (uint32_t) ratelimit_max(shape->width, need);
    }

    if (shape->algorithm == RATELIMIT_SLIDING_LOG) {
        need = ratelimit_min(ratelimit_add(ceiling, 1), RATELIMIT_MAX_RING);
        shape->ring = (uint32_t) ratelimit_max(shape->ring, need);
    }
}
