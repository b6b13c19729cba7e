
/*
 * What a "ratelimit_redis" is told of its place and its password.
 */


#ifndef _NGX_HTTP_RATELIMIT_REDIS_URL_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REDIS_URL_H_INCLUDED_


#include "conf/ngx_http_ratelimit_conf.h"
#include "redis/ngx_http_ratelimit_redis.h"


/* both say what is wrong themselves */

ngx_int_t ngx_http_ratelimit_redis_set_url(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_ratelimit_redis_t *redis);
ngx_int_t ngx_http_ratelimit_redis_set_password(ngx_conf_t *cf,
    ngx_str_t *file, ngx_http_ratelimit_redis_t *redis);


#endif /* _NGX_HTTP_RATELIMIT_REDIS_URL_H_INCLUDED_ */
