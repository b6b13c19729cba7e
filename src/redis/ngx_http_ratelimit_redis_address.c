
/*
 * The addresses of a server: found when the configuration is read, told by a
 * sentinel or a cluster, or looked up again by nginx's resolver.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static ngx_uint_t ngx_http_ratelimit_redis_is_name(ngx_str_t *host);
static ngx_int_t ngx_http_ratelimit_redis_parse_addr(ngx_str_t *text,
    ngx_addr_t *addr, ngx_sockaddr_t *sockaddr);
static void ngx_http_ratelimit_redis_on_resolve(ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_redis_copy_addrs(
    ngx_http_ratelimit_redis_server_t *server, ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_redis_compare_addrs(
    const void *one, const void *two);


/*
 * As proxy_pass does it, while the configuration is read.  With a resolver a
 * name that is not known now may be found later.
 */

ngx_int_t
ngx_http_ratelimit_redis_find_host(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_url_t                             u;
    ngx_int_t                             rc;
    ngx_http_ratelimit_redis_t           *redis;
    ngx_http_ratelimit_redis_endpoint_t  *endpoint;

    redis = server->redis;
    endpoint = &server->endpoint;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.host = endpoint->host;
    u.port = endpoint->port;

    rc = ngx_inet_resolve_host(cf->pool, &u);

    server->addrs = u.addrs;
    server->naddrs = u.naddrs;

    server->named = redis->resolver != NULL
                    && ngx_http_ratelimit_redis_is_name(&endpoint->host);

    if (rc == NGX_OK) {
        return NGX_OK;
    }

    ngx_log_error((server->named ? NGX_LOG_WARN : NGX_LOG_EMERG), cf->log, 0,
                  "%s in \"%V\" of the \"ratelimit_redis\" directive "
                  "in %V:%ui", u.err ? u.err : "host not found",
                  &endpoint->host, &redis->file, redis->line);

    return server->named ? NGX_OK : NGX_ERROR;
}


void
ngx_http_ratelimit_redis_find_resolver(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->resolver == NULL || clcf->resolver->connections.nelts == 0) {
        return;
    }

    redis->resolver = clcf->resolver;
    redis->resolver_timeout = (clcf->resolver_timeout == NGX_CONF_UNSET_MSEC)
                              ? 30000 : clcf->resolver_timeout;
}


/* the host of a server that was found, or the address that it had then */

void
ngx_http_ratelimit_redis_set_host(ngx_http_ratelimit_redis_server_t *server,
    ngx_str_t *address)
{
    ngx_str_t   *host;
    ngx_addr_t   addr;

    host = &server->endpoint.host;

    server->named = server->redis->resolver != NULL
                    && ngx_http_ratelimit_redis_is_name(host);

    if (ngx_http_ratelimit_redis_parse_addr(host, &addr, &server->sockaddr)
        != NGX_OK
        && ngx_http_ratelimit_redis_parse_addr(address, &addr,
                                               &server->sockaddr)
           != NGX_OK)
    {
        return;
    }

    server->found = addr;
    server->addrs = &server->found;
    server->naddrs = 1;
}


/* without a pool, as servers come and go */

static ngx_int_t
ngx_http_ratelimit_redis_parse_addr(ngx_str_t *text, ngx_addr_t *addr,
    ngx_sockaddr_t *sockaddr)
{
    in_addr_t  inaddr;

    ngx_memzero(sockaddr, sizeof(ngx_sockaddr_t));

    addr->sockaddr = &sockaddr->sockaddr;

    inaddr = ngx_inet_addr(text->data, text->len);

    if (inaddr != INADDR_NONE) {
        sockaddr->sockaddr_in.sin_family = AF_INET;
        sockaddr->sockaddr_in.sin_addr.s_addr = inaddr;
        addr->socklen = sizeof(struct sockaddr_in);
        return NGX_OK;
    }

#if (NGX_HAVE_INET6)
    if (ngx_inet6_addr(text->data, text->len,
                       sockaddr->sockaddr_in6.sin6_addr.s6_addr)
        == NGX_OK)
    {
        sockaddr->sockaddr_in6.sin6_family = AF_INET6;
        addr->socklen = sizeof(struct sockaddr_in6);
        return NGX_OK;
    }
#endif

    return NGX_ERROR;
}


/* neither an address nor this machine, which a resolver may not know */

static ngx_uint_t
ngx_http_ratelimit_redis_is_name(ngx_str_t *host)
{
    return ngx_inet_addr(host->data, host->len) == INADDR_NONE
           && ngx_strlchr(host->data, host->data + host->len, ':') == NULL
           && ngx_strcasecmp(host->data, (u_char *) "localhost") != 0;
}


/*
 * Nothing waits for the result: the next connection uses the new addresses, and
 * this one those that are known.
 */

void
ngx_http_ratelimit_redis_resolve(ngx_http_ratelimit_redis_server_t *server)
{
    ngx_resolver_ctx_t  *ctx;

    if (!server->named || server->resolving || ngx_exiting) {
        return;
    }

    ctx = ngx_resolve_start(server->redis->resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        return;
    }

    ctx->name = server->endpoint.host;
    ctx->handler = ngx_http_ratelimit_redis_on_resolve;
    ctx->data = server;
    ctx->timeout = server->redis->resolver_timeout;
    ctx->cancelable = 1;

    server->resolving = 1;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        server->resolving = 0;
    }
}


static void
ngx_http_ratelimit_redis_on_resolve(ngx_resolver_ctx_t *ctx)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = ctx->data;
    server->resolving = 0;

    if (ctx->state) {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "ratelimit: host \"%V\" of redis \"%V\" "
                      "could not be resolved (%i: %s)",
                      &ctx->name, &server->owner.label, ctx->state,
                      ngx_resolver_strerror(ctx->state));

    } else if (ngx_http_ratelimit_redis_copy_addrs(server, ctx) != NGX_OK) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "ratelimit: no memory for the addresses of redis \"%V\"",
                      &server->owner.label);
    }

    ngx_resolve_name_done(ctx);
}


/* the former addresses stay in place until the new ones are */

static ngx_int_t
ngx_http_ratelimit_redis_copy_addrs(ngx_http_ratelimit_redis_server_t *server,
    ngx_resolver_ctx_t *ctx)
{
    u_char      *p;
    ngx_uint_t   i;
    ngx_addr_t  *addrs;

    addrs = ngx_alloc(ctx->naddrs * (sizeof(ngx_addr_t)
                                     + sizeof(ngx_sockaddr_t)),
                      ngx_cycle->log);
    if (addrs == NULL) {
        return NGX_ERROR;
    }

    p = (u_char *) (addrs + ctx->naddrs);

    for (i = 0; i < ctx->naddrs; i++) {
        ngx_memcpy(p, ctx->addrs[i].sockaddr, ctx->addrs[i].socklen);

        addrs[i].sockaddr = (struct sockaddr *) p;
        addrs[i].socklen = ctx->addrs[i].socklen;
        ngx_str_null(&addrs[i].name);

        p += sizeof(ngx_sockaddr_t);
    }

    /* a resolver turns them round, workers speak of them by number */

    ngx_sort(addrs, ctx->naddrs, sizeof(ngx_addr_t),
             ngx_http_ratelimit_redis_compare_addrs);

    if (server->resolved != NULL) {
        ngx_free(server->resolved);
    }

    server->resolved = addrs;
    server->addrs = addrs;
    server->naddrs = ctx->naddrs;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_redis_compare_addrs(const void *one, const void *two)
{
    const ngx_addr_t  *first = one;
    const ngx_addr_t  *second = two;

    if (first->socklen != second->socklen) {
        return (ngx_int_t) first->socklen - (ngx_int_t) second->socklen;
    }

    return ngx_memcmp(first->sockaddr, second->sockaddr, first->socklen);
}
