
/*
 * A connection to Redis: hiredis on nginx's event loop, and the greeting.
 *
 * Messages that are sent in one turn of the event loop are written in large
 * batches, the last one at the end of the turn.
 */


#include "redis/ngx_http_ratelimit_redis_connection.h"


/* messages that are worth a system call */
#define NGX_HTTP_RATELIMIT_REDIS_BATCH  16

/* seconds; the kernel probes an idle peer, and drops one that is silent */
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
static void ngx_http_ratelimit_redis_greet(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_int_t ngx_http_ratelimit_redis_send_greeting(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_int_t ngx_http_ratelimit_redis_greeting_send(
    ngx_http_ratelimit_redis_connection_t *conn, int argc, ngx_str_t *words);
static ngx_int_t ngx_http_ratelimit_redis_send_words(
    ngx_http_ratelimit_redis_connection_t *conn, int argc, ngx_str_t *words,
    redisCallbackFn *handler);
static void ngx_http_ratelimit_redis_on_greeting(redisAsyncContext *context,
    void *reply, void *data);
static void ngx_http_ratelimit_redis_check_greeting(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_ask_version(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_on_version(redisAsyncContext *context,
    void *reply, void *data);


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


/* the next step of a new connection: the TLS handshake, then the greeting */

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


/*
 * What is sent before the messages: AUTH, SELECT and ROLE, and once INFO, for
 * the version.  There is one timeout for this and for connecting; the
 * connection may be freed.
 */

static void
ngx_http_ratelimit_redis_greet(ngx_http_ratelimit_redis_connection_t *conn)
{
    conn->greeted = 1;

    if (ngx_http_ratelimit_redis_send_greeting(conn) != NGX_OK) {
        ngx_http_ratelimit_redis_disconnect(conn);
        return;
    }

    ngx_http_ratelimit_redis_check_greeting(conn);
}


/* as much as is needed */

static ngx_int_t
ngx_http_ratelimit_redis_send_greeting(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    int                                n;
    u_char                             db[NGX_INT_T_LEN];
    ngx_str_t                          words[3];
    ngx_http_ratelimit_redis_login_t  *login;

    login = conn->owner->login;

    if (login->password.len) {
        n = 0;
        ngx_str_set(&words[n], "AUTH");
        n++;

        if (login->user.len) {
            words[n++] = login->user;
        }

        words[n++] = login->password;

        if (ngx_http_ratelimit_redis_greeting_send(conn, n, words) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (login->db) {
        ngx_str_set(&words[0], "SELECT");
        words[1].data = db;
        words[1].len = ngx_sprintf(db, "%ui", login->db) - db;

        if (ngx_http_ratelimit_redis_greeting_send(conn, 2, words) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (!login->primary) {
        return NGX_OK;
    }

    ngx_str_set(&words[0], "ROLE");

    return ngx_http_ratelimit_redis_greeting_send(conn, 1, words);
}


static ngx_int_t
ngx_http_ratelimit_redis_greeting_send(
    ngx_http_ratelimit_redis_connection_t *conn, int argc, ngx_str_t *words)
{
    conn->greeting++;

    return ngx_http_ratelimit_redis_send_words(conn, argc, words,
                                        ngx_http_ratelimit_redis_on_greeting);
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


static void
ngx_http_ratelimit_redis_on_greeting(redisAsyncContext *context, void *reply,
    void *data)
{
    redisReply                             *r = reply;
    ngx_http_ratelimit_redis_connection_t  *conn = data;

    ngx_str_t   said;
    ngx_uint_t  role;

    if (r == NULL) {
        return;
    }

    /* which is the last one */

    role = conn->owner->login->primary && conn->greeting == 1;

    if (role ? conn->primary : r->type == REDIS_REPLY_STATUS) {
        conn->greeting--;
        ngx_http_ratelimit_redis_check_greeting(conn);
        return;
    }

    if (r->type == REDIS_REPLY_ERROR) {
        said.data = (u_char *) r->str;
        said.len = r->len;

        conn->owner->on_error(conn->owner->data, "error reply", &said);

    } else if (role) {
        conn->owner->shared->replica = ngx_current_msec;
        conn->owner->on_error(conn->owner->data, "not a primary", NULL);
    }

    ngx_http_ratelimit_redis_disconnect(conn);
}


/* sends the messages that wait, if the greeting is over */

static void
ngx_http_ratelimit_redis_check_greeting(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    if (conn->greeting) {
        return;
    }

    conn->ready = 1;

    if (conn->connection->write->timer_set) {
        ngx_del_timer(conn->connection->write);
    }

    ngx_http_ratelimit_redis_ask_version(conn);
    ngx_http_ratelimit_redis_send_waiting(conn);
}


/* one worker of all asks, once; if the user may not ask, that is no error */

static void
ngx_http_ratelimit_redis_ask_version(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_str_t  words[2];

    if (!ngx_atomic_cmp_set(&conn->owner->shared->version, 0, 1)) {
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

    /* both numbers have one digit; 6.2 has options that the scripts need */

    if (len < 3 || p[1] != '.' || p[0] > '6' || (p[0] == '6' && p[2] >= '2')) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "ratelimit: redis \"%V\" is version %*s, "
                  "at least 6.2 is needed", &conn->owner->label, len, p);
}
