
/*
 * What stands in a slot, and who has to go when a new key finds none free.
 */


#include <string.h>

#include "store/ratelimit_slot.h"


/* empty slots of a bucket that are kept for keys that need them more */
#define RATELIMIT_NEARLY_FULL   3


static ratelimit_slot_t *ratelimit_slot_empty(
    const ratelimit_place_t *place, const ratelimit_party_t *party);
static ratelimit_slot_t *ratelimit_slot_make_room(ratelimit_place_t *place,
    const ratelimit_party_t *party);


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
    ratelimit_rule_t    rule;
    ratelimit_class_t  *class;
    ratelimit_state_t   words[2], *state;

    class = &table->header->classes[ratelimit_slot_class(slot)];

    /* the common case, as the algorithm would compute it */

    if (table->nblocks == 0 && class->period
        && table->shape.algorithm == RATELIMIT_SLIDING_WINDOW)
    {
        return ((slot->word >> (2 * RATELIMIT_SMALL_WINDOW_BITS)) + 2)
               * class->period;
    }

    state = ratelimit_slot_state(table, slot, words);

    /* a window of fixed length says itself when it ends */

    if (table->shape.algorithm == RATELIMIT_FIXED_WINDOW) {
        return state[0];
    }

    if (class->period == 0) {

        /* one class too many: the numbers of its windows tell no time */

        return table->shape.algorithm == RATELIMIT_SLIDING_WINDOW
               ? UINT64_MAX : state[0] + table->header->horizon;
    }

    /* this is all that expires looks at */

    rule.limit = class->limit;
    rule.period = class->period;
    rule.ceiling = RATELIMIT_MAX_LIMIT;

    return table->algorithm->expires(&table->shape, &rule, state);
}


unsigned
ratelimit_slot_worth(const ratelimit_table_t *table,
    const ratelimit_segment_t *segment, const ratelimit_slot_t *slot)
{
    uint64_t  age;

    age = (ratelimit_slot_epoch(table, segment)
           - (slot->id >> RATELIMIT_EPOCH_SHIFT))
          & (RATELIMIT_EPOCHS - 1);

    return (slot->id & RATELIMIT_REFUSED) ? 2 * RATELIMIT_EPOCHS - age
                                          : RATELIMIT_EPOCHS - age;
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


int
ratelimit_slot_reserve(ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    uint64_t            number;
    ratelimit_slot_t   *slot;
    ratelimit_table_t  *table;

    number = 0;
    slot = ratelimit_slot_empty(place, party);

    if (slot == NULL) {
        slot = ratelimit_slot_make_room(place, party);
        number = slot->word;

        __atomic_store_n(&slot->id, 0, __ATOMIC_RELEASE);
    }

    table = place->active;

    if (table->nblocks == 0) {
        number = 0;

    } else if (ratelimit_block(table, number) == NULL) {
        number = ratelimit_block_take(table, slot, party);

        if (number == 0) {
            return 0;
        }
    }

    place->slot = slot;
    place->segment->inserts++;

    __atomic_store_n(&slot->word, number, __ATOMIC_RELEASE);

    if (number) {
        ratelimit_block_clear(table, number);
    }

    return 1;
}


/*
 * An empty slot of the first bucket, so that most keys are found there; of the
 * emptier one if the first is nearly full, so that hardly any key finds none.
 */

static ratelimit_slot_t *
ratelimit_slot_empty(const ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    unsigned           i, k, n[2];
    ratelimit_slot_t  *slot[2];

    for (k = 0; k < 2; k++) {
        n[k] = 0;
        slot[k] = NULL;

        /* the one in front, where keys are looked for first */

        for (i = RATELIMIT_WAYS; i > 0; i--) {
            if (place->bucket[k][i - 1].id == 0
                && !ratelimit_slot_in_use(party, &place->bucket[k][i - 1]))
            {
                slot[k] = &place->bucket[k][i - 1];
                n[k]++;
            }
        }

        if (n[k] > RATELIMIT_NEARLY_FULL) {
            return slot[k];
        }
    }

    return n[0] >= n[1] ? slot[0] : slot[1];
}


/* what has run out goes first, then what is worth least */

static ratelimit_slot_t *
ratelimit_slot_make_room(ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    unsigned           i, worth, least;
    ratelimit_slot_t  *slot, *victim;

    least = 0;
    victim = NULL;

    for (i = 0; i < 2 * RATELIMIT_WAYS; i++) {
        slot = &place->bucket[i / RATELIMIT_WAYS][i % RATELIMIT_WAYS];

        if (party->n > 1 && ratelimit_slot_in_use(party, slot)) {
            continue;
        }

        if (ratelimit_slot_expires(place->active, slot) <= party->clock.now) {
            return slot;
        }

        worth = ratelimit_slot_worth(place->active, place->segment, slot);

        if (victim == NULL || worth < least) {
            victim = slot;
            least = worth;
        }
    }

    if (victim == NULL) {

        /* more limits of one request than ways: one of them loses */

        victim = place->bucket[0];
    }

    ratelimit_table_note_eviction(place);

    return victim;
}
