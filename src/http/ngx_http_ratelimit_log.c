
/*
 * How many lines about refusals and delays are logged: "limit=" of
 * "ratelimit_log_level".
 */


#include "http/ngx_http_ratelimit_ctx.h"


#define NGX_HTTP_RATELIMIT_LOG_TIME  1000    /* ms */


static void ngx_http_ratelimit_log_later(ngx_http_ratelimit_zone_t *zone);
static void ngx_http_ratelimit_log_handler(ngx_event_t *ev);


ngx_uint_t
ngx_http_ratelimit_may_log(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_use_t *use)
{
    if (ctx->conf->log_limit == 0
        || ngx_http_ratelimit_store_may_log(use->zone, ctx->conf->log_limit))
    {
        return 1;
    }

    ngx_http_ratelimit_log_later(use->zone);

    return 0;
}


/* each worker does this; the first one writes the line for all */

static void
ngx_http_ratelimit_log_later(ngx_http_ratelimit_zone_t *zone)
{
    ngx_event_t       *ev;
    ngx_connection_t  *c;

    ev = zone->log_timer;

    if (ev == NULL) {
        ev = ngx_pcalloc(ngx_cycle->pool, sizeof(ngx_event_t)
                                          + sizeof(ngx_connection_t));
        if (ev == NULL) {
            return;
        }

        c = (ngx_connection_t *) (ev + 1);
        c->fd = (ngx_socket_t) -1;
        c->data = zone;

        ev->data = c;
        ev->log = ngx_cycle->log;
        ev->handler = ngx_http_ratelimit_log_handler;
        ev->cancelable = 1;

        zone->log_timer = ev;
    }

    if (!ev->timer_set) {
        ngx_add_timer(ev, NGX_HTTP_RATELIMIT_LOG_TIME);
    }
}


static void
ngx_http_ratelimit_log_handler(ngx_event_t *ev)
{
    uint64_t                    n;
    ngx_connection_t           *c;
    ngx_http_ratelimit_zone_t  *zone;

    c = ev->data;
    zone = c->data;
    n = ngx_http_ratelimit_store_not_logged(zone);

    if (n) {
        ngx_log_error(NGX_LOG_WARN, ev->log, 0,
                      "ratelimit zone \"%V\" has limited or delayed %uL "
                      "further requests", &zone->name, n);
    }
}
