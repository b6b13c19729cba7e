
/*
 * The places of one decision, and the segments of tables that it holds while
 * it is made.  For the files of the table only.
 */


#ifndef _RATELIMIT_LOCKSET_H_INCLUDED_
#define _RATELIMIT_LOCKSET_H_INCLUDED_


#include "table/ratelimit_table_slot.h"


/* the table in which the i'th place is counted; those before it are located */
ratelimit_table_t *ratelimit_lockset_active(const ratelimit_place_t *places,
    size_t i);

/* locks all segments, waiting for each, and finds all slots */
void ratelimit_lockset_lock(ratelimit_item_t *items, ratelimit_lockset_t *set);

/*
 * Unlocks all, waits for the process that is in the way, which may be dead,
 * and locks all again.
 */
void ratelimit_lockset_retry(ratelimit_item_t *items,
    ratelimit_lockset_t *set);

/* locks one segment; what a dead process left of it is mended */
void ratelimit_lockset_wait(ratelimit_table_t *table,
    ratelimit_segment_t *segment, uint32_t me);

/* as those below, for places of several segments */
int ratelimit_lockset_try_all(ratelimit_place_t *places, size_t n,
    uint32_t me);
void ratelimit_lockset_unlock_all(ratelimit_place_t *places, size_t n);


/* nothing is locked yet */

static inline void
ratelimit_lockset_init(ratelimit_lockset_t *set, ratelimit_place_t *places,
    size_t n, ratelimit_clock_t *clock, uint32_t me)
{
    set->places = places;
    set->n = n;
    set->clock = clock;
    set->me = me;
    set->blocked = NULL;
    set->moving = NULL;
}


/* n may be known to the compiler */

static ratelimit_inline int
ratelimit_lockset_is_single(const ratelimit_place_t *places, size_t n)
{
    size_t  i;

#pragma GCC unroll 2

    for (i = 1; i < n; i++) {
        if (places[i].segment != places[0].segment) {
            return 0;
        }
    }

    return 1;
}


static ratelimit_inline void
ratelimit_lockset_unlock(ratelimit_place_t *places, size_t n)
{
    if (ratelimit_lockset_is_single(places, n)) {
        ratelimit_unlock(&places[0].segment->lock);

    } else {
        ratelimit_lockset_unlock_all(places, n);
    }
}


/*
 * A process that has not read its clock for long must not turn that of a
 * counter back: the time is that of the process that came here last.
 */

static ratelimit_inline void
ratelimit_lockset_catch_up(const ratelimit_segment_t *segment,
    ratelimit_clock_t *clock)
{
    uint64_t  steady;

    steady = __atomic_load_n(&segment->now, __ATOMIC_RELAXED);

    if (steady > clock->steady) {
        clock->now += steady - clock->steady;
        clock->wall += steady - clock->steady;
        clock->steady = steady;
    }
}


static ratelimit_inline void
ratelimit_lockset_tick(ratelimit_segment_t *segment, ratelimit_clock_t *clock)
{
    if (segment->now < clock->steady) {
        __atomic_store_n(&segment->now, clock->steady, __ATOMIC_RELAXED);

    } else {
        ratelimit_lockset_catch_up(segment, clock);
    }
}


#endif /* _RATELIMIT_LOCKSET_H_INCLUDED_ */
