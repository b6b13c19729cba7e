
/*
 * Counting by outcome: a request is counted when it is admitted, and what it
 * was charged is given back in the end if its status is not one that counts.
 */


#include "http/ngx_http_ratelimit_ctx.h"


#define NGX_HTTP_RATELIMIT_MAX_STATUS  599


static const char *ngx_http_ratelimit_parse_outcome(ngx_str_t *text,
    ngx_uint_t *status);
static void ngx_http_ratelimit_leave(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t status);
static ngx_uint_t ngx_http_ratelimit_counts(ngx_http_ratelimit_limit_t *limit,
    ngx_uint_t status);
static ngx_uint_t ngx_http_ratelimit_get_status(ngx_http_request_t *r);


ngx_int_t
ngx_http_ratelimit_log_handler(ngx_http_request_t *r)
{
    ngx_uint_t                   i, n, status;
    ngx_http_ratelimit_ctx_t    *ctx;
    ngx_http_ratelimit_limit_t  *limit;

    if (r != r->main) {
        return NGX_OK;
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx == NULL) {
        return NGX_OK;
    }

    status = ngx_http_ratelimit_get_status(r);

    if (ctx->waiting) {
        ngx_http_ratelimit_leave(ctx, status);
    }

    for (i = ctx->spared; i < ctx->charged; i += n) {
        limit = ctx->plans[i]->limit;
        n = ctx->plans[i]->nrules;

        if (limit->outcomes != NULL
            && !ngx_http_ratelimit_counts(limit, status))
        {
            ngx_http_ratelimit_refund(ctx, i, n);
        }
    }

    return NGX_OK;
}


/* who goes before it is decided gets back what does not count */

static void
ngx_http_ratelimit_leave(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t status)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_limit_t  *limit;

    for (i = ctx->n - ctx->query.n; i < ctx->n; i++) {
        limit = ctx->plans[i]->limit;

        if (limit->outcomes == NULL
            || ngx_http_ratelimit_counts(limit, status))
        {
            ctx->items[i].cost = 0;
        }
    }

    ngx_http_ratelimit_store_cancel(&ctx->query, 1);

    ctx->waiting = 0;
}


static ngx_uint_t
ngx_http_ratelimit_counts(ngx_http_ratelimit_limit_t *limit,
    ngx_uint_t status)
{
    ngx_uint_t  i, *outcome;

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


/* count=401,403,5xx */

const char *
ngx_http_ratelimit_param_outcomes(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_array_t  **outcomes = field;

    u_char      *p, *last;
    ngx_str_t    text;
    ngx_uint_t  *outcome;
    const char  *reason;

    *outcomes = ngx_array_create(cf->pool, 4, sizeof(ngx_uint_t));
    if (*outcomes == NULL) {
        return NGX_CONF_ERROR;
    }

    p = value->data;
    last = p + value->len;

    for ( ;; ) {
        text.data = p;

        while (p < last && *p != ',') {
            p++;
        }

        text.len = p - text.data;

        outcome = ngx_array_push(*outcomes);
        if (outcome == NULL) {
            return NGX_CONF_ERROR;
        }

        reason = ngx_http_ratelimit_parse_outcome(&text, outcome);

        if (reason != NULL || p == last) {
            return reason;
        }

        p++;
    }
}


static const char *
ngx_http_ratelimit_parse_outcome(ngx_str_t *text, ngx_uint_t *status)
{
    ngx_int_t  n;

    if (text->len == 3 && ngx_strncmp(text->data + 1, "xx", 2) == 0
        && (text->data[0] == '4' || text->data[0] == '5'))
    {
        *status = text->data[0] - '0';
        return NULL;
    }

    n = ngx_atoi(text->data, text->len);

    if (text->len != 3 || n < NGX_HTTP_OK
        || n > NGX_HTTP_RATELIMIT_MAX_STATUS)
    {
        return "must be statuses from 200 to 599, 4xx or 5xx, "
               "separated by commas";
    }

    *status = n;

    return NULL;
}
