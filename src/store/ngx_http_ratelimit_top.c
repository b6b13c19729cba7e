
/*
 * The memory of refused keys.
 *
 * A worker waits for no other one: if its sketch is in use, by a worker of a
 * former configuration, by one of more than NGX_HTTP_RATELIMIT_LANES, or by one
 * that reads or resets it, the refusal is not counted here.
 */


#include "store/ngx_http_ratelimit_shm.h"
#include "store/ngx_http_ratelimit_statistics.h"
#include "store/ngx_http_ratelimit_top.h"


/* attempts to read a sketch before its worker is kept from writing */
#define NGX_HTTP_RATELIMIT_TOP_READS  100


struct ngx_http_ratelimit_top_lane_s {
    ratelimit_lock_t                lock;
    ratelimit_top_t                 top;
};


static ngx_int_t ngx_http_ratelimit_top_init(ngx_shm_zone_t *shm_zone,
    void *data);
static size_t ngx_http_ratelimit_top_lane_size(
    ngx_http_ratelimit_zone_t *zone);
static ngx_http_ratelimit_top_lane_t *ngx_http_ratelimit_top_lane(
    ngx_http_ratelimit_zone_t *zone, ngx_uint_t n);
static uint64_t ngx_http_ratelimit_top_id(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);
static void ngx_http_ratelimit_top_add_after(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);
static void ngx_http_ratelimit_top_add_locked(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);
static void ngx_http_ratelimit_top_lock(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_top_lane_t *lane);
static void ngx_http_ratelimit_top_copy(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_top_lane_t *lane, ratelimit_top_t *copy);


ngx_int_t
ngx_http_ratelimit_top_declare(ngx_conf_t *cf, ngx_http_ratelimit_zone_t *zone,
    void *tag)
{
    size_t     size;
    ngx_str_t  name;

    /* another number or kind of keys is another memory */

    name.data = ngx_pnalloc(cf->pool, sizeof("ratelimit:top:::") - 1
                                      + NGX_INT_T_LEN + zone->name.len
                                      + zone->key_text.len);
    if (name.data == NULL) {
        return NGX_ERROR;
    }

    name.len = ngx_sprintf(name.data, "ratelimit:top:%ui:%V:%V", zone->top,
                           &zone->name, &zone->key_text)
               - name.data;

    size = NGX_HTTP_RATELIMIT_LANES * ngx_http_ratelimit_top_lane_size(zone)
           + 8 * ngx_pagesize;

    zone->top_zone = ngx_http_ratelimit_shm_add(cf, &name, size, tag,
                                                ngx_http_ratelimit_top_init,
                                                zone);

    return zone->top_zone ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_top_init(ngx_shm_zone_t *shm_zone, void *data)
{
    if (data == NULL && !shm_zone->shm.exists) {
        ngx_http_ratelimit_shm_clear(shm_zone);
    }

    return NGX_OK;
}


static size_t
ngx_http_ratelimit_top_lane_size(ngx_http_ratelimit_zone_t *zone)
{
    return ngx_align(offsetof(ngx_http_ratelimit_top_lane_t, top)
                     + ratelimit_top_size(zone->top),
                     NGX_CPU_CACHE_LINE);
}


static ngx_http_ratelimit_top_lane_t *
ngx_http_ratelimit_top_lane(ngx_http_ratelimit_zone_t *zone, ngx_uint_t n)
{
    return (ngx_http_ratelimit_top_lane_t *)
           (zone->top_zone->shm.addr + ngx_pagesize
            + n * ngx_http_ratelimit_top_lane_size(zone));
}


void
ngx_http_ratelimit_top_init_process(ngx_array_t *zones)
{
    ngx_uint_t                   i, k;
    ngx_http_ratelimit_use_t   **use;
    ngx_http_ratelimit_zone_t  **zone;

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {
        use = zone[i]->uses.elts;

        for (k = 0; zone[i]->top_zone && k < zone[i]->uses.nelts; k++) {
            use[k]->top_lane = ngx_http_ratelimit_top_lane(zone[i],
                                      ngx_http_ratelimit_lane);
        }
    }
}


void
ngx_http_ratelimit_top_add(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_http_ratelimit_top_lane_t  *lane;

    lane = q->subjects[i].use->top_lane;

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    if (!ratelimit_trylock(&lane->lock, ngx_http_ratelimit_self)) {
        ngx_http_ratelimit_top_add_after(q, i);
        return;
    }

    if (!ratelimit_top_repeat(&lane->top, (uint64_t) ngx_current_msec * 1000,
                              ngx_http_ratelimit_top_id(q, i)))
    {
        ngx_http_ratelimit_top_add_locked(q, i);
        return;
    }

    ratelimit_unlock(&lane->lock);
}


/* the hash is that of the name, too */

static uint64_t
ngx_http_ratelimit_top_id(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    return q->places[i].hash.lo | 1;
}


/* does not wait, unless the process that has the lock is dead */

static ratelimit_noinline void
ngx_http_ratelimit_top_add_after(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    uint32_t                        holder;
    ngx_http_ratelimit_zone_t      *zone;
    ngx_http_ratelimit_top_lane_t  *lane;

    zone = q->subjects[i].use->zone;
    lane = q->subjects[i].use->top_lane;
    holder = (uint32_t) __atomic_load_n(&lane->lock, __ATOMIC_RELAXED);

    if (holder && !ratelimit_lifelines_alive(zone->lifelines->data, holder)) {
        ngx_http_ratelimit_top_lock(zone, lane);
        ngx_http_ratelimit_top_add_locked(q, i);
    }
}


static ratelimit_noinline void
ngx_http_ratelimit_top_add_locked(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_http_ratelimit_use_t       *use;
    ngx_http_ratelimit_subject_t   *subject;
    ngx_http_ratelimit_top_lane_t  *lane;

    subject = &q->subjects[i];
    use = subject->use;
    lane = use->top_lane;

    ratelimit_top_add(&lane->top, use->zone->top,
                      (uint64_t) ngx_current_msec * 1000,
                      ngx_http_ratelimit_top_id(q, i),
                      (uint32_t) use->number,
                      subject->key.data, subject->key.len);

    ratelimit_unlock(&lane->lock);
}


static void
ngx_http_ratelimit_top_lock(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_top_lane_t *lane)
{
    if (ratelimit_lock(&lane->lock, ngx_http_ratelimit_self,
                       zone->lifelines->data))
    {
        ratelimit_top_mend(&lane->top, zone->top);
    }
}


ratelimit_top_score_t *
ngx_http_ratelimit_top_read(ngx_http_ratelimit_zone_t *zone, ngx_pool_t *pool,
    ngx_uint_t *n)
{
    ngx_uint_t            i, lanes;
    ratelimit_top_t      *copy;
    ratelimit_top_sum_t   sum;

    lanes = ngx_http_ratelimit_statistics_lanes(zone);

    ngx_memzero(&sum, sizeof(ratelimit_top_sum_t));

    for (sum.mask = 2; sum.mask <= 2 * lanes * zone->top; sum.mask *= 2) {
        /* void */
    }

    copy = ngx_palloc(pool, ratelimit_top_size(zone->top));
    sum.index = ngx_pcalloc(pool, sum.mask * sizeof(uint32_t));
    sum.scores = ngx_palloc(pool, (lanes * zone->top + 1)
                                  * sizeof(ratelimit_top_score_t));

    if (copy == NULL || sum.index == NULL || sum.scores == NULL) {
        return NULL;
    }

    sum.mask--;

    for (i = 0; i < lanes; i++) {
        ngx_http_ratelimit_top_copy(zone, ngx_http_ratelimit_top_lane(zone, i),
                                    copy);
        ratelimit_top_merge(&sum, copy, zone->top,
                            (uint64_t) ngx_current_msec * 1000);
    }

    ratelimit_top_finish(&sum);

    *n = ngx_min(sum.n, zone->top);

    return sum.scores;
}


/* mostly without the lock, so that the worker goes on counting */

static void
ngx_http_ratelimit_top_copy(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_top_lane_t *lane, ratelimit_top_t *copy)
{
    size_t      size;
    uint64_t    ticket;
    ngx_uint_t  i;

    size = ratelimit_top_size(zone->top);

    for (i = 0; i < NGX_HTTP_RATELIMIT_TOP_READS; i++) {

        if (!ratelimit_read_begin(&lane->lock, &ticket)) {
            ratelimit_lock_yield();
            continue;
        }

        ngx_memcpy(copy, &lane->top, size);

        if (ratelimit_read_end(&lane->lock, ticket)) {
            return;
        }
    }

    if (ngx_http_ratelimit_self == 0) {
        ngx_memzero(copy, size);
        return;
    }

    ngx_http_ratelimit_top_lock(zone, lane);
    ngx_memcpy(copy, &lane->top, size);
    ratelimit_unlock(&lane->lock);
}


void
ngx_http_ratelimit_top_reset(ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                      i, lanes;
    ngx_http_ratelimit_top_lane_t  *lane;

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    lanes = ngx_http_ratelimit_statistics_lanes(zone);

    for (i = 0; i < lanes; i++) {
        lane = ngx_http_ratelimit_top_lane(zone, i);

        ngx_http_ratelimit_top_lock(zone, lane);
        ngx_memzero(&lane->top, ratelimit_top_size(zone->top));
        ratelimit_unlock(&lane->lock);
    }
}
