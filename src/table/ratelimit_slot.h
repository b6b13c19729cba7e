
/*
 * Slots: where one is, what is read and written there, and who has to go when
 * a new key finds no room.  For the files of the table only.
 */


#ifndef _RATELIMIT_SLOT_H_INCLUDED_
#define _RATELIMIT_SLOT_H_INCLUDED_


#include <string.h>

#include "core/ratelimit_math.h"
#include "table/ratelimit_layout.h"
#include "table/ratelimit_small.h"


#define RATELIMIT_GOLDEN             0x9e3779b97f4a7c15ULL

/* what a slot is worth that has run out, less than any other */
#define RATELIMIT_WORTHLESS          -1

/* words of the largest state but a log's, of which two are looked at */
#define RATELIMIT_NOTHING            (2 + RATELIMIT_MAX_BUCKETS / 2)


/* a decision, as far as the table must know it to make room */

typedef struct {
    ratelimit_place_t              *places;
    size_t                          n;
    ratelimit_clock_t               clock;    /* never behind a segment's */
    uint32_t                        me;
    uint32_t                        brief;    /* verdicts are explained later */
} ratelimit_party_t;


/* a state never seen */
extern const ratelimit_state_t  ratelimit_slot_nothing[RATELIMIT_NOTHING];


/* all periods of a key are in one segment, so that they are one lock */

static ratelimit_inline uint64_t
ratelimit_slot_segment(const ratelimit_table_t *active,
    const ratelimit_hash_t *hash)
{
    return ((hash->hi >> 32) * active->nsegments) >> 32;
}


/* one of a segment's buckets, by 16 bits */

static ratelimit_inline ratelimit_slot_t *
ratelimit_slot_bucket(const ratelimit_table_t *active, uint64_t segment,
    uint64_t bits)
{
    uint64_t  n;

    n = active->nbuckets;
    n = segment * n + ((bits & 0xffff) * n >> 16);

    return (ratelimit_slot_t *) ((unsigned char *) active->slots
                                 + n * active->bucket_size);
}


/*
 * Each period has buckets of its own in it, so that these fill evenly: the mix
 * of key and period tells them, and the fingerprint is what stands there.
 */

static ratelimit_inline uint64_t
ratelimit_slot_mix(const ratelimit_hash_t *hash, uint64_t period)
{
    return hash->hi ^ (period * RATELIMIT_GOLDEN >> 32);
}


static ratelimit_inline uint64_t
ratelimit_slot_fingerprint(const ratelimit_hash_t *hash, uint64_t period)
{
    uint64_t  lo;

    lo = (hash->lo ^ period * RATELIMIT_GOLDEN) & RATELIMIT_FINGERPRINT;

    return lo ? lo : ~RATELIMIT_FINGERPRINT + 1;
}


static ratelimit_inline ratelimit_slot_t *
ratelimit_slot_first(const ratelimit_table_t *active, uint64_t segment,
    uint64_t mix)
{
    ratelimit_slot_t  *bucket;

    bucket = ratelimit_slot_bucket(active, segment, mix >> 16);

    /* the ids, and what stands behind the first of them or all */

    __builtin_prefetch(bucket);
    __builtin_prefetch(bucket + RATELIMIT_WAYS);

    return bucket;
}


/* sets all that a place needs to be looked for in the active table */

static inline void
ratelimit_slot_aim(ratelimit_table_t *active, ratelimit_place_t *place,
    uint64_t segment, uint64_t period)
{
    uint64_t  mix;

    mix = ratelimit_slot_mix(&place->hash, period);

    place->active = active;
    place->slot = NULL;
    place->blocked = NULL;
    place->evicted = 0;
    place->mix = mix;
    place->fingerprint = ratelimit_slot_fingerprint(&place->hash, period);
    place->segment = &active->segments[segment];
    place->bucket[0] = ratelimit_slot_first(active, segment, mix);
}


static inline void
ratelimit_slot_place(ratelimit_table_t *active, ratelimit_place_t *place,
    uint64_t period)
{
    ratelimit_slot_aim(active, place,
                       ratelimit_slot_segment(active, &place->hash), period);
}


static ratelimit_inline ratelimit_slot_t *
ratelimit_slot_search(ratelimit_slot_t *bucket, uint64_t fingerprint)
{
    unsigned  i;

#pragma GCC unroll 8

    for (i = 0; i < RATELIMIT_WAYS; i++) {
        if ((__atomic_load_n(&bucket[i].id, __ATOMIC_RELAXED) ^ fingerprint)
            <= ~RATELIMIT_FINGERPRINT)
        {
            return &bucket[i];
        }
    }

    return NULL;
}


static inline ratelimit_slot_t *
ratelimit_slot_find(ratelimit_place_t *place)
{
    ratelimit_slot_t         *slot;
    const ratelimit_table_t  *active;

    slot = ratelimit_slot_search(place->bucket[0], place->fingerprint);

    if (slot) {
        return slot;
    }

    active = place->active;

    place->bucket[1] = ratelimit_slot_bucket(active,
                                             place->segment - active->segments,
                                             place->mix);

    return ratelimit_slot_search(place->bucket[1], place->fingerprint);
}


/* whether there are blocks that were never used */

static inline int
ratelimit_block_fresh(const ratelimit_table_t *table)
{
    return __atomic_load_n(&table->header->fresh, __ATOMIC_RELAXED)
           < table->nblocks;
}


static inline ratelimit_state_t *
ratelimit_slot_state(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, ratelimit_state_t *words)
{
    uint64_t            word;
    ratelimit_state_t  *state;

    word = slot ? __atomic_load_n(ratelimit_slot_word(slot), __ATOMIC_RELAXED)
                : 0;

    if (table->small) {
        ratelimit_small_unpack(table->shape.algorithm, word, words);
        return words;
    }

    state = NULL;

    if (table->nblocks) {
        state = ratelimit_block(table, word);

    } else if (slot) {
        state = ratelimit_slot_inner(slot, table->size);
    }

    return state ? state : (ratelimit_state_t *) ratelimit_slot_nothing;
}


static ratelimit_inline void
ratelimit_slot_pack(ratelimit_algorithm_e algorithm, ratelimit_slot_t *slot,
    const ratelimit_state_t *words)
{
    __atomic_store_n(ratelimit_slot_word(slot),
                     ratelimit_small_pack(algorithm, words), __ATOMIC_RELAXED);
}


/*
 * A segment's time is told by its new keys: an epoch ends when they would have
 * filled a sixteenth of it.
 */

static ratelimit_inline uint64_t
ratelimit_slot_epoch(const ratelimit_table_t *table,
    const ratelimit_segment_t *segment)
{
    return (__atomic_load_n(&segment->inserts, __ATOMIC_RELAXED)
            >> table->epoch_shift)
           & (RATELIMIT_EPOCHS - 1);
}


static ratelimit_inline void
ratelimit_slot_set_id(ratelimit_slot_t *slot, uint64_t fingerprint,
    uint32_t class, uint64_t guard)
{
    uint64_t  id;

    id = fingerprint | (uint64_t) class << RATELIMIT_CLASS_SHIFT | guard;

    if (slot->id != id) {
        __atomic_store_n(&slot->id, id, __ATOMIC_RELEASE);
    }
}


/*
 * Tells whose the slot is, that it is used now, and whether to be refused.  A
 * new slot becomes visible by it; the class changes when rules change.
 */

static inline void
ratelimit_slot_name(ratelimit_place_t *place, uint32_t class, uint64_t refused)
{
    ratelimit_slot_set_id(place->slot, place->fingerprint, class,
                          refused | ratelimit_slot_epoch(place->active,
                                                         place->segment));
}


/* whether it is known to be refused, in this epoch */

static ratelimit_inline int
ratelimit_slot_guarded(const ratelimit_slot_t *slot,
    const ratelimit_table_t *table, const ratelimit_segment_t *segment)
{
    uint64_t  guard;

    if (!(slot->id & RATELIMIT_REFUSED)) {
        return 0;
    }

    guard = RATELIMIT_REFUSED | ratelimit_slot_epoch(table, segment);

    return ((slot->id ^ guard) & (2 * RATELIMIT_EPOCHS - 1)) == 0;
}


static inline uint32_t
ratelimit_slot_class(uint64_t id)
{
    return (id & RATELIMIT_CLASS_MASK) >> RATELIMIT_CLASS_SHIFT;
}


/* whether another limit of the same request needs the slot */

static inline int
ratelimit_slot_in_use(const ratelimit_party_t *party,
    const ratelimit_slot_t *slot)
{
    size_t  i;

    if (party->n == 1) {
        return 0;
    }

    for (i = 0; i < party->n; i++) {
        if (party->places[i].slot == slot) {
            return 1;
        }
    }

    return 0;
}


/*
 * What a live slot is worth when one has to go, by its id and the number of the
 * next epoch: the less the longer ago it was used; an offender that is being
 * refused is worth more than all others.
 */

static ratelimit_inline int
ratelimit_slot_worth(uint64_t id, uint64_t next)
{
    return ((id - next) & (RATELIMIT_EPOCHS - 1)) | (id & RATELIMIT_REFUSED);
}


/* ratelimit_quick.c */

/* the decisions that are compiled for tables of this shape, or NULL */
const ratelimit_quick_t *ratelimit_quick(const ratelimit_table_t *table);


/* ratelimit_slot.c */

/*
 * Makes room for a new key.  The slot holds a state never seen and stays
 * hidden until it is named: who dies before leaves an empty slot.  Returns 0
 * if others are in the way; then all that the party holds must be let go.
 */
int ratelimit_slot_reserve(ratelimit_place_t *place,
    const ratelimit_party_t *party);

/* the highest ceiling that a small state, or any state of a table, can count */
uint64_t ratelimit_slot_small(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule);
uint64_t ratelimit_slot_most(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule);


/* ratelimit_victim.c */

/* whether the slot may be used as if it were empty */
int ratelimit_slot_expired(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now);

/*
 * A slot of the place's buckets that has run out, which is worth nothing, or
 * else the one that is worth least; if there are empty ones, which of those
 * that need blocks there are many, it is worth more than any.
 */
ratelimit_slot_t *ratelimit_victim(const ratelimit_place_t *place,
    const ratelimit_party_t *party, int *worth);


/* ratelimit_block.c */

void ratelimit_block_clear(const ratelimit_table_t *table, uint64_t number);

/* a block for the slot, whose segment the party holds; 0 as above */
uint32_t ratelimit_block_take(ratelimit_table_t *table,
    const ratelimit_slot_t *slot, const ratelimit_party_t *party);


/* ratelimit_table.c */

/* the segment that a slot belongs to */
ratelimit_segment_t *ratelimit_table_segment(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot);

/* somebody had to go for this decision; told once a second at most */
void ratelimit_table_note_eviction(ratelimit_table_t *table,
    const ratelimit_party_t *party);

/* the rule's class in the place's active table */

static inline uint32_t
ratelimit_table_class_of(const ratelimit_place_t *place,
    const ratelimit_rule_t *rule, uint32_t me)
{
    return place->active == place->table
           ? rule->class : ratelimit_table_class(place->active, rule, me);
}


/* ratelimit_succession.c */

/* the table in which all count now */
ratelimit_table_t *ratelimit_table_oldest(ratelimit_table_t *table);


static inline ratelimit_table_t *
ratelimit_table_active(ratelimit_table_t *table)
{
    return table->older ? ratelimit_table_oldest(table) : table;
}


/*
 * A rule may have been raised above what the older table can count, where all
 * still count: as long it holds as far as it can be counted.
 */
void ratelimit_table_restrain(ratelimit_item_t *item,
    ratelimit_place_t *place);

/*
 * Brings the counter of a place over from an older table, if there is one.
 * Returns 0 if others are in the way, as above.
 */
int ratelimit_table_adopt(ratelimit_place_t *place,
    const ratelimit_rule_t *rule, const ratelimit_party_t *party);


#endif /* _RATELIMIT_SLOT_H_INCLUDED_ */
