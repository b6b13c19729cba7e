
/*
 * The difference between the clocks, which all processes share.
 */


#include "table/ratelimit_clock.h"


/* ms; a larger change of the difference means that the wall clock was set */
#define RATELIMIT_CLOCK_SLACK  100


uint64_t
ratelimit_clock_wall(uint64_t *shared, uint64_t now, uint64_t wall)
{
    uint64_t  difference;

    difference = __atomic_load_n(shared, __ATOMIC_RELAXED);

    if (wall - now - difference + RATELIMIT_CLOCK_SLACK
        <= 2 * RATELIMIT_CLOCK_SLACK)
    {
        return now + difference;
    }

    __atomic_store_n(shared, wall - now, __ATOMIC_RELAXED);

    return wall;
}
