
/*
 * The memory of counters of what is gone.
 */


#include "store/ngx_http_ratelimit_kept.h"
#include "store/ngx_http_ratelimit_shm.h"


/* names; of more than that, those that are gone for longest are forgotten */
#define NGX_HTTP_RATELIMIT_KEPT  1024


typedef struct {
    ratelimit_hash_t                name;
    uint64_t                        time;     /* of its coming; 0: free */
    uint64_t                        counters[NGX_HTTP_RATELIMIT_KEPT_COUNTERS];
} ngx_http_ratelimit_kept_t;


/* all zeros at first */

typedef struct {
    uint64_t                        time;     /* how many ever came */
    ngx_http_ratelimit_kept_t       names[NGX_HTTP_RATELIMIT_KEPT];
} ngx_http_ratelimit_kept_memory_t;


static ngx_int_t ngx_http_ratelimit_kept_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_slab_pool_t *ngx_http_ratelimit_kept_pool(ngx_cycle_t *cycle);
static ngx_http_ratelimit_kept_memory_t *ngx_http_ratelimit_kept_memory(
    ngx_slab_pool_t *shpool);
static ngx_http_ratelimit_kept_t *ngx_http_ratelimit_find_kept(
    ngx_slab_pool_t *shpool, ngx_str_t *one, ngx_str_t *two,
    ratelimit_hash_t *hash);
static ngx_uint_t ngx_http_ratelimit_zone_goes_on(
    ngx_http_ratelimit_zone_t *former, ngx_array_t *zones);


ngx_int_t
ngx_http_ratelimit_kept_declare(ngx_conf_t *cf, void *tag)
{
    size_t     size;
    ngx_str_t  name;

    ngx_str_set(&name, "ratelimit:kept");

    size = sizeof(ngx_http_ratelimit_kept_memory_t) + ngx_pagesize;

    return ngx_http_ratelimit_shm_add(cf, &name, size, tag,
                                      ngx_http_ratelimit_kept_init, NULL)
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_kept_init(ngx_shm_zone_t *shm_zone, void *data)
{
    if (data == NULL && !shm_zone->shm.exists) {
        ngx_http_ratelimit_shm_clear(shm_zone);
    }

    /* not NULL: to the next configuration the memory is not new */

    shm_zone->data = shm_zone->shm.addr;

    return NGX_OK;
}


/* NULL if nothing is kept */

static ngx_slab_pool_t *
ngx_http_ratelimit_kept_pool(ngx_cycle_t *cycle)
{
    return (ngx_slab_pool_t *)
           ngx_http_ratelimit_shm_find(cycle, ngx_http_ratelimit_kept_init);
}


static ngx_http_ratelimit_kept_memory_t *
ngx_http_ratelimit_kept_memory(ngx_slab_pool_t *shpool)
{
    return (ngx_http_ratelimit_kept_memory_t *)
           ((u_char *) shpool + ngx_pagesize);
}


void
ngx_http_ratelimit_keep(ngx_cycle_t *cycle, ngx_str_t *one, ngx_str_t *two,
    const void *counters, size_t size)
{
    ngx_uint_t                         i;
    ngx_slab_pool_t                   *shpool;
    ratelimit_hash_t                   hash;
    ngx_http_ratelimit_kept_t         *kept;
    ngx_http_ratelimit_kept_memory_t  *memory;

    shpool = ngx_http_ratelimit_kept_pool(cycle);

    if (shpool == NULL) {
        return;
    }

    memory = ngx_http_ratelimit_kept_memory(shpool);

    ngx_shmtx_lock(&shpool->mutex);

    kept = ngx_http_ratelimit_find_kept(shpool, one, two, &hash);

    if (kept == NULL) {
        kept = memory->names;

        for (i = 1; i < NGX_HTTP_RATELIMIT_KEPT; i++) {
            if (memory->names[i].time < kept->time) {
                kept = &memory->names[i];
            }
        }
    }

    kept->name = hash;
    kept->time = ++memory->time;
    ngx_memcpy(kept->counters, counters, size);

    ngx_shmtx_unlock(&shpool->mutex);
}


ngx_int_t
ngx_http_ratelimit_take_kept(ngx_cycle_t *cycle, ngx_str_t *one,
    ngx_str_t *two, void *counters, size_t size)
{
    ngx_slab_pool_t            *shpool;
    ratelimit_hash_t            hash;
    ngx_http_ratelimit_kept_t  *kept;

    shpool = ngx_http_ratelimit_kept_pool(cycle);

    if (shpool == NULL) {
        return NGX_DECLINED;
    }

    ngx_shmtx_lock(&shpool->mutex);

    kept = ngx_http_ratelimit_find_kept(shpool, one, two, &hash);

    if (kept != NULL) {
        kept->time = 0;
        ngx_memcpy(counters, kept->counters, size);
    }

    ngx_shmtx_unlock(&shpool->mutex);

    return kept != NULL ? NGX_OK : NGX_DECLINED;
}


static ngx_http_ratelimit_kept_t *
ngx_http_ratelimit_find_kept(ngx_slab_pool_t *shpool, ngx_str_t *one,
    ngx_str_t *two, ratelimit_hash_t *hash)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_kept_t  *kept;

    ngx_memzero(hash, sizeof(ratelimit_hash_t));

    ratelimit_hash(hash, one->data, one->len, hash);
    ratelimit_hash(hash, two->data, two->len, hash);

    kept = ngx_http_ratelimit_kept_memory(shpool)->names;

    for (i = 0; i < NGX_HTTP_RATELIMIT_KEPT; i++) {
        if (kept[i].time && kept[i].name.lo == hash->lo
            && kept[i].name.hi == hash->hi)
        {
            return &kept[i];
        }
    }

    return NULL;
}


/* all are still there: nginx drops the memory of former ones after this */

void
ngx_http_ratelimit_keep_evictions(ngx_cycle_t *cycle, ngx_array_t *zones)
{
    uint64_t                     n[2];
    ngx_str_t                    kind;
    ngx_uint_t                   i;
    ngx_array_t                 *gone;
    ngx_http_ratelimit_zone_t  **zone;

    ngx_str_null(&kind);

    gone = ngx_is_init_cycle(cycle->old_cycle)
           ? NULL : ngx_http_ratelimit_zones(cycle->old_cycle, cycle->pool);

    for (i = 0; gone != NULL && i < gone->nelts; i++) {
        zone = gone->elts;

        if (!ngx_http_ratelimit_zone_goes_on(zone[i], zones)) {
            n[0] = ratelimit_table_evictions(zone[i]->table);
            n[1] = ratelimit_table_dismissed(zone[i]->table);

            ngx_http_ratelimit_keep(cycle, &kind, &zone[i]->name, n,
                                    sizeof(n));
        }
    }

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {
        if (zone[i]->former == NULL
            && ngx_http_ratelimit_take_kept(cycle, &kind, &zone[i]->name, n,
                                            sizeof(n))
               == NGX_OK)
        {
            ratelimit_table_inherit_evictions(zone[i]->table, n[0], n[1]);
        }
    }
}


static ngx_uint_t
ngx_http_ratelimit_zone_goes_on(ngx_http_ratelimit_zone_t *former,
    ngx_array_t *zones)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_zone_t  **zone;

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {
        if (zone[i]->former == former) {
            return 1;
        }
    }

    return 0;
}
