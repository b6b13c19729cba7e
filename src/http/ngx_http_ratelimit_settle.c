
/*
 * Counting by status: a request is charged when it is admitted, and refunded in
 * the end if its status is not one of count=.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static void ngx_http_ratelimit_settle(ngx_http_ratelimit_query_t *q,
    ngx_uint_t status);
static void ngx_http_ratelimit_settle_waiting(ngx_http_ratelimit_query_t *q,
    ngx_uint_t status);
static ngx_uint_t ngx_http_ratelimit_counts(ngx_http_ratelimit_limit_t *limit,
    ngx_uint_t status);
static ngx_uint_t ngx_http_ratelimit_get_status(ngx_http_request_t *r);


ngx_int_t
ngx_http_ratelimit_log_handler(ngx_http_request_t *r)
{
    ngx_uint_t                   i, status;
    ngx_http_ratelimit_ctx_t    *ctx;
    ngx_http_ratelimit_query_t  *q;

    if (r != r->main) {
        return NGX_OK;
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx == NULL) {
        return NGX_OK;
    }

    status = ngx_http_ratelimit_get_status(r);

    for (i = 0; i < ctx->nqueries; i++) {
        q = &ctx->queries[i];

        if (q->allowed) {
            ngx_http_ratelimit_settle(q, status);

        } else if (q->rc == NGX_AGAIN && ctx->waiting) {
            ngx_http_ratelimit_settle_waiting(q, status);
            ctx->waiting = 0;
        }
    }

    return NGX_OK;
}


static void
ngx_http_ratelimit_settle(ngx_http_ratelimit_query_t *q, ngx_uint_t status)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_rules_t  *plan;

    for (i = 0; i < q->n; i += plan->nrules) {
        plan = ngx_http_ratelimit_item_rules(q, i);

        if (!ngx_http_ratelimit_counts(plan->limit, status)) {
            ngx_http_ratelimit_query_refund(q, i, plan->nrules);
        }
    }
}


/* the request ends before the store has decided: the same, once it has */

static void
ngx_http_ratelimit_settle_waiting(ngx_http_ratelimit_query_t *q,
    ngx_uint_t status)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_rules_t  *plan;

    for (i = 0; i < q->n; i++) {
        plan = ngx_http_ratelimit_item_rules(q, i);

        if (ngx_http_ratelimit_counts(plan->limit, status)) {
            q->items[i].cost = 0;
        }
    }

    ngx_http_ratelimit_query_cancel(q, 1);
}


static ngx_uint_t
ngx_http_ratelimit_counts(ngx_http_ratelimit_limit_t *limit,
    ngx_uint_t status)
{
    ngx_uint_t  i, *outcome;

    if (limit->outcomes == NULL) {
        return 1;
    }

    outcome = limit->outcomes->elts;

    for (i = 0; i < limit->outcomes->nelts; i++) {
        if (outcome[i] == status || outcome[i] == status / 100) {
            return 1;
        }
    }

    return 0;
}


/* as $status */

static ngx_uint_t
ngx_http_ratelimit_get_status(ngx_http_request_t *r)
{
    if (r->err_status) {
        return r->err_status;
    }

    if (r->headers_out.status) {
        return r->headers_out.status;
    }

    return r->http_version == NGX_HTTP_VERSION_9 ? 9 : 0;
}
