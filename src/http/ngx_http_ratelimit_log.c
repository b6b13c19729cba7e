
/*
 * How many lines about refusals and delays are logged: "limit=" of
 * "ratelimit_log_level".
 */


#include "http/ngx_http_ratelimit_ctx.h"


#define NGX_HTTP_RATELIMIT_LOG_TIME  1000    /* ms */


static void ngx_http_ratelimit_log_later(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_zone_t *zone, ngx_uint_t level);
static void ngx_http_ratelimit_log_on_timer(ngx_event_t *ev);


ngx_uint_t
ngx_http_ratelimit_may_log(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_use_t *use, ngx_uint_t level)
{
    if (ctx->conf->log_limit == 0
        || ngx_http_ratelimit_store_may_log(use->zone, ctx->conf->log_limit))
    {
        return 1;
    }

    ngx_http_ratelimit_log_later(ctx, use->zone, level);

    return 0;
}


/*
 * Each worker does this; the first one writes the line for all, where the first
 * of those that it left out would be, on the most severe of their levels.
 */

static void
ngx_http_ratelimit_log_later(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_zone_t *zone, ngx_uint_t level)
{
    ngx_event_t               *ev;
    ngx_http_core_loc_conf_t  *clcf;

    ev = zone->log_timer;

    if (ev == NULL) {
        ev = ngx_http_ratelimit_timer_create(ngx_cycle->pool,
                                             ngx_http_ratelimit_log_on_timer,
                                             zone);
        if (ev == NULL) {
            return;
        }

        zone->log_timer = ev;
    }

    if (!ev->timer_set) {
        clcf = ngx_http_get_module_loc_conf(ctx->request,
                                            ngx_http_core_module);
        ev->log = clcf->error_log;
        zone->log_level = level;

        ngx_add_timer(ev, NGX_HTTP_RATELIMIT_LOG_TIME);
    }

    zone->log_level = ngx_min(zone->log_level, level);
}


static void
ngx_http_ratelimit_log_on_timer(ngx_event_t *ev)
{
    uint64_t                    n;
    ngx_http_ratelimit_zone_t  *zone;

    zone = ngx_http_ratelimit_timer_data(ev);
    n = ngx_http_ratelimit_store_not_logged(zone);

    if (n) {
        ngx_log_error(zone->log_level, ev->log, 0,
                      "ratelimit zone \"%V\" has limited or delayed %uL "
                      "further requests", &zone->name, n);
    }
}


/* a worker does not wait for its timers */

void
ngx_http_ratelimit_log_exit_process(ngx_http_ratelimit_main_conf_t *rmcf)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_zone_t  **zone;

    zone = rmcf->zones.elts;

    for (i = 0; i < rmcf->zones.nelts; i++) {
        if (zone[i]->log_timer != NULL && zone[i]->log_timer->timer_set) {
            ngx_http_ratelimit_log_on_timer(zone[i]->log_timer);
        }
    }
}
