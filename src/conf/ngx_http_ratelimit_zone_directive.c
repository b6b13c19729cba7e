
/*
 * ratelimit_zone KEY zone=NAME:SIZE [rate=RATE]... [parameters];
 */


#include "conf/ngx_http_ratelimit_conf.h"


#define NGX_HTTP_RATELIMIT_DEFAULT_BUCKETS  10


typedef struct {
    ngx_str_t                       name;
    size_t                          size;
    ngx_http_ratelimit_rates_t      rates;
    ratelimit_algorithm_e           algorithm;
    uint64_t                        buckets;  /* 0: not given */
    uint64_t                        capacity; /* 0: not given */
    ngx_http_ratelimit_fail_e       fail;
    ngx_str_t                       redis;
    ngx_str_t                       sync;
} ngx_http_ratelimit_zone_params_t;


static const char *ngx_http_ratelimit_zone_size(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static const char *ngx_http_ratelimit_zone_algorithm(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static const char *ngx_http_ratelimit_zone_fail(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static const char *ngx_http_ratelimit_zone_redis(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static const char *ngx_http_ratelimit_zone_sync(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static ngx_int_t ngx_http_ratelimit_zone_check(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_params_t *params);
static ngx_int_t ngx_http_ratelimit_zone_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, size_t size);


static ngx_http_ratelimit_param_t  ngx_http_ratelimit_zone_params[] = {

    { ngx_string("zone="),
      ngx_http_ratelimit_zone_size,
      0, 0, 0, 0 },

    { ngx_string("rate="),
      ngx_http_ratelimit_param_rate,
      offsetof(ngx_http_ratelimit_zone_params_t, rates),
      0, 0, 1 },

    { ngx_string("algorithm="),
      ngx_http_ratelimit_zone_algorithm,
      offsetof(ngx_http_ratelimit_zone_params_t, algorithm),
      0, 0, 0 },

    { ngx_string("buckets="),
      ngx_http_ratelimit_param_number,
      offsetof(ngx_http_ratelimit_zone_params_t, buckets),
      1, RATELIMIT_MAX_BUCKETS, 0 },

    { ngx_string("capacity="),
      ngx_http_ratelimit_param_number,
      offsetof(ngx_http_ratelimit_zone_params_t, capacity),
      1, RATELIMIT_MAX_LIMIT, 0 },

    { ngx_string("fail="),
      ngx_http_ratelimit_zone_fail,
      offsetof(ngx_http_ratelimit_zone_params_t, fail),
      0, 0, 0 },

    { ngx_string("redis="),
      ngx_http_ratelimit_zone_redis,
      offsetof(ngx_http_ratelimit_zone_params_t, redis),
      0, 0, 0 },

    { ngx_string("sync="),
      ngx_http_ratelimit_zone_sync,
      offsetof(ngx_http_ratelimit_zone_params_t, sync),
      0, 0, 0 },

      ngx_http_ratelimit_null_param
};


char *
ngx_http_ratelimit_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t                         *value;
    ngx_http_ratelimit_zone_t         *zone;
    ngx_http_ratelimit_zone_params_t   params;

    value = cf->args->elts;

    ngx_memzero(&params, sizeof(ngx_http_ratelimit_zone_params_t));

    params.algorithm = RATELIMIT_SLIDING_WINDOW;

    if (ngx_http_ratelimit_params(cf, 2, ngx_http_ratelimit_zone_params,
                                  &params)
        != NGX_CONF_OK
        || ngx_http_ratelimit_zone_check(cf, &params) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    zone = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_zone_t));
    if (zone == NULL) {
        return NGX_CONF_ERROR;
    }

    zone->name = params.name;
    zone->key_text = value[1];
    zone->rates = params.rates.list;
    zone->rate = params.rates.variable;
    zone->fail = params.fail;
    zone->redis_name = params.redis;
    zone->capacity = params.capacity;
    zone->shape.algorithm = params.algorithm;

    if (params.algorithm == RATELIMIT_SLIDING_WINDOW) {
        zone->shape.buckets = params.buckets
                              ? (uint32_t) params.buckets
                              : NGX_HTTP_RATELIMIT_DEFAULT_BUCKETS;
    }

    if (ngx_http_ratelimit_compile(cf, &value[1], &zone->key) != NGX_OK
        || ngx_http_ratelimit_zone_declare(cf, zone, params.size) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static const char *
ngx_http_ratelimit_zone_size(ngx_conf_t *cf, ngx_http_ratelimit_param_t *param,
    ngx_str_t *value, void *field)
{
    ngx_http_ratelimit_zone_params_t  *params = field;

    u_char     *p;
    ssize_t     size;
    ngx_str_t   text, *args;

    p = ngx_strlchr(value->data, value->data + value->len, ':');
    if (p == NULL) {
        return "must be \"zone=NAME:SIZE\"";
    }

    params->name.data = value->data;
    params->name.len = p - value->data;

    if (params->name.len == 0) {
        return "the name must not be empty";
    }

    text.data = p + 1;
    text.len = value->data + value->len - text.data;

    size = ngx_parse_size(&text);
    if (size == NGX_ERROR) {
        return "the size is invalid";
    }

    if (size < (ssize_t) (8 * ngx_pagesize)) {
        args = cf->args->elts;

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is too small in \"%V\" directive: "
                           "must have at least %uzk",
                           value, &args[0], 8 * ngx_pagesize / 1024);
        return NGX_CONF_ERROR;
    }

    params->size = size;

    return NULL;
}


static const char *
ngx_http_ratelimit_zone_algorithm(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ratelimit_algorithm_e  *algorithm = field;

    u_char      *p, *last, known[NGX_MAX_CONF_ERRSTR];
    ngx_str_t   *args;
    ngx_uint_t   i;

    *algorithm = ratelimit_algorithm_find((char *) value->data, value->len);

    if (*algorithm != RATELIMIT_ALGORITHMS) {
        return NULL;
    }

    p = known;
    last = known + NGX_MAX_CONF_ERRSTR;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        p = ngx_slprintf(p, last, "%s%s", i ? ", " : "",
                         ratelimit_algorithms[i]->name);
    }

    args = cf->args->elts;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "unknown algorithm \"%V\" in \"%V\" directive: "
                       "must be one of %*s",
                       value, &args[0], (size_t) (p - known), known);

    return NGX_CONF_ERROR;
}


/* what becomes of requests whose limits can't be asked */

static const char *
ngx_http_ratelimit_zone_fail(ngx_conf_t *cf, ngx_http_ratelimit_param_t *param,
    ngx_str_t *value, void *field)
{
    ngx_http_ratelimit_fail_e  *fail = field;

    if (ngx_strcmp(value->data, "local") == 0) {
        *fail = NGX_HTTP_RATELIMIT_FAIL_LOCAL;

    } else if (ngx_strcmp(value->data, "open") == 0) {
        *fail = NGX_HTTP_RATELIMIT_FAIL_OPEN;

    } else if (ngx_strcmp(value->data, "closed") == 0) {
        *fail = NGX_HTTP_RATELIMIT_FAIL_CLOSED;

    } else {
        return "must be \"local\", \"open\" or \"closed\"";
    }

    return NULL;
}


static const char *
ngx_http_ratelimit_zone_redis(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_str_t  *name = field;

    *name = *value;

    return ngx_http_ratelimit_redis_name(name);
}


/* how often counters are exchanged with Redis: "off" is at every decision */

static const char *
ngx_http_ratelimit_zone_sync(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_str_t  *sync = field;

    *sync = *value;

    if (ngx_strcmp(value->data, "off") == 0) {
        return NULL;
    }

    if (ngx_parse_time(value, 0) == NGX_ERROR) {
        return "must be \"off\" or a time";
    }

    return "a time is not supported yet";
}


static ngx_int_t
ngx_http_ratelimit_zone_check(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_params_t *params)
{
    ngx_str_t   *args;
    const char  *name, *needs;

    args = cf->args->elts;

    if (args[1].len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid key \"%V\" in \"%V\" directive: "
                           "must not be empty", &args[1], &args[0]);
        return NGX_ERROR;
    }

    if (params->name.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must have \"zone\" parameter", &args[0]);
        return NGX_ERROR;
    }

    if (params->sync.len && params->redis.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "parameter \"sync=%V\" in \"%V\" directive needs "
                           "\"redis=\"", &params->sync, &args[0]);
        return NGX_ERROR;
    }

    name = NULL;
    needs = NULL;

    if (params->buckets && params->algorithm != RATELIMIT_SLIDING_WINDOW) {
        name = "buckets";
        needs = "sliding_window";
    }

    if (params->capacity && params->algorithm != RATELIMIT_TOKEN_BUCKET) {
        name = "capacity";
        needs = "token_bucket";
    }

    if (name == NULL) {
        return NGX_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "parameter \"%s\" in \"%V\" directive needs "
                       "algorithm \"%s\", but zone \"%V\" has \"%s\"",
                       name, &args[0], needs, &params->name,
                       ratelimit_algorithms[params->algorithm]->name);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_zone_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, size_t size)
{
    ngx_str_t                        *args;
    ngx_http_ratelimit_zone_t       **zonep, *other;
    ngx_http_ratelimit_main_conf_t   *rmcf;

    args = cf->args->elts;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    other = ngx_http_ratelimit_find_zone(rmcf, &zone->name);

    if (other != NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "%V \"%V\" is already bound to key \"%V\"",
                           &args[0], &zone->name, &other->key_text);
        return NGX_ERROR;
    }

    zonep = ngx_array_push(&rmcf->zones);
    if (zonep == NULL) {
        return NGX_ERROR;
    }

    *zonep = zone;

    return ngx_http_ratelimit_store_declare(cf, zone, size,
                                            &ngx_http_ratelimit_module);
}
