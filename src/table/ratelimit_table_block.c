
/*
 * Blocks for states that are too large for a slot.  All slots of a table share
 * them, so that they can be filled to the last one.  A block belongs to the
 * slot that is its owner if that slot names the block; otherwise, whatever
 * a dead process left there, it is free.
 */


#include "table/ratelimit_table_slot.h"


/* blocks looked at before the one of them that is worth least has to go */
#define RATELIMIT_BLOCK_SAMPLE  8

/*
 * A key that is being refused loses its block only if so many samples found no
 * other.  Blocks whose segments other processes hold are passed over, so that a
 * sample may be empty; if too many are, other processes hold too many segments,
 * and may wait for one of this decision.
 */
#define RATELIMIT_BLOCK_ROUNDS  4
#define RATELIMIT_BLOCK_EMPTY   32


typedef struct {
    uint32_t                        number;
    int                             worth;
} ratelimit_block_choice_t;


static int ratelimit_block_claim(ratelimit_table_t *table, uint32_t number,
    uint32_t owner, uint32_t former);
static int ratelimit_block_try(ratelimit_table_t *table, uint32_t number,
    uint32_t owner, ratelimit_lockset_t *set,
    ratelimit_block_choice_t *choice);
static int ratelimit_block_seize(ratelimit_table_t *table, uint32_t number,
    uint32_t owner, ratelimit_slot_t *slot, ratelimit_lockset_t *set,
    ratelimit_block_choice_t *choice);


uint32_t
ratelimit_block_allocate(ratelimit_table_t *table, const ratelimit_slot_t *slot,
    ratelimit_lockset_t *set)
{
    uint32_t                   number, owner, tries;
    ratelimit_header_t        *header;
    ratelimit_block_choice_t   choice;

    header = table->header;
    owner = (uint32_t) (slot - table->slots) + 1;

    if (ratelimit_block_fresh(table)) {
        number = __atomic_fetch_add(&header->fresh, 1, __ATOMIC_RELAXED) + 1;

        if (number <= table->nblocks
            && ratelimit_block_claim(table, number, owner, 0))
        {
            return number;
        }
    }

    choice.number = 0;

    for (tries = 1;
         tries <= RATELIMIT_BLOCK_EMPTY * RATELIMIT_BLOCK_SAMPLE;
         tries++)
    {
        number = __atomic_fetch_add(&header->hand, 1, __ATOMIC_RELAXED)
                 % table->nblocks + 1;

        if (ratelimit_block_try(table, number, owner, set, &choice)) {
            return number;
        }

        if (tries % RATELIMIT_BLOCK_SAMPLE || choice.number == 0
            || (choice.worth >= (int) RATELIMIT_REFUSED
                && tries < RATELIMIT_BLOCK_ROUNDS * RATELIMIT_BLOCK_SAMPLE))
        {
            continue;
        }

        if (ratelimit_block_try(table, choice.number, owner, set, NULL)) {
            return choice.number;
        }

        choice.number = 0;
    }

    return 0;
}


static int
ratelimit_block_claim(ratelimit_table_t *table, uint32_t number,
    uint32_t owner, uint32_t former)
{
    return __atomic_compare_exchange_n(&table->owners[number - 1], &former,
                                       owner, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}


/*
 * Takes a block that is free or has run out.  A live one is taken if choice is
 * NULL, otherwise noted there if it has more reason to go.
 */

static int
ratelimit_block_try(ratelimit_table_t *table, uint32_t number, uint32_t owner,
    ratelimit_lockset_t *set, ratelimit_block_choice_t *choice)
{
    int                   held, taken;
    uint32_t              former;
    ratelimit_slot_t     *slot;
    ratelimit_segment_t  *segment;

    former = __atomic_load_n(&table->owners[number - 1], __ATOMIC_ACQUIRE);

    if (former == 0) {
        return ratelimit_block_claim(table, number, owner, 0);
    }

    slot = &table->slots[former - 1];
    segment = ratelimit_table_segment(table, slot);

    held = ratelimit_segment_held(set, segment);

    if (!held && !ratelimit_trylock(&segment->lock, set->me)) {
        set->blocked = segment;
        set->blocked_table = table;
        return 0;
    }

    taken = 0;

    /* a slot of this set that has no name yet looks as if it were empty */

    if (__atomic_load_n(&table->owners[number - 1], __ATOMIC_RELAXED) == former
        && !ratelimit_slot_in_use(set, slot))
    {
        if (slot->id == 0 || *ratelimit_slot_word(slot) != number) {
            taken = ratelimit_block_claim(table, number, owner, former);

        } else {
            taken = ratelimit_block_seize(table, number, owner, slot, set,
                                          choice);
        }
    }

    if (!held) {
        ratelimit_unlock(&segment->lock);
    }

    return taken;
}


/* the owner's segment is held */

static int
ratelimit_block_seize(ratelimit_table_t *table, uint32_t number,
    uint32_t owner, ratelimit_slot_t *slot, ratelimit_lockset_t *set,
    ratelimit_block_choice_t *choice)
{
    int                   worth;
    uint64_t              next;
    ratelimit_segment_t  *segment;

    segment = ratelimit_table_segment(table, slot);

    if (!ratelimit_evict_expired(table, slot, set->clock->now)) {

        if (choice) {
            next = ratelimit_slot_epoch(table, segment) + 1;
            worth = ratelimit_slot_worth(segment, slot->id, next,
                                         set->clock->now);

            if (choice->number == 0 || worth < choice->worth) {
                choice->number = number;
                choice->worth = worth;
            }

            return 0;
        }

        ratelimit_table_count_eviction(table, segment, set);
    }

    ratelimit_slot_remove(segment, slot);

    return ratelimit_block_claim(table, number, owner,
                                 table->owners[number - 1]);
}
