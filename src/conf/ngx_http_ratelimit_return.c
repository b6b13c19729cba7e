
/*
 * A location that has limits and only a "return" never reaches them: requests
 * are answered before limits are asked.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static ngx_array_t *ngx_http_ratelimit_rewrite_codes(ngx_conf_t *cf);


void
ngx_http_ratelimit_check_return(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set)
{
    ngx_array_t                 *codes;
    ngx_conf_file_t             *saved;
    ngx_http_script_code_pt     *code;
    ngx_http_ratelimit_limit_t  *limits;

    codes = ngx_http_ratelimit_rewrite_codes(cf);
    if (codes == NULL || codes->nelts == 0) {
        return;
    }

    /* the one of an "if" comes after the code of the condition */

    code = codes->elts;
    if (*code != ngx_http_script_return_code) {
        return;
    }

    limits = set->limits.elts;

    saved = cf->conf_file;
    cf->conf_file = &limits[0].origin;

    ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                       "\"ratelimit\" directive is never reached because of "
                       "\"return\" in the same block");

    cf->conf_file = saved;
}


/* the rewrite module's configuration begins with its codes */

static ngx_array_t *
ngx_http_ratelimit_rewrite_codes(ngx_conf_t *cf)
{
    ngx_uint_t             i;
    ngx_array_t          **codes;
    ngx_module_t          *module;
    ngx_http_conf_ctx_t   *ctx;

    ctx = cf->ctx;

    for (i = 0; cf->cycle->modules[i]; i++) {
        module = cf->cycle->modules[i];

        if (ngx_strcmp(module->name, "ngx_http_rewrite_module") == 0) {
            codes = ctx->loc_conf[module->ctx_index];
            return *codes;
        }
    }

    return NULL;
}
