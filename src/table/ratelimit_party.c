
/*
 * A decision holds all segments that it concerns, locked in an order that is
 * the same for all processes, each once.
 */


#include "table/ratelimit_party.h"


static int ratelimit_party_load(ratelimit_item_t *items,
    ratelimit_party_t *party);
static int ratelimit_party_lock_once(ratelimit_item_t *items,
    ratelimit_party_t *party);
static void ratelimit_party_sort(ratelimit_place_t *places, size_t n);
static int ratelimit_party_before(const ratelimit_place_t *a,
    const ratelimit_place_t *b);
static inline int ratelimit_party_once(const ratelimit_place_t *places,
    size_t i);


/* all limits of a table are looked for in the same one, whatever is sealed */

void
ratelimit_party_place(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n)
{
    size_t              i, k;
    ratelimit_table_t  *active;

    for (i = 0; i < n; i++) {

        for (k = 0; places[k].table != places[i].table; k++) { /* void */ }

        active = (k < i) ? places[k].active
                         : ratelimit_table_active(places[i].table);

        ratelimit_slot_place(active, &places[i], items[i].rule->period);
    }
}


void
ratelimit_party_lock(ratelimit_item_t *items, ratelimit_party_t *party)
{
    while (!ratelimit_party_lock_once(items, party)
           || !ratelimit_party_load(items, party))
    {
        /* void */
    }
}


/* finds all slots; returns 0, with nothing held, if others are in the way */

static int
ratelimit_party_load(ratelimit_item_t *items, ratelimit_party_t *party)
{
    size_t              i;
    ratelimit_place_t  *place;

    for (i = 0; i < party->n; i++) {
        ratelimit_party_tick(party->places[i].segment, &party->clock);
        ratelimit_party_find(&party->places[i]);
    }

    for (i = 0; i < party->n; i++) {
        place = &party->places[i];

        if (place->slot == NULL && place->active->older
            && !ratelimit_table_adopt(place, items[i].rule, party))
        {
            ratelimit_party_back_off(items, party);
            return 0;
        }

        if (place->active != place->table) {
            ratelimit_table_restrain(&items[i], place);
        }
    }

    return 1;
}


void
ratelimit_party_back_off(ratelimit_item_t *items, ratelimit_party_t *party)
{
    size_t                i;
    ratelimit_lock_t     *lock;
    ratelimit_place_t    *places;

    places = party->places;

    ratelimit_party_unlock(places, party->n);

    for (i = 0; i < party->n; i++) {

        if (places[i].blocked) {
            lock = &places[i].blocked->lock;
            places[i].blocked = NULL;

            ratelimit_lock(lock, party->me, places[i].table->lifelines);
            ratelimit_unlock(lock);
        }
    }

    ratelimit_party_place(items, places, party->n);
}


/* returns 0 if a table was sealed meanwhile */

static int
ratelimit_party_lock_once(ratelimit_item_t *items, ratelimit_party_t *party)
{
    size_t              i, n;
    ratelimit_place_t  *places;

    n = party->n;
    places = party->places;
    places[0].order = 0;

    if (n > 1) {
        ratelimit_party_sort(places, n);
    }

    for (i = 0; i < n; i++) {
        if (ratelimit_party_once(places, i)) {
            ratelimit_lock(&places[places[i].order].segment->lock, party->me,
                           places[i].table->lifelines);
        }
    }

    for (i = 0; i < n; i++) {
        if (ratelimit_table_active(places[i].table) != places[i].active) {
            break;
        }
    }

    if (i == n) {
        return 1;
    }

    ratelimit_party_back_off(items, party);

    return 0;
}


/* the order in which all processes lock segments */

static void
ratelimit_party_sort(ratelimit_place_t *places, size_t n)
{
    size_t  i, k;

    for (i = 1; i < n; i++) {

        for (k = i; k > 0; k--) {
            if (!ratelimit_party_before(&places[i],
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
ratelimit_party_before(const ratelimit_place_t *a, const ratelimit_place_t *b)
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


/* whether the i'th segment in order is another one than that before it */

static inline int
ratelimit_party_once(const ratelimit_place_t *places, size_t i)
{
    return i == 0
           || places[places[i].order].segment
              != places[places[i - 1].order].segment;
}


void
ratelimit_party_unlock(ratelimit_place_t *places, size_t n)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        if (ratelimit_party_once(places, i)) {
            ratelimit_unlock(&places[places[i].order].segment->lock);
        }
    }
}
