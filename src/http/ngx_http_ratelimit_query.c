
/*
 * What is asked about a request: the limits that apply to it, all in one
 * query.
 */


#include "http/ngx_http_ratelimit_ctx.h"


#define NGX_HTTP_RATELIMIT_LOGGED_COST  32    /* bytes of a bad one */


static ngx_inline ngx_int_t ngx_http_ratelimit_make_room(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_set_t *set,
    ngx_uint_t stage);
static ngx_int_t ngx_http_ratelimit_add_limit(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_find_plan(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rules_t **plan);
static void ngx_http_ratelimit_add_items(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_rules_t *plan, ngx_str_t *key, uint64_t cost);
static ngx_uint_t ngx_http_ratelimit_spare(ngx_http_ratelimit_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, uint64_t *cost);
static void ngx_http_ratelimit_log_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *value);


ngx_int_t
ngx_http_ratelimit_make_query(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t stage)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i, first;
    ngx_http_ratelimit_set_t    *set;
    ngx_http_ratelimit_limit_t  *limit;
    ngx_http_ratelimit_query_t  *q;

    set = ctx->conf->set;
    first = ctx->n;

    if (ngx_http_ratelimit_make_room(ctx, set, stage) != NGX_OK) {
        return NGX_ERROR;
    }

    q = &ctx->query;

    q->items = &ctx->items[first];
    q->places = &ctx->places[first];
    q->subjects = &ctx->subjects[first];
    q->remote = set->remote & stage;
    q->failed = 0;
    q->log = ctx->request->connection->log;
    q->pool = ctx->request->pool;
    q->data = ctx;

    limit = set->limits.elts;

    for (i = set->limits.nelts; i; i--, limit++) {

        if (limit->stage != stage) {
            continue;
        }

        rc = ngx_http_ratelimit_add_limit(ctx, limit);

        if (rc != NGX_OK) {
            ctx->n = first;
            return rc;
        }
    }

    q->n = ctx->n - first;

    return NGX_OK;
}


/* the next stage may be that of a location with more limits */

static ngx_inline ngx_int_t
ngx_http_ratelimit_make_room(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_set_t *set, ngx_uint_t stage)
{
    ngx_uint_t  n;

    n = (stage == NGX_HTTP_RATELIMIT_AFTER_AUTH) ? set->nrules_after
                                                 : set->nrules_before;

    if (ctx->n + n <= ctx->room) {
        return NGX_OK;
    }

    return ngx_http_ratelimit_grow_ctx(ctx, ctx->n + n);
}


static ngx_int_t
ngx_http_ratelimit_add_limit(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit)
{
    uint64_t                     cost;
    ngx_int_t                    rc;
    ngx_str_t                    value;
    ngx_http_ratelimit_rules_t  *plan;

    if (limit->filter.value != NULL) {
        if (ngx_http_ratelimit_eval(ctx->request, &limit->filter, &value)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (value.len == 0 || (value.len == 1 && value.data[0] == '0')) {
            return NGX_OK;
        }
    }

    if (ngx_http_ratelimit_eval(ctx->request, &limit->key, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value.len == 0) {
        return NGX_OK;
    }

    plan = &limit->rules;

    if (limit->rate.value != NULL) {
        rc = ngx_http_ratelimit_find_plan(ctx, limit, &plan);

        if (rc != NGX_OK) {
            return rc == NGX_DECLINED ? NGX_OK : rc;
        }
    }

    cost = 1;

    if (limit->cost.value != NULL
        && ngx_http_ratelimit_cost(ctx->request, limit, &cost) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_add_items(ctx, plan, &value, cost);

    return NGX_OK;
}


/* NGX_DECLINED if the limit does not apply */

static ngx_int_t
ngx_http_ratelimit_find_plan(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rules_t **plan)
{
    ngx_str_t  text;

    if (ngx_http_ratelimit_eval(ctx->request, &limit->rate, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (text.len == 0) {
        return NGX_DECLINED;
    }

    *plan = ngx_http_ratelimit_get_rules(ctx->request, limit, &text);

    if (*plan == NULL) {
        return NGX_ERROR;
    }

    if ((*plan)->reason == NULL) {
        return NGX_OK;
    }

    ctx->failed = 1;

    return limit->use.zone->fail == NGX_HTTP_RATELIMIT_FAIL_CLOSED
           ? NGX_BUSY : NGX_DECLINED;
}


static void
ngx_http_ratelimit_add_items(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_rules_t *plan, ngx_str_t *key, uint64_t cost)
{
    ratelimit_rule_t  *rules;

    rules = plan->rules;

    if (plan->elastic != NULL && ngx_http_ratelimit_spare(ctx)) {
        rules = plan->elastic;
    }

    ngx_http_ratelimit_add_rows(ctx, plan, rules, key, cost);
}


/* one answer for all limits of a request */

static ngx_uint_t
ngx_http_ratelimit_spare(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    if (!ctx->measured) {
        rmcf = ngx_http_get_module_main_conf(ctx->request,
                                             ngx_http_ratelimit_module);
        ctx->measured = 1;
        ctx->spare = ngx_http_ratelimit_elastic_spare(rmcf->elastic,
                                                      ctx->request);
    }

    return ctx->spare;
}


/* a cost beyond what any limit allows is as good as the largest one */

static ngx_int_t
ngx_http_ratelimit_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, uint64_t *cost)
{
    uint64_t    n;
    ngx_str_t   value;
    ngx_uint_t  i;

    if (ngx_http_ratelimit_eval(r, &limit->cost, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    n = 0;

    for (i = 0; i < value.len; i++) {

        if (value.data[i] < '0' || value.data[i] > '9') {
            break;
        }

        n = ngx_min(n * 10 + (value.data[i] - '0'), RATELIMIT_MAX_LIMIT);
    }

    if (value.len == 0 || i < value.len) {
        ngx_http_ratelimit_log_cost(r, limit, &value);
        return NGX_OK;
    }

    *cost = n;

    return NGX_OK;
}


static void
ngx_http_ratelimit_log_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *value)
{
    size_t  len;
    u_char  text[NGX_HTTP_RATELIMIT_LOGGED_COST];

    len = ngx_http_ratelimit_printable(text, NGX_HTTP_RATELIMIT_LOGGED_COST,
                                       value);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "cost \"%V\" of zone \"%V\" is not a number: \"%*s\", "
                  "1 is counted",
                  &limit->cost.value->value, &limit->use.zone->name,
                  len, text);
}
