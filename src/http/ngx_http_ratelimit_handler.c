
/*
 * The preaccess phase: ask, then let pass, slow down or refuse.
 */


#include "http/ngx_http_ratelimit.h"


static ngx_int_t ngx_http_ratelimit_ask(ngx_http_ratelimit_ctx_t *ctx);
static void ngx_http_ratelimit_done(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);
static ngx_int_t ngx_http_ratelimit_act(ngx_http_ratelimit_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_delay(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t item);
static ngx_int_t ngx_http_ratelimit_suspend(ngx_http_request_t *r,
    ngx_http_event_handler_pt handler);
static void ngx_http_ratelimit_delay_handler(ngx_http_request_t *r);
static void ngx_http_ratelimit_resume(ngx_http_request_t *r);


ngx_int_t
ngx_http_ratelimit_handler(ngx_http_request_t *r)
{
    ngx_int_t                       rc;
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (rlcf->set == NULL || r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx != NULL) {
        return (ctx->status == NGX_HTTP_RATELIMIT_UNDECIDED)
               ? ngx_http_ratelimit_act(ctx) : NGX_DECLINED;
    }

    ctx = ngx_http_ratelimit_create_ctx(r, rlcf->set->nrules);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_test_predicates(r, rlcf->bypass);

    if (rc == NGX_DECLINED) {
        ctx->status = NGX_HTTP_RATELIMIT_BYPASSED;
        ngx_http_ratelimit_keep_ctx(ctx);

        return NGX_DECLINED;
    }

    if (rc != NGX_OK || ngx_http_ratelimit_make_query(ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->query.n == 0) {
        return NGX_DECLINED;
    }

    ngx_http_ratelimit_keep_ctx(ctx);

    return ngx_http_ratelimit_ask(ctx);
}


static ngx_int_t
ngx_http_ratelimit_ask(ngx_http_ratelimit_ctx_t *ctx)
{
    ctx->query.done = ngx_http_ratelimit_done;

    ctx->rc = ctx->limits[0]->use.zone->store->check(&ctx->query);

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ctx->query.log, 0,
                   "ratelimit: %ui rules, rc:%i allowed:%ui",
                   ctx->query.n, ctx->rc, ctx->query.allowed);

    if (ctx->rc != NGX_AGAIN) {
        return ngx_http_ratelimit_act(ctx);
    }

    ctx->waiting = 1;

    return ngx_http_ratelimit_suspend(ctx->request,
                                      ngx_http_request_empty_handler);
}


static void
ngx_http_ratelimit_done(ngx_http_ratelimit_query_t *q, ngx_int_t rc)
{
    ngx_connection_t          *c;
    ngx_http_request_t        *r;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = q->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ctx->waiting = 0;
    ctx->rc = rc;

    ngx_http_ratelimit_resume(r);
    ngx_http_run_posted_requests(c);
}


static ngx_int_t
ngx_http_ratelimit_act(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_uint_t                   i, slowest, soft;
    ratelimit_item_t            *items;
    ngx_http_ratelimit_query_t  *q;

    if (ctx->rc != NGX_OK) {
        ctx->status = NGX_HTTP_RATELIMIT_FAILED_OPEN;
        return NGX_DECLINED;
    }

    q = &ctx->query;
    items = q->items;

    ctx->tightest = ratelimit_tightest(items, q->n);

    if (!q->allowed) {
        return ngx_http_ratelimit_refuse(ctx);
    }

    slowest = 0;
    soft = 0;

    for (i = 0; i < q->n; i++) {
        soft |= items[i].verdict.soft;

        if (items[i].verdict.delay > items[slowest].verdict.delay) {
            slowest = i;
        }
    }

    if (items[slowest].verdict.delay) {
        return ngx_http_ratelimit_delay(ctx, slowest);
    }

    ctx->status = soft ? NGX_HTTP_RATELIMIT_SOFT : NGX_HTTP_RATELIMIT_PASSED;

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_ratelimit_delay(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t item)
{
    uint64_t             delay;
    ngx_int_t            rc;
    ngx_event_t         *wev;
    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_ratelimit_log_delay(ctx, item);

    if (ctx->conf->dry_run) {
        ctx->status = NGX_HTTP_RATELIMIT_DELAYED_DRY_RUN;
        return NGX_DECLINED;
    }

    ctx->status = NGX_HTTP_RATELIMIT_DELAYED;

    rc = ngx_http_ratelimit_suspend(r, ngx_http_ratelimit_delay_handler);
    if (rc != NGX_AGAIN) {
        return rc;
    }

    delay = ctx->query.items[item].verdict.delay;
    wev = r->connection->write;

    wev->delayed = 1;
    ngx_add_timer(wev, (ngx_msec_t) (delay / 1000 + (delay % 1000 != 0)));

    return NGX_AGAIN;
}


/* a client that goes away meanwhile is noticed */

static ngx_int_t
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
    ngx_event_t  *wev;

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "ratelimit: delay");

    wev = r->connection->write;

    if (!wev->delayed) {
        ngx_http_ratelimit_resume(r);
        return;
    }

    if (ngx_handle_write_event(wev, 0) != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    }
}


static void
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
