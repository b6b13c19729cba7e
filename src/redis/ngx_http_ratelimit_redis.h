
/*
 * Zones in Redis.  A file calls those below it in this list and none above:
 * what it has to report it reports through a handler that was set when its
 * object was created.  t/01-layers.t checks this.
 *
 *   ngx_http_ratelimit_redis.c             declared servers, a worker's start
 *                                          and exit
 *   ngx_http_ratelimit_redis_sync.c        write-back: the store that decides
 *                                          in shared memory
 *   ngx_http_ratelimit_redis_report.c      and what it reports to Redis
 *   ngx_http_ratelimit_redis_store.c       the store: what is sent, and what
 *                                          follows from a reply
 *   ngx_http_ratelimit_redis_deny_cache.c  refusals that are known
 *   ngx_http_ratelimit_redis_mirror.c      Redis' counters in shared memory
 *   ngx_http_ratelimit_redis_resets.c      resets of keys, also by others
 *   ngx_http_ratelimit_redis_send.c        a command's way to a server
 *   ngx_http_ratelimit_redis_undo.c        charges that have to be undone
 *   ngx_http_ratelimit_redis_reply.c       what a reply says
 *   ngx_http_ratelimit_redis_command.c     commands as bytes, names of counters
 *   ngx_http_ratelimit_redis_discovery.c   which nodes there are: asked when
 *                                          that may have changed
 *   ngx_http_ratelimit_redis_sentinel.c    the question for a sentinel
 *   ngx_http_ratelimit_redis_cluster.c     the question for a cluster
 *   ngx_http_ratelimit_redis_nodes.c       nodes, and what they are for
 *   ngx_http_ratelimit_redis_timeout.c     deadlines, and the breaker
 *   ngx_http_ratelimit_redis_server.c      a server: its addresses and
 *                                          connections
 *   ngx_http_ratelimit_redis_counters.c    and what is counted of it
 *   ngx_http_ratelimit_redis_connection.c  a connection: hiredis on nginx's
 *                                          event loop, and the greeting
 *   ngx_http_ratelimit_redis_message.c     messages and their replies, which
 *                                          a connection stays for
 *   ngx_http_ratelimit_redis_tls.c         TLS under hiredis
 */


#ifndef _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_


#include "store/ngx_http_ratelimit_shm.h"
#include "store/ngx_http_ratelimit_statistics.h"
#include "redis/ratelimit_breaker.h"
#include "redis/ratelimit_cluster.h"
#include "redis/ratelimit_deny_cache.h"
#include "redis/ratelimit_ledger.h"
#include "redis/ratelimit_script.h"


/* bytes of the longest reply */
#define NGX_HTTP_RATELIMIT_REDIS_REPLY                                        \
    (RATELIMIT_SCRIPT_ECHO + RATELIMIT_MAX_ITEMS * RATELIMIT_SCRIPT_VERDICT)

/*
 * Milliseconds for which a worker waits for late replies, and keeps refunds for
 * a server that is marked down; the same for a worker that exits; and between
 * two attempts to send such refunds.
 */
#define NGX_HTTP_RATELIMIT_REDIS_LISTEN  60000
#define NGX_HTTP_RATELIMIT_REDIS_EXIT    3000
#define NGX_HTTP_RATELIMIT_REDIS_RETRY   200

/* refunds that a worker keeps for a server that is marked down */
#define NGX_HTTP_RATELIMIT_REDIS_POSTPONED  4096

/* questions in a second, by a worker, about what is refused elsewhere */
#define NGX_HTTP_RATELIMIT_REDIS_ASKS  100

/* bytes of the last error that are kept for the log */
#define NGX_HTTP_RATELIMIT_REDIS_REASON  128


typedef struct ngx_http_ratelimit_redis_connection_s
    ngx_http_ratelimit_redis_connection_t;
typedef struct ngx_http_ratelimit_redis_message_s
    ngx_http_ratelimit_redis_message_t;
typedef struct ngx_http_ratelimit_redis_server_s
    ngx_http_ratelimit_redis_server_t;
typedef struct ngx_http_ratelimit_redis_command_s
    ngx_http_ratelimit_redis_command_t;
typedef struct ngx_http_ratelimit_redis_nodes_s
    ngx_http_ratelimit_redis_nodes_t;
typedef struct ngx_http_ratelimit_redis_discovery_s
    ngx_http_ratelimit_redis_discovery_t;


/* in shared memory, for all workers; zeros at first */

typedef struct {
    ratelimit_breaker_t             breaker;

    ngx_atomic_t                    failing;  /* when the first command was
                                                 sent that failed in this
                                                 outage, ms; or 0 */
    ngx_atomic_t                    failed;   /* when the last one has */
    ngx_atomic_t                    generation;  /* older connections may be
                                                    dead */
    ngx_atomic_t                    logged;   /* second of the last line about
                                                 one key */
    ngx_atomic_t                    version;  /* is known, or asked for */
    ngx_atomic_t                    addr;     /* the one to be used */
    ngx_atomic_t                    replica;  /* when it said that it is no
                                                 primary, ms; or 0 */

    ngx_atomic_t                    resets;   /* of keys: Redis' number */
    ngx_atomic_t                    reset_count;  /* changes of resets */
    ngx_atomic_t                    resets_asked;  /* when, ms */
    ngx_atomic_t                    resets_known;  /* as of when, ms */
    ngx_atomic_t                    offset;   /* see offsets, without nodes */

    ngx_atomic_t                    gone;     /* from the configuration */

    /* lanes, which are kept then; NULL: there are no statistics */

    ngx_http_ratelimit_redis_counters_t  *counters;
} ngx_http_ratelimit_redis_shared_t;


/* bytes of these */
#define NGX_HTTP_RATELIMIT_REDIS_LANES                                        \
    (NGX_HTTP_RATELIMIT_LANES * sizeof(ngx_http_ratelimit_redis_counters_t))

#define ngx_http_ratelimit_redis_count(shared, counter, n)                    \
    if (ngx_http_ratelimit_counted && (shared)->counters != NULL) {           \
        (void) ngx_atomic_fetch_add(                                          \
            &(shared)->counters[ngx_http_ratelimit_lane].counter, n);         \
    }


/* strings are terminated, secrets must not be logged */

typedef struct {
    ngx_str_t                       host;     /* IPv6 without brackets */
    in_port_t                       port;
    ngx_str_t                       path;     /* of a socket, then no host */
} ngx_http_ratelimit_redis_endpoint_t;


typedef struct {
    ngx_str_t                       user;     /* empty: the default user */
    ngx_str_t                       password; /* empty: none */
    ngx_uint_t                      db;
    ngx_uint_t                      primary;  /* the server must be one */
} ngx_http_ratelimit_redis_login_t;


/* TLS needs a hiredis that has others read and write, and nginx's OpenSSL */

#if (NGX_HTTP_RATELIMIT_HIREDIS_IO && NGX_SSL)
#define NGX_HTTP_RATELIMIT_TLS           1
#define NGX_HTTP_RATELIMIT_REDIS_NO_TLS  NULL
#elif defined NGX_HTTP_RATELIMIT_NO_TLS
#define NGX_HTTP_RATELIMIT_REDIS_NO_TLS  NGX_HTTP_RATELIMIT_NO_TLS
#else
#define NGX_HTTP_RATELIMIT_REDIS_NO_TLS                                       \
    "rediss:// needs an nginx that was built with \"--with-http_ssl_module\""
#endif


typedef struct {
    ngx_ssl_t                      *ssl;      /* what is trusted and shown */
    ngx_str_t                       name;     /* empty: the host's */
    unsigned                        verify:1;
} ngx_http_ratelimit_redis_tls_t;


/* one "ratelimit_redis" of the configuration */

struct ngx_http_ratelimit_redis_s {
    ngx_str_t                       name;
    ngx_str_t                       prefix;   /* of all keys */

    ngx_array_t                     endpoints;  /* of the URLs: the server,
                                                   or those that are asked */
    ngx_http_ratelimit_redis_login_t  login;
    ngx_http_ratelimit_redis_tls_t   *tls;    /* NULL: plain text */

    ngx_uint_t                      cluster;  /* keys are on several nodes */
    ngx_str_t                       sentinel; /* name of the primary, or
                                                 empty */
    ngx_http_ratelimit_redis_login_t  sentinel_login;
    ngx_http_ratelimit_redis_tls_t   *sentinel_tls;

    ngx_uint_t                      connections;  /* of each worker */
    ngx_uint_t                      counted;  /* there are statistics */
    ngx_msec_t                      timeout;
    ngx_msec_t                      connect_timeout;

    ngx_resolver_t                 *resolver; /* or NULL */
    ngx_msec_t                      resolver_timeout;

    ngx_str_t                       file;     /* where it was declared */
    ngx_uint_t                      line;

    ngx_http_ratelimit_redis_shared_t  *shared;
    ngx_atomic_t                   *offsets;  /* of each hash slot: ms by which
                                                 the clock of its server is
                                                 ahead, 0: not known */
    ngx_http_ratelimit_redis_server_t  *server;  /* if there are nodes: where
                                                    commands wait for one */
    ngx_http_ratelimit_redis_nodes_t      *nodes;      /* or NULL */
    ngx_http_ratelimit_redis_discovery_t  *discovery;  /* or NULL */
    struct ngx_http_ratelimit_sync_s      *syncs;      /* zones that report */
};


/* ngx_http_ratelimit_redis_counters.c */

/* if there are statistics; the caller has locked the pool */
ngx_int_t ngx_http_ratelimit_redis_add_counters(
    ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_shared_t *shared, ngx_slab_pool_t *pool);

/* see ngx_http_ratelimit_kept.h; the name of the Redis itself is empty */
void ngx_http_ratelimit_redis_keep_counters(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *node, ngx_http_ratelimit_redis_shared_t *shared);
void ngx_http_ratelimit_redis_restore_counters(
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *node,
    ngx_http_ratelimit_redis_shared_t *shared);

/*
 * Of all workers, and what is kept, as a worker of a former configuration may
 * still be asked; zeros if there are no statistics.
 */
void ngx_http_ratelimit_redis_sum_counters(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *node, ngx_http_ratelimit_redis_shared_t *shared,
    ngx_http_ratelimit_redis_counters_t *sum);


/* ngx_http_ratelimit_redis_connection.c */

typedef enum {
    NGX_HTTP_RATELIMIT_REDIS_STRING = 0,
    NGX_HTTP_RATELIMIT_REDIS_ERROR,
    NGX_HTTP_RATELIMIT_REDIS_OTHER,
    NGX_HTTP_RATELIMIT_REDIS_LOST,            /* it may have been executed */
    NGX_HTTP_RATELIMIT_REDIS_UNREAD           /* it was not executed */
} ngx_http_ratelimit_redis_reply_e;


/*
 * The owner of a connection, and the handlers that it is called by.
 *
 * on_unreachable  it could not be made, or is silent: another address may do
 * on_error        why it is closed, with what the server said, or NULL
 * on_write        what was sent in the turn of the event loop that began then
 *                 has been written now
 * on_close        it can't be used any more; it is freed now or a bit later
 */

typedef struct {
    void                           *data;
    ngx_str_t                       label;    /* for the log */
    ngx_http_ratelimit_redis_t     *redis;    /* settings */
    ngx_http_ratelimit_redis_login_t   *login;
    ngx_http_ratelimit_redis_tls_t     *tls;  /* NULL: plain text */
    ngx_str_t                       host;     /* that TLS verifies */
    void                           *session;  /* of TLS, the last one */
    ngx_http_ratelimit_redis_shared_t  *shared;
    ngx_uint_t                      open;     /* connections */
    ngx_uint_t                      retired;  /* of these */
    void  (*on_unreachable)(void *data, const char *reason);
    void  (*on_error)(void *data, const char *reason, ngx_str_t *said);
    void  (*on_write)(void *data, ngx_msec_t turn);
    void  (*on_close)(void *data,
        ngx_http_ratelimit_redis_connection_t *connection);
} ngx_http_ratelimit_redis_owner_t;


typedef void (*ngx_http_ratelimit_redis_reply_pt)(
    ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);


/* an element of a reply that is an array; 0 ends the connection */

typedef ngx_uint_t (*ngx_http_ratelimit_redis_element_pt)(
    ngx_http_ratelimit_redis_message_t *message,
    const ratelimit_element_t *element);


/* the handler is called once for each message that was sent, never by send */

struct ngx_http_ratelimit_redis_message_s {
    u_char                         *data;
    size_t                          len;
    ngx_http_ratelimit_redis_reply_pt  handler;
    ngx_http_ratelimit_redis_element_pt  on_element;
                                                /* NULL: no reply of ours is an
                                                   array */
    unsigned                        asking:1;   /* of a hash slot that is being
                                                   moved to the server */
    unsigned                        urgent:1;   /* it is written at once */
    unsigned                        expired:1;  /* don't send it any more */
    unsigned                        unread:1;   /* and never will be */

    /* the connection's own */
    uint64_t                        began;    /* us of the monotonic clock */
    ngx_queue_t                     queue;
    ngx_http_ratelimit_redis_owner_t       *owner;
    ngx_http_ratelimit_redis_connection_t  *connection;  /* or NULL: it waits
                                                            for one */
};


/* port 0: the address is the path of a socket; NULL if that fails at once */
ngx_http_ratelimit_redis_connection_t *ngx_http_ratelimit_redis_connect(
    ngx_http_ratelimit_redis_owner_t *owner, u_char *address, in_port_t port);

/* reads what has arrived, before nginx's event loop says so */
void ngx_http_ratelimit_redis_connection_read(
    ngx_http_ratelimit_redis_connection_t *connection);

/* whether it is connected, with the right user and database */
ngx_uint_t ngx_http_ratelimit_redis_connection_ready(
    ngx_http_ratelimit_redis_connection_t *connection);


/* ngx_http_ratelimit_redis_message.c */

void ngx_http_ratelimit_redis_disconnect(
    ngx_http_ratelimit_redis_connection_t *connection);

/* closes it as soon as all replies are there; it may be freed at once */
void ngx_http_ratelimit_redis_connection_retire(
    ngx_http_ratelimit_redis_connection_t *connection);

/* whether messages are likely to arrive */
ngx_uint_t ngx_http_ratelimit_redis_connection_usable(
    ngx_http_ratelimit_redis_connection_t *connection);

/* a message has expired: a connection without any reply is retired */
void ngx_http_ratelimit_redis_connection_expire(
    ngx_http_ratelimit_redis_message_t *message);

ngx_int_t ngx_http_ratelimit_redis_connection_send(
    ngx_http_ratelimit_redis_connection_t *connection,
    ngx_http_ratelimit_redis_message_t *message);

/* of all processes; nginx's clock has milliseconds, those of the last event */
uint64_t ngx_http_ratelimit_redis_usec(void);


/* ngx_http_ratelimit_redis_tls.c */

/* there will be no more connections of this owner */
#if (NGX_HTTP_RATELIMIT_TLS)
void ngx_http_ratelimit_redis_tls_forget(
    ngx_http_ratelimit_redis_owner_t *owner);
#else
#define ngx_http_ratelimit_redis_tls_forget(owner)
#endif


/* ngx_http_ratelimit_redis_server.c */

typedef void (*ngx_http_ratelimit_redis_server_pt)(
    ngx_http_ratelimit_redis_server_t *server);
typedef void (*ngx_http_ratelimit_redis_timeout_pt)(
    ngx_http_ratelimit_redis_command_t *command);


/* one server, and what a worker has of it */

struct ngx_http_ratelimit_redis_server_s {
    ngx_http_ratelimit_redis_t     *redis;    /* settings */
    ngx_http_ratelimit_redis_endpoint_t  endpoint;

    ngx_addr_t                     *addrs;
    ngx_uint_t                      naddrs;
    ngx_atomic_uint_t               addr;     /* the one used last */
    unsigned                        named:1;  /* and there is a resolver */
    unsigned                        resolving:1;
    unsigned                        unknown:1;  /* its address is, as logged */
    ngx_addr_t                     *resolved; /* to be freed, or NULL */
    ngx_addr_t                      found;
    ngx_sockaddr_t                  sockaddr; /* of it */

    ngx_http_ratelimit_redis_owner_t         owner;  /* of the connections */
    ngx_http_ratelimit_redis_connection_t  **connections;
    ngx_uint_t                      nconnections;
    ngx_uint_t                      current;  /* used last */
    ngx_queue_t                     waiting;  /* messages, until it is known
                                                 where to connect to */
    ngx_msec_t                      lost;     /* when a connection was */
    ngx_atomic_t                   *asked;    /* it may connect if this is not
                                                 before; or NULL */
    ngx_http_ratelimit_redis_server_pt  on_trouble;  /* or NULL */
    ngx_msec_t                      used;     /* when a message was sent */
    ngx_atomic_uint_t               id;       /* of the node, or 0 */
    ngx_queue_t                     queue;    /* of nodes that are gone */

    ngx_queue_t                     commands; /* by deadline */
    ngx_event_t                     timer;    /* of the first of them */
    ngx_connection_t                dummy;    /* of the timer */
    ngx_http_ratelimit_redis_timeout_pt  on_timeout;

    ngx_queue_t                     postponed;  /* commands without a query,
                                                   while it is marked down */
    ngx_uint_t                      npostponed;
    ngx_event_t                     retry;    /* of the first of them */

    time_t                          second;   /* in which there were so many */
    ngx_uint_t                      asks;

    size_t                          reason_len;
    u_char                          reason[NGX_HTTP_RATELIMIT_REDIS_REASON];
};


/* without an endpoint: the lobby, where messages wait for another server */
ngx_http_ratelimit_redis_server_t *ngx_http_ratelimit_redis_server_create(
    ngx_conf_t *cf, ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_endpoint_t *endpoint);

/* one that is found while requests run; its memory is zeroed */
void ngx_http_ratelimit_redis_server_init(
    ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_endpoint_t *endpoint);

/* NAME/HOST:PORT, what a server is called in the log */
size_t ngx_http_ratelimit_redis_label_len(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_endpoint_t *endpoint);
u_char *ngx_http_ratelimit_redis_write_label(u_char *p,
    ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_endpoint_t *endpoint);

/* HOST:PORT, as in a URL */
u_char *ngx_http_ratelimit_redis_write_endpoint(u_char *p,
    ngx_http_ratelimit_redis_endpoint_t *endpoint);

/* makes all connections */
void ngx_http_ratelimit_redis_server_open(
    ngx_http_ratelimit_redis_server_t *server);
void ngx_http_ratelimit_redis_server_close(
    ngx_http_ratelimit_redis_server_t *server);

/*
 * Retires all connections except those that are being made: that may take
 * longer than a reply.  The next ones are to another address, if there is one.
 */
void ngx_http_ratelimit_redis_server_retire(
    ngx_http_ratelimit_redis_server_t *server);

/* the same, if there is another address */
void ngx_http_ratelimit_redis_server_next_address(
    ngx_http_ratelimit_redis_server_t *server);

/*
 * Sends on any connection; NGX_ERROR if there is none and none can be made.  A
 * message that waits for one is handed back by wake, as if the server had not
 * read it.
 */
ngx_int_t ngx_http_ratelimit_redis_server_send(
    ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_message_t *message);

void ngx_http_ratelimit_redis_server_wait(
    ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_message_t *message);
void ngx_http_ratelimit_redis_server_wake(
    ngx_http_ratelimit_redis_server_t *server);

/* the server may have moved, or may be no primary any more: that is asked */
void ngx_http_ratelimit_redis_server_trouble(
    ngx_http_ratelimit_redis_server_t *server);

void ngx_http_ratelimit_redis_server_read(
    ngx_http_ratelimit_redis_server_t *server);

/* why the server can't be used, with what it said itself, or NULL */
void ngx_http_ratelimit_redis_set_reason(
    ngx_http_ratelimit_redis_server_t *server, ngx_str_t *said,
    const char *fmt, ...);

void ngx_http_ratelimit_redis_find_resolver(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis);

/* the host of a server that was found, whose address may be known, too */
void ngx_http_ratelimit_redis_set_host(
    ngx_http_ratelimit_redis_server_t *server, ngx_str_t *address);

/* looks the addresses up, if they may change */
void ngx_http_ratelimit_redis_resolve(
    ngx_http_ratelimit_redis_server_t *server);


/* ngx_http_ratelimit_redis_timeout.c */

/*
 * The result of a command, before the query's handler is called: rc is as that
 * of parse_reply, the text that of the reply, or NULL. The query may be NULL.
 */
typedef void (*ngx_http_ratelimit_redis_result_pt)(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc,
    ngx_str_t *text);


/* a command outlives its query, which may be cancelled or time out */

struct ngx_http_ratelimit_redis_command_s {
    ngx_http_ratelimit_redis_message_t  message;
    ngx_queue_t                     queue;    /* by deadline, or postponed;
                                                 unless expired */
    ngx_http_ratelimit_redis_server_t  *server;
    ngx_http_ratelimit_query_t     *query;    /* or NULL */
    ngx_msec_t                      sent;     /* Redis can't have decided
                                                 before */
    ngx_msec_t                      written;  /* its time begins */
    ngx_msec_t                      deadline;
    ngx_msec_t                      postponed;  /* since when it waits for a
                                                   server, or 0 */
    ratelimit_script_e              op;
    ratelimit_breaker_e             permit;
    ngx_uint_t                      n;        /* limits */
    unsigned                        algorithms;
    unsigned                        sync:1;   /* a script of write-back */
    unsigned                        undo:1;   /* charges of some limits */
    unsigned                        lost:1;   /* it may have been executed, and
                                                 there will be no reply */
    unsigned                        again:2;  /* so often it was asked again */
    unsigned                        probe:1;  /* a write, for the breaker */
    unsigned                        sendings:4;  /* further ones */
    uint16_t                        slot;     /* of the hash of its keys */
    u_char                         *eval;     /* with the whole script, if it
                                                 was sent so; or NULL */
    u_char                         *args;     /* what follows the script */
    u_char                         *arguments;  /* and the operation */
    u_char                         *last;
    ngx_http_ratelimit_redis_result_pt  on_reply;  /* or NULL */
    void                           *context;  /* of it */
    uint64_t                        question; /* its number, or 0 */
    ngx_queue_t                     open;     /* questions of the worker */
    u_char                          data[1];
};


/* on_timeout is called for a command that has been removed */
void ngx_http_ratelimit_redis_timeout_init(
    ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_timeout_pt on_timeout,
    ngx_event_handler_pt on_retry);
void ngx_http_ratelimit_redis_timeout_add(
    ngx_http_ratelimit_redis_command_t *command);
void ngx_http_ratelimit_redis_timeout_remove(
    ngx_http_ratelimit_redis_command_t *command);

/* the worker exits: no handler will be called any more */
void ngx_http_ratelimit_redis_timeout_remove_all(
    ngx_http_ratelimit_redis_server_t *server);

/* whether the server may be used; its replies and failures are reported */
ratelimit_breaker_e ngx_http_ratelimit_redis_permit(
    ngx_http_ratelimit_redis_server_t *server);
ngx_uint_t ngx_http_ratelimit_redis_stops(
    ngx_http_ratelimit_redis_server_t *server);
void ngx_http_ratelimit_redis_success(
    ngx_http_ratelimit_redis_server_t *server, ratelimit_breaker_e permit);
void ngx_http_ratelimit_redis_failure(
    ngx_http_ratelimit_redis_server_t *server, ratelimit_breaker_e permit,
    ngx_msec_t sent);


/* ngx_http_ratelimit_redis_command.c */

/* NULL if there is no memory, or if the operation concerns no limit */
ngx_http_ratelimit_redis_command_t *ngx_http_ratelimit_redis_create_command(
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_query_t *q,
    ratelimit_script_e op);
void ngx_http_ratelimit_redis_free_command(
    ngx_http_ratelimit_redis_command_t *command);

/* one limit of a command of write-back */

typedef struct {
    ratelimit_item_t               *item;
    ngx_str_t                       name;     /* of the counter */
    u_char                         *tail;     /* behind the argument */
    size_t                          tail_len;
} ngx_http_ratelimit_redis_row_t;

ngx_http_ratelimit_redis_command_t *ngx_http_ratelimit_redis_create_rows(
    ngx_http_ratelimit_redis_t *redis, ratelimit_script_e op,
    ngx_http_ratelimit_redis_row_t *rows, ngx_uint_t n);

/* whether what is sent for the counter of this name is not permitted now */
ngx_uint_t ngx_http_ratelimit_redis_row_stops(
    ngx_http_ratelimit_redis_t *redis, u_char *name, size_t len);

/* the name of a counter, and the bytes that it takes at most */
size_t ngx_http_ratelimit_redis_name_len(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_subject_t *subject);
u_char *ngx_http_ratelimit_redis_write_name(u_char *p,
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_subject_t *subject,
    ratelimit_item_t *item);

/* gets the number of the last reset, or sets it; NULL without memory */
ngx_http_ratelimit_redis_command_t *ngx_http_ratelimit_redis_create_resets(
    ngx_http_ratelimit_redis_t *redis, uint64_t number);

/* where that number is */
uint16_t ngx_http_ratelimit_redis_resets_slot(void);

/*
 * A command that shows whether the server can write, in a cluster in the hash
 * slot of the tag, which is empty otherwise; NULL without memory.
 */
ngx_http_ratelimit_redis_command_t *ngx_http_ratelimit_redis_create_probe(
    ngx_http_ratelimit_redis_server_t *server, uint16_t slot, ngx_str_t *tag);

/* that of the first key of a command, with its braces */
void ngx_http_ratelimit_redis_find_tag(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *tag);

/* the message of the command: with its script's hash, or the whole script */
void ngx_http_ratelimit_redis_set_evalsha(
    ngx_http_ratelimit_redis_command_t *command);
ngx_int_t ngx_http_ratelimit_redis_set_eval(
    ngx_http_ratelimit_redis_command_t *command);

/* the hash slot of the keys of a client, in a cluster */
uint32_t ngx_http_ratelimit_redis_part(ngx_http_ratelimit_subject_t *subject);

/* the part of the keys in Redis that follows the key of a client */
ngx_int_t ngx_http_ratelimit_redis_key_suffix(ngx_conf_t *cf,
    ngx_http_ratelimit_use_t *use);


/* ngx_http_ratelimit_redis_reply.c */

/*
 * Sets the verdicts of the query, if there is one.
 *
 *     NGX_AGAIN     Redis does not know the script: nothing was executed
 *     NGX_DECLINED  an error that speaks of this command alone
 *     NGX_ERROR     one that speaks of the server, or no reply at all
 *     NGX_ABORT     not a reply to this command
 */
ngx_int_t ngx_http_ratelimit_redis_parse_reply(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);

/* whether it is a reply to this command, or an error; its echo is cut off */
ngx_uint_t ngx_http_ratelimit_redis_is_reply(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);

/* whether an error is about the server, not about one command */
ngx_uint_t ngx_http_ratelimit_redis_speaks_of_server(ngx_str_t *text);

/* about what a user may do, which a script learns when it has written, too */
ngx_uint_t ngx_http_ratelimit_redis_speaks_of_user(ngx_str_t *text);

/* where the verdicts of a decision are in its reply, NULL if it is none */
u_char *ngx_http_ratelimit_redis_verdicts(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *reply);


/* ngx_http_ratelimit_redis_undo.c */

/* the request is gone: what it is charged is undone where it has a cost */
void ngx_http_ratelimit_redis_undo_cancelled(
    ngx_http_ratelimit_redis_command_t *command, ngx_http_ratelimit_query_t *q);

/*
 * The request is decided without Redis, which may still charge it: that is
 * undone if the request is refused, or if its status is settled elsewhere.
 */
void ngx_http_ratelimit_redis_undo_expired(
    ngx_http_ratelimit_redis_command_t *command, ngx_http_ratelimit_query_t *q);

/*
 * Questions of write-back have numbers, which rise: Redis remembers what a
 * question has charged until the worker says that it is settled, so that one
 * whose reply is lost can be made void.  All below this number are settled.
 */
uint64_t ngx_http_ratelimit_redis_questions_settled(void);
uint64_t ngx_http_ratelimit_redis_next_question(void);

/* until the command is freed the question is not settled */
void ngx_http_ratelimit_redis_open_question(
    ngx_http_ratelimit_redis_command_t *command, uint64_t number);

/* makes the question void; NGX_DECLINED if it was not lost */
ngx_int_t ngx_http_ratelimit_redis_void(
    ngx_http_ratelimit_redis_command_t *command);

/* makes the command a refund; NGX_DECLINED if nothing has to be undone */
ngx_int_t ngx_http_ratelimit_redis_undo(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *reply);


/* ngx_http_ratelimit_redis_send.c */

/*
 * Calls the message's handler once, later; a command without a query may wait
 * until the server is up.  Frees the command if sending fails.
 */
ngx_int_t ngx_http_ratelimit_redis_send(
    ngx_http_ratelimit_redis_command_t *command);

/* a probe without a command, if the server is marked down and it is time */
void ngx_http_ratelimit_redis_send_probe(
    ngx_http_ratelimit_redis_server_t *server, uint16_t slot, ngx_str_t *tag,
    ngx_http_ratelimit_redis_reply_pt handler);

/*
 * Sends the command once more, before the same deadline, to the server that is
 * responsible now, or to this one, if it is up.  NGX_ABORT: it was sent too
 * often.
 */
ngx_int_t ngx_http_ratelimit_redis_resend(
    ngx_http_ratelimit_redis_command_t *command);

/* frees a command that has ended, unless it is a question to be made void */
void ngx_http_ratelimit_redis_release(
    ngx_http_ratelimit_redis_command_t *command);

/* what settles a decision waits until the server is up, or it is too late */
void ngx_http_ratelimit_redis_postpone(
    ngx_http_ratelimit_redis_command_t *command);

/*
 * Sends the refund that the command has become on the connection that the reply
 * came from, even if the server is marked down; the refund has a timeout of its
 * own.
 */
void ngx_http_ratelimit_redis_send_undo(
    ngx_http_ratelimit_redis_command_t *command);

/* commands that wait for the server */
void ngx_http_ratelimit_redis_retry_handler(ngx_event_t *ev);

/*
 * NGX_OK     the reply says what to do instead, and that is done
 * NGX_ERROR  it can't be done
 * NGX_ABORT  the same, because nodes do not agree
 */
ngx_int_t ngx_http_ratelimit_redis_redirect(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);

/* whether the error is that a cluster has the keys elsewhere, or not now */
ngx_uint_t ngx_http_ratelimit_redis_speaks_of_slot(ngx_str_t *text);


/* ngx_http_ratelimit_redis_mirror.c */

void ngx_http_ratelimit_redis_mirror_charge(ngx_http_ratelimit_query_t *q);
void ngx_http_ratelimit_redis_mirror_settle(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_settle_e how);


/* ngx_http_ratelimit_redis_resets.c */

/* the deny cache believes a denial only while this is the same */
uint32_t ngx_http_ratelimit_redis_resets_count(
    ngx_http_ratelimit_redis_t *redis);

/* whether it is known that no other gateway has reset a key since; asks */
ngx_uint_t ngx_http_ratelimit_redis_resets_known(
    ngx_http_ratelimit_redis_t *redis);

/*
 * counters of the query were deleted: other gateways learn of it, then the
 * query's handler is called
 */
ngx_int_t ngx_http_ratelimit_redis_resets_announce(
    ngx_http_ratelimit_query_t *q);


/* ngx_http_ratelimit_redis_deny_cache.c */

ngx_int_t ngx_http_ratelimit_redis_deny_cache_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, void *tag);

/*
 * Whether a limit of the query is known to refuse, and nothing else has to be
 * known: then all verdicts are set.
 */
ngx_uint_t ngx_http_ratelimit_redis_deny_cache_find(
    ngx_http_ratelimit_query_t *q);

/*
 * Whether to ask Redis, once a second for a key, about limits of a query that
 * is refused by others.
 */
ngx_uint_t ngx_http_ratelimit_redis_deny_cache_look_due(
    ngx_http_ratelimit_query_t *q);

/* Redis has decided the query, after it was asked */
void ngx_http_ratelimit_redis_deny_cache_add(ngx_http_ratelimit_query_t *q,
    uint64_t asked);
void ngx_http_ratelimit_redis_deny_cache_refunded(
    ngx_http_ratelimit_query_t *q);
void ngx_http_ratelimit_redis_deny_cache_forget(ngx_http_ratelimit_query_t *q);


/* ngx_http_ratelimit_redis_store.c */

/* functions of the store that are those of write-back, too */
void ngx_http_ratelimit_redis_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t undo);
ngx_int_t ngx_http_ratelimit_redis_refused(
    ngx_http_ratelimit_query_t *q);
ngx_int_t ngx_http_ratelimit_redis_peek(ngx_http_ratelimit_query_t *q);
ngx_uint_t ngx_http_ratelimit_redis_is_up(ngx_http_ratelimit_zone_t *zone);

extern const ngx_http_ratelimit_store_t  ngx_http_ratelimit_redis_store;

void ngx_http_ratelimit_redis_on_timeout(
    ngx_http_ratelimit_redis_command_t *command);

/* of items that have a cost */
void ngx_http_ratelimit_redis_send_refund(ngx_http_ratelimit_query_t *q);

/* a server that is down, the n'th as that of get_figures, is tried again */
void ngx_http_ratelimit_redis_try(ngx_http_ratelimit_redis_t *redis,
    ngx_uint_t n);

/* sends a command; it is freed if that fails */
ngx_int_t ngx_http_ratelimit_redis_send_rows(
    ngx_http_ratelimit_redis_command_t *command);


/* ngx_http_ratelimit_redis_report.c */

/* what a worker has of a zone that reports to Redis */

typedef struct ngx_http_ratelimit_sync_s {
    ratelimit_ledger_t              ledger;
    ngx_http_ratelimit_zone_t      *zone;
    struct ngx_http_ratelimit_sync_s  *next;  /* of the same Redis */
    ngx_event_t                     timer;
    ngx_connection_t                dummy;    /* of the timer */
    uint32_t                        cursor;   /* in the ledger */
    ngx_uint_t                      more;     /* to be sent */
    ngx_uint_t                      waiting;  /* batches under way */
    ngx_uint_t                      alone;    /* reports that are sent each by
                                                 itself */
    ngx_msec_t                      exiting;  /* since then */
    ratelimit_state_t              *state;    /* a counter of Redis */
} ngx_http_ratelimit_sync_t;


ngx_int_t ngx_http_ratelimit_redis_report_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, void *tag);
ngx_int_t ngx_http_ratelimit_redis_report_start(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis);
void ngx_http_ratelimit_redis_report_later(ngx_http_ratelimit_sync_t *sync);

/* of all zones that report to this Redis */
void ngx_http_ratelimit_redis_report_figures(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_figures_t *figures);

/* the server of a hash slot said what time it is, when asked at that time */
void ngx_http_ratelimit_redis_learn_clock(ngx_http_ratelimit_redis_t *redis,
    ngx_uint_t slot, uint64_t time, ngx_msec_t sent);

/*
 * Redis has answered about a counter: what it has counted, and what is not
 * reported yet, is counted here.
 */
void ngx_http_ratelimit_redis_apply_grant(ngx_http_ratelimit_sync_t *sync,
    ngx_uint_t slot, ratelimit_ledger_id_t *id, ratelimit_grant_t *grant,
    ratelimit_ledger_copy_t *copy);


/* ngx_http_ratelimit_redis_sync.c */

extern const ngx_http_ratelimit_store_t  ngx_http_ratelimit_sync_store;


/* ngx_http_ratelimit_redis.c */

/* when the configuration has been read, and before the zones' uses are added */
ngx_int_t ngx_http_ratelimit_redis_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, void *tag);

/* the zone is counted in its Redis */
ngx_int_t ngx_http_ratelimit_redis_declare_zone(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_redis_t *redis,
    void *tag);


#endif /* _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_ */
