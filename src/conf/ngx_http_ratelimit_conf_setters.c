
/*
 * Setters of the directives with plain values.  The messages of nginx's own
 * setters name neither the directive nor the value.
 */


#include "conf/ngx_http_ratelimit_conf.h"


ngx_conf_enum_t  ngx_http_ratelimit_log_levels[] = {
    { ngx_string("info"), NGX_LOG_INFO },
    { ngx_string("notice"), NGX_LOG_NOTICE },
    { ngx_string("warn"), NGX_LOG_WARN },
    { ngx_string("error"), NGX_LOG_ERR },
    { ngx_null_string, 0 }
};


ngx_conf_enum_t  ngx_http_ratelimit_bodies[] = {
    { ngx_string("problem"), NGX_HTTP_RATELIMIT_BODY_PROBLEM },
    { ngx_string("off"), NGX_HTTP_RATELIMIT_BODY_OFF },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_ratelimit_header_words[] = {
    { ngx_string("off"), NGX_HTTP_RATELIMIT_HEADERS_OFF },
    { ngx_string("x"), NGX_HTTP_RATELIMIT_HEADERS_X },
    { ngx_string("ietf"), NGX_HTTP_RATELIMIT_HEADERS_IETF },
    { ngx_string("reset=delta"), NGX_HTTP_RATELIMIT_HEADERS_DELTA },
    { ngx_string("reset=epoch"), NGX_HTTP_RATELIMIT_HEADERS_EPOCH },
    { ngx_null_string, 0 }
};


ngx_conf_num_bounds_t  ngx_http_ratelimit_status_bounds = {
    NULL, 400, 599
};


ngx_conf_num_bounds_t  ngx_http_ratelimit_ipv6_prefix_bounds = {
    NULL, 1, 128
};


char *
ngx_http_ratelimit_set_number(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    uint64_t                number;
    ngx_str_t              *value;
    ngx_uint_t             *field;
    ngx_conf_num_bounds_t  *bounds;

    field = (ngx_uint_t *) (p + cmd->offset);

    if (*field != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;
    bounds = cmd->post;

    if (ngx_http_ratelimit_parse_number(&value[1], bounds->low, bounds->high,
                                        &number)
        != NGX_OK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive: "
                           "must be a number from %i to %i",
                           &value[1], &cmd->name, bounds->low, bounds->high);
        return NGX_CONF_ERROR;
    }

    *field = (ngx_uint_t) number;

    return NGX_CONF_OK;
}


char *
ngx_http_ratelimit_set_enum(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t        *value;
    ngx_uint_t       *field;
    const char       *reason;
    ngx_conf_enum_t  *e;

    field = (ngx_uint_t *) (p + cmd->offset);

    if (*field != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (e = cmd->post; e->name.len; e++) {

        if (e->name.len == value[1].len
            && ngx_strcasecmp(e->name.data, value[1].data) == 0)
        {
            *field = e->value;
            return NGX_CONF_OK;
        }
    }

    reason = ngx_http_ratelimit_enum_reason(cf, "must be", cmd->post);

    if (reason != NGX_CONF_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive: %s",
                           &value[1], &cmd->name, reason);
    }

    return NGX_CONF_ERROR;
}


static ngx_http_ratelimit_param_t  ngx_http_ratelimit_log_level_params[] = {

    { ngx_string("limit="), ngx_http_ratelimit_param_number,
      offsetof(ngx_http_ratelimit_loc_conf_t, log_limit), 1, 1000000, 0,
      NULL },

      ngx_http_ratelimit_null_param
};


char *
ngx_http_ratelimit_set_log_level(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    char  *rv;

    rv = ngx_http_ratelimit_set_enum(cf, cmd, conf);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    return ngx_http_ratelimit_params(cf, 2,
                                     ngx_http_ratelimit_log_level_params,
                                     conf);
}


char *
ngx_http_ratelimit_set_headers(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_loc_conf_t  *rlcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i, word, seen, dialects, forms;
    const char  *reason;

    if (rlcf->headers != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;
    seen = 0;

    for (i = 1; i < cf->args->nelts; i++) {
        reason = ngx_http_ratelimit_parse_enum(cf,
                                              ngx_http_ratelimit_header_words,
                                              &value[i], &word);

        if (reason == NULL && (seen & word)) {
            reason = "is duplicate";
        }

        if (reason != NULL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                            "invalid parameter \"%V\" in \"%V\" directive: %s",
                            &value[i], &cmd->name, reason);
            return NGX_CONF_ERROR;
        }

        seen |= word;
    }

    dialects = seen & (NGX_HTTP_RATELIMIT_HEADERS_X
                       |NGX_HTTP_RATELIMIT_HEADERS_IETF);
    forms = seen & (NGX_HTTP_RATELIMIT_HEADERS_DELTA
                    |NGX_HTTP_RATELIMIT_HEADERS_EPOCH);

    if ((seen & NGX_HTTP_RATELIMIT_HEADERS_OFF)
        && seen != NGX_HTTP_RATELIMIT_HEADERS_OFF)
    {
        return "has \"off\", which conflicts with other parameters";
    }

    if (seen != NGX_HTTP_RATELIMIT_HEADERS_OFF && dialects == 0) {
        return "must have \"x\", \"ietf\" or \"off\"";
    }

    if (forms == (NGX_HTTP_RATELIMIT_HEADERS_DELTA
                  |NGX_HTTP_RATELIMIT_HEADERS_EPOCH))
    {
        return "has both \"reset=delta\" and \"reset=epoch\"";
    }

    rlcf->headers = seen;

    return NGX_CONF_OK;
}


char *
ngx_http_ratelimit_set_bypass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_loc_conf_t  *rlcf = conf;

    char                      *rv;
    ngx_uint_t                 i;
    ngx_http_complex_value_t  *values;

    rv = ngx_http_set_predicate_slot(cf, cmd, conf);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    values = rlcf->bypass->elts;
    i = rlcf->bypass->nelts - (cf->args->nelts - 1);

    for ( /* void */ ; i < rlcf->bypass->nelts; i++) {
        if (ngx_http_ratelimit_expr_check_later(cf, &values[i]) != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}
