
/*
 * The breaker, which all processes of a machine share: after some failures in a
 * row it opens, and a server is not used any more, except by one request at a
 * time, the probe.
 *
 * The state is one word that is changed at once, so that a process that is
 * killed at any instruction leaves nothing half done.  Times are milliseconds
 * of a clock that the processes share.
 */


#ifndef _RATELIMIT_BREAKER_H_INCLUDED_
#define _RATELIMIT_BREAKER_H_INCLUDED_


#include <stdint.h>


/* so many failures in a row open it */
#define RATELIMIT_BREAKER_FAILURES     5

/*
 * The first pause before a probe, and the longest; a quarter more or less.
 * With the time that a probe takes it must stay below the 5 seconds in which a
 * server that works again is used.
 */
#define RATELIMIT_BREAKER_FIRST_PAUSE  100
#define RATELIMIT_BREAKER_LAST_PAUSE   2000


typedef enum {
    RATELIMIT_BREAKER_GO = 0,   /* closed */
    RATELIMIT_BREAKER_PROBE,    /* open, only the caller may send */
    RATELIMIT_BREAKER_STOP      /* open */
} ratelimit_breaker_e;


/* of zeros: closed */

typedef struct {
    uint64_t                        word;     /* until:48, pauses:8,
                                                 failures:8 */
} ratelimit_breaker_t;


/*
 * A probe is the only one for "timeout" milliseconds, not 0: if it has no
 * result by then, another one is sent.
 */
ratelimit_breaker_e ratelimit_breaker_ask(ratelimit_breaker_t *breaker,
    uint64_t now, uint64_t timeout);

/* the server has replied; returns 1 if this closed the breaker */
int ratelimit_breaker_success(ratelimit_breaker_t *breaker);

/*
 * The server has failed a request that was permitted to go or to probe.
 * Returns 1 if this opened the breaker.  A probe that fails makes the pause
 * longer; other requests that fail while it is open were sent before, and
 * change nothing.
 */
int ratelimit_breaker_failure(ratelimit_breaker_t *breaker,
    ratelimit_breaker_e permit, uint64_t now, uint32_t random);

/* whether it would say stop */
int ratelimit_breaker_stops(const ratelimit_breaker_t *breaker, uint64_t now,
    uint64_t timeout);

int ratelimit_breaker_is_open(const ratelimit_breaker_t *breaker);

/* whether the last request has failed, open or not */
int ratelimit_breaker_has_failed(const ratelimit_breaker_t *breaker);


#endif /* _RATELIMIT_BREAKER_H_INCLUDED_ */
