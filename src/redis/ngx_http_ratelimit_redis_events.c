
/*
 * hiredis on nginx's event loop.  What is written in one turn of the loop is
 * sent in large batches, the last one at its end.
 */


#include "redis/ngx_http_ratelimit_redis_conn.h"


/* commands that are worth a system call */
#define NGX_HTTP_RATELIMIT_REDIS_BATCH  16


static void ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev);
static void ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev);
static void ngx_http_ratelimit_redis_no_read(void *data);
static void ngx_http_ratelimit_redis_add_write(void *data);
static void ngx_http_ratelimit_redis_del_write(void *data);
static void ngx_http_ratelimit_redis_cleanup(void *data);
static void ngx_http_ratelimit_redis_detach(ngx_connection_t *c);


ngx_int_t
ngx_http_ratelimit_redis_attach(ngx_http_ratelimit_redis_conn_t *conn)
{
    ngx_connection_t   *c;
    redisAsyncContext  *context;

    context = conn->context;

    context->ev.data = conn;
    context->ev.addRead = ngx_http_ratelimit_redis_no_read;
    context->ev.delRead = ngx_http_ratelimit_redis_no_read;
    context->ev.addWrite = ngx_http_ratelimit_redis_add_write;
    context->ev.delWrite = ngx_http_ratelimit_redis_del_write;
    context->ev.cleanup = ngx_http_ratelimit_redis_cleanup;

    c = ngx_get_connection(context->c.fd, ngx_cycle->log);
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

    /* hiredis does not read or write until nothing is left to be done */

    if (ngx_add_event(c->read, NGX_READ_EVENT, NGX_LEVEL_EVENT) != NGX_OK
        || ngx_add_event(c->write, NGX_WRITE_EVENT, NGX_LEVEL_EVENT) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_add_timer(c->write, conn->redis->connect_timeout);

    return NGX_OK;
}


static void
ngx_http_ratelimit_redis_read_handler(ngx_event_t *rev)
{
    ngx_connection_t                 *c;
    ngx_http_ratelimit_redis_conn_t  *conn;

    c = rev->data;
    conn = c->data;

    if (c->close) {

        /* the worker exits: who waits for an answer still gets it */

        if (ngx_queue_empty(&conn->redis->pending)) {
            ngx_http_ratelimit_redis_hang_up(conn);

        } else {
            c->close = 0;
        }

        return;
    }

    redisAsyncHandleRead(conn->context);

    /* unless it is gone: what is left is a part of one reply */

    if (c->data == conn
        && conn->context->c.reader->len - conn->context->c.reader->pos
           > 2 * NGX_HTTP_RATELIMIT_REDIS_REPLY)
    {
        ngx_http_ratelimit_redis_reason(conn->redis, "its answer is too long",
                                        NULL, 0);
        ngx_http_ratelimit_redis_hang_up(conn);
    }
}


static void
ngx_http_ratelimit_redis_write_handler(ngx_event_t *wev)
{
    ngx_msec_t                        turn;
    ngx_connection_t                 *c;
    ngx_http_ratelimit_redis_t       *redis;
    ngx_http_ratelimit_redis_conn_t  *conn;

    c = wev->data;
    conn = c->data;
    redis = conn->redis;

    if (wev->timedout) {
        ngx_http_ratelimit_redis_reason(conn->redis, "connection timed out",
                                        NULL, 0);
        conn->redis->addr++;
        ngx_http_ratelimit_redis_hang_up(conn);
        return;
    }

    conn->writing = 1;
    redisAsyncHandleWrite(conn->context);

    /* unless it is gone */

    if (c->data == conn) {
        conn->writing = 0;
    }

    /* the turn may have taken long: Redis' time begins now */

    turn = ngx_current_msec;
    ngx_time_update();

    if (ngx_current_msec != turn) {
        ngx_http_ratelimit_redis_sent(redis, turn);
    }
}


/* reading goes on all the time */

static void
ngx_http_ratelimit_redis_no_read(void *data)
{
    /* void */
}


/*
 * At the end of this turn, unless the socket has just refused to take; what is
 * a batch already goes before, so that Redis works while nginx does, too.  If
 * that fails, it will fail again at the end, where it can be told.
 */

static void
ngx_http_ratelimit_redis_add_write(void *data)
{
    ngx_http_ratelimit_redis_conn_t  *conn = data;

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
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "ratelimit: redis \"%V\" can't be written to",
                      &conn->redis->name);
    }
}


static void
ngx_http_ratelimit_redis_del_write(void *data)
{
    ngx_http_ratelimit_redis_conn_t  *conn = data;

    ngx_event_t  *wev;

    wev = conn->connection->write;

    if (wev->active && ngx_del_event(wev, NGX_WRITE_EVENT, 0) != NGX_OK) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "ratelimit: redis \"%V\" can't be left alone",
                      &conn->redis->name);
    }
}


/* hiredis closes the socket itself, after this */

static void
ngx_http_ratelimit_redis_cleanup(void *data)
{
    ngx_http_ratelimit_redis_conn_t  *conn = data;

    ngx_http_ratelimit_redis_lost(conn);

    if (conn->connection != NULL) {
        ngx_http_ratelimit_redis_detach(conn->connection);
    }

    /* hiredis 1 has still to tell those who wait */

    conn->context->data = NULL;

    ngx_http_ratelimit_redis_release(conn, 1);

    ngx_free(conn);
}


/* as ngx_close_connection() does it, but for the socket */

static void
ngx_http_ratelimit_redis_detach(ngx_connection_t *c)
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
