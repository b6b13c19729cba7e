
/*
 * The memory of the statistics: its cells over reloads, and their sums.
 *
 * A cell belongs to the hash of a zone's and a limit's name.  It is kept when
 * a configuration has no such limit any more, in case that a later one has;
 * when there is no free cell left, such cells are used for others, as soon as
 * no worker is left that counts there.
 */


#include "store/ngx_http_ratelimit_kept.h"
#include "store/ngx_http_ratelimit_shm.h"
#include "store/ngx_http_ratelimit_statistics.h"


/* limits that are counted; the first cell is for those beyond that */
#define NGX_HTTP_RATELIMIT_CELLS  4096


/* all zeros at first */

struct ngx_http_ratelimit_statistics_s {
    ngx_atomic_t                    nlanes;   /* that were ever used */
    uint64_t                        generation;  /* of the configuration that
                                                 workers run with, from 1 on */
    struct {
        ratelimit_hash_t            name;
        uint64_t                    generation;  /* that used it last; 0: none
                                                 did */
    } owners[NGX_HTTP_RATELIMIT_CELLS];

    ngx_http_ratelimit_counts_t     former[NGX_HTTP_RATELIMIT_CELLS];
                                              /* before the last reset */
    ngx_http_ratelimit_counts_t     lanes[NGX_HTTP_RATELIMIT_LANES]
                                         [NGX_HTTP_RATELIMIT_CELLS]
        __attribute__((aligned(NGX_CPU_CACHE_LINE)));
};


/* what is known of a name while the configuration is read */

typedef struct {
    ratelimit_hash_t                name;
    ngx_uint_t                      taken;    /* there is such a name */
    ngx_uint_t                      wanted;   /* the configuration has it */
    ngx_uint_t                      cell;     /* 0: none yet */
    ngx_uint_t                      tally;    /* of its zone, from 1 on; 0: none
                                                 yet */
} ngx_http_ratelimit_name_t;


typedef struct {
    ngx_http_ratelimit_statistics_t  *statistics;
    ngx_http_ratelimit_name_t      *names;    /* by hash */
    ngx_uint_t                      mask;
    ngx_uint_t                      cell;     /* those below are not free */
    ngx_uint_t                      alone;    /* no worker has a configuration
                                                 older than the running one */
    ngx_uint_t                      omitted;  /* limits without a cell */
} ngx_http_ratelimit_names_t;


static ngx_int_t ngx_http_ratelimit_statistics_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_int_t ngx_http_ratelimit_statistics_init_names(
    ngx_http_ratelimit_names_t *names, ngx_array_t *zones, ngx_log_t *log);
static ngx_http_ratelimit_name_t *ngx_http_ratelimit_statistics_find(
    ngx_http_ratelimit_names_t *names, ratelimit_hash_t *hash);
static ngx_http_ratelimit_name_t *ngx_http_ratelimit_statistics_find_use(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_use_t *use);
static ngx_int_t ngx_http_ratelimit_statistics_add_zone(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_zone_t *zone);
static ngx_http_ratelimit_tally_t *ngx_http_ratelimit_statistics_add_tally(
    ngx_http_ratelimit_use_t *use);
static ngx_int_t ngx_http_ratelimit_statistics_add_rates(
    ngx_http_ratelimit_tally_t *tally, ngx_http_ratelimit_use_t *use);
static ngx_int_t ngx_http_ratelimit_statistics_add_once(ngx_array_t *list,
    void *element, ngx_uint_t (*same)(const void *one, const void *two));
static ngx_uint_t ngx_http_ratelimit_statistics_same_rule(const void *one,
    const void *two);
static ngx_uint_t ngx_http_ratelimit_statistics_same_text(const void *one,
    const void *two);
static ngx_uint_t ngx_http_ratelimit_statistics_add_cell(
    ngx_http_ratelimit_names_t *names, ratelimit_hash_t *hash);
static ngx_uint_t ngx_http_ratelimit_statistics_is_free(
    ngx_http_ratelimit_names_t *names, ngx_uint_t cell);
static ngx_http_ratelimit_statistics_t *ngx_http_ratelimit_statistics_of(
    ngx_cycle_t *cycle);


u_char  *ngx_http_ratelimit_lane;


ngx_int_t
ngx_http_ratelimit_statistics_declare(ngx_conf_t *cf, ngx_array_t *zones,
    void *tag)
{
    size_t     size;
    ngx_str_t  name;

    ngx_str_set(&name, "ratelimit:statistics");
    size = sizeof(ngx_http_ratelimit_statistics_t) + ngx_pagesize;

    return ngx_http_ratelimit_shm_add(cf, &name, size, tag,
                                      ngx_http_ratelimit_statistics_init,
                                      zones)
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_statistics_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_int_t                     rc;
    ngx_uint_t                    i;
    ngx_array_t                  *zones;
    ngx_http_ratelimit_zone_t   **zone;
    ngx_http_ratelimit_names_t    names;

    if (data == NULL && !shm_zone->shm.exists) {
        ngx_http_ratelimit_shm_clear(shm_zone);
    }

    names.statistics = (ngx_http_ratelimit_statistics_t *)
                       (shm_zone->shm.addr + ngx_pagesize);

    zones = shm_zone->data;
    zone = zones->elts;

    if (ngx_http_ratelimit_statistics_init_names(&names, zones,
                                                 shm_zone->shm.log)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    rc = NGX_OK;

    for (i = 0; i < zones->nelts && rc == NGX_OK; i++) {
        rc = ngx_http_ratelimit_statistics_add_zone(&names, zone[i]);
    }

    ngx_free(names.names);

    if (names.omitted) {
        ngx_log_error(NGX_LOG_WARN, shm_zone->shm.log, 0,
                      "ratelimit has statistics of %d limits, "
                      "and none of %ui further ones",
                      NGX_HTTP_RATELIMIT_CELLS - 1, names.omitted);
    }

    return rc;
}


/* the names that have a cell, and those that the configuration has */

static ngx_int_t
ngx_http_ratelimit_statistics_init_names(ngx_http_ratelimit_names_t *names,
    ngx_array_t *zones, ngx_log_t *log)
{
    ngx_uint_t                   i, k, n;
    ngx_http_ratelimit_use_t   **use;
    ngx_http_ratelimit_zone_t  **zone;

    zone = zones->elts;
    n = NGX_HTTP_RATELIMIT_CELLS;

    for (i = 0; i < zones->nelts; i++) {
        n += zone[i]->uses.nelts;
    }

    for (names->mask = 1; names->mask < 2 * n; names->mask *= 2) {
        /* void */
    }

    names->names = ngx_calloc(names->mask * sizeof(ngx_http_ratelimit_name_t),
                              log);
    if (names->names == NULL) {
        return NGX_ERROR;
    }

    names->mask--;
    names->cell = 1;
    names->alone = ngx_http_ratelimit_reload_is_over();
    names->omitted = 0;

    for (i = 1; i < NGX_HTTP_RATELIMIT_CELLS; i++) {
        if (names->statistics->owners[i].generation) {
            ngx_http_ratelimit_statistics_find(names,
                                 &names->statistics->owners[i].name)->cell = i;
        }
    }

    for (i = 0; i < zones->nelts; i++) {
        use = zone[i]->uses.elts;

        for (k = 0; k < zone[i]->uses.nelts; k++) {
            ngx_http_ratelimit_statistics_find_use(names, use[k])->wanted = 1;
        }
    }

    return NGX_OK;
}


static ngx_http_ratelimit_name_t *
ngx_http_ratelimit_statistics_find(ngx_http_ratelimit_names_t *names,
    ratelimit_hash_t *hash)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_name_t  *name;

    for (i = hash->lo; /* void */ ; i++) {
        name = &names->names[i & names->mask];

        if (!name->taken) {
            name->taken = 1;
            name->name = *hash;
            return name;
        }

        if (name->name.lo == hash->lo && name->name.hi == hash->hi) {
            return name;
        }
    }
}


static ngx_http_ratelimit_name_t *
ngx_http_ratelimit_statistics_find_use(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_use_t *use)
{
    ratelimit_hash_t  hash;

    ngx_memzero(&hash, sizeof(ratelimit_hash_t));

    ratelimit_hash(&hash, use->zone->name.data, use->zone->name.len, &hash);
    ratelimit_hash(&hash, use->name.data, use->name.len, &hash);

    return ngx_http_ratelimit_statistics_find(names, &hash);
}


static ngx_int_t
ngx_http_ratelimit_statistics_add_zone(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_use_t   **use;
    ngx_http_ratelimit_name_t   *name;
    ngx_http_ratelimit_tally_t  *tally;

    zone->statistics = names->statistics;

    if (ngx_array_init(&zone->tallies, zone->pool, 1,
                       sizeof(ngx_http_ratelimit_tally_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    use = zone->uses.elts;

    for (i = 0; i < zone->uses.nelts; i++) {

        if (use[i]->budget) {
            continue;
        }

        name = ngx_http_ratelimit_statistics_find_use(names, use[i]);

        if (name->tally == 0) {
            tally = ngx_http_ratelimit_statistics_add_tally(use[i]);
            if (tally == NULL) {
                return NGX_ERROR;
            }

            name->tally = zone->tallies.nelts;

            if (name->cell == 0) {
                name->cell = ngx_http_ratelimit_statistics_add_cell(
                                                         names, &name->name);
            }
        }

        use[i]->cell = name->cell * sizeof(ngx_http_ratelimit_counts_t);

        tally = zone->tallies.elts;
        tally += name->tally - 1;
        tally->keys |= 1 << use[i]->key;

        if (ngx_http_ratelimit_statistics_add_rates(tally, use[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_http_ratelimit_tally_t *
ngx_http_ratelimit_statistics_add_tally(ngx_http_ratelimit_use_t *use)
{
    ngx_http_ratelimit_zone_t   *zone;
    ngx_http_ratelimit_tally_t  *tally;

    zone = use->zone;

    tally = ngx_array_push(&zone->tallies);
    if (tally == NULL) {
        return NULL;
    }

    tally->use = use;
    tally->keys = 0;

    if (ngx_array_init(&tally->rules, zone->pool, 1,
                       sizeof(ratelimit_rule_t *))
        != NGX_OK
        || ngx_array_init(&tally->variables, zone->pool, 1,
                          sizeof(ngx_str_t *))
           != NGX_OK)
    {
        return NULL;
    }

    return tally;
}


static ngx_int_t
ngx_http_ratelimit_statistics_add_rates(ngx_http_ratelimit_tally_t *tally,
    ngx_http_ratelimit_use_t *use)
{
    ngx_uint_t  i;

    for (i = 0; i < use->nrules; i++) {
        if (ngx_http_ratelimit_statistics_add_once(&tally->rules,
                                    &use->rules[i],
                                    ngx_http_ratelimit_statistics_same_rule)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return use->variable != NULL
           ? ngx_http_ratelimit_statistics_add_once(&tally->variables,
                                    use->variable,
                                    ngx_http_ratelimit_statistics_same_text)
           : NGX_OK;
}


/* adds a pointer to a list of pointers, unless one to the same is there */

static ngx_int_t
ngx_http_ratelimit_statistics_add_once(ngx_array_t *list, void *element,
    ngx_uint_t (*same)(const void *one, const void *two))
{
    void        **known;
    ngx_uint_t    i;

    known = list->elts;

    for (i = 0; i < list->nelts; i++) {
        if (same(known[i], element)) {
            return NGX_OK;
        }
    }

    known = ngx_array_push(list);
    if (known == NULL) {
        return NGX_ERROR;
    }

    *known = element;

    return NGX_OK;
}


static ngx_uint_t
ngx_http_ratelimit_statistics_same_rule(const void *one, const void *two)
{
    const ratelimit_rule_t  *a = one, *b = two;

    return a->limit == b->limit && a->period == b->period
           && a->capacity == b->capacity;
}


static ngx_uint_t
ngx_http_ratelimit_statistics_same_text(const void *one, const void *two)
{
    const ngx_str_t  *a = one, *b = two;

    return a->len == b->len && ngx_memcmp(a->data, b->data, a->len) == 0;
}


/* a cell for a name; 0 if there is none */

static ngx_uint_t
ngx_http_ratelimit_statistics_add_cell(ngx_http_ratelimit_names_t *names,
    ratelimit_hash_t *hash)
{
    ngx_uint_t                        lane, cell;
    ngx_http_ratelimit_statistics_t  *statistics;

    statistics = names->statistics;

    for (cell = names->cell; cell < NGX_HTTP_RATELIMIT_CELLS; cell++) {
        if (ngx_http_ratelimit_statistics_is_free(names, cell)) {
            break;
        }
    }

    if (cell == NGX_HTTP_RATELIMIT_CELLS) {
        names->cell = cell;
        names->omitted++;
        return 0;
    }

    names->cell = cell + 1;

    for (lane = 0; lane < statistics->nlanes; lane++) {
        ngx_memzero(&statistics->lanes[lane][cell],
                    sizeof(ngx_http_ratelimit_counts_t));
    }

    ngx_memzero(&statistics->former[cell],
                sizeof(ngx_http_ratelimit_counts_t));

    statistics->owners[cell].name = *hash;
    statistics->owners[cell].generation = statistics->generation + 1;

    return cell;
}


/* that of a limit that is gone is free if no worker can know it any more */

static ngx_uint_t
ngx_http_ratelimit_statistics_is_free(ngx_http_ratelimit_names_t *names,
    ngx_uint_t cell)
{
    ngx_uint_t                        generation;
    ngx_http_ratelimit_statistics_t  *statistics;

    statistics = names->statistics;
    generation = statistics->owners[cell].generation;

    if (generation == 0) {
        return 1;
    }

    if (generation == statistics->generation || !names->alone) {
        return 0;
    }

    return !ngx_http_ratelimit_statistics_find(names,
                                     &statistics->owners[cell].name)->wanted;
}


/* the configuration is used from now on */

void
ngx_http_ratelimit_statistics_activate(ngx_cycle_t *cycle, ngx_array_t *zones)
{
    ngx_uint_t                         i, k, cell;
    ngx_http_ratelimit_zone_t        **zone;
    ngx_http_ratelimit_tally_t        *tally;
    ngx_http_ratelimit_statistics_t   *statistics;

    statistics = ngx_http_ratelimit_statistics_of(cycle);

    if (statistics == NULL) {
        return;
    }

    statistics->generation++;

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {
        tally = zone[i]->tallies.elts;

        for (k = 0; k < zone[i]->tallies.nelts; k++) {
            cell = tally[k].use->cell / sizeof(ngx_http_ratelimit_counts_t);
            statistics->owners[cell].generation = statistics->generation;
        }
    }
}


/* NULL if there are none */

static ngx_http_ratelimit_statistics_t *
ngx_http_ratelimit_statistics_of(ngx_cycle_t *cycle)
{
    u_char  *p;

    p = ngx_http_ratelimit_shm_find(cycle, ngx_http_ratelimit_statistics_init);

    return p ? (ngx_http_ratelimit_statistics_t *) (p + ngx_pagesize) : NULL;
}


void
ngx_http_ratelimit_statistics_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                        lane;
    ngx_atomic_uint_t                 nlanes;
    ngx_http_ratelimit_statistics_t  *statistics;

    statistics = ngx_http_ratelimit_statistics_of(cycle);

    if (statistics == NULL) {
        return;
    }

    lane = ngx_worker % NGX_HTTP_RATELIMIT_LANES;

    ngx_http_ratelimit_lane = (u_char *) statistics->lanes[lane];

    do {
        nlanes = statistics->nlanes;
    } while (nlanes <= lane
             && !ngx_atomic_cmp_set(&statistics->nlanes, nlanes, lane + 1));
}


void
ngx_http_ratelimit_statistics_read(ngx_http_ratelimit_tally_t *tally,
    ngx_http_ratelimit_counts_t *all, ngx_http_ratelimit_counts_t *recent)
{
    ngx_uint_t                        i, lane, cell;
    ngx_http_ratelimit_counts_t      *counts;
    ngx_http_ratelimit_statistics_t  *statistics;

    statistics = tally->use->zone->statistics;
    cell = tally->use->cell / sizeof(ngx_http_ratelimit_counts_t);

    ngx_memzero(all, sizeof(ngx_http_ratelimit_counts_t));
    *recent = *all;

    if (cell == 0) {
        return;
    }

    for (lane = 0; lane < statistics->nlanes; lane++) {
        counts = &statistics->lanes[lane][cell];

        all->delayed += counts->delayed;

        for (i = 0; i < NGX_HTTP_RATELIMIT_STATUSES - 1; i++) {
            all->requests[i] += counts->requests[i];
        }
    }

    counts = &statistics->former[cell];

    recent->delayed = all->delayed - counts->delayed;

    for (i = 0; i < NGX_HTTP_RATELIMIT_STATUSES - 1; i++) {
        recent->requests[i] = all->requests[i] - counts->requests[i];
    }
}


ngx_uint_t
ngx_http_ratelimit_statistics_lanes(ngx_http_ratelimit_zone_t *zone)
{
    return zone->statistics->nlanes;
}


void
ngx_http_ratelimit_statistics_reset(ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                    i, cell;
    ngx_http_ratelimit_tally_t   *tally;
    ngx_http_ratelimit_counts_t   all, recent;

    tally = zone->tallies.elts;

    for (i = 0; i < zone->tallies.nelts; i++) {
        ngx_http_ratelimit_statistics_read(&tally[i], &all, &recent);

        cell = tally[i].use->cell / sizeof(ngx_http_ratelimit_counts_t);
        zone->statistics->former[cell] = all;
    }

    ngx_http_ratelimit_take_evictions(zone);
    ratelimit_table_dismiss_evictions(zone->table);
}
