
/*
 * The question for a node of a cluster, and its answer: which node has which
 * hash slots.
 */


#include "redis/ngx_http_ratelimit_redis_nodes.h"


static ngx_int_t ngx_http_ratelimit_redis_cluster_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *text);
static void ngx_http_ratelimit_redis_cluster_init(
    ngx_http_ratelimit_redis_question_t *question);
static ngx_uint_t ngx_http_ratelimit_redis_cluster_element(
    ngx_http_ratelimit_redis_message_t *message,
    const ratelimit_element_t *element);
static ngx_int_t ngx_http_ratelimit_redis_cluster_conclude(
    ngx_http_ratelimit_redis_question_t *question);
static ngx_int_t ngx_http_ratelimit_redis_cluster_add(
    ngx_http_ratelimit_redis_question_t *question, uint16_t *numbers);


const ngx_http_ratelimit_redis_kind_t
    ngx_http_ratelimit_redis_kind_cluster = {
    100,
    10000,
    sizeof(ratelimit_cluster_t),
    ngx_http_ratelimit_redis_cluster_create,
    ngx_http_ratelimit_redis_cluster_init,
    ngx_http_ratelimit_redis_cluster_element,
    ngx_http_ratelimit_redis_cluster_conclude
};


static ngx_int_t
ngx_http_ratelimit_redis_cluster_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *text)
{
    ngx_str_set(text, "*2" CRLF "$7" CRLF "CLUSTER" CRLF "$5" CRLF "SLOTS"
                      CRLF);

    return NGX_OK;
}


static void
ngx_http_ratelimit_redis_cluster_init(
    ngx_http_ratelimit_redis_question_t *question)
{
    ratelimit_cluster_init(question->data);
}


static ngx_uint_t
ngx_http_ratelimit_redis_cluster_element(
    ngx_http_ratelimit_redis_message_t *message,
    const ratelimit_element_t *element)
{
    ngx_http_ratelimit_redis_question_t  *question;

    question = (ngx_http_ratelimit_redis_question_t *) message;

    return ratelimit_cluster_add(question->data, element);
}


static ngx_int_t
ngx_http_ratelimit_redis_cluster_conclude(
    ngx_http_ratelimit_redis_question_t *question)
{
    uint16_t                               numbers[RATELIMIT_CLUSTER_NODES + 1];
    ngx_uint_t                             i;
    ratelimit_cluster_t                   *cluster;
    ngx_http_ratelimit_redis_directory_t  *directory;

    cluster = question->data;
    directory = question->discovery->redis->nodes->directory;

    ratelimit_cluster_finish(cluster);

    if (cluster->n == 0) {
        ngx_http_ratelimit_redis_set_reason(question->server, NULL,
                                            "no hash slots");
        return NGX_DECLINED;
    }

    if (ngx_http_ratelimit_redis_cluster_add(question, numbers) != NGX_OK) {
        ngx_http_ratelimit_redis_set_reason(question->server, NULL,
                                            "too many addresses");
        return NGX_DECLINED;
    }

    for (i = 0; i < RATELIMIT_CLUSTER_SLOTS; i++) {
        directory->map[i] = numbers[cluster->map[i]];
    }

    return NGX_OK;
}


/* numbers of the answer to those of the directory */

static ngx_int_t
ngx_http_ratelimit_redis_cluster_add(
    ngx_http_ratelimit_redis_question_t *question, uint16_t *numbers)
{
    ngx_str_t                          host, address;
    ngx_uint_t                         i;
    ratelimit_cluster_t               *cluster;
    ratelimit_cluster_node_t          *node;
    ngx_http_ratelimit_redis_nodes_t  *nodes;

    cluster = question->data;
    nodes = question->discovery->redis->nodes;

    numbers[0] = 0;

    for (i = 0; i < cluster->n; i++) {
        node = &cluster->nodes[i];

        host.data = (u_char *) node->host;
        host.len = ngx_strlen(node->host);

        /* the node that was asked does not know how it is called */

        if (host.len == 0) {
            host = question->server->endpoint.host;
        }

        address.data = (u_char *) node->address;
        address.len = ngx_strlen(node->address);

        numbers[i + 1] = (uint16_t) ngx_http_ratelimit_redis_nodes_add(nodes,
                                                       &host,
                                                       (in_port_t) node->port,
                                                       &address);
        if (numbers[i + 1] == 0) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
