
/*
 * Slots: where one is, what is read and written there, and how a new key gets
 * one.  For the files of the table only.
 */


#ifndef _RATELIMIT_TABLE_SLOT_H_INCLUDED_
#define _RATELIMIT_TABLE_SLOT_H_INCLUDED_


#include <string.h>

#include "core/ratelimit_math.h"
#include "table/ratelimit_table_layout.h"
#include "table/ratelimit_table_pack.h"


#define RATELIMIT_GOLDEN             0x9e3779b97f4a7c15ULL

/* what an expired slot is worth, less than any other */
#define RATELIMIT_WORTHLESS          -1

/* words of the largest state but a log's, of which two are looked at */
#define RATELIMIT_NEVER_SEEN         (2 + RATELIMIT_MAX_BUCKETS / 2)


/* a decision's places, and the segments that it holds, ratelimit_lockset.h */

typedef struct {
    ratelimit_place_t              *places;
    size_t                          n;
    ratelimit_clock_t              *clock;    /* never behind a segment's */
    uint32_t                        me;
    ratelimit_segment_t            *blocked;  /* held by another process that
                                                 may wait for this one */
    ratelimit_table_t              *blocked_table;
    ratelimit_slot_t               *moving;   /* must not be evicted either */
} ratelimit_lockset_t;


/* a state never seen */
extern const ratelimit_state_t
    ratelimit_slot_never_seen[RATELIMIT_NEVER_SEEN];


/* all periods of a key are in one segment, so that they need one lock */

static ratelimit_inline uint64_t
ratelimit_slot_segment(const ratelimit_table_t *table,
    const ratelimit_hash_t *hash)
{
    return ((hash->hi >> 32) * table->nsegments) >> 32;
}


/* one of a segment's lines, by 16 bits */

static ratelimit_inline ratelimit_slot_t *
ratelimit_slot_line(const ratelimit_table_t *table, uint64_t segment,
    uint64_t bits)
{
    uint64_t  n;

    n = table->nlines;
    n = segment * n + ((bits & 0xffff) * n >> 16);

    return (ratelimit_slot_t *) ((unsigned char *) table->slots
                                 + n * table->line_size);
}


/* picks the lines: each period of a key has others, so that all fill evenly */

static ratelimit_inline uint64_t
ratelimit_slot_bits(const ratelimit_hash_t *hash, uint64_t period)
{
    return hash->hi ^ (period * RATELIMIT_GOLDEN >> 32);
}


/* what stands in the id for a key and a period */

static ratelimit_inline uint64_t
ratelimit_slot_fingerprint(const ratelimit_hash_t *hash, uint64_t period)
{
    uint64_t  lo;

    lo = (hash->lo ^ period * RATELIMIT_GOLDEN) & RATELIMIT_FINGERPRINT;

    return lo ? lo : ~RATELIMIT_FINGERPRINT + 1;
}


/*
 * States of a few words fill a few cache lines behind the ids: to have most of
 * them come from memory with the ids takes as long as to have these come alone.
 */

static ratelimit_inline void
ratelimit_slot_prefetch(const ratelimit_slot_t *line, ratelimit_where_e where)
{
    __builtin_prefetch(line);
    __builtin_prefetch(line + RATELIMIT_LINE_SLOTS);

    if (where == RATELIMIT_IN_LINE) {
        __builtin_prefetch(line + 2 * RATELIMIT_LINE_SLOTS);
        __builtin_prefetch(line + 3 * RATELIMIT_LINE_SLOTS);
    }
}


/*
 * Sets all that is needed to look for a place in a segment of the active table.
 * Where a line has no states of several words, the second line is found when it
 * is needed, which is seldom.
 */

static ratelimit_inline void
ratelimit_slot_locate(ratelimit_table_t *active, ratelimit_place_t *place,
    uint64_t segment, uint64_t period, ratelimit_where_e where)
{
    uint64_t  bits;

    bits = ratelimit_slot_bits(&place->hash, period);

    place->active = active;
    place->segment = &active->segments[segment];
    place->fingerprint = ratelimit_slot_fingerprint(&place->hash, period);
    place->line[0] = ratelimit_slot_line(active, segment, bits >> 16);

    ratelimit_slot_prefetch(place->line[0], where);

    if (where == RATELIMIT_IN_LINE) {
        place->line[1] = ratelimit_slot_line(active, segment, bits);

        ratelimit_slot_prefetch(place->line[1], where);
    }
}


/* sets the slot of the place if it is in this line; mark is as below */

static ratelimit_inline int
ratelimit_slot_search(ratelimit_place_t *place, ratelimit_slot_t *line,
    uint64_t *mark)
{
    uint64_t  rest;
    unsigned  i;

#pragma GCC unroll 8

    for (i = 0; i < RATELIMIT_LINE_SLOTS; i++) {
        rest = __atomic_load_n(&line[i].id, __ATOMIC_RELAXED)
               ^ place->fingerprint;

        if (rest <= ~RATELIMIT_FINGERPRINT) {
            place->slot = &line[i];
            *mark = rest & RATELIMIT_REFUSED;
            return 1;
        }
    }

    return 0;
}


/* sets the slot of the place; returns its mark if its key may be refused */

static ratelimit_inline uint64_t
ratelimit_slot_find(ratelimit_place_t *place, uint64_t segment,
    uint64_t period, ratelimit_where_e where)
{
    uint64_t  mark;

    if (ratelimit_slot_search(place, place->line[0], &mark)) {
        return mark;
    }

    if (where != RATELIMIT_IN_LINE) {
        place->line[1] = ratelimit_slot_line(place->active, segment,
                                    ratelimit_slot_bits(&place->hash, period));
    }

    if (ratelimit_slot_search(place, place->line[1], &mark)) {
        return mark;
    }

    place->slot = NULL;

    return 0;
}


/* whether there are blocks that were never used */

static inline int
ratelimit_block_fresh(const ratelimit_table_t *table)
{
    return __atomic_load_n(&table->header->fresh, __ATOMIC_RELAXED)
           < table->nblocks;
}


/* without a slot it is a state never seen; a packed one is unpacked to words */

static ratelimit_inline ratelimit_state_t *
ratelimit_slot_state(const ratelimit_table_t *table,
    const ratelimit_kind_t *kind, const ratelimit_slot_t *slot,
    ratelimit_state_t *words)
{
    uint64_t            word;
    ratelimit_state_t  *state;

    if (kind->where == RATELIMIT_IN_LINE) {
        return slot ? ratelimit_slot_words(slot, kind->size)
                    : (ratelimit_state_t *) ratelimit_slot_never_seen;
    }

    word = slot ? __atomic_load_n(ratelimit_slot_word(slot), __ATOMIC_RELAXED)
                : 0;

    if (kind->where == RATELIMIT_IN_WORD) {
        ratelimit_unpack(kind->form, word, words);
        return words;
    }

    state = ratelimit_block(table, word);

    return state ? state : (ratelimit_state_t *) ratelimit_slot_never_seen;
}


/* writes a state that was changed outside of the slot */

static ratelimit_inline void
ratelimit_slot_write(const ratelimit_kind_t *kind, ratelimit_slot_t *slot,
    const ratelimit_state_t *state)
{
    if (kind->where == RATELIMIT_IN_WORD) {
        __atomic_store_n(ratelimit_slot_word(slot),
                         ratelimit_pack(kind->form, state), __ATOMIC_RELAXED);
    }
}


/*
 * A segment measures time by its new keys: an epoch ends when they would have
 * filled a sixteenth of it, or somewhat less.
 */

static ratelimit_inline uint64_t
ratelimit_slot_epoch(const ratelimit_table_t *table,
    const ratelimit_segment_t *segment)
{
    return (__atomic_load_n(&segment->inserts, __ATOMIC_RELAXED)
            >> table->epoch_shift)
           & (RATELIMIT_EPOCHS - 1);
}


static ratelimit_inline uint64_t
ratelimit_slot_minute(uint64_t now)
{
    return (now >> RATELIMIT_MINUTE_BITS) & (RATELIMIT_EPOCHS - 1);
}


static ratelimit_inline uint64_t
ratelimit_table_class_period(const ratelimit_table_t *table, uint64_t n)
{
    return table->classes[n << table->kind.drips];
}


static inline ratelimit_class_t
ratelimit_table_get_class(const ratelimit_table_t *table, uint64_t n)
{
    ratelimit_class_t  class;

    class.period = ratelimit_table_class_period(table, n);
    class.limit = table->kind.drips ? table->classes[2 * n + 1] : 1;

    return class;
}


/* the class of a rule, 0 if it was not added or found none */

static inline uint32_t
ratelimit_table_find_class(const ratelimit_table_t *table, uint64_t limit,
    uint64_t period)
{
    uint32_t  i, n;

    /* classes are only ever added, so they can be read without the lock */

    n = __atomic_load_n(&table->header->nclasses, __ATOMIC_ACQUIRE);

    for (i = 1; i < n; i++) {
        if (ratelimit_table_class_period(table, i) == period
            && (!table->kind.drips || table->classes[2 * i + 1] == limit))
        {
            return i;
        }
    }

    return 0;
}


/* that of rules that nearly are alike */
uint32_t ratelimit_table_rough_class(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule);


static ratelimit_inline uint32_t
ratelimit_table_class(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule)
{
    uint32_t  class;

    class = ratelimit_table_find_class(table,
                                       table->kind.drips ? rule->limit : 1,
                                       rule->period);

    if (class || table->algorithm->past) {
        return class;
    }

    return ratelimit_table_rough_class(table, rule);
}


static inline uint32_t
ratelimit_slot_class(uint64_t id)
{
    return (id & RATELIMIT_CLASS_MASK) >> RATELIMIT_CLASS_SHIFT;
}


/* whether a rule that drips has another class by now: its limit was changed */

static ratelimit_inline int
ratelimit_slot_reclassed(const ratelimit_place_t *place,
    const ratelimit_rule_t *rule)
{
    uint32_t  class;

    class = ratelimit_slot_class(place->slot->id);

    return class && place->active->classes[2 * class + 1] != rule->limit;
}


/* ratelimit_table_slot.c */

/* the id, without its usage, of a new slot or after a change of the rule */
uint64_t ratelimit_slot_id(const ratelimit_place_t *place,
    const ratelimit_rule_t *rule, uint32_t me);

/*
 * Makes room for a new key.  The slot holds a state never seen and stays
 * hidden until it has an id: a process that dies before leaves an empty slot.
 * Returns 0 if another process is in the way; then the lockset has to be
 * released.
 */
int ratelimit_slot_allocate(ratelimit_place_t *place,
    ratelimit_lockset_t *set);


/* one more; the segment is held, but this may be read without the lock */

static ratelimit_inline void
ratelimit_segment_count(uint64_t *n)
{
    __atomic_store_n(n, *n + 1, __ATOMIC_RELAXED);
}


/* empties a slot of a segment that is held */

static inline void
ratelimit_slot_remove(ratelimit_segment_t *segment, ratelimit_slot_t *slot)
{
    if (slot->id) {
        ratelimit_segment_count(&segment->removals);
        __atomic_store_n(&slot->id, 0, __ATOMIC_RELEASE);
    }
}


/*
 * Notes in the id that the slot is used now, and whether its key is refused.  A
 * new slot becomes visible by this.
 */

static ratelimit_inline void
ratelimit_slot_use(ratelimit_place_t *place, const ratelimit_rule_t *rule,
    const ratelimit_kind_t *kind, uint64_t refused, uint64_t now, uint32_t me)
{
    uint64_t           id;
    ratelimit_slot_t  *slot;

    slot = place->slot;
    id = slot->id & ~RATELIMIT_USAGE_MASK;

    if (id == 0) {
        id = ratelimit_slot_id(place, rule, me);
        ratelimit_segment_count(&place->segment->inserts);

    } else if (kind->drips && ratelimit_slot_reclassed(place, rule)) {
        id = ratelimit_slot_id(place, rule, me);
    }

    id |= refused ? RATELIMIT_REFUSED | ratelimit_slot_minute(now)
                  : ratelimit_slot_epoch(place->active, place->segment);

    if (slot->id != id) {
        __atomic_store_n(&slot->id, id, __ATOMIC_RELEASE);
    }
}


/* whether another limit of the same request, or a move, needs the slot */

static inline int
ratelimit_slot_in_use(const ratelimit_lockset_t *set,
    const ratelimit_slot_t *slot)
{
    size_t  i;

    if (set->n == 1) {
        return set->moving == slot;
    }

    for (i = 0; i < set->n; i++) {
        if (set->places[i].slot == slot) {
            return 1;
        }
    }

    return set->moving == slot;
}


static inline int
ratelimit_segment_held(const ratelimit_lockset_t *set,
    const ratelimit_segment_t *segment)
{
    size_t  i;

    for (i = 0; i < set->n; i++) {
        if (set->places[i].segment == segment) {
            return 1;
        }
    }

    return 0;
}


/*
 * Notes that the slot's key is being refused.  Minutes are counted modulo
 * RATELIMIT_EPOCHS, so old marks of the segment become those of idle slots.
 */
void ratelimit_slot_refuse(ratelimit_place_t *place, uint64_t now);


/*
 * The minutes since a mark was noted; if these are too many to be told by it,
 * those since the last one of the segment was.
 */

static inline uint64_t
ratelimit_slot_mark_age(const ratelimit_segment_t *segment, uint64_t id,
    uint64_t now)
{
    uint64_t  age, quiet;

    age = (ratelimit_slot_minute(now) - id) & (RATELIMIT_EPOCHS - 1);
    quiet = ratelimit_sub(now >> RATELIMIT_MINUTE_BITS, segment->refused);

    return ratelimit_max(age, quiet);
}


static inline int
ratelimit_slot_is_refused(const ratelimit_segment_t *segment, uint64_t id,
    uint64_t now)
{
    return (id & RATELIMIT_REFUSED)
           && ratelimit_slot_mark_age(segment, id, now) <= RATELIMIT_RECENT;
}


/* the worth, as below, of a slot with a mark */

static inline int
ratelimit_slot_marked_worth(const ratelimit_segment_t *segment, uint64_t id,
    uint64_t now)
{
    uint64_t  age;

    age = ratelimit_slot_mark_age(segment, id, now);

    return ratelimit_sub(RATELIMIT_EPOCHS - 1, age)
           | (age <= RATELIMIT_RECENT ? RATELIMIT_REFUSED : 0);
}


/* that of a slot whose key is not refused */

static ratelimit_inline int
ratelimit_slot_idle_worth(uint64_t id, uint64_t next)
{
    return (id - next) & (RATELIMIT_EPOCHS - 1);
}


/*
 * What a live slot is worth when one has to go, by its id, the number of the
 * next epoch and the time: the less the longer ago it was used.  The slot of a
 * key that is being refused is worth more than all others; one that was refused
 * long ago is an idle one, whose age is counted in minutes instead of epochs.
 */

static ratelimit_inline int
ratelimit_slot_worth(const ratelimit_segment_t *segment, uint64_t id,
    uint64_t next, uint64_t now)
{
    if (ratelimit_likely(!(id & RATELIMIT_REFUSED))) {
        return ratelimit_slot_idle_worth(id, next);
    }

    return ratelimit_slot_marked_worth(segment, id, now);
}


/* ratelimit_table_evict.c */

/* whether the slot may be used as if it were empty */
int ratelimit_evict_expired(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now);

/*
 * An expired slot of the place's lines, which is worth nothing, or else the one
 * that is worth least.  It is said to be worth more than any if it can stay,
 * because there are empty slots; in a table with blocks, many of them.
 */
ratelimit_slot_t *ratelimit_evict_choose(const ratelimit_place_t *place,
    const ratelimit_lockset_t *set, int *worth);


/* ratelimit_table_block.c */

/* a block for a slot of a segment that the lockset holds; 0 as above */
uint32_t ratelimit_block_allocate(ratelimit_table_t *table,
    const ratelimit_slot_t *slot, ratelimit_lockset_t *set);


/* ratelimit_table_decide.c */

/* the decisions that are compiled for this kind */
const ratelimit_instance_t *ratelimit_table_instance(
    const ratelimit_kind_t *kind);


/* ratelimit_table.c */

/* the segment that a slot belongs to */
ratelimit_segment_t *ratelimit_table_segment(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot);

/* without those of older tables */
uint64_t ratelimit_table_own_entries(const ratelimit_table_t *table);

/* how many entries there is room for */
uint64_t ratelimit_table_own_places(const ratelimit_table_t *table);

/* a counter of the table may live so long from now on */
void ratelimit_table_outlive(ratelimit_table_t *table, uint64_t horizon,
    uint32_t me);

/* a live counter of the segment has to go; reported once a second at most */
void ratelimit_table_count_eviction(ratelimit_table_t *table,
    ratelimit_segment_t *segment, const ratelimit_lockset_t *set);

/* counts the keys of a segment that was taken over from a dead process */
void ratelimit_table_recount(ratelimit_table_t *table,
    ratelimit_segment_t *segment);


/* ratelimit_table_migrate.c */

/* the table in which all count now */
ratelimit_table_t *ratelimit_migrate_active(ratelimit_table_t *table);

/*
 * A rule may have been raised above what an older table can count, where all
 * still count: until that is sealed the rule holds as far as it can be counted.
 */
void ratelimit_migrate_restrain(ratelimit_item_t *item,
    ratelimit_place_t *place);

/*
 * Moves the counter of a place from an older table, if it is in one.  Returns 0
 * if another process is in the way, as above.
 */
int ratelimit_migrate_counter(ratelimit_place_t *place,
    const ratelimit_rule_t *rule, ratelimit_lockset_t *set);


#endif /* _RATELIMIT_TABLE_SLOT_H_INCLUDED_ */
