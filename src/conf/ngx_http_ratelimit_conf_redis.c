
/*
 * ratelimit_redis NAME URL... [parameters];
 *
 * No message shows a password: an argument that might have one is printed as
 * ngx_http_ratelimit_masked() returns it.  Zones may name a Redis that is
 * declared further down, so that is resolved when http {} has been read.
 */


#include "conf/ngx_http_ratelimit_conf.h"
#include "redis/ngx_http_ratelimit_redis.h"


#if (NGX_HTTP_RATELIMIT_HIREDIS)
#define NGX_HTTP_RATELIMIT_REDIS_BUILT  1
#else
#define NGX_HTTP_RATELIMIT_REDIS_BUILT  0
#endif

#define NGX_HTTP_RATELIMIT_MAX_TIMEOUT  3600000    /* ms */
#define NGX_HTTP_RATELIMIT_MAX_PREFIX   128


typedef struct {
    ngx_msec_t                      timeout;
    ngx_msec_t                      connect_timeout;
    uint64_t                        connections;
    ngx_str_t                       password_file;
    ngx_str_t                       prefix;
    ngx_uint_t                      cluster;
    ngx_str_t                       sentinel;
    ngx_str_t                       sentinel_user;
    ngx_str_t                       sentinel_password_file;
    ngx_http_ratelimit_tls_params_t  tls;
} ngx_http_ratelimit_redis_params_t;


static ngx_int_t ngx_http_ratelimit_redis_check_name(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf, ngx_str_t *name);
static ngx_http_ratelimit_redis_t *ngx_http_ratelimit_find_redis(
    ngx_http_ratelimit_main_conf_t *rmcf, ngx_str_t *name);
static ngx_int_t ngx_http_ratelimit_redis_check_args(ngx_conf_t *cf,
    ngx_uint_t first);
static ngx_http_ratelimit_redis_t *ngx_http_ratelimit_redis_create(
    ngx_conf_t *cf, ngx_uint_t first,
    ngx_http_ratelimit_redis_params_t *params);
static const char *ngx_http_ratelimit_redis_time(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static const char *ngx_http_ratelimit_redis_prefix(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static ngx_int_t ngx_http_ratelimit_redis_check_seeds(ngx_conf_t *cf,
    ngx_uint_t first, ngx_http_ratelimit_redis_t *redis);
static ngx_int_t ngx_http_ratelimit_resolve_zone_redis(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf, ngx_http_ratelimit_zone_t *zone);


static ngx_conf_enum_t  ngx_http_ratelimit_redis_on_off[] = {
    { ngx_string("on"), 1 },
    { ngx_string("off"), 0 },
    { ngx_null_string, 0 }
};


static ngx_http_ratelimit_param_t  ngx_http_ratelimit_redis_params[] = {

    { ngx_string("timeout="), ngx_http_ratelimit_redis_time,
      offsetof(ngx_http_ratelimit_redis_params_t, timeout), 0, 0, 0, NULL },

    { ngx_string("connect_timeout="), ngx_http_ratelimit_redis_time,
      offsetof(ngx_http_ratelimit_redis_params_t, connect_timeout),
      0, 0, 0, NULL },

    { ngx_string("connections="), ngx_http_ratelimit_param_number,
      offsetof(ngx_http_ratelimit_redis_params_t, connections),
      1, 64, 0, NULL },

    { ngx_string("password_file="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_redis_params_t, password_file),
      0, 0, 0, NULL },

    { ngx_string("prefix="), ngx_http_ratelimit_redis_prefix,
      offsetof(ngx_http_ratelimit_redis_params_t, prefix), 0, 0, 0, NULL },

    { ngx_string("cluster"), ngx_http_ratelimit_param_flag,
      offsetof(ngx_http_ratelimit_redis_params_t, cluster), 0, 1, 0, NULL },

    { ngx_string("sentinel="), ngx_http_ratelimit_param_redis,
      offsetof(ngx_http_ratelimit_redis_params_t, sentinel), 0, 0, 0, NULL },

    { ngx_string("sentinel_user="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_redis_params_t, sentinel_user),
      0, 0, 0, NULL },

    { ngx_string("sentinel_password_file="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_redis_params_t, sentinel_password_file),
      0, 0, 0, NULL },

    { ngx_string("sentinel_ssl="), ngx_http_ratelimit_param_enum,
      offsetof(ngx_http_ratelimit_redis_params_t, tls.sentinel),
      0, 0, 0, ngx_http_ratelimit_redis_on_off },

    { ngx_string("ssl_ca="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_redis_params_t, tls.ca), 0, 0, 0, NULL },

    { ngx_string("ssl_certificate="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_redis_params_t, tls.certificate),
      0, 0, 0, NULL },

    { ngx_string("ssl_certificate_key="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_redis_params_t, tls.key), 0, 0, 0, NULL },

    { ngx_string("ssl_name="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_redis_params_t, tls.name), 0, 0, 0, NULL },

    { ngx_string("ssl_verify="), ngx_http_ratelimit_param_enum,
      offsetof(ngx_http_ratelimit_redis_params_t, tls.verify),
      0, 0, 0, ngx_http_ratelimit_redis_on_off },

    { ngx_string("ssl_protocols="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_redis_params_t, tls.protocols),
      0, 0, 0, NULL },

    { ngx_string("ssl_ciphers="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_redis_params_t, tls.ciphers),
      0, 0, 0, NULL },

      ngx_http_ratelimit_null_param
};


char *
ngx_http_ratelimit_set_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_main_conf_t  *rmcf = conf;

    ngx_str_t                           *args;
    ngx_uint_t                           first;
    ngx_http_ratelimit_redis_t         **redis;
    ngx_http_ratelimit_redis_params_t    params;

    if (!NGX_HTTP_RATELIMIT_REDIS_BUILT) {
        return "needs a module that was built with hiredis";
    }

    args = cf->args->elts;

    if (ngx_http_ratelimit_redis_check_name(cf, rmcf, &args[1]) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    for (first = 3; first < cf->args->nelts; first++) {
        if (!ngx_http_ratelimit_is_url(&args[first])) {
            break;
        }
    }

    ngx_memzero(&params, sizeof(ngx_http_ratelimit_redis_params_t));

    params.timeout = 50;
    params.connect_timeout = 200;
    params.connections = 1;
    params.tls.verify = 1;
    params.tls.sentinel = NGX_CONF_UNSET_UINT;
    ngx_str_set(&params.prefix, "ratelimit:");

    if (ngx_http_ratelimit_redis_check_args(cf, first) != NGX_OK
        || ngx_http_ratelimit_params(cf, first,
                                     ngx_http_ratelimit_redis_params, &params)
           != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    redis = ngx_array_push(&rmcf->redis);
    if (redis == NULL) {
        return NGX_CONF_ERROR;
    }

    *redis = ngx_http_ratelimit_redis_create(cf, first, &params);

    return (*redis != NULL) ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_redis_check_name(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf, ngx_str_t *name)
{
    ngx_str_t    shown;
    const char  *reason;

    reason = ngx_http_ratelimit_redis_name(name);

    if (reason == NULL && ngx_http_ratelimit_find_redis(rmcf, name) != NULL) {
        reason = "is duplicate";
    }

    if (reason == NULL) {
        return NGX_OK;
    }

    shown = ngx_http_ratelimit_masked(cf, name);

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid name \"%V\" in \"ratelimit_redis\" "
                       "directive: %s", &shown, reason);

    return NGX_ERROR;
}


const char *
ngx_http_ratelimit_redis_name(ngx_str_t *name)
{
    u_char      ch;
    ngx_uint_t  i;

    if (name->len == 0) {
        return "must not be empty";
    }

    for (i = 0; i < name->len; i++) {
        ch = name->data[i];

        if ((ch < 'a' || ch > 'z') && (ch < 'A' || ch > 'Z')
            && (ch < '0' || ch > '9') && ch != '_' && ch != '-' && ch != '.')
        {
            return "must consist of letters, digits, \"_\", \"-\" and \".\"";
        }
    }

    return NULL;
}


static ngx_http_ratelimit_redis_t *
ngx_http_ratelimit_find_redis(ngx_http_ratelimit_main_conf_t *rmcf,
    ngx_str_t *name)
{
    return ngx_http_ratelimit_find_name(&rmcf->redis,
                                    offsetof(ngx_http_ratelimit_redis_t, name),
                                    name);
}


/* an argument that is not a parameter may be a URL, or a part of one */

static ngx_int_t
ngx_http_ratelimit_redis_check_args(ngx_conf_t *cf, ngx_uint_t first)
{
    ngx_str_t   *args, shown;
    ngx_uint_t   i;
    const char  *reason;

    args = cf->args->elts;

    for (i = first; i < cf->args->nelts; i++) {

        if (ngx_http_ratelimit_find_param(ngx_http_ratelimit_redis_params,
                                          &args[i])
            != NULL)
        {
            continue;
        }

        if (ngx_http_ratelimit_is_url(&args[i])) {
            reason = "a URL must come before all parameters";

        } else {
            reason = ngx_http_ratelimit_unknown_param(cf,
                                             ngx_http_ratelimit_redis_params);
        }

        if (reason != NGX_CONF_ERROR) {
            shown = ngx_http_ratelimit_masked(cf, &args[i]);

            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                            "invalid parameter \"%V\" in \"%V\" directive: %s",
                            &shown, &args[0], reason);
        }

        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_http_ratelimit_redis_t *
ngx_http_ratelimit_redis_create(ngx_conf_t *cf, ngx_uint_t first,
    ngx_http_ratelimit_redis_params_t *params)
{
    ngx_str_t                   *args;
    ngx_uint_t                   i;
    ngx_http_ratelimit_redis_t  *redis;

    redis = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_redis_t));
    if (redis == NULL) {
        return NULL;
    }

    args = cf->args->elts;

    redis->name = args[1];
    redis->prefix = params->prefix;
    redis->timeout = params->timeout;
    redis->connect_timeout = params->connect_timeout;
    redis->connections = (ngx_uint_t) params->connections;
    redis->file = cf->conf_file->file.name;
    redis->line = cf->conf_file->line;
    redis->cluster = params->cluster;
    redis->sentinel = params->sentinel;

    if (ngx_http_ratelimit_redis_check_seeds(cf, first, redis) != NGX_OK) {
        return NULL;
    }

    if (ngx_array_init(&redis->endpoints, cf->pool, first - 2,
                       sizeof(ngx_http_ratelimit_redis_endpoint_t))
        != NGX_OK)
    {
        return NULL;
    }

    for (i = 2; i < first; i++) {
        if (ngx_http_ratelimit_redis_set_url(cf, &args[i], redis) != NGX_OK) {
            return NULL;
        }
    }

    if (ngx_http_ratelimit_redis_set_password(cf, &params->password_file, redis)
        != NGX_OK
        || ngx_http_ratelimit_redis_set_sentinel(cf, &params->sentinel_user,
                                              &params->sentinel_password_file,
                                              redis)
           != NGX_OK
        || ngx_http_ratelimit_redis_set_tls(cf, &params->tls, redis)
           != NGX_OK)
    {
        return NULL;
    }

    return redis;
}


static ngx_int_t
ngx_http_ratelimit_redis_check_seeds(ngx_conf_t *cf, ngx_uint_t first,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_str_t  *args;

    args = cf->args->elts;

    if (redis->cluster && redis->sentinel.len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"sentinel=%V\" in \"%V\" "
                           "directive: conflicts with \"cluster\"",
                           &redis->sentinel, &args[0]);
        return NGX_ERROR;
    }

    if (first > 3 && !redis->cluster && redis->sentinel.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "several URLs in \"%V\" directive need \"cluster\" "
                           "or \"sentinel=NAME\"", &args[0]);
        return NGX_ERROR;
    }

    return NGX_OK;
}


const char *
ngx_http_ratelimit_param_redis(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_str_t  *name = field;

    *name = *value;

    return ngx_http_ratelimit_redis_name(value);
}


/* ngx_msec_t */

static const char *
ngx_http_ratelimit_redis_time(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_int_t  msec;

    msec = ngx_parse_time(value, 0);

    if (msec <= 0 || msec > NGX_HTTP_RATELIMIT_MAX_TIMEOUT) {
        return "must be a time from 1ms to 1h";
    }

    *(ngx_msec_t *) field = (ngx_msec_t) msec;

    return NULL;
}


/* braces in a key choose its place in a cluster */

static const char *
ngx_http_ratelimit_redis_prefix(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_str_t  *prefix = field;

    ngx_uint_t  i;

    if (value->len > NGX_HTTP_RATELIMIT_MAX_PREFIX) {
        return "is longer than 128 bytes";
    }

    for (i = 0; i < value->len; i++) {

        switch (value->data[i]) {

        case '{':
        case '}':
            return "must not contain \"{\" or \"}\"";

        case '$':
            return "must not contain variables";

        default:
            if (value->data[i] < ' ' || value->data[i] == 0x7f) {
                return "must not contain control characters";
            }
        }
    }

    *prefix = *value;

    return NULL;
}


ngx_int_t
ngx_http_ratelimit_resolve_redis(ngx_conf_t *cf)
{
    ngx_int_t                         rc;
    ngx_uint_t                        i;
    ngx_conf_file_t                  *saved, origin;
    ngx_http_ratelimit_zone_t       **zones;
    ngx_http_ratelimit_main_conf_t   *rmcf;
#if (NGX_HTTP_RATELIMIT_HIREDIS)
    ngx_http_ratelimit_redis_t      **redis;
#endif

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

#if (NGX_HTTP_RATELIMIT_HIREDIS)

    redis = rmcf->redis.elts;

    for (i = 0; i < rmcf->redis.nelts; i++) {
        redis[i]->counted = rmcf->api;

        if (ngx_http_ratelimit_redis_declare(cf, redis[i],
                                             &ngx_http_ratelimit_module)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

#endif

    zones = rmcf->zones.elts;
    saved = cf->conf_file;

    for (i = 0; i < rmcf->zones.nelts; i++) {
        ngx_http_ratelimit_zone_origin(zones[i], &origin);

        cf->conf_file = &origin;
        rc = ngx_http_ratelimit_resolve_zone_redis(cf, rmcf, zones[i]);
        cf->conf_file = saved;

        if (rc != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_resolve_zone_redis(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf, ngx_http_ratelimit_zone_t *zone)
{
    ngx_http_ratelimit_redis_t  *redis;

    if (zone->redis_name.len == 0) {
        return NGX_OK;
    }

    redis = ngx_http_ratelimit_find_redis(rmcf, &zone->redis_name);

    if (redis != NULL) {
#if (NGX_HTTP_RATELIMIT_HIREDIS)
        return ngx_http_ratelimit_redis_declare_zone(cf, zone, redis,
                                                  &ngx_http_ratelimit_module);
#endif
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "unknown redis \"%V\" in \"ratelimit_zone\" "
                       "directive, there is no \"ratelimit_redis %V\"",
                       &zone->redis_name, &zone->redis_name);

    return NGX_ERROR;
}
