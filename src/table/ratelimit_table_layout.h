
/*
 * What stands where in a table's memory.  For the files of the table only.
 *
 * Eight slots are a line: their ids share a cache line, and their states stand
 * in the memory behind it, packed into a word (ratelimit_table_pack.h) or of a
 * few words, or else the number of the block that holds a larger one.
 *
 * A slot's id is 48 bits of fingerprint, 10 of class, and 6 of usage: the epoch
 * in which it was used last or, if its key was refused then, a bit that says so
 * and the minute of that.
 */


#ifndef _RATELIMIT_TABLE_LAYOUT_H_INCLUDED_
#define _RATELIMIT_TABLE_LAYOUT_H_INCLUDED_


#include "core/ratelimit_math.h"
#include "table/ratelimit_table.h"


#define RATELIMIT_CACHE_LINE         64
#define RATELIMIT_LINE_SLOTS                                                  \
    (RATELIMIT_CACHE_LINE / sizeof(ratelimit_slot_t))

/* bytes; a larger state is in a block */
#define RATELIMIT_MAX_IN_LINE        32

#define RATELIMIT_CLASSES            1024

#define RATELIMIT_FINGERPRINT        (~(uint64_t) 0xffff)
#define RATELIMIT_CLASS_SHIFT        6
#define RATELIMIT_CLASS_MASK         ((RATELIMIT_CLASSES - 1ULL)              \
                                      << RATELIMIT_CLASS_SHIFT)
#define RATELIMIT_EPOCHS             32
#define RATELIMIT_REFUSED            ((uint64_t) RATELIMIT_EPOCHS)
#define RATELIMIT_USAGE_MASK         (2 * RATELIMIT_EPOCHS - 1ULL)

/* 67 s, which is a minute here; there are as many minutes as epochs */
#define RATELIMIT_MINUTE_BITS        26

/*
 * A refusal is noted again after so many minutes, and a key is taken to be
 * refused until one more has passed.
 */
#define RATELIMIT_RECENT             2

/* within so many minutes all old marks are found, before they look recent */
#define RATELIMIT_AGING              16

/* places to remember when something was reported last */
#define RATELIMIT_REPORTS            512


/*
 * By its class a table knows when a slot expires: rules of one period have the
 * same, and of one limit if what was taken drips back, as far as there are
 * enough; then rules share one if they nearly are alike.  Class 0, which has no
 * period, is that of all rules that found no other.
 */

typedef struct {
    uint64_t                        limit;
    uint64_t                        period;
} ratelimit_class_t;


struct ratelimit_header_s {
    uint64_t                        magic;
    uint64_t                        size;
    ratelimit_hash_t                secret;
    ratelimit_shape_t               shape;
    uint32_t                        packed;

    uint64_t                        sealed;   /* when, 0 if it is not */
    uint64_t                        horizon;  /* no counter lives longer */

    ratelimit_lock_t                lock;     /* of classes, of what to take */
    uint32_t                        nclasses; /* that there are */

    /* how another table takes its counters, see migrate */

    uint64_t                        serial;   /* of the tables of a zone */
    uint64_t                        heir;     /* that table's, 0: none yet */
    uint64_t                        moved;    /* lines that it has taken */
    uint64_t                        adopted;  /* counters of them, at least */
    uint64_t                        took_at;  /* when others were taken for
                                                 its sake */

    /* what changes when a zone is full, in a cache line of its own */

    uint64_t                        padding[3];
    uint64_t                        inherited;  /* evictions of sealed tables */
    uint64_t                        dismissed;  /* of all evictions */
    uint64_t                        left;     /* evictions that were left to
                                                 another, + 1; 0: not gone */
    uint64_t                        reported; /* evictions of this one */
    uint64_t                        reported_at;
    uint32_t                        fresh;    /* blocks never used begin here */
    uint32_t                        hand;     /* of the clock over the blocks */

    uint64_t                        reports[RATELIMIT_REPORTS];  /* hash, ms */
    uint64_t                        events;   /* second:32, number:32 */
    uint64_t                        unlogged; /* of these */
};


/*
 * One cache line, apart from the slots, so that all stay in the cache.  The
 * process that holds the lock counts keys that come and go; if it dies, the
 * process that takes the lock over counts again, ratelimit_table_recount().
 */

struct ratelimit_segment_s {
    ratelimit_lock_t                lock;
    uint64_t                        now;      /* the latest time seen here */
    uint64_t                        inserts;  /* new keys, see epoch */
    uint64_t                        removals; /* of keys, also expired ones,
                                                 less those that were taken */
    uint64_t                        evictions;  /* of keys before their time */
    uint64_t                        refused;  /* the latest minute in which a
                                                 refusal was noted */
    uint64_t                        aged;     /* old marks, up to this one */
    uint64_t                        spare;
};


/* the number is that of the block + 1: 0 and numbers too large give NULL */

static ratelimit_inline ratelimit_state_t *
ratelimit_block(const ratelimit_table_t *table, uint64_t number)
{
    if (number - 1 >= table->nblocks) {
        return NULL;
    }

    return (ratelimit_state_t *) (table->blocks
                                  + (number - 1) * table->block_size);
}


/* what a slot has behind the ids, if that is one word */

static ratelimit_inline uint64_t *
ratelimit_slot_word(const ratelimit_slot_t *slot)
{
    return (uint64_t *) &slot[RATELIMIT_LINE_SLOTS].id;
}


/*
 * The same of any size: the n'th id is at n words in the line, its state at n
 * sizes behind the line.
 */

static ratelimit_inline ratelimit_state_t *
ratelimit_slot_words(const ratelimit_slot_t *slot, size_t size)
{
    uintptr_t  p;

    p = (uintptr_t) slot;

    return (ratelimit_state_t *) (p + RATELIMIT_CACHE_LINE
                                  + p % RATELIMIT_CACHE_LINE
                                    * (size / sizeof(ratelimit_slot_t) - 1));
}


#endif /* _RATELIMIT_TABLE_LAYOUT_H_INCLUDED_ */
