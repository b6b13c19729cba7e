
/*
 * What the expressions of a limit say of a request: if=, rate=, cost=, settle=,
 * and whether elastic= is in force.
 */


#include "http/ngx_http_ratelimit_ctx.h"


#define NGX_HTTP_RATELIMIT_LOGGED_COST  32    /* bytes of a bad one */


static ngx_uint_t ngx_http_ratelimit_is_value(
    ngx_http_variable_value_t *value, ngx_http_variable_value_t *early);
static ngx_uint_t ngx_http_ratelimit_is_lasting(ngx_http_variable_t *var);
static ngx_int_t ngx_http_ratelimit_parse_cost(ngx_str_t *value,
    ngx_uint_t fraction, uint64_t *cost);
static ngx_uint_t ngx_http_ratelimit_log_cost_due(
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_expr_t *expr,
    ngx_int_t rc);
static void ngx_http_ratelimit_log_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_expr_t *expr,
    const char *what, const char *consequence, ngx_str_t *value);


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


ngx_http_variable_value_t *
ngx_http_ratelimit_copy_values(ngx_http_request_t *r)
{
    size_t                      len;
    ngx_http_variable_value_t  *values;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);
    len = cmcf->variables.nelts * sizeof(ngx_http_variable_value_t);

    values = ngx_palloc(r->pool, len);
    if (values != NULL) {
        ngx_memcpy(values, r->variables, len);
    }

    return values;
}


void
ngx_http_ratelimit_note_values(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_variable_value_t *before)
{
    ngx_uint_t                  i;
    ngx_http_request_t         *r;
    ngx_http_core_main_conf_t  *cmcf;

    r = ctx->request;
    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);

    for (i = 0; i < cmcf->variables.nelts; i++) {

        if (!before[i].valid && !before[i].not_found) {
            before[i] = r->variables[i];

        } else if (ctx->early != NULL) {
            before[i] = ctx->early[i];

        } else {
            before[i].valid = 0;
            before[i].not_found = 0;
        }
    }

    ctx->early = before;

    ngx_http_ratelimit_attach_ctx(ctx);
}


void
ngx_http_ratelimit_forget_values(ngx_http_request_t *r)
{
    ngx_uint_t                  i;
    ngx_http_variable_t        *vars;
    ngx_http_ratelimit_ctx_t   *ctx;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);
    vars = cmcf->variables.elts;
    ctx = NULL;

    for ( ;; ) {
        ctx = ngx_http_ratelimit_next_ctx(r, ctx);

        if (ctx == NULL) {
            return;
        }

        for (i = 0; ctx->early != NULL && i < cmcf->variables.nelts; i++) {
            if (ngx_http_ratelimit_is_value(&r->variables[i], &ctx->early[i])
                && !ngx_http_ratelimit_is_lasting(&vars[i]))
            {
                r->variables[i].valid = 0;
                r->variables[i].not_found = 0;
            }
        }

        ctx->early = NULL;
    }
}


/* whether this is still that one: "auth_request_set" puts others in place */

static ngx_uint_t
ngx_http_ratelimit_is_value(ngx_http_variable_value_t *value,
    ngx_http_variable_value_t *early)
{
    return (early->valid || early->not_found)
           && value->valid == early->valid
           && value->len == early->len
           && value->data == early->data;
}


/*
 * Whether it must keep its value: $request_id, of which a request has one, and
 * what may be a named group of a regular expression, as of a "map", which
 * nothing but another match would set again.  What other directives define has
 * data that says how.
 */

static ngx_uint_t
ngx_http_ratelimit_is_lasting(ngx_http_variable_t *var)
{
    ngx_str_t  id = ngx_string("request_id");

    if (var->data != 0) {
        return 0;
    }

    return (var->flags & NGX_HTTP_VAR_CHANGEABLE)
           || (var->name.len == id.len
               && ngx_strncmp(var->name.data, id.data, id.len) == 0);
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


/* an empty cost is the default */

ngx_int_t
ngx_http_ratelimit_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, uint64_t *cost)
{
    ngx_str_t  value;

    if (ngx_http_ratelimit_eval(r, &limit->cost, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_parse_cost(&value, 0, cost) == NGX_ERROR
        && ngx_http_ratelimit_log_cost_due(limit, &limit->cost, NGX_ERROR))
    {
        ngx_http_ratelimit_log_cost(r, limit, &limit->cost, "cost",
                                    "1 is counted", &value);
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_final_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, uint64_t *cost)
{
    ngx_int_t  rc;
    ngx_str_t  value;

    if (ngx_http_ratelimit_eval(r, &limit->settle, &value) != NGX_OK) {
        return NGX_DECLINED;
    }

    rc = ngx_http_ratelimit_parse_cost(&value, 1, cost);

    if (rc == NGX_OK) {
        return NGX_OK;
    }

    if (!ngx_http_ratelimit_log_cost_due(limit, &limit->settle, rc)) {
        return NGX_DECLINED;
    }

    if (rc == NGX_ERROR) {
        ngx_http_ratelimit_log_cost(r, limit, &limit->settle, "settle",
                                    "what was reserved counts", &value);

    } else {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                      "settle \"%V\" of zone \"%V\" is empty, "
                      "what was reserved counts",
                      &limit->settle.value->value, &limit->use.zone->name);
    }

    return NGX_DECLINED;
}


/*
 * Sets the cost, unless the value is empty, NGX_DECLINED, or is not a number,
 * NGX_ERROR.  A cost beyond what any limit allows is as good as the largest
 * one; a fraction, as times have it, is rounded up.
 */

static ngx_int_t
ngx_http_ratelimit_parse_cost(ngx_str_t *value, ngx_uint_t fraction,
    uint64_t *cost)
{
    u_char     *p, *last;
    uint64_t    n;
    ngx_uint_t  more;

    if (value->len == 0) {
        return NGX_DECLINED;
    }

    p = value->data;
    last = p + value->len;
    n = 0;
    more = 0;

    while (p < last && *p >= '0' && *p <= '9') {
        n = ngx_min(n * 10 + (*p - '0'), RATELIMIT_MAX_LIMIT);
        p++;
    }

    if (fraction && p > value->data && last - p > 1 && *p == '.') {
        p++;

        while (p < last && *p >= '0' && *p <= '9') {
            more |= (*p++ != '0');
        }
    }

    if (p < last) {
        return NGX_ERROR;
    }

    *cost = ngx_min(n + more, RATELIMIT_MAX_LIMIT);

    return NGX_OK;
}


/* once a second for each expression: clients may choose its values */

static ngx_uint_t
ngx_http_ratelimit_log_cost_due(ngx_http_ratelimit_limit_t *limit,
    ngx_http_ratelimit_expr_t *expr, ngx_int_t rc)
{
    uint32_t    hash;
    ngx_str_t  *text;

    text = &expr->value->value;
    hash = ngx_murmur_hash2(text->data, text->len) + (uint32_t) rc;

    return ngx_http_ratelimit_store_log_once(limit->use.zone,
                                             expr == &limit->cost ? hash
                                                                  : ~hash);
}


static void
ngx_http_ratelimit_log_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_expr_t *expr,
    const char *what, const char *consequence, ngx_str_t *value)
{
    size_t  len;
    u_char  text[NGX_HTTP_RATELIMIT_LOGGED_COST];

    len = ngx_http_ratelimit_printable(text, NGX_HTTP_RATELIMIT_LOGGED_COST,
                                       value);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "%s \"%V\" of zone \"%V\" is not a number: \"%*s\", %s",
                  what, &expr->value->value, &limit->use.zone->name,
                  len, text, consequence);
}
