
/*
 * Servers that are found while nginx runs, and the questions by which a worker
 * finds them: for a Redis with sentinels, or in a cluster.
 */


#ifndef _NGX_HTTP_RATELIMIT_REDIS_NODES_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REDIS_NODES_H_INCLUDED_


#include "redis/ngx_http_ratelimit_redis.h"


/* ngx_http_ratelimit_redis_nodes.c */

/* a server that was found, in shared memory; all is set before the id */

typedef struct {
    ngx_http_ratelimit_redis_shared_t  shared;
    ngx_atomic_t                    id;       /* of this endpoint; 0: free */
    ngx_atomic_t                    listed;   /* by a reply, when, msec */
    ngx_atomic_t                    logged;   /* that it is in use */
    in_port_t                       port;
    u_char                          host[RATELIMIT_CLUSTER_HOST + 1];
    u_char                          address[RATELIMIT_CLUSTER_ADDRESS + 1];
} ngx_http_ratelimit_redis_node_t;


/* bytes of "host:port" */
#define NGX_HTTP_RATELIMIT_NODE_NAME                                          \
    (RATELIMIT_CLUSTER_HOST + sizeof(":65535"))


/* for all workers; times are in milliseconds */

typedef struct {
    ngx_atomic_t                    claim;    /* one worker asks until then */
    ngx_atomic_t                    asked;    /* when the last question was
                                                 that has an answer */
    ngx_atomic_t                    seed;     /* that answered it */
    ngx_atomic_t                    problem;  /* that was logged */
    ngx_atomic_t                    id;       /* that was given last */
    ngx_uint_t                      nnodes;
    ngx_http_ratelimit_redis_node_t  *nodes;
    ngx_uint_t                      nslots;
    volatile uint16_t              *map;      /* hash slots to nodes, from 1
                                                 on; 0: none */
    ngx_atomic_t                   *offsets;  /* of each hash slot, see redis */
} ngx_http_ratelimit_redis_directory_t;


struct ngx_http_ratelimit_redis_nodes_s {
    ngx_http_ratelimit_redis_t     *redis;
    ngx_http_ratelimit_redis_directory_t  *directory;
    ngx_slab_pool_t                *pool;     /* its mutex is of new nodes */
    ngx_uint_t                      nnodes;
    ngx_uint_t                      nslots;
    ngx_http_ratelimit_redis_server_t  **servers;  /* of the worker */
    ngx_queue_t                     gone;     /* servers to be freed */
    ngx_event_t                     pause;    /* of messages */
    ngx_connection_t                dummy;    /* of the timer */
    ngx_http_ratelimit_redis_timeout_pt  on_timeout;
    ngx_event_handler_pt            on_retry;
    ngx_http_ratelimit_redis_server_pt   on_trouble;
};


ngx_int_t ngx_http_ratelimit_redis_nodes_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis);
size_t ngx_http_ratelimit_redis_nodes_size(
    ngx_http_ratelimit_redis_nodes_t *nodes);
ngx_int_t ngx_http_ratelimit_redis_nodes_init(
    ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_nodes_t *former, ngx_slab_pool_t *pool);

/* counters of all nodes: see ngx_http_ratelimit_kept.h */
void ngx_http_ratelimit_redis_nodes_keep(
    ngx_http_ratelimit_redis_nodes_t *nodes);

/* what they are kept by */
void ngx_http_ratelimit_redis_name_node(ngx_http_ratelimit_redis_node_t *node,
    u_char *text, ngx_str_t *name);

ngx_int_t ngx_http_ratelimit_redis_nodes_open(
    ngx_http_ratelimit_redis_nodes_t *nodes, ngx_cycle_t *cycle);
void ngx_http_ratelimit_redis_nodes_close(
    ngx_http_ratelimit_redis_nodes_t *nodes);

/* the server for the keys of a hash slot, or the one where commands wait */
ngx_http_ratelimit_redis_server_t *ngx_http_ratelimit_redis_route(
    ngx_http_ratelimit_redis_t *redis, ngx_uint_t slot);

/* whether that server is marked down */
ngx_uint_t ngx_http_ratelimit_redis_is_down(ngx_http_ratelimit_redis_t *redis,
    ngx_uint_t slot);

/* NULL if there is no memory, or no such node any more */
ngx_http_ratelimit_redis_server_t *ngx_http_ratelimit_redis_node_server(
    ngx_http_ratelimit_redis_nodes_t *nodes, ngx_uint_t number);

/*
 * The number of the node that has this endpoint, from 1 on.  It is a new one if
 * none has; 0 if there are too many.  The address of a host name is empty if it
 * is not known.
 */
ngx_uint_t ngx_http_ratelimit_redis_nodes_add(
    ngx_http_ratelimit_redis_nodes_t *nodes, ngx_str_t *host, in_port_t port,
    ngx_str_t *address);

/* the one of this number, from 0 on, of those that are in use; or NULL */
ngx_http_ratelimit_redis_node_t *ngx_http_ratelimit_redis_nodes_get(
    ngx_http_ratelimit_redis_nodes_t *nodes, ngx_uint_t n);

/* the map has changed: says so in the log */
void ngx_http_ratelimit_redis_nodes_log(
    ngx_http_ratelimit_redis_nodes_t *nodes);

/* whether each hash slot has a node */
ngx_uint_t ngx_http_ratelimit_redis_nodes_complete(
    ngx_http_ratelimit_redis_nodes_t *nodes);

/*
 * A server of those that have hash slots, at random, if wanted one without a
 * failure; NULL if there is none.
 */
ngx_http_ratelimit_redis_server_t *ngx_http_ratelimit_redis_nodes_pick(
    ngx_http_ratelimit_redis_nodes_t *nodes, ngx_uint_t well);

/* whether a node that has hash slots is marked down */
ngx_uint_t ngx_http_ratelimit_redis_nodes_down(
    ngx_http_ratelimit_redis_nodes_t *nodes);

/* the message, which was not executed, waits at the server for a moment */
void ngx_http_ratelimit_redis_nodes_pause(
    ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_message_t *message);

/* hands all messages back that wait for a server */
void ngx_http_ratelimit_redis_nodes_wake(
    ngx_http_ratelimit_redis_nodes_t *nodes);

/* gives up connections to nodes that are not used any more */
void ngx_http_ratelimit_redis_nodes_sweep(
    ngx_http_ratelimit_redis_nodes_t *nodes);


/* ngx_http_ratelimit_redis_discovery.c */

/*
 * A question, and what is known of its answer.
 *
 *     NGX_OK        it was one, and the map is set
 *     NGX_DECLINED  another server is to be asked; the reason is set
 */

typedef struct {
    ngx_http_ratelimit_redis_message_t  message;
    ngx_http_ratelimit_redis_discovery_t  *discovery;  /* NULL: it has been
                                                          given up */
    ngx_http_ratelimit_redis_server_t  *server;  /* that is asked */
    ngx_msec_t                      asked;
    void                           *data;     /* the kind's own */
} ngx_http_ratelimit_redis_question_t;


typedef struct {
    ngx_msec_t                      pace;     /* ms between questions */
    ngx_msec_t                      watch;    /* ms while no node is down */
    size_t                          size;     /* of the data */
    ngx_int_t  (*create)(ngx_conf_t *cf, ngx_http_ratelimit_redis_t *redis,
        ngx_str_t *text);
    void       (*init)(ngx_http_ratelimit_redis_question_t *question);
    ngx_http_ratelimit_redis_element_pt  on_element;
    ngx_int_t  (*conclude)(ngx_http_ratelimit_redis_question_t *question);
} ngx_http_ratelimit_redis_kind_t;


struct ngx_http_ratelimit_redis_discovery_s {
    ngx_http_ratelimit_redis_t     *redis;
    const ngx_http_ratelimit_redis_kind_t  *kind;
    ngx_str_t                       text;     /* of the question */
    ngx_uint_t                      nseeds;
    ngx_http_ratelimit_redis_server_t  **seeds;  /* of the URLs */
    ngx_http_ratelimit_redis_shared_t  *shared;  /* of the seeds */

    ngx_http_ratelimit_redis_question_t  *question;  /* or NULL */
    ngx_uint_t                      attempt;  /* of the current round */
    ngx_uint_t                      seed;     /* that is asked */
    ngx_uint_t                      wanted;   /* an answer to a question of */
    ngx_msec_t                      since;    /* this time, or later */
    ngx_msec_t                      pause;    /* if no seed has answered */
    ngx_msec_t                      swept;
    ngx_event_t                     timer;
    ngx_connection_t                dummy;    /* of the timer */

    size_t                          reason_len;
    u_char                          reason[NGX_HTTP_RATELIMIT_REDIS_REASON];
};


ngx_int_t ngx_http_ratelimit_redis_discovery_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis);
void ngx_http_ratelimit_redis_discovery_open(
    ngx_http_ratelimit_redis_discovery_t *discovery);
void ngx_http_ratelimit_redis_discovery_close(
    ngx_http_ratelimit_redis_discovery_t *discovery);

/* something has changed, or may have */
void ngx_http_ratelimit_redis_discover(
    ngx_http_ratelimit_redis_discovery_t *discovery);


/* ngx_http_ratelimit_redis_sentinel.c */

extern const ngx_http_ratelimit_redis_kind_t
    ngx_http_ratelimit_redis_kind_sentinel;


/* ngx_http_ratelimit_redis_cluster.c */

extern const ngx_http_ratelimit_redis_kind_t
    ngx_http_ratelimit_redis_kind_cluster;


#endif /* _NGX_HTTP_RATELIMIT_REDIS_NODES_H_INCLUDED_ */
