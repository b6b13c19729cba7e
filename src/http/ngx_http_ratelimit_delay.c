
/*
 * A request waits: until its delay is over, or until a store has decided.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static void ngx_http_ratelimit_delay_handler(ngx_http_request_t *r);


ngx_int_t
ngx_http_ratelimit_delay(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    uint64_t                      delay;
    ngx_int_t                     rc;
    ngx_uint_t                    excess;
    ngx_event_t                  *wev;
    ratelimit_item_t             *item;
    ngx_http_request_t           *r;
    const ratelimit_algorithm_t  *algorithm;

    r = ctx->request;
    item = &q->items[i];

    ngx_http_ratelimit_describe(ctx);

    excess = item->verdict.excess;

    ngx_log_error(ctx->conf->delay_log_level, q->pool->log, 0,
                  "delaying request%s, excess: %ui.%03ui, by zone \"%V\"",
                  ctx->conf->dry_run ? ", dry run" : "",
                  excess / 1000, excess % 1000,
                  &q->subjects[i].use->zone->name);

    if (ctx->conf->dry_run) {
        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_DELAYED_DRY_RUN);
        return NGX_DECLINED;
    }

    ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_DELAYED);

    rc = ngx_http_ratelimit_suspend(r, ngx_http_ratelimit_delay_handler);
    if (rc != NGX_AGAIN) {
        return rc;
    }

    algorithm = ratelimit_algorithms[item->shape->algorithm];

    ctx->queued = (algorithm->takes & RATELIMIT_TAKES_WAIT) != 0;

    delay = item->verdict.delay;
    wev = r->connection->write;

    wev->delayed = 1;
    ngx_add_timer(wev, (ngx_msec_t) (delay / 1000 + (delay % 1000 != 0)));

    return NGX_AGAIN;
}


/* nginx notices if the client closes the connection meanwhile */

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
