
/*
 * What comes first on a connection to Redis: who we are, and which database is
 * meant.  Commands wait until both are answered; there is one time for this
 * and for connecting.
 */


#include "redis/ngx_http_ratelimit_redis_conn.h"


static ngx_int_t ngx_http_ratelimit_redis_say(
    ngx_http_ratelimit_redis_conn_t *conn, int argc, ngx_str_t *words);
static void ngx_http_ratelimit_redis_on_greeting(redisAsyncContext *context,
    void *reply, void *data);


ngx_int_t
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

        if (conn->greetings == 0) {
            ngx_http_ratelimit_redis_release(conn, 0);
        }

        return;
    }

    if (r->type == REDIS_REPLY_ERROR) {
        ngx_http_ratelimit_redis_reason(conn->redis, "it answers", r->str,
                                        r->len);
    }

    ngx_http_ratelimit_redis_hang_up(conn);
}


ngx_uint_t
ngx_http_ratelimit_redis_is_made(ngx_http_ratelimit_redis_conn_t *conn)
{
    return !conn->connection->write->timer_set;
}


void
ngx_http_ratelimit_redis_made(ngx_http_ratelimit_redis_conn_t *conn)
{
    ngx_event_t  *wev;

    wev = conn->connection->write;

    if (conn->greetings == 0 && wev->timer_set) {
        ngx_del_timer(wev);
    }
}
