
/*
 * $ratelimit_status and the other variables, and $ratelimit_client.
 */


#include "http/ngx_http_ratelimit_ctx.h"


typedef enum {
    NGX_HTTP_RATELIMIT_VAR_LIMIT = 0,
    NGX_HTTP_RATELIMIT_VAR_REMAINING,
    NGX_HTTP_RATELIMIT_VAR_RESET,
    NGX_HTTP_RATELIMIT_VAR_RETRY_AFTER,
    NGX_HTTP_RATELIMIT_VAR_ZONE,
    NGX_HTTP_RATELIMIT_VAR_NAME,
    NGX_HTTP_RATELIMIT_VAR_BACKEND
} ngx_http_ratelimit_var_e;


static ngx_int_t ngx_http_ratelimit_status_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_ratelimit_name_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_ratelimit_number_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_ratelimit_client_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
#if (NGX_HAVE_INET6)
static ngx_int_t ngx_http_ratelimit_client_inet6(ngx_http_request_t *r,
    ngx_http_variable_value_t *v);
#endif
static ngx_http_ratelimit_ctx_t *ngx_http_ratelimit_decided_ctx(
    ngx_http_request_t *r);
static void ngx_http_ratelimit_set_value(ngx_http_variable_value_t *v,
    u_char *data, size_t len);


#define ngx_http_ratelimit_var(name, handler, data)                          \
    { ngx_string(name), NULL, ngx_http_ratelimit_##handler##_variable, data, \
      NGX_HTTP_VAR_NOCACHEABLE, 0 }

static ngx_http_variable_t  ngx_http_ratelimit_vars[] = {
    ngx_http_ratelimit_var("ratelimit_status", status, 0),
    ngx_http_ratelimit_var("ratelimit_zone", name, NGX_HTTP_RATELIMIT_VAR_ZONE),
    ngx_http_ratelimit_var("ratelimit_name", name, NGX_HTTP_RATELIMIT_VAR_NAME),
    ngx_http_ratelimit_var("ratelimit_limit", number,
                           NGX_HTTP_RATELIMIT_VAR_LIMIT),
    ngx_http_ratelimit_var("ratelimit_remaining", number,
                           NGX_HTTP_RATELIMIT_VAR_REMAINING),
    ngx_http_ratelimit_var("ratelimit_reset", number,
                           NGX_HTTP_RATELIMIT_VAR_RESET),
    ngx_http_ratelimit_var("ratelimit_retry_after", number,
                           NGX_HTTP_RATELIMIT_VAR_RETRY_AFTER),
    ngx_http_ratelimit_var("ratelimit_backend", name,
                           NGX_HTTP_RATELIMIT_VAR_BACKEND),
    ngx_http_ratelimit_var("ratelimit_client", client, 0),
    ngx_http_null_variable
};


/* by ngx_http_ratelimit_status_e */

#define ngx_http_ratelimit_status_text(NAME, name)  ngx_string(#NAME),

static ngx_str_t  ngx_http_ratelimit_statuses[] = {
    ngx_null_string,
    ngx_http_ratelimit_each_status(ngx_http_ratelimit_status_text)
};


/* by ngx_http_ratelimit_backend_e */

ngx_str_t  ngx_http_ratelimit_backends[] = {
    ngx_string("shm"),
    ngx_string("redis"),
    ngx_string("sync"),
    ngx_string("local"),
    ngx_null_string
};


static ngx_int_t
ngx_http_ratelimit_status_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t                 *status;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_client_ctx(r);

    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    status = &ngx_http_ratelimit_statuses[ctx->status];
    ngx_http_ratelimit_set_value(v, status->data, status->len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_name_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t                 *name;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_decided_ctx(r);
    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = (data == NGX_HTTP_RATELIMIT_VAR_ZONE)
           ? &ctx->tightest->use->zone->name
           : (data == NGX_HTTP_RATELIMIT_VAR_NAME)
           ? &ctx->tightest->use->name
           : &ngx_http_ratelimit_backends[ctx->tightest->backend];

    ngx_http_ratelimit_set_value(v, name->data, name->len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_number_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char                    *p;
    uint64_t                   number;
    ratelimit_verdict_t       *verdict;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_decided_ctx(r);

    if (ctx == NULL
        || (data == NGX_HTTP_RATELIMIT_VAR_RETRY_AFTER
            && ctx->status != NGX_HTTP_RATELIMIT_REJECTED))
    {
        v->not_found = 1;
        return NGX_OK;
    }

    verdict = ctx->verdict;

    switch (data) {

    case NGX_HTTP_RATELIMIT_VAR_LIMIT:
        number = verdict->limit;
        break;

    case NGX_HTTP_RATELIMIT_VAR_REMAINING:
        number = verdict->remaining;
        break;

    case NGX_HTTP_RATELIMIT_VAR_RESET:
        number = ngx_http_ratelimit_seconds(
                                      ngx_http_ratelimit_reset_after(ctx));
        break;

    default: /* NGX_HTTP_RATELIMIT_VAR_RETRY_AFTER */
        number = ngx_http_ratelimit_retry_seconds(ctx);
        break;
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_set_value(v, p, ngx_sprintf(p, "%uL", number) - p);

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_client_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    struct sockaddr_in  *sin;

    switch (r->connection->sockaddr->sa_family) {

#if (NGX_HAVE_INET6)
    case AF_INET6:
        return ngx_http_ratelimit_client_inet6(r, v);
#endif

    case AF_INET:
        sin = (struct sockaddr_in *) r->connection->sockaddr;
        ngx_http_ratelimit_set_value(v, (u_char *) &sin->sin_addr,
                                     sizeof(in_addr_t));
        return NGX_OK;

    default:

        /* clients on a unix socket are one, as for $binary_remote_addr */

        ngx_http_ratelimit_set_value(v, r->connection->addr_text.data,
                                     r->connection->addr_text.len);
        return NGX_OK;
    }
}


#if (NGX_HAVE_INET6)

static ngx_int_t
ngx_http_ratelimit_client_inet6(ngx_http_request_t *r,
    ngx_http_variable_value_t *v)
{
    u_char                         *p;
    struct sockaddr_in6            *sin6;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    sin6 = (struct sockaddr_in6 *) r->connection->sockaddr;
    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    p = ngx_pnalloc(r->pool, sizeof(struct in6_addr));
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, sin6->sin6_addr.s6_addr, sizeof(struct in6_addr));

    ngx_http_ratelimit_set_value(v, p,
                        ngx_http_ratelimit_cut_inet6(p, rlcf->ipv6_prefix));

    return NGX_OK;
}


/*
 * As long as an address: it can't equal a shorter prefix or an IPv4 one, which
 * a mapped address is.
 */

size_t
ngx_http_ratelimit_cut_inet6(u_char *address, ngx_uint_t bits)
{
    struct in6_addr  mapped;

    ngx_memcpy(&mapped, address, sizeof(struct in6_addr));

    if (IN6_IS_ADDR_V4MAPPED(&mapped)) {
        ngx_memcpy(address, mapped.s6_addr + 12, sizeof(in_addr_t));
        return sizeof(in_addr_t);
    }

    if (bits % 8) {
        address[bits / 8] &= (u_char) (0xff00 >> bits % 8);
        bits += 8 - bits % 8;
    }

    ngx_memzero(address + bits / 8, sizeof(struct in6_addr) - bits / 8);

    return sizeof(struct in6_addr);
}

#endif


/* subrequests see what was decided about the request of the client */

static ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_decided_ctx(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_client_ctx(r);

    if (ctx == NULL || !ngx_http_ratelimit_has_figures(ctx)) {
        return NULL;
    }

    ngx_http_ratelimit_describe(ctx);

    return ctx;
}


static void
ngx_http_ratelimit_set_value(ngx_http_variable_value_t *v, u_char *data,
    size_t len)
{
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->len = len;
    v->data = data;
}


ngx_int_t
ngx_http_ratelimit_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_ratelimit_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}
