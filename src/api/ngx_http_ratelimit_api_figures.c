
/*
 * Figures that are shown both as JSON and as metrics: a line here adds one.
 */


#include "api/ngx_http_ratelimit_api.h"


static ngx_int_t ngx_http_ratelimit_api_add_redis(ngx_array_t *servers,
    ngx_http_ratelimit_redis_t *redis);


#define ngx_http_ratelimit_memory_field(field)                                \
    offsetof(ngx_http_ratelimit_memory_t, field)

const ngx_http_ratelimit_api_figure_t
    ngx_http_ratelimit_api_memory_figures[] = {

    { "size", "zone_size_bytes", NGX_HTTP_RATELIMIT_GAUGE,
      "Shared memory of the zone.",
      ngx_http_ratelimit_memory_field(size) },

    { "bytes_used", "zone_used_bytes", NGX_HTTP_RATELIMIT_GAUGE,
      "Shared memory of the zone that is in use.",
      ngx_http_ratelimit_memory_field(bytes_used) },

    { "entries", "zone_entries", NGX_HTTP_RATELIMIT_GAUGE,
      "Counters in the memory of the zone.",
      ngx_http_ratelimit_memory_field(entries) },

    { "evictions", "zone_evictions", NGX_HTTP_RATELIMIT_COUNTER,
      "Counters that were dropped before their time, as the zone was full.",
      ngx_http_ratelimit_memory_field(evictions) },

    { NULL, NULL, NGX_HTTP_RATELIMIT_GAUGE, NULL, 0 }
};


#define ngx_http_ratelimit_redis_field(field)                                 \
    offsetof(ngx_http_ratelimit_redis_figures_t, field)

#define ngx_http_ratelimit_redis_counter(name, help)                          \
    { #name, "redis_" #name, NGX_HTTP_RATELIMIT_COUNTER, help,                \
      ngx_http_ratelimit_redis_field(counters.name) }

const ngx_http_ratelimit_api_figure_t
    ngx_http_ratelimit_api_redis_figures[] = {

    { NULL, "redis_up", NGX_HTTP_RATELIMIT_GAUGE,
      "Whether the server is used, 1, or is marked down.",
      ngx_http_ratelimit_redis_field(up) },

    { "changes", "redis_breaker_changes", NGX_HTTP_RATELIMIT_COUNTER,
      "How often the server was marked down or up.",
      ngx_http_ratelimit_redis_field(counters.changes) },

    ngx_http_ratelimit_redis_counter(commands,
        "Commands that were sent to the server."),

    ngx_http_ratelimit_redis_counter(timeouts,
        "Commands that the server did not answer in time."),

    ngx_http_ratelimit_redis_counter(errors,
        "Commands that were answered by an error, or lost with a connection."),

    ngx_http_ratelimit_redis_counter(fallbacks,
        "Decisions that were made without the server, as it did not answer."),

    ngx_http_ratelimit_redis_counter(denied,
        "Refusals that were known, so that the server was not asked."),

    ngx_http_ratelimit_redis_counter(sync_batches,
        "Batches of write-back that the server has counted."),

    ngx_http_ratelimit_redis_counter(sync_deltas,
        "Deltas in the batches that the server has counted."),

    ngx_http_ratelimit_redis_counter(sync_repeated,
        "Batches that were sent again, as there was no answer."),

    ngx_http_ratelimit_redis_counter(sync_dropped,
        "Deltas that the server will never count."),

    { "sync_pending", "redis_sync_pending", NGX_HTTP_RATELIMIT_GAUGE,
      "Deltas that the server has not counted yet.",
      ngx_http_ratelimit_redis_field(sync_pending) },

    { "sync_age_seconds", "redis_sync_age_seconds",
      NGX_HTTP_RATELIMIT_GAUGE_SECONDS,
      "Age of the oldest delta that the server has not counted yet.",
      ngx_http_ratelimit_redis_field(sync_age) },

    { NULL, NULL, NGX_HTTP_RATELIMIT_GAUGE, NULL, 0 }
};


#define ngx_http_ratelimit_latency_text(usec, text)  text,

const char  *ngx_http_ratelimit_latencies[] = {
    ngx_http_ratelimit_each_latency(ngx_http_ratelimit_latency_text)
    "+Inf"
};


ngx_array_t *
ngx_http_ratelimit_api_get_redis(ngx_pool_t *pool,
    ngx_http_ratelimit_main_conf_t *rmcf)
{
    ngx_uint_t                    i;
    ngx_array_t                  *servers;
    ngx_http_ratelimit_redis_t  **redis;

    servers = ngx_array_create(pool, rmcf->redis.nelts + 1,
                               sizeof(ngx_http_ratelimit_redis_figures_t));
    if (servers == NULL) {
        return NULL;
    }

    redis = rmcf->redis.elts;

    for (i = 0; i < rmcf->redis.nelts; i++) {
        if (ngx_http_ratelimit_api_add_redis(servers, redis[i]) != NGX_OK) {
            return NULL;
        }
    }

    return servers;
}


static ngx_int_t
ngx_http_ratelimit_api_add_redis(ngx_array_t *servers,
    ngx_http_ratelimit_redis_t *redis)
{
#if (NGX_HTTP_RATELIMIT_HIREDIS)

    ngx_int_t                            rc;
    ngx_uint_t                           n;
    ngx_http_ratelimit_redis_figures_t   figures, *server;

    for (n = 0; /* void */ ; n++) {
        rc = ngx_http_ratelimit_redis_get_figures(redis, n, servers->pool,
                                                  &figures);
        if (rc != NGX_OK) {
            return rc == NGX_DONE ? NGX_OK : NGX_ERROR;
        }

        server = ngx_array_push(servers);
        if (server == NULL) {
            return NGX_ERROR;
        }

        *server = figures;
    }

#else

    return NGX_OK;

#endif
}


void
ngx_http_ratelimit_json_figures(ngx_http_ratelimit_text_t *text,
    const ngx_http_ratelimit_api_figure_t *figure, void *data)
{
    uint64_t  value;

    for ( /* void */ ; figure->metric != NULL; figure++) {

        if (figure->json == NULL) {
            continue;
        }

        value = ngx_http_ratelimit_api_value(figure, data);

        ngx_http_ratelimit_json_name(text, figure->json);

        if (figure->kind == NGX_HTTP_RATELIMIT_GAUGE_SECONDS) {
            ngx_http_ratelimit_json_seconds(text, value);

        } else {
            ngx_http_ratelimit_json_number(text, value);
        }
    }
}
