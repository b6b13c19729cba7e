
/*
 * A refusal is final, whichever module refuses, and its error page is neither
 * charged nor refused.  The status does not show it: a page may overwrite it,
 * and pages have other uses, as "error_page 404 = @app" does.  What matters is
 * where the request was when the page came: between the first handler of
 * preaccess and the first one of precontent there are limits and access checks
 * alone.
 */


#include "http/ngx_http_ratelimit_ctx.h"


#if (NGX_HTTP_SSL)

/* "ssl_verify_client"; "optional_no_ca" leaves what it refuses to others */
#define NGX_HTTP_RATELIMIT_VERIFY_ON        1
#define NGX_HTTP_RATELIMIT_VERIFY_OPTIONAL  2

/* the nginx that runs the module may be built without it */
#pragma weak ngx_http_ssl_module

#endif


static ngx_uint_t ngx_http_ratelimit_is_distrusted(ngx_http_request_t *r);
static ngx_uint_t ngx_http_ratelimit_at_error_page(
    ngx_http_ratelimit_ctx_t *ctx);
static ngx_uint_t ngx_http_ratelimit_is_unauthorized(ngx_http_request_t *r);
static ngx_uint_t ngx_http_ratelimit_is_denial(ngx_uint_t status);
static ngx_uint_t ngx_http_ratelimit_is_before_auth(ngx_http_request_t *r);


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
        ctx->refused = r->internal && ngx_http_ratelimit_is_distrusted(r);

        ngx_http_ratelimit_attach_ctx(ctx);

    } else {
        return NGX_DECLINED;
    }

    ctx->in_access = rlcf->error_pages;
    ctx->location = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    return NGX_DECLINED;
}


/*
 * Whether nginx has refused the client's certificate, or asks for one.  It does
 * so before any phase, and all that follows is the page (495, 496).
 */

static ngx_uint_t
ngx_http_ratelimit_is_distrusted(ngx_http_request_t *r)
{
#if (NGX_HTTP_SSL)

    ngx_http_ssl_srv_conf_t    *sscf;
    ngx_http_variable_value_t  *verified;

    static ngx_str_t  name = ngx_string("ssl_client_verify");

    if (r->connection->ssl == NULL || &ngx_http_ssl_module == NULL) {
        return 0;
    }

    sscf = ngx_http_get_module_srv_conf(r, ngx_http_ssl_module);

    if (sscf->verify != NGX_HTTP_RATELIMIT_VERIFY_ON
        && sscf->verify != NGX_HTTP_RATELIMIT_VERIFY_OPTIONAL)
    {
        return 0;
    }

    verified = ngx_http_get_variable(r, &name,
                                     ngx_hash_key(name.data, name.len));

    if (verified == NULL || verified->not_found || verified->len == 0) {
        return 0;
    }

    return verified->data[0] == 'F'
           || (verified->data[0] == 'N'
               && sscf->verify == NGX_HTTP_RATELIMIT_VERIFY_ON);

#else

    return 0;

#endif
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


/* parts of such a page belong to it */

ngx_uint_t
ngx_http_ratelimit_is_part_of_refusal(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    for (r = r->parent; r != NULL; r = r->parent) {
        ctx = ngx_http_ratelimit_get_ctx(r);

        if (ctx != NULL && ctx->refused) {
            return 1;
        }
    }

    return 0;
}


/* a subrequest is not asked for a password: its parent is */

ngx_uint_t
ngx_http_ratelimit_is_after_auth(ngx_http_request_t *r)
{
    if (ngx_http_ratelimit_is_unauthorized(r)) {
        return 0;
    }

    for (r = r->parent; r != NULL; r = r->parent) {
        if (ngx_http_ratelimit_is_unauthorized(r)
            || ngx_http_ratelimit_is_before_auth(r))
        {
            return 0;
        }
    }

    return 1;
}


/*
 * Whether the request is at the page of a failed authentication; also by a
 * rewrite, as long as the page keeps the status, or by an upstream, at whatever
 * page after that.
 */

static ngx_uint_t
ngx_http_ratelimit_is_unauthorized(ngx_http_request_t *r)
{
    ngx_uint_t                  i, n;
    ngx_http_upstream_state_t  *state;

    if (ngx_http_ratelimit_is_denial(r->err_status)) {
        return 1;
    }

    if (r->upstream_states == NULL) {
        return 0;
    }

    state = r->upstream_states->elts;
    n = r->upstream_states->nelts;

    for (i = 0; i < n; i++) {

        /* the last server that was tried, before another upstream */

        if (ngx_http_ratelimit_is_denial(state[i].status)
            && (i + 1 == n || state[i + 1].peer == NULL))
        {
            return 1;
        }
    }

    return 0;
}


static ngx_uint_t
ngx_http_ratelimit_is_denial(ngx_uint_t status)
{
    return status == NGX_HTTP_UNAUTHORIZED || status == NGX_HTTP_FORBIDDEN;
}


/* as a request that asks an authenticator by a subrequest */

static ngx_uint_t
ngx_http_ratelimit_is_before_auth(ngx_http_request_t *r)
{
    ngx_http_phase_handler_t   *ph;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);
    ph = &cmcf->phase_engine.handlers[r->phase_handler];

    while (ph->checker != NULL) {
        if (ph->handler == ngx_http_ratelimit_after_auth_handler) {
            return 1;
        }

        ph++;
    }

    return 0;
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
