
/*
 * How much of a resource is in use, and whether that is pressure.
 */


#include "core/ratelimit_math.h"
#include "elastic/ratelimit_pressure.h"


uint32_t
ratelimit_pressure_usage(uint64_t used, uint64_t whole)
{
    if (whole == 0) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    if (used >= whole) {
        return RATELIMIT_PRESSURE_WHOLE;
    }

    if (used > UINT64_MAX / RATELIMIT_PRESSURE_WHOLE) {
        return (uint32_t) ratelimit_min(used
                                        / (whole / RATELIMIT_PRESSURE_WHOLE),
                                        RATELIMIT_PRESSURE_WHOLE);
    }

    return (uint32_t) (used * RATELIMIT_PRESSURE_WHOLE / whole);
}


/* some kernels have counters that go back now and then */

uint32_t
ratelimit_pressure_cpu_usage(const ratelimit_cpu_t *before,
    const ratelimit_cpu_t *now)
{
    uint64_t  used, passed, whole;

    used = ratelimit_sub(now->used, before->used);
    passed = ratelimit_sub(now->passed, before->passed);

    if (now->period == 0) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    if (now->quota && passed > UINT64_MAX / now->quota) {
        whole = ratelimit_max(passed / now->period, 1);
        whole = (whole > UINT64_MAX / now->quota) ? UINT64_MAX
                                                  : whole * now->quota;

    } else {
        whole = passed * now->quota / now->period;
    }

    return ratelimit_pressure_usage(used, whole);
}


int
ratelimit_pressure_at(uint32_t usage, uint32_t mark, int pressed)
{
    uint32_t  low;

    if (!pressed) {
        return usage >= mark;
    }

    low = (mark >= 2 * RATELIMIT_PRESSURE_GAP) ? mark - RATELIMIT_PRESSURE_GAP
                                               : mark / 2;

    return usage >= low;
}
