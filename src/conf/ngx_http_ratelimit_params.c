
/*
 * Parameters of directives: one loop over a table, and the parsers that
 * several directives share.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static ngx_int_t ngx_http_ratelimit_parse_bounded(
    ngx_http_ratelimit_param_t *param, u_char *text, size_t len,
    uint64_t *number);


char *
ngx_http_ratelimit_params(ngx_conf_t *cf, ngx_uint_t first,
    ngx_http_ratelimit_param_t *params, void *conf)
{
    uint64_t                     seen;
    ngx_str_t                   *args, value, shown;
    ngx_uint_t                   i;
    const char                  *reason;
    ngx_http_ratelimit_param_t  *param;

    args = cf->args->elts;
    seen = 0;

    for (i = first; i < cf->args->nelts; i++) {

        param = ngx_http_ratelimit_find_param(params, &args[i]);

        /* where a URL does not belong, it may have a password, too */

        shown = ngx_http_ratelimit_is_url(&args[i])
                    ? ngx_http_ratelimit_masked(cf, &args[i]) : args[i];

        if (param == NULL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\" directive",
                               &shown, &args[0]);
            return NGX_CONF_ERROR;
        }

        value.data = args[i].data + param->name.len;
        value.len = args[i].len - param->name.len;

        if (!param->many && (seen & ((uint64_t) 1 << (param - params)))) {
            reason = "is duplicate";

        } else {
            reason = param->parse(cf, param, &value,
                                  (u_char *) conf + param->offset);
        }

        if (reason == NGX_CONF_ERROR) {
            return NGX_CONF_ERROR;
        }

        if (reason != NULL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                            "invalid parameter \"%V\" in \"%V\" directive: %s",
                            &shown, &args[0], reason);
            return NGX_CONF_ERROR;
        }

        seen |= (uint64_t) 1 << (param - params);
    }

    return NGX_CONF_OK;
}


ngx_http_ratelimit_param_t *
ngx_http_ratelimit_find_param(ngx_http_ratelimit_param_t *params,
    ngx_str_t *text)
{
    ngx_http_ratelimit_param_t  *param;

    for (param = params; param->name.len; param++) {

        if (text->len < param->name.len
            || ngx_strncmp(text->data, param->name.data, param->name.len) != 0)
        {
            continue;
        }

        if (param->name.data[param->name.len - 1] == '='
            || text->len == param->name.len)
        {
            return param;
        }
    }

    return NULL;
}


const char *
ngx_http_ratelimit_param_number(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_str_t  *args;

    if (ngx_http_ratelimit_parse_bounded(param, value->data, value->len, field)
        == NGX_OK)
    {
        return NULL;
    }

    args = cf->args->elts;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V%V\" in \"%V\" directive: "
                       "must be a number from %uL to %uL",
                       &param->name, value, &args[0], param->low, param->high);

    return NGX_CONF_ERROR;
}


/* 10% */

const char *
ngx_http_ratelimit_param_percent(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_str_t  *args;

    if (value->len == 0 || value->data[value->len - 1] != '%') {
        return "must be a percentage such as \"10%\"";
    }

    if (ngx_http_ratelimit_parse_bounded(param, value->data, value->len - 1,
                                         field)
        == NGX_OK)
    {
        return NULL;
    }

    args = cf->args->elts;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V%V\" in \"%V\" directive: "
                       "must be from %uL%% to %uL%%",
                       &param->name, value, &args[0], param->low, param->high);

    return NGX_CONF_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_parse_bounded(ngx_http_ratelimit_param_t *param,
    u_char *text, size_t len, uint64_t *number)
{
    if (ratelimit_parse_number((char *) text, len, param->high, number) != NULL
        || *number < param->low)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


const char *
ngx_http_ratelimit_param_rate(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_http_ratelimit_rates_t  *rates = field;

    ngx_uint_t                  i;
    const char                 *reason;
    ratelimit_rate_t           *rate, parsed;
    ngx_http_ratelimit_expr_t   expr;

    if (rates->variable) {
        return "stands beside a rate with variables";
    }

    if (ngx_strlchr(value->data, value->data + value->len, '$') != NULL) {

        if (rates->list.nelts) {
            return "with variables stands beside another rate";
        }

        reason = ngx_http_ratelimit_param_expr(cf, param, value, &expr);
        rates->variable = expr.value;

        return reason;
    }

    reason = ratelimit_parse_rate((char *) value->data, value->len, &parsed);
    if (reason != NULL) {
        return reason;
    }

    if (rates->list.elts == NULL
        && ngx_array_init(&rates->list, cf->pool, 2, sizeof(ratelimit_rate_t))
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    rate = rates->list.elts;

    for (i = 0; i < rates->list.nelts; i++) {
        if (rate[i].period == parsed.period) {
            return "another rate has the same period";
        }
    }

    rate = ngx_array_push(&rates->list);
    if (rate == NULL) {
        return NGX_CONF_ERROR;
    }

    *rate = parsed;

    return NULL;
}


const char *
ngx_http_ratelimit_param_name(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_str_t  *name = field;

    if (value->len == 0) {
        return "must not be empty";
    }

    if (ngx_strlchr(value->data, value->data + value->len, '$') != NULL) {
        return "must not contain variables";
    }

    *name = *value;

    return NULL;
}


const char *
ngx_http_ratelimit_param_expr(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_http_ratelimit_expr_t  *expr = field;

    ngx_http_complex_value_t  *cv;

    if (value->len == 0) {
        return "must not be empty";
    }

    cv = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (cv == NULL) {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_ratelimit_compile(cf, value, cv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_http_ratelimit_expr_init(cf, expr, cv);

    return NULL;
}
