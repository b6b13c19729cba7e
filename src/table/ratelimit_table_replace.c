
/*
 * What others than decisions write to a table: counters that were counted
 * elsewhere.
 */


#include "table/ratelimit_lockset.h"


void
ratelimit_table_replace(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_clock_t *clock, uint32_t me)
{
    ratelimit_clock_t     now;
    ratelimit_state_t    *state;
    ratelimit_table_t    *table;
    ratelimit_lockset_t   set;

    now = *clock;

    ratelimit_lockset_init(&set, place, 1, &now, me);
    ratelimit_lockset_lock(item, &set);

    while (place->slot == NULL && !ratelimit_slot_allocate(place, &set)) {
        ratelimit_lockset_retry(item, &set);
    }

    table = place->active;
    state = ratelimit_slot_state(table, &table->kind, place->slot,
                                 place->state);

    table->algorithm->copy(&table->kind.shape, state,
                           &place->table->kind.shape, item->state);

    ratelimit_slot_write(&table->kind, place->slot, state);
    ratelimit_slot_use(place, item->rule, &table->kind, 0, now.now, me);

    ratelimit_lockset_unlock(place, 1);
}
