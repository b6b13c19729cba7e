
/*
 * Counting by status: what a request costs is reserved when it is admitted.  As
 * soon as the client has a status, it counts, or is refunded if the status is
 * not one of count=.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static ngx_int_t ngx_http_ratelimit_settle_header_filter(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_log_handler(ngx_http_request_t *r);
static void ngx_http_ratelimit_settle(ngx_http_request_t *r, ngx_uint_t status,
    ngx_uint_t ended);
static void ngx_http_ratelimit_settle_ctx(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t status);
static void ngx_http_ratelimit_settle_query(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t status);
static void ngx_http_ratelimit_settle_waiting(ngx_http_ratelimit_query_t *q,
    ngx_uint_t status);
static ngx_uint_t ngx_http_ratelimit_counts(ngx_http_ratelimit_limit_t *limit,
    ngx_uint_t status);
static ngx_uint_t ngx_http_ratelimit_get_status(ngx_http_request_t *r);


static ngx_http_output_header_filter_pt  ngx_http_ratelimit_settle_next_filter;


ngx_int_t
ngx_http_ratelimit_settle_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_LOG_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_ratelimit_log_handler;

    ngx_http_ratelimit_settle_next_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_ratelimit_settle_header_filter;

    return NGX_OK;
}


/* other filters may change the status, or defer the header */

static ngx_int_t
ngx_http_ratelimit_settle_header_filter(ngx_http_request_t *r)
{
    ngx_int_t  rc;

    rc = ngx_http_ratelimit_settle_next_filter(r);

    if (r == r->main && r->header_sent) {
        ngx_http_ratelimit_settle(r, r->headers_out.status, 0);
    }

    return rc;
}


/* there was no response, or it is settled already */

static ngx_int_t
ngx_http_ratelimit_log_handler(ngx_http_request_t *r)
{
    if (r == r->main) {
        ngx_http_ratelimit_settle(r, ngx_http_ratelimit_get_status(r), 1);
    }

    return NGX_OK;
}


/* the limits of subrequests go by the status that the client gets, too */

static void
ngx_http_ratelimit_settle(ngx_http_request_t *r, ngx_uint_t status,
    ngx_uint_t ended)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_next_ctx(r, NULL);

    while (ctx != NULL) {

        if (ended || !ctx->waiting) {
            ngx_http_ratelimit_settle_ctx(ctx, status);
        }

        ctx = ngx_http_ratelimit_next_ctx(r, ctx);
    }
}


static void
ngx_http_ratelimit_settle_ctx(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t status)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_query_t  *q;

    for (i = ctx->settled; i < ctx->nqueries; i++) {
        q = &ctx->queries[i];

        if (q->allowed) {
            ngx_http_ratelimit_settle_query(ctx, q, status);

        } else if (q->rc == NGX_AGAIN && ctx->waiting) {
            ngx_http_ratelimit_settle_waiting(q, status);
            ctx->waiting = 0;
        }
    }

    ctx->settled = ctx->nqueries;
}


static void
ngx_http_ratelimit_settle_query(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t status)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_rules_t  *rates;

    for (i = 0; i < q->n; i += rates->nrules) {
        rates = ngx_http_ratelimit_item_rules(q, i);

        if (rates->limit->statuses == NULL) {
            continue;
        }

        /* the tightest limit is found by costs, which are cleared here */

        ngx_http_ratelimit_describe(ctx);

        if (ngx_http_ratelimit_counts(rates->limit, status)) {
            ngx_http_ratelimit_query_commit(q, i, rates->nrules);

        } else {
            ngx_http_ratelimit_query_refund(q, i, rates->nrules);
        }
    }
}


/* the request ends before the store has decided: the same, once it has */

static void
ngx_http_ratelimit_settle_waiting(ngx_http_ratelimit_query_t *q,
    ngx_uint_t status)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_rules_t  *rates;

    for (i = 0; i < q->n; i++) {
        rates = ngx_http_ratelimit_item_rules(q, i);

        if (ngx_http_ratelimit_counts(rates->limit, status)) {
            q->items[i].cost = 0;
        }
    }

    ngx_http_ratelimit_query_cancel(q, 1);
}


static ngx_uint_t
ngx_http_ratelimit_counts(ngx_http_ratelimit_limit_t *limit,
    ngx_uint_t status)
{
    ngx_uint_t  i, *counted;

    if (limit->statuses == NULL) {
        return 1;
    }

    counted = limit->statuses->elts;

    for (i = 0; i < limit->statuses->nelts; i++) {
        if (counted[i] == status || counted[i] == status / 100) {
            return 1;
        }
    }

    return 0;
}


/* as $status, except for that of a "post_action", which no client sees */

static ngx_uint_t
ngx_http_ratelimit_get_status(ngx_http_request_t *r)
{
    if (r->post_action) {
        return NGX_HTTP_CLIENT_CLOSED_REQUEST;
    }

    if (r->err_status) {
        return r->err_status;
    }

    if (r->headers_out.status) {
        return r->headers_out.status;
    }

    return r->http_version == NGX_HTTP_VERSION_9 ? 9 : 0;
}
