
/*
 * Nodes: servers that are found while nginx runs, as a sentinel or a cluster
 * names them, and which of them has the keys of a hash slot.
 *
 * This is in shared memory, the breaker and the figures of each node too, so
 * that one worker finds it out for all.  A worker has a server for each node
 * that it has sent a command to.  Each hash slot is a word of its own, so the
 * map may be read at any time; a worker that is killed leaves some of them as
 * they were.
 */


#include "redis/ngx_http_ratelimit_redis_nodes.h"
#include "store/ngx_http_ratelimit_kept.h"


/* nodes that sentinels may name before the first one is forgotten */
#define NGX_HTTP_RATELIMIT_REDIS_PRIMARIES  16

/* milliseconds until a message is sent again to a node that is not ready */
#define NGX_HTTP_RATELIMIT_REDIS_PAUSE      10

/* milliseconds until an idle server that has no hash slots is given up */
#define NGX_HTTP_RATELIMIT_REDIS_IDLE_NODE  10000

/* and until a new node may take the place of one that no server has named */
#define NGX_HTTP_RATELIMIT_REDIS_OLD_NODE   120000


static ngx_int_t ngx_http_ratelimit_redis_nodes_count(
    ngx_http_ratelimit_redis_nodes_t *nodes);
static ngx_http_ratelimit_redis_node_t *ngx_http_ratelimit_redis_find_node(
    ngx_http_ratelimit_redis_directory_t *directory, ngx_str_t *host,
    in_port_t port);
static void ngx_http_ratelimit_redis_keep_node(
    ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_node_t *node);
static ngx_http_ratelimit_redis_node_t *ngx_http_ratelimit_redis_free_node(
    ngx_http_ratelimit_redis_directory_t *directory);
static void ngx_http_ratelimit_redis_mark_used(
    ngx_http_ratelimit_redis_directory_t *directory, u_char *used);
static void ngx_http_ratelimit_redis_log_node(
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_redis_node_t *node,
    ngx_uint_t used);
static ngx_http_ratelimit_redis_server_t *ngx_http_ratelimit_redis_new_server(
    ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_node_t *node);
static void ngx_http_ratelimit_redis_locate(
    ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_node_t *node);
static void ngx_http_ratelimit_redis_confirm(
    ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_pause_handler(ngx_event_t *ev);
static void ngx_http_ratelimit_redis_remove_server(
    ngx_http_ratelimit_redis_nodes_t *nodes, ngx_uint_t i);
static void ngx_http_ratelimit_redis_free_gone(
    ngx_http_ratelimit_redis_nodes_t *nodes);
static ngx_uint_t ngx_http_ratelimit_redis_is_quiet(
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_free_server(
    ngx_http_ratelimit_redis_server_t *server);


ngx_int_t
ngx_http_ratelimit_redis_nodes_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_ratelimit_redis_nodes_t  *nodes;

    nodes = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_redis_nodes_t));
    if (nodes == NULL) {
        return NGX_ERROR;
    }

    nodes->redis = redis;
    nodes->nnodes = redis->cluster ? RATELIMIT_CLUSTER_NODES
                                   : NGX_HTTP_RATELIMIT_REDIS_PRIMARIES;
    nodes->nslots = redis->cluster ? RATELIMIT_CLUSTER_SLOTS : 1;

    redis->nodes = nodes;

    return NGX_OK;
}


/* and as many pages as the slab pool may need for itself */

size_t
ngx_http_ratelimit_redis_nodes_size(ngx_http_ratelimit_redis_nodes_t *nodes)
{
    size_t  size;

    /* what is smaller than a page takes a power of two */

    size = nodes->nnodes * (sizeof(ngx_http_ratelimit_redis_node_t)
                            + 2 * NGX_HTTP_RATELIMIT_REDIS_LANES)
           + nodes->nslots * (sizeof(uint16_t) + sizeof(ngx_atomic_t));

    return ngx_align(size + size / 64, ngx_pagesize) + 8 * ngx_pagesize;
}


ngx_int_t
ngx_http_ratelimit_redis_nodes_init(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_nodes_t *former, ngx_slab_pool_t *pool)
{
    ngx_http_ratelimit_redis_directory_t  *directory;

    nodes->pool = pool;

    if (former != NULL) {
        nodes->directory = former->directory;
        return ngx_http_ratelimit_redis_nodes_count(nodes);
    }

    directory = ngx_slab_calloc(pool,
                                sizeof(ngx_http_ratelimit_redis_directory_t));
    if (directory == NULL) {
        return NGX_ERROR;
    }

    directory->nnodes = nodes->nnodes;
    directory->nodes = ngx_slab_calloc(pool, nodes->nnodes
                                    * sizeof(ngx_http_ratelimit_redis_node_t));
    directory->nslots = nodes->nslots;
    directory->map = ngx_slab_calloc(pool, nodes->nslots * sizeof(uint16_t));
    directory->offsets = ngx_slab_calloc(pool,
                                         nodes->nslots * sizeof(ngx_atomic_t));

    if (directory->nodes == NULL || directory->map == NULL
        || directory->offsets == NULL)
    {
        return NGX_ERROR;
    }

    /* a time long ago */

    directory->asked = ngx_current_msec - NGX_HTTP_RATELIMIT_REDIS_OLD_NODE;

    nodes->directory = directory;

    return NGX_OK;
}


/* statistics may be new, and the nodes not */

static ngx_int_t
ngx_http_ratelimit_redis_nodes_count(ngx_http_ratelimit_redis_nodes_t *nodes)
{
    ngx_int_t                              rc;
    ngx_uint_t                             i;
    ngx_http_ratelimit_redis_node_t       *node;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = nodes->directory;
    rc = NGX_OK;

    ngx_shmtx_lock(&nodes->pool->mutex);

    for (i = 0; i < directory->nnodes && rc == NGX_OK; i++) {
        node = &directory->nodes[i];

        if (node->id) {
            rc = ngx_http_ratelimit_redis_add_counters(nodes->redis,
                                                       &node->shared,
                                                       nodes->pool);
        }
    }

    ngx_shmtx_unlock(&nodes->pool->mutex);

    return rc;
}


ngx_int_t
ngx_http_ratelimit_redis_nodes_open(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_cycle_t *cycle)
{
    ngx_queue_init(&nodes->gone);

    ngx_http_ratelimit_timer_init(&nodes->pause, &nodes->dummy,
                                  ngx_http_ratelimit_redis_pause_handler,
                                  nodes);

    nodes->servers = ngx_pcalloc(cycle->pool, nodes->nnodes
                                * sizeof(ngx_http_ratelimit_redis_server_t *));

    return (nodes->servers != NULL) ? NGX_OK : NGX_ERROR;
}


void
ngx_http_ratelimit_redis_nodes_close(ngx_http_ratelimit_redis_nodes_t *nodes)
{
    ngx_uint_t                          i;
    ngx_queue_t                        *q;
    ngx_http_ratelimit_redis_server_t  *server;

    if (nodes->pause.timer_set) {
        ngx_del_timer(&nodes->pause);
    }

    for (i = 0; i < nodes->nnodes; i++) {
        server = nodes->servers[i];

        if (server != NULL) {
            ngx_queue_insert_tail(&nodes->gone, &server->queue);
        }
    }

    for (q = ngx_queue_head(&nodes->gone);
         q != ngx_queue_sentinel(&nodes->gone);
         q = ngx_queue_next(q))
    {
        server = ngx_queue_data(q, ngx_http_ratelimit_redis_server_t, queue);

        ngx_http_ratelimit_redis_timeout_remove_all(server);
        ngx_http_ratelimit_redis_server_close(server);
    }
}


ngx_http_ratelimit_redis_server_t *
ngx_http_ratelimit_redis_route(ngx_http_ratelimit_redis_t *redis,
    ngx_uint_t slot)
{
    ngx_uint_t                          number;
    ngx_http_ratelimit_redis_nodes_t   *nodes;
    ngx_http_ratelimit_redis_server_t  *server;

    nodes = redis->nodes;

    if (nodes == NULL) {
        return redis->server;
    }

    number = nodes->directory->map[slot];

    server = number ? ngx_http_ratelimit_redis_node_server(nodes, number)
                    : NULL;

    return (server != NULL) ? server : redis->server;
}


ngx_uint_t
ngx_http_ratelimit_redis_is_down(ngx_http_ratelimit_redis_t *redis,
    ngx_uint_t slot)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = ngx_http_ratelimit_redis_route(redis, slot);

    return ratelimit_breaker_is_open(&server->owner.shared->breaker);
}


ngx_http_ratelimit_redis_server_t *
ngx_http_ratelimit_redis_node_server(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_uint_t number)
{
    ngx_uint_t                          i;
    ngx_http_ratelimit_redis_node_t    *node;
    ngx_http_ratelimit_redis_server_t  *server;

    i = number - 1;
    node = &nodes->directory->nodes[i];
    server = nodes->servers[i];

    if (server != NULL && server->id == node->id) {

        if (server->naddrs == 0) {
            ngx_shmtx_lock(&nodes->pool->mutex);
            ngx_http_ratelimit_redis_locate(server, node);
            ngx_shmtx_unlock(&nodes->pool->mutex);
        }

        return server;
    }

    if (server != NULL) {
        ngx_http_ratelimit_redis_remove_server(nodes, i);
    }

    ngx_shmtx_lock(&nodes->pool->mutex);

    server = node->id ? ngx_http_ratelimit_redis_new_server(nodes, node) : NULL;

    ngx_shmtx_unlock(&nodes->pool->mutex);

    if (server == NULL) {
        return NULL;
    }

    if (nodes->redis->sentinel.len) {
        ngx_http_ratelimit_redis_confirm(nodes, server);
    }

    ngx_http_ratelimit_redis_timeout_init(server, nodes->on_timeout,
                                          nodes->on_retry);
    nodes->servers[i] = server;

    return server;
}


/* one piece of memory: the server, its connections, its host, its label */

static ngx_http_ratelimit_redis_server_t *
ngx_http_ratelimit_redis_new_server(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_node_t *node)
{
    u_char                               *p;
    size_t                                connections;
    ngx_str_t                            *label;
    ngx_http_ratelimit_redis_t           *redis;
    ngx_http_ratelimit_redis_server_t    *server;
    ngx_http_ratelimit_redis_endpoint_t   endpoint;

    redis = nodes->redis;

    ngx_memzero(&endpoint, sizeof(ngx_http_ratelimit_redis_endpoint_t));

    endpoint.host.len = ngx_strlen(node->host);
    endpoint.port = node->port;

    connections = redis->connections
                  * sizeof(ngx_http_ratelimit_redis_connection_t *);

    server = ngx_calloc(sizeof(ngx_http_ratelimit_redis_server_t) + connections
                        + endpoint.host.len + 1
                        + ngx_http_ratelimit_redis_label_len(redis, &endpoint),
                        ngx_cycle->log);
    if (server == NULL) {
        return NULL;
    }

    p = (u_char *) (server + 1);

    server->connections = (ngx_http_ratelimit_redis_connection_t **) p;
    p += connections;

    endpoint.host.data = p;
    p = ngx_cpymem(p, node->host, endpoint.host.len) + 1;

    ngx_http_ratelimit_redis_server_init(server, redis, &endpoint);

    label = &server->owner.label;
    label->data = p;
    label->len = ngx_http_ratelimit_redis_write_label(p, redis, &endpoint) - p;

    server->id = node->id;
    server->used = ngx_current_msec;
    server->on_trouble = nodes->on_trouble;
    server->owner.shared = &node->shared;

    ngx_http_ratelimit_redis_locate(server, node);

    return server;
}


/* the address of a host name may become known later */

static void
ngx_http_ratelimit_redis_locate(ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_node_t *node)
{
    ngx_str_t  address;

    address.data = node->address;
    address.len = ngx_strlen(node->address);

    ngx_http_ratelimit_redis_set_host(server, &address);
}


/* an answer of the last second is recent enough */

static void
ngx_http_ratelimit_redis_confirm(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_server_t *server)
{
    server->asked = &nodes->directory->asked;
    server->lost = ngx_current_msec;

    if (ngx_current_msec - *server->asked < 1000) {
        server->lost = *server->asked;
    }
}


ngx_uint_t
ngx_http_ratelimit_redis_nodes_add(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_str_t *host, in_port_t port, ngx_str_t *address)
{
    u_char                                 text[NGX_HTTP_RATELIMIT_NODE_NAME];
    ngx_str_t                              name;
    ngx_http_ratelimit_redis_node_t       *node;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = nodes->directory;

    ngx_shmtx_lock(&nodes->pool->mutex);

    node = ngx_http_ratelimit_redis_find_node(directory, host, port);

    if (node == NULL) {
        node = ngx_http_ratelimit_redis_free_node(directory);

        if (node == NULL) {
            ngx_shmtx_unlock(&nodes->pool->mutex);
            return 0;
        }

        ngx_http_ratelimit_redis_keep_node(nodes, node);

        /* a worker that is killed here leaves a free node */

        node->id = 0;
        ngx_memory_barrier();

        /* its counters have been moved */

        ngx_memzero(&node->shared,
                    offsetof(ngx_http_ratelimit_redis_shared_t, counters));
        node->logged = 0;
        node->port = port;
        node->address[0] = '\0';
        ngx_cpystrn(node->host, host->data, host->len + 1);

        (void) ngx_http_ratelimit_redis_add_counters(nodes->redis,
                                                     &node->shared,
                                                     nodes->pool);
        ngx_http_ratelimit_redis_name_node(node, text, &name);
        ngx_http_ratelimit_redis_restore_counters(nodes->redis, &name,
                                                  &node->shared);

        ngx_memory_barrier();
        node->id = ++directory->id;
    }

    if (address->len) {
        ngx_cpystrn(node->address, address->data, address->len + 1);
    }

    node->listed = ngx_current_msec;

    ngx_shmtx_unlock(&nodes->pool->mutex);

    return node - directory->nodes + 1;
}


void
ngx_http_ratelimit_redis_nodes_keep(ngx_http_ratelimit_redis_nodes_t *nodes)
{
    ngx_uint_t                             i;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = nodes->directory;

    for (i = 0; i < directory->nnodes; i++) {
        ngx_http_ratelimit_redis_keep_node(nodes, &directory->nodes[i]);
    }
}


static void
ngx_http_ratelimit_redis_keep_node(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_node_t *node)
{
    u_char     text[NGX_HTTP_RATELIMIT_NODE_NAME];
    ngx_str_t  name;

    if (node->id == 0) {
        return;
    }

    ngx_http_ratelimit_redis_name_node(node, text, &name);
    ngx_http_ratelimit_redis_keep_counters(nodes->redis, &name, &node->shared);
}


void
ngx_http_ratelimit_redis_name_node(ngx_http_ratelimit_redis_node_t *node,
    u_char *text, ngx_str_t *name)
{
    name->data = text;
    name->len = ngx_sprintf(text, "%s:%d", node->host, (int) node->port)
                - text;
}


static ngx_http_ratelimit_redis_node_t *
ngx_http_ratelimit_redis_find_node(
    ngx_http_ratelimit_redis_directory_t *directory, ngx_str_t *host,
    in_port_t port)
{
    ngx_uint_t                        i;
    ngx_http_ratelimit_redis_node_t  *node;

    for (i = 0; i < directory->nnodes; i++) {
        node = &directory->nodes[i];

        if (node->id && node->port == port
            && ngx_strlen(node->host) == host->len
            && ngx_strncasecmp(node->host, host->data, host->len) == 0)
        {
            return node;
        }
    }

    return NULL;
}


/* one that was never used, or the oldest that is forgotten by all workers */

static ngx_http_ratelimit_redis_node_t *
ngx_http_ratelimit_redis_free_node(
    ngx_http_ratelimit_redis_directory_t *directory)
{
    u_char                            used[RATELIMIT_CLUSTER_NODES];
    ngx_uint_t                        i;
    ngx_msec_t                        age, oldest;
    ngx_http_ratelimit_redis_node_t  *node, *found;

    ngx_http_ratelimit_redis_mark_used(directory, used);

    found = NULL;
    oldest = NGX_HTTP_RATELIMIT_REDIS_OLD_NODE;

    for (i = 0; i < directory->nnodes; i++) {
        node = &directory->nodes[i];

        if (node->id == 0) {
            return node;
        }

        age = ngx_current_msec - node->listed;

        if (!used[i] && age >= oldest) {
            oldest = age;
            found = node;
        }
    }

    return found;
}


static void
ngx_http_ratelimit_redis_mark_used(
    ngx_http_ratelimit_redis_directory_t *directory, u_char *used)
{
    ngx_uint_t  i, number;

    ngx_memzero(used, directory->nnodes);

    for (i = 0; i < directory->nslots; i++) {
        number = directory->map[i];

        if (number) {
            used[number - 1] = 1;
        }
    }
}


void
ngx_http_ratelimit_redis_nodes_log(ngx_http_ratelimit_redis_nodes_t *nodes)
{
    u_char                                 used[RATELIMIT_CLUSTER_NODES];
    ngx_uint_t                             i;
    ngx_http_ratelimit_redis_node_t       *node;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = nodes->directory;

    ngx_http_ratelimit_redis_mark_used(directory, used);

    for (i = 0; i < directory->nnodes; i++) {
        node = &directory->nodes[i];

        if (used[i] == node->logged
            || !ngx_atomic_cmp_set(&node->logged, !used[i], used[i]))
        {
            continue;
        }

        ngx_http_ratelimit_redis_log_node(nodes->redis, node, used[i]);
    }
}


static void
ngx_http_ratelimit_redis_log_node(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_node_t *node, ngx_uint_t used)
{
    u_char                               *p;
    ngx_str_t                             label;
    ngx_http_ratelimit_redis_endpoint_t   endpoint;

    endpoint.host.data = node->host;
    endpoint.host.len = ngx_strlen(node->host);
    endpoint.port = node->port;

    p = ngx_alloc(ngx_http_ratelimit_redis_label_len(redis, &endpoint),
                  ngx_cycle->log);
    if (p == NULL) {
        return;
    }

    label.data = p;
    label.len = ngx_http_ratelimit_redis_write_label(p, redis, &endpoint) - p;

    if (used) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "ratelimit: redis \"%V\" is a primary now", &label);

    } else {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "ratelimit: redis \"%V\" is no primary any more",
                      &label);
    }

    ngx_free(p);
}


ngx_http_ratelimit_redis_node_t *
ngx_http_ratelimit_redis_nodes_get(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_uint_t n)
{
    u_char                                 used[RATELIMIT_CLUSTER_NODES];
    ngx_uint_t                             i;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = nodes->directory;

    ngx_http_ratelimit_redis_mark_used(directory, used);

    for (i = 0; i < directory->nnodes; i++) {
        if (used[i] && n-- == 0) {
            return &directory->nodes[i];
        }
    }

    return NULL;
}


ngx_uint_t
ngx_http_ratelimit_redis_nodes_down(ngx_http_ratelimit_redis_nodes_t *nodes)
{
    u_char                                 used[RATELIMIT_CLUSTER_NODES];
    ngx_uint_t                             i;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = nodes->directory;

    ngx_http_ratelimit_redis_mark_used(directory, used);

    for (i = 0; i < directory->nnodes; i++) {
        if (used[i]
            && ratelimit_breaker_is_open(&directory->nodes[i].shared.breaker))
        {
            return 1;
        }
    }

    return ratelimit_breaker_is_open(&nodes->redis->shared->breaker);
}


ngx_uint_t
ngx_http_ratelimit_redis_nodes_complete(
    ngx_http_ratelimit_redis_nodes_t *nodes)
{
    ngx_uint_t                             i;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = nodes->directory;

    for (i = 0; i < directory->nslots; i++) {
        if (directory->map[i] == 0) {
            return 0;
        }
    }

    return 1;
}


ngx_http_ratelimit_redis_server_t *
ngx_http_ratelimit_redis_nodes_pick(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_uint_t well)
{
    u_char                                 used[RATELIMIT_CLUSTER_NODES];
    ngx_uint_t                             i, k, first;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = nodes->directory;
    first = ngx_random() % directory->nnodes;

    ngx_http_ratelimit_redis_mark_used(directory, used);

    for (k = 0; k < directory->nnodes; k++) {
        i = (first + k) % directory->nnodes;

        if (used[i]
            && !(well && ratelimit_breaker_has_failed(
                                       &directory->nodes[i].shared.breaker)))
        {
            return ngx_http_ratelimit_redis_node_server(nodes, i + 1);
        }
    }

    return NULL;
}


void
ngx_http_ratelimit_redis_nodes_pause(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_message_t *message)
{
    ngx_http_ratelimit_redis_server_wait(server, message);

    if (!nodes->pause.timer_set) {
        ngx_add_timer(&nodes->pause, NGX_HTTP_RATELIMIT_REDIS_PAUSE);
    }
}


static void
ngx_http_ratelimit_redis_pause_handler(ngx_event_t *ev)
{
    ngx_http_ratelimit_redis_nodes_wake(ngx_http_ratelimit_timer_data(ev));
}


void
ngx_http_ratelimit_redis_nodes_wake(ngx_http_ratelimit_redis_nodes_t *nodes)
{
    ngx_uint_t  i;

    for (i = 0; i < nodes->nnodes; i++) {
        if (nodes->servers[i] != NULL) {
            ngx_http_ratelimit_redis_server_wake(nodes->servers[i]);
        }
    }

    ngx_http_ratelimit_redis_server_wake(nodes->redis->server);
}


void
ngx_http_ratelimit_redis_nodes_sweep(ngx_http_ratelimit_redis_nodes_t *nodes)
{
    u_char                                 used[RATELIMIT_CLUSTER_NODES];
    ngx_uint_t                             i;
    ngx_http_ratelimit_redis_server_t     *server;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = nodes->directory;

    ngx_http_ratelimit_redis_mark_used(directory, used);

    for (i = 0; i < nodes->nnodes; i++) {
        server = nodes->servers[i];

        if (server == NULL) {
            continue;
        }

        if (server->id != directory->nodes[i].id
            || (!used[i] && ngx_current_msec - server->used
                            >= NGX_HTTP_RATELIMIT_REDIS_IDLE_NODE))
        {
            ngx_http_ratelimit_redis_remove_server(nodes, i);
        }
    }

    ngx_http_ratelimit_redis_free_gone(nodes);
}


/* the server stays until the replies that are on their way have arrived */

static void
ngx_http_ratelimit_redis_remove_server(ngx_http_ratelimit_redis_nodes_t *nodes,
    ngx_uint_t i)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = nodes->servers[i];

    nodes->servers[i] = NULL;
    ngx_queue_insert_tail(&nodes->gone, &server->queue);

    server->on_trouble = NULL;

    ngx_http_ratelimit_redis_server_retire(server);
    ngx_http_ratelimit_redis_server_wake(server);
}


static void
ngx_http_ratelimit_redis_free_gone(ngx_http_ratelimit_redis_nodes_t *nodes)
{
    ngx_queue_t                        *q, *next;
    ngx_http_ratelimit_redis_server_t  *server;

    for (q = ngx_queue_head(&nodes->gone);
         q != ngx_queue_sentinel(&nodes->gone);
         q = next)
    {
        next = ngx_queue_next(q);
        server = ngx_queue_data(q, ngx_http_ratelimit_redis_server_t, queue);

        if (ngx_http_ratelimit_redis_is_quiet(server)) {
            ngx_queue_remove(q);
            ngx_http_ratelimit_redis_free_server(server);

        } else {

            /* some connections may have been in the making before */

            ngx_http_ratelimit_redis_server_retire(server);
        }
    }
}


/* whether nothing refers to the server any more */

static ngx_uint_t
ngx_http_ratelimit_redis_is_quiet(ngx_http_ratelimit_redis_server_t *server)
{
    return server->owner.open == 0
           && ngx_queue_empty(&server->commands)
           && ngx_queue_empty(&server->postponed)
           && ngx_queue_empty(&server->waiting)
           && !server->resolving;
}


static void
ngx_http_ratelimit_redis_free_server(ngx_http_ratelimit_redis_server_t *server)
{
    if (server->timer.timer_set) {
        ngx_del_timer(&server->timer);
    }

    if (server->retry.timer_set) {
        ngx_del_timer(&server->retry);
    }

    if (server->resolved != NULL) {
        ngx_free(server->resolved);
    }

    ngx_http_ratelimit_redis_tls_forget(&server->owner);
    ngx_free(server);
}
