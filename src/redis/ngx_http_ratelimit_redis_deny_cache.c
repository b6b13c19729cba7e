
/*
 * The deny cache of a zone in Redis: what Redis has refused is refused from
 * shared memory until the time that Redis gave, and never for longer.
 *
 * An admission that leaves too little for another one of its cost is as good as
 * a refusal: a further request is refused without a question.
 *
 * A refusal is that of one key by one limit at one cost.  Where charges may be
 * refunded it is believed for a second only, and an admission is not
 * remembered: a refund may have made room before its reply is there.  A reload
 * forgets all, as an operator may have removed the counter.  Limits that count
 * refused requests are not cached: Redis has to see each request.
 *
 * A request is refused from memory if that is known of all of its limits.  Of
 * the others Redis is asked once a second: they may make the client wait for
 * longer.
 */


#include "redis/ngx_http_ratelimit_redis.h"
#include "redis/ngx_http_ratelimit_redis_nodes.h"


static ngx_int_t ngx_http_ratelimit_redis_deny_cache_init(
    ngx_shm_zone_t *shm_zone, void *data);
static ngx_uint_t ngx_http_ratelimit_redis_deny_cache_find_item(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i, uint64_t now);
static void ngx_http_ratelimit_redis_deny_cache_add_item(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i, uint64_t retry_after,
    uint64_t now, uint64_t asked);
static ngx_uint_t ngx_http_ratelimit_redis_deny_cache_shared(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i);
static uint64_t ngx_http_ratelimit_redis_deny_cache_limit(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i);
static ratelimit_deny_cache_t *ngx_http_ratelimit_redis_deny_cache_at(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i, uint32_t reset_count);


ngx_int_t
ngx_http_ratelimit_redis_deny_cache_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, void *tag)
{
    size_t     size;
    ngx_str_t  name;

    /* a zone that moves to another Redis starts with an empty cache */

    name.len = sizeof("ratelimit:deny_cache::") - 1 + zone->redis->name.len
               + zone->name.len;
    name.data = ngx_pnalloc(cf->pool, name.len);
    if (name.data == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_sprintf(name.data, "ratelimit:deny_cache:%V:%V",
                       &zone->redis->name, &zone->name);

    size = ngx_max(zone->shm_zone->shm.size / 8, 32 * ngx_pagesize);

    return ngx_http_ratelimit_shm_add(cf, &name, size, tag,
                                      ngx_http_ratelimit_redis_deny_cache_init,
                                      zone)
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_redis_deny_cache_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_ratelimit_zone_t  *zone;

    static uint32_t  generation;

    zone = shm_zone->data;

    /* the lower half is the number of resets */

    generation += 1 << 16;

    if (data == NULL && !shm_zone->shm.exists) {
        ngx_http_ratelimit_shm_clear(shm_zone);
    }

    zone->deny_cache = ngx_palloc(zone->pool, sizeof(ratelimit_deny_cache_t));
    if (zone->deny_cache == NULL) {
        return NGX_ERROR;
    }

    if (!ratelimit_deny_cache_init(zone->deny_cache,
                                   shm_zone->shm.addr + ngx_pagesize,
                                   shm_zone->shm.size - ngx_pagesize,
                                   zone->lifelines->data, generation))
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "deny cache of ratelimit zone \"%V\" is too small",
                      &zone->name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


ngx_uint_t
ngx_http_ratelimit_redis_deny_cache_find(ngx_http_ratelimit_query_t *q)
{
    uint64_t                     now;
    ngx_uint_t                   i, refused;
    ngx_http_ratelimit_redis_t  *redis;

    q->look = 0;

    if (ngx_http_ratelimit_self == 0) {
        return 0;
    }

    for (i = 0; i < q->n; i++) {
        if (q->items[i].count_rejected) {
            return 0;
        }
    }

    refused = 0;
    now = ngx_http_ratelimit_redis_usec();

    for (i = 0; i < q->n; i++) {
        refused += ngx_http_ratelimit_redis_deny_cache_find_item(q, i, now);
    }

    redis = q->subjects[0].use->zone->redis;

    if (refused == 0) {
        return 0;
    }

    /* a server that is marked down says nothing of the rest */

    q->look = !ngx_http_ratelimit_redis_resets_known(redis)
              || (refused < q->n
                  && !ngx_http_ratelimit_redis_is_down(redis,
                              ngx_http_ratelimit_redis_part(&q->subjects[0]))
                  && (q->subjects[0].use->shown
                      || ngx_http_ratelimit_redis_deny_cache_look_due(q)));

    if (q->look) {
        return 0;
    }

    ngx_http_ratelimit_redis_count(redis->shared, denied, 1);

    return refused;
}


/* the cache as it is since, or was before, keys were reset */

static ratelimit_deny_cache_t *
ngx_http_ratelimit_redis_deny_cache_at(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, uint32_t reset_count)
{
    ratelimit_deny_cache_t  *cache;

    cache = q->subjects[i].use->zone->deny_cache;

    cache->generation = (cache->generation & 0xffff0000)
                        | (reset_count & 0xffff);

    return cache;
}


static ngx_uint_t
ngx_http_ratelimit_redis_deny_cache_find_item(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, uint64_t now)
{
    ratelimit_item_t     *item;
    ratelimit_denial_t    denial;
    ratelimit_verdict_t  *verdict;

    item = &q->items[i];
    verdict = &item->verdict;

    ngx_memzero(verdict, sizeof(ratelimit_verdict_t));

    verdict->limit = item->rule->capacity;

    if (item->cost == 0
        || !ratelimit_deny_cache_find(
                             ngx_http_ratelimit_redis_deny_cache_at(q, i,
                                 ngx_http_ratelimit_redis_resets_count(
                                           q->subjects[i].use->zone->redis)),
                             q->places[i].hash.lo,
                             ngx_http_ratelimit_redis_deny_cache_limit(q, i),
                             now, &denial))
    {
        verdict->remaining = UINT64_MAX;
        verdict->allowed = 1;
        return 0;
    }

    verdict->remaining = denial.remaining;
    verdict->retry_after = denial.retry - now;
    verdict->reset_after = denial.reset - now;
    verdict->excess = (item->cost - verdict->remaining) * 1000;

    return 1;
}


/*
 * Of a limit that is not known to refuse, Redis is asked by one look a second:
 * what marks the look is remembered like a denial, and forgotten like one.
 */

ngx_uint_t
ngx_http_ratelimit_redis_deny_cache_look_due(ngx_http_ratelimit_query_t *q)
{
    uint64_t                            now;
    ngx_uint_t                          i, due;
    ratelimit_denial_t                  denial;
    ngx_http_ratelimit_zone_t          *zone;
    ngx_http_ratelimit_redis_server_t  *server;

    if (ngx_http_ratelimit_self == 0) {
        return 0;
    }

    server = q->subjects[0].use->zone->redis->server;
    now = ngx_http_ratelimit_redis_usec();
    due = 0;

    if (server->second != ngx_time()) {
        server->second = ngx_time();
        server->asks = 0;
    }

    if (server->asks >= NGX_HTTP_RATELIMIT_REDIS_ASKS) {
        return 0;
    }

    for (i = 0; i < q->n; i++) {
        zone = q->subjects[i].use->zone;

        ngx_memzero(&denial, sizeof(ratelimit_denial_t));

        denial.key = q->places[i].hash.lo;
        denial.limit = ~ngx_http_ratelimit_redis_deny_cache_limit(q, i);
        denial.until = now + RATELIMIT_SECOND;

        if (q->items[i].cost && q->items[i].verdict.allowed
            && !ratelimit_deny_cache_find(zone->deny_cache, denial.key,
                                          denial.limit, now, &denial))
        {
            ratelimit_deny_cache_add(zone->deny_cache, &denial,
                                     ngx_http_ratelimit_self);
            due = 1;
        }
    }

    server->asks += due;

    return due;
}


void
ngx_http_ratelimit_redis_deny_cache_add(ngx_http_ratelimit_query_t *q,
    uint64_t asked)
{
    uint64_t              now, retry_after;
    ngx_uint_t            i;
    ratelimit_verdict_t  *verdict;

    if (q->allowed) {
        ngx_http_ratelimit_redis_deny_cache_forget(q);
    }

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    now = ngx_http_ratelimit_redis_usec();

    for (i = 0; i < q->n; i++) {

        verdict = &q->items[i].verdict;
        retry_after = verdict->retry_after;

        if (q->allowed && verdict->next_after
            && q->subjects[i].use->refusals_hold == NGX_HTTP_RATELIMIT_HOLD
            && !ngx_http_ratelimit_redis_deny_cache_shared(q, i))
        {
            retry_after = verdict->next_after;
        }

        if (retry_after && !q->items[i].count_rejected
            && q->subjects[i].use->refusals_hold
               != NGX_HTTP_RATELIMIT_HOLD_NOT)
        {
            ngx_http_ratelimit_redis_deny_cache_add_item(q, i, retry_after,
                                                         now, asked);

            /* so that it is known when the next request comes */

            (void) ngx_http_ratelimit_redis_resets_known(
                                           q->subjects[i].use->zone->redis);
        }
    }
}


/* whether another limit of the query was charged to the same counter */

static ngx_uint_t
ngx_http_ratelimit_redis_deny_cache_shared(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i)
{
    ngx_uint_t  k;

    for (k = 0; k < q->n; k++) {

        if (k != i && q->places[k].hash.lo == q->places[i].hash.lo
            && q->items[k].rule->period == q->items[i].rule->period)
        {
            return 1;
        }
    }

    return 0;
}


/*
 * Redis is asked again when the refusal ends at the earliest: it may have begun
 * when Redis was asked, and clocks run at speeds that differ by a thousandth at
 * most.  The client waits until it has ended for certain.
 */

static void
ngx_http_ratelimit_redis_deny_cache_add_item(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, uint64_t retry_after, uint64_t now, uint64_t asked)
{
    ratelimit_denial_t       denial;
    ratelimit_verdict_t     *verdict;
    ratelimit_deny_cache_t  *cache;

    verdict = &q->items[i].verdict;

    denial.until = asked + retry_after - retry_after / 1000;

    if (q->subjects[i].use->refusals_hold != NGX_HTTP_RATELIMIT_HOLD) {
        denial.until = ngx_min(denial.until, now + RATELIMIT_SECOND);
    }

    if (denial.until <= now || verdict->remaining > UINT32_MAX) {
        return;
    }

    denial.key = q->places[i].hash.lo;
    denial.limit = ngx_http_ratelimit_redis_deny_cache_limit(q, i);
    denial.retry = now + retry_after;
    denial.remaining = (uint32_t) verdict->remaining;

    /* a cost that is never allowed may find the limit whole before */

    denial.reset = now + ngx_max(verdict->reset_after, retry_after);

    cache = ngx_http_ratelimit_redis_deny_cache_at(q, i, q->reset_count);

    ratelimit_deny_cache_add(cache, &denial, ngx_http_ratelimit_self);

    /* by a request that was settled since Redis was asked */

    if (ratelimit_deny_cache_is_refunded(cache, denial.key, asked)) {
        ratelimit_deny_cache_forget(cache, denial.key,
                                    ngx_http_ratelimit_self);
    }
}


/* after a refund the key may be allowed, at whatever cost */

void
ngx_http_ratelimit_redis_deny_cache_refunded(ngx_http_ratelimit_query_t *q)
{
    uint64_t    now;
    ngx_uint_t  i;

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    now = ngx_http_ratelimit_redis_usec();

    for (i = 0; i < q->n; i++) {

        if (q->items[i].cost) {
            ratelimit_deny_cache_refunded(q->subjects[i].use->zone->deny_cache,
                                          q->places[i].hash.lo, now,
                                          ngx_http_ratelimit_self);
        }
    }
}


/*
 * After a charge what costs more, or has a smaller plan, has to wait longer
 * than it was told.
 */

void
ngx_http_ratelimit_redis_deny_cache_forget(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    for (i = 0; i < q->n; i++) {

        if (q->items[i].cost) {
            ratelimit_deny_cache_forget(q->subjects[i].use->zone->deny_cache,
                                        q->places[i].hash.lo,
                                        ngx_http_ratelimit_self);
        }
    }
}


static uint64_t
ngx_http_ratelimit_redis_deny_cache_limit(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i)
{
    return ratelimit_deny_cache_limit(&q->subjects[i].use->hasher.secret,
                                      q->items[i].rule, q->items[i].cost);
}
