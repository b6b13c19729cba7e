
/*
 * Counters of what is gone: of a zone or a Redis that a configuration has no
 * more, or of a node that has left its cluster.  If it comes back, it goes on
 * with them: counters never go back.
 */


#ifndef _NGX_HTTP_RATELIMIT_KEPT_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_KEPT_H_INCLUDED_


#include "store/ngx_http_ratelimit_store.h"


/* counters of a name, at most */
#define NGX_HTTP_RATELIMIT_KEPT_COUNTERS  32


/* configuration time: counters are to be kept */
ngx_int_t ngx_http_ratelimit_kept_declare(ngx_conf_t *cf, void *tag);

/* of these bytes; the first name is that of a Redis, or empty */
void ngx_http_ratelimit_keep(ngx_cycle_t *cycle, ngx_str_t *one,
    ngx_str_t *two, const void *counters, size_t size);

/* NGX_DECLINED if there are none, or NGX_OK: then they are kept no more */
ngx_int_t ngx_http_ratelimit_take_kept(ngx_cycle_t *cycle, ngx_str_t *one,
    ngx_str_t *two, void *counters, size_t size);

/* evictions of zones, when a configuration is used from now on */
void ngx_http_ratelimit_keep_evictions(ngx_cycle_t *cycle, ngx_array_t *zones);


#endif /* _NGX_HTTP_RATELIMIT_KEPT_H_INCLUDED_ */
