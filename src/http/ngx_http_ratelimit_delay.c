
/*
 * A request waits: until its delay is over, or until a store has decided.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static ngx_uint_t ngx_http_ratelimit_is_queued(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_set_timer(ngx_http_ratelimit_ctx_t *ctx,
    uint64_t usec);
static void ngx_http_ratelimit_timer_handler(ngx_event_t *ev);
static void ngx_http_ratelimit_suspended_handler(ngx_http_request_t *r);


ngx_int_t
ngx_http_ratelimit_delay(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_uint_t         excess;
    ratelimit_item_t  *item;

    item = &q->items[i];

    ngx_http_ratelimit_describe(ctx);

    excess = item->verdict.excess;

    if (q->pool->log->log_level >= ctx->conf->delay_log_level
        && ngx_http_ratelimit_may_log(ctx, q->subjects[i].use,
                                      ctx->conf->delay_log_level))
    {
        ngx_log_error(ctx->conf->delay_log_level, q->pool->log, 0,
                      "delaying request%s, excess: %ui.%03ui, by zone \"%V\"",
                      ctx->conf->dry_run ? ", dry run" : "",
                      excess / 1000, excess % 1000,
                      &q->subjects[i].use->label);
    }

    if (ctx->conf->dry_run) {
        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_DELAYED_DRY_RUN);
        return NGX_DECLINED;
    }

    ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_DELAYED);

    if (ngx_http_ratelimit_set_timer(ctx, item->verdict.delay) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->queued = ngx_http_ratelimit_is_queued(q);

    return ngx_http_ratelimit_suspend(ctx->request);
}


/* whether a token is waited for, if only beside what takes longer */

static ngx_uint_t
ngx_http_ratelimit_is_queued(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                    i;
    ratelimit_item_t             *item;
    const ratelimit_algorithm_t  *algorithm;

    for (i = 0; i < q->n; i++) {
        item = &q->items[i];
        algorithm = ratelimit_algorithms[item->shape->algorithm];

        if (item->verdict.delay && (algorithm->takes & RATELIMIT_TAKES_WAIT)) {
            return 1;
        }
    }

    return 0;
}


/* not that of the connection: events of this reach one subrequest alone */

static ngx_int_t
ngx_http_ratelimit_set_timer(ngx_http_ratelimit_ctx_t *ctx, uint64_t usec)
{
    ngx_event_t  *ev;

    ev = ngx_pcalloc(ctx->request->pool, sizeof(ngx_event_t));
    if (ev == NULL) {
        return NGX_ERROR;
    }

    ev->handler = ngx_http_ratelimit_timer_handler;
    ev->data = ctx;
    ev->log = ctx->request->connection->log;

    ctx->delayed = 1;
    ctx->timer = ev;

    ngx_add_timer(ev, (ngx_msec_t) (usec / 1000 + (usec % 1000 != 0)));

    return NGX_OK;
}


static void
ngx_http_ratelimit_timer_handler(ngx_event_t *ev)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ev->data;

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, ev->log, 0, "ratelimit: delay is over");

    if (ngx_http_ratelimit_is_suspended(ctx->request)) {
        ctx->queued = 0;
        ngx_http_ratelimit_resume(ctx->request);
    }
}


/* nginx notices if the client closes the connection meanwhile */

ngx_int_t
ngx_http_ratelimit_suspend(ngx_http_request_t *r)
{
    ngx_event_t  *rev;

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_ratelimit_suspended_handler;

    return NGX_AGAIN;
}


static void
ngx_http_ratelimit_suspended_handler(ngx_http_request_t *r)
{
    /* void */
}


/*
 * A client abort frees the request, except for a "post_action": nginx goes on
 * with the request, and the decision matters only to count=.
 */

ngx_uint_t
ngx_http_ratelimit_is_suspended(ngx_http_request_t *r)
{
    return r->write_event_handler == ngx_http_ratelimit_suspended_handler;
}


void
ngx_http_ratelimit_resume(ngx_http_request_t *r)
{
    ngx_connection_t  *c;

    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);

    } else {
        r->read_event_handler = ngx_http_block_reading;
        r->write_event_handler = ngx_http_core_run_phases;

        ngx_http_core_run_phases(r);
    }

    ngx_http_run_posted_requests(c);
}
