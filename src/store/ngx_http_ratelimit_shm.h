
/*
 * Zones in shared memory: what the store's other files know of them.
 */


#ifndef _NGX_HTTP_RATELIMIT_SHM_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_SHM_H_INCLUDED_


#include "store/ngx_http_ratelimit_store.h"
#include "table/ratelimit_table.h"


/* ngx_http_ratelimit_shm.c */

/* the number of the worker in locks, 0 if it must not take any */
extern uint32_t  ngx_http_ratelimit_self;

/* the wall clock is so much ahead of the monotonic one, in us */
extern uint64_t  ngx_http_ratelimit_wall;

/* of the wall clock, when this was compared with the clocks */
extern time_t    ngx_http_ratelimit_second;

/*
 * Charges one item in full, as a query of its own, whose verdict is that of
 * this charge.  NGX_DECLINED without a cost.
 */

typedef struct {
    ngx_http_ratelimit_query_t      query;
    ratelimit_item_t                item;
    ratelimit_place_t               place;
    ngx_http_ratelimit_subject_t    subject;
} ngx_http_ratelimit_debit_t;

ngx_int_t ngx_http_ratelimit_shm_debit_item(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, ngx_http_ratelimit_debit_t *debit);

/* compares with the clocks, and with what other workers have found */
void ngx_http_ratelimit_shm_set_wall(ngx_time_t *tp);

void ngx_http_ratelimit_shm_log_evictions(ngx_http_ratelimit_query_t *q);
void ngx_http_ratelimit_shm_log_dropped(ngx_http_ratelimit_zone_t *zone,
    uint64_t n, ngx_log_t *log);

/* makes new memory ready for a table: zeros, and no free pages for the slab
   allocator */
void ngx_http_ratelimit_shm_clear(ngx_shm_zone_t *shm_zone);

/* a number that can't be guessed, and that no other machine has */
ngx_int_t ngx_http_ratelimit_shm_secret(ratelimit_hash_t *secret,
    ngx_log_t *log);

/* init handlers of shared memory */

ngx_int_t ngx_http_ratelimit_shm_init_lifelines(ngx_shm_zone_t *shm_zone,
    void *data);
ngx_int_t ngx_http_ratelimit_shm_init_zone(ngx_shm_zone_t *shm_zone,
    void *data);


/* ngx_http_ratelimit_zone.c */

/* all zones of a configuration, ngx_http_ratelimit_zone_t * */
ngx_array_t *ngx_http_ratelimit_zones(ngx_cycle_t *cycle,
    ngx_pool_t *pool);


/* ngx_http_ratelimit_query.c */

/* the limits from the first on that are asked together; returns how many */
ngx_uint_t ngx_http_ratelimit_query_part(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_http_ratelimit_query_t *part);

/* the n limits from the first on, as a query of their own */
void ngx_http_ratelimit_query_slice(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, ngx_http_ratelimit_query_t *slice);


/* ngx_http_ratelimit_reload.c: a zone's tables over reloads */

/*
 * Looks for the zone of the same name in the former configuration, and says so
 * in the log if its counters can't be kept.
 */
ngx_int_t ngx_http_ratelimit_reload_find(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone);

/* lets the zone's table follow older ones of the former configuration */
ngx_int_t ngx_http_ratelimit_reload_follow(ngx_http_ratelimit_zone_t *zone,
    ratelimit_table_t *older);

/* makes what activate needs, where a failure does no harm */
ngx_int_t ngx_http_ratelimit_reload_prepare(ngx_log_t *log);

/* whether all workers have the running configuration, so far as it is known */
ngx_uint_t ngx_http_ratelimit_reload_is_over(void);

/* a new generation of workers is about to start */
void ngx_http_ratelimit_reload_activate(void);

/* seals older tables when the last worker that knows only these has exited */
ngx_int_t ngx_http_ratelimit_reload_watch(ngx_cycle_t *cycle,
    ngx_array_t *zones);


static ngx_inline void
ngx_http_ratelimit_shm_clock(ratelimit_clock_t *clock)
{
    ngx_time_t  *tp;

    tp = ngx_timeofday();

    if (tp->sec != ngx_http_ratelimit_second) {
        ngx_http_ratelimit_shm_set_wall(tp);
    }

    clock->now = (uint64_t) ngx_current_msec * 1000;
    clock->wall = clock->now + ngx_http_ratelimit_wall;
    clock->steady = clock->now;
}


/* of a part of a zone; that of Redis if the zone's counters are Redis' */

static ngx_inline void
ngx_http_ratelimit_shm_clock_of(ngx_http_ratelimit_zone_t *zone, uint32_t part,
    ratelimit_clock_t *clock)
{
    ngx_atomic_uint_t  offset;

    ngx_http_ratelimit_shm_clock(clock);

    if (zone->offsets == NULL) {
        return;
    }

    offset = zone->offsets[part];

    if (offset) {
        clock->wall = clock->now + (uint64_t) offset * 1000;
    }

    clock->now = clock->wall;
}


/* n is that of the query, and may be a constant */

static ratelimit_inline ngx_int_t
ngx_http_ratelimit_shm_decide_at(ngx_http_ratelimit_query_t *q, ngx_uint_t n)
{
    q->allowed = ratelimit_table_decide(q->items, q->places, n,
                                        &q->places[0].clock,
                                        ngx_http_ratelimit_self);

    if (q->places[0].evicted) {
        ngx_http_ratelimit_shm_log_evictions(q);
    }

    return NGX_OK;
}


#endif /* _NGX_HTTP_RATELIMIT_SHM_H_INCLUDED_ */
