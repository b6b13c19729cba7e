
/*
 * A connection to Redis, for the files that know hiredis.
 */


#ifndef _NGX_HTTP_RATELIMIT_REDIS_CONN_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REDIS_CONN_H_INCLUDED_


#include "redis/ngx_http_ratelimit_redis.h"

#include <hiredis/hiredis.h>
#include <hiredis/async.h>


/* the longest reply */
#define NGX_HTTP_RATELIMIT_REDIS_REPLY                                        \
    (RATELIMIT_MAX_ITEMS * RATELIMIT_SCRIPT_VERDICT)


struct ngx_http_ratelimit_redis_conn_s {
    ngx_http_ratelimit_redis_t     *redis;
    redisAsyncContext              *context;
    ngx_connection_t               *connection;
    ngx_uint_t                      expected; /* replies */
    ngx_uint_t                      missed;   /* in a row */
    ngx_uint_t                      greetings;  /* to be answered */
    ngx_queue_t                     held;     /* commands, until then */
    ngx_uint_t                      batch;    /* commands not sent yet */
    unsigned                        connected:1;
    unsigned                        writing:1;
    redisReply                      reply;    /* the one at hand */
    char                            text[NGX_HTTP_RATELIMIT_REDIS_REPLY];
};


/* ngx_http_ratelimit_redis_conn.c */

/* others may take its place at once, though it may be freed a bit later */
void ngx_http_ratelimit_redis_hang_up(ngx_http_ratelimit_redis_conn_t *conn);

/* it is of no use any more */
void ngx_http_ratelimit_redis_lost(ngx_http_ratelimit_redis_conn_t *conn);

/* sends the commands that were held, or tells that they are lost */
void ngx_http_ratelimit_redis_release(ngx_http_ratelimit_redis_conn_t *conn,
    ngx_uint_t lost);


/* ngx_http_ratelimit_redis_greet.c */

ngx_int_t ngx_http_ratelimit_redis_greet(
    ngx_http_ratelimit_redis_conn_t *conn);

/* whether it is connected and greeted; notes that it may be */
ngx_uint_t ngx_http_ratelimit_redis_is_made(
    ngx_http_ratelimit_redis_conn_t *conn);
void ngx_http_ratelimit_redis_made(ngx_http_ratelimit_redis_conn_t *conn);


/* ngx_http_ratelimit_redis_events.c: hiredis on nginx's event loop */

/* from here on hiredis frees the connection together with its context */
ngx_int_t ngx_http_ratelimit_redis_attach(
    ngx_http_ratelimit_redis_conn_t *conn);


/* ngx_http_ratelimit_redis_reader.c: what is taken for a reply */

extern redisReplyObjectFunctions  ngx_http_ratelimit_redis_reader;


#endif /* _NGX_HTTP_RATELIMIT_REDIS_CONN_H_INCLUDED_ */
