
/*
 * Zones in shared memory: what the store's other files know of them.
 */


#ifndef _NGX_HTTP_RATELIMIT_SHM_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_SHM_H_INCLUDED_


#include "store/ngx_http_ratelimit_store.h"


/* ngx_http_ratelimit_shm.c */

/* makes new memory ready for a table: zeros, and none for nginx to give away */
void ngx_http_ratelimit_shm_clear(ngx_shm_zone_t *shm_zone);

/* what nginx calls to set memory up */

ngx_int_t ngx_http_ratelimit_shm_init_lifelines(ngx_shm_zone_t *shm_zone,
    void *data);
ngx_int_t ngx_http_ratelimit_shm_init_zone(ngx_shm_zone_t *shm_zone,
    void *data);


/* ngx_http_ratelimit_zone.c */

/* all zones of a configuration, ngx_http_ratelimit_zone_t * */
ngx_array_t *ngx_http_ratelimit_zones(ngx_cycle_t *cycle,
    ngx_pool_t *pool);


/* ngx_http_ratelimit_reload.c: a zone's tables over reloads */

/*
 * Looks for the zone of the same name in the former configuration, and says so
 * in the log if its counters can't be kept.
 */
ngx_int_t ngx_http_ratelimit_reload_find(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone);

/* lets the zone's table follow older ones of the former configuration */
ngx_int_t ngx_http_ratelimit_reload_follow(ngx_http_ratelimit_zone_t *zone,
    ratelimit_table_t *older);

/* makes what commit needs, where a failure does no harm */
ngx_int_t ngx_http_ratelimit_reload_prepare(ngx_log_t *log);

/* a new generation of workers is about to start */
void ngx_http_ratelimit_reload_commit(void);

/* seals older tables when the last worker is gone that knows them alone */
ngx_int_t ngx_http_ratelimit_reload_watch(ngx_cycle_t *cycle,
    ngx_array_t *zones);


#endif /* _NGX_HTTP_RATELIMIT_SHM_H_INCLUDED_ */
