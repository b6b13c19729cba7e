
/*
 * Counters of a server, in shared memory: each worker has a lane, as in
 * ngx_http_ratelimit_statistics.h.
 */


#include "redis/ngx_http_ratelimit_redis.h"
#include "store/ngx_http_ratelimit_kept.h"


ngx_int_t
ngx_http_ratelimit_redis_add_counters(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_shared_t *shared, ngx_slab_pool_t *pool)
{
    if (!redis->counted || shared->counters != NULL) {
        return NGX_OK;
    }

    shared->counters = ngx_slab_calloc_locked(pool,
                                              NGX_HTTP_RATELIMIT_REDIS_LANES);

    return shared->counters ? NGX_OK : NGX_ERROR;
}


void
ngx_http_ratelimit_redis_keep_counters(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *node, ngx_http_ratelimit_redis_shared_t *shared)
{
    ngx_uint_t  i;

    for (i = 0; shared->counters && i < NGX_HTTP_RATELIMIT_LANES; i++) {
        ngx_http_ratelimit_keep(&redis->name, node, &shared->counters[i],
                                sizeof(ngx_http_ratelimit_redis_counters_t));
    }
}


void
ngx_http_ratelimit_redis_restore_counters(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *node, ngx_http_ratelimit_redis_shared_t *shared)
{
    if (shared->counters != NULL && !redis->shared->gone) {
        ngx_http_ratelimit_restore_kept(&redis->name, node, shared->counters,
                                 sizeof(ngx_http_ratelimit_redis_counters_t));
    }
}


void
ngx_http_ratelimit_redis_sum_counters(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *node, ngx_http_ratelimit_redis_shared_t *shared,
    ngx_http_ratelimit_redis_counters_t *sum)
{
    ngx_memzero(sum, sizeof(ngx_http_ratelimit_redis_counters_t));

    if (shared->counters == NULL) {
        return;
    }

    ngx_http_ratelimit_redis_restore_counters(redis, node, shared);

    ngx_http_ratelimit_kept_lock();

    ngx_http_ratelimit_sum_lanes(shared->counters,
                                 sizeof(ngx_http_ratelimit_redis_counters_t),
                                 NGX_HTTP_RATELIMIT_LANES, sum,
                                 sizeof(ngx_http_ratelimit_redis_counters_t));

    ngx_http_ratelimit_add_kept(&redis->name, node, sum,
                                sizeof(ngx_http_ratelimit_redis_counters_t));

    ngx_http_ratelimit_kept_unlock();
}
