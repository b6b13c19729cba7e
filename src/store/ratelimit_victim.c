
/*
 * Who has to go when a new key finds no room: what has run out, otherwise what
 * is worth least.
 */


#include "core/ratelimit_math.h"
#include "store/ratelimit_slot.h"


/* fewer are no choice */
#define RATELIMIT_FEW       8

/* worth more than any slot */
#define RATELIMIT_PRECIOUS  (2 * RATELIMIT_EPOCHS)


/* what tells that a counter has run out */

typedef enum {
    RATELIMIT_PAST_WORD = 0,  /* its word, which begins with its window */
    RATELIMIT_PAST_BLOCK,     /* the same in a block */
    RATELIMIT_PAST_STATE      /* only the algorithm */
} ratelimit_past_e;


static inline ratelimit_past_e ratelimit_victim_kind(
    const ratelimit_table_t *table);
static uint64_t ratelimit_victim_bound(const ratelimit_table_t *table,
    uint32_t class, uint64_t now);
static ratelimit_inline int ratelimit_victim_is_past(
    const ratelimit_table_t *table, const ratelimit_slot_t *slot,
    ratelimit_past_e kind, uint64_t bound, uint64_t now);
static int ratelimit_victim_state_past(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now);
static ratelimit_inline ratelimit_slot_t *ratelimit_victim_search(
    const ratelimit_place_t *place, const ratelimit_party_t *party,
    ratelimit_past_e kind, int *worth);


int
ratelimit_slot_expired(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now)
{
    uint64_t  bound;

    bound = ratelimit_victim_bound(table, ratelimit_slot_class(slot), now);

    return ratelimit_victim_is_past(table, slot, ratelimit_victim_kind(table),
                                    bound, now);
}


static inline ratelimit_past_e
ratelimit_victim_kind(const ratelimit_table_t *table)
{
    if (table->shape.algorithm != RATELIMIT_FIXED_WINDOW
        && table->shape.algorithm != RATELIMIT_SLIDING_WINDOW)
    {
        return RATELIMIT_PAST_STATE;
    }

    return table->nblocks ? RATELIMIT_PAST_BLOCK : RATELIMIT_PAST_WORD;
}


/* windows of a class have run out if what they begin with is below this */

static uint64_t
ratelimit_victim_bound(const ratelimit_table_t *table, uint32_t class,
    uint64_t now)
{
    uint64_t  period, bound;

    if (table->shape.algorithm == RATELIMIT_FIXED_WINDOW) {
        return table->nblocks ? now + 1
                              : (now / RATELIMIT_SMALL_TICK + 1)
                                << RATELIMIT_SMALL_COUNT_BITS;
    }

    period = table->header->classes[class].period;

    /* one class too many: the numbers of its windows tell no time */

    if (period == 0) {
        return 0;
    }

    bound = ratelimit_sub(now * table->shape.buckets / period,
                          table->shape.buckets);

    return table->nblocks ? bound : bound << (2 * RATELIMIT_SMALL_WINDOW_BITS);
}


static ratelimit_inline int
ratelimit_victim_is_past(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, ratelimit_past_e kind, uint64_t bound,
    uint64_t now)
{
    ratelimit_block_t  *block;

    if (kind == RATELIMIT_PAST_WORD) {
        return slot->word < bound;
    }

    if (kind == RATELIMIT_PAST_STATE) {
        return ratelimit_victim_state_past(table, slot, now);
    }

    block = ratelimit_block(table, slot->word);

    return block == NULL || block->state[0] < bound;
}


static int
ratelimit_victim_state_past(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now)
{
    ratelimit_rule_t    rule;
    ratelimit_class_t  *class;
    ratelimit_state_t   words[2], *state;

    class = &table->header->classes[ratelimit_slot_class(slot)];
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

    case RATELIMIT_PAST_BLOCK:
        return ratelimit_victim_search(place, party, RATELIMIT_PAST_BLOCK,
                                       worth);

    default:
        return ratelimit_victim_search(place, party, RATELIMIT_PAST_STATE,
                                       worth);
    }
}


static ratelimit_inline ratelimit_slot_t *
ratelimit_victim_search(const ratelimit_place_t *place,
    const ratelimit_party_t *party, ratelimit_past_e kind, int *worth)
{
    int                 least, candidate;
    uint32_t            class;
    uint64_t            bound, epoch;
    unsigned            i, k, n;
    ratelimit_slot_t   *slot, *victim;
    ratelimit_table_t  *table;

    table = place->active;
    epoch = ratelimit_slot_epoch(table, place->segment);
    class = RATELIMIT_CLASSES;
    bound = 0;
    least = RATELIMIT_PRECIOUS;
    n = 0;

    /* more limits of one request than ways: one of them loses */

    victim = place->bucket[0];

    for (k = 0; k < 2; k++) {

#pragma GCC unroll 8

        for (i = 0; i < RATELIMIT_WAYS; i++) {
            slot = &place->bucket[k][i];

            if (kind != RATELIMIT_PAST_WORD && slot->id == 0) {
                continue;
            }

            n++;

            if (class != ratelimit_slot_class(slot)) {
                class = ratelimit_slot_class(slot);
                bound = ratelimit_victim_bound(table, class, party->clock.now);
            }

            if (ratelimit_victim_is_past(table, slot, kind, bound,
                                         party->clock.now)
                && !ratelimit_slot_in_use(party, slot))
            {
                *worth = RATELIMIT_WORTHLESS;
                return slot;
            }

            candidate = ratelimit_slot_worth(slot, epoch);

            if (candidate < least && !ratelimit_slot_in_use(party, slot)) {
                victim = slot;
                least = candidate;
            }
        }
    }

    *worth = (n >= RATELIMIT_FEW) ? least : RATELIMIT_PRECIOUS;

    return victim;
}
