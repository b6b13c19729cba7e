
/*
 * The table of counters in memory that processes share.
 *
 * A key is known by a keyed hash.  The hash picks a segment, which has a lock
 * of its own, and two lines of eight slots in it, where the counters stand;
 * large ones are in blocks (ratelimit_table_layout.h).
 *
 * A process may be killed at any instruction, even with locks held: every write
 * leaves a sound state, and another process takes over the lock of a dead one
 * (ratelimit_lock.h).
 */


#ifndef _RATELIMIT_TABLE_H_INCLUDED_
#define _RATELIMIT_TABLE_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_hash.h"
#include "table/ratelimit_lock.h"


/* no decision has more limits in one table */
#define RATELIMIT_MAX_ITEMS   256

/*
 * Words of a state that a place remembers: as many as a sliding_window with
 * buckets=10 and counters of four bytes has.
 */
#define RATELIMIT_REMEMBERED  7


typedef struct ratelimit_table_s    ratelimit_table_t;
typedef struct ratelimit_header_s   ratelimit_header_t;
typedef struct ratelimit_segment_s  ratelimit_segment_t;
typedef struct ratelimit_place_s    ratelimit_place_t;


typedef struct {
    uint64_t                        id;       /* fingerprint, class, usage */
} ratelimit_slot_t;


/* where a table keeps states */

typedef enum {
    RATELIMIT_IN_WORD = 0,      /* packed, in the line */
    RATELIMIT_IN_LINE,
    RATELIMIT_IN_BLOCK
} ratelimit_where_e;


/* how a table keeps and changes states; the compiler knows the usual kinds */

typedef struct {
    ratelimit_shape_t               shape;
    ratelimit_where_e               where;
    ratelimit_form_e                form;
    uint32_t                        drips;
    uint32_t                        size;     /* bytes of a state */
    ratelimit_look_pt               look;
    ratelimit_charge_pt             charge;
} ratelimit_kind_t;


/* a decision compiled for a kind, see ratelimit_table_decide.c */

typedef int (*ratelimit_decide_pt)(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me);

typedef struct {
    const ratelimit_kind_t         *kind;
    ratelimit_decide_pt             one;      /* about one limit */
    ratelimit_decide_pt             two;
} ratelimit_instance_t;


/* for all kinds, also for a table that follows an older one */
extern const ratelimit_instance_t  ratelimit_table_any;


/* a process' view of a table; all else is in the shared memory */

struct ratelimit_table_s {
    ratelimit_kind_t                kind;
    const ratelimit_instance_t     *instance; /* for this kind */
    const ratelimit_algorithm_t    *algorithm;
    ratelimit_lifelines_t          *lifelines;
    ratelimit_table_t              *older;    /* see seal */
    void                           *data;     /* the caller's */

    ratelimit_header_t             *header;
    uint64_t                       *classes;  /* periods; where it drips, each
                                                 with a limit behind it */
    ratelimit_segment_t            *segments;
    ratelimit_slot_t               *slots;
    unsigned char                  *blocks;
    uint32_t                       *owners;   /* of blocks: slots, from 1 on */

    uint32_t                        packed;   /* the argument of open */
    uint32_t                        nclasses; /* there is room for */
    uint32_t                        nsegments;
    uint32_t                        spread;   /* the same, also when another
                                                 table has taken them */
    uint32_t                        nlines;   /* of a segment */
    uint32_t                        line_size;
    uint32_t                        slot_size;  /* of a slot's part of it, but
                                                 for its id */
    uint32_t                        nblocks;  /* 0 if there are none */
    uint32_t                        block_size;
    uint32_t                        epoch_shift;
};


/* where one limit of a decision is counted; the caller sets table and hash */

struct ratelimit_place_s {
    ratelimit_table_t              *table;
    ratelimit_hash_t                hash;     /* of the key */

    /* set by a decision */

    ratelimit_table_t              *active;   /* the table, or an older one */
    unsigned                        evicted;  /* the first place's: a counter
                                                 had to go for this decision,
                                                 and this can be reported */

    /* private to the table */

    ratelimit_segment_t            *segment;
    ratelimit_slot_t               *line[2];
    ratelimit_slot_t               *slot;
    uint64_t                        fingerprint;
    uint64_t                        ticket;
    size_t                          order;    /* n'th place to be locked */
    ratelimit_state_t               state[RATELIMIT_REMEMBERED];  /* unpacked,
                                                 or a copy, see describe */
    uint64_t                        cost;     /* what is not in it */
    ratelimit_clock_t               clock;
    ratelimit_rule_t                rule;     /* restrained, see migrate */
};


/*
 * Makes a table in size bytes at memory, which begin with a cache line and are
 * zeros, or opens the one that is there.  States are packed if the caller says
 * that all rules permit it, and their form does.  The secret is that of a new
 * table; an old one keeps its own.  Returns NULL if the memory is too small or
 * holds a table of another shape.
 */
ratelimit_table_t *ratelimit_table_open(ratelimit_table_t *table, void *memory,
    size_t size, const ratelimit_shape_t *shape, uint32_t packed,
    const ratelimit_hash_t *secret, ratelimit_lifelines_t *lifelines);

/*
 * Makes the shape large enough for a rule; to be done before open.  Returns
 * whether a packed state is large enough, too.
 */
uint32_t ratelimit_table_fit(ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule);

/* whether a table of so many bytes is large enough for so many at once */
int ratelimit_table_holds(const ratelimit_shape_t *shape, uint32_t packed,
    size_t size, size_t items);

void *ratelimit_table_memory(const ratelimit_table_t *table, size_t *size);
const ratelimit_hash_t *ratelimit_table_secret(const ratelimit_table_t *table);

/*
 * To be called for each rule before its first decision, so that the table knows
 * when its counters expire, and an older one does that is still in use.
 */
void ratelimit_table_add_rule(ratelimit_table_t *table,
    const ratelimit_rule_t *rule, uint32_t me);


/*
 * Limit, which is 1 where it makes no difference to when counters expire, and
 * period of the n'th kind of rule that was added, from 0 on; returns 0 if there
 * are not so many.  Of rules that share a class none is known by itself.
 */
int ratelimit_table_get_rule(const ratelimit_table_t *table, size_t n,
    ratelimit_rule_t *rule);


/*
 * One decision about all places.  The caller sets table and hash of each
 * place, rule, cost and count_rejected of each item; times are multiples of a
 * millisecond, and the steady one is of a clock that all processes share and
 * that never goes back, though a process may be late in reading it.  Sets the
 * first group of each verdict.  Returns 1 if all limits allow.
 */
static inline int ratelimit_table_decide(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me);
int ratelimit_table_decide_any(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me);

/*
 * Sets the figures of all verdicts as they were at the time of the decision,
 * whatever has happened since.  Items without a state, which the table has not
 * decided about, are passed over.
 */
void ratelimit_table_describe(ratelimit_item_t *items,
    const ratelimit_place_t *places, size_t n);

/*
 * Look at all places as a decision would, and change nothing; each limit by
 * itself, so that one counter may be looked at with several costs.  Sets whole
 * verdicts.
 */
void ratelimit_table_peek(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me);

/* remove the counters of all places, as if their keys had never been seen */
void ratelimit_table_reset(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me);

/*
 * Settle a decision, whose verdicts hold the stamps: refund takes back what it
 * charged or reserved, by commit its reservations count from now on.
 */
void ratelimit_table_refund(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me);
void ratelimit_table_commit(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me);

/*
 * A state, of the shape of the place's table, in the place of what was counted
 * there: others have counted, too.  The caller sets rule and state of the item.
 */
void ratelimit_table_replace(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_clock_t *clock, uint32_t me);

/*
 * Statistics of a table and the older ones that it follows, added up from what
 * their segments count; no lock is needed.  An entry that has expired is one
 * until its slot is needed.  Evictions are those of counters that had not
 * expired, and go on from table to table.  The bytes are those of the entries
 * with their share of all that is needed to find them, and of the rest; they
 * reach the size when the table is full.  Both are of the table that processes
 * count in, which evicts then, not of one that only waits for its counters to
 * move.
 */
uint64_t ratelimit_table_entries(const ratelimit_table_t *table);
uint64_t ratelimit_table_evictions(const ratelimit_table_t *table);
uint64_t ratelimit_table_bytes_used(ratelimit_table_t *table, uint64_t *size);

/* dismisses the evictions up to now; how many were dismissed so far */
void ratelimit_table_dismiss_evictions(ratelimit_table_t *table);
uint64_t ratelimit_table_dismissed(const ratelimit_table_t *table);

/*
 * Those of a table that is dropped, which is gone from the first call on: each
 * is returned once.  And of the table in its place, which counts on with them;
 * some of them may be dismissed.
 */
uint64_t ratelimit_table_leave_evictions(ratelimit_table_t *table);
int ratelimit_table_is_gone(const ratelimit_table_t *table);
void ratelimit_table_inherit_evictions(ratelimit_table_t *table, uint64_t n,
    uint64_t dismissed);

/* the table's evictions since the last report; 0 within a second after it */
uint64_t ratelimit_table_new_evictions(ratelimit_table_t *table,
    uint64_t now);

/*
 * Counts an event of this second: returns how many there were so far.  The
 * other two add up those that were not logged, and return the sum, which begins
 * with 0 again.
 */
uint64_t ratelimit_table_count_event(ratelimit_table_t *table, uint64_t now);
void ratelimit_table_count_unlogged(ratelimit_table_t *table);
uint64_t ratelimit_table_unlogged(ratelimit_table_t *table);

/*
 * Returns 1 once a second for an event, known by its hash.  Two events that
 * share a place may be reported more often.
 */
int ratelimit_table_once_a_second(ratelimit_table_t *table, uint32_t event,
    uint64_t now);


/*
 * Migration (ratelimit_table_migrate.c).  A table follows an older one that
 * has the same secret, algorithm and buckets.  Until the older one is sealed,
 * which is once no process is left that knows it alone, all count there; from
 * then on each counter moves when its key is seen.  Seal is called with the
 * table that follows, and seals all older ones.  Spent is an older table in
 * which nothing counts any more, nor in those that it follows.
 */
void ratelimit_table_follow(ratelimit_table_t *table,
    ratelimit_table_t *older);
void ratelimit_table_seal(ratelimit_table_t *table, uint64_t now);
int ratelimit_table_sealed(const ratelimit_table_t *older);
int ratelimit_table_spent(const ratelimit_table_t *older, uint64_t now);

/*
 * To be called before seal, until it returns 0: then the table and those that
 * it follows and that have memory are not larger than so many times, two at
 * least, the largest of them.  If they would be, each call moves some counters
 * of an older table, which is sealed, to a newer one that is in use, so that
 * the memory of the former can be freed.
 *
 * Moved is an older table of which all was taken.  It stays in the chain: how
 * it was cut says where its counters are now.  It may be left out if it is
 * abandoned: it had no counters, or the table that took them is out.  Forget is
 * for a process that is to use no more than its first page.
 */
int ratelimit_table_take(ratelimit_table_t *table, size_t times,
    const ratelimit_clock_t *clock, uint32_t me);
int ratelimit_table_moved(const ratelimit_table_t *older);
int ratelimit_table_abandoned(ratelimit_table_t *table,
    const ratelimit_table_t *older);
void ratelimit_table_forget(ratelimit_table_t *older);


/* picks the decision that is compiled for the tables of all places */

static inline int
ratelimit_table_decide(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    const ratelimit_table_t     *first, *second;
    const ratelimit_instance_t  *instance;

    first = places[0].table;
    instance = first->older ? &ratelimit_table_any : first->instance;

    if (n == 1) {
        return instance->one(items, places, n, clock, me);
    }

    second = places[1].table;

    if (n == 2 && second->instance == instance && second->older == NULL) {
        return instance->two(items, places, n, clock, me);
    }

    return ratelimit_table_decide_any(items, places, n, clock, me);
}


#endif /* _RATELIMIT_TABLE_H_INCLUDED_ */
