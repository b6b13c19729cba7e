
/*
 * Connections to Redis: made when needed, greeted, used for one command after
 * the other without waiting, and given up.
 */


#include "store/ngx_http_ratelimit_redis_conn.h"


static ngx_http_ratelimit_redis_conn_t *ngx_http_ratelimit_redis_connect(
    ngx_http_ratelimit_redis_t *redis);
static redisAsyncContext *ngx_http_ratelimit_redis_dial(
    ngx_http_ratelimit_redis_t *redis);
static void ngx_http_ratelimit_redis_keepalive(
    ngx_http_ratelimit_redis_t *redis, redisAsyncContext *context);
static ngx_int_t ngx_http_ratelimit_redis_greet(
    ngx_http_ratelimit_redis_conn_t *conn);
static ngx_int_t ngx_http_ratelimit_redis_say(
    ngx_http_ratelimit_redis_conn_t *conn, int argc, ngx_str_t *words);

static ngx_uint_t ngx_http_ratelimit_redis_is_made(
    ngx_http_ratelimit_redis_conn_t *conn);
static void ngx_http_ratelimit_redis_made(
    ngx_http_ratelimit_redis_conn_t *conn);
static void ngx_http_ratelimit_redis_on_connect(
    const redisAsyncContext *context, int status);
static void ngx_http_ratelimit_redis_on_greeting(redisAsyncContext *context,
    void *reply, void *data);
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
ngx_http_ratelimit_redis_send(ngx_http_ratelimit_redis_command_t *command,
    u_char *data, size_t len)
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

    if (redisAsyncFormattedCommand((*conn)->context,
                                   ngx_http_ratelimit_redis_on_reply, command,
                                   (char *) data, len)
        != REDIS_OK)
    {
        return NGX_ERROR;
    }

    (*conn)->expected++;
    command->conn = *conn;

    return NGX_OK;
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

    context = ngx_http_ratelimit_redis_dial(redis);
    if (context == NULL) {
        return NULL;
    }

    conn = ngx_calloc(sizeof(ngx_http_ratelimit_redis_conn_t), ngx_cycle->log);

    if (conn == NULL) {
        redisAsyncFree(context);
        return NULL;
    }

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


/* what comes first, though nobody waits for the answers before going on */

static ngx_int_t
ngx_http_ratelimit_redis_greet(ngx_http_ratelimit_redis_conn_t *conn)
{
    int                          n;
    u_char                       db[NGX_INT_T_LEN];
    ngx_str_t                    words[3];
    ngx_http_ratelimit_redis_t  *redis;

    redis = conn->redis;

    if (redis->password.len) {
        n = 0;
        ngx_str_set(&words[n], "AUTH");
        n++;

        if (redis->user.len) {
            words[n++] = redis->user;
        }

        words[n++] = redis->password;

        if (ngx_http_ratelimit_redis_say(conn, n, words) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (redis->db == 0) {
        return NGX_OK;
    }

    ngx_str_set(&words[0], "SELECT");
    words[1].data = db;
    words[1].len = ngx_sprintf(db, "%ui", redis->db) - db;

    return ngx_http_ratelimit_redis_say(conn, 2, words);
}


static ngx_int_t
ngx_http_ratelimit_redis_say(ngx_http_ratelimit_redis_conn_t *conn, int argc,
    ngx_str_t *words)
{
    int          i;
    size_t       len[3];
    const char  *argv[3];

    for (i = 0; i < argc; i++) {
        argv[i] = (char *) words[i].data;
        len[i] = words[i].len;
    }

    if (redisAsyncCommandArgv(conn->context,
                              ngx_http_ratelimit_redis_on_greeting, conn,
                              argc, argv, len)
        != REDIS_OK)
    {
        return NGX_ERROR;
    }

    conn->expected++;
    conn->greetings++;

    return NGX_OK;
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


/* there is a time for connecting and for greetings */

static ngx_uint_t
ngx_http_ratelimit_redis_is_made(ngx_http_ratelimit_redis_conn_t *conn)
{
    return !conn->connection->write->timer_set;
}


static void
ngx_http_ratelimit_redis_made(ngx_http_ratelimit_redis_conn_t *conn)
{
    ngx_event_t  *wev;

    wev = conn->connection->write;

    if (conn->greetings == 0 && wev->timer_set) {
        ngx_del_timer(wev);
    }
}


static void
ngx_http_ratelimit_redis_on_greeting(redisAsyncContext *context, void *reply,
    void *data)
{
    redisReply                       *r = reply;
    ngx_http_ratelimit_redis_conn_t  *conn = data;

    if (r == NULL) {
        return;
    }

    if (r->type == REDIS_REPLY_STATUS) {
        conn->greetings--;
        ngx_http_ratelimit_redis_made(conn);
        return;
    }

    if (r->type == REDIS_REPLY_ERROR) {
        ngx_http_ratelimit_redis_reason(conn->redis, "it answers", r->str,
                                        r->len);
    }

    ngx_http_ratelimit_redis_hang_up(conn);
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

        /* hiredis takes a reply that the reader refuses for lack of memory */

        if (context->err) {
            ngx_http_ratelimit_redis_reason(command->redis,
                                            context->err == REDIS_ERR_OOM
                                            ? "its answer makes no sense"
                                            : context->errstr,
                                            NULL, 0);
        }

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
