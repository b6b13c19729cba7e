
/*
 * A decision: all segments that it concerns are held while it looks at all
 * limits, and charges all or none.
 */


#include "store/ratelimit_party.h"


static int ratelimit_table_check_one(ratelimit_item_t *item,
    ratelimit_place_t *place, ratelimit_party_t *party);
static inline int ratelimit_table_refused(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party);
static inline int ratelimit_table_guarded(const ratelimit_place_t *place);
static int ratelimit_table_refuse(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party);
static void ratelimit_table_charge(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);
static void ratelimit_table_mark(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);
static int ratelimit_table_prepare_all(ratelimit_item_t *items,
    ratelimit_party_t *party, int allowed);
static inline int ratelimit_table_prepare(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party, int allowed);
static inline void ratelimit_table_commit(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party,
    uint64_t refused);


int
ratelimit_table_check(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    int                allowed;
    size_t             i;
    ratelimit_party_t  party;

    party.places = places;
    party.n = n;
    party.clock = *clock;
    party.me = me;

    if (n == 1 && places[0].table->older == NULL) {
        return ratelimit_table_check_one(items, places, &party);
    }

    ratelimit_party_place(items, places, n);

    if (ratelimit_table_refused(items, places, n, &party)) {
        return 0;
    }

    do {
        ratelimit_party_lock(items, &party);

        allowed = ratelimit_look(items, n, &party.clock);

        if (ratelimit_table_prepare_all(items, &party, allowed)) {
            break;
        }

        ratelimit_party_back_off(items, &party);

    } while (1);

    for (i = 0; i < n; i++) {
        if (allowed) {
            ratelimit_table_charge(&items[i], &places[i], &party);

        } else {
            ratelimit_table_mark(&items[i], &places[i], &party);
        }
    }

    ratelimit_party_unlock(places, n);

    return allowed;
}


/* the same for one limit, which is what most requests have */

static int
ratelimit_table_check_one(ratelimit_item_t *item, ratelimit_place_t *place,
    ratelimit_party_t *party)
{
    int                 allowed;
    ratelimit_table_t  *table;

    table = place->table;

    ratelimit_table_place(table, place, item->rule->period);

    if (ratelimit_table_refused(item, place, 1, party)) {
        return 0;
    }

    do {
        ratelimit_lock(&place->segment->lock, party->me, table->lifelines);
        ratelimit_party_tick(place->segment, &party->clock);
        ratelimit_party_find(place);

        item->shape = &table->shape;
        item->state = ratelimit_slot_state(table, place->slot, place->word);

        table->algorithm->look(item->shape, item->rule, item->state,
                               &party->clock, item->cost, &item->verdict);

        allowed = item->verdict.allowed;

        if (ratelimit_table_prepare(item, place, party, allowed)) {
            break;
        }

        place->order = 0;
        ratelimit_party_back_off(item, party);

    } while (1);

    if (allowed) {
        ratelimit_table_charge(item, place, party);

    } else {
        ratelimit_table_mark(item, place, party);
    }

    ratelimit_unlock(&place->segment->lock);

    return allowed;
}


/*
 * An offender is refused again by reading alone: workers do not wait for one
 * another, and no memory changes hands.
 */

static inline int
ratelimit_table_refused(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, ratelimit_party_t *party)
{
    size_t  i, guarded;

    guarded = 0;

    for (i = 0; i < n; i++) {

        if (items[i].insist
            || !ratelimit_read_begin(&places[i].segment->lock,
                                     &places[i].ticket))
        {
            return 0;
        }

        places[i].slot = ratelimit_slot_find(&places[i]);

        guarded += ratelimit_table_guarded(&places[i]);
    }

    return guarded && ratelimit_table_refuse(items, places, n, party);
}


static inline int
ratelimit_table_guarded(const ratelimit_place_t *place)
{
    uint64_t  epoch;

    if (place->slot == NULL || !(place->slot->id & RATELIMIT_REFUSED)) {
        return 0;
    }

    epoch = ratelimit_slot_epoch(place->active, place->segment);

    return ((place->slot->id >> RATELIMIT_EPOCH_SHIFT)
            & (RATELIMIT_EPOCHS - 1))
           == epoch;
}


static int
ratelimit_table_refuse(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, ratelimit_party_t *party)
{
    size_t  i;

    for (i = 0; i < n; i++) {

        /* who was not looked for in older tables may be there */

        if (places[i].slot == NULL && places[i].active->older) {
            return 0;
        }

        ratelimit_party_late(places[i].segment, &party->clock);

        items[i].shape = &places[i].active->shape;
        items[i].state = ratelimit_slot_state(places[i].active, places[i].slot,
                                              places[i].word);
    }

    if (ratelimit_look(items, n, &party->clock)) {
        return 0;
    }

    for (i = 0; i < n; i++) {

        if (items[i].verdict.rebase
            || !ratelimit_read_end(&places[i].segment->lock, places[i].ticket))
        {
            return 0;
        }

        /* who is refused for the first time in an epoch is to be marked */

        if (!items[i].verdict.allowed && places[i].slot
            && !ratelimit_table_guarded(&places[i]))
        {
            return 0;
        }
    }

    return 1;
}


static void
ratelimit_table_charge(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    if (item->cost == 0 && !item->verdict.rebase) {
        return;
    }

    place->active->algorithm->charge(item->shape, item->rule, item->state,
                                     &party->clock, item->cost);

    ratelimit_table_commit(item, place, party, 0);
}


/* a refusal costs nothing, but it is remembered who was refused */

static void
ratelimit_table_mark(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    uint64_t  refused;

    refused = item->verdict.allowed ? 0 : RATELIMIT_REFUSED;

    if (item->verdict.rebase || item->insist) {
        ratelimit_settle(item, &party->clock);
        ratelimit_table_commit(item, place, party, refused);

    } else if (refused && place->slot) {
        ratelimit_slot_name(place, ratelimit_slot_class(place->slot), refused);
    }
}


/* all that will be written has a slot before anything is */

static int
ratelimit_table_prepare_all(ratelimit_item_t *items, ratelimit_party_t *party,
    int allowed)
{
    size_t  i;

    for (i = 0; i < party->n; i++) {
        if (!ratelimit_table_prepare(&items[i], &party->places[i], party,
                                     allowed))
        {
            return 0;
        }
    }

    return 1;
}


static inline int
ratelimit_table_prepare(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party, int allowed)
{
    if (place->slot
        || (!item->verdict.rebase && !(allowed ? item->cost : item->insist)))
    {
        return 1;
    }

    if (!ratelimit_slot_reserve(place, party)) {
        return 0;
    }

    item->state = ratelimit_slot_state(place->active, place->slot,
                                       place->word);

    return 1;
}


static inline void
ratelimit_table_commit(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party, uint64_t refused)
{
    if (place->active->nblocks == 0) {
        ratelimit_slot_pack(place->active, place->slot, item->state);
    }

    ratelimit_slot_name(place,
                        ratelimit_table_class_of(place, item->rule, party->me),
                        refused);
}


void
ratelimit_table_refund(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    size_t              i;
    ratelimit_table_t  *table;
    ratelimit_party_t   party;

    party.places = places;
    party.n = n;
    party.clock = *clock;
    party.me = me;

    ratelimit_party_place(items, places, n);
    ratelimit_party_lock(items, &party);

    for (i = 0; i < n; i++) {

        if (places[i].slot == NULL || items[i].cost == 0) {
            continue;
        }

        table = places[i].active;

        table->algorithm->refund(&table->shape, items[i].rule, items[i].state,
                                 &party.clock, items[i].verdict.stamp,
                                 items[i].cost);

        if (table->nblocks == 0) {
            ratelimit_slot_pack(table, places[i].slot, items[i].state);
        }
    }

    ratelimit_party_unlock(places, n);
}
