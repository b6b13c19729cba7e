
/*
 * Expressions.  nginx reports an unknown variable without the directive that
 * uses it, so the module remembers each use and checks the variables itself.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static ngx_int_t ngx_http_ratelimit_expr_check(ngx_conf_t *cf,
    ngx_http_ratelimit_expr_check_t *check);
static ngx_uint_t ngx_http_ratelimit_expr_known(
    ngx_http_core_main_conf_t *cmcf, ngx_http_variable_t *var);
static ngx_http_variable_t *ngx_http_ratelimit_expr_find(
    ngx_http_core_main_conf_t *cmcf, ngx_str_t *name);


ngx_int_t
ngx_http_ratelimit_expr_compile(ngx_conf_t *cf, ngx_str_t *text,
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

    return ngx_http_ratelimit_expr_check_later(cf, value);
}


ngx_int_t
ngx_http_ratelimit_expr_check_later(ngx_conf_t *cf,
    ngx_http_complex_value_t *value)
{
    ngx_str_t                        *args;
    ngx_http_ratelimit_main_conf_t   *rmcf;
    ngx_http_ratelimit_expr_check_t  *check;

    if (value->flushes == NULL) {
        return NGX_OK;
    }

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    check = ngx_array_push(&rmcf->expr_checks);
    if (check == NULL) {
        return NGX_ERROR;
    }

    args = cf->args->elts;

    check->value = value;
    check->directive = args[0];
    check->origin = *cf->conf_file;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_expr_check_all(ngx_conf_t *cf)
{
    ngx_uint_t                        i;
    ngx_http_ratelimit_main_conf_t   *rmcf;
    ngx_http_ratelimit_expr_check_t  *checks;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    checks = rmcf->expr_checks.elts;

    for (i = 0; i < rmcf->expr_checks.nelts; i++) {
        if (ngx_http_ratelimit_expr_check(cf, &checks[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_expr_check(ngx_conf_t *cf,
    ngx_http_ratelimit_expr_check_t *check)
{
    ngx_uint_t                  i;
    ngx_http_variable_t        *vars;
    ngx_http_complex_value_t   *value;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    vars = cmcf->variables.elts;
    value = check->value;

    for (i = 0; value->flushes[i] != (ngx_uint_t) -1; i++) {

        if (ngx_http_ratelimit_expr_known(cmcf, &vars[value->flushes[i]])) {
            continue;
        }

        cf->conf_file = &check->origin;

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown \"%V\" variable in \"%V\" directive",
                           &vars[value->flushes[i]].name, &check->directive);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_ratelimit_expr_known(ngx_http_core_main_conf_t *cmcf,
    ngx_http_variable_t *var)
{
    ngx_uint_t            i;
    ngx_http_variable_t  *known, *prefix;

    if (var->get_handler != NULL) {
        return 1;
    }

    known = ngx_http_ratelimit_expr_find(cmcf, &var->name);

    if (known != NULL && known->get_handler != NULL) {
        return 1;
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


static ngx_http_variable_t *
ngx_http_ratelimit_expr_find(ngx_http_core_main_conf_t *cmcf, ngx_str_t *name)
{
    ngx_uint_t       i;
    ngx_hash_key_t  *key;

    key = cmcf->variables_keys->keys.elts;

    for (i = 0; i < cmcf->variables_keys->keys.nelts; i++) {
        if (ngx_http_ratelimit_is_same(name, &key[i].key)) {
            return key[i].value;
        }
    }

    return NULL;
}


/* those that directives define, as "map", say what other variables say */

ngx_uint_t
ngx_http_ratelimit_expr_is_defined(ngx_conf_t *cf,
    ngx_http_ratelimit_expr_t *expr)
{
    ngx_http_variable_t        *vars, *var;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    vars = cmcf->variables.elts;

    var = ngx_http_ratelimit_expr_find(cmcf, &vars[expr->index].name);

    return var != NULL && (var->flags & NGX_HTTP_VAR_CHANGEABLE);
}


/* finds out whether the expression is a single variable */

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
