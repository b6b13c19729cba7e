
/*
 * A server: the connections of a worker, and the reason why it can't be used.
 * One that was told by a sentinel connects only after the sentinel has been
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
    ngx_str_t  *host;

    host = &endpoint->host;

    if (ngx_strlchr(host->data, host->data + host->len, ':') != NULL) {
        return ngx_sprintf(p, "%V/[%V]:%d", &redis->name, host,
                           (int) endpoint->port);
    }

    return ngx_sprintf(p, "%V/%V:%d", &redis->name, host,
                       (int) endpoint->port);
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
