
/*
 * Before and after authentication: ask, then let pass, slow down or refuse.
 */


#include "http/ngx_http_ratelimit.h"


static ngx_int_t ngx_http_ratelimit_run(ngx_http_request_t *r,
    ngx_uint_t stage);
static ngx_int_t ngx_http_ratelimit_begin(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t stage);
static ngx_int_t ngx_http_ratelimit_ask(ngx_http_ratelimit_ctx_t *ctx);
static void ngx_http_ratelimit_done(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);
static ngx_int_t ngx_http_ratelimit_act(ngx_http_ratelimit_ctx_t *ctx);
static void ngx_http_ratelimit_unuse(ngx_http_ratelimit_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_fail(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_fail_e fail);
static ngx_int_t ngx_http_ratelimit_allow(ngx_http_ratelimit_ctx_t *ctx);
static void ngx_http_ratelimit_set_status(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_status_e status);
static ngx_http_ratelimit_status_e ngx_http_ratelimit_overshoot(
    ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t item);
static ngx_int_t ngx_http_ratelimit_delay(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t item);
static ngx_int_t ngx_http_ratelimit_suspend(ngx_http_request_t *r,
    ngx_http_event_handler_pt handler);
static void ngx_http_ratelimit_delay_handler(ngx_http_request_t *r);
static void ngx_http_ratelimit_resume(ngx_http_request_t *r);


/* limits by what a client claims to be */

ngx_int_t
ngx_http_ratelimit_handler(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (rlcf->set == NULL || r != r->main) {
        return NGX_DECLINED;
    }

    if (rlcf->set->stages & NGX_HTTP_RATELIMIT_AFTER_AUTH) {
        ctx = ngx_http_ratelimit_get_ctx(r);

        if (ctx == NULL) {
            ctx = ngx_http_ratelimit_create_ctx(r);
            if (ctx == NULL) {
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }

            ngx_http_ratelimit_keep_ctx(ctx);
        }

        if (ctx->access == NULL) {
            ctx->access = rlcf;
        }
    }

    return ngx_http_ratelimit_run(r, NGX_HTTP_RATELIMIT_BEFORE_AUTH);
}


/*
 * Limits by what it was found to be.  Between both there is only a refusal,
 * and its page proves nothing.
 */

ngx_int_t
ngx_http_ratelimit_after_auth_handler(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    ctx = ngx_http_ratelimit_get_ctx(r);
    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (ctx == NULL || ctx->access != rlcf) {
        return NGX_DECLINED;
    }

    return ngx_http_ratelimit_run(r, NGX_HTTP_RATELIMIT_AFTER_AUTH);
}


static ngx_int_t
ngx_http_ratelimit_run(ngx_http_request_t *r, ngx_uint_t stage)
{
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (rlcf->set == NULL || !(rlcf->set->stages & stage) || r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx == NULL) {
        ctx = ngx_http_ratelimit_create_ctx(r);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return ngx_http_ratelimit_begin(ctx, stage);
    }

    if (ctx->answered) {
        ctx->answered = 0;
        return ngx_http_ratelimit_act(ctx);
    }

    if (ctx->stages & stage) {
        return NGX_DECLINED;
    }

    ctx->conf = rlcf;

    return ngx_http_ratelimit_begin(ctx, stage);
}


static ngx_int_t
ngx_http_ratelimit_begin(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t stage)
{
    ngx_int_t  rc;

    rc = NGX_OK;

    if (ctx->conf->bypass != NULL) {
        rc = ngx_http_test_predicates(ctx->request, ctx->conf->bypass);
    }

    if (rc == NGX_DECLINED) {
        ctx->stages = NGX_HTTP_RATELIMIT_BEFORE_AUTH
                      | NGX_HTTP_RATELIMIT_AFTER_AUTH;

        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_BYPASSED);
        ngx_http_ratelimit_keep_ctx(ctx);

        return NGX_DECLINED;
    }

    if (rc == NGX_OK) {
        rc = ngx_http_ratelimit_make_query(ctx, stage);
    }

    if (rc == NGX_BUSY) {
        ctx->stages |= stage;
        ngx_http_ratelimit_keep_ctx(ctx);
        return ngx_http_ratelimit_fail(ctx, NGX_HTTP_RATELIMIT_FAIL_CLOSED);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->query.n == 0 && !ctx->failed) {

        /* no limit applies here; one may where the request goes from here */

        return NGX_DECLINED;
    }

    ctx->stages |= stage;

    ngx_http_ratelimit_keep_ctx(ctx);

    return ctx->query.n
           ? ngx_http_ratelimit_ask(ctx)
           : ngx_http_ratelimit_fail(ctx, NGX_HTTP_RATELIMIT_FAIL_OPEN);
}


static ngx_int_t
ngx_http_ratelimit_ask(ngx_http_ratelimit_ctx_t *ctx)
{
    ctx->query.done = ngx_http_ratelimit_done;
    ctx->rc = ngx_http_ratelimit_store_check(&ctx->query);

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ctx->query.log, 0,
                   "ratelimit: %ui rules, rc:%i allowed:%d",
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
    ctx->answered = 1;
    ctx->rc = rc;

    ngx_http_ratelimit_resume(r);
    ngx_http_run_posted_requests(c);
}


static ngx_int_t
ngx_http_ratelimit_act(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_uint_t                  first;
    ngx_http_ratelimit_zone_t  *zone;

    first = ctx->n - ctx->query.n;

    if (ctx->rc == NGX_BUSY) {
        return ngx_http_ratelimit_fail(ctx, NGX_HTTP_RATELIMIT_FAIL_CLOSED);
    }

    if (ctx->rc != NGX_OK) {
        zone = ctx->plans[first]->limit->use.zone;

        return ngx_http_ratelimit_fail(ctx, zone->fail);
    }

    if (ctx->query.allowed) {
        return ngx_http_ratelimit_allow(ctx);
    }

    ctx->tightest = first + ratelimit_tightest(ctx->query.items, ctx->query.n);

    ngx_http_ratelimit_unuse(ctx);

    return ngx_http_ratelimit_refuse(ctx);
}


/* what was allowed before is not used, unless refused requests count, too */

static void
ngx_http_ratelimit_unuse(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_uint_t  i;

    for (i = 0; i < ctx->charged; i++) {
        if (ctx->items[i].insist) {
            ctx->items[i].cost = 0;
        }
    }

    ngx_http_ratelimit_refund(ctx, 0, ctx->charged);
    ctx->charged = 0;
}


static ngx_int_t
ngx_http_ratelimit_fail(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_fail_e fail)
{
    if (fail != NGX_HTTP_RATELIMIT_FAIL_CLOSED || ctx->conf->dry_run) {
        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_FAILED_OPEN);
        return NGX_DECLINED;
    }

    ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_FAILED_CLOSED);
    ngx_http_ratelimit_unuse(ctx);

    return NGX_HTTP_SERVICE_UNAVAILABLE;
}


static ngx_int_t
ngx_http_ratelimit_allow(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_uint_t         i, first, slowest;
    ratelimit_item_t  *items;

    items = ctx->items;
    first = ctx->n - ctx->query.n;
    slowest = first;

    ctx->tightest = ratelimit_tightest(items, ctx->n);

    if (items[ctx->tightest].verdict.remaining == NGX_HTTP_RATELIMIT_UNASKED) {
        return ngx_http_ratelimit_fail(ctx, NGX_HTTP_RATELIMIT_FAIL_OPEN);
    }

    ctx->charged = ctx->n;
    ctx->failed |= ctx->query.failed;

    ngx_http_ratelimit_set_status(ctx,
                                  ctx->failed ? NGX_HTTP_RATELIMIT_FAILED_OPEN
                                              : NGX_HTTP_RATELIMIT_PASSED);

    for (i = first; i < ctx->n; i++) {

        if (items[i].verdict.soft) {
            ngx_http_ratelimit_set_status(ctx,
                                       ngx_http_ratelimit_overshoot(ctx, i));
        }

        if (items[i].verdict.delay > items[slowest].verdict.delay) {
            slowest = i;
        }
    }

    if (items[slowest].verdict.delay) {
        return ngx_http_ratelimit_delay(ctx, slowest);
    }

    return NGX_DECLINED;
}


/* the later one is told, see the order of statuses */

static void
ngx_http_ratelimit_set_status(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_status_e status)
{
    if (status > ctx->status) {
        ctx->status = status;
    }
}


/* above the limit: by the soft allowance, or only by the elastic one */

static ngx_http_ratelimit_status_e
ngx_http_ratelimit_overshoot(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t item)
{
    uint64_t                     above;
    ratelimit_item_t            *it;
    ngx_http_ratelimit_limit_t  *limit;

    it = &ctx->items[item];
    limit = ctx->plans[item]->limit;

    above = it->rule->capacity * (100 + limit->soft) / 100;

    if (it->rule->ceiling <= above) {
        return NGX_HTTP_RATELIMIT_SOFT;
    }

    /* a leaky bucket's excess begins at its second request */

    above -= (it->shape->algorithm == RATELIMIT_LEAKY_BUCKET)
             ? 1 : it->rule->capacity;

    return it->verdict.excess > above * 1000 ? NGX_HTTP_RATELIMIT_ELASTIC
                                             : NGX_HTTP_RATELIMIT_SOFT;
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
