
/*
 * A slot for a new key.
 */


#include "table/ratelimit_table_slot.h"


/* empty slots of a line that are kept for keys that need them more */
#define RATELIMIT_NEARLY_FULL   3


static uint64_t ratelimit_slot_new_id(const ratelimit_place_t *place,
    const ratelimit_rule_t *rule, uint32_t me);
static ratelimit_inline void ratelimit_slot_clear(ratelimit_state_t *state,
    size_t size);
static ratelimit_slot_t *ratelimit_slot_empty(
    const ratelimit_place_t *place, const ratelimit_lockset_t *set);
static ratelimit_slot_t *ratelimit_slot_make_room(ratelimit_place_t *place,
    const ratelimit_lockset_t *set, uint64_t *number);
static void ratelimit_slot_age_lines(const ratelimit_place_t *place,
    uint64_t part, uint64_t now);
static void ratelimit_slot_age(const ratelimit_segment_t *segment,
    ratelimit_slot_t *slot, uint64_t next, uint64_t now);


/* as large as any algorithm looks at */

const ratelimit_state_t  ratelimit_slot_never_seen[RATELIMIT_NEVER_SEEN];


uint64_t
ratelimit_slot_id(const ratelimit_place_t *place, const ratelimit_rule_t *rule,
    uint32_t me)
{
    uint64_t  class;

    class = ratelimit_table_class(place->active, rule);

    if (class == 0
        && __atomic_load_n(&place->active->header->nclasses, __ATOMIC_RELAXED)
           < place->active->nclasses)
    {
        return ratelimit_slot_new_id(place, rule, me);
    }

    return place->fingerprint | class << RATELIMIT_CLASS_SHIFT;
}


/* the table does not know the rule yet */

static ratelimit_noinline uint64_t
ratelimit_slot_new_id(const ratelimit_place_t *place,
    const ratelimit_rule_t *rule, uint32_t me)
{
    uint64_t  class;

    ratelimit_table_add_rule(place->active, rule, me);

    class = ratelimit_table_class(place->active, rule);

    return place->fingerprint | class << RATELIMIT_CLASS_SHIFT;
}


int
ratelimit_slot_allocate(ratelimit_place_t *place, ratelimit_lockset_t *set)
{
    size_t              head;
    uint64_t            number;
    ratelimit_slot_t   *slot;
    ratelimit_table_t  *table;

    table = place->active;
    number = 0;
    slot = NULL;

    /* lines are filled from the front, and mostly stay full */

    if ((table->nblocks == 0 || ratelimit_block_fresh(table))
        && (place->line[0][RATELIMIT_LINE_SLOTS - 1].id == 0
            || place->line[1][RATELIMIT_LINE_SLOTS - 1].id == 0))
    {
        slot = ratelimit_slot_empty(place, set);
    }

    if (slot == NULL) {
        slot = ratelimit_slot_make_room(place, set, &number);
    }

    if (table->nblocks && number == 0) {
        number = ratelimit_block_allocate(table, slot, set);

        if (number == 0) {
            return 0;
        }
    }

    place->slot = slot;

    if (table->kind.where != RATELIMIT_IN_LINE) {
        ratelimit_set(ratelimit_slot_word(slot), number);

    } else if (table->slot_size == RATELIMIT_MAX_IN_LINE) {

        /* the usual size, which the compiler knows */

        ratelimit_slot_clear(ratelimit_slot_words(slot, RATELIMIT_MAX_IN_LINE),
                             RATELIMIT_MAX_IN_LINE);

    } else {
        ratelimit_slot_clear(ratelimit_slot_words(slot, table->slot_size),
                             table->slot_size);
    }

    /* some algorithms need only the first words of a state to be zero */

    if (number) {
        head = table->algorithm->head * sizeof(ratelimit_state_t);

        ratelimit_slot_clear(ratelimit_block(table, number),
                             head ? head : table->block_size);
    }

    return 1;
}


static ratelimit_inline void
ratelimit_slot_clear(ratelimit_state_t *state, size_t size)
{
    size_t  i;

#pragma GCC unroll 4

    for (i = 0; i < size / sizeof(ratelimit_state_t); i++) {
        ratelimit_set(&state[i], 0);
    }
}


/*
 * An empty slot of the first line, so that most keys are found there; of the
 * emptier one if the first is nearly full, so that hardly any key finds none.
 */

static ratelimit_slot_t *
ratelimit_slot_empty(const ratelimit_place_t *place,
    const ratelimit_lockset_t *set)
{
    unsigned           i, k, n[2];
    ratelimit_slot_t  *slot[2];

    for (k = 0; k < 2; k++) {
        n[k] = 0;
        slot[k] = NULL;

        /* the one in front, where keys are looked for first */

        for (i = RATELIMIT_LINE_SLOTS; i > 0; i--) {
            if (place->line[k][i - 1].id == 0
                && !ratelimit_slot_in_use(set, &place->line[k][i - 1]))
            {
                slot[k] = &place->line[k][i - 1];
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
 * Evicts a slot, an expired one if there is one: returns it without an owner,
 * and the number of the block that it has, if any.
 */

static ratelimit_slot_t *
ratelimit_slot_make_room(ratelimit_place_t *place,
    const ratelimit_lockset_t *set, uint64_t *number)
{
    int                worth;
    ratelimit_slot_t  *slot, *empty;

    slot = ratelimit_evict_choose(place, set, &worth);

    if (worth != RATELIMIT_WORTHLESS) {

        /*
         * An empty slot that a dead process left is taken; and where there is
         * no choice all blocks of the table are looked at.
         */

        if (worth >= (int) RATELIMIT_REFUSED) {
            empty = ratelimit_slot_empty(place, set);

            if (empty) {
                return empty;
            }
        }

        ratelimit_table_count_eviction(place->active, place->segment, set);
    }

    if (place->active->nblocks
        && ratelimit_block(place->active, *ratelimit_slot_word(slot)))
    {
        *number = *ratelimit_slot_word(slot);
    }

    ratelimit_slot_remove(place->segment, slot);

    return slot;
}


/*
 * A worker that dies in between leaves lines that the next one looks at again.
 * While no counter had to go before its time, no mark matters, and a part of
 * the table may not be in memory yet.
 */

void
ratelimit_slot_refuse(ratelimit_place_t *place, uint64_t now)
{
    uint64_t              part, minute;
    ratelimit_segment_t  *segment;

    segment = place->segment;
    minute = now >> RATELIMIT_MINUTE_BITS;

    if (minute <= segment->refused) {
        return;
    }

    if (segment->evictions) {
        part = segment->aged;
        part = ratelimit_max(part, ratelimit_sub(minute, RATELIMIT_AGING));

        while (part++ < minute) {
            ratelimit_slot_age_lines(place, part % RATELIMIT_AGING, now);
        }

        segment->aged = minute;
    }

    segment->refused = minute;
}


/* in each minute another part of the segment's lines */

static void
ratelimit_slot_age_lines(const ratelimit_place_t *place, uint64_t part,
    uint64_t now)
{
    uint64_t            i, n, next;
    ratelimit_slot_t   *slot;
    ratelimit_table_t  *table;

    table = place->active;
    next = ratelimit_slot_epoch(table, place->segment) + 1;

    slot = ratelimit_slot_line(table, place->segment - table->segments,
                               (part << 16) / RATELIMIT_AGING);
    n = table->nlines * (part + 1) / RATELIMIT_AGING
        - table->nlines * part / RATELIMIT_AGING;

    while (n--) {
        for (i = 0; i < RATELIMIT_LINE_SLOTS; i++) {
            ratelimit_slot_age(place->segment, &slot[i], next, now);
        }

        slot = (ratelimit_slot_t *) ((unsigned char *) slot
                                     + table->line_size);
    }
}


/* it is worth the same then */

static void
ratelimit_slot_age(const ratelimit_segment_t *segment, ratelimit_slot_t *slot,
    uint64_t next, uint64_t now)
{
    uint64_t  id, worth;

    id = slot->id;

    if (!(id & RATELIMIT_REFUSED)
        || ratelimit_slot_is_refused(segment, id, now))
    {
        return;
    }

    worth = ratelimit_slot_marked_worth(segment, id, now);
    id &= ~RATELIMIT_USAGE_MASK;

    __atomic_store_n(&slot->id, id | ((next + worth) & (RATELIMIT_EPOCHS - 1)),
                     __ATOMIC_RELEASE);
}
