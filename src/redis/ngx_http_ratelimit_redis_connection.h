
/*
 * A connection, for the files that make it up.  They alone know hiredis.
 */


#ifndef _NGX_HTTP_RATELIMIT_REDIS_CONNECTION_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REDIS_CONNECTION_H_INCLUDED_


#include "redis/ngx_http_ratelimit_redis.h"

#include <hiredis/hiredis.h>
#include <hiredis/async.h>


/* after so many milliseconds without a message a connection may be dead */
#define NGX_HTTP_RATELIMIT_REDIS_IDLE  900


struct ngx_http_ratelimit_redis_connection_s {
    ngx_http_ratelimit_redis_owner_t  *owner;
    redisAsyncContext              *context;
    ngx_connection_t               *connection;
    ngx_queue_t                     messages; /* until the greeting is over,
                                                 or what has arrived is read */
    ngx_queue_t                     sent;     /* messages without a reply */
    ngx_uint_t                      greeting; /* replies that are missing */
    ngx_uint_t                      expected; /* replies, all together */
    ngx_uint_t                      expired;  /* messages since the last one */
    ngx_uint_t                      batch;    /* messages not written yet */
    ngx_msec_t                      active;   /* time of the last reply */
    ngx_atomic_uint_t               generation;
    unsigned                        connected:1;
    unsigned                        encrypted:1;
    unsigned                        drained:1;  /* TLS: all has been read */
    unsigned                        blocked:1;  /* TLS: it must write first */
    unsigned                        greeted:1;
    unsigned                        primary:1;  /* it says */
    unsigned                        ready:1;
    unsigned                        reading:1;
    unsigned                        writing:1;
    unsigned                        replied:1;
    unsigned                        suspect:1;  /* it was idle, and has not
                                                   replied since */
    unsigned                        retired:1;
    unsigned                        closed:1; /* by the server */
    redisReply                      reply;    /* the current one */
    char                            text[NGX_HTTP_RATELIMIT_REDIS_REPLY];
};


/* ngx_http_ratelimit_redis_message.c */

/* what would be written at the end of this turn is written now */
void ngx_http_ratelimit_redis_flush(
    ngx_http_ratelimit_redis_connection_t *connection);

/* the worker exits */
void ngx_http_ratelimit_redis_connection_exit(
    ngx_http_ratelimit_redis_connection_t *connection);

/* messages that wait for the end of the greeting */
void ngx_http_ratelimit_redis_send_waiting(
    ngx_http_ratelimit_redis_connection_t *connection);
void ngx_http_ratelimit_redis_lose_waiting(
    ngx_http_ratelimit_redis_connection_t *connection);

/* the connection is closed: finds out what that means */
void ngx_http_ratelimit_redis_messages_lost(
    ngx_http_ratelimit_redis_connection_t *connection);

/* how hiredis has replies parsed */
extern redisReplyObjectFunctions  ngx_http_ratelimit_redis_reader;


/* ngx_http_ratelimit_redis_tls.c */

#if (NGX_HTTP_RATELIMIT_TLS)

ngx_int_t ngx_http_ratelimit_redis_tls_start(
    ngx_http_ratelimit_redis_connection_t *connection);

/* NGX_AGAIN until it is over; what went wrong has been reported */
ngx_int_t ngx_http_ratelimit_redis_tls_handshake(
    ngx_http_ratelimit_redis_connection_t *connection);

/* why it has taken too long */
const char *ngx_http_ratelimit_redis_tls_timeout(
    ngx_http_ratelimit_redis_connection_t *connection);

/* before the socket is closed */
void ngx_http_ratelimit_redis_tls_close(
    ngx_http_ratelimit_redis_connection_t *connection);

#else

#define ngx_http_ratelimit_redis_tls_start(connection)      NGX_ERROR
#define ngx_http_ratelimit_redis_tls_handshake(connection)  NGX_ERROR
#define ngx_http_ratelimit_redis_tls_timeout(connection)    NULL
#define ngx_http_ratelimit_redis_tls_close(connection)

#endif


#endif /* _NGX_HTTP_RATELIMIT_REDIS_CONNECTION_H_INCLUDED_ */
