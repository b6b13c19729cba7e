
/*
 * A connection to Redis: hiredis on nginx's event loop.
 *
 * Messages are pipelined.  Those that are sent in one turn of the event loop
 * are written in large batches, the last one at the end of the turn.  AUTH and
 * SELECT come first, and messages are kept until both have succeeded; there is
 * one timeout for this and for connecting.
 *
 * A server is not trusted: a reply of a type that no command of ours has, or
 * one without a command, ends the connection; and no memory is allocated for a
 * reply.
 */


#include "redis/ngx_http_ratelimit_redis.h"

#include <hiredis/hiredis.h>
#include <hiredis/async.h>


/* messages that are worth a system call */
#define NGX_HTTP_RATELIMIT_REDIS_BATCH  16


struct ngx_http_ratelimit_redis_connection_s {
    ngx_http_ratelimit_redis_t     *redis;    /* settings */
    ngx_http_ratelimit_redis_owner_t  *owner;
    redisAsyncContext              *context;
    ngx_connection_t               *connection;
    ngx_queue_t                     messages; /* until the handshake is over */
    ngx_uint_t                      handshake;  /* replies that are missing */
    ngx_uint_t                      expected; /* replies, all together */
    ngx_uint_t                      expired;  /* messages since the last one */
    ngx_uint_t                      batch;    /* messages not written yet */
    unsigned                        connected:1;
    unsigned                        ready:1;
    unsigned                        writing:1;
    redisReply                      reply;    /* the current one */
    char                            text[NGX_HTTP_RATELIMIT_REDIS_REPLY];
};


static redisAsyncContext *ngx_http_ratelimit_redis_create_context(
    ngx_http_ratelimit_redis_t *redis, u_char *address, in_port_t port,
    ngx_http_ratelimit_redis_owner_t *owner);
static ngx_int_t ngx_http_ratelimit_redis_add_events(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_int_t ngx_http_ratelimit_redis_send_handshake(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_int_t ngx_http_ratelimit_redis_send_words(
    ngx_http_ratelimit_redis_connection_t *conn, int argc, ngx_str_t *words);
static ngx_int_t ngx_http_ratelimit_redis_send_message(
    ngx_http_ratelimit_redis_connection_t *conn,
    ngx_http_ratelimit_redis_message_t *message);
static void ngx_http_ratelimit_redis_check_ready(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_lose_message(
    ngx_http_ratelimit_redis_message_t *message,
    const redisAsyncContext *context);

static void ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev);
static void ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev);
static void ngx_http_ratelimit_redis_del_events(ngx_connection_t *c);

static void ngx_http_ratelimit_redis_on_connect(
    const redisAsyncContext *context, int status);
static void ngx_http_ratelimit_redis_on_handshake(redisAsyncContext *context,
    void *reply, void *data);
static void ngx_http_ratelimit_redis_on_reply(redisAsyncContext *context,
    void *reply, void *data);

static void ngx_http_ratelimit_redis_keep_read(void *data);
static void ngx_http_ratelimit_redis_add_write(void *data);
static void ngx_http_ratelimit_redis_del_write(void *data);
static void ngx_http_ratelimit_redis_event_failed(
    ngx_http_ratelimit_redis_connection_t *conn, const char *what);
static void ngx_http_ratelimit_redis_cleanup(void *data);

static void *ngx_http_ratelimit_redis_read_reply(const redisReadTask *task);
static void *ngx_http_ratelimit_redis_read_string(const redisReadTask *task,
    char *text, size_t len);
static void *ngx_http_ratelimit_redis_read_integer(const redisReadTask *task,
    long long number);
static void ngx_http_ratelimit_redis_free_reply(void *reply);

#if (HIREDIS_MAJOR >= 1)
static void *ngx_http_ratelimit_redis_read_array(const redisReadTask *task,
    size_t elements);
static void *ngx_http_ratelimit_redis_read_double(const redisReadTask *task,
    double number, char *text, size_t len);
static void *ngx_http_ratelimit_redis_read_bool(const redisReadTask *task,
    int flag);
#else
static void *ngx_http_ratelimit_redis_read_array(const redisReadTask *task,
    int elements);
#endif


static redisReplyObjectFunctions  ngx_http_ratelimit_redis_reader = {
    .createString = ngx_http_ratelimit_redis_read_string,
    .createArray = ngx_http_ratelimit_redis_read_array,
    .createInteger = ngx_http_ratelimit_redis_read_integer,
#if (HIREDIS_MAJOR >= 1)
    .createDouble = ngx_http_ratelimit_redis_read_double,
    .createBool = ngx_http_ratelimit_redis_read_bool,
#endif
    .createNil = ngx_http_ratelimit_redis_read_reply,
    .freeObject = ngx_http_ratelimit_redis_free_reply
};


ngx_http_ratelimit_redis_connection_t *
ngx_http_ratelimit_redis_connect(ngx_http_ratelimit_redis_t *redis,
    u_char *address, in_port_t port, ngx_http_ratelimit_redis_owner_t *owner)
{
    redisAsyncContext                      *context;
    ngx_http_ratelimit_redis_connection_t  *conn;

    context = ngx_http_ratelimit_redis_create_context(redis, address, port,
                                                      owner);
    if (context == NULL) {
        return NULL;
    }

    conn = ngx_calloc(sizeof(ngx_http_ratelimit_redis_connection_t),
                      ngx_cycle->log);

    if (conn == NULL) {
        redisAsyncFree(context);
        return NULL;
    }

    ngx_queue_init(&conn->messages);

    conn->redis = redis;
    conn->owner = owner;
    conn->context = context;

    context->data = conn;

    context->c.reader->fn = &ngx_http_ratelimit_redis_reader;
    context->c.reader->privdata = conn;

    context->ev.data = conn;
    context->ev.addRead = ngx_http_ratelimit_redis_keep_read;
    context->ev.delRead = ngx_http_ratelimit_redis_keep_read;
    context->ev.addWrite = ngx_http_ratelimit_redis_add_write;
    context->ev.delWrite = ngx_http_ratelimit_redis_del_write;
    context->ev.cleanup = ngx_http_ratelimit_redis_cleanup;

    /* from here on the cleanup frees the connection */

    if (ngx_http_ratelimit_redis_add_events(conn) != NGX_OK
        || redisAsyncSetConnectCallback(context,
                                        ngx_http_ratelimit_redis_on_connect)
           != REDIS_OK
        || ngx_http_ratelimit_redis_send_handshake(conn) != NGX_OK)
    {
        redisAsyncFree(context);
        return NULL;
    }

    return conn;
}


static redisAsyncContext *
ngx_http_ratelimit_redis_create_context(ngx_http_ratelimit_redis_t *redis,
    u_char *address, in_port_t port, ngx_http_ratelimit_redis_owner_t *owner)
{
    int                 on;
    redisAsyncContext  *context;

    context = port ? redisAsyncConnect((char *) address, port)
                   : redisAsyncConnectUnix((char *) address);

    if (context == NULL) {
        return NULL;
    }

    if (context->err) {
        owner->on_unreachable(owner->data, context->errstr);
        redisAsyncFree(context);
        return NULL;
    }

    if (port == 0) {
        return context;
    }

    /* at the system's interval, so that no firewall drops an idle one */

    on = 1;

    if (setsockopt(context->c.fd, SOL_SOCKET, SO_KEEPALIVE,
                   (const void *) &on, sizeof(int))
        == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_socket_errno,
                      "setsockopt(SO_KEEPALIVE) for redis \"%V\" failed",
                      &redis->name);
    }

    return context;
}


static ngx_int_t
ngx_http_ratelimit_redis_add_events(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_connection_t  *c;

    c = ngx_get_connection(conn->context->c.fd, ngx_cycle->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    conn->connection = c;

    c->data = conn;
    c->idle = 1;
    c->read->handler = ngx_http_ratelimit_redis_read_handler;
    c->read->log = c->log;
    c->write->handler = ngx_http_ratelimit_redis_write_handler;
    c->write->log = c->log;
    c->write->cancelable = 1;

    /* level-triggered: hiredis does not read or write until EAGAIN */

    if (ngx_add_event(c->read, NGX_READ_EVENT, NGX_LEVEL_EVENT) != NGX_OK
        || ngx_add_event(c->write, NGX_WRITE_EVENT, NGX_LEVEL_EVENT) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_add_timer(c->write, conn->redis->connect_timeout);

    return NGX_OK;
}


/* AUTH and SELECT, as far as they are needed */

static ngx_int_t
ngx_http_ratelimit_redis_send_handshake(
    ngx_http_ratelimit_redis_connection_t *conn)
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

        if (ngx_http_ratelimit_redis_send_words(conn, n, words) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (redis->db == 0) {
        return NGX_OK;
    }

    ngx_str_set(&words[0], "SELECT");
    words[1].data = db;
    words[1].len = ngx_sprintf(db, "%ui", redis->db) - db;

    return ngx_http_ratelimit_redis_send_words(conn, 2, words);
}


static ngx_int_t
ngx_http_ratelimit_redis_send_words(
    ngx_http_ratelimit_redis_connection_t *conn, int argc, ngx_str_t *words)
{
    int          i;
    size_t       len[3];
    const char  *argv[3];

    for (i = 0; i < argc; i++) {
        argv[i] = (char *) words[i].data;
        len[i] = words[i].len;
    }

    if (redisAsyncCommandArgv(conn->context,
                              ngx_http_ratelimit_redis_on_handshake, conn,
                              argc, argv, len)
        != REDIS_OK)
    {
        return NGX_ERROR;
    }

    conn->expected++;
    conn->handshake++;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_redis_connection_send(
    ngx_http_ratelimit_redis_connection_t *conn,
    ngx_http_ratelimit_redis_message_t *message)
{
    message->owner = conn->owner;
    message->connection = conn;

    if (conn->handshake) {
        ngx_queue_insert_tail(&conn->messages, &message->queue);
        return NGX_OK;
    }

    return ngx_http_ratelimit_redis_send_message(conn, message);
}


static ngx_int_t
ngx_http_ratelimit_redis_send_message(
    ngx_http_ratelimit_redis_connection_t *conn,
    ngx_http_ratelimit_redis_message_t *message)
{
    if (redisAsyncFormattedCommand(conn->context,
                                   ngx_http_ratelimit_redis_on_reply, message,
                                   (char *) message->data, message->len)
        != REDIS_OK)
    {
        return NGX_ERROR;
    }

    conn->expected++;

    return NGX_OK;
}


void
ngx_http_ratelimit_redis_disconnect(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    conn->owner->on_close(conn->owner->data, conn);

    /* from inside of a callback, hiredis frees the context after it */

    redisAsyncFree(conn->context);
}


void
ngx_http_ratelimit_redis_connection_read(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    if (conn->connected) {
        redisAsyncHandleRead(conn->context);
    }
}


ngx_uint_t
ngx_http_ratelimit_redis_connection_ready(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    return conn->ready;
}


void
ngx_http_ratelimit_redis_connection_expire(
    ngx_http_ratelimit_redis_message_t *message)
{
    ngx_http_ratelimit_redis_connection_t  *conn;

    message->expired = 1;

    conn = message->connection;
    conn->expired++;

    if (conn->ready && conn->expired >= RATELIMIT_BREAKER_FAILURES) {
        ngx_http_ratelimit_redis_disconnect(conn);
    }
}


static void
ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev)
{
    redisReader                            *reader;
    ngx_connection_t                       *c;
    ngx_http_ratelimit_redis_connection_t  *conn;

    c = rev->data;
    conn = c->data;

    if (c->close) {

        /* the worker exits: it still gets the replies that it waits for */

        if (conn->expected == 0) {
            ngx_http_ratelimit_redis_disconnect(conn);

        } else {
            c->close = 0;
        }

        return;
    }

    redisAsyncHandleRead(conn->context);

    if (c->data != conn) {
        return;    /* it has been freed */
    }

    reader = conn->context->c.reader;

    /* what is left is a part of one reply */

    if (reader->len - reader->pos > 2 * NGX_HTTP_RATELIMIT_REDIS_REPLY) {
        conn->owner->on_error(conn->owner->data, "reply too long", NULL);
        ngx_http_ratelimit_redis_disconnect(conn);
    }
}


static void
ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev)
{
    ngx_msec_t                              turn;
    ngx_connection_t                       *c;
    ngx_http_ratelimit_redis_owner_t       *owner;
    ngx_http_ratelimit_redis_connection_t  *conn;

    c = wev->data;
    conn = c->data;
    owner = conn->owner;

    if (wev->timedout) {
        owner->on_unreachable(owner->data, "connection timed out");
        ngx_http_ratelimit_redis_disconnect(conn);
        return;
    }

    conn->writing = 1;
    redisAsyncHandleWrite(conn->context);

    /* unless it has been freed */

    if (c->data == conn) {
        conn->writing = 0;
    }

    /* the turn may have taken long: Redis' time begins now */

    turn = ngx_current_msec;
    ngx_time_update();

    if (ngx_current_msec != turn) {
        owner->on_write(owner->data, turn);
    }
}


static void
ngx_http_ratelimit_redis_on_connect(const redisAsyncContext *context,
    int status)
{
    ngx_http_ratelimit_redis_connection_t  *conn;

    conn = context->data;

    if (status != REDIS_OK) {
        conn->owner->on_unreachable(conn->owner->data, context->errstr);
        return;
    }

    conn->connected = 1;
    ngx_http_ratelimit_redis_check_ready(conn);
}


static void
ngx_http_ratelimit_redis_on_handshake(redisAsyncContext *context, void *reply,
    void *data)
{
    redisReply                             *r = reply;
    ngx_http_ratelimit_redis_connection_t  *conn = data;

    ngx_str_t  said;

    if (r == NULL) {
        return;
    }

    if (r->type == REDIS_REPLY_STATUS) {
        conn->handshake--;
        ngx_http_ratelimit_redis_check_ready(conn);
        return;
    }

    if (r->type == REDIS_REPLY_ERROR) {
        said.data = (u_char *) r->str;
        said.len = r->len;

        conn->owner->on_error(conn->owner->data, "error reply", &said);
    }

    ngx_http_ratelimit_redis_disconnect(conn);
}


/* sends the messages that were kept, except expired ones */

static void
ngx_http_ratelimit_redis_check_ready(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_queue_t                         *q;
    ngx_http_ratelimit_redis_message_t  *message;

    if (conn->handshake) {
        return;
    }

    conn->ready = 1;

    if (conn->connection->write->timer_set) {
        ngx_del_timer(conn->connection->write);
    }

    while (!ngx_queue_empty(&conn->messages)) {
        q = ngx_queue_head(&conn->messages);
        ngx_queue_remove(q);

        message = ngx_queue_data(q, ngx_http_ratelimit_redis_message_t, queue);

        if (message->expired
            || ngx_http_ratelimit_redis_send_message(conn, message) != NGX_OK)
        {
            message->handler(message, NGX_HTTP_RATELIMIT_REDIS_LOST, NULL);
        }
    }
}


static void
ngx_http_ratelimit_redis_on_reply(redisAsyncContext *context, void *reply,
    void *data)
{
    redisReply                          *r = reply;
    ngx_http_ratelimit_redis_message_t  *message = data;

    ngx_str_t                         text;
    ngx_http_ratelimit_redis_reply_e  type;

    if (r == NULL) {

        /* the cleanup, which frees the connection, may have been before */

        if (context->data != NULL) {
            message->owner->on_close(message->owner->data, context->data);
        }

        ngx_http_ratelimit_redis_lose_message(message, context);
        return;
    }

    text.data = (u_char *) r->str;
    text.len = r->len;

    type = (r->type == REDIS_REPLY_STRING) ? NGX_HTTP_RATELIMIT_REDIS_STRING
           : (r->type == REDIS_REPLY_ERROR) ? NGX_HTTP_RATELIMIT_REDIS_ERROR
           : NGX_HTTP_RATELIMIT_REDIS_OTHER;

    message->handler(message, type, &text);
}


/* to hiredis, a reply that the reader refuses is a lack of memory */

static void
ngx_http_ratelimit_redis_lose_message(
    ngx_http_ratelimit_redis_message_t *message,
    const redisAsyncContext *context)
{
    if (context->err) {
        message->owner->on_error(message->owner->data,
                                 context->err == REDIS_ERR_OOM
                                 ? "malformed reply" : context->errstr, NULL);
    }

    message->handler(message, NGX_HTTP_RATELIMIT_REDIS_LOST, NULL);
}


/* the read event is always active */

static void
ngx_http_ratelimit_redis_keep_read(void *data)
{
    /* void */
}


/*
 * Writes at the end of this turn, unless the socket has just been full.  A
 * full batch is written at once, so that Redis works at the same time as nginx;
 * if that fails, the write at the end fails as well and is reported.
 */

static void
ngx_http_ratelimit_redis_add_write(void *data)
{
    ngx_http_ratelimit_redis_connection_t  *conn = data;

    int           done;
    ngx_event_t  *wev;

    wev = conn->connection->write;

    if (wev->active) {
        return;
    }

    if (conn->connected && !conn->writing) {

        if (!wev->posted) {
            ngx_post_event(wev, &ngx_posted_events);
            conn->batch = 0;
        }

        if (++conn->batch == NGX_HTTP_RATELIMIT_REDIS_BATCH) {
            (void) redisBufferWrite(&conn->context->c, &done);
            conn->batch = 0;
        }

        return;
    }

    if (ngx_add_event(wev, NGX_WRITE_EVENT, NGX_LEVEL_EVENT) != NGX_OK) {
        ngx_http_ratelimit_redis_event_failed(conn, "add");
    }
}


static void
ngx_http_ratelimit_redis_del_write(void *data)
{
    ngx_http_ratelimit_redis_connection_t  *conn = data;

    ngx_event_t  *wev;

    wev = conn->connection->write;

    if (wev->active && ngx_del_event(wev, NGX_WRITE_EVENT, 0) != NGX_OK) {
        ngx_http_ratelimit_redis_event_failed(conn, "remove");
    }
}


static void
ngx_http_ratelimit_redis_event_failed(
    ngx_http_ratelimit_redis_connection_t *conn, const char *what)
{
    ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                  "ratelimit: could not %s the write event of redis \"%V\"",
                  what, &conn->redis->name);
}


/* hiredis frees the context, and closes the socket after this */

static void
ngx_http_ratelimit_redis_cleanup(void *data)
{
    ngx_http_ratelimit_redis_connection_t  *conn = data;

    ngx_queue_t  *q;

    conn->owner->on_close(conn->owner->data, conn);

    if (conn->connection != NULL) {
        ngx_http_ratelimit_redis_del_events(conn->connection);
    }

    /* hiredis 1 reports the replies that are missing after the cleanup */

    conn->context->data = NULL;

    while (!ngx_queue_empty(&conn->messages)) {
        q = ngx_queue_head(&conn->messages);
        ngx_queue_remove(q);

        ngx_http_ratelimit_redis_lose_message(
                  ngx_queue_data(q, ngx_http_ratelimit_redis_message_t, queue),
                  conn->context);
    }

    ngx_free(conn);
}


/* as ngx_close_connection(), except for the socket */

static void
ngx_http_ratelimit_redis_del_events(ngx_connection_t *c)
{
    if (c->write->timer_set) {
        ngx_del_timer(c->write);
    }

    if (ngx_del_conn) {
        ngx_del_conn(c, 0);

    } else {
        if (c->read->active) {
            ngx_del_event(c->read, NGX_READ_EVENT, 0);
        }

        if (c->write->active) {
            ngx_del_event(c->write, NGX_WRITE_EVENT, 0);
        }
    }

    if (c->read->posted) {
        ngx_delete_posted_event(c->read);
    }

    if (c->write->posted) {
        ngx_delete_posted_event(c->write);
    }

    ngx_free_connection(c);

    c->fd = (ngx_socket_t) -1;
}


/* NULL, which ends the connection, if no reply is expected */

static void *
ngx_http_ratelimit_redis_read_reply(const redisReadTask *task)
{
    ngx_http_ratelimit_redis_connection_t  *conn;

    conn = task->privdata;

    if (conn->expected == 0) {
        return NULL;
    }

    conn->expected--;
    conn->expired = 0;

    conn->reply.type = task->type;
    conn->reply.str = conn->text;
    conn->reply.len = 0;

    return &conn->reply;
}


static void *
ngx_http_ratelimit_redis_read_string(const redisReadTask *task, char *text,
    size_t len)
{
    ngx_http_ratelimit_redis_connection_t  *conn;

    conn = task->privdata;

    if (len > NGX_HTTP_RATELIMIT_REDIS_REPLY
        || ngx_http_ratelimit_redis_read_reply(task) == NULL)
    {
        return NULL;
    }

    ngx_memcpy(conn->text, text, len);
    conn->reply.len = len;

    return &conn->reply;
}


static void *
ngx_http_ratelimit_redis_read_integer(const redisReadTask *task,
    long long number)
{
    return ngx_http_ratelimit_redis_read_reply(task);
}


static void
ngx_http_ratelimit_redis_free_reply(void *reply)
{
    /* void: it is a part of the connection */
}


#if (HIREDIS_MAJOR >= 1)

static void *
ngx_http_ratelimit_redis_read_array(const redisReadTask *task, size_t elements)
{
    return NULL;
}


static void *
ngx_http_ratelimit_redis_read_double(const redisReadTask *task, double number,
    char *text, size_t len)
{
    return NULL;
}


static void *
ngx_http_ratelimit_redis_read_bool(const redisReadTask *task, int flag)
{
    return NULL;
}

#else

static void *
ngx_http_ratelimit_redis_read_array(const redisReadTask *task, int elements)
{
    return NULL;
}

#endif
