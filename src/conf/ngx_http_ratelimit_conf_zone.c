
/*
 * ratelimit_zone KEY zone=NAME:SIZE [rate=RATE]... [parameters];
 */


#include "conf/ngx_http_ratelimit_conf.h"
#include "core/ratelimit_top.h"


#define NGX_HTTP_RATELIMIT_DEFAULT_BUCKETS  10

/* refused keys that are remembered */
#define NGX_HTTP_RATELIMIT_DEFAULT_TOP      32

/* of sync=, ms */
#define NGX_HTTP_RATELIMIT_MIN_SYNC         10
#define NGX_HTTP_RATELIMIT_MAX_SYNC         60000


typedef struct {
    ngx_str_t                       name;
    size_t                          size;
    ngx_http_ratelimit_rates_t      rates;
    ngx_uint_t                      algorithm;
    uint64_t                        buckets;  /* 0: not given */
    uint64_t                        capacity; /* 0: not given */
    ngx_uint_t                      fail;
    ngx_str_t                       redis;
    ngx_str_t                       sync;
    uint64_t                        top;
    ngx_msec_t                      interval; /* of it; 0: off */
} ngx_http_ratelimit_zone_params_t;


static const char *ngx_http_ratelimit_zone_size(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static const char *ngx_http_ratelimit_zone_sync(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static ngx_int_t ngx_http_ratelimit_zone_check(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_params_t *params, ngx_str_t *key);
static ngx_int_t ngx_http_ratelimit_zone_set_shape(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_zone_params_t *params);
static ngx_int_t ngx_http_ratelimit_zone_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, size_t size);


#define ngx_http_ratelimit_algorithm_enum(NAME, name)                         \
    { ngx_string(#name), RATELIMIT_##NAME },

static ngx_conf_enum_t  ngx_http_ratelimit_algorithms[] = {
    ratelimit_each_algorithm(ngx_http_ratelimit_algorithm_enum)
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_ratelimit_fails[] = {
    { ngx_string("local"), NGX_HTTP_RATELIMIT_FAIL_LOCAL },
    { ngx_string("open"), NGX_HTTP_RATELIMIT_FAIL_OPEN },
    { ngx_string("closed"), NGX_HTTP_RATELIMIT_FAIL_CLOSED },
    { ngx_null_string, 0 }
};


static ngx_http_ratelimit_param_t  ngx_http_ratelimit_zone_params[] = {

    { ngx_string("zone="), ngx_http_ratelimit_zone_size, 0, 0, 0, 0, NULL },

    { ngx_string("rate="), ngx_http_ratelimit_param_rate,
      offsetof(ngx_http_ratelimit_zone_params_t, rates), 0, 0, 1, NULL },

    { ngx_string("algorithm="), ngx_http_ratelimit_param_enum,
      offsetof(ngx_http_ratelimit_zone_params_t, algorithm), 0, 0, 0,
      &ngx_http_ratelimit_algorithms },

    { ngx_string("fail="), ngx_http_ratelimit_param_enum,
      offsetof(ngx_http_ratelimit_zone_params_t, fail), 0, 0, 0,
      &ngx_http_ratelimit_fails },

    { ngx_string("redis="), ngx_http_ratelimit_param_redis,
      offsetof(ngx_http_ratelimit_zone_params_t, redis), 0, 0, 0, NULL },

    { ngx_string("sync="), ngx_http_ratelimit_zone_sync, 0, 0, 0, 0, NULL },

    { ngx_string("buckets="), ngx_http_ratelimit_param_number,
      offsetof(ngx_http_ratelimit_zone_params_t, buckets),
      1, RATELIMIT_MAX_BUCKETS, 0, NULL },

    { ngx_string("capacity="), ngx_http_ratelimit_param_number,
      offsetof(ngx_http_ratelimit_zone_params_t, capacity),
      1, RATELIMIT_MAX_LIMIT, 0, NULL },

    { ngx_string("top="), ngx_http_ratelimit_param_number,
      offsetof(ngx_http_ratelimit_zone_params_t, top),
      0, RATELIMIT_TOP_MAX, 0, NULL },

      ngx_http_ratelimit_null_param
};


char *
ngx_http_ratelimit_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    if (value[1].len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid key \"%V\" in \"%V\" directive: "
                           "must not be empty", &value[1], &value[0]);
        return NGX_CONF_ERROR;
    }

    return ngx_http_ratelimit_zone_create(cf, 2, &value[1]) != NULL
           ? NGX_CONF_OK : NGX_CONF_ERROR;
}


ngx_http_ratelimit_zone_t *
ngx_http_ratelimit_zone_create(ngx_conf_t *cf, ngx_uint_t first,
    ngx_str_t *key)
{
    ngx_http_ratelimit_zone_t         *zone;
    ngx_http_ratelimit_zone_params_t   params;

    ngx_memzero(&params, sizeof(ngx_http_ratelimit_zone_params_t));

    params.algorithm = RATELIMIT_SLIDING_WINDOW;
    params.top = NGX_HTTP_RATELIMIT_DEFAULT_TOP;

    if (ngx_http_ratelimit_params(cf, first, ngx_http_ratelimit_zone_params,
                                  &params)
        != NGX_CONF_OK
        || ngx_http_ratelimit_zone_check(cf, &params, key) != NGX_OK)
    {
        return NULL;
    }

    zone = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_zone_t));
    if (zone == NULL) {
        return NULL;
    }

    zone->name = params.name;
    zone->rates = params.rates.list;
    zone->rate = params.rates.variable;
    zone->fail = (ngx_http_ratelimit_fail_e) params.fail;
    zone->redis_name = params.redis;
    zone->top = params.top;
    zone->sync = params.interval;

    if (key != NULL) {
        zone->key_text = *key;

    } else {
        ngx_str_set(&zone->key_text, "descriptor");
    }

    if (ngx_http_ratelimit_zone_set_shape(cf, zone, &params) != NGX_OK
        || (key != NULL
            && ngx_http_ratelimit_expr_compile(cf, key, &zone->key) != NGX_OK)
        || ngx_http_ratelimit_zone_declare(cf, zone, params.size) != NGX_OK)
    {
        return NULL;
    }

    return zone;
}


ngx_uint_t
ngx_http_ratelimit_is_zone_param(ngx_str_t *text)
{
    return ngx_http_ratelimit_find_param(ngx_http_ratelimit_zone_params, text)
           != NULL;
}


/* NAME:SIZE */

static const char *
ngx_http_ratelimit_zone_size(ngx_conf_t *cf, ngx_http_ratelimit_param_t *param,
    ngx_str_t *value, void *field)
{
    ngx_http_ratelimit_zone_params_t  *params = field;

    ssize_t    size;
    ngx_str_t  text;

    if (ngx_http_ratelimit_parse_pair(value, &params->name, &text) != NGX_OK) {
        return "must be \"zone=NAME:SIZE\"";
    }

    if (params->name.len == 0) {
        return "the name must not be empty";
    }

    size = ngx_parse_size(&text);
    if (size == NGX_ERROR) {
        return "the size is invalid";
    }

    if (size < (ssize_t) (8 * ngx_pagesize)) {
        return ngx_http_ratelimit_reason(cf, "the size must be at least %uzk",
                                         8 * ngx_pagesize / 1024);
    }

    params->size = size;

    return NULL;
}


/* how often counters are exchanged with Redis; "off": at every decision */

static const char *
ngx_http_ratelimit_zone_sync(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_http_ratelimit_zone_params_t  *params = field;

    ngx_int_t  msec;

    params->sync = *value;

    if (ngx_strcmp(value->data, "off") == 0) {
        return NULL;
    }

    msec = ngx_parse_time(value, 0);

    if (msec == NGX_ERROR) {
        return "must be \"off\" or a time";
    }

    if (msec < NGX_HTTP_RATELIMIT_MIN_SYNC
        || msec > NGX_HTTP_RATELIMIT_MAX_SYNC)
    {
        return "must be a time from 10ms to 60s, or \"off\"";
    }

    params->interval = msec;

    return NULL;
}


static ngx_int_t
ngx_http_ratelimit_zone_check(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_params_t *params, ngx_str_t *key)
{
    ngx_str_t   *args;
    ngx_uint_t   is_param;

    args = cf->args->elts;
    is_param = (key != NULL && ngx_http_ratelimit_is_zone_param(key));

    if (params->name.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           is_param ? "\"%V\" must have a key before \"%V\""
                                    : "\"%V\" must have \"zone\" parameter",
                           &args[0], key);
        return NGX_ERROR;
    }

    if (is_param) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"%V\" has the key \"%V\", which looks like a "
                           "parameter", &args[0], key);
    }

    if (key == NULL && (params->rates.list.nelts || params->rates.variable)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "parameter \"rate\" is not for \"%V\", as the "
                           "files say what is allowed", &args[0]);
        return NGX_ERROR;
    }

    if (params->sync.len && params->redis.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "parameter \"sync=%V\" in \"%V\" directive needs "
                           "\"redis=\"", &params->sync, &args[0]);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_zone_set_shape(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_zone_params_t *params)
{
    ngx_str_t   *args;
    const char  *directive;

    args = cf->args->elts;
    directive = (char *) args[0].data;

    zone->shape.algorithm = (ratelimit_algorithm_e) params->algorithm;
    zone->capacity = params->capacity;

    if (params->capacity
        && ngx_http_ratelimit_check_algorithm(cf, zone, directive, "capacity",
                                              RATELIMIT_TAKES_CAPACITY)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (params->buckets
        && ngx_http_ratelimit_check_algorithm(cf, zone, directive, "buckets",
                                              RATELIMIT_TAKES_BUCKETS)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_traits(zone)->takes & RATELIMIT_TAKES_BUCKETS) {
        zone->shape.buckets = params->buckets
                              ? (uint32_t) params->buckets
                              : NGX_HTTP_RATELIMIT_DEFAULT_BUCKETS;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_check_algorithm(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, const char *directive,
    const char *parameter, unsigned takes)
{
    ngx_uint_t        i, n;
    const char       *needs;
    ngx_conf_enum_t   known[RATELIMIT_ALGORITHMS + 1];

    if (ngx_http_ratelimit_traits(zone)->takes & takes) {
        return NGX_OK;
    }

    n = 0;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        if (ratelimit_algorithms[i]->takes & takes) {
            known[n++] = ngx_http_ratelimit_algorithms[i];
        }
    }

    ngx_str_null(&known[n].name);

    needs = ngx_http_ratelimit_enum_reason(cf, "needs algorithm", known);

    if (needs != NGX_CONF_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "parameter \"%s\" in \"%s\" directive %s, "
                           "but zone \"%V\" has \"%s\"",
                           parameter, directive, needs, &zone->name,
                           ngx_http_ratelimit_traits(zone)->name);
    }

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


ngx_http_ratelimit_zone_t *
ngx_http_ratelimit_find_zone(ngx_http_ratelimit_main_conf_t *rmcf,
    ngx_str_t *name)
{
    return ngx_http_ratelimit_find_name(&rmcf->zones,
                                     offsetof(ngx_http_ratelimit_zone_t, name),
                                     name);
}


void
ngx_http_ratelimit_zone_origin(ngx_http_ratelimit_zone_t *zone,
    ngx_conf_file_t *origin)
{
    ngx_memzero(origin, sizeof(ngx_conf_file_t));

    origin->file.name = zone->file;
    origin->line = zone->line;
}


void *
ngx_http_ratelimit_find_name(ngx_array_t *array, size_t offset,
    ngx_str_t *name)
{
    u_char      **elts;
    ngx_str_t    *other;
    ngx_uint_t    i;

    elts = array->elts;

    for (i = 0; i < array->nelts; i++) {
        other = (ngx_str_t *) (elts[i] + offset);

        if (ngx_http_ratelimit_is_same(other, name)) {
            return elts[i];
        }
    }

    return NULL;
}
