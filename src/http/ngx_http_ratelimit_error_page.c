
/*
 * A refusal is final, whichever module refuses, and its error page is neither
 * charged nor refused.  The status does not show it: a page may overwrite it,
 * and pages have other uses, as "error_page 404 = @app" does.  What matters is
 * where the request was when the page came: between the first handler of
 * preaccess and the first one of precontent there are limits and access checks
 * alone.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static ngx_uint_t ngx_http_ratelimit_at_error_page(
    ngx_http_ratelimit_ctx_t *ctx);


/* this does something only where a location has error pages */

ngx_int_t
ngx_http_ratelimit_preaccess_handler(ngx_http_request_t *r)
{
    ngx_uint_t                      room;
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);
    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx != NULL) {
        ctx->fresh = 0;
        ctx->refused |= ctx->in_access && ngx_http_ratelimit_at_error_page(ctx);

    } else if (rlcf->error_pages) {
        room = (rlcf->set != NULL) ? rlcf->set->nrules_before : 0;

        ctx = ngx_http_ratelimit_create_ctx(r, room);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ctx->fresh = 1;

        ngx_http_ratelimit_attach_ctx(ctx);

    } else {
        return NGX_DECLINED;
    }

    ctx->in_access = rlcf->error_pages;
    ctx->location = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    return NGX_DECLINED;
}


/*
 * Whether an error page has led the request here; if not, it was a module, as
 * "ngx.exec" of Lua does it.  With recursive_error_pages a page that leaves the
 * status to its location looks the same.
 */

static ngx_uint_t
ngx_http_ratelimit_at_error_page(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_uint_t                 i;
    ngx_http_err_page_t       *page;
    ngx_http_core_loc_conf_t  *from;

    if (ctx->request->error_page || ctx->request->err_status) {
        return 1;
    }

    from = ctx->location;

    if (!from->recursive_error_pages) {
        return 0;
    }

    page = from->error_pages->elts;

    for (i = 0; i < from->error_pages->nelts; i++) {
        if (page[i].overwrite == 0) {
            return 1;
        }
    }

    return 0;
}


/* also by a rewrite or an upstream, as long as the page keeps the status */

ngx_uint_t
ngx_http_ratelimit_is_unauthorized(ngx_http_request_t *r)
{
    return r->err_status == NGX_HTTP_UNAUTHORIZED
           || r->err_status == NGX_HTTP_FORBIDDEN;
}


/* all is decided: a content handler follows, and what it was charged is used */

ngx_int_t
ngx_http_ratelimit_content_handler(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_get_ctx(r);

    if (ctx != NULL) {
        ctx->used = ctx->nqueries;
    }

    return NGX_DECLINED;
}
