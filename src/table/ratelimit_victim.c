
/*
 * Who has to go when a new key finds no room: what has run out, otherwise what
 * is worth least.
 */


#include "core/ratelimit_math.h"
#include "table/ratelimit_slot.h"


/* if more slots are empty, of 16, those that have blocks are no choice */
#define RATELIMIT_MANY      8

/* equals no class of any id */
#define RATELIMIT_NO_CLASS  UINT64_MAX

/* worth more than any slot */
#define RATELIMIT_PRECIOUS  (2 * RATELIMIT_EPOCHS)


/* what tells that a counter has run out */

typedef enum {
    RATELIMIT_PAST_WORD = 0,  /* its word, which begins with its window */
    RATELIMIT_PAST_KEPT,      /* the same of the default's state */
    RATELIMIT_PAST_STATE,     /* and of any other */
    RATELIMIT_PAST_ANY        /* only the algorithm */
} ratelimit_past_e;


static inline ratelimit_past_e ratelimit_victim_kind(
    const ratelimit_table_t *table);
static uint64_t ratelimit_victim_bound(const ratelimit_table_t *table,
    uint64_t id, uint64_t now);
static ratelimit_inline int ratelimit_victim_is_past(
    const ratelimit_table_t *table, const ratelimit_slot_t *slot,
    ratelimit_past_e kind, uint64_t bound, uint64_t now);
static int ratelimit_victim_state_past(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now);
static ratelimit_inline uint64_t ratelimit_victim_class(uint64_t id);
static ratelimit_inline ratelimit_slot_t *ratelimit_victim_search(
    const ratelimit_place_t *place, const ratelimit_party_t *party,
    ratelimit_past_e kind, int *worth);


int
ratelimit_slot_expired(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now)
{
    uint64_t  bound;

    bound = ratelimit_victim_bound(table, slot->id, now);

    return ratelimit_victim_is_past(table, slot, ratelimit_victim_kind(table),
                                    bound, now);
}


static inline ratelimit_past_e
ratelimit_victim_kind(const ratelimit_table_t *table)
{
    if (table->shape.algorithm != RATELIMIT_FIXED_WINDOW
        && table->shape.algorithm != RATELIMIT_SLIDING_WINDOW)
    {
        return RATELIMIT_PAST_ANY;
    }

    if (table->small) {
        return RATELIMIT_PAST_WORD;
    }

    return table->size == RATELIMIT_KEPT * sizeof(ratelimit_state_t)
           ? RATELIMIT_PAST_KEPT : RATELIMIT_PAST_STATE;
}


/* windows of a class have run out if what they begin with is below this */

static uint64_t
ratelimit_victim_bound(const ratelimit_table_t *table, uint64_t id,
    uint64_t now)
{
    uint32_t  class;
    uint64_t  period, bound;

    if (table->shape.algorithm == RATELIMIT_FIXED_WINDOW) {
        return table->small ? (now / RATELIMIT_SMALL_TICK + 1)
                              << RATELIMIT_SMALL_COUNT_BITS
                            : now + 1;
    }

    class = ratelimit_slot_class(id);
    period = table->header->classes[class].period;

    /* one class too many: the numbers of its windows tell no time */

    if (period == 0) {
        return 0;
    }

    bound = ratelimit_sub(now * table->shape.buckets / period,
                          table->shape.buckets);

    return table->small ? bound << (2 * RATELIMIT_SMALL_WINDOW_BITS) : bound;
}


static ratelimit_inline int
ratelimit_victim_is_past(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, ratelimit_past_e kind, uint64_t bound,
    uint64_t now)
{
    size_t  size;

    switch (kind) {

    case RATELIMIT_PAST_WORD:
        return *ratelimit_slot_word(slot) < bound;

    case RATELIMIT_PAST_KEPT:
        size = RATELIMIT_KEPT * sizeof(ratelimit_state_t);
        return ratelimit_slot_inner(slot, size)[0] < bound;

    case RATELIMIT_PAST_STATE:
        return ratelimit_slot_state(table, slot, NULL)[0] < bound;

    default:
        return ratelimit_victim_state_past(table, slot, now);
    }
}


static int
ratelimit_victim_state_past(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now)
{
    ratelimit_rule_t    rule;
    ratelimit_class_t  *class;
    ratelimit_state_t   words[2], *state;

    class = &table->header->classes[ratelimit_slot_class(slot->id)];
    state = ratelimit_slot_state(table, slot, words);

    if (class->period == 0) {
        return state[0] + table->header->horizon <= now;
    }

    /* this is all that expires looks at */

    rule.limit = class->limit;
    rule.period = class->period;
    rule.ceiling = RATELIMIT_MAX_LIMIT;

    return table->algorithm->expires(&table->shape, &rule, state) <= now;
}


ratelimit_slot_t *
ratelimit_victim(const ratelimit_place_t *place,
    const ratelimit_party_t *party, int *worth)
{
    switch (ratelimit_victim_kind(place->active)) {

    case RATELIMIT_PAST_WORD:
        return ratelimit_victim_search(place, party, RATELIMIT_PAST_WORD,
                                       worth);

    case RATELIMIT_PAST_KEPT:
        return ratelimit_victim_search(place, party, RATELIMIT_PAST_KEPT,
                                       worth);

    case RATELIMIT_PAST_STATE:
        return ratelimit_victim_search(place, party, RATELIMIT_PAST_STATE,
                                       worth);

    default:
        return ratelimit_victim_search(place, party, RATELIMIT_PAST_ANY,
                                       worth);
    }
}


/* 0 is that of an empty slot, and of one class too many */

static ratelimit_inline uint64_t
ratelimit_victim_class(uint64_t id)
{
    id &= RATELIMIT_CLASS_MASK;

    return id ? id : RATELIMIT_NO_CLASS;
}


static ratelimit_inline ratelimit_slot_t *
ratelimit_victim_search(const ratelimit_place_t *place,
    const ratelimit_party_t *party, ratelimit_past_e kind, int *worth)
{
    int                 least, candidate;
    uint64_t            id, class, bound, next, now;
    unsigned            i, k, empty;
    ratelimit_slot_t   *slot, *bucket, *victim;
    ratelimit_table_t  *table;

    table = place->active;
    now = party->clock.now;
    next = ratelimit_slot_epoch(table, place->segment) + 1;
    class = RATELIMIT_NO_CLASS;
    bound = 0;
    least = RATELIMIT_PRECIOUS;
    empty = 0;

    /* more limits of one request than ways: one of them loses */

    victim = place->bucket[0];

    for (k = 0; k < 2; k++) {
        bucket = __builtin_assume_aligned(place->bucket[k], RATELIMIT_LINE);

#pragma GCC unroll 8

        for (i = 0; i < RATELIMIT_WAYS; i++) {
            slot = &bucket[i];
            id = slot->id;

            /* mostly all are of one class, and none is empty */

            if ((id & RATELIMIT_CLASS_MASK) != class) {

                if (id == 0) {
                    empty++;
                    continue;
                }

                class = ratelimit_victim_class(id);
                bound = ratelimit_victim_bound(table, id, now);
            }

            if (ratelimit_victim_is_past(table, slot, kind, bound, now)
                && !ratelimit_slot_in_use(party, slot))
            {
                *worth = RATELIMIT_WORTHLESS;
                return slot;
            }

            candidate = ratelimit_slot_worth(id, next);

            if (candidate < least && !ratelimit_slot_in_use(party, slot)) {
                victim = slot;
                least = candidate;
            }
        }
    }

    *worth = (empty <= (table->nblocks ? RATELIMIT_MANY : 0))
             ? least : RATELIMIT_PRECIOUS;

    return victim;
}
