
/*
 * A server: its addresses, the connections of a worker, and the reason why it
 * can't be used.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static ngx_int_t ngx_http_ratelimit_redis_find_host(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_server_t *server);
static ngx_uint_t ngx_http_ratelimit_redis_is_name(ngx_str_t *host);

static ngx_http_ratelimit_redis_connection_t *
    ngx_http_ratelimit_redis_server_connect(
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_on_unreachable(void *data,
    const char *reason);
static void ngx_http_ratelimit_redis_on_error(void *data, const char *reason,
    ngx_str_t *said);
static void ngx_http_ratelimit_redis_on_close(void *data,
    ngx_http_ratelimit_redis_connection_t *connection);

static void ngx_http_ratelimit_redis_resolve(
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_on_resolve(ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_redis_copy_addrs(
    ngx_http_ratelimit_redis_server_t *server, ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_redis_compare_addrs(
    const void *one, const void *two);


ngx_http_ratelimit_redis_server_t *
ngx_http_ratelimit_redis_server_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_redis_server_t));
    if (server == NULL) {
        return NULL;
    }

    server->redis = redis;

    server->owner.data = server;
    server->owner.on_unreachable = ngx_http_ratelimit_redis_on_unreachable;
    server->owner.on_error = ngx_http_ratelimit_redis_on_error;
    server->owner.on_close = ngx_http_ratelimit_redis_on_close;

    if (redis->path.len == 0
        && ngx_http_ratelimit_redis_find_host(cf, server) != NGX_OK)
    {
        return NULL;
    }

    return server;
}


/*
 * As proxy_pass does it, while the configuration is read.  With a resolver a
 * name that is not known now may be found later.
 */

static ngx_int_t
ngx_http_ratelimit_redis_find_host(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_url_t                    u;
    ngx_int_t                    rc;
    ngx_http_core_loc_conf_t    *clcf;
    ngx_http_ratelimit_redis_t  *redis;

    redis = server->redis;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.host = redis->host;
    u.port = redis->port;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    rc = ngx_inet_resolve_host(cf->pool, &u);

    server->addrs = u.addrs;
    server->naddrs = u.naddrs;

    if (ngx_http_ratelimit_redis_is_name(&redis->host)
        && clcf->resolver != NULL && clcf->resolver->connections.nelts)
    {
        server->resolver = clcf->resolver;
        server->resolver_timeout = (clcf->resolver_timeout
                                    == NGX_CONF_UNSET_MSEC)
                                   ? 30000 : clcf->resolver_timeout;
    }

    if (rc == NGX_OK) {
        return NGX_OK;
    }

    ngx_log_error((server->resolver ? NGX_LOG_WARN : NGX_LOG_EMERG), cf->log, 0,
                  "%s in \"%V\" of the \"ratelimit_redis\" directive "
                  "in %V:%ui", u.err ? u.err : "host not found", &redis->host,
                  &redis->file, redis->line);

    return server->resolver ? NGX_OK : NGX_ERROR;
}


/* neither an address nor this machine, which a resolver may not know */

static ngx_uint_t
ngx_http_ratelimit_redis_is_name(ngx_str_t *host)
{
    return ngx_inet_addr(host->data, host->len) == INADDR_NONE
           && ngx_strlchr(host->data, host->data + host->len, ':') == NULL
           && ngx_strcasecmp(host->data, (u_char *) "localhost") != 0;
}


ngx_int_t
ngx_http_ratelimit_redis_server_open(ngx_http_ratelimit_redis_server_t *server,
    ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    server->connections = ngx_pcalloc(cycle->pool,
                            server->redis->connections
                            * sizeof(ngx_http_ratelimit_redis_connection_t *));
    if (server->connections == NULL) {
        return NGX_ERROR;
    }

    /* if that fails, requests will try again */

    for (i = 0; i < server->redis->connections; i++) {
        server->connections[i] = ngx_http_ratelimit_redis_server_connect(
                                                                      server);
    }

    return NGX_OK;
}


void
ngx_http_ratelimit_redis_server_close(
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_uint_t  i;

    for (i = 0; i < server->redis->connections; i++) {
        if (server->connections[i] != NULL) {
            ngx_http_ratelimit_redis_disconnect(server->connections[i]);
        }
    }
}


void
ngx_http_ratelimit_redis_server_retire(
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_uint_t                              i;
    ngx_http_ratelimit_redis_connection_t  *conn;

    ngx_http_ratelimit_redis_on_unreachable(server, NULL);

    for (i = 0; i < server->redis->connections; i++) {
        conn = server->connections[i];

        if (conn != NULL && ngx_http_ratelimit_redis_connection_ready(conn)) {
            ngx_http_ratelimit_redis_connection_retire(conn);
        }
    }
}


void
ngx_http_ratelimit_redis_server_next_address(
    ngx_http_ratelimit_redis_server_t *server)
{
    if (server->naddrs > 1) {
        ngx_http_ratelimit_redis_server_retire(server);
    }
}


ngx_int_t
ngx_http_ratelimit_redis_server_send(ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_message_t *message)
{
    ngx_http_ratelimit_redis_connection_t  **conn;

    if (++server->current >= server->redis->connections) {
        server->current = 0;
    }

    conn = &server->connections[server->current];

    if (*conn != NULL && !ngx_http_ratelimit_redis_connection_usable(*conn)) {
        ngx_http_ratelimit_redis_connection_retire(*conn);
    }

    if (*conn == NULL) {
        *conn = ngx_http_ratelimit_redis_server_connect(server);

        if (*conn == NULL) {
            return NGX_ERROR;
        }
    }

    return ngx_http_ratelimit_redis_connection_send(*conn, message);
}


void
ngx_http_ratelimit_redis_server_read(
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_uint_t  i;

    for (i = 0; i < server->redis->connections; i++) {
        if (server->connections[i] != NULL) {
            ngx_http_ratelimit_redis_connection_read(server->connections[i]);
        }
    }
}


static ngx_http_ratelimit_redis_connection_t *
ngx_http_ratelimit_redis_server_connect(
    ngx_http_ratelimit_redis_server_t *server)
{
    size_t                       len;
    u_char                       text[NGX_SOCKADDR_STRLEN + 1];
    ngx_addr_t                  *addr;
    ngx_http_ratelimit_redis_t  *redis;

    redis = server->redis;

    /* unless a better reason is known */

    ngx_http_ratelimit_redis_set_reason(server, NULL, "could not connect");

    if (redis->path.len) {
        return ngx_http_ratelimit_redis_connect(redis, redis->path.data, 0,
                                                &server->owner);
    }

    ngx_http_ratelimit_redis_resolve(server);

    if (server->naddrs == 0) {
        ngx_http_ratelimit_redis_set_reason(server, &redis->host,
                                            "host not found");
        return NULL;
    }

    server->addr = redis->shared->addr;
    addr = &server->addrs[server->addr % server->naddrs];

    len = ngx_sock_ntop(addr->sockaddr, addr->socklen, text,
                        NGX_SOCKADDR_STRLEN, 0);
    text[len] = '\0';

    return ngx_http_ratelimit_redis_connect(redis, text, redis->port,
                                            &server->owner);
}


/* all workers use the next address, unless they do already */

static void
ngx_http_ratelimit_redis_on_unreachable(void *data, const char *reason)
{
    ngx_http_ratelimit_redis_server_t  *server = data;

    (void) ngx_atomic_cmp_set(&server->redis->shared->addr, server->addr,
                              server->addr + 1);

    if (reason != NULL) {
        ngx_http_ratelimit_redis_set_reason(server, NULL, "%s", reason);
    }
}


static void
ngx_http_ratelimit_redis_on_error(void *data, const char *reason,
    ngx_str_t *said)
{
    ngx_http_ratelimit_redis_set_reason(data, said, "%s", reason);
}


static void
ngx_http_ratelimit_redis_on_close(void *data,
    ngx_http_ratelimit_redis_connection_t *connection)
{
    ngx_http_ratelimit_redis_server_t  *server = data;

    ngx_uint_t  i;

    for (i = 0; i < server->redis->connections; i++) {
        if (server->connections[i] == connection) {
            server->connections[i] = NULL;
        }
    }
}


/*
 * Of what the server said, only printable characters are logged, and nothing
 * behind a comma: there Redis repeats what it was sent, a password or a key.
 */

void
ngx_http_ratelimit_redis_set_reason(ngx_http_ratelimit_redis_server_t *server,
    ngx_str_t *said, const char *fmt, ...)
{
    u_char   c, *p, *last;
    size_t   i;
    va_list  args;

    p = server->reason;
    last = server->reason + NGX_HTTP_RATELIMIT_REDIS_REASON;

    va_start(args, fmt);
    p = ngx_vslprintf(p, last, fmt, args);
    va_end(args);

    if (said != NULL) {
        p = ngx_slprintf(p, last, " \"");

        for (i = 0; i < said->len && p < last - 1; i++) {
            c = said->data[i];

            if (c == ',') {
                break;
            }

            *p++ = (c < 0x20 || c > 0x7e) ? '?' : c;
        }

        p = ngx_slprintf(p, last, "\"");
    }

    server->reason_len = p - server->reason;
}


/*
 * Nothing waits for the result: the next connection uses the new addresses, and
 * this one those that are known.
 */

static void
ngx_http_ratelimit_redis_resolve(ngx_http_ratelimit_redis_server_t *server)
{
    ngx_resolver_ctx_t  *ctx;

    if (server->resolver == NULL || server->resolving || ngx_exiting) {
        return;
    }

    ctx = ngx_resolve_start(server->resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        return;
    }

    ctx->name = server->redis->host;
    ctx->handler = ngx_http_ratelimit_redis_on_resolve;
    ctx->data = server;
    ctx->timeout = server->resolver_timeout;
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
                      &ctx->name, &server->redis->name, ctx->state,
                      ngx_resolver_strerror(ctx->state));

    } else if (ngx_http_ratelimit_redis_copy_addrs(server, ctx) != NGX_OK) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "ratelimit: no memory for the addresses of redis \"%V\"",
                      &server->redis->name);
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
