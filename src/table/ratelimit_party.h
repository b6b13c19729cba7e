
/*
 * The limits of one decision, and the segments of tables that it holds while
 * it is made.  For the files of the table only.
 */


#ifndef _RATELIMIT_PARTY_H_INCLUDED_
#define _RATELIMIT_PARTY_H_INCLUDED_


#include "table/ratelimit_slot.h"


/* finds out where the limits are counted */
void ratelimit_party_place(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n);

/* holds all segments and finds all slots */
void ratelimit_party_lock(ratelimit_item_t *items, ratelimit_party_t *party);
void ratelimit_party_unlock(ratelimit_place_t *places, size_t n);

/*
 * Lets go of all, waits for what was in the way, which may be held by a dead
 * process, and places all anew.
 */
void ratelimit_party_back_off(ratelimit_item_t *items,
    ratelimit_party_t *party);


/*
 * A process that has not read its clock for long must not turn that of a
 * counter back: the time is that of whoever came here last.
 */

static inline void
ratelimit_party_late(const ratelimit_segment_t *segment,
    ratelimit_clock_t *clock)
{
    uint64_t  now;

    now = __atomic_load_n(&segment->now, __ATOMIC_RELAXED);

    if (now > clock->now) {
        clock->wall += now - clock->now;
        clock->now = now;
    }
}


static inline void
ratelimit_party_tick(ratelimit_segment_t *segment, ratelimit_clock_t *clock)
{
    ratelimit_party_late(segment, clock);

    if (segment->now != clock->now) {
        __atomic_store_n(&segment->now, clock->now, __ATOMIC_RELAXED);
    }
}


/* a slot that was found without the lock may be another's by now */

static inline void
ratelimit_party_find(ratelimit_place_t *place)
{
    if (place->slot
        && (place->slot->id & RATELIMIT_FINGERPRINT) == place->fingerprint)
    {
        return;
    }

    place->slot = ratelimit_slot_find(place);
}


#endif /* _RATELIMIT_PARTY_H_INCLUDED_ */
