
/*
 * What can stand in a slot, and a slot for a new key.
 */


#include "table/ratelimit_slot.h"


/* empty slots of a bucket that are kept for keys that need them more */
#define RATELIMIT_NEARLY_FULL   3


static inline void ratelimit_slot_clear(const ratelimit_slot_t *slot,
    size_t size);
static ratelimit_slot_t *ratelimit_slot_empty(
    const ratelimit_place_t *place, const ratelimit_party_t *party);
static ratelimit_slot_t *ratelimit_slot_make_room(ratelimit_place_t *place,
    const ratelimit_party_t *party, uint64_t *number);


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
    if (table->small) {
        return ratelimit_slot_small(&table->shape, rule);
    }

    return ratelimit_shape_most(&table->shape);
}


int
ratelimit_slot_reserve(ratelimit_place_t *place,
    const ratelimit_party_t *party)
{
    uint64_t            number;
    ratelimit_slot_t   *slot;
    ratelimit_table_t  *table;

    table = place->active;
    number = 0;
    slot = NULL;

    /* buckets are filled from the front, and mostly stay full */

    if ((table->nblocks == 0 || ratelimit_block_fresh(table))
        && (place->bucket[0][RATELIMIT_WAYS - 1].id == 0
            || place->bucket[1][RATELIMIT_WAYS - 1].id == 0))
    {
        slot = ratelimit_slot_empty(place, party);
    }

    if (slot == NULL) {
        slot = ratelimit_slot_make_room(place, party, &number);
    }

    if (table->nblocks && number == 0) {
        number = ratelimit_block_take(table, slot, party);

        if (number == 0) {
            return 0;
        }
    }

    place->slot = slot;
    place->segment->inserts++;

    if (table->size == sizeof(uint64_t)) {
        *ratelimit_slot_word(slot) = number;

    } else {
        ratelimit_slot_clear(slot, table->size);
    }

    if (number) {
        ratelimit_block_clear(table, number);
    }

    return 1;
}


/* a size that the compiler knows needs no call: that of the default */

static inline void
ratelimit_slot_clear(const ratelimit_slot_t *slot, size_t size)
{
    if (size == RATELIMIT_KEPT * sizeof(ratelimit_state_t)) {
        memset(ratelimit_slot_inner(slot, size), 0,
               RATELIMIT_KEPT * sizeof(ratelimit_state_t));

    } else {
        memset(ratelimit_slot_inner(slot, size), 0, size);
    }
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


/*
 * Somebody has to go, whoever has run out if there is one: returns a slot
 * without an owner, and the number of the block that it has, if any.
 */

static ratelimit_slot_t *
ratelimit_slot_make_room(ratelimit_place_t *place,
    const ratelimit_party_t *party, uint64_t *number)
{
    int                worth;
    ratelimit_slot_t  *slot, *empty;

    slot = ratelimit_victim(place, party, &worth);

    if (worth != RATELIMIT_WORTHLESS) {

        /*
         * An empty slot that a dead process left is taken; and where there is
         * no choice all blocks of the table are looked at.
         */

        if (worth >= (int) RATELIMIT_REFUSED) {
            empty = ratelimit_slot_empty(place, party);

            if (empty) {
                return empty;
            }
        }

        ratelimit_table_note_eviction(place->active, party);
    }

    if (ratelimit_block(place->active, *ratelimit_slot_word(slot))) {
        *number = *ratelimit_slot_word(slot);
    }

    __atomic_store_n(&slot->id, 0, __ATOMIC_RELEASE);

    return slot;
}
