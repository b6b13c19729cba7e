
/*
 * Connections to Redis: made when needed, greeted, used for one command after
 * the other without waiting, and given up.
 */


#include "redis/ngx_http_ratelimit_redis_conn.h"


static ngx_http_ratelimit_redis_conn_t *ngx_http_ratelimit_redis_connect(
    ngx_http_ratelimit_redis_t *redis);
static redisAsyncContext *ngx_http_ratelimit_redis_dial(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_keepalive(
    ngx_http_ratelimit_redis_t *redis, redisAsyncContext *context);
static ngx_int_t ngx_http_ratelimit_redis_transmit(
    ngx_http_ratelimit_redis_command_t *command);
static void ngx_http_ratelimit_redis_explain(ngx_http_ratelimit_redis_t *redis,
    const redisAsyncContext *context);
static void ngx_http_ratelimit_redis_on_connect(
    const redisAsyncContext *context, int status);
static void ngx_http_ratelimit_redis_on_reply(redisAsyncContext *context,
    void *reply, void *data);


ngx_int_t
ngx_http_ratelimit_redis_open(ngx_http_ratelimit_redis_t *redis,
    ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    redis->conns = ngx_pcalloc(cycle->pool,
                               redis->connections
                               * sizeof(ngx_http_ratelimit_redis_conn_t *));
    if (redis->conns == NULL) {
        return NGX_ERROR;
    }

    /* if that fails, requests will try again */

    for (i = 0; i < redis->connections; i++) {
        redis->conns[i] = ngx_http_ratelimit_redis_connect(redis);
    }

    return NGX_OK;
}


void
ngx_http_ratelimit_redis_close(ngx_http_ratelimit_redis_t *redis)
{
    ngx_uint_t  i;

    for (i = 0; i < redis->connections; i++) {
        if (redis->conns[i] != NULL) {
            ngx_http_ratelimit_redis_hang_up(redis->conns[i]);
        }
    }
}


void
ngx_http_ratelimit_redis_give_up(ngx_http_ratelimit_redis_t *redis)
{
    ngx_uint_t                        i;
    ngx_http_ratelimit_redis_conn_t  *conn;

    for (i = 0; i < redis->connections; i++) {
        conn = redis->conns[i];

        if (conn != NULL && ngx_http_ratelimit_redis_is_made(conn)) {
            ngx_http_ratelimit_redis_hang_up(conn);
        }
    }
}


ngx_int_t
ngx_http_ratelimit_redis_send(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_redis_t        *redis;
    ngx_http_ratelimit_redis_conn_t  **conn;

    redis = command->redis;

    if (++redis->conn >= redis->connections) {
        redis->conn = 0;
    }

    conn = &redis->conns[redis->conn];

    if (*conn == NULL) {
        *conn = ngx_http_ratelimit_redis_connect(redis);

        if (*conn == NULL) {
            return NGX_ERROR;
        }
    }

    command->conn = *conn;

    /* nothing is to be done by who is not known yet, or in another database */

    if ((*conn)->greetings) {
        ngx_queue_insert_tail(&(*conn)->held, &command->held);
        return NGX_OK;
    }

    return ngx_http_ratelimit_redis_transmit(command);
}


static ngx_int_t
ngx_http_ratelimit_redis_transmit(ngx_http_ratelimit_redis_command_t *command)
{
    int      rc;
    u_char  *data;
    size_t   len;

    data = command->data;
    len = command->last - command->data;

    if (command->loaded) {
        data = ngx_http_ratelimit_redis_create_eval(command, &len);
        if (data == NULL) {
            return NGX_ERROR;
        }
    }

    rc = redisAsyncFormattedCommand(command->conn->context,
                                    ngx_http_ratelimit_redis_on_reply, command,
                                    (char *) data, len);

    if (command->loaded) {
        ngx_free(data);
    }

    if (rc != REDIS_OK) {
        return NGX_ERROR;
    }

    command->conn->expected++;

    return NGX_OK;
}


/* what nobody waits for any longer was never sent, and never will be */

void
ngx_http_ratelimit_redis_release(ngx_http_ratelimit_redis_conn_t *conn,
    ngx_uint_t lost)
{
    ngx_queue_t                         *q;
    ngx_http_ratelimit_redis_command_t  *command;

    if (lost && !ngx_queue_empty(&conn->held)) {
        ngx_http_ratelimit_redis_explain(conn->redis, conn->context);
    }

    while (!ngx_queue_empty(&conn->held)) {
        q = ngx_queue_head(&conn->held);
        ngx_queue_remove(q);

        command = ngx_queue_data(q, ngx_http_ratelimit_redis_command_t, held);

        if (lost || command->expired
            || ngx_http_ratelimit_redis_transmit(command) != NGX_OK)
        {
            ngx_http_ratelimit_redis_reply(command,
                                           NGX_HTTP_RATELIMIT_REDIS_LOST,
                                           NULL);
        }
    }
}


void
ngx_http_ratelimit_redis_poll(ngx_http_ratelimit_redis_t *redis)
{
    ngx_uint_t                        i;
    ngx_http_ratelimit_redis_conn_t  *conn;

    for (i = 0; i < redis->connections; i++) {
        conn = redis->conns[i];

        if (conn != NULL && conn->connected) {
            redisAsyncHandleRead(conn->context);
        }
    }
}


void
ngx_http_ratelimit_redis_expire(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_redis_conn_t  *conn;

    conn = command->conn;
    conn->missed++;

    command->expired = 1;

    if (conn->missed >= RATELIMIT_BREAKER_FAILURES
        && ngx_http_ratelimit_redis_is_made(conn))
    {
        ngx_http_ratelimit_redis_hang_up(conn);
    }
}


static ngx_http_ratelimit_redis_conn_t *
ngx_http_ratelimit_redis_connect(ngx_http_ratelimit_redis_t *redis)
{
    redisAsyncContext                *context;
    ngx_http_ratelimit_redis_conn_t  *conn;

    /* unless a better reason is known */

    ngx_http_ratelimit_redis_reason(redis, "no connection can be made", NULL,
                                    0);

    context = ngx_http_ratelimit_redis_dial(redis);
    if (context == NULL) {
        return NULL;
    }

    conn = ngx_calloc(sizeof(ngx_http_ratelimit_redis_conn_t), ngx_cycle->log);

    if (conn == NULL) {
        redisAsyncFree(context);
        return NULL;
    }

    ngx_queue_init(&conn->held);

    conn->redis = redis;
    conn->context = context;

    context->data = conn;

    context->c.reader->fn = &ngx_http_ratelimit_redis_reader;
    context->c.reader->privdata = conn;

    /* from here on the cleanup frees the connection */

    if (ngx_http_ratelimit_redis_attach(conn) != NGX_OK
        || redisAsyncSetConnectCallback(context,
                                        ngx_http_ratelimit_redis_on_connect)
           != REDIS_OK
        || ngx_http_ratelimit_redis_greet(conn) != NGX_OK)
    {
        redisAsyncFree(context);
        return NULL;
    }

    return conn;
}


/* the connection is not there yet, only on its way */

static redisAsyncContext *
ngx_http_ratelimit_redis_dial(ngx_http_ratelimit_redis_t *redis)
{
    size_t              len;
    u_char              text[NGX_SOCKADDR_STRLEN + 1];
    ngx_addr_t         *addr;
    redisAsyncContext  *context;

    if (redis->path.len) {
        context = redisAsyncConnectUnix((char *) redis->path.data);

    } else {
        ngx_http_ratelimit_redis_resolve(redis);

        if (redis->naddrs == 0) {
            ngx_http_ratelimit_redis_reason(redis, "host not found",
                                            (char *) redis->host.data,
                                            redis->host.len);
            return NULL;
        }

        addr = &redis->addrs[redis->addr % redis->naddrs];

        len = ngx_sock_ntop(addr->sockaddr, addr->socklen, text,
                            NGX_SOCKADDR_STRLEN, 0);
        text[len] = '\0';

        context = redisAsyncConnect((char *) text, redis->port);
    }

    if (context == NULL) {
        return NULL;
    }

    if (context->err) {
        ngx_http_ratelimit_redis_reason(redis, context->errstr, NULL, 0);
        redis->addr++;
        redisAsyncFree(context);
        return NULL;
    }

    ngx_http_ratelimit_redis_keepalive(redis, context);

    return context;
}


/* as often as the system says, so that no firewall forgets an idle one */

static void
ngx_http_ratelimit_redis_keepalive(ngx_http_ratelimit_redis_t *redis,
    redisAsyncContext *context)
{
    int  on;

    if (redis->path.len) {
        return;
    }

    on = 1;

    if (setsockopt(context->c.fd, SOL_SOCKET, SO_KEEPALIVE,
                   (const void *) &on, sizeof(int))
        == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_socket_errno,
                      "setsockopt(SO_KEEPALIVE) for redis \"%V\" failed",
                      &redis->name);
    }
}


/* others may take its place at once, though it may be freed a bit later */

void
ngx_http_ratelimit_redis_hang_up(ngx_http_ratelimit_redis_conn_t *conn)
{
    ngx_http_ratelimit_redis_lost(conn);

    redisAsyncFree(conn->context);
}


void
ngx_http_ratelimit_redis_lost(ngx_http_ratelimit_redis_conn_t *conn)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_redis_t  *redis;

    redis = conn->redis;

    for (i = 0; i < redis->connections; i++) {
        if (redis->conns[i] == conn) {
            redis->conns[i] = NULL;
        }
    }
}


static void
ngx_http_ratelimit_redis_on_connect(const redisAsyncContext *context,
    int status)
{
    ngx_http_ratelimit_redis_conn_t  *conn;

    conn = context->data;

    if (status != REDIS_OK) {
        ngx_http_ratelimit_redis_reason(conn->redis, context->errstr, NULL, 0);
        conn->redis->addr++;
        return;
    }

    conn->connected = 1;
    ngx_http_ratelimit_redis_made(conn);
}


/* hiredis takes a reply that the reader refuses for lack of memory */

static void
ngx_http_ratelimit_redis_explain(ngx_http_ratelimit_redis_t *redis,
    const redisAsyncContext *context)
{
    if (context->err) {
        ngx_http_ratelimit_redis_reason(redis,
                                        context->err == REDIS_ERR_OOM
                                        ? "its answer makes no sense"
                                        : context->errstr,
                                        NULL, 0);
    }
}


static void
ngx_http_ratelimit_redis_on_reply(redisAsyncContext *context, void *reply,
    void *data)
{
    redisReply                          *r = reply;
    ngx_http_ratelimit_redis_command_t  *command = data;

    ngx_str_t                         text;
    ngx_http_ratelimit_redis_reply_e  type;

    ngx_str_null(&text);

    if (r == NULL) {

        if (context->data != NULL) {
            ngx_http_ratelimit_redis_lost(context->data);
        }

        ngx_http_ratelimit_redis_explain(command->redis, context);

        type = NGX_HTTP_RATELIMIT_REDIS_LOST;

    } else {
        text.data = (u_char *) r->str;
        text.len = r->len;

        type = (r->type == REDIS_REPLY_STRING) ? NGX_HTTP_RATELIMIT_REDIS_STRING
               : (r->type == REDIS_REPLY_ERROR) ? NGX_HTTP_RATELIMIT_REDIS_ERROR
               : NGX_HTTP_RATELIMIT_REDIS_OTHER;
    }

    ngx_http_ratelimit_redis_reply(command, type, &text);
}
