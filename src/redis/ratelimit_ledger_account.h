
/*
 * Accounts of a ledger: what stands where, and how one is found, made and
 * removed.  For the files of the ledger only.
 */


#ifndef _RATELIMIT_LEDGER_ACCOUNT_H_INCLUDED_
#define _RATELIMIT_LEDGER_ACCOUNT_H_INCLUDED_


#include "core/ratelimit_math.h"
#include "redis/ratelimit_ledger.h"


#define RATELIMIT_LEDGER_CELL    64
#define RATELIMIT_LEDGER_CELLS   1024
#define RATELIMIT_LEDGER_CHAINS  256

/* of a batch: it is under way; which of the lists is open */
#define RATELIMIT_LEDGER_SENT    2
#define RATELIMIT_LEDGER_OPEN    1

/* us; a lease is a full one for so long after one and a half intervals */
#define RATELIMIT_LEDGER_FRESH   50000

/* us; and a standing one for so long after three; Redis counts it for longer */
#define RATELIMIT_LEDGER_STANDS  (59 * RATELIMIT_SECOND)


struct ratelimit_ledger_header_s {
    uint64_t                        magic;
    uint64_t                        size;
    ratelimit_shape_t               shape;
    uint64_t                        machine;
    uint64_t                        number;   /* of the last batch */
    uint64_t                        due;      /* time of the next report */
    uint32_t                        stays;    /* a process that does, or 0 */
};


typedef struct {
    ratelimit_hash_t                hash;
    ratelimit_rule_t                rule;
    uint64_t                        batch;    /* its number, SENT, OPEN */
    uint64_t                        sent;     /* time at which it was, last */
    uint64_t                        cut;      /* spent when it was cut */
    uint64_t                        spent;    /* all that was charged */
    uint64_t                        lease;    /* spent may rise so far */
    uint64_t                        standing; /* if it was renewed long ago */
    uint64_t                        share;    /* if Redis can't be asked */
    uint64_t                        renewed;  /* time, 0 if it never was */
    uint64_t                        since[2]; /* time of the first delta */
    uint32_t                        n[2];     /* deltas of each list */
    uint32_t                        next;     /* account of the chain */
    uint32_t                        name_len;
    ratelimit_delta_t               deltas[1];  /* both lists, and the name */
} ratelimit_ledger_account_t;


/*
 * A run of cells begins where a length is.  An account is linked into its chain
 * after that: a process that is killed in between leaves a run that is in no
 * chain, and is swept.
 */

struct ratelimit_ledger_segment_s {
    ratelimit_lock_t                lock;
    uint32_t                        chains[RATELIMIT_LEDGER_CHAINS];
    uint16_t                        runs[RATELIMIT_LEDGER_CELLS];
    uint64_t                        padding[7];
    unsigned char                   cells[RATELIMIT_LEDGER_CELLS]
                                         [RATELIMIT_LEDGER_CELL];
};


/* ratelimit_ledger_account.c */

/* in a segment that is locked; NULL if there is none */
ratelimit_ledger_account_t *ratelimit_ledger_find(
    ratelimit_ledger_segment_t *segment, const ratelimit_ledger_id_t *id);

/* NULL if there is no room */
ratelimit_ledger_account_t *ratelimit_ledger_insert(ratelimit_ledger_t *ledger,
    ratelimit_ledger_segment_t *segment, const ratelimit_ledger_id_t *id,
    const ratelimit_ledger_name_t *name, uint64_t now);

/* the first one from a cell on, which is set to the one behind it; or NULL */
ratelimit_ledger_account_t *ratelimit_ledger_walk(
    ratelimit_ledger_segment_t *segment, uint32_t *cell);


static ratelimit_inline ratelimit_delta_t *
ratelimit_ledger_list(const ratelimit_ledger_t *ledger,
    ratelimit_ledger_account_t *account, unsigned which)
{
    return &account->deltas[which * ledger->ndeltas];
}


static ratelimit_inline unsigned
ratelimit_ledger_open_list(const ratelimit_ledger_account_t *account)
{
    return account->batch & RATELIMIT_LEDGER_OPEN;
}


/* whether all that it has charged is counted */

static ratelimit_inline int
ratelimit_ledger_is_reported(const ratelimit_ledger_account_t *account)
{
    return account->n[ratelimit_ledger_open_list(account)] == 0
           && !(account->batch & RATELIMIT_LEDGER_SENT);
}


#endif /* _RATELIMIT_LEDGER_ACCOUNT_H_INCLUDED_ */
