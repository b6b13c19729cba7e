
/*
 * Where counters live, as the request side sees it: zones are declared and
 * used while the configuration is read, queries are asked while requests run.
 */


#ifndef _NGX_HTTP_RATELIMIT_STORE_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_STORE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ratelimit.h"
#include "core/ratelimit_key.h"
#include "table/ratelimit_table.h"


typedef struct ngx_http_ratelimit_zone_s      ngx_http_ratelimit_zone_t;
typedef struct ngx_http_ratelimit_redis_s     ngx_http_ratelimit_redis_t;
typedef struct ngx_http_ratelimit_query_s     ngx_http_ratelimit_query_t;
typedef struct ngx_http_ratelimit_decision_s  ngx_http_ratelimit_decision_t;


typedef void (*ngx_http_ratelimit_done_pt)(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);


/*
 * A set of counters in a zone.  Uses of one name share their counters; the
 * zone's own have the empty name.  The store sets hasher, and class of each
 * rule, when the configuration has been read.
 */

typedef struct {
    ngx_str_t                       name;
    ngx_http_ratelimit_zone_t      *zone;
    ratelimit_rule_t               *rules;
    ngx_uint_t                      nrules;
    ratelimit_rule_t               *bound;    /* rules that come later keep
                                                 within it; NULL: none come */
    ngx_uint_t                      together; /* rules asked in one query */
    ngx_uint_t                      lasting;  /* a refusal holds as long as it
                                                 says: nobody gives back; of
                                                 one name all or none */
    ratelimit_hasher_t              hasher;   /* of keys */
    ngx_str_t                       suffix;   /* of the names of counters */
} ngx_http_ratelimit_use_t;


/* what remains of a limit that let pass because it could not be asked */
#define NGX_HTTP_RATELIMIT_UNASKED  UINT64_MAX


/* where a limit was decided */

typedef enum {
    NGX_HTTP_RATELIMIT_SHM = 0,
    NGX_HTTP_RATELIMIT_REDIS,
    NGX_HTTP_RATELIMIT_LOCAL              /* in shared memory, for Redis */
} ngx_http_ratelimit_backend_e;


/* whom a limit of a decision is about */

typedef struct {
    ngx_http_ratelimit_use_t       *use;
    ngx_str_t                       key;      /* lives as long as the request */
    ngx_http_ratelimit_backend_e    backend;
    ngx_uint_t                      reserved; /* its charge may be given back
                                                 when the outcome is known */
    uint64_t                        stamp;    /* of the charge in the mirror
                                                 of a zone in Redis */
} ngx_http_ratelimit_subject_t;


/* all limits of one decision; places and subjects are in the order of items */

struct ngx_http_ratelimit_query_s {
    ratelimit_item_t               *items;
    ratelimit_place_t              *places;
    ngx_http_ratelimit_subject_t   *subjects;
    ngx_uint_t                      n;
    ngx_uint_t                      remote;   /* some are not of this machine:
                                                 limits of one store follow one
                                                 another, shm's first */

    /* the answer */
    ngx_uint_t                      allowed;
    ngx_uint_t                      failed;   /* some could not be asked, and
                                                 let pass */

    ngx_log_t                      *log;
    ngx_pool_t                     *pool;

    ngx_http_ratelimit_done_pt      done;
    void                           *data;

    /* the store's own */
    ngx_http_ratelimit_decision_t  *decision;
    ngx_msec_t                      started;  /* the decision, if remote */
    void                           *pending;
};


/*
 * known   whether a limit is known to refuse before it is asked: then verdicts
 *         are set; NULL if that never is
 * check   NGX_OK     decided: allowed and all verdicts are set, those of shared
 *                    memory as ratelimit_table_decide() does
 *         NGX_AGAIN  done will be called once, later, never from inside check
 *         NGX_ERROR  the store is unusable
 * cancel  done will not be called any more; what is or will be charged for a
 *         limit stays so, or is given back if that is wanted and it has a cost
 * refund  gives back what an allowed query was charged
 * settle  the request was refused elsewhere: counts it where limits insist
 * use     a use was added, while the configuration is read
 */

typedef struct {
    ngx_uint_t  (*known)(ngx_http_ratelimit_query_t *q);
    ngx_int_t   (*check)(ngx_http_ratelimit_query_t *q);
    void        (*cancel)(ngx_http_ratelimit_query_t *q, ngx_uint_t give_back);
    void        (*refund)(ngx_http_ratelimit_query_t *q);
    void        (*settle)(ngx_http_ratelimit_query_t *q);
    ngx_int_t   (*use)(ngx_conf_t *cf, ngx_http_ratelimit_use_t *use);
} ngx_http_ratelimit_store_t;


typedef enum {
    NGX_HTTP_RATELIMIT_FAIL_LOCAL = 0,
    NGX_HTTP_RATELIMIT_FAIL_OPEN,
    NGX_HTTP_RATELIMIT_FAIL_CLOSED
} ngx_http_ratelimit_fail_e;


struct ngx_http_ratelimit_zone_s {
    ngx_str_t                       name;
    ngx_str_t                       key_text;  /* as configured */
    ngx_http_complex_value_t        key;
    ngx_array_t                     rates;     /* ratelimit_rate_t */
    ngx_http_complex_value_t       *rate;      /* gives such a list, or NULL */
    uint64_t                        capacity;  /* token_bucket; 0: N */
    ngx_http_ratelimit_fail_e       fail;
    ngx_str_t                       redis_name;  /* as configured, or empty */
    ratelimit_shape_t               shape;

    const ngx_http_ratelimit_store_t  *store;
    ngx_http_ratelimit_redis_t     *redis;     /* NULL: counted in memory */
    ngx_uint_t                      mirror;    /* counted there, too */

    /* the store's own */
    ngx_array_t                     uses;      /* ngx_http_ratelimit_use_t * */
    ngx_shm_zone_t                 *shm_zone;
    ngx_shm_zone_t                 *lifelines;
    ratelimit_table_t              *table;
    struct ratelimit_deny_cache_s  *deny_cache;  /* of Redis' refusals */
    ngx_http_ratelimit_zone_t      *former;    /* before the reload */
    ngx_pool_t                     *pool;
    ngx_str_t                       file;      /* where it was declared */
    ngx_uint_t                      line;
};


extern const ngx_http_ratelimit_store_t  ngx_http_ratelimit_shm_store;


/*
 * Configuration time.  Before a zone is declared its name, key_text and shape
 * (algorithm and buckets) are set; declaring it sets the store.  A use is added
 * once for each "ratelimit" of the configuration.  Finish is called once, when
 * http {} has been read and all uses have been added.
 */
ngx_int_t ngx_http_ratelimit_store_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, size_t size, void *tag);
ngx_int_t ngx_http_ratelimit_store_use(ngx_conf_t *cf,
    ngx_http_ratelimit_use_t *use);
ngx_int_t ngx_http_ratelimit_store_finish(ngx_conf_t *cf);

/*
 * All limits of a query as one decision, whatever stores they are in: check
 * returns as a store's does, and NGX_BUSY if a limit that can't be asked
 * fails closed.  Refund gives back what has a cost.
 */
ngx_int_t ngx_http_ratelimit_decision(ngx_http_ratelimit_query_t *q);
void ngx_http_ratelimit_store_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t give_back);
void ngx_http_ratelimit_store_refund(ngx_http_ratelimit_query_t *q);

/* a rule that was made while requests run */
void ngx_http_ratelimit_store_rule(ngx_http_ratelimit_use_t *use,
    ratelimit_rule_t *rule);

/* whether some thing is to be told: once a second, by one worker of all */
ngx_uint_t ngx_http_ratelimit_store_tell(ngx_http_ratelimit_zone_t *zone,
    uint32_t thing);

/* calls the handler, which adds the timer; ev->data is a connection */
ngx_int_t ngx_http_ratelimit_timer_start(ngx_cycle_t *cycle,
    ngx_event_handler_pt handler, void *data);

/* the hooks of the module that the store needs */
ngx_int_t ngx_http_ratelimit_store_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_http_ratelimit_store_init_process(ngx_cycle_t *cycle);

#if (NGX_HTTP_RATELIMIT_HIREDIS)
ngx_int_t ngx_http_ratelimit_redis_init_process(ngx_cycle_t *cycle);
void ngx_http_ratelimit_redis_exit_process(ngx_cycle_t *cycle);
#endif


/* ngx_http_ratelimit_shm.c: what the usual way of a request needs of it */

/* what the worker is called in locks, 0 if it must not take any */
extern uint32_t  ngx_http_ratelimit_self;

ngx_int_t ngx_http_ratelimit_shm_check(ngx_http_ratelimit_query_t *q);
void ngx_http_ratelimit_shm_tell_evictions(ngx_http_ratelimit_query_t *q);


static ngx_inline void
ngx_http_ratelimit_shm_clock(ratelimit_clock_t *clock)
{
    ngx_time_t  *tp;

    tp = ngx_timeofday();

    clock->now = (uint64_t) ngx_current_msec * 1000;
    clock->wall = (uint64_t) tp->sec * RATELIMIT_SECOND
                  + (uint64_t) tp->msec * 1000;
}


/* n is that of the query, and may be known */

static ngx_inline ngx_int_t
ngx_http_ratelimit_shm_decide(ngx_http_ratelimit_query_t *q, ngx_uint_t n)
{
    ratelimit_clock_t   clock;
    ratelimit_place_t  *places;

    if (ngx_http_ratelimit_self == 0) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_shm_clock(&clock);

    places = q->places;

    q->allowed = ratelimit_table_decide(q->items, places, n, &clock,
                                        ngx_http_ratelimit_self);

    if (places[0].evicted) {
        ngx_http_ratelimit_shm_tell_evictions(q);
    }

    return NGX_OK;
}


static ngx_inline ngx_int_t
ngx_http_ratelimit_store_check(ngx_http_ratelimit_query_t *q)
{
    return q->remote ? ngx_http_ratelimit_decision(q)
                     : ngx_http_ratelimit_shm_check(q);
}


#endif /* _NGX_HTTP_RATELIMIT_STORE_H_INCLUDED_ */
