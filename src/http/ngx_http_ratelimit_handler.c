
/*
 * Before and after authentication: ask, then let pass, slow down or refuse.
 */


#include "http/ngx_http_ratelimit_ctx.h"
#include "core/ratelimit_math.h"


static ngx_int_t ngx_http_ratelimit_before_auth(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf);
static ngx_int_t ngx_http_ratelimit_note_access(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf);
static ngx_int_t ngx_http_ratelimit_run(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf, ngx_uint_t stage);
static ngx_int_t ngx_http_ratelimit_ask(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t stage);
static ngx_int_t ngx_http_ratelimit_test_bypass(ngx_http_ratelimit_ctx_t *ctx);
static void ngx_http_ratelimit_wait_handler(ngx_http_request_t *r);
static void ngx_http_ratelimit_done(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);
static void ngx_http_ratelimit_unuse(ngx_http_ratelimit_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_fail(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_fail_e fail);
static ngx_int_t ngx_http_ratelimit_allow(ngx_http_ratelimit_ctx_t *ctx);
static ngx_uint_t ngx_http_ratelimit_unasked(ngx_http_ratelimit_ctx_t *ctx);
static ngx_http_ratelimit_status_e ngx_http_ratelimit_overshoot(
    ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t item);


/* limits by what a client claims to be */

ngx_int_t
ngx_http_ratelimit_handler(ngx_http_request_t *r)
{
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (rlcf->set == NULL || r != r->main) {
        return NGX_DECLINED;
    }

    if (rlcf->set->direct && rlcf->bypass == NULL
        && ngx_http_ratelimit_get_ctx(r) == NULL)
    {
        return ngx_http_ratelimit_direct(r, rlcf);
    }

    return ngx_http_ratelimit_before_auth(r, rlcf);
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_before_auth(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf)
{
    if ((rlcf->set->stages & NGX_HTTP_RATELIMIT_AFTER_AUTH)
        && ngx_http_ratelimit_note_access(r, rlcf) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_ratelimit_run(r, rlcf, NGX_HTTP_RATELIMIT_BEFORE_AUTH);
}


static ngx_int_t
ngx_http_ratelimit_note_access(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx == NULL) {
        ctx = ngx_http_ratelimit_create_ctx(r, rlcf);
        if (ctx == NULL) {
            return NGX_ERROR;
        }

        ngx_http_ratelimit_keep_ctx(ctx);
    }

    if (ctx->access == NULL) {
        ctx->access = rlcf;
    }

    return NGX_OK;
}


/*
 * Limits by what it was found to be.  Between both there is only a refusal,
 * and its page proves nothing.
 */

ngx_int_t
ngx_http_ratelimit_after_auth_handler(ngx_http_request_t *r)
{
    ngx_int_t                       rc;
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    ctx = ngx_http_ratelimit_get_ctx(r);
    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (ctx == NULL || ctx->access != rlcf || r != r->main) {
        return NGX_DECLINED;
    }

    rc = ngx_http_ratelimit_run(r, rlcf, NGX_HTTP_RATELIMIT_AFTER_AUTH);

    /* whom nobody has refused may be led to another limit, which applies */

    if (rc == NGX_DECLINED) {
        ctx->access = NULL;
    }

    return rc;
}


static ngx_int_t
ngx_http_ratelimit_run(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf, ngx_uint_t stage)
{
    ngx_int_t                  rc;
    ngx_http_ratelimit_ctx_t  *ctx;

    if (rlcf->set == NULL || !(rlcf->set->stages & stage)) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx == NULL) {
        ctx = ngx_http_ratelimit_create_ctx(r, rlcf);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (ctx->answered) {
        ctx->answered = 0;

    } else {
        if (ctx->stages & stage) {
            return NGX_DECLINED;
        }

        ctx->conf = rlcf;

        rc = ngx_http_ratelimit_ask(ctx, stage);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    return ngx_http_ratelimit_act(ctx);
}


/* NGX_OK if there is an answer, otherwise what is to be returned to nginx */

static ngx_int_t
ngx_http_ratelimit_ask(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t stage)
{
    ngx_int_t  rc;

    if (ctx->conf->bypass != NULL) {
        rc = ngx_http_ratelimit_test_bypass(ctx);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    rc = ngx_http_ratelimit_make_query(ctx, stage);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_OK && ctx->query.n == 0 && !ctx->failed) {

        /* no limit applies here; one may where the request goes from here */

        return NGX_DECLINED;
    }

    ctx->stages |= stage;

    ngx_http_ratelimit_keep_ctx(ctx);

    if (rc == NGX_BUSY) {
        return ngx_http_ratelimit_fail(ctx, NGX_HTTP_RATELIMIT_FAIL_CLOSED);
    }

    if (ctx->query.n == 0) {
        return ngx_http_ratelimit_fail(ctx, NGX_HTTP_RATELIMIT_FAIL_OPEN);
    }

    ctx->query.done = ngx_http_ratelimit_done;
    ctx->rc = ngx_http_ratelimit_store_check(&ctx->query);

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ctx->query.log, 0,
                   "ratelimit: %ui rules, rc:%i allowed:%ui",
                   ctx->query.n, ctx->rc, ctx->query.allowed);

    if (ctx->rc != NGX_AGAIN) {
        return NGX_OK;
    }

    ctx->waiting = 1;

    return ngx_http_ratelimit_suspend(ctx->request,
                                      ngx_http_ratelimit_wait_handler);
}


static ngx_int_t
ngx_http_ratelimit_test_bypass(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ngx_http_test_predicates(ctx->request, ctx->conf->bypass);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_DECLINED) {
        ctx->stages = NGX_HTTP_RATELIMIT_BEFORE_AUTH
                      | NGX_HTTP_RATELIMIT_AFTER_AUTH;

        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_BYPASSED);
        ngx_http_ratelimit_keep_ctx(ctx);
    }

    return rc;
}


/* a request that has it waits for the store, and for nothing else */

static void
ngx_http_ratelimit_wait_handler(ngx_http_request_t *r)
{
    /* void */
}


/*
 * Who leaves takes the request along, but for a "post_action": nginx goes
 * on with it, and nobody needs the answer but those who count by outcome.
 */

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

    if (r->write_event_handler != ngx_http_ratelimit_wait_handler) {

        if (rc == NGX_OK && q->allowed) {
            ngx_http_ratelimit_set_charged(ctx);
        }

        return;
    }

    ctx->answered = 1;
    ctx->rc = rc;

    ngx_http_ratelimit_resume(r);
    ngx_http_run_posted_requests(c);
}


ngx_int_t
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

    ctx->last = ctx->n;
    ctx->explained = 0;

    if (ctx->query.allowed) {
        return ngx_http_ratelimit_allow(ctx);
    }

    ctx->first = first;

    /* a dry run lets pass, so what was charged in earnest is used */

    if (!ctx->conf->dry_run || ctx->dry) {
        ngx_http_ratelimit_unuse(ctx);
    }

    return ngx_http_ratelimit_refuse(ctx);
}


/* what was allowed before is not used, unless refused requests count, too */

static void
ngx_http_ratelimit_unuse(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_uint_t  i;

    if (ctx->charged == 0) {
        return;
    }

    for (i = ctx->spared; i < ctx->charged; i++) {
        if (ctx->items[i].insist) {
            ctx->items[i].cost = 0;
        }
    }

    ngx_http_ratelimit_refund(ctx, ctx->spared, ctx->charged - ctx->spared);
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
    uint64_t              delay;
    ngx_uint_t            i, slowest;
    ratelimit_verdict_t  *verdict;

    if (ctx->query.remote && ngx_http_ratelimit_unasked(ctx)) {
        return ngx_http_ratelimit_fail(ctx, NGX_HTTP_RATELIMIT_FAIL_OPEN);
    }

    ngx_http_ratelimit_set_charged(ctx);
    ngx_http_ratelimit_set_status(ctx,
                                  ctx->failed ? NGX_HTTP_RATELIMIT_FAILED_OPEN
                                              : NGX_HTTP_RATELIMIT_PASSED);

    delay = 0;
    slowest = 0;

    for (i = ctx->n - ctx->query.n; i < ctx->n; i++) {
        verdict = &ctx->items[i].verdict;

        if (verdict->soft) {
            ngx_http_ratelimit_set_status(ctx,
                                       ngx_http_ratelimit_overshoot(ctx, i));
        }

        if (verdict->delay > delay) {
            delay = verdict->delay;
            slowest = i;
        }
    }

    return delay ? ngx_http_ratelimit_delay(ctx, slowest) : NGX_DECLINED;
}


/* whether no limit could be asked; some may have been */

static ngx_uint_t
ngx_http_ratelimit_unasked(ngx_http_ratelimit_ctx_t *ctx)
{
    ctx->failed |= ctx->query.failed;

    ngx_http_ratelimit_explain(ctx);

    return ctx->items[ctx->tightest].verdict.remaining
           == NGX_HTTP_RATELIMIT_UNASKED;
}


/* above the limit: by the soft allowance, or only by the elastic one */

static ngx_http_ratelimit_status_e
ngx_http_ratelimit_overshoot(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t item)
{
    uint64_t                     above;
    ratelimit_item_t            *it;
    ngx_http_ratelimit_limit_t  *limit;

    ngx_http_ratelimit_explain(ctx);

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
