
/*
 * ngx_http_ratelimit_module: the table of contents.
 */


#include "http/ngx_http_ratelimit_ctx.h"
#include "api/ngx_http_ratelimit_api.h"
#include "service/ngx_http_ratelimit_service.h"


static void *ngx_http_ratelimit_create_main_conf(ngx_conf_t *cf);
static void *ngx_http_ratelimit_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_ratelimit_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static ngx_int_t ngx_http_ratelimit_init(ngx_conf_t *cf);
static ngx_int_t ngx_http_ratelimit_add_handlers(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf);
static ngx_int_t ngx_http_ratelimit_add_last(ngx_conf_t *cf,
    ngx_http_phases phase, ngx_http_handler_pt handler);
static ngx_int_t ngx_http_ratelimit_init_module(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_ratelimit_init_process(ngx_cycle_t *cycle);
static void ngx_http_ratelimit_exit_process(ngx_cycle_t *cycle);


static ngx_command_t  ngx_http_ratelimit_commands[] = {

    { ngx_string("ratelimit_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_2MORE,
      ngx_http_ratelimit_zone,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_ratelimit,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit_rules"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_ratelimit_set_rules,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit_redis"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_2MORE,
      ngx_http_ratelimit_set_redis,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit_elastic"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_ratelimit_set_elastic,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit_headers"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_ratelimit_set_headers,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit_status"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_ratelimit_set_number,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_ratelimit_loc_conf_t, status),
      &ngx_http_ratelimit_status_bounds },

    { ngx_string("ratelimit_body"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_ratelimit_set_enum,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_ratelimit_loc_conf_t, body),
      &ngx_http_ratelimit_bodies },

    { ngx_string("ratelimit_log_level"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE12,
      ngx_http_ratelimit_set_log_level,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_ratelimit_loc_conf_t, limit_log_level),
      &ngx_http_ratelimit_log_levels },

    { ngx_string("ratelimit_dry_run"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_ratelimit_loc_conf_t, dry_run),
      NULL },

    { ngx_string("ratelimit_bypass"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_ratelimit_set_bypass,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_ratelimit_loc_conf_t, bypass),
      NULL },

    { ngx_string("ratelimit_ipv6_prefix"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_ratelimit_set_number,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_ratelimit_loc_conf_t, ipv6_prefix),
      &ngx_http_ratelimit_ipv6_prefix_bounds },

    { ngx_string("ratelimit_service"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_ratelimit_set_service,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("ratelimit_api"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_http_ratelimit_set_api,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_ratelimit_module_ctx = {
    ngx_http_ratelimit_add_variables,      /* preconfiguration */
    ngx_http_ratelimit_init,               /* postconfiguration */

    ngx_http_ratelimit_create_main_conf,   /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_ratelimit_create_loc_conf,    /* create location configuration */
    ngx_http_ratelimit_merge_loc_conf      /* merge location configuration */
};


ngx_module_t  ngx_http_ratelimit_module = {
    NGX_MODULE_V1,
    &ngx_http_ratelimit_module_ctx,        /* module context */
    ngx_http_ratelimit_commands,           /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_ratelimit_init_module,        /* init module */
    ngx_http_ratelimit_init_process,       /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_ratelimit_exit_process,       /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static void *
ngx_http_ratelimit_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_main_conf_t));
    if (rmcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&rmcf->zones, cf->pool, 4,
                       sizeof(ngx_http_ratelimit_zone_t *))
        != NGX_OK
        || ngx_array_init(&rmcf->sets, cf->pool, 4,
                          sizeof(ngx_http_ratelimit_set_t *))
           != NGX_OK
        || ngx_array_init(&rmcf->expr_checks, cf->pool, 4,
                          sizeof(ngx_http_ratelimit_expr_check_t))
           != NGX_OK
        || ngx_array_init(&rmcf->redis, cf->pool, 1,
                          sizeof(ngx_http_ratelimit_redis_t *))
           != NGX_OK
        || ngx_array_init(&rmcf->services, cf->pool, 1,
                          sizeof(ngx_http_ratelimit_service_t))
           != NGX_OK)
    {
        return NULL;
    }

    return rmcf;
}


static void *
ngx_http_ratelimit_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_loc_conf_t));
    if (rlcf == NULL) {
        return NULL;
    }

    rlcf->set = NGX_CONF_UNSET_PTR;
    rlcf->bypass = NGX_CONF_UNSET_PTR;
    rlcf->headers = NGX_CONF_UNSET_UINT;
    rlcf->status = NGX_CONF_UNSET_UINT;
    rlcf->body = NGX_CONF_UNSET_UINT;
    rlcf->limit_log_level = NGX_CONF_UNSET_UINT;
    rlcf->ipv6_prefix = NGX_CONF_UNSET_UINT;
    rlcf->dry_run = NGX_CONF_UNSET;

    return rlcf;
}


static char *
ngx_http_ratelimit_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_ratelimit_loc_conf_t  *prev = parent;
    ngx_http_ratelimit_loc_conf_t  *conf = child;

    ngx_http_core_loc_conf_t        *clcf;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    ngx_conf_merge_ptr_value(conf->set, prev->set, NULL);
    ngx_conf_merge_ptr_value(conf->bypass, prev->bypass, NULL);
    ngx_conf_merge_uint_value(conf->headers, prev->headers,
                              NGX_HTTP_RATELIMIT_HEADERS_X);
    ngx_conf_merge_uint_value(conf->status, prev->status,
                              NGX_HTTP_TOO_MANY_REQUESTS);
    ngx_conf_merge_uint_value(conf->body, prev->body,
                              NGX_HTTP_RATELIMIT_BODY_PROBLEM);
    if (conf->limit_log_level == NGX_CONF_UNSET_UINT) {
        conf->log_limit = prev->log_limit;
    }

    ngx_conf_merge_uint_value(conf->limit_log_level, prev->limit_log_level,
                              NGX_LOG_ERR);

    conf->delay_log_level = (conf->limit_log_level == NGX_LOG_INFO) ?
                                NGX_LOG_INFO : conf->limit_log_level + 1;

    ngx_conf_merge_uint_value(conf->ipv6_prefix, prev->ipv6_prefix, 64);
    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);

    /* those of the core module have been merged */

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    conf->error_pages = (clcf->error_pages != NULL);
    rmcf->error_pages |= conf->error_pages;

    /* all of http {} has been read */

    conf->marks = (conf->dry_run ? NGX_HTTP_RATELIMIT_MARK_DRY_RUN : 0)
                  | (rmcf->api ? NGX_HTTP_RATELIMIT_MARK_COUNTED : 0);

    ngx_http_ratelimit_merge_api(cf, prev, conf, clcf);

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_ratelimit_init(ngx_conf_t *cf)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    if (ngx_http_ratelimit_resolve(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    ngx_http_ratelimit_service_init(rmcf);

    /* without limits no handler is needed */

    if (rmcf->sets.nelts == 0) {
        return NGX_OK;
    }

    if (ngx_http_ratelimit_add_handlers(cf, rmcf) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_header_filter_init();

    return ngx_http_ratelimit_settle_init(cf, rmcf);
}


/*
 * In preaccess limits run after the handlers of all other modules: realip must
 * have set the address, and a request that limit_req or limit_conn refuses is
 * not counted.
 */

static ngx_int_t
ngx_http_ratelimit_add_handlers(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf)
{
    if (ngx_http_ratelimit_add_last(cf, NGX_HTTP_PREACCESS_PHASE,
                                    ngx_http_ratelimit_handler)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (rmcf->error_pages
        && ngx_http_ratelimit_add_first(cf, NGX_HTTP_PREACCESS_PHASE,
                                        ngx_http_ratelimit_preaccess_handler)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if ((rmcf->error_pages || (rmcf->stages & NGX_HTTP_RATELIMIT_AFTER_AUTH))
        && ngx_http_ratelimit_add_first(cf, NGX_HTTP_PRECONTENT_PHASE,
                                        ngx_http_ratelimit_after_auth_handler)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* with one stage alone there is no second decision to refund the first */

    if (rmcf->stages == (NGX_HTTP_RATELIMIT_BEFORE_AUTH
                         | NGX_HTTP_RATELIMIT_AFTER_AUTH)
        && ngx_http_ratelimit_add_last(cf, NGX_HTTP_PRECONTENT_PHASE,
                                       ngx_http_ratelimit_content_handler)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_add_last(ngx_conf_t *cf, ngx_http_phases phase,
    ngx_http_handler_pt handler)
{
    ngx_array_t                *handlers;
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    if (ngx_http_ratelimit_add_first(cf, phase, handler) != NGX_OK) {
        return NGX_ERROR;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    handlers = &cmcf->phases[phase].handlers;
    h = handlers->elts;

    ngx_memmove(h + 1, h, (handlers->nelts - 1) * sizeof(ngx_http_handler_pt));

    *h = handler;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_init_module(ngx_cycle_t *cycle)
{
    ngx_http_ratelimit_store_init_module(cycle);

#if (NGX_HTTP_RATELIMIT_HIREDIS)
    ngx_http_ratelimit_redis_init_module(cycle);
#endif

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_init_process(ngx_cycle_t *cycle)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    if (ngx_http_ratelimit_store_init_process(cycle) != NGX_OK) {
        return NGX_ERROR;
    }

#if (NGX_HTTP_RATELIMIT_HIREDIS)

    if (ngx_http_ratelimit_redis_init_process(cycle) != NGX_OK) {
        return NGX_ERROR;
    }

#endif

    rmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_ratelimit_module);

    if (rmcf == NULL || rmcf->elastic == NULL) {
        return NGX_OK;
    }

    return ngx_http_ratelimit_elastic_init_process(cycle, rmcf->elastic);
}


static void
ngx_http_ratelimit_exit_process(ngx_cycle_t *cycle)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_ratelimit_module);
    if (rmcf != NULL) {
        ngx_http_ratelimit_log_exit_process(rmcf);
    }

#if (NGX_HTTP_RATELIMIT_HIREDIS)
    ngx_http_ratelimit_redis_exit_process(cycle);
#endif

    ngx_http_ratelimit_store_exit_process(cycle);
}
