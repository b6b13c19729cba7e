
/*
 * A request's way, before and after authentication: the limits that apply
 * become a query, the store decides, and the decision is applied.
 */


#include "http/ngx_http_ratelimit_ctx.h"


/*
 * The way of a request is compiled for each of these.  Limits that need nothing
 * but the value of a variable are the usual case, one limit of one rate most of
 * all; then the checks and loops that are not needed are not there.
 */

typedef enum {
    NGX_HTTP_RATELIMIT_ANY_LIMITS = 0,
    NGX_HTTP_RATELIMIT_SIMPLE_LIMITS,
    NGX_HTTP_RATELIMIT_SIMPLE_RULE
} ngx_http_ratelimit_kind_e;


static ngx_int_t ngx_http_ratelimit_run_rule(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf);
static ngx_int_t ngx_http_ratelimit_run_simple(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf);
static ngx_int_t ngx_http_ratelimit_run(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf, ngx_uint_t stage);
static void *ngx_http_ratelimit_get_rows(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t n, ngx_uint_t stage);
static ratelimit_inline ngx_int_t ngx_http_ratelimit_start(
    ngx_http_request_t *r, ngx_http_ratelimit_loc_conf_t *rlcf,
    ngx_http_ratelimit_kind_e kind);
static ngx_int_t ngx_http_ratelimit_decide_any(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t stage);
static ratelimit_inline ngx_int_t ngx_http_ratelimit_decide(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_uint_t stage, ngx_http_ratelimit_kind_e kind);
static ngx_int_t ngx_http_ratelimit_wait(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_http_ratelimit_kind_e kind);
static ratelimit_inline ngx_int_t ngx_http_ratelimit_add_limits(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_uint_t stage, ngx_http_ratelimit_kind_e kind);
static ratelimit_inline ngx_int_t ngx_http_ratelimit_add_limit(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_uint_t *n, ngx_http_ratelimit_limit_t *limit,
    ngx_http_ratelimit_kind_e kind);
static ngx_int_t ngx_http_ratelimit_test_bypass(ngx_http_ratelimit_ctx_t *ctx);
static void ngx_http_ratelimit_done(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);
static ngx_int_t ngx_http_ratelimit_apply_any(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);
static ratelimit_inline ngx_int_t ngx_http_ratelimit_apply(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_int_t rc, ngx_http_ratelimit_kind_e kind);
static ratelimit_inline ngx_int_t ngx_http_ratelimit_pass(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_kind_e kind);
static ratelimit_inline ngx_int_t ngx_http_ratelimit_pass_marked(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_kind_e kind);
static ngx_int_t ngx_http_ratelimit_pass_noted(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);
static ratelimit_inline void ngx_http_ratelimit_count_noted(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_use_t *use,
    ngx_http_ratelimit_status_e status, uint64_t delay);
static ngx_int_t ngx_http_ratelimit_refuse(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_fail(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);


ngx_int_t
ngx_http_ratelimit_handler(ngx_http_request_t *r)
{
    ngx_http_ratelimit_set_t       *set;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);
    set = rlcf->set;

    if (set == NULL) {
        return NGX_DECLINED;
    }

    /* a subrequest is internal, too */

    if (!set->simple || rlcf->bypass != NULL || r->internal
        || ngx_http_get_module_ctx(r, ngx_http_ratelimit_module) != NULL)
    {
        return ngx_http_ratelimit_run(r, rlcf, NGX_HTTP_RATELIMIT_BEFORE_AUTH);
    }

    return (set->nrules_before == 1) ? ngx_http_ratelimit_run_rule(r, rlcf)
                                     : ngx_http_ratelimit_run_simple(r, rlcf);
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_run_rule(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf)
{
    return ngx_http_ratelimit_start(r, rlcf, NGX_HTTP_RATELIMIT_SIMPLE_RULE);
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_run_simple(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf)
{
    return ngx_http_ratelimit_start(r, rlcf, NGX_HTTP_RATELIMIT_SIMPLE_LIMITS);
}


ngx_int_t
ngx_http_ratelimit_after_auth_handler(ngx_http_request_t *r)
{
    ngx_int_t                       rc;
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (rlcf->set != NULL && ngx_http_ratelimit_is_after_auth(r)) {
        rc = ngx_http_ratelimit_run(r, rlcf, NGX_HTTP_RATELIMIT_AFTER_AUTH);

        if (rc != NGX_DECLINED) {
            return rc;
        }
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx != NULL) {
        ctx->in_access = 0;
    }

    return NGX_DECLINED;
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_run(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf, ngx_uint_t stage)
{
    void                        *rows;
    ngx_uint_t                   n;
    ngx_http_ratelimit_ctx_t    *ctx;
    ngx_http_ratelimit_set_t    *set;
    ngx_http_ratelimit_query_t  *q;

    set = rlcf->set;

    if (!(set->stages & stage)
        || (r != r->main
            && (ngx_http_ratelimit_is_spared(r)
                || ngx_http_ratelimit_is_part_of_refusal(r))))
    {
        return NGX_DECLINED;
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx == NULL) {
        ctx = ngx_http_ratelimit_create_ctx(r, set->nrules_before);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ctx->fresh = (stage == NGX_HTTP_RATELIMIT_BEFORE_AUTH);

    } else if (ctx->resumed) {
        ctx->resumed = 0;
        ctx->described = 0;

        q = &ctx->queries[ctx->nqueries - 1];

        return ngx_http_ratelimit_apply_any(ctx, q);

    } else if (ctx->refused || (ctx->stages & stage)) {
        return NGX_DECLINED;
    }

    n = (stage == NGX_HTTP_RATELIMIT_AFTER_AUTH) ? set->nrules_after
                                                 : set->nrules_before;

    rows = ngx_http_ratelimit_get_rows(ctx, n, stage);
    if (rows == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->conf = rlcf;

    q = &ctx->queries[ctx->nqueries];
    ngx_http_ratelimit_query_init(q, rows, n, r->pool);

    return ngx_http_ratelimit_decide_any(ctx, q, stage);
}


static void *
ngx_http_ratelimit_get_rows(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t n,
    ngx_uint_t stage)
{
    if (ctx->fresh && stage == NGX_HTTP_RATELIMIT_BEFORE_AUTH) {
        ctx->fresh = 0;
        return ctx + 1;
    }

    return ngx_palloc(ctx->request->pool, n * ngx_http_ratelimit_row_size);
}


/*
 * Limits after authentication must not find values that limits before it have
 * made, here or where the request came from: a "map" keeps the first one.
 */

static ngx_int_t
ngx_http_ratelimit_decide_any(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t stage)
{
    ngx_int_t                        rc;
    ngx_http_variable_value_t       *before;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    before = NULL;
    rmcf = ngx_http_get_module_main_conf(ctx->request,
                                         ngx_http_ratelimit_module);

    if (stage == NGX_HTTP_RATELIMIT_AFTER_AUTH) {
        ngx_http_ratelimit_forget_values(ctx->request);

    } else if (rmcf->stages & NGX_HTTP_RATELIMIT_AFTER_AUTH) {
        before = ngx_http_ratelimit_copy_values(ctx->request);
        if (before == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    rc = ngx_http_ratelimit_decide(ctx, q, stage,
                                   NGX_HTTP_RATELIMIT_ANY_LIMITS);

    /* with another code the request may have been freed */

    if (before != NULL && (rc == NGX_DECLINED || rc == NGX_AGAIN)) {
        ngx_http_ratelimit_note_values(ctx, before);
    }

    return rc;
}


/* the first decision about a request, by limits before authentication */

static ratelimit_inline ngx_int_t
ngx_http_ratelimit_start(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf, ngx_http_ratelimit_kind_e kind)
{
    ngx_uint_t                   n;
    ngx_http_ratelimit_ctx_t    *ctx;
    ngx_http_ratelimit_query_t  *q;

    n = (kind == NGX_HTTP_RATELIMIT_SIMPLE_RULE) ? 1
                                                 : rlcf->set->nrules_before;

    ctx = ngx_http_ratelimit_create_ctx(r, n);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->conf = rlcf;

    q = &ctx->queries[0];
    ngx_http_ratelimit_query_init(q, ctx + 1, n, r->pool);

    return ngx_http_ratelimit_decide(ctx, q, NGX_HTTP_RATELIMIT_BEFORE_AUTH,
                                     kind);
}


static ratelimit_inline ngx_int_t
ngx_http_ratelimit_decide(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t stage,
    ngx_http_ratelimit_kind_e kind)
{
    ngx_int_t  rc;

    if (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS && ctx->conf->bypass != NULL) {
        rc = ngx_http_ratelimit_test_bypass(ctx);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    rc = ngx_http_ratelimit_add_limits(ctx, q, stage, kind);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS) {
        ctx->described = 0;
        q->dropped = 0;
        q->lenient = 0;
    }

    if (q->n) {
        rc = (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS
              && ctx->conf->set->nmatches)
             ? ngx_http_ratelimit_decide_lenient(q)
             : ngx_http_ratelimit_query_decide(q);

    } else if (rc == NGX_OK && !ctx->failed) {

        /* no limit applies here; one may where the request goes from here */

        return NGX_DECLINED;

    } else {
        rc = (rc == NGX_OK) ? NGX_DECLINED : rc;
        q->rc = rc;
        q->allowed = 0;
    }

    ctx->nqueries = q - ctx->queries + 1;
    ctx->stages |= stage;

    ngx_http_ratelimit_attach_ctx(ctx);

    if (rc == NGX_AGAIN) {
        return ngx_http_ratelimit_wait(ctx, q, kind);
    }

    if (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS) {
        return ngx_http_ratelimit_apply_any(ctx, q);
    }

    return ngx_http_ratelimit_apply(ctx, q, rc, kind);
}


/* the request goes on as one of any limits */

static ngx_int_t
ngx_http_ratelimit_wait(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_http_ratelimit_kind_e kind)
{
    if (kind != NGX_HTTP_RATELIMIT_ANY_LIMITS) {
        q->dropped = 0;
        q->lenient = 0;
    }

    q->done = ngx_http_ratelimit_done;
    q->data = ctx;

    ctx->waiting = 1;

    return ngx_http_ratelimit_suspend(ctx->request);
}


/* NGX_BUSY if a rate is malformed and its zone fails closed */

static ratelimit_inline ngx_int_t
ngx_http_ratelimit_add_limits(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t stage,
    ngx_http_ratelimit_kind_e kind)
{
    ngx_int_t                    rc;
    ngx_uint_t                   n, closed;
    ngx_http_ratelimit_set_t    *set;
    ngx_http_ratelimit_limit_t  *limit, *last;

    set = ctx->conf->set;
    limit = set->limits.elts;
    last = limit + set->limits.nelts;
    n = 0;
    closed = 0;

    if (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS && set->nmatches
        && ngx_http_ratelimit_match_limits(ctx, stage) != NGX_OK)
    {
        return NGX_ERROR;
    }

    do {
        if (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS && limit->stage != stage) {
            continue;
        }

        if (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS && limit->domain != NULL) {
            n = ngx_http_ratelimit_match_add(q, n,
                                             &ctx->matches[limit->match]);
            continue;
        }

        rc = ngx_http_ratelimit_add_limit(ctx, q, &n, limit, kind);

        if (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS && rc == NGX_BUSY) {
            closed = 1;

        } else if (rc != NGX_OK) {
            q->n = 0;
            return rc;
        }

    } while (kind != NGX_HTTP_RATELIMIT_SIMPLE_RULE && ++limit < last);

    q->n = n;

    if (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS && closed) {
        ngx_http_ratelimit_count_unasked(ctx, q);
        q->n = 0;
        return NGX_BUSY;
    }

    return NGX_OK;
}


static ratelimit_inline ngx_int_t
ngx_http_ratelimit_add_limit(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t *n,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_kind_e kind)
{
    uint64_t                    cost;
    ngx_int_t                   rc;
    ngx_str_t                   key;
    ngx_uint_t                  any;
    ratelimit_rule_t           *rules;
    ngx_http_ratelimit_rules_t  *rates;

    any = (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS);

    if (any && limit->filter.value != NULL) {
        rc = ngx_http_ratelimit_test_filter(ctx->request, limit);

        if (rc != NGX_OK) {
            return rc == NGX_DECLINED ? NGX_OK : rc;
        }
    }

    if (!any) {
        ngx_http_ratelimit_get_value(ctx->request, limit->key.index, &key);

    } else if (ngx_http_ratelimit_eval(ctx->request, &limit->key, &key)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (key.len == 0) {
        return NGX_OK;
    }

    rates = &limit->rules;

    if (any && limit->rate.value != NULL) {
        rc = ngx_http_ratelimit_find_rules(ctx, limit, &rates);

        if (rc != NGX_OK) {
            return rc == NGX_DECLINED ? NGX_OK : rc;
        }
    }

    cost = 1;

    if (any && limit->cost.value != NULL
        && ngx_http_ratelimit_cost(ctx->request, limit, &cost) != NGX_OK)
    {
        return NGX_ERROR;
    }

    rules = rates->rules;

    if (any && rates->elastic != NULL && ngx_http_ratelimit_spare(ctx)) {
        rules = rates->elastic;
    }

    *n = ngx_http_ratelimit_query_add(q, *n, &limit->use, rules,
                                      (kind == NGX_HTTP_RATELIMIT_SIMPLE_RULE)
                                      ? 1 : rates->nrules,
                                      &key, cost, rates);
    return NGX_OK;
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_test_bypass(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_int_t                  rc;
    ngx_uint_t                 stages;
    ngx_http_ratelimit_use_t  *ring;

    rc = ngx_http_test_predicates(ctx->request, ctx->conf->bypass);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_DECLINED) {

        if (ctx->conf->marks & NGX_HTTP_RATELIMIT_MARK_COUNTED) {
            stages = ctx->conf->set->stages & ~ctx->stages;
            ring = ctx->conf->set->rings[stages];

            if (ring != NULL) {
                ngx_http_ratelimit_count_in(ring->ring_cell,
                                            NGX_HTTP_RATELIMIT_BYPASSED);

            } else {
                ngx_http_ratelimit_count_bypass(ctx, stages);
            }
        }

        ctx->stages = NGX_HTTP_RATELIMIT_BEFORE_AUTH
                      | NGX_HTTP_RATELIMIT_AFTER_AUTH;

        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_BYPASSED);
        ngx_http_ratelimit_attach_ctx(ctx);

        /* a limit before authentication could not know */

        ngx_http_ratelimit_refund(ctx, 0);
    }

    return rc;
}


static void
ngx_http_ratelimit_done(ngx_http_ratelimit_query_t *q, ngx_int_t rc)
{
    ngx_http_request_t        *r;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = q->data;
    r = ctx->request;

    if (ngx_http_ratelimit_lenient_again(q, rc) == NGX_AGAIN) {
        return;
    }

    ctx->waiting = 0;

    if (ngx_http_ratelimit_is_suspended(r)) {
        ctx->resumed = 1;
        ngx_http_ratelimit_resume(r);
    }
}


static ngx_int_t
ngx_http_ratelimit_apply_any(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    if (q->dropped) {
        ngx_http_ratelimit_lenient_done(ctx, q);
    }

    return ngx_http_ratelimit_apply(ctx, q, q->rc,
                                    NGX_HTTP_RATELIMIT_ANY_LIMITS);
}


/* every decision comes here, once; rc is that of the query */

static ratelimit_inline ngx_int_t
ngx_http_ratelimit_apply(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_int_t rc,
    ngx_http_ratelimit_kind_e kind)
{
    if (rc != NGX_OK) {
        return ngx_http_ratelimit_fail(ctx, q);
    }

    q->decided = ngx_current_msec;

    return q->allowed ? ngx_http_ratelimit_pass(ctx, q, kind)
                      : ngx_http_ratelimit_refuse(ctx, q);
}


static ratelimit_inline ngx_int_t
ngx_http_ratelimit_pass(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_http_ratelimit_kind_e kind)
{
    ngx_uint_t         i, n;
    ratelimit_item_t  *item;

    ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_PASSED);

    if (q->failed || (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS && ctx->failed)) {
        return ngx_http_ratelimit_pass_noted(ctx, q);
    }

    if (kind == NGX_HTTP_RATELIMIT_ANY_LIMITS && q->n == 0) {

        /* all limits were dropped, see ..._decide_lenient() */

        return NGX_DECLINED;
    }

    n = (kind == NGX_HTTP_RATELIMIT_SIMPLE_RULE) ? 1 : q->n;
    item = q->items;
    i = 0;

    do {
        if (item[i].verdict.soft | item[i].verdict.delay) {
            return ngx_http_ratelimit_pass_noted(ctx, q);
        }

    } while (++i < n);

    if (ctx->conf->marks == 0) {
        return NGX_DECLINED;
    }

    return ngx_http_ratelimit_pass_marked(ctx, q, kind);
}


/* no limit has anything to say */

static ratelimit_inline ngx_int_t
ngx_http_ratelimit_pass_marked(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_http_ratelimit_kind_e kind)
{
    ngx_http_ratelimit_use_t    *use;
    ngx_http_ratelimit_rules_t  *rules;

    if (ctx->conf->marks != NGX_HTTP_RATELIMIT_MARK_COUNTED) {
        ctx->dry = 1;

        if (ctx->conf->marks == NGX_HTTP_RATELIMIT_MARK_DRY_RUN) {
            return NGX_DECLINED;
        }
    }

    use = q->subjects->use;
    rules = q->subjects->data;

    if (kind == NGX_HTTP_RATELIMIT_SIMPLE_RULE || q->n == rules->nrules) {
        ngx_http_ratelimit_count(use, NGX_HTTP_RATELIMIT_PASSED);
        return NGX_DECLINED;
    }

    if (q->n == use->ring_rows) {
        ngx_http_ratelimit_count_in(use->ring_cell, NGX_HTTP_RATELIMIT_PASSED);
        return NGX_DECLINED;
    }

    return ngx_http_ratelimit_count_pass(ctx, q);
}


/* above a limit, by soft=, elastic= or a delay; or a limit was not asked */

static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_pass_noted(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    uint64_t                      delay;
    ngx_uint_t                    i, slowest;
    ratelimit_verdict_t          *verdict;
    ngx_http_ratelimit_status_e   status, above;

    if (q->failed || ctx->failed) {
        ctx->failed = 1;
        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_FAILED_OPEN);
    }

    if (ctx->conf->dry_run) {
        ctx->dry = 1;
    }

    delay = 0;
    slowest = 0;
    status = NGX_HTTP_RATELIMIT_PASSED;

    for (i = 0; i < q->n; i++) {
        verdict = &q->items[i].verdict;

        if (verdict->soft) {
            above = ngx_http_ratelimit_overshoot(ctx, q, i);
            status = ngx_max(status, above);
            ngx_http_ratelimit_set_status(ctx, status);
        }

        if (verdict->delay > delay) {
            delay = verdict->delay;
            slowest = i;
        }
    }

    if (ctx->conf->marks & NGX_HTTP_RATELIMIT_MARK_COUNTED) {

        /* the usual case: one limit, whose status is known by now */

        if (!ctx->failed
            && q->n == ngx_http_ratelimit_item_rules(q, 0)->nrules)
        {
            ngx_http_ratelimit_count_noted(ctx, q->subjects->use, status,
                                           delay);

        } else {
            (void) ngx_http_ratelimit_count_pass(ctx, q);
        }
    }

    return delay ? ngx_http_ratelimit_delay(ctx, q, slowest) : NGX_DECLINED;
}


static ratelimit_inline void
ngx_http_ratelimit_count_noted(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_use_t *use, ngx_http_ratelimit_status_e status,
    uint64_t delay)
{
    if (delay == 0) {
        ngx_http_ratelimit_count_in(use->cell, status);

    } else if (ctx->conf->marks & NGX_HTTP_RATELIMIT_MARK_DRY_RUN) {
        ngx_http_ratelimit_count_in(use->cell,
                                    NGX_HTTP_RATELIMIT_DELAYED_DRY_RUN);

    } else {
        ngx_http_ratelimit_count_in(use->cell, NGX_HTTP_RATELIMIT_DELAYED);
        ngx_http_ratelimit_count_delay(use->cell, delay);
    }
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_refuse(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    ctx->first = ctx->nqueries - 1;

    /* a dry run passes: what was charged before it, by no dry run, stays so */

    if (ctx->first && (!ctx->conf->dry_run || ctx->dry)) {
        ngx_http_ratelimit_refund(ctx, 1);
    }

    return ngx_http_ratelimit_reject(ctx, q);
}


/* NGX_BUSY: by a limit that fails closed */

static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_fail(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    if (ctx->conf->marks & NGX_HTTP_RATELIMIT_MARK_COUNTED) {
        ngx_http_ratelimit_count_refusal(ctx, q);
    }

    if (q->rc != NGX_BUSY || ctx->conf->dry_run) {
        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_FAILED_OPEN);
        return NGX_DECLINED;
    }

    ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_FAILED_CLOSED);
    ngx_http_ratelimit_refund(ctx, 1);

    return NGX_HTTP_SERVICE_UNAVAILABLE;
}


/* above the limit: by the soft allowance, or only by the elastic one */

ngx_http_ratelimit_status_e
ngx_http_ratelimit_overshoot(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    uint64_t                      above;
    ratelimit_item_t             *item;
    ngx_http_ratelimit_limit_t   *limit;
    const ratelimit_algorithm_t  *algorithm;

    ngx_http_ratelimit_describe(ctx);

    item = &q->items[i];
    limit = ngx_http_ratelimit_item_rules(q, i)->limit;
    algorithm = ratelimit_algorithms[item->shape->algorithm];

    above = item->rule->capacity * (100 + limit->soft) / 100;

    if (item->rule->ceiling <= above) {
        return NGX_HTTP_RATELIMIT_SOFT;
    }

    /* the excess of an algorithm with a burst begins at the second request */

    above -= (algorithm->takes & RATELIMIT_TAKES_BURST) ? 1
                                                        : item->rule->capacity;

    return item->verdict.excess > above * 1000 ? NGX_HTTP_RATELIMIT_ELASTIC
                                               : NGX_HTTP_RATELIMIT_SOFT;
}


/* handlers of a phase run from the last to the first */

ngx_int_t
ngx_http_ratelimit_add_first(ngx_conf_t *cf, ngx_http_phases phase,
    ngx_http_handler_pt handler)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[phase].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = handler;

    return NGX_OK;
}
