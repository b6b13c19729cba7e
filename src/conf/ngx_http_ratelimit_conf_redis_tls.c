
/*
 * TLS of a "ratelimit_redis": the parameters "ssl_...", and nginx's context
 * that is made of them.
 */


#include "conf/ngx_http_ratelimit_conf.h"
#include "redis/ngx_http_ratelimit_redis.h"
#include "redis/ratelimit_url.h"


static ngx_uint_t ngx_http_ratelimit_tls_is_url(ngx_str_t *url);
static ngx_int_t ngx_http_ratelimit_tls_check_urls(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_uint_t servers);
static ngx_int_t ngx_http_ratelimit_tls_check_needs(ngx_conf_t *cf,
    ngx_http_ratelimit_tls_params_t *params, ngx_http_ratelimit_redis_t *redis,
    ngx_uint_t servers);

#if (NGX_HTTP_RATELIMIT_TLS)

static ngx_int_t ngx_http_ratelimit_tls_check(ngx_conf_t *cf,
    ngx_http_ratelimit_tls_params_t *params);
static const char *ngx_http_ratelimit_tls_check_name(ngx_str_t *name);
static ngx_ssl_t *ngx_http_ratelimit_tls_create(ngx_conf_t *cf,
    ngx_http_ratelimit_tls_params_t *params);
static ngx_int_t ngx_http_ratelimit_tls_parse_protocols(ngx_conf_t *cf,
    ngx_str_t *text, ngx_uint_t *protocols);
static ngx_int_t ngx_http_ratelimit_tls_load_ca(ngx_conf_t *cf, SSL_CTX *ctx,
    ngx_http_ratelimit_tls_params_t *params);
static ngx_int_t ngx_http_ratelimit_tls_load_certificate(ngx_conf_t *cf,
    SSL_CTX *ctx, ngx_http_ratelimit_tls_params_t *params);
static ngx_int_t ngx_http_ratelimit_tls_load_key(ngx_conf_t *cf, SSL_CTX *ctx,
    ngx_http_ratelimit_tls_params_t *params);
static ngx_int_t ngx_http_ratelimit_tls_find_file(ngx_conf_t *cf,
    const char *param, ngx_str_t *path);
static int ngx_http_ratelimit_tls_no_password(char *buffer, int size,
    int writing, void *asked);
static ngx_int_t ngx_http_ratelimit_tls_refuse(ngx_conf_t *cf,
    const char *param, ngx_str_t *value, const char *reason);


static ngx_conf_enum_t  ngx_http_ratelimit_tls_protocols[] = {
    { ngx_string("TLSv1"), NGX_SSL_TLSv1 },
    { ngx_string("TLSv1.1"), NGX_SSL_TLSv1_1 },
    { ngx_string("TLSv1.2"), NGX_SSL_TLSv1_2 },
    { ngx_string("TLSv1.3"), NGX_SSL_TLSv1_3 },
    { ngx_null_string, 0 }
};

#endif


ngx_int_t
ngx_http_ratelimit_redis_set_tls(ngx_conf_t *cf,
    ngx_http_ratelimit_tls_params_t *params, ngx_http_ratelimit_redis_t *redis)
{
    ngx_str_t   *args;
    ngx_uint_t   servers, sentinels;
#if (NGX_HTTP_RATELIMIT_TLS)
    ngx_http_ratelimit_redis_tls_t  *tls;
#endif

    args = cf->args->elts;

    servers = ngx_http_ratelimit_tls_is_url(&args[2]);
    sentinels = (params->sentinel == 1);

    if (ngx_http_ratelimit_tls_check_urls(cf, redis, servers) != NGX_OK
        || ngx_http_ratelimit_tls_check_needs(cf, params, redis, servers)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!servers && !sentinels) {
        return NGX_OK;
    }

#if (NGX_HTTP_RATELIMIT_TLS)

    if (ngx_http_ratelimit_tls_check(cf, params) != NGX_OK) {
        return NGX_ERROR;
    }

    tls = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_redis_tls_t));
    if (tls == NULL) {
        return NGX_ERROR;
    }

    tls->name = params->name;
    tls->verify = params->verify;
    tls->ssl = ngx_http_ratelimit_tls_create(cf, params);

    redis->tls = servers ? tls : NULL;
    redis->sentinel_tls = sentinels ? tls : NULL;

    return tls->ssl ? NGX_OK : NGX_ERROR;

#else

    /* unreachable: it has been refused */

    return NGX_ERROR;

#endif
}


static ngx_uint_t
ngx_http_ratelimit_tls_is_url(ngx_str_t *url)
{
    return ngx_strncmp(url->data, "rediss://", sizeof("rediss://") - 1) == 0;
}


static ngx_int_t
ngx_http_ratelimit_tls_check_urls(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_uint_t servers)
{
    ngx_str_t   *url, shown;
    ngx_uint_t   i;

    url = cf->args->elts;
    url += 2;

    for (i = 1; i < redis->endpoints.nelts; i++) {

        if (ngx_http_ratelimit_tls_is_url(&url[i]) != servers) {
            shown = ngx_http_ratelimit_masked(cf, &url[i]);

            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid URL \"%V\" in \"ratelimit_redis\" "
                               "directive: must begin with \"%s\" as the "
                               "first URL", &shown,
                               servers ? "rediss://" : "redis://");
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* whether there is what the parameters are about */

static ngx_int_t
ngx_http_ratelimit_tls_check_needs(ngx_conf_t *cf,
    ngx_http_ratelimit_tls_params_t *params, ngx_http_ratelimit_redis_t *redis,
    ngx_uint_t servers)
{
    ngx_str_t   *args;
    ngx_uint_t   i;
    const char  *reason;

    args = cf->args->elts;

    for (i = 2 + redis->endpoints.nelts; i < cf->args->nelts; i++) {
        reason = NULL;

        if (ngx_strncmp(args[i].data, "sentinel_ssl=", 13) == 0) {
            reason = (redis->sentinel.len == 0) ? "needs \"sentinel=NAME\""
                     : params->sentinel ? NGX_HTTP_RATELIMIT_REDIS_NO_TLS
                     : NULL;

        } else if (ngx_strncmp(args[i].data, "ssl_", 4) == 0
                   && !servers && params->sentinel != 1)
        {
            reason = "needs a URL that begins with \"rediss://\"";
        }

        if (reason != NULL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in "
                               "\"ratelimit_redis\" directive: %s",
                               &args[i], reason);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


#if (NGX_HTTP_RATELIMIT_TLS)

static ngx_int_t
ngx_http_ratelimit_tls_check(ngx_conf_t *cf,
    ngx_http_ratelimit_tls_params_t *params)
{
    const char  *reason;

    if (params->ca.len && !params->verify) {
        return ngx_http_ratelimit_tls_refuse(cf, "ssl_ca", &params->ca,
                                         "conflicts with \"ssl_verify=off\"");
    }

    if (params->certificate.len && params->key.len == 0) {
        return ngx_http_ratelimit_tls_refuse(cf, "ssl_certificate",
                                             &params->certificate,
                                             "needs \"ssl_certificate_key=\"");
    }

    if (params->key.len && params->certificate.len == 0) {
        return ngx_http_ratelimit_tls_refuse(cf, "ssl_certificate_key",
                                             &params->key,
                                             "needs \"ssl_certificate=\"");
    }

    if (params->name.len) {
        reason = ngx_http_ratelimit_tls_check_name(&params->name);

        if (reason != NULL) {
            return ngx_http_ratelimit_tls_refuse(cf, "ssl_name", &params->name,
                                                 reason);
        }
    }

    return NGX_OK;
}


static const char *
ngx_http_ratelimit_tls_check_name(ngx_str_t *name)
{
#if (NGX_HAVE_INET6)
    u_char  addr[16];

    if (ngx_inet6_addr(name->data, name->len, addr) == NGX_OK) {
        return NULL;
    }
#endif

    if (name->len > RATELIMIT_URL_MAX_HOST) {
        return "is too long";
    }

    /* to OpenSSL ".example.com" is any name that ends so */

    return (ngx_http_ratelimit_redis_name(name) == NULL
            && name->data[0] != '.')
           ? NULL : "must be a host name or an address";
}


static ngx_ssl_t *
ngx_http_ratelimit_tls_create(ngx_conf_t *cf,
    ngx_http_ratelimit_tls_params_t *params)
{
    ngx_ssl_t           *ssl;
    ngx_uint_t           protocols;
    ngx_pool_cleanup_t  *cln;

    if (ngx_http_ratelimit_tls_parse_protocols(cf, &params->protocols,
                                               &protocols)
        != NGX_OK)
    {
        return NULL;
    }

    ssl = ngx_pcalloc(cf->pool, sizeof(ngx_ssl_t));
    if (ssl == NULL) {
        return NULL;
    }

    ssl->log = cf->log;

    cln = ngx_pool_cleanup_add(cf->pool, 0);

    if (cln == NULL || ngx_ssl_create(ssl, protocols, NULL) != NGX_OK) {
        return NULL;
    }

    cln->handler = ngx_ssl_cleanup_ctx;
    cln->data = ssl;

    if (ngx_http_ratelimit_tls_load_ca(cf, ssl->ctx, params) != NGX_OK
        || ngx_http_ratelimit_tls_load_certificate(cf, ssl->ctx, params)
           != NGX_OK)
    {
        return NULL;
    }

    if (params->ciphers.len
        && SSL_CTX_set_cipher_list(ssl->ctx, (char *) params->ciphers.data)
           == 0)
    {
        (void) ngx_http_ratelimit_tls_refuse(cf, "ssl_ciphers",
                                             &params->ciphers,
                                             "there is no such cipher");
        return NULL;
    }

    return ngx_ssl_client_session_cache(cf, ssl, 1) == NGX_OK ? ssl : NULL;
}


/* separated by commas or blanks */

static ngx_int_t
ngx_http_ratelimit_tls_parse_protocols(ngx_conf_t *cf, ngx_str_t *text,
    ngx_uint_t *protocols)
{
    u_char      *p, *last;
    ngx_str_t    word;
    ngx_uint_t   protocol;
    const char  *reason;

    if (text->len == 0) {
        *protocols = NGX_SSL_TLSv1_2|NGX_SSL_TLSv1_3;
        return NGX_OK;
    }

    *protocols = 0;

    p = text->data;
    last = p + text->len;

    do {
        word.data = p;

        while (p < last && *p != ',' && *p != ' ') {
            p++;
        }

        word.len = p - word.data;

        reason = ngx_http_ratelimit_parse_enum(cf,
                                              ngx_http_ratelimit_tls_protocols,
                                              &word, &protocol);
        if (reason != NULL) {
            return ngx_http_ratelimit_tls_refuse(cf, "ssl_protocols", text,
                                                 reason);
        }

        *protocols |= protocol;

    } while (p++ < last);

    return NGX_OK;
}


/* without one, those that the system trusts */

static ngx_int_t
ngx_http_ratelimit_tls_load_ca(ngx_conf_t *cf, SSL_CTX *ctx,
    ngx_http_ratelimit_tls_params_t *params)
{
    int  ok;

    if (!params->verify) {
        return NGX_OK;
    }

    if (params->ca.len == 0) {
        ok = SSL_CTX_set_default_verify_paths(ctx);

    } else {
        if (ngx_http_ratelimit_tls_find_file(cf, "ssl_ca", &params->ca)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        ok = SSL_CTX_load_verify_locations(ctx, (char *) params->ca.data,
                                           NULL);
    }

    if (!ok) {
        return ngx_http_ratelimit_tls_refuse(cf, "ssl_ca", &params->ca,
                                             "has no certificate");
    }

    /* there may be some although it has succeeded */

    ERR_clear_error();

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_tls_load_certificate(ngx_conf_t *cf, SSL_CTX *ctx,
    ngx_http_ratelimit_tls_params_t *params)
{
    if (params->certificate.len == 0) {
        return NGX_OK;
    }

    if (ngx_http_ratelimit_tls_find_file(cf, "ssl_certificate",
                                         &params->certificate)
        != NGX_OK
        || ngx_http_ratelimit_tls_find_file(cf, "ssl_certificate_key",
                                            &params->key)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (SSL_CTX_use_certificate_chain_file(ctx,
                                           (char *) params->certificate.data)
        != 1)
    {
        return ngx_http_ratelimit_tls_refuse(cf, "ssl_certificate",
                                             &params->certificate,
                                             "has no certificate");
    }

    return ngx_http_ratelimit_tls_load_key(cf, ctx, params);
}


/* nginx must not stop and ask for a password */

static ngx_int_t
ngx_http_ratelimit_tls_load_key(ngx_conf_t *cf, SSL_CTX *ctx,
    ngx_http_ratelimit_tls_params_t *params)
{
    int          ok;
    u_long       error;
    ngx_uint_t   asked;
    const char  *reason;

    asked = 0;

    SSL_CTX_set_default_passwd_cb(ctx, ngx_http_ratelimit_tls_no_password);
    SSL_CTX_set_default_passwd_cb_userdata(ctx, &asked);

    ok = SSL_CTX_use_PrivateKey_file(ctx, (char *) params->key.data,
                                     SSL_FILETYPE_PEM);

    SSL_CTX_set_default_passwd_cb_userdata(ctx, NULL);

    /* one of another type is kept beside the certificate */

    if (ok == 1 && SSL_CTX_check_private_key(ctx) == 1) {
        return NGX_OK;
    }

    error = ERR_peek_last_error();

    if (asked) {
        reason = "is encrypted, which is not supported";

    } else if (ok == 1
               || (ERR_GET_LIB(error) == ERR_LIB_X509
                   && (ERR_GET_REASON(error) == X509_R_KEY_VALUES_MISMATCH
                       || ERR_GET_REASON(error) == X509_R_KEY_TYPE_MISMATCH)))
    {
        reason = "is not the key of the certificate";

    } else {
        reason = "has no private key";
    }

    return ngx_http_ratelimit_tls_refuse(cf, "ssl_certificate_key",
                                         &params->key, reason);
}


static int
ngx_http_ratelimit_tls_no_password(char *buffer, int size, int writing,
    void *asked)
{
    if (asked != NULL) {
        *(ngx_uint_t *) asked = 1;
    }

    return 0;
}


/* OpenSSL would wait for a FIFO */

static ngx_int_t
ngx_http_ratelimit_tls_find_file(ngx_conf_t *cf, const char *param,
    ngx_str_t *path)
{
    ngx_fd_t     fd;
    ngx_err_t    err;
    const char  *reason;

    if (ngx_conf_full_name(cf->cycle, path, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    reason = ngx_http_ratelimit_open_file(path, &fd, &err);

    if (reason == NULL) {
        (void) ngx_close_file(fd);
        return NGX_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, err,
                       "invalid parameter \"%s=%V\" in \"ratelimit_redis\" "
                       "directive: %s", param, path, reason);

    return NGX_ERROR;
}


/* with what OpenSSL says */

static ngx_int_t
ngx_http_ratelimit_tls_refuse(ngx_conf_t *cf, const char *param,
    ngx_str_t *value, const char *reason)
{
    ngx_ssl_error(NGX_LOG_EMERG, cf->log, 0,
                  "invalid parameter \"%s=%V\" in \"ratelimit_redis\" "
                  "directive: %s in %V:%ui",
                  param, value, reason, &cf->conf_file->file.name,
                  cf->conf_file->line);

    return NGX_ERROR;
}

#endif
