
/*
 * Parameters of directives: one loop over a table, and the parsers that
 * several directives share.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static const char *ngx_http_ratelimit_words_reason(ngx_conf_t *cf,
    const char *must_be, ngx_str_t *name, size_t size);


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

        /* a URL that is given by mistake may have a password */

        shown = ngx_http_ratelimit_is_url(&args[i])
                    ? ngx_http_ratelimit_masked(cf, &args[i]) : args[i];

        if (param == NULL) {
            reason = ngx_http_ratelimit_unknown_param(cf, params);

        } else if (!param->many && (seen & (uint64_t) 1 << (param - params))) {
            reason = "is duplicate";

        } else {
            value.data = args[i].data + param->name.len;
            value.len = args[i].len - param->name.len;

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
    if (ngx_http_ratelimit_parse_number(value, param->low, param->high, field)
        == NGX_OK)
    {
        return NULL;
    }

    return ngx_http_ratelimit_reason(cf, "must be a number from %uL to %uL",
                                     param->low, param->high);
}


const char *
ngx_http_ratelimit_param_percent(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_str_t  number;

    if (value->len == 0 || value->data[value->len - 1] != '%') {
        return "must be a percentage such as \"10%\"";
    }

    number.data = value->data;
    number.len = value->len - 1;

    return ngx_http_ratelimit_param_number(cf, param, &number, field) == NULL
           ? NULL
           : ngx_http_ratelimit_reason(cf, "must be from %uL%% to %uL%%",
                                       param->low, param->high);
}


const char *
ngx_http_ratelimit_param_enum(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    return ngx_http_ratelimit_parse_enum(cf, param->post, value, field);
}


const char *
ngx_http_ratelimit_parse_enum(ngx_conf_t *cf, ngx_conf_enum_t *known,
    ngx_str_t *text, ngx_uint_t *value)
{
    ngx_conf_enum_t  *e;

    for (e = known; e->name.len; e++) {
        if (ngx_http_ratelimit_is_same(&e->name, text)) {
            *value = e->value;
            return NULL;
        }
    }

    return ngx_http_ratelimit_enum_reason(cf, "must be", known);
}


const char *
ngx_http_ratelimit_enum_reason(ngx_conf_t *cf, const char *must_be,
    ngx_conf_enum_t *e)
{
    return ngx_http_ratelimit_words_reason(cf, must_be, &e->name,
                                           sizeof(ngx_conf_enum_t));
}


const char *
ngx_http_ratelimit_unknown_param(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *params)
{
    return ngx_http_ratelimit_words_reason(cf, "must be", &params->name,
                                           sizeof(ngx_http_ratelimit_param_t));
}


/* names of structs of this size, the last one is empty */

static const char *
ngx_http_ratelimit_words_reason(ngx_conf_t *cf, const char *must_be,
    ngx_str_t *name, size_t size)
{
    u_char      *p, *last, words[NGX_MAX_CONF_ERRSTR];
    ngx_str_t   *next;
    const char  *comma;

    p = words;
    last = words + NGX_MAX_CONF_ERRSTR;
    comma = "";

    for ( /* void */ ; name->len; name = next) {
        next = (ngx_str_t *) ((u_char *) name + size);

        p = ngx_slprintf(p, last, "%s\"%V\"",
                         (next->len || *comma == '\0') ? comma : " or ", name);
        comma = ", ";
    }

    return ngx_http_ratelimit_reason(cf, "%s %*s", must_be,
                                     (size_t) (p - words), words);
}


const char *ngx_cdecl
ngx_http_ratelimit_reason(ngx_conf_t *cf, const char *fmt, ...)
{
    u_char   *reason, *p;
    va_list   args;

    reason = ngx_pnalloc(cf->temp_pool, NGX_MAX_CONF_ERRSTR);
    if (reason == NULL) {
        return NGX_CONF_ERROR;
    }

    va_start(args, fmt);
    p = ngx_vslprintf(reason, reason + NGX_MAX_CONF_ERRSTR - 1, fmt, args);
    va_end(args);

    *p = '\0';

    return (const char *) reason;
}


const char *
ngx_http_ratelimit_param_flag(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_uint_t  *flag = field;

    *flag = (ngx_uint_t) param->high;

    return NULL;
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
        return "conflicts with a rate that has variables";
    }

    if (ngx_strlchr(value->data, value->data + value->len, '$') != NULL) {

        if (rates->list.nelts) {
            return "has variables, which conflicts with another rate";
        }

        reason = ngx_http_ratelimit_param_expr(cf, param, value, &expr);

        if (reason == NULL) {
            rates->variable = expr.value;
        }

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
    ngx_http_complex_value_t  *cv;

    if (value->len == 0) {
        return "must not be empty";
    }

    cv = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (cv == NULL) {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_ratelimit_expr_compile(cf, value, cv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_http_ratelimit_expr_init(cf, field, cv);

    return NULL;
}


ngx_int_t
ngx_http_ratelimit_parse_number(ngx_str_t *text, uint64_t low, uint64_t high,
    uint64_t *number)
{
    if (ratelimit_parse_number((char *) text->data, text->len, high, number)
        != NULL
        || *number < low)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_parse_pair(ngx_str_t *text, ngx_str_t *name,
    ngx_str_t *value)
{
    u_char  *last, *colon;

    last = text->data + text->len;
    colon = ngx_strlchr(text->data, last, ':');

    if (colon == NULL) {
        return NGX_ERROR;
    }

    name->data = text->data;
    name->len = colon - text->data;

    value->data = colon + 1;
    value->len = last - value->data;

    return NGX_OK;
}
