
/*
 * ratelimit_service: what is checked when http {} has been read.
 */


#include "conf/ngx_http_ratelimit_conf.h"


/* calls after which a connection should not end: nginx's default */
#define NGX_HTTP_RATELIMIT_FEW_CALLS  1000


static void ngx_http_ratelimit_service_check(ngx_conf_t *cf,
    ngx_http_ratelimit_service_t *service);
static ngx_uint_t ngx_http_ratelimit_service_is_http2(
    ngx_http_conf_addr_t *addr);
static ngx_uint_t ngx_http_ratelimit_service_listens(
    ngx_http_ratelimit_service_t *service, ngx_http_conf_addr_t *addr);
static ngx_uint_t ngx_http_ratelimit_service_check_calls(ngx_conf_t *cf,
    ngx_http_ratelimit_service_t *service, ngx_http_core_srv_conf_t *server,
    ngx_str_t *address);


void
ngx_http_ratelimit_check_services(ngx_conf_t *cf)
{
    ngx_uint_t                       i;
    ngx_http_ratelimit_service_t    *services;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    services = rmcf->services.elts;

    for (i = 0; i < rmcf->services.nelts; i++) {
        ngx_http_ratelimit_service_check(cf, &services[i]);
    }
}


/*
 * nginx ends a connection after "keepalive_requests" calls: those of the server
 * or, by HTTP/2 without TLS, of the default server of the address
 */

static void
ngx_http_ratelimit_service_check(ngx_conf_t *cf,
    ngx_http_ratelimit_service_t *service)
{
    ngx_uint_t                  i, k;
    ngx_http_conf_port_t       *port;
    ngx_http_conf_addr_t       *addr;
    ngx_http_core_main_conf_t  *cmcf;

    if (ngx_http_ratelimit_service_check_calls(cf, service, service->server,
                                               NULL))
    {
        return;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    port = cmcf->ports->elts;

    for (i = 0; i < cmcf->ports->nelts; i++) {
        addr = port[i].addrs.elts;

        for (k = 0; k < port[i].addrs.nelts; k++) {
            if (ngx_http_ratelimit_service_is_http2(&addr[k])
                && !addr[k].opt.ssl
                && ngx_http_ratelimit_service_listens(service, &addr[k])
                && ngx_http_ratelimit_service_check_calls(cf, service,
                                                     addr[k].default_server,
                                                     &addr[k].opt.addr_text))
            {
                return;
            }
        }
    }
}


/* by "listen" or, since nginx 1.25.1, by "http2" of the default server */

static ngx_uint_t
ngx_http_ratelimit_service_is_http2(ngx_http_conf_addr_t *addr)
{
#if (NGX_HTTP_V2 && nginx_version >= 1025001)

    ngx_http_v2_srv_conf_t  *h2scf;

    h2scf = addr->default_server->ctx->srv_conf[ngx_http_v2_module.ctx_index];

    if (h2scf->enable) {
        return 1;
    }

#endif

    return addr->opt.http2;
}


static ngx_uint_t
ngx_http_ratelimit_service_listens(ngx_http_ratelimit_service_t *service,
    ngx_http_conf_addr_t *addr)
{
    ngx_uint_t                   i;
    ngx_http_core_srv_conf_t  **servers;

    servers = addr->servers.elts;

    for (i = 0; i < addr->servers.nelts; i++) {
        if (servers[i] == service->server) {
            return 1;
        }
    }

    return 0;
}


/* returns whether a warning was given */

static ngx_uint_t
ngx_http_ratelimit_service_check_calls(ngx_conf_t *cf,
    ngx_http_ratelimit_service_t *service, ngx_http_core_srv_conf_t *server,
    ngx_str_t *address)
{
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_str_t  none = ngx_string("");

    clcf = server->ctx->loc_conf[ngx_http_core_module.ctx_index];

    if (clcf->keepalive_requests > NGX_HTTP_RATELIMIT_FEW_CALLS) {
        return 0;
    }

    cf->conf_file = &service->origin;

    ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                       "\"ratelimit_service\" is in a server whose "
                       "connections end after %ui calls: set a higher "
                       "\"keepalive_requests\" %s%V",
                       clcf->keepalive_requests,
                       address ? "in the default server of " : "there",
                       address ? address : &none);

    return 1;
}
