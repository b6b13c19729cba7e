
/*
 * What stands where in a table's memory.  For the files of the table only.
 *
 * A slot's id is 54 bits of fingerprint, 4 of class, one that tells that its
 * key is being refused, and 5 of the epoch in which it was used last.  Its word
 * is a small state (ratelimit_small.h), or the number of the block that holds a
 * larger one, 30 bits, which the number of a sliding_window's newest sub-window
 * stands before: so it is seen without the block that it has run out.
 */


#ifndef _RATELIMIT_LAYOUT_H_INCLUDED_
#define _RATELIMIT_LAYOUT_H_INCLUDED_


#include "core/ratelimit_math.h"
#include "store/ratelimit_table.h"


#define RATELIMIT_WAYS               8       /* slots of a bucket */
#define RATELIMIT_CLASSES            16

#define RATELIMIT_FINGERPRINT        (~(uint64_t) 0x3ff)
#define RATELIMIT_CLASS_SHIFT        6
#define RATELIMIT_CLASS_MASK         ((RATELIMIT_CLASSES - 1ULL)              \
                                      << RATELIMIT_CLASS_SHIFT)
#define RATELIMIT_EPOCHS             32
#define RATELIMIT_REFUSED            ((uint64_t) RATELIMIT_EPOCHS)

/* places to remember what was told, and when */
#define RATELIMIT_TOLD               512

#define RATELIMIT_BLOCK_BITS         30
#define RATELIMIT_BLOCK_MASK         ((1ULL << RATELIMIT_BLOCK_BITS) - 1)


typedef struct {
    uint64_t                        limit;
    uint64_t                        period;
    uint64_t                        horizon;
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
    uint64_t                        told_at;
    uint32_t                        fresh;    /* blocks never used begin here */
    uint32_t                        hand;     /* of the clock over the blocks */

    uint64_t                        things[RATELIMIT_TOLD];  /* hash, ms */
};


/* one cache line, apart from the slots, so that all stay in the cache */

struct ratelimit_segment_s {
    ratelimit_lock_t                lock;
    uint64_t                        now;      /* the latest time seen here */
    uint64_t                        inserts;  /* new keys, see epoch */
    uint64_t                        spare[5];
};


typedef struct {
    uint32_t                        owner;    /* number of its slot + 1 */
    uint32_t                        spare;
    ratelimit_state_t               state[1];
} ratelimit_block_t;


/* by a word; the number is that of the block + 1, if it is 0 there is none */

static ratelimit_inline ratelimit_block_t *
ratelimit_block(const ratelimit_table_t *table, uint64_t word)
{
    uint64_t  n;

    n = (word & RATELIMIT_BLOCK_MASK) - 1;

    if (n >= table->nblocks) {
        return NULL;
    }

    return (ratelimit_block_t *) (table->blocks + n * table->block_size);
}


#endif /* _RATELIMIT_LAYOUT_H_INCLUDED_ */
