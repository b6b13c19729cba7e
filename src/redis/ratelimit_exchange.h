
/*
 * What a machine that decides by itself and Redis exchange, as bytes:
 * src/redis/lua/sync.lua is the other side.
 */


#ifndef _RATELIMIT_EXCHANGE_H_INCLUDED_
#define _RATELIMIT_EXCHANGE_H_INCLUDED_


#include "core/ratelimit.h"


/* bytes: of what follows the argument of a limit, and of each delta there */
#define RATELIMIT_EXCHANGE_TAIL   48
#define RATELIMIT_EXCHANGE_DELTA  16

/* the reply begins with a time; each limit has so many, and its state */
#define RATELIMIT_EXCHANGE_TIME   8
#define RATELIMIT_EXCHANGE_GRANT  36

/* times that a log may have whose state is to be exchanged */
#define RATELIMIT_EXCHANGE_RING   1024


/*
 * What was charged under one stamp, and what of it was refunded, which may come
 * after the charge was reported; the difference counts.
 */

typedef struct {
    uint64_t                        stamp;
    uint32_t                        added;
    uint32_t                        refunded;
} ratelimit_delta_t;


/* what Redis says of one limit */

typedef struct {
    uint64_t                        lease;    /* what may be charged until the
                                                 next exchange */
    uint64_t                        standing; /* if that is long ago */
    uint64_t                        share;    /* if Redis can't be asked */
    unsigned                        counted;  /* 1: the batch is */
    unsigned                        unknown;  /* 1: the state is too long */
    const unsigned char            *state;    /* as it is in Redis */
    size_t                          len;      /* 0: there is none */
} ratelimit_grant_t;


/* what is reported of one limit; a batch or a question of number 0 is none */

typedef struct {
    uint64_t                        machine;
    uint64_t                        number;
    uint64_t                        interval; /* between exchanges, us */
    uint64_t                        question;
    uint64_t                        settled;  /* all questions of the worker
                                                 below are */
    uint32_t                        worker;
    unsigned                        batch;    /* deltas in the batch */
    unsigned                        open;     /* in none yet */
} ratelimit_report_t;


/* deltas follow */
unsigned char *ratelimit_exchange_tail(unsigned char *p,
    const ratelimit_report_t *report);
unsigned char *ratelimit_exchange_delta(unsigned char *p,
    const ratelimit_delta_t *delta);

/*
 * The next limit of a reply that ends at last; returns where it ends, or NULL
 * if no script would return it.
 */
const unsigned char *ratelimit_exchange_grant(const unsigned char *p,
    const unsigned char *last, ratelimit_grant_t *grant);

/*
 * The state of a limit in Redis as that of an algorithm, which is zeros before.
 * Returns 0 if it is none.
 */
int ratelimit_exchange_state(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_clock_t *clock,
    const ratelimit_grant_t *grant, ratelimit_state_t *state);


#endif /* _RATELIMIT_EXCHANGE_H_INCLUDED_ */
