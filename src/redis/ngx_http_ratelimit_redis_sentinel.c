
/*
 * The question for a sentinel, and its answer: host and port of the primary, or
 * nil if the sentinel does not know the name.
 */


#include "redis/ngx_http_ratelimit_redis_nodes.h"


#define NGX_HTTP_RATELIMIT_REDIS_GET_MASTER  "get-master-addr-by-name"

/* milliseconds for which a server that said so is taken for a replica */
#define NGX_HTTP_RATELIMIT_REDIS_REPLICA  1000


typedef struct {
    size_t                          len;
    u_char                          host[RATELIMIT_CLUSTER_HOST];
    ngx_int_t                       port;
} ngx_http_ratelimit_redis_primary_t;


static ngx_int_t ngx_http_ratelimit_redis_sentinel_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *text);
static void ngx_http_ratelimit_redis_sentinel_init(
    ngx_http_ratelimit_redis_question_t *question);
static ngx_uint_t ngx_http_ratelimit_redis_sentinel_element(
    ngx_http_ratelimit_redis_message_t *message,
    const ratelimit_element_t *element);
static ngx_int_t ngx_http_ratelimit_redis_sentinel_conclude(
    ngx_http_ratelimit_redis_question_t *question);


const ngx_http_ratelimit_redis_kind_t
    ngx_http_ratelimit_redis_kind_sentinel = {
    10,
    1000,
    sizeof(ngx_http_ratelimit_redis_primary_t),
    ngx_http_ratelimit_redis_sentinel_create,
    ngx_http_ratelimit_redis_sentinel_init,
    ngx_http_ratelimit_redis_sentinel_element,
    ngx_http_ratelimit_redis_sentinel_conclude
};


static ngx_int_t
ngx_http_ratelimit_redis_sentinel_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *text)
{
    text->data = ngx_pnalloc(cf->pool,
                        sizeof("*3" CRLF "$8" CRLF "SENTINEL" CRLF "$23" CRLF
                               NGX_HTTP_RATELIMIT_REDIS_GET_MASTER CRLF
                               "$" CRLF CRLF)
                        + NGX_SIZE_T_LEN + redis->sentinel.len);
    if (text->data == NULL) {
        return NGX_ERROR;
    }

    text->len = ngx_sprintf(text->data,
                            "*3" CRLF "$8" CRLF "SENTINEL" CRLF "$23" CRLF
                            NGX_HTTP_RATELIMIT_REDIS_GET_MASTER CRLF
                            "$%uz" CRLF "%V" CRLF,
                            redis->sentinel.len, &redis->sentinel)
                - text->data;

    return NGX_OK;
}


static void
ngx_http_ratelimit_redis_sentinel_init(
    ngx_http_ratelimit_redis_question_t *question)
{
    ngx_http_ratelimit_redis_primary_t  *primary;

    primary = question->data;

    primary->len = 0;
    primary->port = 0;
}


static ngx_uint_t
ngx_http_ratelimit_redis_sentinel_element(
    ngx_http_ratelimit_redis_message_t *message,
    const ratelimit_element_t *element)
{
    ngx_http_ratelimit_redis_primary_t   *primary;
    ngx_http_ratelimit_redis_question_t  *question;

    question = (ngx_http_ratelimit_redis_question_t *) message;
    primary = question->data;

    if (element->depth == 0) {
        return 1;
    }

    if (element->depth != 1 || element->type != RATELIMIT_ELEMENT_STRING) {
        return 0;
    }

    if (element->index == 0
        && ratelimit_cluster_is_host(element->text, element->len))
    {
        primary->len = element->len;
        ngx_memcpy(primary->host, element->text, element->len);
    }

    if (element->index == 1) {
        primary->port = ngx_atoi((u_char *) element->text, element->len);
    }

    return 1;
}


/*
 * What a sentinel says may be out of date: if the server that it names has just
 * said that it is no primary, another sentinel is asked.
 */

static ngx_int_t
ngx_http_ratelimit_redis_sentinel_conclude(
    ngx_http_ratelimit_redis_question_t *question)
{
    ngx_str_t                            host, address;
    ngx_uint_t                           number;
    ngx_atomic_uint_t                    replica;
    ngx_http_ratelimit_redis_t          *redis;
    ngx_http_ratelimit_redis_nodes_t    *nodes;
    ngx_http_ratelimit_redis_primary_t  *primary;

    redis = question->discovery->redis;
    nodes = redis->nodes;
    primary = question->data;

    if (primary->len == 0 || primary->port < 1 || primary->port > 65535) {
        ngx_http_ratelimit_redis_set_reason(question->server, &redis->sentinel,
                                            "no such primary");
        return NGX_DECLINED;
    }

    host.data = primary->host;
    host.len = primary->len;
    ngx_str_null(&address);

    number = ngx_http_ratelimit_redis_nodes_add(nodes, &host,
                                                (in_port_t) primary->port,
                                                &address);
    if (number == 0) {
        ngx_http_ratelimit_redis_set_reason(question->server, NULL,
                                            "too many addresses");
        return NGX_DECLINED;
    }

    replica = nodes->directory->nodes[number - 1].shared.replica;

    if (replica
        && ngx_current_msec - replica < NGX_HTTP_RATELIMIT_REDIS_REPLICA)
    {
        ngx_http_ratelimit_redis_set_reason(question->server, &host,
                                            "not a primary");
        return NGX_DECLINED;
    }

    nodes->directory->map[0] = (uint16_t) number;

    return NGX_OK;
}
