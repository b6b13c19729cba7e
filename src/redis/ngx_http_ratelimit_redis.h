
/*
 * Zones in Redis: what the store's files know of a server and of what is
 * being asked.
 */


#ifndef _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_


#include "store/ngx_http_ratelimit_shm.h"
#include "redis/ratelimit_breaker.h"
#include "redis/ratelimit_deny_cache.h"
#include "redis/ratelimit_script.h"


/* bytes of the last error that are kept for the log */
#define NGX_HTTP_RATELIMIT_REDIS_REASON  128


typedef struct ngx_http_ratelimit_redis_conn_s
    ngx_http_ratelimit_redis_conn_t;


/* what all workers know of a server: in shared memory, zeros at first */

typedef struct {
    ratelimit_breaker_t             breaker;

    ngx_atomic_t                    commands;
    ngx_atomic_t                    timeouts;
    ngx_atomic_t                    errors;
    ngx_atomic_t                    changes;  /* of the breaker */
    ngx_atomic_t                    fallbacks;
    ngx_atomic_t                    denied;   /* by what was known already */
} ngx_http_ratelimit_redis_shared_t;


/*
 * One "ratelimit_redis", and what a worker has of it.  Strings of the
 * configuration are terminated, secrets must not be logged.
 */

struct ngx_http_ratelimit_redis_s {
    ngx_str_t                       name;
    ngx_str_t                       prefix;   /* of all keys */

    ngx_str_t                       host;     /* IPv6 without brackets */
    in_port_t                       port;
    ngx_str_t                       path;     /* of a socket, then no host */

    ngx_str_t                       user;     /* empty: the default user */
    ngx_str_t                       password; /* empty: none */
    ngx_uint_t                      db;

    ngx_uint_t                      connections;  /* of each worker */
    ngx_msec_t                      timeout;
    ngx_msec_t                      connect_timeout;

    ngx_str_t                       file;     /* where it was declared */
    ngx_uint_t                      line;

    ngx_shm_zone_t                 *shm_zone;
    ngx_http_ratelimit_redis_shared_t  *shared;

    ngx_addr_t                     *addrs;
    ngx_uint_t                      naddrs;
    ngx_uint_t                      addr;     /* the next to be tried */
    ngx_resolver_t                 *resolver; /* NULL: the host is an address,
                                                 or there is none */
    ngx_msec_t                      resolver_timeout;
    ngx_uint_t                      resolving;
    ngx_addr_t                     *resolved; /* to be freed, or NULL */

    ngx_http_ratelimit_redis_conn_t  **conns;
    ngx_uint_t                      conn;     /* whose turn it is */

    ngx_queue_t                     pending;  /* commands, by deadline */
    ngx_event_t                    *timer;    /* of the first of them */

    size_t                          reason_len;
    u_char                          reason[NGX_HTTP_RATELIMIT_REDIS_REASON];
};


/* a command outlives its query, which may be cancelled or run out of time */

typedef struct {
    ngx_queue_t                     queue;    /* of all that are pending */
    ngx_queue_t                     held;     /* until there is a greeting */
    ngx_http_ratelimit_redis_t     *redis;
    ngx_http_ratelimit_query_t     *query;    /* NULL: nobody waits */
    ngx_http_ratelimit_redis_conn_t  *conn;   /* where the answer comes */
    ngx_msec_t                      sent;
    ngx_msec_t                      deadline;
    ratelimit_script_e              op;
    ratelimit_breaker_e             told;
    ngx_uint_t                      n;        /* limits */
    unsigned                        algorithms;
    unsigned                        expired:1;
    unsigned                        loaded:1; /* sent with its script */
    unsigned                        unwanted:1; /* what it is charged, but for
                                                   what is kept */
    u_char                         *args;     /* what follows the script */
    u_char                         *last;
    u_char                          data[1];
} ngx_http_ratelimit_redis_command_t;


typedef enum {
    NGX_HTTP_RATELIMIT_REDIS_STRING = 0,
    NGX_HTTP_RATELIMIT_REDIS_ERROR,
    NGX_HTTP_RATELIMIT_REDIS_OTHER,
    NGX_HTTP_RATELIMIT_REDIS_LOST             /* nobody knows if it was done */
} ngx_http_ratelimit_redis_reply_e;


/* ngx_http_ratelimit_redis.c */

extern const ngx_http_ratelimit_store_t  ngx_http_ratelimit_redis_store;

/* the answer to a command that was sent; the command is gone thereafter */
void ngx_http_ratelimit_redis_reply(ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);

/*
 * Tells who waits.  Redis has decided at some time since it was asked, which is
 * as long ago as age.  The request may be gone thereafter.
 */
void ngx_http_ratelimit_redis_finish(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_query_t *q, ngx_int_t rc, ngx_msec_t age);


/* ngx_http_ratelimit_redis_pending.c */

void ngx_http_ratelimit_redis_await(
    ngx_http_ratelimit_redis_command_t *command);

/* what was asked in the turn of the event loop that began then leaves now */
void ngx_http_ratelimit_redis_sent(ngx_http_ratelimit_redis_t *redis,
    ngx_msec_t turn);

void ngx_http_ratelimit_redis_timer_handler(ngx_event_t *ev);

/* from now on nobody waits for the command; returns who did, or NULL */
ngx_http_ratelimit_query_t *ngx_http_ratelimit_redis_leave(
    ngx_http_ratelimit_redis_command_t *command);

/* the worker ends at once: those who wait will never be told */
void ngx_http_ratelimit_redis_abandon(ngx_http_ratelimit_redis_t *redis);


/* ngx_http_ratelimit_redis_health.c */

/* it has answered, or failed who was told so before */
void ngx_http_ratelimit_redis_success(ngx_http_ratelimit_redis_t *redis);
void ngx_http_ratelimit_redis_failure(ngx_http_ratelimit_redis_t *redis,
    ratelimit_breaker_e told);

/* notes why a server can't be used */
void ngx_http_ratelimit_redis_reason(ngx_http_ratelimit_redis_t *redis,
    const char *what, const char *text, size_t len);


/* ngx_http_ratelimit_redis_command.c: what is sent, as bytes */

ngx_http_ratelimit_redis_command_t *ngx_http_ratelimit_redis_create_command(
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_query_t *q,
    ratelimit_script_e op);

/* the store's use */
ngx_int_t ngx_http_ratelimit_redis_use(ngx_conf_t *cf,
    ngx_http_ratelimit_use_t *use);

/* with the whole script, for who does not know it; freed by the caller */
u_char *ngx_http_ratelimit_redis_create_eval(
    ngx_http_ratelimit_redis_command_t *command, size_t *len);


/* ngx_http_ratelimit_redis_unwanted.c */

/* who has asked is gone: some charges are kept, as they have no cost */
void ngx_http_ratelimit_redis_keep(ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_query_t *q);

/*
 * It is decided without Redis, which may still charge: that stays so, unless
 * the request is refused, or what counts is settled without Redis as well.
 */
void ngx_http_ratelimit_redis_disown(
    ngx_http_ratelimit_redis_command_t *command, ngx_http_ratelimit_query_t *q);

/* makes it give back what it has charged; NGX_DECLINED if that is nothing */
ngx_int_t ngx_http_ratelimit_redis_turn(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *reply);


/* ngx_http_ratelimit_redis_conn.c: the connections of a worker */

ngx_int_t ngx_http_ratelimit_redis_open(ngx_http_ratelimit_redis_t *redis,
    ngx_cycle_t *cycle);
void ngx_http_ratelimit_redis_close(ngx_http_ratelimit_redis_t *redis);

/* but for those that are being made, which may take longer than a command */
void ngx_http_ratelimit_redis_give_up(ngx_http_ratelimit_redis_t *redis);

/*
 * Sends a command, with its script if it is to be loaded; the answer comes
 * later, never from inside.  NGX_ERROR if there is no connection and none can
 * be made.
 */
ngx_int_t ngx_http_ratelimit_redis_send(
    ngx_http_ratelimit_redis_command_t *command);

/* reads what has come meanwhile, and was not seen yet */
void ngx_http_ratelimit_redis_poll(ngx_http_ratelimit_redis_t *redis);

/*
 * Nobody waits for the answer to the command any longer.  A connection on
 * which nothing comes is given up, though others may live.
 */
void ngx_http_ratelimit_redis_expire(
    ngx_http_ratelimit_redis_command_t *command);


/* ngx_http_ratelimit_redis_server.c */

/* when the configuration has been read, and before the zones' uses are added */
ngx_int_t ngx_http_ratelimit_redis_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, void *tag);

/* lets the zone be counted in its Redis */
ngx_int_t ngx_http_ratelimit_redis_bind(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, void *tag);

/* looks for the addresses anew, for the next who connects */
void ngx_http_ratelimit_redis_resolve(ngx_http_ratelimit_redis_t *redis);


/* ngx_http_ratelimit_twin.c */

void ngx_http_ratelimit_twin_charge(ngx_http_ratelimit_query_t *q);
void ngx_http_ratelimit_twin_refund(ngx_http_ratelimit_query_t *q);


/* ngx_http_ratelimit_redis_deny_cache.c */

ngx_int_t ngx_http_ratelimit_redis_deny_cache_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, void *tag);

/* whether a limit of the query is known to refuse: then all verdicts are set */
ngx_uint_t ngx_http_ratelimit_redis_deny_cache_find(
    ngx_http_ratelimit_query_t *q);

/* Redis has refused the query, at most "age" milliseconds ago */
void ngx_http_ratelimit_redis_deny_cache_add(ngx_http_ratelimit_query_t *q,
    ngx_msec_t age);
void ngx_http_ratelimit_redis_deny_cache_forget(ngx_http_ratelimit_query_t *q);


#endif /* _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_ */
