
/*
 * Expressions of the configuration.  nginx finds unknown variables only after
 * it has forgotten where they were written, so it is remembered here.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static ngx_int_t ngx_http_ratelimit_check_mention(ngx_conf_t *cf,
    ngx_http_ratelimit_mention_t *mention);
static ngx_uint_t ngx_http_ratelimit_variable_known(
    ngx_http_core_main_conf_t *cmcf, ngx_http_variable_t *var);


ngx_int_t
ngx_http_ratelimit_compile(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_complex_value_t *value)
{
    ngx_http_compile_complex_value_t  ccv;

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = text;
    ccv.complex_value = value;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_mention(cf, value);
}


ngx_int_t
ngx_http_ratelimit_mention(ngx_conf_t *cf, ngx_http_complex_value_t *value)
{
    ngx_str_t                       *args;
    ngx_http_ratelimit_mention_t    *mention;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    if (value->flushes == NULL) {
        return NGX_OK;
    }

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    mention = ngx_array_push(&rmcf->mentions);
    if (mention == NULL) {
        return NGX_ERROR;
    }

    args = cf->args->elts;

    mention->value = value;
    mention->directive = args[0];
    mention->origin = *cf->conf_file;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_check_mentions(ngx_conf_t *cf)
{
    ngx_uint_t                       i;
    ngx_http_ratelimit_mention_t    *mentions;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    mentions = rmcf->mentions.elts;

    for (i = 0; i < rmcf->mentions.nelts; i++) {
        if (ngx_http_ratelimit_check_mention(cf, &mentions[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_check_mention(ngx_conf_t *cf,
    ngx_http_ratelimit_mention_t *mention)
{
    ngx_uint_t                  i;
    ngx_conf_file_t            *saved;
    ngx_http_variable_t        *vars;
    ngx_http_complex_value_t   *value;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    vars = cmcf->variables.elts;
    value = mention->value;

    for (i = 0; value->flushes[i] != (ngx_uint_t) -1; i++) {

        if (ngx_http_ratelimit_variable_known(cmcf, &vars[value->flushes[i]])) {
            continue;
        }

        saved = cf->conf_file;
        cf->conf_file = &mention->origin;

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown \"%V\" variable in \"%V\" directive",
                           &vars[value->flushes[i]].name, &mention->directive);

        cf->conf_file = saved;

        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_ratelimit_variable_known(ngx_http_core_main_conf_t *cmcf,
    ngx_http_variable_t *var)
{
    ngx_uint_t            i;
    ngx_hash_key_t       *key;
    ngx_http_variable_t  *known, *prefix;

    if (var->get_handler != NULL) {
        return 1;
    }

    key = cmcf->variables_keys->keys.elts;

    for (i = 0; i < cmcf->variables_keys->keys.nelts; i++) {
        known = key[i].value;

        if (var->name.len == key[i].key.len
            && ngx_strncmp(var->name.data, key[i].key.data, var->name.len) == 0
            && known->get_handler != NULL)
        {
            return 1;
        }
    }

    prefix = cmcf->prefix_variables.elts;

    for (i = 0; i < cmcf->prefix_variables.nelts; i++) {
        if (var->name.len >= prefix[i].name.len
            && ngx_strncmp(var->name.data, prefix[i].name.data,
                           prefix[i].name.len)
               == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* finds out whether it is one variable and nothing else */

void
ngx_http_ratelimit_expr_init(ngx_conf_t *cf, ngx_http_ratelimit_expr_t *expr,
    ngx_http_complex_value_t *value)
{
    size_t                      len;
    ngx_http_variable_t        *vars;
    ngx_http_core_main_conf_t  *cmcf;

    expr->value = value;
    expr->index = NGX_ERROR;

    if (value->flushes == NULL || value->flushes[1] != (ngx_uint_t) -1) {
        return;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    vars = cmcf->variables.elts;

    len = sizeof("$") - 1 + vars[value->flushes[0]].name.len;

    if (value->value.data[1] == '{') {
        len += sizeof("{}") - 1;
    }

    if (value->value.data[0] == '$' && value->value.len == len) {
        expr->index = value->flushes[0];
    }
}
