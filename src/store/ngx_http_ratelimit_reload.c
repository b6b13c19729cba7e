
/*
 * Counters over a reload.  If size and layout of a zone are the same, nginx
 * keeps its memory.  If they change, the new table follows the old one.  Old
 * workers know only the old table and go on using it, so all workers count in
 * the old table until the last old worker has exited, and until there is room
 * for the new one.
 *
 * The kernel reports when that is: the workers of a generation inherit the
 * writing end of a pipe, which the master closes when it starts the next
 * generation; poll() reports POLLHUP when the last of them has exited.
 */


#include "store/ngx_http_ratelimit_shm.h"

#include <poll.h>


/* milliseconds */
#define NGX_HTTP_RATELIMIT_TAKE_TIME   10
#define NGX_HTTP_RATELIMIT_SEAL_TIME   100
#define NGX_HTTP_RATELIMIT_SPENT_TIME  10000

/*
 * All tables of a zone that are in use are at most so many times the largest of
 * them: before another one is used, the counters of older ones move together.
 */
#define NGX_HTTP_RATELIMIT_MAX_TABLES  3


typedef struct ngx_http_ratelimit_generation_s
    ngx_http_ratelimit_generation_t;

struct ngx_http_ratelimit_generation_s {
    int                               fd[2];   /* a pipe */
    ngx_http_ratelimit_generation_t  *former;
};


typedef struct {
    void                           *addr;
    size_t                          size;
} ngx_http_ratelimit_mapping_t;


static ngx_int_t ngx_http_ratelimit_reload_follow_one(
    ngx_http_ratelimit_zone_t *zone, ratelimit_table_t *newer,
    ratelimit_table_t *older);
static void *ngx_http_ratelimit_reload_map(ngx_pool_t *pool, void *addr,
    size_t size, ngx_log_t *log);
static void ngx_http_ratelimit_reload_unmap(void *data);
static ngx_uint_t ngx_http_ratelimit_reload_alone(void);
static void ngx_http_ratelimit_reload_handler(ngx_event_t *ev);
static ngx_uint_t ngx_http_ratelimit_reload_progress(
    ngx_http_ratelimit_zone_t *zone);
static ngx_uint_t ngx_http_ratelimit_reload_take(
    ngx_http_ratelimit_zone_t *zone);
static void ngx_http_ratelimit_reload_log_evictions(
    ngx_http_ratelimit_zone_t *zone);
static void ngx_http_ratelimit_reload_free(ratelimit_table_t *older,
    ngx_log_t *log);


/* the generation of the current configuration, then older ones */

static ngx_http_ratelimit_generation_t  *ngx_http_ratelimit_generations;
static ngx_http_ratelimit_generation_t  *ngx_http_ratelimit_next;


ngx_int_t
ngx_http_ratelimit_reload_find(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                   i;
    ngx_array_t                 *zones;
    ngx_cycle_t                 *old;
    ngx_http_ratelimit_zone_t  **former;

    old = cf->cycle->old_cycle;

    if (old == NULL || ngx_is_init_cycle(old)) {
        return NGX_OK;
    }

    zones = ngx_http_ratelimit_zones(old, cf->temp_pool);
    if (zones == NULL) {
        return NGX_ERROR;
    }

    former = zones->elts;

    for (i = 0; i < zones->nelts; i++) {

        if (!ngx_http_ratelimit_is_same(&former[i]->name, &zone->name)) {
            continue;
        }

        if (ngx_http_ratelimit_is_same(&former[i]->key_text, &zone->key_text)
            && former[i]->shape.algorithm == zone->shape.algorithm
            && former[i]->shape.buckets == zone->shape.buckets
            && (former[i]->sync == 0) == (zone->sync == 0))
        {
            zone->former = former[i];
            return NGX_OK;
        }

        ngx_log_error(NGX_LOG_NOTICE, cf->log, 0,
                      "ratelimit zone \"%V\" is reset: %s", &zone->name,
                      (former[i]->sync == 0) == (zone->sync == 0)
                      ? "its key or algorithm has changed"
                      : "\"sync\" was added or removed");
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_reload_follow(ngx_http_ratelimit_zone_t *zone,
    ratelimit_table_t *older)
{
    ngx_int_t           rc;
    ratelimit_table_t  *newer;

    newer = zone->table;

    for ( /* void */ ; older; older = older->older) {

        if (ratelimit_table_spent(older, (uint64_t) ngx_current_msec * 1000)) {
            break;
        }

        if (ratelimit_table_abandoned(zone->table, older)) {
            continue;
        }

        rc = ngx_http_ratelimit_reload_follow_one(zone, newer, older);

        if (rc != NGX_OK) {
            return rc == NGX_DECLINED ? NGX_OK : rc;
        }

        newer = newer->older;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_reload_follow_one(ngx_http_ratelimit_zone_t *zone,
    ratelimit_table_t *newer, ratelimit_table_t *older)
{
    void               *addr;
    size_t              size;
    ngx_uint_t          moved;
    ratelimit_table_t  *table;

    table = ngx_palloc(zone->pool, sizeof(ratelimit_table_t));
    if (table == NULL) {
        return NGX_ERROR;
    }

    moved = ratelimit_table_moved(older);

    addr = ratelimit_table_memory(older, &size);
    addr = ngx_http_ratelimit_reload_map(zone->pool, addr,
                                         moved ? ngx_pagesize : size,
                                         zone->shm_zone->shm.log);

    if (addr == NULL
        || ratelimit_table_open(table, addr, size, &older->kind.shape,
                                older->packed, NULL, zone->lifelines->data)
           == NULL)
    {
        ngx_log_error(NGX_LOG_ALERT, zone->shm_zone->shm.log, 0,
                      "ratelimit zone \"%V\" is reset: its memory "
                      "could not be mapped again", &zone->name);
        return NGX_DECLINED;
    }

    if (moved) {
        ngx_http_ratelimit_reload_free(older, zone->shm_zone->shm.log);
        ratelimit_table_forget(table);
    }

    table->data = zone;
    ratelimit_table_follow(newer, table);

    return NGX_OK;
}


/* nginx unmaps the memory of a changed zone, but not a second mapping */

static void *
ngx_http_ratelimit_reload_map(ngx_pool_t *pool, void *addr, size_t size,
    ngx_log_t *log)
{
#if (NGX_LINUX)

    ngx_pool_cleanup_t            *cln;
    ngx_http_ratelimit_mapping_t  *mapping;

    cln = ngx_pool_cleanup_add(pool, sizeof(ngx_http_ratelimit_mapping_t));
    if (cln == NULL) {
        return NULL;
    }

    /* with an old size of zero, mremap() adds a mapping of shared memory */

    addr = mremap(addr, 0, size, MREMAP_MAYMOVE);

    if (addr == MAP_FAILED) {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_errno,
                      "mremap(%uz) failed", size);
        return NULL;
    }

    mapping = cln->data;
    mapping->addr = addr;
    mapping->size = size;

    cln->handler = ngx_http_ratelimit_reload_unmap;

    return addr;

#else

    return NULL;

#endif
}


static void
ngx_http_ratelimit_reload_unmap(void *data)
{
    ngx_http_ratelimit_mapping_t  *mapping = data;

    if (munmap(mapping->addr, mapping->size) == -1) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                      "munmap(%p, %uz) failed", mapping->addr, mapping->size);
    }
}


/* a generation that was created for a failed reload is used by the next one */

ngx_int_t
ngx_http_ratelimit_reload_prepare(ngx_log_t *log)
{
    ngx_http_ratelimit_generation_t  *generation;

    if (ngx_http_ratelimit_next) {
        return NGX_OK;
    }

    generation = ngx_alloc(sizeof(ngx_http_ratelimit_generation_t), log);
    if (generation == NULL) {
        return NGX_ERROR;
    }

    if (pipe(generation->fd) == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "pipe() failed");
        ngx_free(generation);
        return NGX_ERROR;
    }

    if (fcntl(generation->fd[0], F_SETFD, FD_CLOEXEC) == -1
        || fcntl(generation->fd[1], F_SETFD, FD_CLOEXEC) == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_errno,
                      "fcntl(FD_CLOEXEC) failed");
    }

    ngx_http_ratelimit_next = generation;

    return NGX_OK;
}


void
ngx_http_ratelimit_reload_activate(void)
{
    if (ngx_http_ratelimit_next == NULL) {
        return;
    }

    /* workers that are forked from now on belong to the new generation */

    if (ngx_http_ratelimit_generations) {
        (void) close(ngx_http_ratelimit_generations->fd[1]);
    }

    ngx_http_ratelimit_next->former = ngx_http_ratelimit_generations;
    ngx_http_ratelimit_generations = ngx_http_ratelimit_next;
    ngx_http_ratelimit_next = NULL;

    (void) ngx_http_ratelimit_reload_alone();
}


ngx_uint_t
ngx_http_ratelimit_reload_is_over(void)
{
    return ngx_http_ratelimit_generations == NULL
           || ngx_http_ratelimit_reload_alone();
}


/* whether all former generations have exited; frees those that have */

static ngx_uint_t
ngx_http_ratelimit_reload_alone(void)
{
    struct pollfd                     pfd;
    ngx_http_ratelimit_generation_t  *gone, **link;

    link = &ngx_http_ratelimit_generations->former;

    while (*link) {
        pfd.fd = (*link)->fd[0];
        pfd.events = POLLIN;
        pfd.revents = 0;

        if (poll(&pfd, 1, 0) != 1 || !(pfd.revents & POLLHUP)) {
            link = &(*link)->former;
            continue;
        }

        gone = *link;
        *link = gone->former;

        (void) close(gone->fd[0]);
        ngx_free(gone);
    }

    return ngx_http_ratelimit_generations->former == NULL;
}


ngx_int_t
ngx_http_ratelimit_reload_watch(ngx_cycle_t *cycle, ngx_array_t *zones)
{
    return ngx_http_ratelimit_timer_start(cycle,
                                          ngx_http_ratelimit_reload_handler,
                                          zones);
}


static void
ngx_http_ratelimit_reload_handler(ngx_event_t *ev)
{
    ngx_uint_t                   i, busy, alone, takes;
    ngx_array_t                 *zones;
    ngx_http_ratelimit_zone_t  **zone;

    zones = ngx_http_ratelimit_timer_data(ev);
    zone = zones->elts;

    busy = 0;
    takes = 0;
    alone = ngx_http_ratelimit_reload_alone();

    for (i = 0; i < zones->nelts; i++) {
        busy += ngx_http_ratelimit_reload_progress(zone[i]);
        takes += alone && ngx_http_ratelimit_reload_take(zone[i]);
    }

    if (takes) {
        ngx_add_timer(ev, NGX_HTTP_RATELIMIT_TAKE_TIME);

    } else if (busy) {
        ngx_add_timer(ev, alone ? NGX_HTTP_RATELIMIT_SPENT_TIME
                                : NGX_HTTP_RATELIMIT_SEAL_TIME);
    }
}


/* whether the zone still follows an older table */

static ngx_uint_t
ngx_http_ratelimit_reload_progress(ngx_http_ratelimit_zone_t *zone)
{
    uint64_t            now;
    ratelimit_table_t  *table, *older;

    now = (uint64_t) ngx_current_msec * 1000;

    for (table = zone->table; table->older; table = table->older) {

        if (ratelimit_table_spent(table->older, now)) {

            for (older = table->older; older; older = older->older) {
                ngx_http_ratelimit_reload_free(older, ngx_cycle->log);
            }

            table->older = NULL;
            break;
        }
    }

    return zone->table->older != NULL;
}


/*
 * Seals older tables as soon as there is room for the zone's; returns whether
 * counters move in the meantime, or memory may be left to free.
 */

static ngx_uint_t
ngx_http_ratelimit_reload_take(ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t          takes, sealed;
    ratelimit_clock_t   clock;
    ratelimit_table_t  *older;

    if (zone->table->older == NULL) {
        return 0;
    }

    ngx_http_ratelimit_shm_clock_of(zone, 0, &clock);

    takes = ratelimit_table_take(zone->table, NGX_HTTP_RATELIMIT_MAX_TABLES,
                                 &clock, ngx_http_ratelimit_self);

    ngx_http_ratelimit_reload_log_evictions(zone);

    for (older = zone->table->older; older; older = older->older) {
        if (ratelimit_table_moved(older)) {
            ngx_http_ratelimit_reload_free(older, ngx_cycle->log);
            ratelimit_table_forget(older);
        }
    }

    if (takes) {
        return 1;
    }

    sealed = ratelimit_table_sealed(zone->table->older);

    ratelimit_table_seal(zone->table, (uint64_t) ngx_current_msec * 1000);

    return !sealed;
}


/* those of tables that had no room for what they took */

static void
ngx_http_ratelimit_reload_log_evictions(ngx_http_ratelimit_zone_t *zone)
{
    uint64_t            n;
    ratelimit_table_t  *older;

    n = 0;

    for (older = zone->table->older; older; older = older->older) {
        n += ratelimit_table_new_evictions(older,
                                          (uint64_t) ngx_current_msec * 1000);
    }

    ngx_http_ratelimit_shm_log_dropped(zone, n, ngx_cycle->log);
}


/* the pages except for the first one, which holds the seal */

static void
ngx_http_ratelimit_reload_free(ratelimit_table_t *older, ngx_log_t *log)
{
#if (NGX_LINUX)

    size_t   size;
    u_char  *addr;

    if (older->nsegments == 0) {
        return;
    }

    addr = ratelimit_table_memory(older, &size);

    if (madvise(addr + ngx_pagesize, size - ngx_pagesize, MADV_REMOVE) == -1) {
        ngx_log_error(NGX_LOG_NOTICE, log, ngx_errno,
                      "madvise(%uz, MADV_REMOVE) failed", size);
    }

#endif
}
