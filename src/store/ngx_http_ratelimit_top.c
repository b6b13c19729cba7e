
/*
 * The memory of refused keys.
 *
 * A worker waits for no other one: if its sketch is in use, which is so only
 * while a worker with its number of a former configuration lives, or while it
 * is read, the refusal is not counted here.
 */


#include "store/ngx_http_ratelimit_shm.h"
#include "store/ngx_http_ratelimit_statistics.h"
#include "store/ngx_http_ratelimit_top.h"


/* attempts to read a sketch before its worker is kept from writing */
#define NGX_HTTP_RATELIMIT_TOP_READS  100


struct ngx_http_ratelimit_top_line_s {
    ratelimit_lock_t                lock;
    ratelimit_top_t                 top;
};


static ngx_int_t ngx_http_ratelimit_top_init(ngx_shm_zone_t *shm_zone,
    void *data);
static size_t ngx_http_ratelimit_top_line_size(
    ngx_http_ratelimit_zone_t *zone);
static ngx_http_ratelimit_top_line_t *ngx_http_ratelimit_top_line(
    ngx_http_ratelimit_zone_t *zone, ngx_uint_t n);
static uint64_t ngx_http_ratelimit_top_id(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);
static void ngx_http_ratelimit_top_add_after(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);
static void ngx_http_ratelimit_top_add_locked(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);
static void ngx_http_ratelimit_top_lock(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_top_line_t *line);
static void ngx_http_ratelimit_top_copy(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_top_line_t *line, ratelimit_top_t *copy);


ngx_int_t
ngx_http_ratelimit_top_declare(ngx_conf_t *cf, ngx_http_ratelimit_zone_t *zone,
    void *tag)
{
    ngx_str_t        name;
    ngx_shm_zone_t  *shm_zone;

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

    shm_zone = ngx_shared_memory_add(cf, &name,
                                     NGX_HTTP_RATELIMIT_LINES
                                     * ngx_http_ratelimit_top_line_size(zone)
                                     + 8 * ngx_pagesize,
                                     tag);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    shm_zone->init = ngx_http_ratelimit_top_init;
    shm_zone->data = zone;

    zone->top_zone = shm_zone;

    return NGX_OK;
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
ngx_http_ratelimit_top_line_size(ngx_http_ratelimit_zone_t *zone)
{
    return ngx_align(offsetof(ngx_http_ratelimit_top_line_t, top)
                     + ratelimit_top_size(zone->top),
                     NGX_CPU_CACHE_LINE);
}


static ngx_http_ratelimit_top_line_t *
ngx_http_ratelimit_top_line(ngx_http_ratelimit_zone_t *zone, ngx_uint_t n)
{
    return (ngx_http_ratelimit_top_line_t *)
           (zone->top_zone->shm.addr + ngx_pagesize
            + n * ngx_http_ratelimit_top_line_size(zone));
}


void
ngx_http_ratelimit_top_init_process(ngx_array_t *zones)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_zone_t  **zone;

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {
        if (zone[i]->top_zone != NULL) {
            zone[i]->top_line = ngx_http_ratelimit_top_line(zone[i],
                                      ngx_worker % NGX_HTTP_RATELIMIT_LINES);
        }
    }
}


void
ngx_http_ratelimit_top_add(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_http_ratelimit_top_line_t  *line;

    line = q->subjects[i].use->zone->top_line;

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    if (!ratelimit_trylock(&line->lock, ngx_http_ratelimit_self)) {
        ngx_http_ratelimit_top_add_after(q, i);
        return;
    }

    if (!ratelimit_top_repeat(&line->top, (uint64_t) ngx_current_msec * 1000,
                              ngx_http_ratelimit_top_id(q, i)))
    {
        ngx_http_ratelimit_top_add_locked(q, i);
        return;
    }

    ratelimit_unlock(&line->lock);
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
    ngx_http_ratelimit_top_line_t  *line;

    zone = q->subjects[i].use->zone;
    line = zone->top_line;
    holder = (uint32_t) __atomic_load_n(&line->lock, __ATOMIC_RELAXED);

    if (holder && !ratelimit_lifelines_alive(zone->lifelines->data, holder)) {
        ngx_http_ratelimit_top_lock(zone, line);
        ngx_http_ratelimit_top_add_locked(q, i);
    }
}


static ratelimit_noinline void
ngx_http_ratelimit_top_add_locked(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_http_ratelimit_use_t       *use;
    ngx_http_ratelimit_subject_t   *subject;
    ngx_http_ratelimit_top_line_t  *line;

    subject = &q->subjects[i];
    use = subject->use;
    line = use->zone->top_line;

    ratelimit_top_add(&line->top, use->zone->top,
                      (uint64_t) ngx_current_msec * 1000,
                      ngx_http_ratelimit_top_id(q, i),
                      use->cell / sizeof(ngx_http_ratelimit_counts_t),
                      subject->key.data, subject->key.len);

    ratelimit_unlock(&line->lock);
}


static void
ngx_http_ratelimit_top_lock(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_top_line_t *line)
{
    if (ratelimit_lock(&line->lock, ngx_http_ratelimit_self,
                       zone->lifelines->data))
    {
        ratelimit_top_mend(&line->top, zone->top);
    }
}


ratelimit_top_entry_t *
ngx_http_ratelimit_top_read(ngx_http_ratelimit_zone_t *zone, ngx_pool_t *pool,
    ngx_uint_t *n)
{
    ngx_uint_t            i, lines;
    ratelimit_top_t      *copy;
    ratelimit_top_sum_t   sum;

    lines = ngx_http_ratelimit_statistics_lines(zone);

    ngx_memzero(&sum, sizeof(ratelimit_top_sum_t));

    for (sum.mask = 2; sum.mask <= 2 * lines * zone->top; sum.mask *= 2) {
        /* void */
    }

    copy = ngx_palloc(pool, ratelimit_top_size(zone->top));
    sum.index = ngx_pcalloc(pool, sum.mask * sizeof(uint32_t));
    sum.entries = ngx_palloc(pool, (lines * zone->top + 1)
                                   * sizeof(ratelimit_top_entry_t));

    if (copy == NULL || sum.index == NULL || sum.entries == NULL) {
        return NULL;
    }

    sum.mask--;

    for (i = 0; i < lines; i++) {
        ngx_http_ratelimit_top_copy(zone, ngx_http_ratelimit_top_line(zone, i),
                                    copy);
        ratelimit_top_merge(&sum, copy, zone->top,
                            (uint64_t) ngx_current_msec * 1000);
    }

    ratelimit_top_finish(&sum);

    *n = ngx_min(sum.n, zone->top);

    return sum.entries;
}


/* mostly without the lock, so that the worker goes on counting */

static void
ngx_http_ratelimit_top_copy(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_top_line_t *line, ratelimit_top_t *copy)
{
    size_t      size;
    uint64_t    ticket;
    ngx_uint_t  i;

    size = ratelimit_top_size(zone->top);

    for (i = 0; i < NGX_HTTP_RATELIMIT_TOP_READS; i++) {

        if (!ratelimit_read_begin(&line->lock, &ticket)) {
            ratelimit_lock_yield();
            continue;
        }

        ngx_memcpy(copy, &line->top, size);

        if (ratelimit_read_end(&line->lock, ticket)) {
            return;
        }
    }

    if (ngx_http_ratelimit_self == 0) {
        ngx_memzero(copy, size);
        return;
    }

    ngx_http_ratelimit_top_lock(zone, line);
    ngx_memcpy(copy, &line->top, size);
    ratelimit_unlock(&line->lock);
}


void
ngx_http_ratelimit_top_reset(ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                      i, lines;
    ngx_http_ratelimit_top_line_t  *line;

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    lines = ngx_http_ratelimit_statistics_lines(zone);

    for (i = 0; i < lines; i++) {
        line = ngx_http_ratelimit_top_line(zone, i);

        ngx_http_ratelimit_top_lock(zone, line);
        ngx_memzero(&line->top, ratelimit_top_size(zone->top));
        ratelimit_unlock(&line->lock);
    }
}
