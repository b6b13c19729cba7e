
/*
 * "ratelimit_api": a location where people and programs see what limits do, and
 * may steer them.
 */


#ifndef _NGX_HTTP_RATELIMIT_API_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_API_H_INCLUDED_


#include "http/ngx_http_ratelimit_ctx.h"
#include "api/ngx_http_ratelimit_api_text.h"


#define NGX_HTTP_RATELIMIT_VERSION  "0.2.0"


typedef enum {
    NGX_HTTP_RATELIMIT_API_ROOT = 0,
    NGX_HTTP_RATELIMIT_API_ZONES,
    NGX_HTTP_RATELIMIT_API_ZONE,
    NGX_HTTP_RATELIMIT_API_TOP,
    NGX_HTTP_RATELIMIT_API_KEY,
    NGX_HTTP_RATELIMIT_API_REDIS,
    NGX_HTTP_RATELIMIT_API_METRICS,
    NGX_HTTP_RATELIMIT_API_NOTHING
} ngx_http_ratelimit_resource_e;


/* what the path of a request names */

typedef struct {
    ngx_http_ratelimit_resource_e   resource;
    ngx_str_t                       zone;
    ngx_str_t                       key;
    ngx_uint_t                      changed;  /* it is not what was sent */
} ngx_http_ratelimit_api_path_t;


/* ngx_http_ratelimit_api.c */

char *ngx_http_ratelimit_set_api(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
void ngx_http_ratelimit_merge_api(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *prev, ngx_http_ratelimit_loc_conf_t *conf,
    ngx_http_core_loc_conf_t *clcf);

/* sends a response with this body; returns what a content handler returns */
ngx_int_t ngx_http_ratelimit_api_send(ngx_http_request_t *r,
    ngx_uint_t status, const char *type, ngx_http_ratelimit_text_t *text);
ngx_int_t ngx_http_ratelimit_api_send_json(ngx_http_request_t *r,
    ngx_uint_t status, ngx_http_ratelimit_text_t *text);

/* {"error": "..."}; the reason is ASCII */
ngx_int_t ngx_http_ratelimit_api_error(ngx_http_request_t *r,
    ngx_uint_t status, const char *reason);


/* ngx_http_ratelimit_api_path.c: all return NGX_DECLINED if something is
   malformed */

ngx_int_t ngx_http_ratelimit_api_parse_path(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path);

/* percent-encoded bytes */
ngx_int_t ngx_http_ratelimit_api_decode(ngx_pool_t *pool, ngx_str_t *text);

/* an argument's value; NGX_DONE if it is not given */
ngx_int_t ngx_http_ratelimit_api_arg(ngx_http_request_t *r, const char *name,
    ngx_str_t *value);


/* ngx_http_ratelimit_api_address.c */

/* NGX_DECLINED if the limit can have no such key */
ngx_int_t ngx_http_ratelimit_api_parse_key(ngx_http_request_t *r,
    ngx_str_t *text, ngx_http_ratelimit_tally_t *tally, ngx_str_t *key);
ngx_int_t ngx_http_ratelimit_api_format_key(ngx_http_request_t *r,
    ngx_str_t *key, ngx_http_ratelimit_tally_t *tally, ngx_str_t *text);


/* ngx_http_ratelimit_api_keys.c: a key of a zone; method GET or DELETE */

ngx_int_t ngx_http_ratelimit_api_key(ngx_http_request_t *r,
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *text);


/* ngx_http_ratelimit_api_top.c */

void ngx_http_ratelimit_api_top(ngx_http_request_t *r,
    ngx_http_ratelimit_text_t *text, ngx_http_ratelimit_zone_t *zone);


/* ngx_http_ratelimit_api_accept.c: whether "Accept" names a type, and does not
   prefer the other one */

ngx_uint_t ngx_http_ratelimit_api_prefers(ngx_http_request_t *r,
    const char *name, const char *to);


/* ngx_http_ratelimit_api_page.c: "/" for people, whose programs accept HTML */

ngx_uint_t ngx_http_ratelimit_api_wants_page(ngx_http_request_t *r);
ngx_int_t ngx_http_ratelimit_api_page(ngx_http_request_t *r);


/* ngx_http_ratelimit_api_figures.c */

typedef enum {
    NGX_HTTP_RATELIMIT_GAUGE = 0,
    NGX_HTTP_RATELIMIT_GAUGE_SECONDS,         /* the number is microseconds */
    NGX_HTTP_RATELIMIT_COUNTER                /* it only ever grows */
} ngx_http_ratelimit_api_kind_e;


/* a number of a struct; metrics are named without prefix and "_total" */

typedef struct {
    const char                     *json;     /* NULL: only as a metric */
    const char                     *metric;
    ngx_http_ratelimit_api_kind_e   kind;
    const char                     *help;
    size_t                          offset;   /* of an uint64_t */
} ngx_http_ratelimit_api_figure_t;

/* of ngx_http_ratelimit_memory_t and ngx_http_ratelimit_redis_figures_t */
extern const ngx_http_ratelimit_api_figure_t
    ngx_http_ratelimit_api_memory_figures[],
    ngx_http_ratelimit_api_redis_figures[];

#define ngx_http_ratelimit_api_value(figure, data)                            \
    (*(uint64_t *) ((u_char *) (data) + (figure)->offset))

/* texts of the bounds of latencies, in seconds */
extern const char  *ngx_http_ratelimit_latencies[];

/* the figures of all Redis servers; NULL if there is no memory */
ngx_array_t *ngx_http_ratelimit_api_get_redis(ngx_pool_t *pool,
    ngx_http_ratelimit_main_conf_t *rmcf);

void ngx_http_ratelimit_json_figures(ngx_http_ratelimit_text_t *text,
    const ngx_http_ratelimit_api_figure_t *figure, void *data);


/* ngx_http_ratelimit_api_metrics.c */

ngx_int_t ngx_http_ratelimit_api_metrics(ngx_http_request_t *r);


/* ngx_http_ratelimit_api_zones.c: each writes one value */

void ngx_http_ratelimit_api_zone(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_zone_t *zone);

/* all zones, or those that can have the key, unless it is empty */
void ngx_http_ratelimit_api_zones(ngx_http_request_t *r,
    ngx_http_ratelimit_text_t *text, ngx_str_t *key);

/* in lower case, from the first status on */
extern const char  *ngx_http_ratelimit_status_names[];


/* ngx_http_ratelimit_api_redis.c */

void ngx_http_ratelimit_api_redis(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_main_conf_t *rmcf);


#endif /* _NGX_HTTP_RATELIMIT_API_H_INCLUDED_ */
