
/*
 * What stands in a slot, and who has to go when a new key finds none free.
 */


#include <string.h>

#include "store/ratelimit_slot.h"


/* empty slots of a bucket that are kept for keys that need them more */
#define RATELIMIT_NEARLY_FULL   3


static uint64_t ratelimit_slot_age(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot);
static ratelimit_slot_t *ratelimit_slot_empty(
    const ratelimit_place_t *place);
static ratelimit_slot_t *ratelimit_slot_make_room(ratelimit_place_t *place,
    const ratelimit_party_t *party);
static void ratelimit_slot_forget_use(ratelimit_slot_t *bucket);


/* as large as any algorithm looks at */

const ratelimit_state_t  ratelimit_slot_nothing[RATELIMIT_NOTHING];


/* a bucket counts also what drips back, for at most three periods */

uint64_t
ratelimit_slot_small(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule)
{
    uint64_t  drip;

    if (shape->algorithm == RATELIMIT_SLIDING_WINDOW) {
        return RATELIMIT_SMALL_WINDOW;
    }

    drip = rule->limit * (3 + rule->wait / rule->period);

    return drip < RATELIMIT_SMALL_COUNT ? RATELIMIT_SMALL_COUNT - drip : 0;
}


uint64_t
ratelimit_slot_most(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule)
{
    if (table->nblocks == 0) {
        return ratelimit_slot_small(&table->shape, rule);
    }

    if (table->shape.algorithm == RATELIMIT_SLIDING_LOG) {
        return table->shape.ring - 1;
    }

    if (table->shape.algorithm == RATELIMIT_SLIDING_WINDOW
        && table->shape.width == sizeof(uint16_t))
    {
        return UINT16_MAX;
    }

    return RATELIMIT_MAX_LIMIT;
}


uint64_t
ratelimit_slot_expires(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot)
{
    uint64_t            class;
    ratelimit_rule_t    rule;
    ratelimit_class_t  *known;
    ratelimit_state_t   words[2], *state;

    state = ratelimit_slot_state(table, slot, words);
    class = (slot->id >> RATELIMIT_CLASS_SHIFT) & (RATELIMIT_CLASSES - 1);

    if (class == 0) {

        /* one class too many: the numbers of its windows tell no time */

        return table->shape.algorithm == RATELIMIT_SLIDING_WINDOW
               ? UINT64_MAX : state[0] + table->header->horizon;
    }

    known = &table->header->classes[class];

    rule.limit = known->limit;
    rule.period = known->period;
    rule.capacity = known->capacity;

    return table->algorithm->expires(&table->shape, &rule, state);
}


/* when it was used, as far as the slot can tell: the smaller the older */

static uint64_t
ratelimit_slot_age(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot)
{
    ratelimit_block_t  *block;

    if (table->nblocks == 0) {
        return slot->word >> RATELIMIT_SMALL_COUNT_BITS;
    }

    block = ratelimit_block(table, slot->word);

    return block ? block->used : 0;
}


int
ratelimit_slot_in_use(const ratelimit_party_t *party,
    const ratelimit_slot_t *slot)
{
    size_t  i;

    for (i = 0; i < party->n; i++) {
        if (party->places[i].slot == slot) {
            return 1;
        }
    }

    return 0;
}


void
ratelimit_slot_reserve(ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    uint64_t            number;
    ratelimit_slot_t   *slot;
    ratelimit_table_t  *table;

    number = 0;
    slot = ratelimit_slot_empty(place);

    if (slot == NULL) {
        slot = ratelimit_slot_make_room(place, party);
        number = slot->word;

        __atomic_store_n(&slot->id, 0, __ATOMIC_RELEASE);
    }

    place->slot = slot;
    table = place->active;

    if (table->nblocks == 0) {
        number = 0;

    } else if (ratelimit_block(table, number) == NULL) {
        number = ratelimit_block_take(table, slot, party);
    }

    __atomic_store_n(&slot->word, number, __ATOMIC_RELEASE);

    if (number) {
        ratelimit_block_clear(table, number);
    }
}


/*
 * An empty slot of the first bucket, so that most keys are found there; of the
 * emptier one if the first is nearly full, so that hardly any key finds none.
 */

static ratelimit_slot_t *
ratelimit_slot_empty(const ratelimit_place_t *place)
{
    unsigned           i, k, n[2];
    ratelimit_slot_t  *slot[2];

    for (k = 0; k < 2; k++) {
        n[k] = 0;
        slot[k] = NULL;

        for (i = 0; i < RATELIMIT_WAYS; i++) {
            if (place->bucket[k][i].id == 0) {
                slot[k] = &place->bucket[k][i];
                n[k]++;
            }
        }

        if (n[k] > RATELIMIT_NEARLY_FULL) {
            return slot[k];
        }
    }

    return n[0] >= n[1] ? slot[0] : slot[1];
}


/*
 * What has run out goes first, then what was used once, then what was used
 * again, an offender last; of equals the one that was used longest ago.
 */

static ratelimit_slot_t *
ratelimit_slot_make_room(ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    unsigned           i;
    uint64_t           guard, age, victim_guard, victim_age;
    ratelimit_slot_t  *slot, *victim;

    victim = NULL;
    victim_age = 0;
    victim_guard = 0;

    for (i = 0; i < 2 * RATELIMIT_WAYS; i++) {
        slot = &place->bucket[i / RATELIMIT_WAYS][i % RATELIMIT_WAYS];

        if (ratelimit_slot_in_use(party, slot)) {
            continue;
        }

        if (ratelimit_slot_expires(place->active, slot) <= party->clock->now) {
            return slot;
        }

        guard = slot->id & RATELIMIT_GUARD;
        age = ratelimit_slot_age(place->active, slot);

        if (victim == NULL || guard < victim_guard
            || (guard == victim_guard && age < victim_age))
        {
            victim = slot;
            victim_age = age;
            victim_guard = guard;
        }
    }

    if (victim == NULL) {

        /* more limits of one request than ways: one of them loses */

        victim = place->bucket[0];
    }

    if (victim_guard == RATELIMIT_GUARD_USED) {
        ratelimit_slot_forget_use(place->bucket[0]);
        ratelimit_slot_forget_use(place->bucket[1]);
    }

    ratelimit_table_note_eviction(place->active);

    return victim;
}


/* all were used again: who will be used again from now on is to stay */

static void
ratelimit_slot_forget_use(ratelimit_slot_t *bucket)
{
    unsigned  i;

    for (i = 0; i < RATELIMIT_WAYS; i++) {
        if ((bucket[i].id & RATELIMIT_GUARD) == RATELIMIT_GUARD_USED) {
            ratelimit_slot_guard(&bucket[i], RATELIMIT_GUARD_NEW);
        }
    }
}
