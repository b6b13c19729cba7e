
/*
 * A connection to Redis: hiredis on nginx's event loop.
 *
 * Messages are pipelined.  Those that are sent in one turn of the event loop
 * are written in large batches, the last one at the end of the turn.  AUTH and
 * SELECT come first, and messages are kept until both have succeeded; there is
 * one timeout for this and for connecting.
 *
 * Redis executes what it was sent, whether or not the worker still listens.
 * So a connection that is not to be used any more is retired: it stays until
 * all replies are there, the server closes it, or a long time has passed.
 *
 * A server is not trusted: a reply of a type that no command of ours has, or
 * one without a command, ends the connection; and no memory is allocated for a
 * reply.
 */


#include "redis/ngx_http_ratelimit_redis.h"

#include <hiredis/hiredis.h>
#include <hiredis/async.h>


/* messages that are worth a system call */
#define NGX_HTTP_RATELIMIT_REDIS_BATCH    16

/* after so many milliseconds without a message a connection may be dead */
#define NGX_HTTP_RATELIMIT_REDIS_IDLE     900

/* retired connections of a server */
#define NGX_HTTP_RATELIMIT_REDIS_RETIRED  32

/* seconds; the kernel asks an idle peer, and gives up one that is silent */
#define NGX_HTTP_RATELIMIT_REDIS_KEEPIDLE   30
#define NGX_HTTP_RATELIMIT_REDIS_KEEPINTVL  5
#define NGX_HTTP_RATELIMIT_REDIS_KEEPCNT    3


struct ngx_http_ratelimit_redis_connection_s {
    ngx_http_ratelimit_redis_t     *redis;    /* settings */
    ngx_http_ratelimit_redis_owner_t  *owner;
    redisAsyncContext              *context;
    ngx_connection_t               *connection;
    ngx_queue_t                     messages; /* until the handshake is over */
    ngx_queue_t                     sent;     /* messages without a reply */
    ngx_uint_t                      handshake;  /* replies that are missing */
    ngx_uint_t                      expected; /* replies, all together */
    ngx_uint_t                      expired;  /* messages since the last one */
    ngx_uint_t                      batch;    /* messages not written yet */
    ngx_msec_t                      active;   /* time of the last reply */
    ngx_atomic_uint_t               generation;
    unsigned                        connected:1;
    unsigned                        ready:1;
    unsigned                        writing:1;
    unsigned                        suspect:1;  /* it was idle, and has not
                                                   replied since */
    unsigned                        retired:1;
    unsigned                        closed:1; /* by the server */
    redisReply                      reply;    /* the current one */
    char                            text[NGX_HTTP_RATELIMIT_REDIS_REPLY];
};


static redisAsyncContext *ngx_http_ratelimit_redis_create_context(
    ngx_http_ratelimit_redis_t *redis, u_char *address, in_port_t port,
    ngx_http_ratelimit_redis_owner_t *owner);
static void ngx_http_ratelimit_redis_keep_alive(
    ngx_http_ratelimit_redis_t *redis, int fd);
static ngx_int_t ngx_http_ratelimit_redis_add_events(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_int_t ngx_http_ratelimit_redis_send_handshake(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_int_t ngx_http_ratelimit_redis_send_words(
    ngx_http_ratelimit_redis_connection_t *conn, int argc, ngx_str_t *words,
    redisCallbackFn *handler);
static ngx_int_t ngx_http_ratelimit_redis_send_message(
    ngx_http_ratelimit_redis_connection_t *conn,
    ngx_http_ratelimit_redis_message_t *message);
static void ngx_http_ratelimit_redis_check_ready(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_mark_unread(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_uint_t ngx_http_ratelimit_redis_unacknowledged(int fd);
static void ngx_http_ratelimit_redis_lose_message(
    ngx_http_ratelimit_redis_message_t *message,
    const redisAsyncContext *context);
static ngx_int_t ngx_http_ratelimit_redis_read(
    ngx_http_ratelimit_redis_connection_t *conn);

static void ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev);
static void ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev);
static void ngx_http_ratelimit_redis_del_events(ngx_connection_t *c);

static void ngx_http_ratelimit_redis_on_connect(
    const redisAsyncContext *context, int status);
static void ngx_http_ratelimit_redis_on_handshake(redisAsyncContext *context,
    void *reply, void *data);
static void ngx_http_ratelimit_redis_ask_version(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_on_version(redisAsyncContext *context,
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
    ngx_queue_init(&conn->sent);

    conn->redis = redis;
    conn->owner = owner;
    conn->context = context;
    conn->active = ngx_current_msec;
    conn->generation = redis->shared->generation;

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

    if (port) {
        ngx_http_ratelimit_redis_keep_alive(redis, context->c.fd);
    }

    return context;
}


/* so that no firewall drops an idle connection, and a dead one is noticed */

static void
ngx_http_ratelimit_redis_keep_alive(ngx_http_ratelimit_redis_t *redis, int fd)
{
    ngx_uint_t  i;

    static const struct {
        int                         level;
        int                         name;
        int                         value;
        const char                 *text;
    } options[] = {
        { SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE" },
#if (NGX_HAVE_KEEPALIVE_TUNABLE)
        { IPPROTO_TCP, TCP_KEEPIDLE, NGX_HTTP_RATELIMIT_REDIS_KEEPIDLE,
          "TCP_KEEPIDLE" },
        { IPPROTO_TCP, TCP_KEEPINTVL, NGX_HTTP_RATELIMIT_REDIS_KEEPINTVL,
          "TCP_KEEPINTVL" },
        { IPPROTO_TCP, TCP_KEEPCNT, NGX_HTTP_RATELIMIT_REDIS_KEEPCNT,
          "TCP_KEEPCNT" },
#endif
#ifdef TCP_USER_TIMEOUT
        { IPPROTO_TCP, TCP_USER_TIMEOUT,
          1000 * NGX_HTTP_RATELIMIT_REDIS_KEEPINTVL
          * NGX_HTTP_RATELIMIT_REDIS_KEEPCNT, "TCP_USER_TIMEOUT" },
#endif
    };

    for (i = 0; i < sizeof(options) / sizeof(options[0]); i++) {

        if (setsockopt(fd, options[i].level, options[i].name,
                       (const void *) &options[i].value, sizeof(int))
            == -1)
        {
            ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_socket_errno,
                          "setsockopt(%s) for redis \"%V\" failed",
                          options[i].text, &redis->name);
        }
    }
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

        if (ngx_http_ratelimit_redis_send_words(conn, n, words,
                                        ngx_http_ratelimit_redis_on_handshake)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        conn->handshake++;
    }

    if (redis->db == 0) {
        return NGX_OK;
    }

    ngx_str_set(&words[0], "SELECT");
    words[1].data = db;
    words[1].len = ngx_sprintf(db, "%ui", redis->db) - db;

    conn->handshake++;

    return ngx_http_ratelimit_redis_send_words(conn, 2, words,
                                        ngx_http_ratelimit_redis_on_handshake);
}


static ngx_int_t
ngx_http_ratelimit_redis_send_words(
    ngx_http_ratelimit_redis_connection_t *conn, int argc, ngx_str_t *words,
    redisCallbackFn *handler)
{
    int          i;
    size_t       len[3];
    const char  *argv[3];

    for (i = 0; i < argc; i++) {
        argv[i] = (char *) words[i].data;
        len[i] = words[i].len;
    }

    if (redisAsyncCommandArgv(conn->context, handler, conn, argc, argv, len)
        != REDIS_OK)
    {
        return NGX_ERROR;
    }

    conn->expected++;

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

    if (conn->expected == 0
        && ngx_current_msec - conn->active >= NGX_HTTP_RATELIMIT_REDIS_IDLE)
    {
        conn->suspect = 1;
    }

    message->unread = 0;
    ngx_queue_insert_tail(&conn->sent, &message->queue);

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
ngx_http_ratelimit_redis_connection_retire(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_http_ratelimit_redis_owner_t  *owner;

    owner = conn->owner;

    if (conn->retired) {
        return;
    }

    if (!conn->ready || conn->expected == 0
        || owner->retired == NGX_HTTP_RATELIMIT_REDIS_RETIRED)
    {
        ngx_http_ratelimit_redis_disconnect(conn);
        return;
    }

    owner->on_close(owner->data, conn);
    owner->retired++;

    conn->retired = 1;

    ngx_add_timer(conn->connection->read,
                  ngx_exiting ? NGX_HTTP_RATELIMIT_REDIS_EXIT
                              : NGX_HTTP_RATELIMIT_REDIS_LISTEN);
}


/* of an idle connection, its end may have arrived without an event so far */

ngx_uint_t
ngx_http_ratelimit_redis_connection_usable(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    char  byte;

    if (!conn->ready) {
        return 1;
    }

    if (conn->generation != conn->redis->shared->generation) {
        return 0;
    }

    return conn->expected
           || ngx_current_msec - conn->active < NGX_HTTP_RATELIMIT_REDIS_IDLE
           || (recv(conn->context->c.fd, &byte, 1, MSG_PEEK|MSG_DONTWAIT) == -1
               && ngx_socket_errno == NGX_EAGAIN);
}


void
ngx_http_ratelimit_redis_connection_read(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    if (conn->connected) {
        (void) ngx_http_ratelimit_redis_read(conn);
    }
}


/* hiredis reads 16 KB at a time; NGX_DONE if the connection has been freed */

static ngx_int_t
ngx_http_ratelimit_redis_read(ngx_http_ratelimit_redis_connection_t *conn)
{
    int                n;
    redisReader       *reader;
    ngx_connection_t  *c;

    c = conn->connection;

    do {
        redisAsyncHandleRead(conn->context);

        if (c->data != conn) {
            return NGX_DONE;
        }

        reader = conn->context->c.reader;

        /* what is left is a part of one reply */

        if (reader->len - reader->pos > 2 * NGX_HTTP_RATELIMIT_REDIS_REPLY) {
            conn->owner->on_error(conn->owner->data, "reply too long", NULL);
            ngx_http_ratelimit_redis_disconnect(conn);
            return NGX_DONE;
        }

    } while (conn->connected && ioctl(c->fd, FIONREAD, &n) == 0 && n > 0);

    if (conn->retired && conn->expected == 0) {
        ngx_http_ratelimit_redis_disconnect(conn);
        return NGX_DONE;
    }

    return NGX_OK;
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

    if (!conn->ready || conn->retired) {
        return;
    }

    conn->expired++;

    if (conn->suspect) {

        /* so may be those of other workers: one of them finds it out for all */

        (void) ngx_atomic_cmp_set(&conn->redis->shared->generation,
                                  conn->generation, conn->generation + 1);
        ngx_http_ratelimit_redis_connection_retire(conn);

    } else if (conn->expired >= RATELIMIT_BREAKER_FAILURES) {
        conn->owner->on_unreachable(conn->owner->data, NULL);
        ngx_http_ratelimit_redis_connection_retire(conn);
    }
}


static void
ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev)
{
    ngx_connection_t                       *c;
    ngx_http_ratelimit_redis_connection_t  *conn;

    c = rev->data;
    conn = c->data;

    if (rev->timedout) {
        ngx_http_ratelimit_redis_disconnect(conn);
        return;
    }

    if (c->close) {

        /* the worker exits: it still gets the replies that it waits for */

        if (conn->expected == 0) {
            ngx_http_ratelimit_redis_disconnect(conn);
            return;
        }

        c->close = 0;

        if (conn->retired) {
            ngx_add_timer(rev, NGX_HTTP_RATELIMIT_REDIS_EXIT);

        } else if (conn->ready) {
            ngx_http_ratelimit_redis_connection_retire(conn);
        }

        return;
    }

    (void) ngx_http_ratelimit_redis_read(conn);
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

    ngx_http_ratelimit_redis_ask_version(conn);

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


/* once, by one worker of all; without a permission nothing is said */

static void
ngx_http_ratelimit_redis_ask_version(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_str_t  words[2];

    if (!ngx_atomic_cmp_set(&conn->redis->shared->version, 0, 1)) {
        return;
    }

    ngx_str_set(&words[0], "INFO");
    ngx_str_set(&words[1], "server");

    (void) ngx_http_ratelimit_redis_send_words(conn, 2, words,
                                          ngx_http_ratelimit_redis_on_version);
}


static void
ngx_http_ratelimit_redis_on_version(redisAsyncContext *context, void *reply,
    void *data)
{
    redisReply                             *r = reply;
    ngx_http_ratelimit_redis_connection_t  *conn = data;

    size_t   len;
    u_char  *p, *last;

    if (r == NULL || r->type != REDIS_REPLY_STRING) {
        return;
    }

    last = (u_char *) r->str + r->len;

    p = ngx_strlcasestrn((u_char *) r->str, last, (u_char *) "redis_version:",
                         sizeof("redis_version:") - 1 - 1);
    if (p == NULL) {
        return;
    }

    p += sizeof("redis_version:") - 1;

    for (len = 0; p + len < last && p[len] > ' ' && p[len] < 0x7f; len++) {
        /* void */
    }

    /* of one digit each: 6.2 has options that the scripts need */

    if (len < 3 || p[1] != '.' || p[0] > '6' || (p[0] == '6' && p[2] >= '2')) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "ratelimit: redis \"%V\" is version %*s, "
                  "at least 6.2 is needed", &conn->redis->name, len, p);
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
            ngx_http_ratelimit_redis_mark_unread(context->data);
            ngx_queue_remove(&message->queue);
        }

        ngx_http_ratelimit_redis_lose_message(message, context);
        return;
    }

    ngx_queue_remove(&message->queue);

    text.data = (u_char *) r->str;
    text.len = r->len;

    type = (r->type == REDIS_REPLY_STRING) ? NGX_HTTP_RATELIMIT_REDIS_STRING
           : (r->type == REDIS_REPLY_ERROR) ? NGX_HTTP_RATELIMIT_REDIS_ERROR
           : NGX_HTTP_RATELIMIT_REDIS_OTHER;

    message->handler(message, type, &text);
}


/*
 * The server may have closed the connection because it was idle.  What arrives
 * after that, or has not been read before, is answered by a reset.
 */

static void
ngx_http_ratelimit_redis_mark_unread(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_queue_t                         *q;
    ngx_http_ratelimit_redis_message_t  *message;

    if (conn->closed) {
        return;
    }

    conn->closed = 1;

    if (!conn->suspect) {
        return;
    }

    if (conn->context->err != REDIS_ERR_IO
        && !(conn->context->err == REDIS_ERR_EOF
             && ngx_http_ratelimit_redis_unacknowledged(conn->context->c.fd)))
    {
        return;
    }

    for (q = ngx_queue_head(&conn->sent);
         q != ngx_queue_sentinel(&conn->sent);
         q = ngx_queue_next(q))
    {
        message = ngx_queue_data(q, ngx_http_ratelimit_redis_message_t, queue);
        message->unread = 1;
    }
}


/*
 * Whether the server had closed its end before the last bytes arrived: it does
 * not acknowledge them, and a reset follows.
 */

static ngx_uint_t
ngx_http_ratelimit_redis_unacknowledged(int fd)
{
    int        error;
    socklen_t  len;

#if (NGX_LINUX && NGX_HAVE_TCP_INFO)
    struct tcp_info  info;

    ngx_memzero(&info, sizeof(struct tcp_info));
    len = sizeof(struct tcp_info);

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0
        && info.tcpi_unacked)
    {
        return 1;
    }
#endif

    error = 0;
    len = sizeof(int);

    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error;
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

    message->handler(message, message->unread ? NGX_HTTP_RATELIMIT_REDIS_UNREAD
                                              : NGX_HTTP_RATELIMIT_REDIS_LOST,
                     NULL);
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
    conn->owner->retired -= conn->retired;

    ngx_http_ratelimit_redis_mark_unread(conn);

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
    if (c->read->timer_set) {
        ngx_del_timer(c->read);
    }

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
    conn->suspect = 0;
    conn->active = ngx_current_msec;

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
