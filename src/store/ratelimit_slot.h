
/*
 * The inside of a table: what stands in a slot, and who has to go when a new
 * key finds none free.  For the files of the table only.
 *
 * A slot's id is 54 bits of fingerprint, 6 of class, 2 spare, 2 of guard.  Its
 * word is a small state: 38 bits of time (ms) and 26 of count, or for a
 * sliding_window of one bucket 28 bits of the newest window's number and twice
 * 18 of count.  A larger state is in the block whose number the word is.
 */


#ifndef _RATELIMIT_SLOT_H_INCLUDED_
#define _RATELIMIT_SLOT_H_INCLUDED_


#include "store/ratelimit_table.h"


#define RATELIMIT_WAYS               8       /* slots of a bucket */
#define RATELIMIT_CLASSES            64

#define RATELIMIT_FINGERPRINT        (~(uint64_t) 0x3ff)
#define RATELIMIT_CLASS_SHIFT        4
#define RATELIMIT_GUARD              ((uint64_t) 3)

/* a slot's guard: who goes last when a new key needs room */
#define RATELIMIT_GUARD_NEW          0       /* used once */
#define RATELIMIT_GUARD_USED         1       /* used again */
#define RATELIMIT_GUARD_REFUSED      2       /* an offender, being refused */

#define RATELIMIT_SMALL_COUNT_BITS   26
#define RATELIMIT_SMALL_WINDOW_BITS  18
#define RATELIMIT_SMALL_TICK         1000    /* us */


typedef struct {
    uint64_t                        limit;
    uint64_t                        period;
    uint64_t                        capacity;
} ratelimit_class_t;


struct ratelimit_header_s {
    uint64_t                        magic;
    uint64_t                        size;
    ratelimit_hash_t                secret;
    ratelimit_shape_t               shape;

    uint64_t                        sealed;   /* when, 0 if it is not */
    uint64_t                        horizon;  /* no counter lives longer */

    ratelimit_lock_t                lock;     /* of the classes */
    uint32_t                        nclasses;
    ratelimit_class_t               classes[RATELIMIT_CLASSES];

    /* what changes when a zone is full, in a line of its own */

    uint64_t                        line[8];
    uint64_t                        evicted;
    uint64_t                        told;     /* of these */
    uint64_t                        told_at;  /* second */
    uint32_t                        fresh;    /* blocks never used begin here */
    uint32_t                        hand;     /* of the clock over the blocks */
};


/* one cache line, apart from the slots, so that all stay in the cache */

struct ratelimit_segment_s {
    ratelimit_lock_t                lock;
    uint64_t                        spare[7];
};


typedef struct {
    uint32_t                        owner;    /* number of its slot + 1 */
    uint32_t                        used;     /* last, in seconds */
    ratelimit_state_t               state[1];
} ratelimit_block_t;


/* a decision, as far as the table must know it to make room */

typedef struct {
    ratelimit_place_t              *places;
    size_t                          n;
    const ratelimit_clock_t        *clock;
    uint32_t                        me;
} ratelimit_party_t;


/* ratelimit_slot.c */

ratelimit_slot_t *ratelimit_slot_find(const ratelimit_place_t *place);

/*
 * The state in a slot.  A small one is unpacked into words, a large one is
 * used where it is.  NULL, and a slot whose block is gone, give a state never
 * seen; it must not be written.
 */
ratelimit_state_t *ratelimit_slot_state(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, ratelimit_state_t *words);
void ratelimit_slot_pack(const ratelimit_table_t *table,
    ratelimit_slot_t *slot, const ratelimit_state_t *words);

void ratelimit_slot_guard(ratelimit_slot_t *slot, uint64_t guard);
void ratelimit_slot_name(ratelimit_place_t *place, uint32_t class,
    uint64_t guard);

/* the time from which on the slot may be used as if it were empty */
uint64_t ratelimit_slot_expires(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot);

/*
 * Makes room for a new key.  The slot holds a state never seen and stays
 * hidden until it is named: who dies before leaves an empty slot.
 */
void ratelimit_slot_reserve(ratelimit_place_t *place,
    const ratelimit_party_t *party);

int ratelimit_slot_in_use(const ratelimit_party_t *party,
    const ratelimit_slot_t *slot);


/* the highest ceiling that a small state, or any state of a table, can count */
uint64_t ratelimit_slot_small(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule);
uint64_t ratelimit_slot_most(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule);


/* ratelimit_block.c */

ratelimit_block_t *ratelimit_block(const ratelimit_table_t *table,
    uint64_t number);

void ratelimit_block_clear(const ratelimit_table_t *table, uint64_t number);

/* a block for the slot, whose segment the party holds */
uint32_t ratelimit_block_take(ratelimit_table_t *table,
    const ratelimit_slot_t *slot, const ratelimit_party_t *party);


/* ratelimit_table.c */

/* sets all that a place needs to be looked for in the active table */
void ratelimit_table_place(ratelimit_table_t *active, ratelimit_place_t *place,
    uint64_t period);

/* the segment that a slot belongs to */
ratelimit_segment_t *ratelimit_table_segment(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot);


void ratelimit_table_note_eviction(ratelimit_table_t *table);

/* the rule's class in the place's active table */
uint32_t ratelimit_table_class_of(const ratelimit_place_t *place,
    const ratelimit_rule_t *rule, uint32_t me);


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

/* brings the counter of a place over from an older table, if there is one */
void ratelimit_table_adopt(ratelimit_place_t *place,
    const ratelimit_rule_t *rule, const ratelimit_party_t *party);


#endif /* _RATELIMIT_SLOT_H_INCLUDED_ */
