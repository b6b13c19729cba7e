
/*
 * A decision: all segments that it concerns are held while it looks at all
 * limits, and charges all or none.
 */


#include "store/ratelimit_slot.h"


static int ratelimit_table_check_one(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);
static void ratelimit_table_find(ratelimit_place_t *place);
static inline int ratelimit_table_refused(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock);
static inline int ratelimit_table_guarded(const ratelimit_place_t *place);
static int ratelimit_table_refuse(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock);
static void ratelimit_table_lock(ratelimit_item_t *items,
    ratelimit_party_t *party);
static int ratelimit_table_lock_once(ratelimit_item_t *items,
    ratelimit_party_t *party);
static void ratelimit_table_sort(ratelimit_place_t *places, size_t n);
static int ratelimit_table_before(const ratelimit_place_t *a,
    const ratelimit_place_t *b);
static inline int ratelimit_table_once(const ratelimit_place_t *places,
    size_t i);
static void ratelimit_table_unlock(ratelimit_place_t *places, size_t n);
static void ratelimit_table_charge(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);
static void ratelimit_table_mark(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);
static inline void ratelimit_table_prepare(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party);
static inline void ratelimit_table_commit(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_party_t *party, uint64_t guard);


int
ratelimit_table_check(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    int                allowed;
    size_t             i;
    ratelimit_party_t  party;

    party.places = places;
    party.n = n;
    party.clock = clock;
    party.me = me;

    if (n == 1 && places[0].table->older == NULL) {
        return ratelimit_table_check_one(items, places, &party);
    }

    for (i = 0; i < n; i++) {
        ratelimit_table_place(ratelimit_table_active(places[i].table),
                              &places[i], items[i].rule->period);
    }

    if (ratelimit_table_refused(items, places, n, clock)) {
        return 0;
    }

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


/* the same for one limit, which is what most requests have */

static int
ratelimit_table_check_one(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    int                 allowed;
    ratelimit_table_t  *table;

    table = place->table;

    ratelimit_table_place(table, place, item->rule->period);

    if (ratelimit_table_refused(item, place, 1, party->clock)) {
        return 0;
    }

    ratelimit_lock(&place->segment->lock, party->me, table->lifelines);

    ratelimit_table_find(place);

    item->shape = &table->shape;
    item->state = ratelimit_slot_state(table, place->slot, place->word);

    table->algorithm->look(item->shape, item->rule, item->state, party->clock,
                           item->cost, &item->verdict);

    allowed = item->verdict.allowed;

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
    size_t n, const ratelimit_clock_t *clock)
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

    return guarded && ratelimit_table_refuse(items, places, n, clock);
}


static inline int
ratelimit_table_guarded(const ratelimit_place_t *place)
{
    return place->slot
           && (place->slot->id & RATELIMIT_GUARD) == RATELIMIT_GUARD_REFUSED;
}


static int
ratelimit_table_refuse(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock)
{
    size_t  i;

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

        /* who is refused for the first time is to be marked */

        if (!items[i].verdict.allowed && places[i].slot
            && !ratelimit_table_guarded(&places[i]))
        {
            return 0;
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


/* returns 0 if a table was sealed meanwhile */

static int
ratelimit_table_lock_once(ratelimit_item_t *items, ratelimit_party_t *party)
{
    size_t              i, n;
    ratelimit_place_t  *places;

    n = party->n;
    places = party->places;
    places[0].order = 0;

    if (n > 1) {
        ratelimit_table_sort(places, n);
    }

    for (i = 0; i < n; i++) {
        if (ratelimit_table_once(places, i)) {
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

    ratelimit_table_unlock(places, n);

    for (i = 0; i < n; i++) {
        ratelimit_table_place(ratelimit_table_active(places[i].table),
                              &places[i], items[i].rule->period);
    }

    return 0;
}


/* the order in which all processes lock segments */

static void
ratelimit_table_sort(ratelimit_place_t *places, size_t n)
{
    size_t  i, k;

    for (i = 1; i < n; i++) {

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


/* whether the i'th segment in order is another one than that before it */

static inline int
ratelimit_table_once(const ratelimit_place_t *places, size_t i)
{
    return i == 0
           || places[places[i].order].segment
              != places[places[i - 1].order].segment;
}


static void
ratelimit_table_unlock(ratelimit_place_t *places, size_t n)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        if (ratelimit_table_once(places, i)) {
            ratelimit_unlock(&places[places[i].order].segment->lock);
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
    uint64_t  guard;

    if (item->cost == 0 && !item->verdict.rebase) {
        return;
    }

    guard = place->slot ? RATELIMIT_GUARD_USED : RATELIMIT_GUARD_NEW;

    ratelimit_table_prepare(item, place, party);

    place->active->algorithm->charge(item->shape, item->rule, item->state,
                                     party->clock, item->cost);

    ratelimit_table_commit(item, place, party, guard);
}


/* a refusal costs nothing, but it is remembered who was refused */

static void
ratelimit_table_mark(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    uint64_t  guard;

    guard = item->verdict.allowed ? RATELIMIT_GUARD_USED
                                  : RATELIMIT_GUARD_REFUSED;

    if (item->verdict.rebase || item->insist) {
        ratelimit_table_prepare(item, place, party);
        ratelimit_settle(item, party->clock);
        ratelimit_table_commit(item, place, party, guard);

    } else if (!item->verdict.allowed && place->slot) {
        ratelimit_slot_guard(place->slot, guard);
    }
}


/* a state never seen needs a slot before it can be written */

static inline void
ratelimit_table_prepare(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    if (place->slot == NULL) {
        ratelimit_slot_reserve(place, party);
        item->state = ratelimit_slot_state(place->active, place->slot,
                                           place->word);
    }
}


static inline void
ratelimit_table_commit(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_party_t *party, uint64_t guard)
{
    ratelimit_table_t  *table;

    table = place->active;

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
                                 clock, items[i].verdict.stamp,
                                 items[i].cost);

        if (table->nblocks == 0) {
            ratelimit_slot_pack(table, places[i].slot, items[i].state);
        }
    }

    ratelimit_table_unlock(places, n);
}
