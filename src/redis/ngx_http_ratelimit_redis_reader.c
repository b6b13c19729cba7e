
/*
 * Replies as hiredis parses them.  A server is not trusted: a reply of a type
 * that no command of ours has, or one without a command, ends the connection;
 * and no memory is allocated for a reply.  The elements of an array are handed
 * on one by one.
 */


#include "redis/ngx_http_ratelimit_redis_connection.h"


/* hiredis' type of the number of elements of an array */

#if (HIREDIS_MAJOR >= 1)
typedef size_t  ngx_http_ratelimit_redis_size_t;
#else
typedef int     ngx_http_ratelimit_redis_size_t;
#endif


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


/* what it is a reply to is asked: the greeting, or the oldest message */

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


/* it is the first element */

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
