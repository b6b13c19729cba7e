
/*
 * Messages: they are kept until the greeting is over, then pipelined, and each
 * one gets its reply, or learns that there is none.
 *
 * Redis executes what it was sent, whether or not the worker still listens.
 * So a connection that is not to be used any more is retired: it stays until
 * all replies are there, the server closes it, or a long time has passed.
 *
 * A server is not trusted: a reply of a type that no command of ours has, or
 * one without a command, ends the connection; and no memory is allocated for a
 * reply.  The elements of an array are handed on one by one.
 */


#include "redis/ngx_http_ratelimit_redis_connection.h"


/* retired connections of a server */
#define NGX_HTTP_RATELIMIT_REDIS_RETIRED  32


/* hiredis' type of the number of elements of an array */

#if (HIREDIS_MAJOR >= 1)
typedef size_t  ngx_http_ratelimit_redis_size_t;
#else
typedef int     ngx_http_ratelimit_redis_size_t;
#endif


static ngx_int_t ngx_http_ratelimit_redis_send_message(
    ngx_http_ratelimit_redis_connection_t *conn,
    ngx_http_ratelimit_redis_message_t *message);
static ngx_int_t ngx_http_ratelimit_redis_send_asking(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_on_reply(redisAsyncContext *context,
    void *reply, void *data);
static void ngx_http_ratelimit_redis_count_latency(
    ngx_http_ratelimit_redis_message_t *message);
static void ngx_http_ratelimit_redis_suspect_tls(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_mark_unread(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_uint_t ngx_http_ratelimit_redis_unacknowledged(int fd);
static void ngx_http_ratelimit_redis_lose_message(
    ngx_http_ratelimit_redis_message_t *message,
    const redisAsyncContext *context);

static void *ngx_http_ratelimit_redis_read_reply(const redisReadTask *task);
static void *ngx_http_ratelimit_redis_read_string(const redisReadTask *task,
    char *text, size_t len);
static void *ngx_http_ratelimit_redis_read_integer(const redisReadTask *task,
    long long number);
static void *ngx_http_ratelimit_redis_read_nil(const redisReadTask *task);
static void ngx_http_ratelimit_redis_read_role(
    ngx_http_ratelimit_redis_connection_t *conn,
    const ratelimit_element_t *element);
static void ngx_http_ratelimit_redis_free_reply(void *reply);

static void *ngx_http_ratelimit_redis_read_array(const redisReadTask *task,
    ngx_http_ratelimit_redis_size_t elements);
static void *ngx_http_ratelimit_redis_read_element(const redisReadTask *task,
    ratelimit_element_e type, int64_t number, const char *text, size_t len);

#if (HIREDIS_MAJOR >= 1)
static void *ngx_http_ratelimit_redis_read_double(const redisReadTask *task,
    double number, char *text, size_t len);
static void *ngx_http_ratelimit_redis_read_bool(const redisReadTask *task,
    int flag);
#endif


redisReplyObjectFunctions  ngx_http_ratelimit_redis_reader = {
    .createString = ngx_http_ratelimit_redis_read_string,
    .createArray = ngx_http_ratelimit_redis_read_array,
    .createInteger = ngx_http_ratelimit_redis_read_integer,
#if (HIREDIS_MAJOR >= 1)
    .createDouble = ngx_http_ratelimit_redis_read_double,
    .createBool = ngx_http_ratelimit_redis_read_bool,
#endif
    .createNil = ngx_http_ratelimit_redis_read_nil,
    .freeObject = ngx_http_ratelimit_redis_free_reply
};


ngx_int_t
ngx_http_ratelimit_redis_connection_send(
    ngx_http_ratelimit_redis_connection_t *conn,
    ngx_http_ratelimit_redis_message_t *message)
{
    message->owner = conn->owner;
    message->connection = conn;
    message->unread = 0;
    message->began = ngx_http_ratelimit_redis_usec();

    /*
     * What has arrived before a message was sent is no reply to it; an urgent
     * one knows its reply.
     */

    if (!conn->ready || (conn->reading && !message->urgent)) {
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


/* an error reply to ASKING is ignored: the message gets an error, too */

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


/* sends the messages that wait, except expired ones */

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

    ngx_http_ratelimit_redis_count(shared, latency[i], 1);
    ngx_http_ratelimit_redis_count(shared, latency_sum, usec);
}


uint64_t
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

        /* connections of other workers may be dead, too: this retires them */

        (void) ngx_atomic_cmp_set(&conn->owner->shared->generation,
                                  conn->generation, conn->generation + 1);
        ngx_http_ratelimit_redis_connection_retire(conn);

    } else if (conn->expired >= RATELIMIT_BREAKER_FAILURES) {
        conn->owner->on_unreachable(conn->owner->data, NULL);
        ngx_http_ratelimit_redis_connection_retire(conn);
    }
}


/* the connection still gets the replies that it waits for */

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


/*
 * NULL, which ends the connection, if no reply is expected, or no such element
 * of an array.
 */

static void *
ngx_http_ratelimit_redis_read_reply(const redisReadTask *task)
{
    ngx_http_ratelimit_redis_connection_t  *conn;

    conn = task->privdata;

    if (task->parent != NULL) {
        return ngx_http_ratelimit_redis_read_element(task,
                                          RATELIMIT_ELEMENT_NIL, 0, NULL, 0);
    }

    if (conn->expected == 0) {
        return NULL;
    }

    conn->expected--;
    conn->expired = 0;
    conn->suspect = 0;
    conn->replied = 1;
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

    if (task->parent != NULL) {
        return ngx_http_ratelimit_redis_read_element(task,
                                     RATELIMIT_ELEMENT_STRING, 0, text, len);
    }

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
    if (task->parent != NULL) {
        return ngx_http_ratelimit_redis_read_element(task,
                                 RATELIMIT_ELEMENT_INTEGER, number, NULL, 0);
    }

    return ngx_http_ratelimit_redis_read_reply(task);
}


/* to hiredis, it is a string */

static void *
ngx_http_ratelimit_redis_read_nil(const redisReadTask *task)
{
    ngx_http_ratelimit_redis_connection_t  *conn;

    conn = task->privdata;

    if (ngx_http_ratelimit_redis_read_reply(task) == NULL) {
        return NULL;
    }

    if (task->parent == NULL) {
        conn->reply.type = REDIS_REPLY_NIL;
    }

    return &conn->reply;
}


static void *
ngx_http_ratelimit_redis_read_array(const redisReadTask *task,
    ngx_http_ratelimit_redis_size_t elements)
{
    if (task->parent == NULL
        && ngx_http_ratelimit_redis_read_reply(task) == NULL)
    {
        return NULL;
    }

    return ngx_http_ratelimit_redis_read_element(task,
                       RATELIMIT_ELEMENT_ARRAY, (int64_t) elements, NULL, 0);
}


/* an element belongs to the greeting, or to the oldest message */

static void *
ngx_http_ratelimit_redis_read_element(const redisReadTask *task,
    ratelimit_element_e type, int64_t number, const char *text, size_t len)
{
    ngx_queue_t                            *q;
    ratelimit_element_t                     element;
    const redisReadTask                    *parent;
    ngx_http_ratelimit_redis_message_t     *message;
    ngx_http_ratelimit_redis_connection_t  *conn;

    conn = task->privdata;

    element.type = type;
    element.depth = 0;
    element.index = task->parent ? (size_t) task->idx : 0;
    element.number = number;
    element.text = text;
    element.len = len;

    for (parent = task->parent; parent != NULL; parent = parent->parent) {
        element.depth++;
    }

    if (conn->greeting) {
        ngx_http_ratelimit_redis_read_role(conn, &element);
        return &conn->reply;
    }

    if (ngx_queue_empty(&conn->sent)) {
        return NULL;
    }

    q = ngx_queue_head(&conn->sent);
    message = ngx_queue_data(q, ngx_http_ratelimit_redis_message_t, queue);

    return (message->on_element && message->on_element(message, &element))
           ? &conn->reply : NULL;
}


/* the role is the first element */

static void
ngx_http_ratelimit_redis_read_role(ngx_http_ratelimit_redis_connection_t *conn,
    const ratelimit_element_t *element)
{
    if (element->depth == 1 && element->index == 0) {
        conn->primary = element->type == RATELIMIT_ELEMENT_STRING
                        && element->len == sizeof("master") - 1
                        && ngx_strncmp(element->text, "master",
                                       sizeof("master") - 1)
                           == 0;
    }
}


static void
ngx_http_ratelimit_redis_free_reply(void *reply)
{
    /* void: it is a part of the connection */
}


#if (HIREDIS_MAJOR >= 1)

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

#endif
