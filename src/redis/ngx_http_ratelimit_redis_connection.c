
/*
 * A connection to Redis: hiredis on nginx's event loop.
 *
 * Messages that are sent in one turn of the event loop are written in large
 * batches, the last one at the end of the turn.
 */


#include "redis/ngx_http_ratelimit_redis_connection.h"


/* messages that are worth a system call */
#define NGX_HTTP_RATELIMIT_REDIS_BATCH  16

/* seconds; the kernel asks an idle peer, and gives up one that is silent */
#define NGX_HTTP_RATELIMIT_REDIS_KEEPIDLE   30
#define NGX_HTTP_RATELIMIT_REDIS_KEEPINTVL  5
#define NGX_HTTP_RATELIMIT_REDIS_KEEPCNT    3


static redisAsyncContext *ngx_http_ratelimit_redis_create_context(
    ngx_http_ratelimit_redis_owner_t *owner, u_char *address, in_port_t port);
static void ngx_http_ratelimit_redis_set_keepalive(
    ngx_http_ratelimit_redis_owner_t *owner, int fd);
static ngx_int_t ngx_http_ratelimit_redis_add_events(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_int_t ngx_http_ratelimit_redis_read(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev);
static void ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev);
static void ngx_http_ratelimit_redis_on_connect(
    const redisAsyncContext *context, int status);
static void ngx_http_ratelimit_redis_establish(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_no_op(void *data);
static void ngx_http_ratelimit_redis_add_write(void *data);
static void ngx_http_ratelimit_redis_watch_write(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_del_write(void *data);
static void ngx_http_ratelimit_redis_event_failed(
    ngx_http_ratelimit_redis_connection_t *conn, const char *what);
static void ngx_http_ratelimit_redis_cleanup(void *data);
static void ngx_http_ratelimit_redis_del_events(ngx_connection_t *c);


ngx_http_ratelimit_redis_connection_t *
ngx_http_ratelimit_redis_connect(ngx_http_ratelimit_redis_owner_t *owner,
    u_char *address, in_port_t port)
{
    redisAsyncContext                      *context;
    ngx_http_ratelimit_redis_connection_t  *conn;

    context = ngx_http_ratelimit_redis_create_context(owner, address, port);
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

    conn->owner = owner;
    conn->context = context;
    conn->active = ngx_current_msec;
    conn->generation = owner->shared->generation;

    owner->open++;

    context->data = conn;

    context->c.reader->fn = &ngx_http_ratelimit_redis_reader;
    context->c.reader->privdata = conn;

    context->ev.data = conn;
    context->ev.addRead = ngx_http_ratelimit_redis_no_op;
    context->ev.delRead = ngx_http_ratelimit_redis_no_op;
    context->ev.addWrite = ngx_http_ratelimit_redis_add_write;
    context->ev.delWrite = ngx_http_ratelimit_redis_del_write;
    context->ev.cleanup = ngx_http_ratelimit_redis_cleanup;

    /* from here on the cleanup frees the connection */

    if (ngx_http_ratelimit_redis_add_events(conn) != NGX_OK
        || redisAsyncSetConnectCallback(context,
                                        ngx_http_ratelimit_redis_on_connect)
           != REDIS_OK
        || (owner->tls != NULL
            && ngx_http_ratelimit_redis_tls_start(conn) != NGX_OK))
    {
        redisAsyncFree(context);
        return NULL;
    }

    return conn;
}


static redisAsyncContext *
ngx_http_ratelimit_redis_create_context(
    ngx_http_ratelimit_redis_owner_t *owner, u_char *address, in_port_t port)
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
        ngx_http_ratelimit_redis_set_keepalive(owner, context->c.fd);
    }

    return context;
}


/* so that no firewall drops an idle connection, and a dead one is noticed */

static void
ngx_http_ratelimit_redis_set_keepalive(ngx_http_ratelimit_redis_owner_t *owner,
    int fd)
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
                          options[i].text, &owner->label);
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

    ngx_add_timer(c->write, conn->owner->redis->connect_timeout);

    return NGX_OK;
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
    ngx_uint_t         more;
    redisReader       *reader;
    ngx_connection_t  *c;

    c = conn->connection;
    conn->reading = 1;

    do {
        conn->drained = 0;
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

        more = conn->owner->tls ? !conn->drained
                                : ioctl(c->fd, FIONREAD, &n) == 0 && n > 0;

    } while (conn->connected && more);

    conn->reading = 0;

    if (conn->ready) {
        ngx_http_ratelimit_redis_send_waiting(conn);
    }

    if (conn->blocked) {
        ngx_http_ratelimit_redis_watch_write(conn);
    }

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
        ngx_http_ratelimit_redis_connection_exit(conn);
        return;
    }

    if (ngx_http_ratelimit_redis_read(conn) == NGX_OK) {
        ngx_http_ratelimit_redis_establish(conn);
    }
}


static void
ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev)
{
    ngx_msec_t                              turn;
    const char                             *reason;
    ngx_connection_t                       *c;
    ngx_http_ratelimit_redis_owner_t       *owner;
    ngx_http_ratelimit_redis_connection_t  *conn;

    c = wev->data;
    conn = c->data;
    owner = conn->owner;

    if (wev->timedout) {
        reason = "connection timed out";

        if (owner->tls && conn->connected && !conn->encrypted) {
            reason = ngx_http_ratelimit_redis_tls_timeout(conn);
        }

        owner->on_unreachable(owner->data, reason);
        ngx_http_ratelimit_redis_disconnect(conn);
        return;
    }

    conn->writing = 1;
    redisAsyncHandleWrite(conn->context);

    /* unless it has been freed */

    if (c->data == conn) {
        conn->writing = 0;

        if (conn->encrypted && conn->blocked) {
            conn->blocked = 0;
            (void) ngx_http_ratelimit_redis_read(conn);

        } else {
            ngx_http_ratelimit_redis_establish(conn);
        }
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
}


/* what follows on a connection, if that is not over */

static void
ngx_http_ratelimit_redis_establish(ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_int_t  rc;

    if (!conn->connected || conn->greeted) {
        return;
    }

    rc = conn->owner->tls ? ngx_http_ratelimit_redis_tls_handshake(conn)
                          : NGX_OK;

    if (rc == NGX_OK) {
        ngx_http_ratelimit_redis_greet(conn);

    } else if (rc != NGX_AGAIN) {
        ngx_http_ratelimit_redis_disconnect(conn);

    } else if (conn->blocked) {
        ngx_http_ratelimit_redis_watch_write(conn);

    } else {
        ngx_http_ratelimit_redis_del_write(conn);
    }
}


/* the read event is always active */

static void
ngx_http_ratelimit_redis_no_op(void *data)
{
    /* void */
}


/*
 * Writes at the end of this turn, unless the socket has just been full.  A
 * full batch is written at once, so that Redis works at the same time as nginx.
 */

static void
ngx_http_ratelimit_redis_add_write(void *data)
{
    ngx_http_ratelimit_redis_connection_t  *conn = data;

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
            ngx_http_ratelimit_redis_flush(conn);
        }

        return;
    }

    ngx_http_ratelimit_redis_watch_write(conn);
}


static void
ngx_http_ratelimit_redis_watch_write(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_event_t  *wev;

    wev = conn->connection->write;

    if (!wev->active
        && ngx_add_event(wev, NGX_WRITE_EVENT, NGX_LEVEL_EVENT) != NGX_OK)
    {
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
                  what, &conn->owner->label);
}


/* hiredis frees the context, and closes the socket after this */

static void
ngx_http_ratelimit_redis_cleanup(void *data)
{
    ngx_http_ratelimit_redis_connection_t  *conn = data;

    conn->owner->on_close(conn->owner->data, conn);
    conn->owner->retired -= conn->retired;
    conn->owner->open--;

    ngx_http_ratelimit_redis_messages_lost(conn);

    if (conn->connection != NULL) {
        ngx_http_ratelimit_redis_tls_close(conn);
        ngx_http_ratelimit_redis_del_events(conn->connection);
    }

    /* hiredis 1 reports the replies that are missing after the cleanup */

    conn->context->data = NULL;

    ngx_http_ratelimit_redis_lose_waiting(conn);

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
