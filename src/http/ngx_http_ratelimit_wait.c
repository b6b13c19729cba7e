
/*
 * A request waits: for the answer of a store, or because it was slowed down.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static void ngx_http_ratelimit_delay_handler(ngx_http_request_t *r);


ngx_int_t
ngx_http_ratelimit_delay(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t item)
{
    uint64_t             delay;
    ngx_int_t            rc;
    ngx_event_t         *wev;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_ratelimit_log_delay(ctx, item);

    if (ctx->conf->dry_run) {
        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_DELAYED_DRY_RUN);
        return NGX_DECLINED;
    }

    ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_DELAYED);

    rc = ngx_http_ratelimit_suspend(r, ngx_http_ratelimit_delay_handler);
    if (rc != NGX_AGAIN) {
        return rc;
    }

    ctx->queued = (ctx->items[item].shape->algorithm
                   == RATELIMIT_TOKEN_BUCKET);

    delay = ctx->items[item].verdict.delay;
    wev = r->connection->write;

    wev->delayed = 1;
    ngx_add_timer(wev, (ngx_msec_t) (delay / 1000 + (delay % 1000 != 0)));

    return NGX_AGAIN;
}


/* a client that goes away meanwhile is noticed */

ngx_int_t
ngx_http_ratelimit_suspend(ngx_http_request_t *r,
    ngx_http_event_handler_pt handler)
{
    ngx_event_t  *rev;

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = handler;

    return NGX_AGAIN;
}


static void
ngx_http_ratelimit_delay_handler(ngx_http_request_t *r)
{
    ngx_event_t               *wev;
    ngx_http_ratelimit_ctx_t  *ctx;

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "ratelimit: delay");

    wev = r->connection->write;

    if (!wev->delayed) {
        ctx = ngx_http_ratelimit_get_ctx(r);
        ctx->queued = 0;

        ngx_http_ratelimit_resume(r);
        return;
    }

    if (ngx_handle_write_event(wev, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    }
}


void
ngx_http_ratelimit_resume(ngx_http_request_t *r)
{
    if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    ngx_http_core_run_phases(r);
}
