
/*
 * The ledger of a machine that decides by itself and reports to Redis later:
 * for each counter what it may still charge, and what it has charged since the
 * last report, in memory that processes share.
 *
 * An account has two lists of deltas.  What is charged goes to the list that is
 * open.  To cut a batch is to make the other one the open list, by one write
 * that gives the batch its number, too; there is one batch of a counter under
 * way at a time, and it is sent until Redis has counted it.  So a process may
 * be killed at any instruction: no delta is lost, and none is in two batches.
 *
 * Accounts are found by the hash of a key and the period of its rule.  They are
 * in segments, each with a lock of its own (ratelimit_lock.h), as runs of
 * cells: a name of any length fits, as long as a segment has room.
 *
 * Times are microseconds of a clock that all processes of the machine share,
 * but for stamps, which are those of Redis.
 */


#ifndef _RATELIMIT_LEDGER_H_INCLUDED_
#define _RATELIMIT_LEDGER_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_hash.h"
#include "redis/ratelimit_exchange.h"
#include "table/ratelimit_lock.h"


/* deltas that a list has room for, at most */
#define RATELIMIT_LEDGER_DELTAS  64


typedef struct ratelimit_ledger_header_s   ratelimit_ledger_header_t;
typedef struct ratelimit_ledger_segment_s  ratelimit_ledger_segment_t;


/* a process' view of a ledger */

typedef struct {
    ratelimit_ledger_header_t      *header;
    uint64_t                       *dirty;    /* segments to report, bits */
    ratelimit_ledger_segment_t     *segments;
    uint32_t                        nsegments;
    uint32_t                        ndeltas;  /* of a list */
    uint32_t                        stamps;   /* see ratelimit_algorithm_t */
    uint32_t                        drips;
    uint64_t                        interval; /* between two reports */
    ratelimit_lifelines_t          *lifelines;
} ratelimit_ledger_t;


/* the counter of an account */

typedef struct {
    ratelimit_hash_t                hash;     /* of the key */
    const ratelimit_rule_t         *rule;
} ratelimit_ledger_id_t;


typedef struct {
    const unsigned char            *data;
    size_t                          len;
} ratelimit_ledger_name_t;


/* what an account says, as a copy */

typedef struct {
    ratelimit_hash_t                hash;
    ratelimit_rule_t                rule;
    ratelimit_ledger_name_t         name;     /* while the segment is locked */
    uint64_t                        spent;    /* all that was ever charged */
    uint64_t                        number;   /* of the batch, 0 without one */
    unsigned                        repeated; /* it was taken before */
    unsigned                        counted;  /* deltas that Redis has counted
                                                 just now */
    unsigned                        nbatch;
    unsigned                        nopen;
    ratelimit_delta_t               batch[RATELIMIT_LEDGER_DELTAS];
    ratelimit_delta_t               open[RATELIMIT_LEDGER_DELTAS];
} ratelimit_ledger_copy_t;


/* what limits a charge */

typedef enum {
    RATELIMIT_LEDGER_LEASE = 0,     /* Redis would be asked */
    RATELIMIT_LEDGER_SHARE,         /* Redis can't be asked */
    RATELIMIT_LEDGER_NOTHING        /* it was admitted without it */
} ratelimit_ledger_e;


/* what Redis said */

typedef struct {
    uint64_t                        number;   /* of the batch that it was sent,
                                                 0 without one */
    uint64_t                        spent;    /* as far as the question
                                                 said; 0 if there was none */
    uint64_t                        asked;    /* time at which it was */
    unsigned                        question;
    const ratelimit_grant_t        *grant;
} ratelimit_answer_t;


typedef struct {
    uint64_t                        pending;  /* deltas not counted yet */
    uint64_t                        oldest;   /* time of one, 0 without any */
} ratelimit_ledger_figures_t;


/*
 * Makes a ledger in memory of zeros, with this name of the machine, or opens
 * the one that is there.  Returns 0 if the memory is too small, or holds a
 * ledger for other counters.
 */
int ratelimit_ledger_open(ratelimit_ledger_t *ledger, void *memory,
    size_t size, const ratelimit_shape_t *shape, uint64_t interval,
    uint64_t machine, ratelimit_lifelines_t *lifelines);

uint64_t ratelimit_ledger_machine(const ratelimit_ledger_t *ledger);

/* whether a charge is likely to succeed; waits for no other process */
int ratelimit_ledger_affords(const ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t cost, uint64_t now, uint32_t me);

/* returns 0 if that is too much, or if the counter has no account */
int ratelimit_ledger_charge(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t cost, uint64_t stamp,
    uint64_t now, ratelimit_ledger_e bound, uint32_t me);

/* the same without a bound; makes an account; 0 if there is no room */
int ratelimit_ledger_debit(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, const ratelimit_ledger_name_t *name,
    uint64_t cost, uint64_t stamp, uint64_t now, uint32_t me);

/* returns 0 if the counter has no account: all it ever charged is counted */
int ratelimit_ledger_refund(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t cost, uint64_t stamp,
    uint64_t now, uint32_t me);

/*
 * Redis is to be asked: takes a batch, if none is under way, and all else that
 * was not counted.  Returns 0 if the counter has no account.
 */
int ratelimit_ledger_ask(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t now,
    ratelimit_ledger_copy_t *copy, uint32_t me);

/*
 * Redis has answered.  The answer to a question makes an account if there is
 * something to charge.  The copy is that of afterwards.
 */
void ratelimit_ledger_answer(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, const ratelimit_ledger_name_t *name,
    const ratelimit_answer_t *answer, ratelimit_ledger_copy_t *copy,
    uint32_t me);

/* adds the deltas of a copy to a state in Redis, which does not contain them */
void ratelimit_ledger_merge(const ratelimit_ledger_copy_t *copy,
    const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_clock_t *clock, ratelimit_state_t *state);


/*
 * Takes batches to be sent, from the cursor on, which is 0 at first: the
 * handler gets each as a copy, and returns 0 to be given no more.  Batches that
 * were taken before and are not counted yet are taken again if that was before
 * "again".  Returns 0 when all segments were seen.
 */
int ratelimit_ledger_batch(ratelimit_ledger_t *ledger, uint32_t *cursor,
    uint64_t now, uint64_t again, int (*handler)(void *data,
    const ratelimit_ledger_copy_t *copy), void *data, uint32_t me);

/* it can't be counted: its deltas are dropped; returns how many */
unsigned ratelimit_ledger_drop(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t number, uint32_t me);

/* the counter is reset: what was not reported does not count */
void ratelimit_ledger_forget(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint32_t me);

/* whether it is time to report: one process of all gets 1 */
int ratelimit_ledger_due(ratelimit_ledger_t *ledger, uint64_t now);

/* how long it is until then */
uint64_t ratelimit_ledger_wait(const ratelimit_ledger_t *ledger, uint64_t now);

/* whether all that was charged is counted */
int ratelimit_ledger_clean(const ratelimit_ledger_t *ledger);

/*
 * A process stays, and will report; or it leaves, which returns whether another
 * one that lives stays.
 */
void ratelimit_ledger_stay(ratelimit_ledger_t *ledger, uint32_t me);
int ratelimit_ledger_leave(ratelimit_ledger_t *ledger, uint32_t me);

void ratelimit_ledger_figures(ratelimit_ledger_t *ledger,
    ratelimit_ledger_figures_t *figures, uint32_t me);


#endif /* _RATELIMIT_LEDGER_H_INCLUDED_ */
