
/*
 * A decision holds all segments that it concerns, locked in an order that is
 * the same for all processes, each once.
 */


#include "table/ratelimit_lockset.h"


static void ratelimit_lockset_locate(ratelimit_item_t *items,
    ratelimit_lockset_t *set);
static int ratelimit_lockset_find(ratelimit_item_t *items,
    ratelimit_lockset_t *set);
static void ratelimit_lockset_find_slot(ratelimit_place_t *place,
    const ratelimit_rule_t *rule);
static int ratelimit_lockset_lock_once(ratelimit_lockset_t *set);
static void ratelimit_lockset_release(ratelimit_lockset_t *set);
static void ratelimit_lockset_sort(ratelimit_place_t *places, size_t n);
static int ratelimit_lockset_before(const ratelimit_place_t *a,
    const ratelimit_place_t *b);
static inline ratelimit_place_t *ratelimit_lockset_next(
    ratelimit_place_t *places, size_t i);


void
ratelimit_lockset_lock(ratelimit_item_t *items, ratelimit_lockset_t *set)
{
    for ( ;; ) {
        ratelimit_lockset_locate(items, set);

        if (ratelimit_lockset_lock_once(set)
            && ratelimit_lockset_find(items, set))
        {
            return;
        }

        ratelimit_lockset_release(set);
    }
}


/* finds out where the limits are counted */

static void
ratelimit_lockset_locate(ratelimit_item_t *items, ratelimit_lockset_t *set)
{
    size_t              i;
    ratelimit_table_t  *active;

    for (i = 0; i < set->n; i++) {
        active = ratelimit_lockset_active(set->places, i);

        ratelimit_slot_locate(active, &set->places[i],
                              ratelimit_slot_segment(active,
                                                     &set->places[i].hash),
                              items[i].rule->period, active->kind.where);
    }
}


/* all limits of a table are looked for in the same one, whatever is sealed */

ratelimit_table_t *
ratelimit_lockset_active(const ratelimit_place_t *places, size_t i)
{
    size_t  k;

    if (places[i].table->older == NULL) {
        return places[i].table;
    }

    for (k = 0; k < i; k++) {
        if (places[k].table == places[i].table) {
            return places[k].active;
        }
    }

    return ratelimit_migrate_active(places[i].table);
}


/* finds all slots; returns 0 if another process is in the way */

static int
ratelimit_lockset_find(ratelimit_item_t *items, ratelimit_lockset_t *set)
{
    size_t              i;
    ratelimit_place_t  *place;

    for (i = 0; i < set->n; i++) {
        place = &set->places[i];

        ratelimit_lockset_tick(place->segment, set->clock);
        ratelimit_lockset_find_slot(place, items[i].rule);
    }

    for (i = 0; i < set->n; i++) {
        place = &set->places[i];

        if (place->slot == NULL && place->active->older) {

            /* a look at the same counter, at another cost, may have moved it */

            ratelimit_lockset_find_slot(place, items[i].rule);

            if (place->slot == NULL
                && !ratelimit_migrate_counter(place, items[i].rule, set))
            {
                return 0;
            }
        }

        if (place->active != place->table) {
            ratelimit_migrate_restrain(&items[i], place);
        }
    }

    return 1;
}


static void
ratelimit_lockset_find_slot(ratelimit_place_t *place,
    const ratelimit_rule_t *rule)
{
    (void) ratelimit_slot_find(place,
                               place->segment - place->active->segments,
                               rule->period, place->active->kind.where);
}


static void
ratelimit_lockset_release(ratelimit_lockset_t *set)
{
    ratelimit_lockset_unlock(set->places, set->n);

    if (set->blocked) {
        ratelimit_lockset_wait(set->blocked_table, set->blocked, set->me);
        ratelimit_unlock(&set->blocked->lock);
        set->blocked = NULL;
    }
}


void
ratelimit_lockset_wait(ratelimit_table_t *table, ratelimit_segment_t *segment,
    uint32_t me)
{
    if (ratelimit_lock(&segment->lock, me, table->lifelines)) {
        ratelimit_table_recount(table, segment);
    }
}


void
ratelimit_lockset_retry(ratelimit_item_t *items, ratelimit_lockset_t *set)
{
    ratelimit_lockset_release(set);
    ratelimit_lockset_lock(items, set);
}


/* returns 0 if a table was sealed meanwhile */

static int
ratelimit_lockset_lock_once(ratelimit_lockset_t *set)
{
    size_t              i;
    ratelimit_place_t  *place;

    ratelimit_lockset_sort(set->places, set->n);

    for (i = 0; i < set->n; i++) {
        place = ratelimit_lockset_next(set->places, i);

        if (place) {
            ratelimit_lockset_wait(place->active, place->segment, set->me);
        }
    }

    for (i = 0; i < set->n; i++) {
        place = &set->places[i];

        if (ratelimit_migrate_active(place->table) != place->active) {
            return 0;
        }
    }

    return 1;
}


int
ratelimit_lockset_try_all(ratelimit_place_t *places, size_t n, uint32_t me)
{
    size_t              i;
    ratelimit_place_t  *place;

    ratelimit_lockset_sort(places, n);

    for (i = 0; i < n; i++) {
        place = ratelimit_lockset_next(places, i);

        if (place
            && !ratelimit_lock_unchanged(&place->segment->lock, place->ticket,
                                         me))
        {
            ratelimit_lockset_unlock_all(places, i);
            return 0;
        }
    }

    return 1;
}


/* the first n in order */

void
ratelimit_lockset_unlock_all(ratelimit_place_t *places, size_t n)
{
    size_t              i;
    ratelimit_place_t  *place;

    for (i = 0; i < n; i++) {
        place = ratelimit_lockset_next(places, i);

        if (place) {
            ratelimit_unlock(&place->segment->lock);
        }
    }
}


/* the order in which all processes lock segments */

static void
ratelimit_lockset_sort(ratelimit_place_t *places, size_t n)
{
    size_t  i, k;

    places[0].order = 0;

    for (i = 1; i < n; i++) {

        for (k = i; k > 0; k--) {
            if (!ratelimit_lockset_before(&places[i],
                                          &places[places[k - 1].order]))
            {
                break;
            }

            places[k].order = places[k - 1].order;
        }

        places[k].order = i;
    }
}


/* addresses may differ between processes, secrets and numbers do not */

static int
ratelimit_lockset_before(const ratelimit_place_t *a,
    const ratelimit_place_t *b)
{
    uint64_t  x, y;

    if (a->active != b->active) {
        x = a->active->header->secret.lo;
        y = b->active->header->secret.lo;

        if (x != y) {
            return x < y;
        }
    }

    return a->segment < b->segment;
}


/* the i'th place in order, or NULL if its segment is that of the one before */

static inline ratelimit_place_t *
ratelimit_lockset_next(ratelimit_place_t *places, size_t i)
{
    ratelimit_place_t  *place;

    place = &places[places[i].order];

    if (i && place->segment == places[places[i - 1].order].segment) {
        return NULL;
    }

    return place;
}
