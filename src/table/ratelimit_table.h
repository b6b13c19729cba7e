
/*
 * The table of counters in memory that processes share.
 *
 * A key is known by a keyed hash.  The hash picks a segment, which has a lock
 * of its own, and two buckets of eight slots in it, where the counters stand;
 * large ones are in blocks (ratelimit_layout.h).
 *
 * A process that dies at any instruction, even with locks held, harms nobody:
 * every write leaves a sound state, and the lock of a dead process is taken
 * over (ratelimit_lock.h).
 */


#ifndef _RATELIMIT_TABLE_H_INCLUDED_
#define _RATELIMIT_TABLE_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_hash.h"
#include "table/ratelimit_lock.h"


/* no decision has more limits in one table */
#define RATELIMIT_MAX_ITEMS  256

/* words of a state that are kept to be explained: as the default has */
#define RATELIMIT_KEPT       4


typedef struct ratelimit_table_s    ratelimit_table_t;
typedef struct ratelimit_header_s   ratelimit_header_t;
typedef struct ratelimit_segment_s  ratelimit_segment_t;
typedef struct ratelimit_place_s    ratelimit_place_t;


typedef struct {
    uint64_t                        id;       /* fingerprint, class, guard */
} ratelimit_slot_t;


/* decisions about one key, compiled for a shape, see ratelimit_quick.c */

typedef int (*ratelimit_quick_pt)(ratelimit_item_t *items,
    ratelimit_place_t *places, const ratelimit_clock_t *clock, uint32_t me);

typedef struct {
    ratelimit_quick_pt              one;      /* of one limit */
    ratelimit_quick_pt              two;
} ratelimit_quick_t;


/* a process' view of a table; all else is in the shared memory */

struct ratelimit_table_s {
    ratelimit_shape_t               shape;
    const ratelimit_algorithm_t    *algorithm;
    ratelimit_lifelines_t          *lifelines;
    ratelimit_table_t              *older;    /* see seal */
    void                           *data;     /* the caller's */

    ratelimit_header_t             *header;
    ratelimit_segment_t            *segments;
    ratelimit_slot_t               *slots;
    unsigned char                  *blocks;
    uint32_t                       *owners;   /* of blocks: slots, from 1 on */

    uint32_t                        nsegments;
    uint32_t                        nbuckets; /* of a segment */
    uint32_t                        bucket_size;
    uint32_t                        size;     /* of a slot's part of it, but
                                                 for its id */
    uint32_t                        small;    /* states are one word */
    uint32_t                        nblocks;  /* 0 if there are none */
    uint32_t                        block_size;
    uint32_t                        epoch_shift;
    uint32_t                        brief;    /* states can be kept */
    const ratelimit_quick_t        *quick;    /* or NULL */
};


/* where one limit of a decision is counted */

struct ratelimit_place_s {
    ratelimit_table_t              *table;
    ratelimit_hash_t                hash;     /* of the key */

    /* private to the table while it decides */

    ratelimit_table_t              *active;
    ratelimit_segment_t            *segment;
    ratelimit_slot_t               *bucket[2]; /* the second one is known only
                                                 if the first was in vain */
    uint64_t                        mix;      /* of key and period */
    ratelimit_slot_t               *slot;
    ratelimit_segment_t            *blocked;  /* what others are holding */
    unsigned                        evicted;  /* the first one's: somebody had
                                                 to go for one of them, and
                                                 this is to be told now */
    uint64_t                        fingerprint;
    uint64_t                        ticket;
    size_t                          order;    /* n'th place to be locked */
    ratelimit_state_t               state[RATELIMIT_KEPT];  /* a small one, or a
                                                 copy, see explain */
    uint64_t                        asked;    /* cost that is not in it */
    ratelimit_clock_t               clock;
    ratelimit_rule_t                rule;     /* as far as it fits */
};


/*
 * Makes a table in size bytes at memory, which begin with a cache line and are
 * zeros, or opens the one that is there.  The secret is that of a new table; an
 * old one keeps its own.  Returns NULL if the memory is too small or holds a
 * table of another shape.
 */
ratelimit_table_t *ratelimit_table_open(ratelimit_table_t *table, void *memory,
    size_t size, const ratelimit_shape_t *shape,
    const ratelimit_hash_t *secret, ratelimit_lifelines_t *lifelines);

/* makes the shape large enough for a rule; to be done before open */
void ratelimit_table_fit(ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule);

/* whether a table of so many bytes is large enough for so many at once */
int ratelimit_table_holds(const ratelimit_shape_t *shape, size_t size,
    size_t items);

void *ratelimit_table_memory(const ratelimit_table_t *table, size_t *size);
const ratelimit_hash_t *ratelimit_table_secret(const ratelimit_table_t *table);

/*
 * The class of a rule, to be kept in it: by it a table knows when a counter
 * has run out.  0 if the table knows too many already.
 */
uint32_t ratelimit_table_class(ratelimit_table_t *table,
    const ratelimit_rule_t *rule, uint32_t me);


/*
 * One decision about all places.  The caller sets table and hash of each
 * place, rule, cost and insist of each item; times are multiples of a
 * millisecond, and of a clock that all processes share and that never goes
 * back, though one of them may be late in reading it.
 * Returns 1 if all were charged, 0 if none was.
 */
int ratelimit_table_check(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me);

/*
 * The same for who may not want to know all: of the verdicts only that is set
 * which ratelimit_algorithm_t's glance sets, and brief.  Explain tells the rest
 * of them, as it was at that time, if it was not told yet.
 */
static inline int ratelimit_table_decide(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me);
int ratelimit_table_decide_any(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me);
void ratelimit_table_explain(ratelimit_item_t *items,
    const ratelimit_place_t *places, size_t n);

/* gives back what check charged; the verdicts hold the stamps */
void ratelimit_table_refund(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me);

/* counters that were dropped before their time since the table was made */
uint64_t ratelimit_table_evicted(const ratelimit_table_t *table);

/* the same since this was last told, once a second at most; otherwise 0 */
uint64_t ratelimit_table_evictions(ratelimit_table_t *table, uint64_t now);

/*
 * Whether some thing, known by its hash, was not told for a second; then it
 * counts as told now.  Two that share a place may be told more often.
 */
int ratelimit_table_tell(ratelimit_table_t *table, uint32_t thing,
    uint64_t now);


/*
 * Succession (ratelimit_succession.c).  A table follows an older one that has
 * the same secret, algorithm and buckets.  Until the older one is sealed,
 * which is once no process is left that knows it alone, all count there; from
 * then on each counter moves when its key is seen.  Spent is an older table
 * in which nothing counts any more.
 */
void ratelimit_table_seal(ratelimit_table_t *older, uint64_t now);
int ratelimit_table_sealed(const ratelimit_table_t *older);
int ratelimit_table_spent(const ratelimit_table_t *older, uint64_t now);


static inline int
ratelimit_table_decide(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    ratelimit_table_t  *table;

    table = places[0].table;

    if (table->quick && table->older == NULL) {

        if (n == 1) {
            return table->quick->one(items, places, clock, me);
        }

        if (n == 2 && places[1].table == table
            && places[1].hash.hi == places[0].hash.hi)
        {
            return table->quick->two(items, places, clock, me);
        }
    }

    return ratelimit_table_decide_any(items, places, n, clock, me);
}


#endif /* _RATELIMIT_TABLE_H_INCLUDED_ */
