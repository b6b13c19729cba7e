
/*
 * How often limits have said what.  The counts of a limit, which are those of
 * all uses of one name in a zone, are a cell; each worker counts in a lane of
 * cells of its own, and lanes are added up when the counts are read.  The
 * memory outlives reloads.
 *
 * Limits that are decided at once, a ring, are counted by one addition.  Each
 * has a cell for this ring.  What is counted there is what that limit has said
 * while the others have passed the request; if it was bypassed, so were they.
 */


#ifndef _NGX_HTTP_RATELIMIT_STATISTICS_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_STATISTICS_H_INCLUDED_


#include "store/ngx_http_ratelimit_store.h"


/* if there are more workers, several of them count in one lane */
#define NGX_HTTP_RATELIMIT_LANES  64

/* limits of a ring; more are counted each */
#define NGX_HTTP_RATELIMIT_RING   8


/* where two decisions about a request differ, the later one is its status */

#define ngx_http_ratelimit_each_status(X)                                     \
    X(PASSED, passed)                                                         \
    X(SOFT, soft)                                                             \
    X(ELASTIC, elastic)                                                       \
    X(DELAYED, delayed)                                                       \
    X(DELAYED_DRY_RUN, delayed_dry_run)                                       \
    X(REJECTED_DRY_RUN, rejected_dry_run)                                     \
    X(REJECTED, rejected)                                                     \
    X(BYPASSED, bypassed)                                                     \
    X(FAILED_OPEN, failed_open)                                               \
    X(FAILED_CLOSED, failed_closed)

#define ngx_http_ratelimit_status_number(NAME, name)                          \
    NGX_HTTP_RATELIMIT_##NAME,

typedef enum {
    NGX_HTTP_RATELIMIT_UNDECIDED = 0,
    ngx_http_ratelimit_each_status(ngx_http_ratelimit_status_number)
    NGX_HTTP_RATELIMIT_STATUSES
} ngx_http_ratelimit_status_e;


/* a cell; the first status is none */

typedef struct {
    ngx_atomic_t                    delayed;  /* microseconds */
    ngx_atomic_t                    requests[NGX_HTTP_RATELIMIT_STATUSES - 1];
} ngx_http_ratelimit_counts_t;


/* the uses of one name in a zone, as they are shown */

typedef struct ngx_http_ratelimit_owner_s  ngx_http_ratelimit_owner_t;


typedef struct {
    ngx_http_ratelimit_use_t       *use;      /* the first of them */
    ngx_http_ratelimit_owner_t     *owner;    /* of their cell */
    ngx_array_t                     sources;  /* of their counts */
    ngx_uint_t                      keys;     /* bits of ..._key_e: what keys
                                                 of any of them are */
    ngx_array_t                     rules;    /* ratelimit_rule_t *, each rate
                                                 once */
    ngx_array_t                     variables;  /* ngx_str_t *, rates that vary,
                                                 each text once */
} ngx_http_ratelimit_tally_t;


/* the lane of this worker, and whether there are statistics */
extern ngx_uint_t  ngx_http_ratelimit_lane;
extern ngx_uint_t  ngx_http_ratelimit_counted;

/*
 * Adds up lanes that begin so many bytes after one another: of each, so many
 * bytes of ngx_atomic_t.
 */
void ngx_http_ratelimit_sum_lanes(void *first, size_t step, ngx_uint_t n,
    void *sum, size_t size);


/*
 * Configuration time: these limits are decided at once, by a query that has so
 * many rows for all of them.
 */
void ngx_http_ratelimit_statistics_join(ngx_http_ratelimit_use_t **uses,
    ngx_uint_t n, ngx_uint_t rows);


/* configuration time: the limits of these zones are to be counted */
ngx_int_t ngx_http_ratelimit_statistics_declare(ngx_conf_t *cf,
    ngx_array_t *zones, void *tag);

/* all zones of a configuration that is used from now on */
void ngx_http_ratelimit_statistics_activate(ngx_cycle_t *cycle,
    ngx_array_t *zones);

/* the lane of the worker, where the cells of all limits are from now on */
void ngx_http_ratelimit_statistics_init_process(ngx_cycle_t *cycle,
    ngx_array_t *zones);

/*
 * Adds up the counts of a limit: all since nginx was started, or those since
 * they were last reset.
 */
void ngx_http_ratelimit_statistics_read(ngx_http_ratelimit_tally_t *tally,
    ngx_http_ratelimit_counts_t *all, ngx_http_ratelimit_counts_t *recent);

/* how many lanes workers have ever used */
ngx_uint_t ngx_http_ratelimit_statistics_lanes(
    ngx_http_ratelimit_zone_t *zone);

/* from now on, recent counts of the zone's limits and evictions begin with 0 */
void ngx_http_ratelimit_statistics_reset(ngx_http_ratelimit_zone_t *zone);


/* after a reload a lane has two workers for a while */

static ratelimit_inline void
ngx_http_ratelimit_count_in(u_char *cell, ngx_http_ratelimit_status_e status)
{
    ngx_http_ratelimit_counts_t  *counts;

    counts = (ngx_http_ratelimit_counts_t *) cell;

    (void) ngx_atomic_fetch_add(&counts->requests[status - 1], 1);
}


static ratelimit_inline void
ngx_http_ratelimit_count_delay(u_char *cell, uint64_t delay)
{
    ngx_http_ratelimit_counts_t  *counts;

    counts = (ngx_http_ratelimit_counts_t *) cell;

    (void) ngx_atomic_fetch_add(&counts->delayed, delay);
}


/* one limit alone */

static ratelimit_inline void
ngx_http_ratelimit_count(ngx_http_ratelimit_use_t *use,
    ngx_http_ratelimit_status_e status)
{
    ngx_http_ratelimit_count_in(use->cell, status);
}


#endif /* _NGX_HTTP_RATELIMIT_STATISTICS_H_INCLUDED_ */
