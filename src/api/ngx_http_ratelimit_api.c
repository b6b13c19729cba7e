
/*
 * Resources and methods: what a request asks for.
 */


#include "api/ngx_http_ratelimit_api.h"

#include <nginx.h>


static ngx_int_t ngx_http_ratelimit_api_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_api_get(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path);
static void ngx_http_ratelimit_api_overview(ngx_http_request_t *r,
    ngx_http_ratelimit_resource_e resource, ngx_str_t *key,
    ngx_http_ratelimit_text_t *text);
static ngx_uint_t ngx_http_ratelimit_api_deletes(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path);
static ngx_int_t ngx_http_ratelimit_api_delete(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path);
static ngx_int_t ngx_http_ratelimit_api_allow(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path, ngx_uint_t status);
static ngx_http_ratelimit_zone_t *ngx_http_ratelimit_api_find_zone(
    ngx_http_request_t *r, ngx_http_ratelimit_api_path_t *path);
static ngx_int_t ngx_http_ratelimit_api_unknown_zone(ngx_http_request_t *r);


static ngx_conf_enum_t  ngx_http_ratelimit_api_writes[] = {
    { ngx_string("off"), NGX_HTTP_RATELIMIT_API_READ },
    { ngx_string("on"), NGX_HTTP_RATELIMIT_API_WRITE },
    { ngx_null_string, 0 }
};


static ngx_http_ratelimit_param_t  ngx_http_ratelimit_api_params[] = {

    { ngx_string("write="), ngx_http_ratelimit_param_enum,
      offsetof(ngx_http_ratelimit_loc_conf_t, api), 0, 0, 0,
      &ngx_http_ratelimit_api_writes },

      ngx_http_ratelimit_null_param
};


char *
ngx_http_ratelimit_set_api(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_loc_conf_t  *rlcf = conf;

    ngx_http_core_loc_conf_t        *clcf;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    if (rlcf->api) {
        return "is duplicate";
    }

    rlcf->api = NGX_HTTP_RATELIMIT_API_READ;

    if (ngx_http_ratelimit_params(cf, 1, ngx_http_ratelimit_api_params, rlcf)
        != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->named) {
        return "needs a location that has a path";
    }

#if (NGX_PCRE)

    if (clcf->regex != NULL) {
        return "needs a location that is given by a prefix";
    }

#endif

    clcf->handler = ngx_http_ratelimit_api_handler;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    rmcf->api = 1;

    return NGX_CONF_OK;
}


/*
 * In a location inside another one that has the directive, too, the resources
 * have the same paths, so that one of them may have other access rules.  What
 * "if" and "limit_except" make is the same location with another configuration.
 */

void
ngx_http_ratelimit_merge_api(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *prev, ngx_http_ratelimit_loc_conf_t *conf,
    ngx_http_core_loc_conf_t *clcf)
{
    if (clcf->noname) {
        conf->api = prev->api;
    }

    if (clcf->lmt_excpt && clcf->handler == NULL && conf->api) {
        clcf->handler = ngx_http_ratelimit_api_handler;
    }

    if (conf->api) {
        conf->api_root = prev->api ? prev->api_root : clcf->name;

        if (!prev->api && clcf->exact_match) {
            ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                          "\"ratelimit_api\" in \"location = %V\" has no "
                          "resources below it, and the page does not work: "
                          "give the location by a prefix", &clcf->name);
        }
    }
}


static ngx_int_t
ngx_http_ratelimit_api_handler(ngx_http_request_t *r)
{
    ngx_int_t                      rc;
    ngx_http_ratelimit_api_path_t  path;

    /* there is nothing that "If-None-Match: *" could mean */

    r->disable_not_modified = 1;

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    rc = ngx_http_ratelimit_api_parse_path(r, &path);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_DECLINED) {
        return ngx_http_ratelimit_api_error(r, NGX_HTTP_BAD_REQUEST,
                                            "the path is malformed");
    }

    if (path.resource == NGX_HTTP_RATELIMIT_API_NOTHING) {
        return ngx_http_ratelimit_api_error(r, NGX_HTTP_NOT_FOUND,
                                            "there is no such resource");
    }

    switch (r->method) {

    case NGX_HTTP_GET:
    case NGX_HTTP_HEAD:
        return ngx_http_ratelimit_api_get(r, &path);

    case NGX_HTTP_OPTIONS:
        return ngx_http_ratelimit_api_allow(r, &path, NGX_HTTP_NO_CONTENT);

    case NGX_HTTP_DELETE:
        if (ngx_http_ratelimit_api_deletes(r, &path)) {
            return ngx_http_ratelimit_api_delete(r, &path);
        }

        /* fall through */

    default:
        return ngx_http_ratelimit_api_allow(r, &path, NGX_HTTP_NOT_ALLOWED);
    }
}


static ngx_int_t
ngx_http_ratelimit_api_get(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path)
{
    ngx_int_t                   rc;
    ngx_str_t                   key;
    ngx_http_ratelimit_text_t   text;
    ngx_http_ratelimit_zone_t  *zone;

    if (path->resource == NGX_HTTP_RATELIMIT_API_ROOT
        && ngx_http_ratelimit_api_wants_page(r))
    {
        return ngx_http_ratelimit_api_page(r);
    }

    if (path->resource == NGX_HTTP_RATELIMIT_API_METRICS) {
        return ngx_http_ratelimit_api_metrics(r);
    }

    ngx_http_ratelimit_text_init(&text, r->pool);

    if (path->zone.len == 0) {
        ngx_str_null(&key);

        rc = ngx_http_ratelimit_api_arg(r, "key", &key);

        if (rc == NGX_ERROR) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (rc == NGX_DECLINED) {
            return ngx_http_ratelimit_api_error(r, NGX_HTTP_BAD_REQUEST,
                                    "an argument is not percent-encoded");
        }

        ngx_http_ratelimit_api_overview(r, path->resource, &key, &text);
        return ngx_http_ratelimit_api_send_json(r, NGX_HTTP_OK, &text);
    }

    zone = ngx_http_ratelimit_api_find_zone(r, path);

    if (zone == NULL) {
        return ngx_http_ratelimit_api_unknown_zone(r);
    }

    switch (path->resource) {

    case NGX_HTTP_RATELIMIT_API_KEY:
        return ngx_http_ratelimit_api_key(r, zone, &path->key);

    case NGX_HTTP_RATELIMIT_API_TOP:
        ngx_http_ratelimit_api_top(r, &text, zone);
        break;

    default: /* NGX_HTTP_RATELIMIT_API_ZONE */
        ngx_http_ratelimit_api_zone(&text, zone);
        break;
    }

    return ngx_http_ratelimit_api_send_json(r, NGX_HTTP_OK, &text);
}


static void
ngx_http_ratelimit_api_overview(ngx_http_request_t *r,
    ngx_http_ratelimit_resource_e resource, ngx_str_t *key,
    ngx_http_ratelimit_text_t *text)
{
    ngx_http_ratelimit_loc_conf_t   *rlcf;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);
    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

    ngx_http_ratelimit_json_open(text, '{');

    if (resource == NGX_HTTP_RATELIMIT_API_ROOT) {
        ngx_http_ratelimit_json_name(text, "version");
        ngx_http_ratelimit_json_literal(text,
                                     "\"" NGX_HTTP_RATELIMIT_VERSION "\"");
        ngx_http_ratelimit_json_name(text, "nginx");
        ngx_http_ratelimit_json_literal(text, "\"" NGINX_VERSION "\"");
        ngx_http_ratelimit_json_name(text, "write");
        ngx_http_ratelimit_json_literal(text,
                                 rlcf->api == NGX_HTTP_RATELIMIT_API_WRITE
                                 ? "true" : "false");
    }

    if (resource != NGX_HTTP_RATELIMIT_API_REDIS) {
        ngx_http_ratelimit_json_name(text, "zones");
        ngx_http_ratelimit_api_zones(r, text, key);
    }

    if (resource != NGX_HTTP_RATELIMIT_API_ZONES) {
        ngx_http_ratelimit_json_name(text, "redis");
        ngx_http_ratelimit_api_redis(text, rmcf);
    }

    ngx_http_ratelimit_json_close(text, '}');
}


/* whether something can be deleted here */

static ngx_uint_t
ngx_http_ratelimit_api_deletes(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path)
{
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    return rlcf->api == NGX_HTTP_RATELIMIT_API_WRITE
           && (path->resource == NGX_HTTP_RATELIMIT_API_ZONE
               || path->resource == NGX_HTTP_RATELIMIT_API_KEY);
}


static ngx_int_t
ngx_http_ratelimit_api_delete(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path)
{
    ngx_http_ratelimit_zone_t  *zone;

    zone = ngx_http_ratelimit_api_find_zone(r, path);

    if (zone == NULL) {
        return ngx_http_ratelimit_api_unknown_zone(r);
    }

    /* "keys/.." must not be taken for the zone */

    if (path->changed) {
        return ngx_http_ratelimit_api_error(r, NGX_HTTP_BAD_REQUEST,
                                            "the path is ambiguous");
    }

    if (path->resource == NGX_HTTP_RATELIMIT_API_KEY) {
        return ngx_http_ratelimit_api_key(r, zone, &path->key);
    }

    ngx_http_ratelimit_statistics_reset(zone);

    if (zone->top_zone != NULL) {
        ngx_http_ratelimit_top_reset(zone);
    }

    return ngx_http_ratelimit_api_send(r, NGX_HTTP_NO_CONTENT, NULL, NULL);
}


/* the methods that there are */

static ngx_int_t
ngx_http_ratelimit_api_allow(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path, ngx_uint_t status)
{
    static ngx_str_t  name = ngx_string("Allow");
    static ngx_str_t  some = ngx_string("GET, HEAD, OPTIONS");
    static ngx_str_t  all = ngx_string("GET, HEAD, OPTIONS, DELETE");

    if (ngx_http_ratelimit_push_field(r, &name,
                                      ngx_http_ratelimit_api_deletes(r, path)
                                      ? &all : &some)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (status == NGX_HTTP_NOT_ALLOWED) {
        return ngx_http_ratelimit_api_error(r, status,
                                            "the method is not allowed here");
    }

    return ngx_http_ratelimit_api_send(r, status, NULL, NULL);
}


static ngx_http_ratelimit_zone_t *
ngx_http_ratelimit_api_find_zone(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

    return ngx_http_ratelimit_find_zone(rmcf, &path->zone);
}


static ngx_int_t
ngx_http_ratelimit_api_unknown_zone(ngx_http_request_t *r)
{
    ngx_uint_t                        i;
    ngx_http_ratelimit_text_t         text;
    ngx_http_ratelimit_zone_t       **zone;
    ngx_http_ratelimit_main_conf_t   *rmcf;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    zone = rmcf->zones.elts;

    ngx_http_ratelimit_text_init(&text, r->pool);
    ngx_http_ratelimit_json_open(&text, '{');
    ngx_http_ratelimit_json_name(&text, "error");
    ngx_http_ratelimit_json_literal(&text, "\"there is no such zone\"");
    ngx_http_ratelimit_json_name(&text, "zones");
    ngx_http_ratelimit_json_open(&text, '[');

    for (i = 0; i < rmcf->zones.nelts; i++) {
        ngx_http_ratelimit_json_string(&text, &zone[i]->name);
    }

    ngx_http_ratelimit_json_close(&text, ']');
    ngx_http_ratelimit_json_close(&text, '}');

    return ngx_http_ratelimit_api_send_json(r, NGX_HTTP_NOT_FOUND, &text);
}


ngx_int_t
ngx_http_ratelimit_api_error(ngx_http_request_t *r, ngx_uint_t status,
    const char *reason)
{
    ngx_str_t                  value;
    ngx_http_ratelimit_text_t  text;

    value.data = (u_char *) reason;
    value.len = ngx_strlen(reason);

    ngx_http_ratelimit_text_init(&text, r->pool);
    ngx_http_ratelimit_json_open(&text, '{');
    ngx_http_ratelimit_json_name(&text, "error");
    ngx_http_ratelimit_json_string(&text, &value);
    ngx_http_ratelimit_json_close(&text, '}');

    return ngx_http_ratelimit_api_send_json(r, status, &text);
}


ngx_int_t
ngx_http_ratelimit_api_send_json(ngx_http_request_t *r, ngx_uint_t status,
    ngx_http_ratelimit_text_t *text)
{
    ngx_http_ratelimit_text_add(text, CRLF, sizeof(CRLF) - 1);

    return ngx_http_ratelimit_api_send(r, status, "application/json", text);
}


ngx_int_t
ngx_http_ratelimit_api_send(ngx_http_request_t *r, ngx_uint_t status,
    const char *type, ngx_http_ratelimit_text_t *text)
{
    static ngx_str_t  control = ngx_string("Cache-Control");
    static ngx_str_t  no_store = ngx_string("no-store");
    static ngx_str_t  options = ngx_string("X-Content-Type-Options");
    static ngx_str_t  nosniff = ngx_string("nosniff");

    ngx_int_t     rc;
    ngx_chain_t  *out;

    out = NULL;

    r->headers_out.status = status;
    r->headers_out.content_length_n = 0;

    if (text != NULL) {
        out = ngx_http_ratelimit_text_finish(text, r == r->main);
        if (out == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        r->headers_out.content_length_n = ngx_http_ratelimit_text_size(text);
        r->headers_out.content_type.data = (u_char *) type;
        r->headers_out.content_type.len = ngx_strlen(type);
        r->headers_out.content_type_len = strcspn(type, ";");
        r->headers_out.content_type_lowcase = NULL;
    }

    if (ngx_http_ratelimit_push_field(r, &control, &no_store) != NGX_OK
        || ngx_http_ratelimit_push_field(r, &options, &nosniff) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (status == NGX_HTTP_NO_CONTENT) {
        r->header_only = 1;
        ngx_http_clear_content_length(r);
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, out);
}
