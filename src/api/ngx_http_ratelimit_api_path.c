
/*
 * What the path of a request names.
 *
 * A key may have any bytes, and nginx changes some of them in $uri: "//" and
 * "/../".  So the path is taken as the client has sent it, and its parts are
 * decoded one by one, unless it was rewritten.
 */


#include "api/ngx_http_ratelimit_api.h"


static ngx_int_t ngx_http_ratelimit_api_read_path(ngx_http_request_t *r,
    ngx_str_t *text, ngx_uint_t encoded, ngx_http_ratelimit_api_path_t *path);
static ngx_uint_t ngx_http_ratelimit_api_skip_root(ngx_http_request_t *r,
    ngx_str_t *rest, ngx_uint_t encoded);
static ngx_int_t ngx_http_ratelimit_api_read_zone(ngx_http_request_t *r,
    ngx_str_t *rest, ngx_uint_t encoded, ngx_http_ratelimit_api_path_t *path);
static ngx_uint_t ngx_http_ratelimit_api_is_at(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path);
static ngx_int_t ngx_http_ratelimit_api_next_part(ngx_http_request_t *r,
    ngx_str_t *rest, ngx_uint_t encoded, ngx_str_t *part);
static ngx_int_t ngx_http_ratelimit_api_next_byte(ngx_str_t *text,
    ngx_uint_t encoded);
static ngx_uint_t ngx_http_ratelimit_api_is(ngx_str_t *part,
    const char *name);


/* NGX_DECLINED if it is malformed */

ngx_int_t
ngx_http_ratelimit_api_parse_path(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path)
{
    u_char     *p;
    ngx_int_t   rc;
    ngx_str_t   text;

    if (r->valid_unparsed_uri) {
        text.data = r->unparsed_uri.data;
        text.len = 0;

        for (p = text.data; text.len < r->unparsed_uri.len; text.len++, p++) {
            if (*p == '?' || *p == '#') {
                break;
            }
        }

        rc = ngx_http_ratelimit_api_read_path(r, &text, 1, path);

        if (rc != NGX_OK || ngx_http_ratelimit_api_is_at(r, path)) {
            return rc;
        }
    }

    rc = ngx_http_ratelimit_api_read_path(r, &r->uri, 0, path);

    path->changed = r->valid_unparsed_uri;

    return rc;
}


static ngx_int_t
ngx_http_ratelimit_api_read_path(ngx_http_request_t *r, ngx_str_t *text,
    ngx_uint_t encoded, ngx_http_ratelimit_api_path_t *path)
{
    ngx_int_t  rc;
    ngx_str_t  rest, part;

    ngx_memzero(path, sizeof(ngx_http_ratelimit_api_path_t));

    path->resource = NGX_HTTP_RATELIMIT_API_NOTHING;
    rest = *text;

    if (!ngx_http_ratelimit_api_skip_root(r, &rest, encoded)) {
        return NGX_OK;
    }

    rc = ngx_http_ratelimit_api_next_part(r, &rest, encoded, &part);

    if (rc != NGX_OK && rc != NGX_DONE) {
        return rc;
    }

    if (ngx_http_ratelimit_api_is(&part, "zones")) {
        return ngx_http_ratelimit_api_read_zone(r, &rest, encoded, path);
    }

    if (rc == NGX_OK) {
        return NGX_OK;
    }

    if (part.len == 0) {
        path->resource = NGX_HTTP_RATELIMIT_API_ROOT;

    } else if (ngx_http_ratelimit_api_is(&part, "redis")) {
        path->resource = NGX_HTTP_RATELIMIT_API_REDIS;

    } else if (ngx_http_ratelimit_api_is(&part, "metrics")) {
        path->resource = NGX_HTTP_RATELIMIT_API_METRICS;
    }

    return NGX_OK;
}


/* whether the path is below the location, which is cut off */

static ngx_uint_t
ngx_http_ratelimit_api_skip_root(ngx_http_request_t *r, ngx_str_t *rest,
    ngx_uint_t encoded)
{
    ngx_str_t                      *root;
    ngx_uint_t                      i;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);
    root = &rlcf->api_root;

    for (i = 0; i < root->len; i++) {
        if (ngx_http_ratelimit_api_next_byte(rest, encoded) != root->data[i]) {
            return 0;
        }
    }

    /* a root without a slash at its end is followed by one */

    return rest->len == 0 || root->data[root->len - 1] == '/'
           || ngx_http_ratelimit_api_next_byte(rest, encoded) == '/';
}


/* what follows "zones/" */

static ngx_int_t
ngx_http_ratelimit_api_read_zone(ngx_http_request_t *r, ngx_str_t *rest,
    ngx_uint_t encoded, ngx_http_ratelimit_api_path_t *path)
{
    ngx_int_t  rc;
    ngx_str_t  part;

    rc = ngx_http_ratelimit_api_next_part(r, rest, encoded, &path->zone);

    if (rc != NGX_OK && rc != NGX_DONE) {
        return rc;
    }

    if (rc == NGX_DONE) {
        path->resource = path->zone.len ? NGX_HTTP_RATELIMIT_API_ZONE
                                        : NGX_HTTP_RATELIMIT_API_ZONES;
        return NGX_OK;
    }

    rc = ngx_http_ratelimit_api_next_part(r, rest, encoded, &part);

    if (rc != NGX_OK && rc != NGX_DONE) {
        return rc;
    }

    if (rc == NGX_DONE && part.len == 0) {
        path->resource = NGX_HTTP_RATELIMIT_API_ZONE;

    } else if (rc == NGX_DONE && ngx_http_ratelimit_api_is(&part, "top")) {
        path->resource = NGX_HTTP_RATELIMIT_API_TOP;

    } else if (ngx_http_ratelimit_api_is(&part, "keys")) {
        path->resource = NGX_HTTP_RATELIMIT_API_KEY;

        /* all that follows is the key, slashes included */

        path->key = *rest;

        if (encoded) {
            return ngx_http_ratelimit_api_decode(r->pool, &path->key);
        }
    }

    return NGX_OK;
}


/*
 * Whether nginx has found the location by the same resource: another one may
 * have other access rules.  A zone's name may have slashes, and a key may have
 * changed what follows the zone.
 */

static ngx_uint_t
ngx_http_ratelimit_api_is_at(ngx_http_request_t *r,
    ngx_http_ratelimit_api_path_t *path)
{
    ngx_str_t                      rest;
    ngx_http_ratelimit_api_path_t  other;

    if (ngx_http_ratelimit_api_read_path(r, &r->uri, 0, &other) != NGX_OK) {
        return 0;
    }

    if (path->zone.len == 0) {
        return path->resource == other.resource;
    }

    rest.data = other.zone.data;
    rest.len = r->uri.data + r->uri.len - rest.data;

    if (other.zone.len == 0 || rest.len < path->zone.len
        || ngx_strncmp(rest.data, path->zone.data, path->zone.len) != 0)
    {
        return 0;
    }

    rest.data += path->zone.len;
    rest.len -= path->zone.len;

    switch (path->resource) {

    case NGX_HTTP_RATELIMIT_API_KEY:
        return rest.len == 0 || rest.data[0] == '/';

    case NGX_HTTP_RATELIMIT_API_TOP:
        return ngx_http_ratelimit_api_is(&rest, "/top");

    case NGX_HTTP_RATELIMIT_API_ZONE:
        return rest.len == 0 || ngx_http_ratelimit_api_is(&rest, "/");

    default:
        return 0;
    }
}


/* up to a slash, NGX_OK, or all, NGX_DONE */

static ngx_int_t
ngx_http_ratelimit_api_next_part(ngx_http_request_t *r, ngx_str_t *rest,
    ngx_uint_t encoded, ngx_str_t *part)
{
    u_char     *p, *last;
    ngx_int_t   rc;

    last = rest->data + rest->len;
    p = ngx_strlchr(rest->data, last, '/');

    part->data = rest->data;
    part->len = (p != NULL ? p : last) - rest->data;

    if (p != NULL) {
        rest->data = p + 1;
        rest->len = last - rest->data;

    } else {
        rest->data = last;
        rest->len = 0;
    }

    rc = encoded ? ngx_http_ratelimit_api_decode(r->pool, part) : NGX_OK;

    if (rc != NGX_OK) {
        return rc;
    }

    return (p != NULL) ? NGX_OK : NGX_DONE;
}


/* NGX_DECLINED if something follows a "%" that is no number */

ngx_int_t
ngx_http_ratelimit_api_decode(ngx_pool_t *pool, ngx_str_t *text)
{
    u_char     *p, *decoded;
    ngx_int_t   byte;

    decoded = ngx_pnalloc(pool, text->len + 1);
    if (decoded == NULL) {
        return NGX_ERROR;
    }

    p = decoded;

    while (text->len) {
        byte = ngx_http_ratelimit_api_next_byte(text, 1);

        if (byte == NGX_ERROR) {
            return NGX_DECLINED;
        }

        *p++ = (u_char) byte;
    }

    text->len = p - decoded;
    text->data = decoded;

    return NGX_OK;
}


/* cut off; NGX_ERROR if there is none, or a "%" without its number */

static ngx_int_t
ngx_http_ratelimit_api_next_byte(ngx_str_t *text, ngx_uint_t encoded)
{
    size_t     len;
    ngx_int_t  byte;

    if (text->len == 0) {
        return NGX_ERROR;
    }

    len = 1;
    byte = text->data[0];

    if (encoded && byte == '%') {
        len = 3;
        byte = (text->len > 2) ? ngx_hextoi(text->data + 1, 2) : NGX_ERROR;
    }

    if (byte != NGX_ERROR) {
        text->data += len;
        text->len -= len;
    }

    return byte;
}


ngx_int_t
ngx_http_ratelimit_api_arg(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    ngx_str_t  arg;

    if (ngx_http_arg(r, (u_char *) name, ngx_strlen(name), &arg) != NGX_OK) {
        return NGX_DONE;
    }

    *value = arg;

    return ngx_http_ratelimit_api_decode(r->pool, value);
}


static ngx_uint_t
ngx_http_ratelimit_api_is(ngx_str_t *part, const char *name)
{
    return part->len == ngx_strlen(name)
           && ngx_strncmp(part->data, name, part->len) == 0;
}
