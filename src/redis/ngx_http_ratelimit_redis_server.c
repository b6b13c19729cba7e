
/*
 * A server as the configuration declares it, what all workers share of it, and
 * where it is.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static ngx_int_t ngx_http_ratelimit_redis_find_host(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis);
static ngx_uint_t ngx_http_ratelimit_redis_is_name(ngx_str_t *host);
static ngx_int_t ngx_http_ratelimit_redis_init_shared(
    ngx_shm_zone_t *shm_zone, void *data);
static ngx_int_t ngx_http_ratelimit_redis_init_server(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_each(ngx_cycle_t *cycle,
    ngx_int_t (*what)(ngx_cycle_t *cycle, ngx_http_ratelimit_redis_t *redis));
static ngx_int_t ngx_http_ratelimit_redis_exit_server(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis);

static void ngx_http_ratelimit_redis_resolved(ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_redis_take_addrs(
    ngx_http_ratelimit_redis_t *redis, ngx_resolver_ctx_t *ctx);


ngx_int_t
ngx_http_ratelimit_redis_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, void *tag)
{
    u_char     *p;
    ngx_str_t   name;

    name.len = sizeof("ratelimit:redis:") - 1 + redis->name.len;
    name.data = ngx_pnalloc(cf->pool, name.len);
    if (name.data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_cpymem(name.data, "ratelimit:redis:",
                   sizeof("ratelimit:redis:") - 1);
    ngx_memcpy(p, redis->name.data, redis->name.len);

    redis->shm_zone = ngx_shared_memory_add(cf, &name, 8 * ngx_pagesize, tag);
    if (redis->shm_zone == NULL) {
        return NGX_ERROR;
    }

    redis->shm_zone->init = ngx_http_ratelimit_redis_init_shared;
    redis->shm_zone->data = redis;

    return redis->path.len ? NGX_OK
                           : ngx_http_ratelimit_redis_find_host(cf, redis);
}


ngx_int_t
ngx_http_ratelimit_redis_bind(ngx_conf_t *cf, ngx_http_ratelimit_zone_t *zone,
    void *tag)
{
    zone->store = &ngx_http_ratelimit_redis_store;
    zone->twin |= (zone->fail == NGX_HTTP_RATELIMIT_FAIL_LOCAL);

    return ngx_http_ratelimit_redis_deny_cache_declare(cf, zone, tag);
}


/*
 * As proxy_pass does it, while the configuration is read.  With a resolver a
 * name that is not known now may be found later.
 */

static ngx_int_t
ngx_http_ratelimit_redis_find_host(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_url_t                  u;
    ngx_int_t                  rc;
    ngx_http_core_loc_conf_t  *clcf;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.host = redis->host;
    u.port = redis->port;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    rc = ngx_inet_resolve_host(cf->pool, &u);

    redis->addrs = u.addrs;
    redis->naddrs = u.naddrs;

    if (ngx_http_ratelimit_redis_is_name(&redis->host)
        && clcf->resolver != NULL && clcf->resolver->connections.nelts)
    {
        redis->resolver = clcf->resolver;
        redis->resolver_timeout = (clcf->resolver_timeout
                                   == NGX_CONF_UNSET_MSEC)
                                  ? 30000 : clcf->resolver_timeout;
    }

    if (rc == NGX_OK) {
        return NGX_OK;
    }

    ngx_log_error((redis->resolver ? NGX_LOG_WARN : NGX_LOG_EMERG), cf->log, 0,
                  "%s in \"%V\" of the \"ratelimit_redis\" directive "
                  "in %V:%ui", u.err ? u.err : "host not found", &redis->host,
                  &redis->file, redis->line);

    return redis->resolver ? NGX_OK : NGX_ERROR;
}


/* neither an address nor this machine, which a resolver may not know */

static ngx_uint_t
ngx_http_ratelimit_redis_is_name(ngx_str_t *host)
{
    return ngx_inet_addr(host->data, host->len) == INADDR_NONE
           && ngx_strlchr(host->data, host->data + host->len, ':') == NULL
           && ngx_strcasecmp(host->data, (u_char *) "localhost") != 0;
}


static ngx_int_t
ngx_http_ratelimit_redis_init_shared(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_slab_pool_t             *shpool;
    ngx_http_ratelimit_redis_t  *redis;

    redis = shm_zone->data;
    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data == NULL && !shm_zone->shm.exists) {
        shpool->data = ngx_slab_calloc(shpool,
                                    sizeof(ngx_http_ratelimit_redis_shared_t));
        if (shpool->data == NULL) {
            return NGX_ERROR;
        }
    }

    redis->shared = shpool->data;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_redis_init_process(ngx_cycle_t *cycle)
{
    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    return ngx_http_ratelimit_redis_each(cycle,
                                         ngx_http_ratelimit_redis_init_server);
}


void
ngx_http_ratelimit_redis_exit_process(ngx_cycle_t *cycle)
{
    (void) ngx_http_ratelimit_redis_each(cycle,
                                         ngx_http_ratelimit_redis_exit_server);
}


/* they are known by their init handler */

static ngx_int_t
ngx_http_ratelimit_redis_each(ngx_cycle_t *cycle,
    ngx_int_t (*what)(ngx_cycle_t *cycle, ngx_http_ratelimit_redis_t *redis))
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_shm_zone_t   *shm_zone;

    for (part = &cycle->shared_memory.part; part; part = part->next) {
        shm_zone = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (shm_zone[i].init == ngx_http_ratelimit_redis_init_shared
                && what(cycle, shm_zone[i].data) != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_redis_init_server(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_event_t       *timer;
    ngx_connection_t  *dummy;

    timer = ngx_pcalloc(cycle->pool, sizeof(ngx_event_t));
    dummy = ngx_pcalloc(cycle->pool, sizeof(ngx_connection_t));

    if (timer == NULL || dummy == NULL) {
        return NGX_ERROR;
    }

    dummy->fd = (ngx_socket_t) -1;
    dummy->data = redis;

    timer->handler = ngx_http_ratelimit_redis_timer_handler;
    timer->data = dummy;
    timer->log = cycle->log;
    timer->cancelable = 1;

    redis->timer = timer;
    ngx_queue_init(&redis->pending);

    return ngx_http_ratelimit_redis_open(redis, cycle);
}


static ngx_int_t
ngx_http_ratelimit_redis_exit_server(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_ratelimit_redis_shared_t  *shared;

    if (redis->conns == NULL) {
        return NGX_OK;
    }

    ngx_http_ratelimit_redis_abandon(redis);
    ngx_http_ratelimit_redis_close(redis);

    shared = redis->shared;

    ngx_log_error(NGX_LOG_INFO, cycle->log, 0,
                  "ratelimit: redis \"%V\" so far: %uA commands, %uA timeouts, "
                  "%uA errors, %uA changes of state, %uA decisions without it, "
                  "%uA refusals known already",
                  &redis->name, shared->commands, shared->timeouts,
                  shared->errors, shared->changes, shared->fallbacks,
                  shared->denied);

    return NGX_OK;
}


/*
 * Nobody waits for the answer: the addresses that are known are tried, and the
 * new ones by those who try next.
 */

void
ngx_http_ratelimit_redis_resolve(ngx_http_ratelimit_redis_t *redis)
{
    ngx_resolver_ctx_t  *ctx;

    if (redis->resolver == NULL || redis->resolving || ngx_exiting) {
        return;
    }

    ctx = ngx_resolve_start(redis->resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        return;
    }

    ctx->name = redis->host;
    ctx->handler = ngx_http_ratelimit_redis_resolved;
    ctx->data = redis;
    ctx->timeout = redis->resolver_timeout;
    ctx->cancelable = 1;

    redis->resolving = 1;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        redis->resolving = 0;
    }
}


static void
ngx_http_ratelimit_redis_resolved(ngx_resolver_ctx_t *ctx)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = ctx->data;
    redis->resolving = 0;

    if (ctx->state) {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "ratelimit: host \"%V\" of redis \"%V\" "
                      "could not be resolved (%i: %s)",
                      &ctx->name, &redis->name, ctx->state,
                      ngx_resolver_strerror(ctx->state));

    } else if (ngx_http_ratelimit_redis_take_addrs(redis, ctx) != NGX_OK) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "ratelimit: no memory for the addresses of redis \"%V\"",
                      &redis->name);
    }

    ngx_resolve_name_done(ctx);
}


/* the former ones stay in place until the new ones are */

static ngx_int_t
ngx_http_ratelimit_redis_take_addrs(ngx_http_ratelimit_redis_t *redis,
    ngx_resolver_ctx_t *ctx)
{
    u_char      *p;
    ngx_uint_t   i;
    ngx_addr_t  *addrs;

    addrs = ngx_alloc(ctx->naddrs * (sizeof(ngx_addr_t)
                                     + sizeof(ngx_sockaddr_t)),
                      ngx_cycle->log);
    if (addrs == NULL) {
        return NGX_ERROR;
    }

    p = (u_char *) (addrs + ctx->naddrs);

    for (i = 0; i < ctx->naddrs; i++) {
        ngx_memcpy(p, ctx->addrs[i].sockaddr, ctx->addrs[i].socklen);

        addrs[i].sockaddr = (struct sockaddr *) p;
        addrs[i].socklen = ctx->addrs[i].socklen;
        ngx_str_null(&addrs[i].name);

        p += sizeof(ngx_sockaddr_t);
    }

    if (redis->resolved != NULL) {
        ngx_free(redis->resolved);
    }

    redis->resolved = addrs;
    redis->addrs = addrs;
    redis->naddrs = ctx->naddrs;

    return NGX_OK;
}
