
/*
 * The URL and the password of a "ratelimit_redis".
 */


#include "conf/ngx_http_ratelimit_conf.h"
#include "redis/ngx_http_ratelimit_redis.h"
#include "redis/ratelimit_url.h"


#define NGX_HTTP_RATELIMIT_MAX_PASSWORD   4096

#define NGX_HTTP_RATELIMIT_SENTINEL_PORT  26379


static const char *ngx_http_ratelimit_redis_check_url(ratelimit_url_t *url);
static ngx_int_t ngx_http_ratelimit_redis_copy_url(ngx_pool_t *pool,
    ratelimit_url_t *url, ngx_http_ratelimit_redis_endpoint_t *endpoint,
    ngx_http_ratelimit_redis_login_t *login);
static const char *ngx_http_ratelimit_redis_check_seed(
    ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_login_t *login);
static ngx_int_t ngx_http_ratelimit_redis_copy(ngx_pool_t *pool,
    ratelimit_url_part_t *part, ngx_uint_t escaped, ngx_str_t *text);
static ngx_int_t ngx_http_ratelimit_redis_read_file(ngx_conf_t *cf,
    ngx_str_t *file, ngx_str_t *password);
static const char *ngx_http_ratelimit_redis_read_fd(ngx_fd_t fd,
    ngx_str_t *text, ngx_err_t *err);


ngx_uint_t
ngx_http_ratelimit_is_url(ngx_str_t *text)
{
    return ngx_strnstr(text->data, "://", text->len) != NULL
           || ngx_strncmp(text->data, "unix:", 5) == 0;
}


ngx_str_t
ngx_http_ratelimit_masked(ngx_conf_t *cf, ngx_str_t *text)
{
    u_char                *p, *end;
    ngx_str_t              masked;
    ratelimit_url_part_t   secret;

    ratelimit_url_secret((char *) text->data, text->len, &secret);

    if (secret.len == 0) {
        return *text;
    }

    p = ngx_pnalloc(cf->temp_pool, text->len + 3);

    if (p == NULL) {
        ngx_str_set(&masked, "***");
        return masked;
    }

    masked.data = p;
    end = (u_char *) secret.data + secret.len;

    p = ngx_cpymem(p, text->data, (u_char *) secret.data - text->data);
    p = ngx_cpymem(p, "***", 3);
    p = ngx_cpymem(p, end, text->data + text->len - end);

    masked.len = p - masked.data;

    return masked;
}


ngx_int_t
ngx_http_ratelimit_redis_set_url(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_str_t                             shown;
    const char                           *reason;
    ratelimit_url_t                       url;
    ngx_http_ratelimit_redis_login_t      login;
    ngx_http_ratelimit_redis_endpoint_t  *endpoint;

    reason = ratelimit_url_parse((char *) text->data, text->len, &url);

    if (reason == NULL) {
        reason = ngx_http_ratelimit_redis_check_url(&url);
    }

    if (reason == NULL) {
        endpoint = ngx_array_push(&redis->endpoints);

        if (endpoint == NULL
            || ngx_http_ratelimit_redis_copy_url(cf->pool, &url, endpoint,
                                                 &login)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (redis->sentinel.len && !url.has_port) {
            endpoint->port = NGX_HTTP_RATELIMIT_SENTINEL_PORT;
        }

        reason = ngx_http_ratelimit_redis_check_seed(redis, &login);

        if (reason == NULL) {
            redis->login = login;
            return NGX_OK;
        }
    }

    shown = ngx_http_ratelimit_masked(cf, text);

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid URL \"%V\" in \"ratelimit_redis\" "
                       "directive: %s", &shown, reason);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_redis_copy_url(ngx_pool_t *pool, ratelimit_url_t *url,
    ngx_http_ratelimit_redis_endpoint_t *endpoint,
    ngx_http_ratelimit_redis_login_t *login)
{
    ngx_memzero(endpoint, sizeof(ngx_http_ratelimit_redis_endpoint_t));
    ngx_memzero(login, sizeof(ngx_http_ratelimit_redis_login_t));

    endpoint->port = (in_port_t) url->port;
    login->db = url->db;

    if (ngx_http_ratelimit_redis_copy(pool, &url->host, 0, &endpoint->host)
        != NGX_OK
        || ngx_http_ratelimit_redis_copy(pool, &url->path, 0, &endpoint->path)
           != NGX_OK
        || ngx_http_ratelimit_redis_copy(pool, &url->user, 1, &login->user)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_redis_copy(pool, &url->password, 1,
                                         &login->password);
}


/* the last endpoint: one of several that are asked for the servers */

static const char *
ngx_http_ratelimit_redis_check_seed(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_login_t *login)
{
    ngx_uint_t                            i, n;
    ngx_http_ratelimit_redis_endpoint_t  *endpoints;

    endpoints = redis->endpoints.elts;
    n = redis->endpoints.nelts - 1;

    if ((redis->cluster || redis->sentinel.len) && endpoints[n].path.len) {
        return "a sentinel, and a node of a cluster, must have a host and a "
               "port";
    }

    if (redis->cluster && login->db) {
        return "a cluster has only the database 0";
    }

    for (i = 0; i < n; i++) {
        if (endpoints[i].port == endpoints[n].port
            && endpoints[i].host.len == endpoints[n].host.len
            && ngx_strncasecmp(endpoints[i].host.data, endpoints[n].host.data,
                               endpoints[n].host.len)
               == 0)
        {
            return "has the host and port of another URL";
        }
    }

    if (n && (login->db != redis->login.db
              || !ngx_http_ratelimit_is_same(&login->user, &redis->login.user)
              || !ngx_http_ratelimit_is_same(&login->password,
                                             &redis->login.password)))
    {
        return "must have the user, the password and the database of the "
               "first URL";
    }

    return NULL;
}


/* a malformed address would be looked up in the DNS as a name */

static const char *
ngx_http_ratelimit_redis_check_url(ratelimit_url_t *url)
{
    u_char  *host;
    size_t   i;
#if (NGX_HAVE_INET6)
    u_char   addr[16];
#endif

    host = (u_char *) url->host.data;

    if (url->tls && NGX_HTTP_RATELIMIT_REDIS_NO_TLS) {
        return NGX_HTTP_RATELIMIT_REDIS_NO_TLS;
    }

    if (url->ipv6) {
#if (NGX_HAVE_INET6)
        if (ngx_inet6_addr(host, url->host.len, addr) != NGX_OK) {
            return "the host is not an IPv6 address";
        }

        return NULL;
#else
        return "nginx was built without IPv6";
#endif
    }

    for (i = 0; i < url->host.len; i++) {
        if (host[i] != '.' && (host[i] < '0' || host[i] > '9')) {
            return NULL;
        }
    }

    if (url->host.len && ngx_inet_addr(host, url->host.len) == INADDR_NONE) {
        return "the host is not an IPv4 address";
    }

    return NULL;
}


static ngx_int_t
ngx_http_ratelimit_redis_copy(ngx_pool_t *pool, ratelimit_url_part_t *part,
    ngx_uint_t escaped, ngx_str_t *text)
{
    if (part->len == 0) {
        return NGX_OK;
    }

    text->data = ngx_pnalloc(pool, part->len + 1);
    if (text->data == NULL) {
        return NGX_ERROR;
    }

    if (escaped) {
        text->len = ratelimit_url_decode(part, (char *) text->data);

    } else {
        ngx_memcpy(text->data, part->data, part->len);
        text->len = part->len;
    }

    text->data[text->len] = '\0';

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_redis_set_password(ngx_conf_t *cf, ngx_str_t *file,
    ngx_http_ratelimit_redis_t *redis)
{
    if (file->len == 0) {

        if (redis->login.user.len == 0 || redis->login.password.len) {
            return NGX_OK;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"ratelimit_redis\" \"%V\" has a user but no "
                           "password", &redis->name);
        return NGX_ERROR;
    }

    if (redis->login.password.len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"password_file=%V\" in "
                           "\"ratelimit_redis\" directive: conflicts "
                           "with the password of the URL", file);
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_redis_read_file(cf, file,
                                              &redis->login.password);
}


ngx_int_t
ngx_http_ratelimit_redis_set_sentinel(ngx_conf_t *cf, ngx_str_t *user,
    ngx_str_t *file, ngx_http_ratelimit_redis_t *redis)
{
    ngx_str_t   *name;
    const char  *reason;

    name = &redis->sentinel;
    reason = NULL;

    if (name->len == 0 && (user->len || file->len)) {
        reason = "needs \"sentinel=NAME\"";

    } else if (user->len && file->len == 0) {
        reason = "needs \"sentinel_password_file=PATH\"";
    }

    if (reason != NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%s=%V\" in "
                           "\"ratelimit_redis\" directive: %s",
                           user->len ? "sentinel_user"
                                     : "sentinel_password_file",
                           user->len ? user : file, reason);
        return NGX_ERROR;
    }

    redis->login.primary = (name->len != 0);

    if (file->len == 0) {
        return NGX_OK;
    }

    redis->sentinel_login.user = *user;

    return ngx_http_ratelimit_redis_read_file(cf, file,
                                            &redis->sentinel_login.password);
}


static ngx_int_t
ngx_http_ratelimit_redis_read_file(ngx_conf_t *cf, ngx_str_t *file,
    ngx_str_t *password)
{
    ngx_fd_t     fd;
    ngx_err_t    err;
    ngx_str_t    path;
    const char  *reason;

    path = *file;

    password->data = ngx_pnalloc(cf->pool, NGX_HTTP_RATELIMIT_MAX_PASSWORD + 3);
    if (password->data == NULL
        || ngx_conf_full_name(cf->cycle, &path, 1) != NGX_OK)
    {
        return NGX_ERROR;
    }

    reason = ngx_http_ratelimit_open_file(&path, &fd, &err);

    if (reason == NULL) {
        reason = ngx_http_ratelimit_redis_read_fd(fd, password, &err);
        (void) ngx_close_file(fd);
    }

    if (reason == NULL) {
        return NGX_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, err,
                       "password file \"%V\" in \"ratelimit_redis\" "
                       "directive %s", &path, reason);

    return NGX_ERROR;
}


/* a FIFO must not block nginx */

const char *
ngx_http_ratelimit_open_file(ngx_str_t *path, ngx_fd_t *fd, ngx_err_t *err)
{
    ngx_file_info_t  fi;

    *fd = ngx_open_file(path->data, NGX_FILE_RDONLY|NGX_FILE_NONBLOCK,
                        NGX_FILE_OPEN, 0);

    if (*fd == NGX_INVALID_FILE || ngx_fd_info(*fd, &fi) == NGX_FILE_ERROR) {
        *err = ngx_errno;

        if (*fd != NGX_INVALID_FILE) {
            (void) ngx_close_file(*fd);
        }

        return "cannot be read";
    }

    *err = 0;

    if (!ngx_is_file(&fi)) {
        (void) ngx_close_file(*fd);
        return "is not a regular file";
    }

    return NULL;
}


/* one line, without its end */

static const char *
ngx_http_ratelimit_redis_read_fd(ngx_fd_t fd, ngx_str_t *text, ngx_err_t *err)
{
    ssize_t  n;

    text->len = 0;

    do {
        n = ngx_read_fd(fd, text->data + text->len,
                        NGX_HTTP_RATELIMIT_MAX_PASSWORD + 2 - text->len);
        if (n == -1) {
            *err = ngx_errno;
            return "cannot be read";
        }

        text->len += n;

    } while (n > 0);

    if (text->len && text->data[text->len - 1] == '\n') {
        text->len--;

        if (text->len && text->data[text->len - 1] == '\r') {
            text->len--;
        }
    }

    if (text->len == 0) {
        return "is empty";
    }

    if (text->len > NGX_HTTP_RATELIMIT_MAX_PASSWORD) {
        return "is longer than 4096 bytes";
    }

    if (ngx_strlchr(text->data, text->data + text->len, '\n') != NULL) {
        return "has more than one line";
    }

    text->data[text->len] = '\0';

    return NULL;
}
