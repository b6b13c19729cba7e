
/*
 * What is said before the messages: AUTH, SELECT and ROLE, and once the
 * question for the version.  There is one timeout for this and for connecting.
 */


#include "redis/ngx_http_ratelimit_redis_connection.h"


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


void
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


/* sends what was kept, if it is over */

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


/* once, by one worker of all; without a permission nothing is said */

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

    /* of one digit each: 6.2 has options that the scripts need */

    if (len < 3 || p[1] != '.' || p[0] > '6' || (p[0] == '6' && p[2] >= '2')) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "ratelimit: redis \"%V\" is version %*s, "
                  "at least 6.2 is needed", &conn->owner->label, len, p);
}
