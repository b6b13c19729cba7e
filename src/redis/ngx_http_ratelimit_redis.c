
/*
 * What the configuration declares, the memory that the workers share, and what
 * a worker does when it starts and exits.
 */


#include "redis/ngx_http_ratelimit_redis_nodes.h"
#include "store/ngx_http_ratelimit_kept.h"


static ngx_int_t ngx_http_ratelimit_redis_declare_servers(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_shared_name(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *name);
static ngx_int_t ngx_http_ratelimit_redis_init_shared(
    ngx_shm_zone_t *shm_zone, void *data);
static ngx_int_t ngx_http_ratelimit_redis_keep(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_leave(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_stay(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_each(ngx_cycle_t *cycle,
    ngx_int_t (*handler)(ngx_cycle_t *cycle,
        ngx_http_ratelimit_redis_t *redis));
static ngx_int_t ngx_http_ratelimit_redis_init(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_redis_exit(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_copy_figures(
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *node,
    ngx_http_ratelimit_redis_shared_t *shared,
    ngx_http_ratelimit_redis_figures_t *figures);
static ngx_int_t ngx_http_ratelimit_redis_format_endpoint(
    ngx_http_ratelimit_redis_endpoint_t *endpoint, ngx_pool_t *pool,
    ngx_str_t *text);


ngx_int_t
ngx_http_ratelimit_redis_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, void *tag)
{
    size_t     size;
    ngx_str_t  name;

    ngx_http_ratelimit_redis_find_resolver(cf, redis);

    if (ngx_http_ratelimit_redis_declare_servers(cf, redis) != NGX_OK
        || ngx_http_ratelimit_redis_shared_name(cf, redis, &name) != NGX_OK)
    {
        return NGX_ERROR;
    }

    size = redis->nodes ? ngx_http_ratelimit_redis_nodes_size(redis->nodes)
                        : 8 * ngx_pagesize;

    size += ngx_align(2 * NGX_HTTP_RATELIMIT_REDIS_LANES, ngx_pagesize);

    return ngx_http_ratelimit_shm_add(cf, &name, size, tag,
                                      ngx_http_ratelimit_redis_init_shared,
                                      redis)
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_redis_declare_servers(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_ratelimit_redis_endpoint_t  *endpoint;

    endpoint = redis->endpoints.elts;

    if (redis->cluster || redis->sentinel.len) {
        endpoint = NULL;

        if (ngx_http_ratelimit_redis_nodes_create(cf, redis) != NGX_OK
            || ngx_http_ratelimit_redis_discovery_create(cf, redis) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    redis->server = ngx_http_ratelimit_redis_server_create(cf, redis,
                                                           endpoint);

    return redis->server ? NGX_OK : NGX_ERROR;
}


/* another name or other seeds mean other nodes, and so other memory */

static ngx_int_t
ngx_http_ratelimit_redis_shared_name(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *name)
{
    u_char                               *p;
    uint32_t                              hash;
    ngx_uint_t                            i;
    ngx_http_ratelimit_redis_endpoint_t  *endpoints;

    p = ngx_pnalloc(cf->pool, sizeof("ratelimit:redis::0123456789abcdef") - 1
                              + redis->name.len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    name->data = p;
    p = ngx_sprintf(p, "ratelimit:redis:%V", &redis->name);

    if (redis->nodes != NULL) {
        endpoints = redis->endpoints.elts;

        ngx_crc32_init(hash);
        ngx_crc32_update(&hash, redis->sentinel.data, redis->sentinel.len);

        for (i = 0; i < redis->endpoints.nelts; i++) {
            ngx_crc32_update(&hash, endpoints[i].host.data,
                             endpoints[i].host.len + 1);
            ngx_crc32_update(&hash, (u_char *) &endpoints[i].port,
                             sizeof(in_port_t));
        }

        ngx_crc32_final(hash);

        p = ngx_sprintf(p, ":%08xD", hash);
    }

    name->len = p - name->data;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_redis_declare_zone(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_redis_t *redis,
    void *tag)
{
    zone->redis = redis;
    zone->store = &ngx_http_ratelimit_redis_store;
    zone->rank = (uintptr_t) redis;
    zone->parted = redis->cluster;
    zone->backend = NGX_HTTP_RATELIMIT_REDIS;
    zone->mirror |= (zone->fail == NGX_HTTP_RATELIMIT_FAIL_LOCAL);

    if (zone->sync) {
        zone->store = &ngx_http_ratelimit_sync_store;
        zone->rank++;
        zone->backend = NGX_HTTP_RATELIMIT_SYNC;
        zone->mirror = 1;

        if (ngx_http_ratelimit_redis_report_declare(cf, zone, tag) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return ngx_http_ratelimit_redis_deny_cache_declare(cf, zone, tag);
}


static ngx_int_t
ngx_http_ratelimit_redis_init_shared(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_ratelimit_redis_t  *former = data;

    ngx_int_t                    rc;
    ngx_slab_pool_t             *pool;
    ngx_http_ratelimit_redis_t  *redis;

    redis = shm_zone->data;
    pool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    redis->shared = former ? former->shared
                           : ngx_slab_calloc(pool,
                                    sizeof(ngx_http_ratelimit_redis_shared_t));

    if (redis->shared == NULL) {
        return NGX_ERROR;
    }

    ngx_shmtx_lock(&pool->mutex);
    rc = ngx_http_ratelimit_redis_add_counters(redis, redis->shared, pool);
    ngx_shmtx_unlock(&pool->mutex);

    redis->server->owner.shared = redis->shared;
    redis->offsets = &redis->shared->offset;

    if (rc != NGX_OK || redis->nodes == NULL) {
        return rc;
    }

    if (ngx_http_ratelimit_redis_nodes_init(redis->nodes,
                                            former ? former->nodes : NULL, pool)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    redis->offsets = redis->nodes->directory->offsets;

    return NGX_OK;
}


void
ngx_http_ratelimit_redis_init_module(ngx_cycle_t *cycle)
{
    if (ngx_is_init_cycle(cycle->old_cycle)) {
        return;
    }

    /* each is gone but those whose memory is that of one that is there */

    (void) ngx_http_ratelimit_redis_each(cycle->old_cycle,
                                         ngx_http_ratelimit_redis_leave);
    (void) ngx_http_ratelimit_redis_each(cycle,
                                         ngx_http_ratelimit_redis_stay);
    (void) ngx_http_ratelimit_redis_each(cycle->old_cycle,
                                         ngx_http_ratelimit_redis_keep);
}


static ngx_int_t
ngx_http_ratelimit_redis_leave(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis)
{
    redis->shared->gone = 1;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_redis_stay(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis)
{
    redis->shared->gone = 0;

    return NGX_OK;
}


/* if it is gone: when it goes, and when workers exit that still know it */

static ngx_int_t
ngx_http_ratelimit_redis_keep(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_str_t  node;

    if (!redis->shared->gone) {
        return NGX_OK;
    }

    ngx_str_null(&node);

    ngx_http_ratelimit_redis_keep_counters(redis, &node, redis->shared);

    if (redis->nodes != NULL) {
        ngx_http_ratelimit_redis_nodes_keep(redis->nodes);
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_redis_init_process(ngx_cycle_t *cycle)
{
    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    if (ngx_http_ratelimit_redis_each(cycle, ngx_http_ratelimit_redis_init)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_redis_each(cycle,
                                       ngx_http_ratelimit_redis_report_start);
}


void
ngx_http_ratelimit_redis_exit_process(ngx_cycle_t *cycle)
{
    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return;
    }

    (void) ngx_http_ratelimit_redis_each(cycle, ngx_http_ratelimit_redis_exit);
}


/* memory with our init handler belongs to a Redis, which is its data */

static ngx_int_t
ngx_http_ratelimit_redis_each(ngx_cycle_t *cycle,
    ngx_int_t (*handler)(ngx_cycle_t *cycle,
        ngx_http_ratelimit_redis_t *redis))
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_shm_zone_t   *shm_zone;

    for (part = &cycle->shared_memory.part; part; part = part->next) {
        shm_zone = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (shm_zone[i].init == ngx_http_ratelimit_redis_init_shared
                && handler(cycle, shm_zone[i].data) != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_redis_init(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_ratelimit_redis_timeout_init(redis->server,
                                       ngx_http_ratelimit_redis_on_timeout,
                                       ngx_http_ratelimit_redis_retry_handler);

    if (redis->nodes == NULL) {
        ngx_http_ratelimit_redis_server_open(redis->server);
        return NGX_OK;
    }

    redis->nodes->on_timeout = ngx_http_ratelimit_redis_on_timeout;
    redis->nodes->on_retry = ngx_http_ratelimit_redis_retry_handler;

    if (ngx_http_ratelimit_redis_nodes_open(redis->nodes, cycle) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_redis_discovery_open(redis->discovery);

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_redis_exit(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_str_t                            node;
    ngx_http_ratelimit_redis_counters_t  counters;

    if (redis->nodes != NULL) {
        ngx_http_ratelimit_redis_discovery_close(redis->discovery);
        ngx_http_ratelimit_redis_nodes_close(redis->nodes);
    }

    ngx_http_ratelimit_redis_timeout_remove_all(redis->server);
    ngx_http_ratelimit_redis_server_close(redis->server);

    if (redis->counted) {
        ngx_str_null(&node);

        ngx_http_ratelimit_redis_sum_counters(redis, &node, redis->shared,
                                              &counters);

        ngx_log_error(NGX_LOG_INFO, cycle->log, 0,
                      "ratelimit: redis \"%V\": %uA commands, %uA timeouts, "
                      "%uA errors, %uA changes of state, %uA fallbacks, "
                      "%uA refusals from the deny cache",
                      &redis->name, counters.commands, counters.timeouts,
                      counters.errors, counters.changes, counters.fallbacks,
                      counters.denied);
    }

    return ngx_http_ratelimit_redis_keep(cycle, redis);
}


ngx_int_t
ngx_http_ratelimit_redis_get_figures(ngx_http_ratelimit_redis_t *redis,
    ngx_uint_t n, ngx_pool_t *pool,
    ngx_http_ratelimit_redis_figures_t *figures)
{
    u_char                                text[NGX_HTTP_RATELIMIT_NODE_NAME];
    ngx_str_t                             name;
    ngx_http_ratelimit_redis_node_t      *node;
    ngx_http_ratelimit_redis_shared_t    *shared;
    ngx_http_ratelimit_redis_endpoint_t   endpoint, *endpoints;

    ngx_str_null(&name);

    ngx_memzero(&endpoint, sizeof(ngx_http_ratelimit_redis_endpoint_t));

    shared = redis->shared;

    if (redis->nodes == NULL) {

        if (n) {
            return NGX_DONE;
        }

        endpoints = redis->endpoints.elts;
        endpoint = endpoints[0];

    } else if (n == 0) {
        endpoint.path = redis->sentinel;

        if (redis->cluster) {
            ngx_str_set(&endpoint.path, "cluster");
        }

    } else {
        node = ngx_http_ratelimit_redis_nodes_get(redis->nodes, n - 1);

        if (node == NULL) {
            return NGX_DONE;
        }

        shared = &node->shared;

        ngx_http_ratelimit_redis_name_node(node, text, &name);

        endpoint.host.data = node->host;
        endpoint.host.len = ngx_strlen(node->host);
        endpoint.port = node->port;
    }

    figures->name = redis->name;

    ngx_http_ratelimit_redis_copy_figures(redis, &name, shared, figures);

    if (!figures->up) {
        ngx_http_ratelimit_redis_try(redis, n);
    }

    if (n == 0) {
        ngx_http_ratelimit_redis_report_figures(redis, figures);
    }

    return ngx_http_ratelimit_redis_format_endpoint(&endpoint, pool,
                                                  &figures->address);
}


static void
ngx_http_ratelimit_redis_copy_figures(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *node, ngx_http_ratelimit_redis_shared_t *shared,
    ngx_http_ratelimit_redis_figures_t *figures)
{
    figures->up = !ratelimit_breaker_is_open(&shared->breaker);

    ngx_http_ratelimit_redis_sum_counters(redis, node, shared,
                                          &figures->counters);

    figures->sync_pending = 0;
    figures->sync_age = 0;
}


static ngx_int_t
ngx_http_ratelimit_redis_format_endpoint(
    ngx_http_ratelimit_redis_endpoint_t *endpoint, ngx_pool_t *pool,
    ngx_str_t *text)
{
    u_char  *p;

    if (endpoint->host.len == 0) {
        *text = endpoint->path;
        return NGX_OK;
    }

    p = ngx_pnalloc(pool, endpoint->host.len + sizeof("[]:65535") - 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    text->data = p;
    text->len = ngx_http_ratelimit_redis_write_endpoint(p, endpoint) - p;

    return NGX_OK;
}
