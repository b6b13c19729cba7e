
/*
 * What the expressions of a limit say of a request: if=, rate=, cost=, and
 * whether elastic= is in force.
 */


#include "http/ngx_http_ratelimit_ctx.h"


#define NGX_HTTP_RATELIMIT_LOGGED_COST  32    /* bytes of a bad one */


static void ngx_http_ratelimit_log_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *value);


ngx_int_t
ngx_http_ratelimit_test_filter(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_str_t  value;

    if (ngx_http_ratelimit_eval(r, &limit->filter, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value.len == 0 || (value.len == 1 && value.data[0] == '0')) {
        return NGX_DECLINED;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_find_rules(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rules_t **rates)
{
    ngx_str_t   text;
    ngx_uint_t  closed;

    if (ngx_http_ratelimit_eval(ctx->request, &limit->rate, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (text.len == 0) {
        return NGX_DECLINED;
    }

    *rates = ngx_http_ratelimit_get_rules(ctx->request, limit, &text);

    if (*rates == NULL) {
        return NGX_ERROR;
    }

    if ((*rates)->reason == NULL) {
        return NGX_OK;
    }

    ctx->failed = 1;
    closed = (limit->use.zone->fail == NGX_HTTP_RATELIMIT_FAIL_CLOSED);

    if (ctx->conf->marks & NGX_HTTP_RATELIMIT_MARK_COUNTED) {
        ngx_http_ratelimit_count(&limit->use,
                                 closed && !ctx->conf->dry_run
                                 ? NGX_HTTP_RATELIMIT_FAILED_CLOSED
                                 : NGX_HTTP_RATELIMIT_FAILED_OPEN);
    }

    return closed ? NGX_BUSY : NGX_DECLINED;
}


u_char *
ngx_http_ratelimit_known_values(ngx_http_request_t *r)
{
    u_char                     *known;
    ngx_uint_t                  i, n;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);
    n = cmcf->variables.nelts;

    known = ngx_pnalloc(r->pool, n);
    if (known == NULL) {
        return NULL;
    }

    for (i = 0; i < n; i++) {
        known[i] = r->variables[i].valid || r->variables[i].not_found;
    }

    return known;
}


void
ngx_http_ratelimit_forget_values(ngx_http_request_t *r, u_char *known)
{
    ngx_uint_t                  i;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);

    for (i = 0; i < cmcf->variables.nelts; i++) {
        if (!known[i]) {
            r->variables[i].valid = 0;
            r->variables[i].not_found = 0;
        }
    }
}


/* measured once for all limits of a request */

ngx_uint_t
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


/*
 * Sets the cost, unless the value is empty or is not a number.  A cost beyond
 * what any limit allows is as good as the largest one.
 */

ngx_int_t
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

    if (i < value.len) {
        ngx_http_ratelimit_log_cost(r, limit, &value);

    } else if (value.len) {
        *cost = n;
    }

    return NGX_OK;
}


static void
ngx_http_ratelimit_log_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *value)
{
    size_t    len;
    u_char    text[NGX_HTTP_RATELIMIT_LOGGED_COST];
    uint32_t  hash;

    /* another hash than that of a malformed rate, which may be the same text */

    hash = ngx_murmur_hash2(value->data, value->len);

    if (!ngx_http_ratelimit_store_log_once(limit->use.zone, hash)) {
        return;
    }

    len = ngx_http_ratelimit_printable(text, NGX_HTTP_RATELIMIT_LOGGED_COST,
                                       value);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "cost \"%V\" of zone \"%V\" is not a number: \"%*s\", "
                  "1 is counted",
                  &limit->cost.value->value, &limit->use.zone->name,
                  len, text);
}
