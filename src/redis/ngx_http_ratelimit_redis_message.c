
/*
 * Messages: they are kept until the greeting is over, then pipelined, and each
 * one gets its reply, or learns that there is none.
 *
 * Redis executes what it was sent, whether or not the worker still listens.
 * So a connection that is not to be used any more is retired: it stays until
 * all replies are there, the server closes it, or a long time has passed.
 */


#include "redis/ngx_http_ratelimit_redis_connection.h"


/* retired connections of a server */
#define NGX_HTTP_RATELIMIT_REDIS_RETIRED  32


static ngx_int_t ngx_http_ratelimit_redis_send_message(
    ngx_http_ratelimit_redis_connection_t *conn,
    ngx_http_ratelimit_redis_message_t *message);
static ngx_int_t ngx_http_ratelimit_redis_send_asking(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_on_reply(redisAsyncContext *context,
    void *reply, void *data);
static void ngx_http_ratelimit_redis_count_latency(
    ngx_http_ratelimit_redis_message_t *message);
static uint64_t ngx_http_ratelimit_redis_usec(void);
static void ngx_http_ratelimit_redis_suspect_tls(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_mark_unread(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_uint_t ngx_http_ratelimit_redis_unacknowledged(int fd);
static void ngx_http_ratelimit_redis_lose_message(
    ngx_http_ratelimit_redis_message_t *message,
    const redisAsyncContext *context);


ngx_int_t
ngx_http_ratelimit_redis_connection_send(
    ngx_http_ratelimit_redis_connection_t *conn,
    ngx_http_ratelimit_redis_message_t *message)
{
    message->owner = conn->owner;
    message->connection = conn;
    message->unread = 0;
    message->began = ngx_http_ratelimit_redis_usec();

    /* what has arrived before a message was sent is no reply to it */

    if (!conn->ready || conn->reading) {
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
    if (message->asking
        && ngx_http_ratelimit_redis_send_asking(conn) != NGX_OK)
    {
        return NGX_ERROR;
    }

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

    ngx_queue_insert_tail(&conn->sent, &message->queue);

    conn->expected++;

    if (message->urgent) {
        ngx_http_ratelimit_redis_flush(conn);
    }

    return NGX_OK;
}


/* if that fails, the write at the end of this turn fails as well: it reports */

void
ngx_http_ratelimit_redis_flush(ngx_http_ratelimit_redis_connection_t *conn)
{
    int  done;

    if (conn->connection->write->posted) {
        (void) redisBufferWrite(&conn->context->c, &done);
        conn->batch = 0;
    }
}


/* what is said to it is said again to the message, if it is bad */

static ngx_int_t
ngx_http_ratelimit_redis_send_asking(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    static char  asking[] = "*1" CRLF "$6" CRLF "ASKING" CRLF;

    if (redisAsyncFormattedCommand(conn->context, NULL, NULL, asking,
                                   sizeof(asking) - 1)
        != REDIS_OK)
    {
        return NGX_ERROR;
    }

    conn->expected++;

    return NGX_OK;
}


/* except expired ones */

void
ngx_http_ratelimit_redis_send_waiting(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_queue_t                         *q;
    ngx_http_ratelimit_redis_message_t  *message;

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
            ngx_http_ratelimit_redis_messages_lost(context->data);
            ngx_queue_remove(&message->queue);
        }

        ngx_http_ratelimit_redis_lose_message(message, context);
        return;
    }

    ngx_queue_remove(&message->queue);
    ngx_http_ratelimit_redis_count_latency(message);

    text.data = (u_char *) r->str;
    text.len = r->len;

    type = (r->type == REDIS_REPLY_STRING) ? NGX_HTTP_RATELIMIT_REDIS_STRING
           : (r->type == REDIS_REPLY_ERROR) ? NGX_HTTP_RATELIMIT_REDIS_ERROR
           : NGX_HTTP_RATELIMIT_REDIS_OTHER;

    message->handler(message, type, &text);
}


#define ngx_http_ratelimit_latency_usec(usec, text)  usec,

static void
ngx_http_ratelimit_redis_count_latency(
    ngx_http_ratelimit_redis_message_t *message)
{
    uint64_t                            usec;
    ngx_uint_t                          i;
    ngx_http_ratelimit_redis_shared_t  *shared;

    static const uint64_t  bounds[] = {
        ngx_http_ratelimit_each_latency(ngx_http_ratelimit_latency_usec)
        UINT64_MAX
    };

    shared = message->owner->shared;
    usec = ngx_http_ratelimit_redis_usec() - message->began;

    for (i = 0; usec > bounds[i]; i++) { /* void */ }

    (void) ngx_atomic_fetch_add(&shared->latency[i], 1);
    (void) ngx_atomic_fetch_add(&shared->latency_sum, usec);
}


/* nginx's own clock has milliseconds, and those of the last event */

static uint64_t
ngx_http_ratelimit_redis_usec(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}


void
ngx_http_ratelimit_redis_messages_lost(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    if (!conn->closed) {
        conn->closed = 1;

        ngx_http_ratelimit_redis_suspect_tls(conn);
        ngx_http_ratelimit_redis_mark_unread(conn);
    }
}


/*
 * A server that expects TLS closes the connection, with an alert, whose first
 * byte is 0x15, or without.
 */

static void
ngx_http_ratelimit_redis_suspect_tls(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    u_char        *p, *last;
    redisContext  *context;

    if (conn->owner->tls != NULL || conn->owner->host.len == 0
        || !conn->greeted || conn->replied)
    {
        return;
    }

    context = &conn->context->c;

    p = (u_char *) context->errstr;
    last = p + sizeof(context->errstr);

    if (context->err == REDIS_ERR_IO || context->err == REDIS_ERR_EOF) {
        (void) ngx_slprintf(p + ngx_strlen(p), last,
                            " before any reply (a server that speaks TLS "
                            "needs rediss://)%Z");

    } else if (context->err == REDIS_ERR_PROTOCOL
               && ngx_strstr(p, "\\x15") != NULL)
    {
        (void) ngx_slprintf(p, last,
                            "the server speaks TLS, which needs rediss://%Z");
    }
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


void
ngx_http_ratelimit_redis_lose_waiting(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_queue_t  *q;

    while (!ngx_queue_empty(&conn->messages)) {
        q = ngx_queue_head(&conn->messages);
        ngx_queue_remove(q);

        ngx_http_ratelimit_redis_lose_message(
                  ngx_queue_data(q, ngx_http_ratelimit_redis_message_t, queue),
                  conn->context);
    }
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

    if (conn->generation != conn->owner->shared->generation) {
        return 0;
    }

    return conn->expected
           || ngx_current_msec - conn->active < NGX_HTTP_RATELIMIT_REDIS_IDLE
           || (recv(conn->context->c.fd, &byte, 1, MSG_PEEK|MSG_DONTWAIT) == -1
               && ngx_socket_errno == NGX_EAGAIN);
}


void
ngx_http_ratelimit_redis_connection_expire(
    ngx_http_ratelimit_redis_message_t *message)
{
    ngx_http_ratelimit_redis_connection_t  *conn;

    message->expired = 1;

    conn = message->connection;

    if (conn == NULL || !conn->ready || conn->retired) {
        return;
    }

    conn->expired++;

    if (conn->suspect) {

        /* so may be those of other workers: one of them finds it out for all */

        (void) ngx_atomic_cmp_set(&conn->owner->shared->generation,
                                  conn->generation, conn->generation + 1);
        ngx_http_ratelimit_redis_connection_retire(conn);

    } else if (conn->expired >= RATELIMIT_BREAKER_FAILURES) {
        conn->owner->on_unreachable(conn->owner->data, NULL);
        ngx_http_ratelimit_redis_connection_retire(conn);
    }
}


/* it still gets the replies that it waits for */

void
ngx_http_ratelimit_redis_connection_exit(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    if (conn->expected == 0 && ngx_queue_empty(&conn->messages)) {
        ngx_http_ratelimit_redis_disconnect(conn);
        return;
    }

    conn->connection->close = 0;

    if (conn->retired) {
        ngx_add_timer(conn->connection->read, NGX_HTTP_RATELIMIT_REDIS_EXIT);

    } else if (conn->ready) {
        ngx_http_ratelimit_redis_connection_retire(conn);
    }
}
