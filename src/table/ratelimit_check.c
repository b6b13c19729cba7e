
/*
 * A decision: all segments that it concerns are held while it looks at all
 * limits, and charges all or none.
 */


#include "core/ratelimit_decide.h"
#include "table/ratelimit_party.h"


/* no decision: others are in the way */
#define RATELIMIT_BLOCKED  -1
#define RATELIMIT_UNKNOWN  -1


static int ratelimit_table_run(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party);
static ratelimit_inline int ratelimit_table_one_key(
    const ratelimit_place_t *places, size_t n);
static ratelimit_inline int ratelimit_table_check_key(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party);
static int ratelimit_table_check_all(ratelimit_item_t *items,
    ratelimit_party_t *party);
static ratelimit_inline int ratelimit_table_peek(ratelimit_place_t *places,
    size_t n, int *known);
static ratelimit_inline int ratelimit_table_refuse(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party);
static ratelimit_inline int ratelimit_table_look(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party);
static ratelimit_inline int ratelimit_table_prepare(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party,
    int allowed);
static ratelimit_inline void ratelimit_table_finish(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party,
    int allowed);
static ratelimit_inline void ratelimit_table_charge(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);
static void ratelimit_table_mark(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);
static ratelimit_inline void ratelimit_table_commit(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party,
    uint64_t refused);
static ratelimit_inline void ratelimit_table_keep(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party, uint64_t asked);


int
ratelimit_table_check(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    ratelimit_party_t  party;

    party.places = places;
    party.n = n;
    party.clock = *clock;
    party.me = me;
    party.brief = 0;

    return ratelimit_table_run(items, places, n, &party);
}


int
ratelimit_table_decide_any(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    ratelimit_party_t  party;

    party.places = places;
    party.n = n;
    party.clock = *clock;
    party.me = me;
    party.brief = 1;

    return ratelimit_table_run(items, places, n, &party);
}


static int
ratelimit_table_run(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, ratelimit_party_t *party)
{
    int  allowed;

    if (ratelimit_table_one_key(places, n)) {
        allowed = ratelimit_table_check_key(items, places, n, party);

        if (allowed != RATELIMIT_BLOCKED) {
            return allowed;
        }
    }

    return ratelimit_table_check_all(items, party);
}


/* all periods of a key are in one segment; most requests ask for no more */

static ratelimit_inline int
ratelimit_table_one_key(const ratelimit_place_t *places, size_t n)
{
    size_t  i;

    for (i = 1; i < n; i++) {
        if (places[i].table != places[0].table
            || places[i].hash.hi != places[0].hash.hi)
        {
            return 0;
        }
    }

    return places[0].table->older == NULL;
}


static ratelimit_inline int
ratelimit_table_check_key(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, ratelimit_party_t *party)
{
    int                   allowed, found, known;
    size_t                i;
    uint64_t              number;
    ratelimit_table_t    *table;
    ratelimit_segment_t  *segment;

    table = places[0].table;
    number = ratelimit_slot_segment(table, &places[0].hash);
    segment = &table->segments[number];

    for (i = 0; i < n; i++) {
        ratelimit_slot_aim(table, &places[i], number, items[i].rule->period);
    }

    found = ratelimit_table_peek(places, n, &known);

    if (known && ratelimit_table_refuse(items, places, n, party)) {
        return 0;
    }

    /* if nobody came in between, all is where it was found */

    if (found == RATELIMIT_UNKNOWN
        || !ratelimit_lock_unchanged(&segment->lock, places[0].ticket,
                                     party->me))
    {
        ratelimit_lock(&segment->lock, party->me, table->lifelines);
        found = 1;

        for (i = 0; i < n; i++) {
            places[i].slot = ratelimit_slot_find(&places[i]);
            found &= (places[i].slot != NULL);
        }
    }

    ratelimit_party_tick(segment, &party->clock);

    allowed = ratelimit_table_look(items, places, n, party);

    if (found || ratelimit_table_prepare(items, places, n, party, allowed)) {
        ratelimit_table_finish(items, places, n, party, allowed);

    } else {
        allowed = RATELIMIT_BLOCKED;
    }

    ratelimit_unlock(&segment->lock);

    return allowed;
}


/* keys in several segments, or tables, or in one that follows another */

static int
ratelimit_table_check_all(ratelimit_item_t *items, ratelimit_party_t *party)
{
    int                 allowed, known;
    size_t              n;
    ratelimit_place_t  *places;

    n = party->n;
    places = party->places;

    ratelimit_party_place(items, places, n);

    (void) ratelimit_table_peek(places, n, &known);

    if (known && ratelimit_table_refuse(items, places, n, party)) {
        return 0;
    }

    ratelimit_party_lock(items, party);

    allowed = ratelimit_table_look(items, places, n, party);

    while (!ratelimit_table_prepare(items, places, n, party, allowed)) {
        ratelimit_party_back_off(items, party);
        ratelimit_party_lock(items, party);

        allowed = ratelimit_table_look(items, places, n, party);
    }

    ratelimit_table_finish(items, places, n, party, allowed);
    ratelimit_party_unlock(places, n);

    return allowed;
}


/*
 * Looks for all slots without a lock: returns whether all were found, or that
 * this is unknown because somebody is writing there.  One of them may be known
 * to be refused.
 */

static ratelimit_inline int
ratelimit_table_peek(ratelimit_place_t *places, size_t n, int *known)
{
    int                 found;
    size_t              i;
    ratelimit_place_t  *place;

    *known = 0;
    found = 1;

    for (i = 0; i < n; i++) {
        place = &places[i];

        if (!ratelimit_read_begin(&place->segment->lock, &place->ticket)) {
            *known = 0;
            return RATELIMIT_UNKNOWN;
        }

        place->slot = ratelimit_slot_find(place);

        *known |= place->slot
                  && ratelimit_slot_guarded(place->slot, place->active,
                                            place->segment);
        found &= (place->slot != NULL);
    }

    return found;
}


/*
 * An offender is refused again by reading alone: workers do not wait for one
 * another, and no memory changes hands.
 */

static ratelimit_inline int
ratelimit_table_refuse(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party)
{
    size_t              i;
    ratelimit_place_t  *place;

    for (i = 0; i < n; i++) {
        place = &places[i];

        /* who was not looked for in older tables may be there */

        if (items[i].insist || (place->slot == NULL && place->active->older)) {
            return 0;
        }

        ratelimit_party_late(place->segment, &party->clock);
    }

    if (ratelimit_table_look(items, places, n, party)) {
        return 0;
    }

    for (i = 0; i < n; i++) {
        place = &places[i];

        ratelimit_table_keep(&items[i], place, party, items[i].cost);

        if (items[i].verdict.rebase
            || !ratelimit_read_end(&place->segment->lock, place->ticket))
        {
            return 0;
        }

        /* who is refused for the first time in an epoch is to be marked */

        if (!items[i].verdict.allowed && place->slot
            && !ratelimit_slot_guarded(place->slot, place->active,
                                       place->segment))
        {
            return 0;
        }
    }

    return 1;
}


static ratelimit_inline int
ratelimit_table_look(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party)
{
    int                 allowed;
    size_t              i;
    ratelimit_item_t   *item;
    ratelimit_table_t  *table;
    ratelimit_place_t  *place;

    allowed = 1;

    for (i = 0; i < n; i++) {
        item = &items[i];
        place = &places[i];
        table = place->active;

        item->shape = &table->shape;
        item->state = ratelimit_slot_state(table, place->slot, place->state);
        item->verdict.brief = party->brief & table->brief;

        table->algorithm->look(item->shape, item->rule, item->state,
                               &party->clock, item->cost, &item->verdict);

        allowed &= item->verdict.allowed;
    }

    return allowed;
}


/* all that will be written has a slot before anything is */

static ratelimit_inline int
ratelimit_table_prepare(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party,
    int allowed)
{
    size_t              i;
    ratelimit_item_t   *item;
    ratelimit_place_t  *place;

    for (i = 0; i < n; i++) {
        item = &items[i];
        place = &places[i];

        if (place->slot
            || (!item->verdict.rebase
                && !(allowed ? item->cost : item->insist)))
        {
            continue;
        }

        if (!ratelimit_slot_reserve(place, party)) {
            return 0;
        }

        item->state = ratelimit_slot_state(place->active, place->slot,
                                           place->state);
    }

    return 1;
}


static ratelimit_inline void
ratelimit_table_finish(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, ratelimit_party_t *party,
    int allowed)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        if (allowed) {
            ratelimit_table_charge(&items[i], &places[i], party);

        } else {
            ratelimit_table_mark(&items[i], &places[i], party);
        }
    }
}


static ratelimit_inline void
ratelimit_table_charge(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    if (item->cost == 0 && !item->verdict.rebase) {
        ratelimit_table_keep(item, place, party, 0);
        return;
    }

    place->active->algorithm->charge(item->shape, item->rule, item->state,
                                     &party->clock, item->cost,
                                     &item->verdict);

    ratelimit_table_commit(item, place, party, 0);
    ratelimit_table_keep(item, place, party, 0);
}


/* a refusal costs nothing, but it is remembered who was refused */

static void
ratelimit_table_mark(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    uint64_t  refused, asked;

    refused = item->verdict.allowed ? 0 : RATELIMIT_REFUSED;
    asked = item->cost;

    if (item->verdict.rebase || item->insist) {
        asked = ratelimit_item_settle(item, &party->clock);
        ratelimit_table_commit(item, place, party, refused);

    } else if (refused && place->slot) {
        ratelimit_slot_name(place, ratelimit_slot_class(place->slot->id),
                            refused);
    }

    ratelimit_table_keep(item, place, party, asked);
}


static ratelimit_inline void
ratelimit_table_commit(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party, uint64_t refused)
{
    if (place->active->small) {
        ratelimit_slot_pack(place->active->shape.algorithm, place->slot,
                            item->state);
    }

    ratelimit_slot_name(place,
                        ratelimit_table_class_of(place, item->rule, party->me),
                        refused);
}


/* what explain needs; some of the cost may be in the state already */

static ratelimit_inline void
ratelimit_table_keep(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party, uint64_t asked)
{
    if (!item->verdict.brief) {
        place->active->algorithm->describe(item->shape, item->rule,
                                           item->state, &party->clock, asked,
                                           &item->verdict);
        return;
    }

    if (item->state != place->state) {
        memcpy(place->state, item->state, sizeof(place->state));
    }

    place->asked = asked;
    place->clock = party->clock;
}
