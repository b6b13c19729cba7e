
/*
 * What is taken for a reply.  A server is not trusted: what no command of ours
 * can bring, or what nobody has asked for, ends the connection; and nothing is
 * allocated for a reply.
 */


#include "redis/ngx_http_ratelimit_redis_conn.h"


static void *ngx_http_ratelimit_redis_reply_object(const redisReadTask *task);
static void *ngx_http_ratelimit_redis_read_string(const redisReadTask *task,
    char *text, size_t len);
static void *ngx_http_ratelimit_redis_read_integer(const redisReadTask *task,
    long long number);
static void *ngx_http_ratelimit_redis_read_nil(const redisReadTask *task);
static void ngx_http_ratelimit_redis_free_object(void *reply);

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


redisReplyObjectFunctions  ngx_http_ratelimit_redis_reader = {
    .createString = ngx_http_ratelimit_redis_read_string,
    .createArray = ngx_http_ratelimit_redis_read_array,
    .createInteger = ngx_http_ratelimit_redis_read_integer,
#if (HIREDIS_MAJOR >= 1)
    .createDouble = ngx_http_ratelimit_redis_read_double,
    .createBool = ngx_http_ratelimit_redis_read_bool,
#endif
    .createNil = ngx_http_ratelimit_redis_read_nil,
    .freeObject = ngx_http_ratelimit_redis_free_object
};


/* what a server says unasked is not listened to */

static void *
ngx_http_ratelimit_redis_reply_object(const redisReadTask *task)
{
    ngx_http_ratelimit_redis_conn_t  *conn;

    conn = task->privdata;

    if (conn->expected == 0) {
        return NULL;
    }

    conn->expected--;
    conn->missed = 0;

    conn->reply.type = task->type;
    conn->reply.str = conn->text;
    conn->reply.len = 0;

    return &conn->reply;
}


static void *
ngx_http_ratelimit_redis_read_string(const redisReadTask *task, char *text,
    size_t len)
{
    ngx_http_ratelimit_redis_conn_t  *conn;

    conn = task->privdata;

    if (len > NGX_HTTP_RATELIMIT_REDIS_REPLY) {
        return NULL;
    }

    ngx_memcpy(conn->text, text, len);

    if (ngx_http_ratelimit_redis_reply_object(task) == NULL) {
        return NULL;
    }

    conn->reply.len = len;

    return &conn->reply;
}


static void *
ngx_http_ratelimit_redis_read_integer(const redisReadTask *task,
    long long number)
{
    return ngx_http_ratelimit_redis_reply_object(task);
}


static void *
ngx_http_ratelimit_redis_read_nil(const redisReadTask *task)
{
    return ngx_http_ratelimit_redis_reply_object(task);
}


static void
ngx_http_ratelimit_redis_free_object(void *reply)
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
