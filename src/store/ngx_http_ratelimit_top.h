
/*
 * The keys of a zone that are refused most: a sketch for each worker, as in
 * statistics, that are merged when they are read.
 */


#ifndef _NGX_HTTP_RATELIMIT_TOP_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_TOP_H_INCLUDED_


#include "store/ngx_http_ratelimit_store.h"
#include "core/ratelimit_top.h"


/* configuration time: refused keys of the zone are to be remembered */
ngx_int_t ngx_http_ratelimit_top_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, void *tag);

/* finds the sketches of this worker */
void ngx_http_ratelimit_top_init_process(ngx_array_t *zones);

/* where keys are remembered */
void ngx_http_ratelimit_top_add(ngx_http_ratelimit_query_t *q, ngx_uint_t i);

/*
 * The keys, those that are refused most first; a score's limit is the number
 * of its use.  NULL if there is no memory.
 */
ratelimit_top_score_t *ngx_http_ratelimit_top_read(
    ngx_http_ratelimit_zone_t *zone, ngx_pool_t *pool, ngx_uint_t *n);

/* forgets all keys */
void ngx_http_ratelimit_top_reset(ngx_http_ratelimit_zone_t *zone);


/* the limit, whose first item this is, has refused the query's key */

static ratelimit_inline void
ngx_http_ratelimit_top_note(ngx_http_ratelimit_query_t *q, ngx_uint_t i,
    ngx_http_ratelimit_use_t *use)
{
    if (use->top_lane != NULL) {
        ngx_http_ratelimit_top_add(q, i);
    }
}


#endif /* _NGX_HTTP_RATELIMIT_TOP_H_INCLUDED_ */
