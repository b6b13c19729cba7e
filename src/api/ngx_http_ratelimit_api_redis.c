
/*
 * Redis servers as JSON.
 */


#include "api/ngx_http_ratelimit_api.h"


static void ngx_http_ratelimit_api_redis_server(
    ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_redis_figures_t *figures);
static void ngx_http_ratelimit_api_latency(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_redis_figures_t *figures);


void
ngx_http_ratelimit_api_redis(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_main_conf_t *rmcf)
{
    ngx_uint_t                           i;
    ngx_array_t                         *servers;
    ngx_http_ratelimit_redis_figures_t  *figures;

    servers = ngx_http_ratelimit_api_get_redis(text->pool, rmcf);
    if (servers == NULL) {
        text->failed = 1;
        return;
    }

    figures = servers->elts;

    ngx_http_ratelimit_json_open(text, '[');

    for (i = 0; i < servers->nelts; i++) {
        ngx_http_ratelimit_api_redis_server(text, &figures[i]);
    }

    ngx_http_ratelimit_json_close(text, ']');
}


static void
ngx_http_ratelimit_api_redis_server(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_redis_figures_t *figures)
{
    ngx_http_ratelimit_json_open(text, '{');
    ngx_http_ratelimit_json_name(text, "name");
    ngx_http_ratelimit_json_string(text, &figures->name);
    ngx_http_ratelimit_json_name(text, "address");
    ngx_http_ratelimit_json_string(text, &figures->address);
    ngx_http_ratelimit_json_name(text, "up");
    ngx_http_ratelimit_json_literal(text, figures->up ? "true" : "false");
    ngx_http_ratelimit_json_name(text, "breaker");
    ngx_http_ratelimit_json_literal(text, figures->up ? "\"closed\""
                                                      : "\"open\"");
    ngx_http_ratelimit_json_figures(text,
                                    ngx_http_ratelimit_api_redis_figures,
                                    figures);
    ngx_http_ratelimit_json_name(text, "latency_seconds");
    ngx_http_ratelimit_api_latency(text, figures);
    ngx_http_ratelimit_json_close(text, '}');
}


/* how many replies came within which time, all that came faster included */

static void
ngx_http_ratelimit_api_latency(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_redis_figures_t *figures)
{
    uint64_t    count;
    ngx_uint_t  i;

    count = 0;

    ngx_http_ratelimit_json_open(text, '{');
    ngx_http_ratelimit_json_name(text, "buckets");
    ngx_http_ratelimit_json_open(text, '{');

    for (i = 0; i < NGX_HTTP_RATELIMIT_LATENCIES; i++) {
        count += figures->counters.latency[i];

        ngx_http_ratelimit_json_name(text, ngx_http_ratelimit_latencies[i]);
        ngx_http_ratelimit_json_number(text, count);
    }

    ngx_http_ratelimit_json_close(text, '}');
    ngx_http_ratelimit_json_name(text, "count");
    ngx_http_ratelimit_json_number(text, count);
    ngx_http_ratelimit_json_name(text, "sum");
    ngx_http_ratelimit_json_seconds(text, figures->counters.latency_sum);
    ngx_http_ratelimit_json_close(text, '}');
}
