
/*
 * Where counters live.  Zones and the limits that use them are declared while
 * the configuration is read; queries ask them while requests run.
 */


#ifndef _NGX_HTTP_RATELIMIT_STORE_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_STORE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ratelimit.h"
#include "core/ratelimit_key.h"


typedef struct ngx_http_ratelimit_zone_s      ngx_http_ratelimit_zone_t;
typedef struct ngx_http_ratelimit_use_s       ngx_http_ratelimit_use_t;
typedef struct ngx_http_ratelimit_redis_s     ngx_http_ratelimit_redis_t;
typedef struct ngx_http_ratelimit_query_s     ngx_http_ratelimit_query_t;
typedef struct ngx_http_ratelimit_progress_s  ngx_http_ratelimit_progress_t;
typedef struct ngx_http_ratelimit_top_lane_s  ngx_http_ratelimit_top_lane_t;
typedef struct ngx_http_ratelimit_statistics_s
    ngx_http_ratelimit_statistics_t;


typedef void (*ngx_http_ratelimit_done_pt)(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);


/* what keys are made of */

typedef enum {
    NGX_HTTP_RATELIMIT_KEY_TEXT = 0,
    NGX_HTTP_RATELIMIT_KEY_ADDRESS,       /* $binary_remote_addr */
    NGX_HTTP_RATELIMIT_KEY_CLIENT         /* $ratelimit_client */
} ngx_http_ratelimit_key_e;


/* how long a refusal is believed that was pronounced elsewhere */

typedef enum {
    NGX_HTTP_RATELIMIT_HOLD_NOT = 0,      /* another part of a decision may have
                                             reserved what it rests on */
    NGX_HTTP_RATELIMIT_HOLD_BRIEFLY,      /* charges may be refunded */
    NGX_HTTP_RATELIMIT_HOLD               /* as long as it says */
} ngx_http_ratelimit_hold_e;


/*
 * A set of counters in a zone.  Uses of one name share their counters; the
 * zone's own have the empty name.  The store sets hasher when the configuration
 * has been read.
 */

struct ngx_http_ratelimit_use_s {
    ngx_str_t                       name;
    ngx_str_t                       label;    /* for the log: the zone, and the
                                                 name if it was given */
    ngx_http_ratelimit_zone_t      *zone;
    ratelimit_rule_t               *rules;
    ngx_uint_t                      nrules;
    ratelimit_rule_t               *bound;    /* rules that come later keep
                                                 within it; NULL: none come */
    ngx_str_t                      *variable; /* text of a rate that varies, or
                                                 NULL */
    void                           *limit;    /* the caller's */
    ngx_uint_t                      budget;   /* it limits no requests */
    ngx_http_ratelimit_key_e        key;
    ngx_uint_t                      max_rules;  /* in one query with it */
    ngx_uint_t                      count_rejected;  /* rejected=count */
    ngx_uint_t                      reserved; /* a charge may be refunded when
                                                 the status is known */
    ngx_uint_t                      settles;  /* a request may turn out to cost
                                                 more than the ceiling */
    ngx_uint_t                      shown;    /* its verdict is needed, even
                                                 if another limit refuses */
    ngx_http_ratelimit_hold_e       refusals_hold;  /* of one name all alike */
    ratelimit_hasher_t              hasher;   /* of keys */
    ngx_str_t                       suffix;   /* of the names of counters */
    u_char                         *cell;     /* of its statistics, in the lane
                                                 of the worker */
    ngx_uint_t                      number;   /* of zone and name, also after a
                                                 reload */
    ngx_http_ratelimit_top_lane_t  *top_lane;  /* of the worker, or NULL */

    /* limits of a block that are decided at once are a ring */

    ngx_http_ratelimit_use_t       *next;     /* in it; NULL: it is in none */
    ngx_uint_t                      ring_rows;  /* of a query that has all of
                                                 them; 0: it is in none */
    ngx_uint_t                      ring_pair;  /* 2: so many they are, with one
                                                 rate each, of shared memory,
                                                 which is always asked; or 0 */
    u_char                         *ring_cell;  /* for the ring, see
                                                 ..._statistics.h */
};


/* where a limit was decided */

typedef enum {
    NGX_HTTP_RATELIMIT_SHM = 0,
    NGX_HTTP_RATELIMIT_REDIS,
    NGX_HTTP_RATELIMIT_SYNC,              /* in shared memory, and reported
                                             to Redis; or Redis was asked */
    NGX_HTTP_RATELIMIT_LOCAL,             /* in shared memory, for Redis */
    NGX_HTTP_RATELIMIT_UNASKED            /* nowhere: the store had failed */
} ngx_http_ratelimit_backend_e;


/* one rule of a query, and the key that it is applied to */

typedef struct {
    ngx_http_ratelimit_use_t       *use;
    ngx_str_t                       key;      /* as long as the query lives */
    ngx_http_ratelimit_backend_e    backend;
    uint32_t                        part;     /* of the store; not set in
                                                 shared memory */
    uint64_t                        stamp;    /* of the charge in the mirror
                                                 of a zone in Redis */
    uint64_t                        cost;     /* the caller's, if it decides
                                                 again: a refund clears that
                                                 of the item */
    void                           *data;     /* the caller's */
} ngx_http_ratelimit_subject_t;


/*
 * All limits of one decision.  It is built from keys, rules and costs; whether
 * there is a request makes no difference.
 */

struct ngx_http_ratelimit_query_s {
    ratelimit_item_t               *items;
    ngx_http_ratelimit_subject_t   *subjects; /* in the order of items */
    struct ratelimit_place_s       *places;   /* the store's own */
    ngx_uint_t                      n;

    /* the decision */
    ngx_int_t                       rc;       /* NGX_OK: there is one; others
                                                 see ..._query_decide() */
    ngx_uint_t                      allowed;  /* all limits allow, all were
                                                 charged */
    ngx_uint_t                      failed;   /* limits that could not be
                                                 asked, and let pass */
    ngx_pool_t                     *pool;     /* lives as long as the query,
                                                 has its log */
    ngx_msec_t                      decided;  /* when; the caller's */
    ngx_uint_t                      lenient;  /* the caller's: see
                                                 ..._decide_lenient() */
    ngx_uint_t                      dropped;  /* rows behind the others, see
                                                 ..._query_drop() */
    ngx_http_ratelimit_done_pt      done;
    void                           *data;

    /* the store's own */
    ngx_http_ratelimit_progress_t  *progress;
    void                           *pending;
    uint32_t                        reset_count;  /* when it was sent */
    ngx_uint_t                      look;     /* known to be refused, but not
                                                 all is known */
};


/* how the items of an allowed query are settled */

typedef enum {
    NGX_HTTP_RATELIMIT_REFUND = 0,   /* those that have a cost */
    NGX_HTTP_RATELIMIT_COMMIT,       /* what was reserved counts */
    NGX_HTTP_RATELIMIT_DEBIT         /* those that have a cost are charged once
                                        more, whatever their limits say */
} ngx_http_ratelimit_settle_e;


/*
 * What a store does with a query whose limits all are its own.
 *
 * recall  whether a limit is known to refuse before the store is asked, and
 *         there is no need to ask about the others: then all verdicts are set.
 *         NULL if the store remembers no refusals.
 * decide  NGX_OK     decided: allowed and all verdicts are set, those of shared
 *                    memory as far as ratelimit_table_decide() sets them
 *         NGX_AGAIN  done will be called once, later, never from inside decide
 *         NGX_ERROR  the store is unusable
 * cancel  done will not be called any more.  A charge, made or still to come,
 *         stays; with refund set, only that of an item without a cost does.
 *         NULL if decide never returns NGX_AGAIN.
 * settle  refunds, commits or debits the items of an allowed query
 * refused another store refused the request: counts it where refused requests
 *         count, and sets allowed and all verdicts as decide does, though
 *         nothing else is charged.  NGX_DECLINED if that is not worth it.
 *         NULL if no store is asked before this one.
 * peek    sets all verdicts, each limit by itself, and changes nothing; returns
 *         what decide does
 * reset   forgets what was counted of the keys, here and wherever it is known;
 *         returns what decide does
 * use     a limit uses the zone; called while the configuration is read.  NULL
 *         if the store does not need to know.
 * part    limits that have one part follow one another, and are asked together.
 *         NULL if all are.
 * attempt decides at once if it can, and returns NGX_OK as decide does;
 *         NGX_DECLINED if the store has to be asked.  NULL if it always has.
 * local   shared memory has decided instead, and has charged the query.  NULL
 *         if nothing follows from that.
 * up      whether all servers that the zone counts in are in use.  NULL if it
 *         needs none.
 */

typedef struct {
    ngx_uint_t  (*recall)(ngx_http_ratelimit_query_t *q);
    ngx_int_t   (*decide)(ngx_http_ratelimit_query_t *q);
    void        (*cancel)(ngx_http_ratelimit_query_t *q, ngx_uint_t refund);
    void        (*settle)(ngx_http_ratelimit_query_t *q,
        ngx_http_ratelimit_settle_e how);
    ngx_int_t   (*refused)(ngx_http_ratelimit_query_t *q);
    ngx_int_t   (*peek)(ngx_http_ratelimit_query_t *q);
    ngx_int_t   (*reset)(ngx_http_ratelimit_query_t *q);
    ngx_int_t   (*use)(ngx_conf_t *cf, ngx_http_ratelimit_use_t *use);
    uint32_t    (*part)(ngx_http_ratelimit_subject_t *subject);
    ngx_int_t   (*attempt)(ngx_http_ratelimit_query_t *q);
    void        (*local)(ngx_http_ratelimit_query_t *q);
    ngx_uint_t  (*up)(ngx_http_ratelimit_zone_t *zone);
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
    ngx_uint_t                      top;       /* refused keys that are
                                                  remembered */
    ngx_msec_t                      sync;      /* time between reports to
                                                  Redis; 0: it is asked for
                                                  each decision */
    ratelimit_shape_t               shape;
    uint32_t                        packed;    /* counts permit packed states */

    const ngx_http_ratelimit_store_t  *store;
    uintptr_t                       rank;      /* stores are asked in this
                                                  order, zones of one rank
                                                  together; 0: shared memory */
    ngx_uint_t                      parted;    /* by keys: the store has parts
                                                  that are asked each */
    ngx_http_ratelimit_backend_e    backend;   /* SHM, REDIS or SYNC */
    ngx_uint_t                      mirror;    /* counted in memory, too */

    /* the store's own */
    ngx_http_ratelimit_redis_t     *redis;
    ngx_array_t                     uses;      /* ngx_http_ratelimit_use_t * */
    ngx_http_ratelimit_statistics_t  *statistics;  /* if there are any */
    ngx_array_t                     tallies;   /* ngx_http_ratelimit_tally_t */
    ngx_shm_zone_t                 *top_zone;  /* of refused keys, or NULL */
    ngx_event_t                    *log_timer; /* of a worker: logs how many
                                                  lines were not logged */
    ngx_uint_t                      log_level; /* of that */
    ngx_shm_zone_t                 *shm_zone;
    ngx_shm_zone_t                 *lifelines;
    struct ratelimit_table_s       *table;
    struct ratelimit_deny_cache_s  *deny_cache;  /* of Redis' refusals */
    ngx_shm_zone_t                 *ledger;    /* of what is reported to
                                                  Redis, or NULL */
    struct ngx_http_ratelimit_sync_s  *exchange;  /* what a worker has of it */
    ngx_atomic_t                   *offsets;   /* of each part: ms by which the
                                                  clock of its counters is
                                                  ahead, 0: as the wall clock;
                                                  or NULL */
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

/* a rule that was made while requests run */
void ngx_http_ratelimit_store_rule(ngx_http_ratelimit_use_t *use,
    ratelimit_rule_t *rule);

/*
 * Limit, 1 if it makes no difference, and period of a kind of rule that the
 * zone has met, from 0 on; NGX_DONE if there are not so many.  After these come
 * usual periods, with limit 0, if other machines count in its store, too: there
 * may be counters of rules that this one has not met.
 */
ngx_int_t ngx_http_ratelimit_store_get_rule(ngx_http_ratelimit_zone_t *zone,
    ngx_uint_t n, ratelimit_rule_t *rule);

/* what the memory of a zone holds */

typedef struct {
    uint64_t                        size;
    uint64_t                        bytes_used;
    uint64_t                        entries;  /* counters */
    uint64_t                        evictions;  /* of counters that were not
                                                   past */
    uint64_t                        dismissed;  /* evictions before statistics
                                                   were last reset */
} ngx_http_ratelimit_memory_t;

void ngx_http_ratelimit_store_memory(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_memory_t *memory);

/* whether all servers that the zone counts in are in use */
ngx_uint_t ngx_http_ratelimit_store_is_up(ngx_http_ratelimit_zone_t *zone);

/* whether a message may be logged: once a second, by one worker of all */
ngx_uint_t ngx_http_ratelimit_store_log_once(ngx_http_ratelimit_zone_t *zone,
    uint32_t message);

/* whether one more line of so many in a second may be logged of the zone */
ngx_uint_t ngx_http_ratelimit_store_may_log(ngx_http_ratelimit_zone_t *zone,
    uint64_t limit);

/* lines that were not, since this was asked last */
uint64_t ngx_http_ratelimit_store_not_logged(ngx_http_ratelimit_zone_t *zone);

/* declares memory that is called so; NULL, and an error is logged, if not */
ngx_shm_zone_t *ngx_http_ratelimit_shm_add(ngx_conf_t *cf, ngx_str_t *name,
    size_t size, void *tag, ngx_shm_zone_init_pt init, void *data);

/* memory that is known by its init handler, the nth such one from 0 on; NULL
   if there is none */
u_char *ngx_http_ratelimit_shm_find(ngx_cycle_t *cycle,
    ngx_shm_zone_init_pt init, ngx_uint_t n);

/* whether both have the same bytes */
ngx_uint_t ngx_http_ratelimit_is_same(const ngx_str_t *one,
    const ngx_str_t *two);

/* calls the handler, which adds the timer */
ngx_int_t ngx_http_ratelimit_timer_start(ngx_cycle_t *cycle,
    ngx_event_handler_pt handler, void *data);

ngx_event_t *ngx_http_ratelimit_timer_create(ngx_pool_t *pool,
    ngx_event_handler_pt handler, void *data);

/* a timer with a connection of its own, and what its handler is about */
void ngx_http_ratelimit_timer_init(ngx_event_t *ev, ngx_connection_t *dummy,
    ngx_event_handler_pt handler, void *data);

#define ngx_http_ratelimit_timer_data(ev)                                     \
    (((ngx_connection_t *) (ev)->data)->data)

/* the hooks of the module that the store needs */
void ngx_http_ratelimit_store_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_http_ratelimit_store_init_process(ngx_cycle_t *cycle);
void ngx_http_ratelimit_store_exit_process(ngx_cycle_t *cycle);

/* latencies are counted up to these microseconds, and all longer ones */

#define ngx_http_ratelimit_each_latency(X)                                    \
    X(250, "0.00025")                                                         \
    X(500, "0.0005")                                                          \
    X(1000, "0.001")                                                          \
    X(2500, "0.0025")                                                         \
    X(5000, "0.005")                                                          \
    X(10000, "0.01")                                                          \
    X(25000, "0.025")                                                         \
    X(50000, "0.05")                                                          \
    X(100000, "0.1")                                                          \
    X(250000, "0.25")                                                         \
    X(500000, "0.5")                                                          \
    X(1000000, "1.0")

#define ngx_http_ratelimit_latency_one(usec, text)  + 1

#define NGX_HTTP_RATELIMIT_LATENCIES                                          \
    (1 ngx_http_ratelimit_each_latency(ngx_http_ratelimit_latency_one))


/* of a server of a Redis, a lane of each worker; kept if that is gone */

typedef struct {
    ngx_atomic_t                    commands;
    ngx_atomic_t                    timeouts;
    ngx_atomic_t                    errors;
    ngx_atomic_t                    changes;  /* of the breaker */
    ngx_atomic_t                    fallbacks;
    ngx_atomic_t                    denied;   /* by the deny cache */
    ngx_atomic_t                    latency[NGX_HTTP_RATELIMIT_LATENCIES];
    ngx_atomic_t                    latency_sum;  /* microseconds */

    /* of write-back, for all servers of the Redis together */
    ngx_atomic_t                    sync_batches;  /* counted by Redis */
    ngx_atomic_t                    sync_deltas;   /* in these */
    ngx_atomic_t                    sync_repeated; /* batches sent again */
    ngx_atomic_t                    sync_dropped;  /* deltas that are lost */
} ngx_http_ratelimit_redis_counters_t;


/* what is known of it */

typedef struct {
    ngx_str_t                       name;     /* of the Redis */
    ngx_str_t                       address;
    uint64_t                        up;       /* the breaker is closed */
    ngx_http_ratelimit_redis_counters_t  counters;

    /* of write-back, for all servers of the Redis together */
    uint64_t                        sync_pending;  /* deltas not counted yet */
    uint64_t                        sync_age;      /* of the oldest of these,
                                                      microseconds */
} ngx_http_ratelimit_redis_figures_t;

#if (NGX_HTTP_RATELIMIT_HIREDIS)

/*
 * Of server n, from 0 on; NGX_DONE if there are not so many.  Where servers are
 * found by sentinels, the first one stands for all: its address is their name.
 * An address is allocated from the pool.
 */
ngx_int_t ngx_http_ratelimit_redis_get_figures(
    ngx_http_ratelimit_redis_t *redis, ngx_uint_t n, ngx_pool_t *pool,
    ngx_http_ratelimit_redis_figures_t *figures);

/* the configuration is used from now on */
void ngx_http_ratelimit_redis_init_module(ngx_cycle_t *cycle);

ngx_int_t ngx_http_ratelimit_redis_init_process(ngx_cycle_t *cycle);
void ngx_http_ratelimit_redis_exit_process(ngx_cycle_t *cycle);
#endif


/* ngx_http_ratelimit_query.c */

/* rules that one query may have */
#define NGX_HTTP_RATELIMIT_MAX_ROWS  256

/* bytes that a query needs for each of its rules */
extern const size_t  ngx_http_ratelimit_row_size;

/*
 * One decision about all limits, whatever stores they are in.
 *
 *     NGX_OK     allowed or not
 *     NGX_AGAIN  done, to be set then, will be called with one of the others
 *     NGX_BUSY   refused: a limit that fails closed could not be asked
 */
static ratelimit_inline ngx_int_t ngx_http_ratelimit_query_decide(
    ngx_http_ratelimit_query_t *q);

/* compiled by itself for one and for two rules, which need no loops */
ngx_int_t ngx_http_ratelimit_query_decide_one(ngx_http_ratelimit_query_t *q);
ngx_int_t ngx_http_ratelimit_query_decide_two(ngx_http_ratelimit_query_t *q);
ngx_int_t ngx_http_ratelimit_query_decide_any(ngx_http_ratelimit_query_t *q);

/*
 * What the counters in the memory of this machine say, also of a zone whose
 * store is another one.  The cost must be 0.
 */
ngx_int_t ngx_http_ratelimit_query_decide_local(ngx_http_ratelimit_query_t *q);

/*
 * Peek at the limits of one zone, or reset their counters.  NGX_OK, NGX_AGAIN
 * or NGX_ERROR as a store's; until done is called, abort may be.
 */
ngx_int_t ngx_http_ratelimit_query_peek(ngx_http_ratelimit_query_t *q);
ngx_int_t ngx_http_ratelimit_query_reset(ngx_http_ratelimit_query_t *q);
void ngx_http_ratelimit_query_abort(ngx_http_ratelimit_query_t *q);

/*
 * A decision needs little of a verdict.  Its figures are worked out here, as
 * they were at the time of the decision.  Returns the item that speaks for the
 * query, see ratelimit_tightest().
 */
ngx_uint_t ngx_http_ratelimit_query_describe(ngx_http_ratelimit_query_t *q);

/*
 * Takes a limit of one rule out of the query, which may be decided again then.
 * Its row stands behind those of the query, before others that were dropped.
 */
void ngx_http_ratelimit_query_drop(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);

/* before done was called; it will not be.  For refund see a store's cancel */
void ngx_http_ratelimit_query_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t refund);


/* ngx_http_ratelimit_query_settle.c */

/*
 * The request was refused by others than this query, which has allowed it: its
 * items are refunded, except where refused requests count.  Returns whether one
 * of these refuses the next request.
 */
ngx_uint_t ngx_http_ratelimit_query_refuse(ngx_http_ratelimit_query_t *q);

/*
 * Settle items of an allowed query, in the end and once: they are refunded if
 * they have a cost, or count if they were reserved.  Their cost becomes 0.
 */
void ngx_http_ratelimit_query_refund(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n);
void ngx_http_ratelimit_query_commit(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n);

/*
 * The same for the items of one limit, which have turned out to cost as much as
 * this: what they cost more is charged now, whatever their limits say, and what
 * they cost less is refunded.
 */
void ngx_http_ratelimit_query_adjust(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, uint64_t cost);

/*
 * Refunds what was charged to a limit of an allowed query before, by any
 * request; the figures of its verdict are those of the time after it.
 */
void ngx_http_ratelimit_query_refund_latest(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, uint64_t cost);


/* memory is of n * ngx_http_ratelimit_row_size bytes */

static ratelimit_inline void
ngx_http_ratelimit_query_init(ngx_http_ratelimit_query_t *q, void *memory,
    ngx_uint_t n, ngx_pool_t *pool)
{
    q->items = memory;
    q->subjects = (ngx_http_ratelimit_subject_t *) (q->items + n);
    q->places = (struct ratelimit_place_s *) (q->subjects + n);
    q->pool = pool;
}


/*
 * Adds rules that apply to one key, to those that were added before; returns
 * how many there are then, which is to be set as the query's n.  Limits are
 * added in the order of ranks, each once: for a second key there is a copy of
 * the use.
 */

static ratelimit_inline ngx_uint_t
ngx_http_ratelimit_query_add(ngx_http_ratelimit_query_t *q, ngx_uint_t n,
    ngx_http_ratelimit_use_t *use, ratelimit_rule_t *rules, ngx_uint_t nrules,
    ngx_str_t *key, uint64_t cost, void *data)
{
    ngx_uint_t                     last;
    ratelimit_item_t              *item;
    ngx_http_ratelimit_subject_t  *subject;

    item = &q->items[n];
    subject = &q->subjects[n];
    last = n + nrules;

    do {
        item->rule = rules++;
        item->cost = cost;
        item->count_rejected = use->count_rejected;
        item->reserve = use->reserved;
        item++;

        subject->use = use;
        subject->key = *key;
        subject->data = data;
        subject++;

    } while (++n < last);

    return n;
}


static ratelimit_inline ngx_int_t
ngx_http_ratelimit_query_decide(ngx_http_ratelimit_query_t *q)
{
    switch (q->n) {

    case 1:
        return ngx_http_ratelimit_query_decide_one(q);

    case 2:
        return ngx_http_ratelimit_query_decide_two(q);

    default:
        return ngx_http_ratelimit_query_decide_any(q);
    }
}


#endif /* _NGX_HTTP_RATELIMIT_STORE_H_INCLUDED_ */
