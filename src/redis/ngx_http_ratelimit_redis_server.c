
/*
 * A server: its addresses, the connections of a worker, and the reason why it
 * can't be used.  Addresses are found when the configuration is read, named by
 * a sentinel or a cluster, or looked up again by nginx's resolver.
 *
 * A server that a sentinel has named connects only after the sentinel has been
 * asked again; until then messages wait.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static ngx_http_ratelimit_redis_connection_t *
    ngx_http_ratelimit_redis_server_connect(
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_on_unreachable(void *data,
    const char *reason);
static void ngx_http_ratelimit_redis_on_error(void *data, const char *reason,
    ngx_str_t *said);
static void ngx_http_ratelimit_redis_on_close(void *data,
    ngx_http_ratelimit_redis_connection_t *connection);
static ngx_int_t ngx_http_ratelimit_redis_find_host(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_server_t *server);
static ngx_uint_t ngx_http_ratelimit_redis_is_name(ngx_str_t *host);
static ngx_int_t ngx_http_ratelimit_redis_parse_addr(ngx_str_t *text,
    ngx_addr_t *addr, ngx_sockaddr_t *sockaddr);
static void ngx_http_ratelimit_redis_on_resolve(ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_redis_copy_addrs(
    ngx_http_ratelimit_redis_server_t *server, ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_redis_compare_addrs(
    const void *one, const void *two);


ngx_http_ratelimit_redis_server_t *
ngx_http_ratelimit_redis_server_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_endpoint_t *endpoint)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_redis_server_t));
    if (server == NULL) {
        return NULL;
    }

    ngx_http_ratelimit_redis_server_init(server, redis, endpoint);

    if (endpoint == NULL) {
        server->nconnections = 0;
        return server;
    }

    server->connections = ngx_pcalloc(cf->pool, server->nconnections
                            * sizeof(ngx_http_ratelimit_redis_connection_t *));
    if (server->connections == NULL) {
        return NULL;
    }

    if (endpoint->path.len == 0
        && ngx_http_ratelimit_redis_find_host(cf, server) != NGX_OK)
    {
        return NULL;
    }

    return server;
}


void
ngx_http_ratelimit_redis_server_init(ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_endpoint_t *endpoint)
{
    if (endpoint != NULL) {
        server->endpoint = *endpoint;
    }

    server->redis = redis;
    server->nconnections = redis->connections;

    ngx_queue_init(&server->waiting);

    server->owner.data = server;
    server->owner.label = redis->name;
    server->owner.redis = redis;
    server->owner.login = &redis->login;
    server->owner.tls = redis->tls;
    server->owner.host = server->endpoint.host;
    server->owner.on_unreachable = ngx_http_ratelimit_redis_on_unreachable;
    server->owner.on_error = ngx_http_ratelimit_redis_on_error;
    server->owner.on_close = ngx_http_ratelimit_redis_on_close;
}


void
ngx_http_ratelimit_redis_server_open(ngx_http_ratelimit_redis_server_t *server)
{
    ngx_uint_t  i;

    /* if that fails, requests will try again */

    for (i = 0; i < server->nconnections; i++) {
        server->connections[i] = ngx_http_ratelimit_redis_server_connect(
                                                                      server);
    }
}


void
ngx_http_ratelimit_redis_server_close(
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_uint_t  i;

    server->on_trouble = NULL;

    for (i = 0; i < server->nconnections; i++) {
        if (server->connections[i] != NULL) {
            ngx_http_ratelimit_redis_disconnect(server->connections[i]);
        }
    }

    ngx_http_ratelimit_redis_tls_forget(&server->owner);
    ngx_http_ratelimit_redis_server_wake(server);
}


size_t
ngx_http_ratelimit_redis_label_len(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_endpoint_t *endpoint)
{
    return redis->name.len + endpoint->host.len + sizeof("/[]:65535") - 1;
}


u_char *
ngx_http_ratelimit_redis_write_label(u_char *p,
    ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_endpoint_t *endpoint)
{
    p = ngx_sprintf(p, "%V/", &redis->name);

    return ngx_http_ratelimit_redis_write_endpoint(p, endpoint);
}


u_char *
ngx_http_ratelimit_redis_write_endpoint(u_char *p,
    ngx_http_ratelimit_redis_endpoint_t *endpoint)
{
    ngx_str_t  *host;

    host = &endpoint->host;

    return ngx_sprintf(p, ngx_strlchr(host->data, host->data + host->len, ':')
                          ? "[%V]:%d" : "%V:%d",
                       host, (int) endpoint->port);
}


void
ngx_http_ratelimit_redis_server_retire(
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_uint_t                              i;
    ngx_http_ratelimit_redis_connection_t  *conn;

    ngx_http_ratelimit_redis_on_unreachable(server, NULL);

    for (i = 0; i < server->nconnections; i++) {
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
    if (server->naddrs > 1 || server->asked != NULL) {
        ngx_http_ratelimit_redis_server_retire(server);
    }
}


ngx_int_t
ngx_http_ratelimit_redis_server_send(ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_message_t *message)
{
    ngx_http_ratelimit_redis_connection_t  **conn;

    if (server->nconnections == 0) {
        ngx_http_ratelimit_redis_server_wait(server, message);
        ngx_http_ratelimit_redis_server_trouble(server);
        return NGX_OK;
    }

    if (++server->current >= server->nconnections) {
        server->current = 0;
    }

    conn = &server->connections[server->current];
    server->used = ngx_current_msec;

    if (*conn != NULL && !ngx_http_ratelimit_redis_connection_usable(*conn)) {
        ngx_http_ratelimit_redis_connection_retire(*conn);
    }

    if (*conn == NULL) {

        if (server->asked != NULL
            && (ngx_msec_int_t) (*server->asked - server->lost) < 0)
        {
            ngx_http_ratelimit_redis_server_wait(server, message);
            ngx_http_ratelimit_redis_server_trouble(server);
            return NGX_OK;
        }

        *conn = ngx_http_ratelimit_redis_server_connect(server);

        if (*conn == NULL) {
            return NGX_ERROR;
        }
    }

    return ngx_http_ratelimit_redis_connection_send(*conn, message);
}


void
ngx_http_ratelimit_redis_server_wait(ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_message_t *message)
{
    message->owner = &server->owner;
    message->connection = NULL;

    ngx_queue_insert_tail(&server->waiting, &message->queue);
}


/* a handler may send the message again, and it may wait again */

void
ngx_http_ratelimit_redis_server_wake(ngx_http_ratelimit_redis_server_t *server)
{
    ngx_queue_t                         *q, woken;
    ngx_http_ratelimit_redis_message_t  *message;

    if (ngx_queue_empty(&server->waiting)) {
        return;
    }

    ngx_queue_init(&woken);
    ngx_queue_add(&woken, &server->waiting);
    ngx_queue_init(&server->waiting);

    while (!ngx_queue_empty(&woken)) {
        q = ngx_queue_head(&woken);
        ngx_queue_remove(q);

        message = ngx_queue_data(q, ngx_http_ratelimit_redis_message_t, queue);

        message->handler(message, NGX_HTTP_RATELIMIT_REDIS_UNREAD, NULL);
    }
}


void
ngx_http_ratelimit_redis_server_read(
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_uint_t  i;

    for (i = 0; i < server->nconnections; i++) {
        if (server->connections[i] != NULL) {
            ngx_http_ratelimit_redis_connection_read(server->connections[i]);
        }
    }
}


static ngx_http_ratelimit_redis_connection_t *
ngx_http_ratelimit_redis_server_connect(
    ngx_http_ratelimit_redis_server_t *server)
{
    size_t                                len;
    u_char                                text[NGX_SOCKADDR_STRLEN + 1];
    ngx_addr_t                           *addr;
    ngx_http_ratelimit_redis_endpoint_t  *endpoint;

    endpoint = &server->endpoint;

    /* unless a better reason is known */

    ngx_http_ratelimit_redis_set_reason(server, NULL, "could not connect");

    if (endpoint->path.len) {
        return ngx_http_ratelimit_redis_connect(&server->owner,
                                                endpoint->path.data, 0);
    }

    ngx_http_ratelimit_redis_resolve(server);

    if (server->naddrs == 0) {
        ngx_http_ratelimit_redis_set_reason(server, &endpoint->host,
                                            "host not found");
        return NULL;
    }

    server->addr = server->owner.shared->addr;
    addr = &server->addrs[server->addr % server->naddrs];

    len = ngx_sock_ntop(addr->sockaddr, addr->socklen, text,
                        NGX_SOCKADDR_STRLEN, 0);
    text[len] = '\0';

    return ngx_http_ratelimit_redis_connect(&server->owner, text,
                                            endpoint->port);
}


/* all workers use the next address, unless they do already */

static void
ngx_http_ratelimit_redis_on_unreachable(void *data, const char *reason)
{
    ngx_http_ratelimit_redis_server_t  *server = data;

    (void) ngx_atomic_cmp_set(&server->owner.shared->addr, server->addr,
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

    for (i = 0; i < server->nconnections; i++) {
        if (server->connections[i] == connection) {
            server->connections[i] = NULL;
            server->lost = ngx_current_msec;

            ngx_http_ratelimit_redis_server_trouble(server);
        }
    }
}


void
ngx_http_ratelimit_redis_server_trouble(
    ngx_http_ratelimit_redis_server_t *server)
{
    if (server->on_trouble != NULL) {
        server->on_trouble(server);
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
 * As proxy_pass does it, while the configuration is read.  With a resolver a
 * name that is not known now may be found later.
 */

static ngx_int_t
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

    /* a resolver changes their order, workers share their numbers */

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
