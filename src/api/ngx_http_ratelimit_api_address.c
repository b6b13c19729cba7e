
/*
 * Keys that are addresses, as bytes and as people write them.
 */


#include "api/ngx_http_ratelimit_api.h"


static ngx_int_t ngx_http_ratelimit_api_parse_key_of(ngx_http_request_t *r,
    ngx_str_t *text, ngx_http_ratelimit_key_e kind, ngx_str_t *key);
static ngx_int_t ngx_http_ratelimit_api_parse_prefix(ngx_str_t *text,
    ngx_int_t *bits);
static ngx_int_t ngx_http_ratelimit_api_parse_inet(ngx_str_t *text,
    u_char *address);
#if (NGX_HAVE_INET6)
static ngx_int_t ngx_http_ratelimit_api_parse_inet6(ngx_str_t *text,
    ngx_http_ratelimit_key_e kind, ngx_int_t bits, u_char *address);
#endif


/* where keys may be addresses and other text, an address is taken for one */

ngx_int_t
ngx_http_ratelimit_api_parse_key(ngx_http_request_t *r, ngx_str_t *text,
    ngx_http_ratelimit_tally_t *tally, ngx_str_t *key)
{
    ngx_int_t   rc;
    ngx_uint_t  i;

    static const ngx_http_ratelimit_key_e  kinds[] = {
        NGX_HTTP_RATELIMIT_KEY_CLIENT,
        NGX_HTTP_RATELIMIT_KEY_ADDRESS,
        NGX_HTTP_RATELIMIT_KEY_TEXT
    };

    rc = NGX_DECLINED;

    for (i = 0; i < 3 && rc == NGX_DECLINED; i++) {
        if (tally->keys & 1 << kinds[i]) {
            rc = ngx_http_ratelimit_api_parse_key_of(r, text, kinds[i], key);
        }
    }

    return rc;
}


static ngx_int_t
ngx_http_ratelimit_api_parse_key_of(ngx_http_request_t *r, ngx_str_t *text,
    ngx_http_ratelimit_key_e kind, ngx_str_t *key)
{
    ngx_int_t                       bits;
    ngx_str_t                       address;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    *key = *text;

    /* clients on a UNIX-domain socket have this for an address */

    if (kind == NGX_HTTP_RATELIMIT_KEY_TEXT
        || (text->len == 5 && ngx_strncmp(text->data, "unix:", 5) == 0))
    {
        return NGX_OK;
    }

    address = *text;

    if (ngx_http_ratelimit_api_parse_prefix(&address, &bits) != NGX_OK) {
        return NGX_DECLINED;
    }

    key->data = ngx_pcalloc(r->pool, 16);
    if (key->data == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_api_parse_inet(&address, key->data) == NGX_OK) {
        key->len = sizeof(in_addr_t);

        return (bits == NGX_ERROR || bits == 32) ? NGX_OK : NGX_DECLINED;
    }

#if (NGX_HAVE_INET6)

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    if (bits == NGX_ERROR) {
        bits = (kind == NGX_HTTP_RATELIMIT_KEY_CLIENT)
               ? (ngx_int_t) rlcf->ipv6_prefix : 128;
    }

    key->len = ngx_http_ratelimit_api_parse_inet6(&address, kind, bits,
                                                  key->data);

    return key->len ? NGX_OK : NGX_DECLINED;

#else

    return NGX_DECLINED;

#endif
}


/* "/64" at the end is cut off; NGX_ERROR if there is none */

static ngx_int_t
ngx_http_ratelimit_api_parse_prefix(ngx_str_t *text, ngx_int_t *bits)
{
    u_char  *p, *last;

    last = text->data + text->len;
    p = ngx_strlchr(text->data, last, '/');
    *bits = NGX_ERROR;

    if (p == NULL) {
        return NGX_OK;
    }

    *bits = ngx_atoi(p + 1, last - p - 1);
    text->len = p - text->data;

    return (*bits >= 0 && *bits <= 128) ? NGX_OK : NGX_ERROR;
}


/* nginx takes "1.2.3." and "01.2.3.4" for addresses, too */

static ngx_int_t
ngx_http_ratelimit_api_parse_inet(ngx_str_t *text, u_char *address)
{
    size_t     len;
    u_char     same[NGX_INET_ADDRSTRLEN];
    in_addr_t  inaddr;

    inaddr = ngx_inet_addr(text->data, text->len);

    ngx_memcpy(address, &inaddr, sizeof(in_addr_t));

    len = ngx_inet_ntop(AF_INET, address, same, NGX_INET_ADDRSTRLEN);

    return len == text->len && ngx_memcmp(same, text->data, len) == 0
           ? NGX_OK : NGX_DECLINED;
}


#if (NGX_HAVE_INET6)

/* bytes of the key, 0 if the text is no address that a client can have */

static ngx_int_t
ngx_http_ratelimit_api_parse_inet6(ngx_str_t *text,
    ngx_http_ratelimit_key_e kind, ngx_int_t bits, u_char *address)
{
    if (ngx_inet6_addr(text->data, text->len, address) != NGX_OK) {
        return 0;
    }

    if (kind == NGX_HTTP_RATELIMIT_KEY_ADDRESS) {
        return bits == 128 ? 16 : 0;
    }

    return ngx_http_ratelimit_cut_inet6(address, bits);
}

#endif


/* so that it is found by this text */

ngx_int_t
ngx_http_ratelimit_api_format_key(ngx_http_request_t *r, ngx_str_t *key,
    ngx_http_ratelimit_tally_t *tally, ngx_str_t *text)
{
    ngx_str_t  found;

    *text = *key;

    if (tally->keys & 1 << NGX_HTTP_RATELIMIT_KEY_TEXT
        || (key->len != 4 && key->len != 16))
    {
        return NGX_OK;
    }

    text->data = ngx_pnalloc(r->pool, NGX_SOCKADDR_STRLEN);
    if (text->data == NULL) {
        return NGX_ERROR;
    }

    text->len = ngx_inet_ntop(key->len == 4 ? AF_INET : AF_INET6, key->data,
                              text->data, NGX_SOCKADDR_STRLEN);

    if (ngx_http_ratelimit_api_parse_key(r, text, tally, &found) == NGX_ERROR) {
        return NGX_ERROR;
    }

    /* the location of the API would cut it */

    if (found.len == 16 && ngx_memcmp(found.data, key->data, 16) != 0) {
        text->len = ngx_cpymem(text->data + text->len, "/128", 4) - text->data;
    }

    return NGX_OK;
}
