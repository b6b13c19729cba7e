
/*
 * One "ratelimit_redis": where it is, and how it is asked.
 */


#ifndef _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_


#include "store/ngx_http_ratelimit_store.h"


/* strings are terminated, secrets must not be logged */

struct ngx_http_ratelimit_redis_s {
    ngx_str_t                       name;
    ngx_str_t                       prefix;   /* of all keys */

    ngx_str_t                       host;     /* IPv6 without brackets */
    in_port_t                       port;
    ngx_str_t                       path;     /* of a socket, then no host */

    ngx_str_t                       user;     /* empty: the default user */
    ngx_str_t                       password; /* empty: none */
    ngx_uint_t                      db;

    ngx_uint_t                      connections;  /* of each worker */
    ngx_msec_t                      timeout;
    ngx_msec_t                      connect_timeout;

    ngx_str_t                       file;     /* where it was declared */
    ngx_uint_t                      line;
};


#endif /* _NGX_HTTP_RATELIMIT_REDIS_H_INCLUDED_ */
