
/*
 * A decision: all segments that it concerns are held while it looks at all
 * limits, and charges all or none.
 */


#include "store/ratelimit_slot.h"


static void ratelimit_table_find(ratelimit_place_t *place);
static int ratelimit_table_refused(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock);
static void ratelimit_table_lock(ratelimit_item_t *items,
    ratelimit_party_t *party);
static int ratelimit_table_lock_once(ratelimit_item_t *items,
    ratelimit_party_t *party);
static int ratelimit_table_before(const ratelimit_place_t *a,
    const ratelimit_place_t *b);
static void ratelimit_table_unlock(ratelimit_place_t *places, size_t n);
static void ratelimit_table_charge(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);
static void ratelimit_table_mark(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);


int
ratelimit_table_check(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    int                allowed;
    size_t             i;
    ratelimit_party_t  party;

    for (i = 0; i < n; i++) {
        ratelimit_table_place(ratelimit_table_active(places[i].table),
                              &places[i], items[i].rule->period);
    }

    if (ratelimit_table_refused(items, places, n, clock)) {
        return 0;
    }

    party.places = places;
    party.n = n;
    party.clock = clock;
    party.me = me;

    ratelimit_table_lock(items, &party);

    allowed = ratelimit_look(items, n, clock);

    for (i = 0; i < n; i++) {
        if (allowed) {
            ratelimit_table_charge(&items[i], &places[i], &party);

        } else {
            ratelimit_table_mark(&items[i], &places[i], &party);
        }
    }

    ratelimit_table_unlock(places, n);

    return allowed;
}


/*
 * An offender is refused again by reading alone: workers do not wait for one
 * another, and no memory changes hands.
 */

static int
ratelimit_table_refused(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock)
{
    size_t    i, guarded;
    uint64_t  guard;

    guarded = 0;

    for (i = 0; i < n; i++) {

        if (!ratelimit_read_begin(&places[i].segment->lock,
                                  &places[i].ticket))
        {
            return 0;
        }

        places[i].slot = ratelimit_slot_find(&places[i]);

        if (places[i].slot) {
            guard = places[i].slot->id & RATELIMIT_GUARD;
            guarded += (guard == RATELIMIT_GUARD_REFUSED);
        }
    }

    if (guarded == 0) {
        return 0;
    }

    for (i = 0; i < n; i++) {
        items[i].shape = &places[i].active->shape;
        items[i].state = ratelimit_slot_state(places[i].active, places[i].slot,
                                              places[i].word);
    }

    if (ratelimit_look(items, n, clock)) {
        return 0;
    }

    for (i = 0; i < n; i++) {

        if (items[i].verdict.rebase
            || !ratelimit_read_end(&places[i].segment->lock, places[i].ticket))
        {
            return 0;
        }

        if (!items[i].verdict.allowed && places[i].slot) {
            guard = places[i].slot->id & RATELIMIT_GUARD;

            if (guard != RATELIMIT_GUARD_REFUSED) {
                return 0;
            }
        }
    }

    return 1;
}


/* locks all segments of the party and loads the states */

static void
ratelimit_table_lock(ratelimit_item_t *items, ratelimit_party_t *party)
{
    size_t              i;
    ratelimit_place_t  *place;

    while (!ratelimit_table_lock_once(items, party)) { /* void */ }

    for (i = 0; i < party->n; i++) {
        ratelimit_table_find(&party->places[i]);
    }

    for (i = 0; i < party->n; i++) {
        place = &party->places[i];

        if (place->slot == NULL && place->active->older) {
            ratelimit_table_adopt(place, items[i].rule, party);
        }

        if (place->active != place->table) {
            ratelimit_table_restrain(&items[i], place);
        }

        items[i].shape = &place->active->shape;
        items[i].state = ratelimit_slot_state(place->active, place->slot,
                                              place->word);
    }
}


/*
 * Segments are locked in one order by all, each once.  Returns 0 if a table
 * was sealed meanwhile.
 */

static int
ratelimit_table_lock_once(ratelimit_item_t *items, ratelimit_party_t *party)
{
    size_t                i, k, n;
    ratelimit_place_t    *places;
    ratelimit_segment_t  *last;

    n = party->n;
    places = party->places;

    for (i = 0; i < n; i++) {

        for (k = i; k > 0; k--) {
            if (!ratelimit_table_before(&places[i],
                                        &places[places[k - 1].order]))
            {
                break;
            }

            places[k].order = places[k - 1].order;
        }

        places[k].order = i;
    }

    last = NULL;

    for (i = 0; i < n; i++) {
        k = places[i].order;

        if (places[k].segment != last) {
            last = places[k].segment;
            ratelimit_lock(&last->lock, party->me,
                           places[k].active->lifelines);
        }
    }

    for (i = 0; i < n; i++) {

        if (places[i].table->older
            && ratelimit_table_active(places[i].table) != places[i].active)
        {
            ratelimit_table_unlock(places, n);

            for (i = 0; i < n; i++) {
                ratelimit_table_place(ratelimit_table_active(places[i].table),
                                      &places[i], items[i].rule->period);
            }

            return 0;
        }
    }

    return 1;
}


/* addresses may differ between processes, secrets and numbers do not */

static int
ratelimit_table_before(const ratelimit_place_t *a, const ratelimit_place_t *b)
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


static void
ratelimit_table_unlock(ratelimit_place_t *places, size_t n)
{
    size_t                i;
    ratelimit_segment_t  *last;

    last = NULL;

    for (i = 0; i < n; i++) {
        if (places[places[i].order].segment != last) {
            last = places[places[i].order].segment;
            ratelimit_unlock(&last->lock);
        }
    }
}


/* a slot that was found without the lock may be another's by now */

static void
ratelimit_table_find(ratelimit_place_t *place)
{
    if (place->slot
        && (place->slot->id & RATELIMIT_FINGERPRINT) == place->fingerprint)
    {
        return;
    }

    place->slot = ratelimit_slot_find(place);
}


static void
ratelimit_table_charge(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    uint64_t            guard;
    ratelimit_table_t  *table;

    if (item->cost == 0 && !item->verdict.rebase) {
        return;
    }

    table = place->active;

    guard = RATELIMIT_GUARD_USED;

    if (place->slot == NULL) {
        guard = RATELIMIT_GUARD_NEW;

        ratelimit_slot_reserve(place, party);
        item->state = ratelimit_slot_state(table, place->slot, place->word);
    }

    table->algorithm->charge(&table->shape, item->rule, item->state,
                             party->clock, item->cost);

    if (table->nblocks) {
        ratelimit_block(table, place->slot->word)->used =
                                      party->clock->now / RATELIMIT_SECOND;

    } else {
        ratelimit_slot_pack(table, place->slot, item->state);
    }

    ratelimit_slot_name(place,
                        ratelimit_table_class_of(place, item->rule, party->me),
                        guard);
}


/* a refusal costs nothing, but it is remembered who was refused */

static void
ratelimit_table_mark(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    uint64_t  cost;

    if (item->verdict.rebase) {
        cost = item->cost;
        item->cost = 0;
        ratelimit_table_charge(item, place, party);
        item->cost = cost;
    }

    if (!item->verdict.allowed && place->slot) {
        ratelimit_slot_guard(place->slot, RATELIMIT_GUARD_REFUSED);
    }
}


void
ratelimit_table_refund(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    size_t              i;
    ratelimit_table_t  *table;
    ratelimit_party_t   party;

    for (i = 0; i < n; i++) {
        ratelimit_table_place(ratelimit_table_active(places[i].table),
                              &places[i], items[i].rule->period);
    }

    party.places = places;
    party.n = n;
    party.clock = clock;
    party.me = me;

    ratelimit_table_lock(items, &party);

    for (i = 0; i < n; i++) {

        if (places[i].slot == NULL || items[i].cost == 0) {
            continue;
        }

        table = places[i].active;

        table->algorithm->refund(&table->shape, items[i].rule, items[i].state,
                                 items[i].verdict.stamp, items[i].cost);

        if (table->nblocks == 0) {
            ratelimit_slot_pack(table, places[i].slot, items[i].state);
        }
    }

    ratelimit_table_unlock(places, n);
}
