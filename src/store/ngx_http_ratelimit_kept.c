
/*
 * The memory of counters of what is gone.  Counters are moved here and back, so
 * that each is in one place.  Workers of a former configuration go on counting
 * in memory that is gone; what they have counted is moved when they exit.
 */


#include "store/ngx_http_ratelimit_kept.h"
#include "store/ngx_http_ratelimit_shm.h"
#include "store/ngx_http_ratelimit_statistics.h"


/* names; of more than that, those that are gone for longest are forgotten */
#define NGX_HTTP_RATELIMIT_KEPT  1024


typedef struct {
    ratelimit_hash_t                name;
    uint64_t                        time;     /* of its coming; 0: free */
    ngx_atomic_t                    counters[NGX_HTTP_RATELIMIT_KEPT_COUNTERS];
} ngx_http_ratelimit_kept_t;


/* all zeros at first */

typedef struct {
    uint64_t                        time;     /* how many ever came */
    ngx_atomic_t                    used;     /* names */
    ngx_http_ratelimit_kept_t       names[NGX_HTTP_RATELIMIT_KEPT];
} ngx_http_ratelimit_kept_memory_t;


static ngx_int_t ngx_http_ratelimit_kept_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_http_ratelimit_kept_memory_t *ngx_http_ratelimit_kept_memory(void);
static void ngx_http_ratelimit_kept_move(ngx_atomic_t *from, ngx_atomic_t *to,
    size_t size);
static ngx_http_ratelimit_kept_t *ngx_http_ratelimit_find_kept(ngx_str_t *one,
    ngx_str_t *two, ratelimit_hash_t *hash);
static void ngx_http_ratelimit_keep_zone(ngx_http_ratelimit_zone_t *zone,
    uint64_t dismissed);
static ngx_uint_t ngx_http_ratelimit_zone_goes_on(
    ngx_http_ratelimit_zone_t *former, ngx_array_t *zones);


/* of the configuration, or NULL */
static ngx_slab_pool_t  *ngx_http_ratelimit_kept_pool;


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


void
ngx_http_ratelimit_kept_activate(ngx_cycle_t *cycle)
{
    ngx_http_ratelimit_kept_pool = (ngx_slab_pool_t *)
           ngx_http_ratelimit_shm_find(cycle, ngx_http_ratelimit_kept_init, 0);
}


static ngx_http_ratelimit_kept_memory_t *
ngx_http_ratelimit_kept_memory(void)
{
    return (ngx_http_ratelimit_kept_memory_t *)
           ((u_char *) ngx_http_ratelimit_kept_pool + ngx_pagesize);
}


void
ngx_http_ratelimit_keep(ngx_str_t *one, ngx_str_t *two, void *counters,
    size_t size)
{
    ngx_uint_t                         i, n;
    ngx_atomic_t                      *counter;
    ratelimit_hash_t                   hash;
    ngx_http_ratelimit_kept_t         *kept;
    ngx_http_ratelimit_kept_memory_t  *memory;

    counter = counters;
    n = size / sizeof(ngx_atomic_t);

    for (i = 0; i < n && counter[i] == 0; i++) { /* void */ }

    if (i == n || ngx_http_ratelimit_kept_pool == NULL) {
        return;
    }

    memory = ngx_http_ratelimit_kept_memory();

    ngx_shmtx_lock(&ngx_http_ratelimit_kept_pool->mutex);

    kept = ngx_http_ratelimit_find_kept(one, two, &hash);

    if (kept == NULL) {
        kept = memory->names;

        for (i = 1; i < NGX_HTTP_RATELIMIT_KEPT; i++) {
            if (memory->names[i].time < kept->time) {
                kept = &memory->names[i];
            }
        }

        memory->used += (kept->time == 0);

        ngx_memzero(kept, sizeof(ngx_http_ratelimit_kept_t));
        kept->name = hash;
    }

    kept->time = ++memory->time;

    ngx_http_ratelimit_kept_move(counters, kept->counters, size);

    ngx_shmtx_unlock(&ngx_http_ratelimit_kept_pool->mutex);
}


static void
ngx_http_ratelimit_kept_move(ngx_atomic_t *from, ngx_atomic_t *to, size_t size)
{
    ngx_atomic_t       *end;
    ngx_atomic_uint_t   count;

    end = from + size / sizeof(ngx_atomic_t);

    for ( /* void */ ; from < end; from++, to++) {
        count = *from;

        (void) ngx_atomic_fetch_add(to, count);
        (void) ngx_atomic_fetch_add(from, -count);
    }
}


void
ngx_http_ratelimit_restore_kept(ngx_str_t *one, ngx_str_t *two, void *counters,
    size_t size)
{
    ratelimit_hash_t                   hash;
    ngx_http_ratelimit_kept_t         *kept;
    ngx_http_ratelimit_kept_memory_t  *memory;

    if (ngx_http_ratelimit_kept_pool == NULL) {
        return;
    }

    memory = ngx_http_ratelimit_kept_memory();

    if (memory->used == 0) {
        return;
    }

    ngx_shmtx_lock(&ngx_http_ratelimit_kept_pool->mutex);

    kept = ngx_http_ratelimit_find_kept(one, two, &hash);

    if (kept != NULL) {
        ngx_http_ratelimit_kept_move(kept->counters, counters, size);

        kept->time = 0;
        memory->used--;
    }

    ngx_shmtx_unlock(&ngx_http_ratelimit_kept_pool->mutex);
}


void
ngx_http_ratelimit_kept_lock(void)
{
    if (ngx_http_ratelimit_kept_pool != NULL) {
        ngx_shmtx_lock(&ngx_http_ratelimit_kept_pool->mutex);
    }
}


void
ngx_http_ratelimit_kept_unlock(void)
{
    if (ngx_http_ratelimit_kept_pool != NULL) {
        ngx_shmtx_unlock(&ngx_http_ratelimit_kept_pool->mutex);
    }
}


void
ngx_http_ratelimit_add_kept(ngx_str_t *one, ngx_str_t *two, void *counters,
    size_t size)
{
    ratelimit_hash_t            hash;
    ngx_http_ratelimit_kept_t  *kept;

    if (ngx_http_ratelimit_kept_pool == NULL
        || ngx_http_ratelimit_kept_memory()->used == 0)
    {
        return;
    }

    kept = ngx_http_ratelimit_find_kept(one, two, &hash);

    if (kept != NULL) {
        ngx_http_ratelimit_sum_lanes((void *) kept->counters, size, 1, counters,
                                     size);
    }
}


static ngx_http_ratelimit_kept_t *
ngx_http_ratelimit_find_kept(ngx_str_t *one, ngx_str_t *two,
    ratelimit_hash_t *hash)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_kept_t  *kept;

    ngx_memzero(hash, sizeof(ratelimit_hash_t));

    ratelimit_hash(hash, one->data, one->len, hash);
    ratelimit_hash(hash, two->data, two->len, hash);

    kept = ngx_http_ratelimit_kept_memory()->names;

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
ngx_http_ratelimit_keep_gone(ngx_cycle_t *cycle, ngx_array_t *zones)
{
    ngx_uint_t                   i;
    ngx_array_t                 *gone;
    ngx_http_ratelimit_zone_t  **zone;

    if (ngx_is_init_cycle(cycle->old_cycle)) {
        return;
    }

    gone = ngx_http_ratelimit_zones(cycle->old_cycle, cycle->pool);

    for (i = 0; gone != NULL && i < gone->nelts; i++) {
        zone = gone->elts;

        if (!ngx_http_ratelimit_zone_goes_on(zone[i], zones)) {
            ngx_http_ratelimit_keep_zone(zone[i],
                                   ratelimit_table_dismissed(zone[i]->table));
        }
    }
}


void
ngx_http_ratelimit_keep_late(ngx_array_t *zones)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_zone_t  **zone;

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {
        if (ratelimit_table_is_gone(zone[i]->table)) {
            ngx_http_ratelimit_keep_zone(zone[i], 0);
        }
    }
}


static void
ngx_http_ratelimit_keep_zone(ngx_http_ratelimit_zone_t *zone,
    uint64_t dismissed)
{
    ngx_str_t          kind;
    ngx_atomic_uint_t  n[2];

    ngx_str_null(&kind);

    n[0] = ratelimit_table_leave_evictions(zone->table);
    n[1] = dismissed;

    ngx_http_ratelimit_keep(&kind, &zone->name, n, sizeof(n));
}


void
ngx_http_ratelimit_restore_evictions(ngx_http_ratelimit_zone_t *zone)
{
    ngx_str_t          kind;
    ngx_atomic_uint_t  n[2];

    if (ratelimit_table_is_gone(zone->table)) {
        return;
    }

    ngx_str_null(&kind);

    n[0] = 0;
    n[1] = 0;

    ngx_http_ratelimit_restore_kept(&kind, &zone->name, n, sizeof(n));

    if (n[0]) {
        ratelimit_table_inherit_evictions(zone->table, n[0], n[1]);
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
