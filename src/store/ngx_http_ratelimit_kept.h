
/*
 * Counters of what is gone: of a zone or a Redis that a configuration has no
 * more, or of a node that has left its cluster.  If it comes back, it goes on
 * with them: counters never go back.
 */


#ifndef _NGX_HTTP_RATELIMIT_KEPT_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_KEPT_H_INCLUDED_


#include "store/ngx_http_ratelimit_store.h"


/* counters of a name, at most: those of a Redis */
#define NGX_HTTP_RATELIMIT_KEPT_COUNTERS                                      \
    (sizeof(ngx_http_ratelimit_redis_counters_t) / sizeof(ngx_atomic_t))


/* configuration time: counters are to be kept */
ngx_int_t ngx_http_ratelimit_kept_declare(ngx_conf_t *cf, void *tag);

/* a configuration is used from now on */
void ngx_http_ratelimit_kept_activate(ngx_cycle_t *cycle);

/*
 * Moves counters, so many bytes of ngx_atomic_t, to what is kept, where the
 * same name may have some already, and back, if there are any.  The first name
 * is that of a Redis, or empty.
 */
void ngx_http_ratelimit_keep(ngx_str_t *one, ngx_str_t *two, void *counters,
    size_t size);
void ngx_http_ratelimit_restore_kept(ngx_str_t *one, ngx_str_t *two,
    void *counters, size_t size);

/*
 * Adds what is kept to counters.  While this is locked, nothing is moved: what
 * is in one place is not in the other.
 */
void ngx_http_ratelimit_kept_lock(void);
void ngx_http_ratelimit_kept_unlock(void);
void ngx_http_ratelimit_add_kept(ngx_str_t *one, ngx_str_t *two,
    void *counters, size_t size);

/*
 * The same for evictions: of zones that the configuration has no more, of these
 * zones if a worker that exits is the last to know them, and back.
 */
void ngx_http_ratelimit_keep_gone(ngx_cycle_t *cycle, ngx_array_t *zones);
void ngx_http_ratelimit_keep_late(ngx_array_t *zones);
void ngx_http_ratelimit_restore_evictions(ngx_http_ratelimit_zone_t *zone);


#endif /* _NGX_HTTP_RATELIMIT_KEPT_H_INCLUDED_ */
