
/*
 * The memory of the statistics: its cells over reloads, and their sums.
 *
 * A cell belongs to the hash of a zone's and a limit's name.  It is kept when
 * a configuration has no such limit any more, in case that a later one has;
 * when there is no free cell left, such cells are used for others, those of
 * limits that are gone for longest first, as soon as no worker is left that
 * counts there.  If that is not enough, one more block of cells is added, which
 * stays as long as there are statistics.
 *
 * The cells of a ring belong to the names of all of its limits, in their order,
 * each from another limit on.  When they are used for others, what they say of
 * limits goes to the cells that these have alone.
 */


#include "store/ngx_http_ratelimit_kept.h"
#include "store/ngx_http_ratelimit_shm.h"
#include "store/ngx_http_ratelimit_statistics.h"


/* of a block */
#define NGX_HTTP_RATELIMIT_CELLS  4096


struct ngx_http_ratelimit_owner_s {
    ratelimit_hash_t                name;     /* of its limit, or of a ring that
                                                 begins with it */
    ratelimit_hash_t                limit;    /* the name of this one */
    ngx_uint_t                      next;     /* cell of the ring, from 1 on; 0:
                                                 it is of no ring */
    uint64_t                        generation;  /* that used it last; 0: none
                                                 did */
    ngx_uint_t                      number;   /* never given twice; 0: free */
    ngx_http_ratelimit_counts_t     former;   /* before the last reset */
};


/* a block; all zeros at first */

struct ngx_http_ratelimit_statistics_s {

    /* of all blocks, in the first one */

    ngx_atomic_t                    nlanes;   /* that were ever used */
    uint64_t                        generation;  /* of the configuration that
                                                 workers run with, from 1 on */
    ngx_uint_t                      numbers;  /* that owners ever got */

    ngx_http_ratelimit_owner_t      owners[NGX_HTTP_RATELIMIT_CELLS];
    ngx_http_ratelimit_counts_t     lanes[NGX_HTTP_RATELIMIT_LANES]
                                         [NGX_HTTP_RATELIMIT_CELLS]
        __attribute__((aligned(NGX_CPU_CACHE_LINE)));
};


/* from a cell to that of the next lane */
#define NGX_HTTP_RATELIMIT_LANE_SIZE                                          \
    (NGX_HTTP_RATELIMIT_CELLS * sizeof(ngx_http_ratelimit_counts_t))


/* what is known of a name while the configuration is read */

typedef struct {
    ratelimit_hash_t                name;
    ngx_uint_t                      taken;    /* there is such a name */
    ngx_uint_t                      wanted;   /* the configuration has it */
    ngx_uint_t                      cell;     /* from 1 on; 0: none yet */
    ngx_http_ratelimit_zone_t      *zone;
    ngx_uint_t                      tally;    /* of its zone, from 1 on; 0: none
                                                 yet */
} ngx_http_ratelimit_name_t;


/* a cell that says something of a limit */

typedef struct {
    ngx_http_ratelimit_owner_t     *owner;
    ngx_uint_t                      number;   /* of its owner, as long as it is
                                                 this one's */
    u_char                         *cell;
    ngx_uint_t                      own;      /* it is the limit's, not that of
                                                 another one in a ring */
    ngx_uint_t                      used;     /* by this configuration */
} ngx_http_ratelimit_source_t;


typedef struct {
    uint64_t                        generation;  /* of its owner */
    ngx_uint_t                      cell;     /* from 1 on */
} ngx_http_ratelimit_vacancy_t;


typedef struct {
    ngx_array_t                    *zones;
    ngx_http_ratelimit_name_t      *names;    /* by hash */
    ngx_uint_t                      mask;
    ngx_array_t                     blocks;   /* that have memory:
                                           ngx_http_ratelimit_statistics_t * */
    ngx_uint_t                      nblocks;  /* that are declared */
    ngx_uint_t                      ready;    /* that are initialized */
    ngx_array_t                     vacancies;  /* ..._vacancy_t, those that
                                                 are taken first are first */
    ngx_uint_t                      taken;    /* of these */
} ngx_http_ratelimit_names_t;


static ngx_int_t ngx_http_ratelimit_statistics_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_int_t ngx_http_ratelimit_statistics_find_blocks(ngx_conf_t *cf,
    ngx_http_ratelimit_names_t *names);
static ngx_int_t ngx_http_ratelimit_statistics_init_names(ngx_conf_t *cf,
    ngx_http_ratelimit_names_t *names);
static ngx_uint_t ngx_http_ratelimit_statistics_want(
    ngx_http_ratelimit_names_t *names);
static ngx_uint_t ngx_http_ratelimit_statistics_want_name(
    ngx_http_ratelimit_name_t *name);
static ngx_int_t ngx_http_ratelimit_statistics_find_vacancies(ngx_conf_t *cf,
    ngx_http_ratelimit_names_t *names, ngx_uint_t wanted);
static ngx_int_t ngx_http_ratelimit_statistics_add_vacancy(
    ngx_http_ratelimit_names_t *names, uint64_t generation, ngx_uint_t cell);
static int ngx_libc_cdecl ngx_http_ratelimit_statistics_compare(
    const void *one, const void *two);
static ngx_uint_t ngx_http_ratelimit_statistics_is_free(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_owner_t *owner,
    ngx_uint_t alone);
static ngx_http_ratelimit_name_t *ngx_http_ratelimit_statistics_find(
    ngx_http_ratelimit_names_t *names, ratelimit_hash_t *hash);
static ngx_http_ratelimit_name_t *ngx_http_ratelimit_statistics_find_use(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_use_t *use);
static ngx_http_ratelimit_name_t *ngx_http_ratelimit_statistics_find_ring(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_use_t *use);
static void ngx_http_ratelimit_statistics_hash(ngx_http_ratelimit_use_t *use,
    ratelimit_hash_t *hash);
static ngx_int_t ngx_http_ratelimit_statistics_add_zone(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_zone_t *zone);
static ngx_int_t ngx_http_ratelimit_statistics_add_use(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_use_t *use);
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
static void ngx_http_ratelimit_statistics_add_cell(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_name_t *name,
    ngx_http_ratelimit_name_t *limit);
static void ngx_http_ratelimit_statistics_close_rings(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_zone_t *zone);
static void ngx_http_ratelimit_statistics_open_ring(
    ngx_http_ratelimit_names_t *names, ngx_uint_t first);
static void ngx_http_ratelimit_statistics_hand_over(
    ngx_http_ratelimit_names_t *names, ngx_uint_t cell);
static void ngx_http_ratelimit_statistics_give(u_char *cell,
    ngx_http_ratelimit_counts_t *counts);
static ngx_int_t ngx_http_ratelimit_statistics_add_sources(
    ngx_http_ratelimit_names_t *names);
static ngx_int_t ngx_http_ratelimit_statistics_add_source(
    ngx_http_ratelimit_names_t *names, ratelimit_hash_t *limit,
    ngx_uint_t cell, ngx_uint_t own);
static ngx_http_ratelimit_statistics_t *ngx_http_ratelimit_statistics_block(
    ngx_http_ratelimit_names_t *names, ngx_uint_t cell);
static ngx_http_ratelimit_owner_t *ngx_http_ratelimit_statistics_owner(
    ngx_http_ratelimit_names_t *names, ngx_uint_t cell);
static u_char *ngx_http_ratelimit_statistics_cell(
    ngx_http_ratelimit_names_t *names, ngx_uint_t cell);
static ngx_http_ratelimit_statistics_t *ngx_http_ratelimit_statistics_of(
    ngx_cycle_t *cycle, ngx_uint_t n);
static void ngx_http_ratelimit_statistics_add(
    ngx_http_ratelimit_statistics_t *statistics,
    ngx_http_ratelimit_counts_t *sum, u_char *cell, ngx_uint_t own);
static void ngx_http_ratelimit_statistics_lock(
    ngx_http_ratelimit_statistics_t *statistics);
static void ngx_http_ratelimit_statistics_unlock(
    ngx_http_ratelimit_statistics_t *statistics);


ngx_uint_t  ngx_http_ratelimit_lane;
ngx_uint_t  ngx_http_ratelimit_counted;


void
ngx_http_ratelimit_statistics_join(ngx_http_ratelimit_use_t **uses,
    ngx_uint_t n, ngx_uint_t rows)
{
    ngx_uint_t  i, pair;

    pair = (n == 2 && rows == 2) ? 2 : 0;

    for (i = 0; i < n; i++) {
        pair = (uses[i]->zone->rank == 0) ? pair : 0;
    }

    for (i = 0; i < n; i++) {
        uses[i]->next = (n > 1) ? uses[(i + 1) % n] : NULL;
        uses[i]->ring_rows = rows;
        uses[i]->ring_pair = pair;
    }
}


ngx_int_t
ngx_http_ratelimit_statistics_declare(ngx_conf_t *cf, ngx_array_t *zones,
    void *tag)
{
    size_t                       size;
    ngx_str_t                    name;
    ngx_uint_t                   i;
    ngx_http_ratelimit_names_t  *names;

    names = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_names_t));
    if (names == NULL) {
        return NGX_ERROR;
    }

    names->zones = zones;

    if (ngx_http_ratelimit_statistics_find_blocks(cf, names) != NGX_OK) {
        return NGX_ERROR;
    }

    size = sizeof(ngx_http_ratelimit_statistics_t) + ngx_pagesize;

    for (i = 0; i < names->nblocks; i++) {
        name.data = ngx_pnalloc(cf->pool, sizeof("ratelimit:statistics:") - 1
                                          + NGX_INT_T_LEN);
        if (name.data == NULL) {
            return NGX_ERROR;
        }

        name.len = ngx_sprintf(name.data, "ratelimit:statistics:%ui", i)
                   - name.data;

        if (ngx_http_ratelimit_shm_add(cf, &name, size, tag,
                                       ngx_http_ratelimit_statistics_init,
                                       names)
            == NULL)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* limits get their cells when the last block has memory */

static ngx_int_t
ngx_http_ratelimit_statistics_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_uint_t                         i;
    ngx_http_ratelimit_zone_t        **zone;
    ngx_http_ratelimit_names_t        *names;
    ngx_http_ratelimit_statistics_t  **block;

    names = shm_zone->data;

    if (names->ready++ == names->blocks.nelts) {
        block = ngx_array_push(&names->blocks);
        if (block == NULL) {
            return NGX_ERROR;
        }

        *block = (ngx_http_ratelimit_statistics_t *)
                 (shm_zone->shm.addr + ngx_pagesize);
    }

    if (data == NULL && !shm_zone->shm.exists) {
        ngx_http_ratelimit_shm_clear(shm_zone);
    }

    if (names->ready < names->nblocks) {
        return NGX_OK;
    }

    zone = names->zones->elts;

    for (i = 0; i < names->zones->nelts; i++) {
        if (ngx_http_ratelimit_statistics_add_zone(names, zone[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    for (i = 0; i < names->zones->nelts; i++) {
        ngx_http_ratelimit_statistics_close_rings(names, zone[i]);
    }

    return ngx_http_ratelimit_statistics_add_sources(names);
}


/* those of the former configuration, and as many as are needed in addition */

static ngx_int_t
ngx_http_ratelimit_statistics_find_blocks(ngx_conf_t *cf,
    ngx_http_ratelimit_names_t *names)
{
    ngx_http_ratelimit_statistics_t  *former, **block;

    if (ngx_array_init(&names->blocks, cf->temp_pool, 1,
                       sizeof(ngx_http_ratelimit_statistics_t *))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    for ( ;; ) {
        former = ngx_http_ratelimit_statistics_of(cf->cycle->old_cycle,
                                                  names->blocks.nelts);
        if (former == NULL) {
            break;
        }

        block = ngx_array_push(&names->blocks);
        if (block == NULL) {
            return NGX_ERROR;
        }

        *block = former;
    }

    if (ngx_http_ratelimit_statistics_init_names(cf, names) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_statistics_find_vacancies(cf, names,
                                   ngx_http_ratelimit_statistics_want(names));
}


/* the names that have a cell */

static ngx_int_t
ngx_http_ratelimit_statistics_init_names(ngx_conf_t *cf,
    ngx_http_ratelimit_names_t *names)
{
    ngx_uint_t                    i, n, cells;
    ngx_http_ratelimit_zone_t   **zone;
    ngx_http_ratelimit_owner_t   *owner;

    zone = names->zones->elts;
    cells = names->blocks.nelts * NGX_HTTP_RATELIMIT_CELLS;

    /* a cell may have two names, so may a use */

    for (i = 0, n = 2 * cells; i < names->zones->nelts; i++) {
        n += 2 * zone[i]->uses.nelts;
    }

    for (names->mask = 1; names->mask <= 2 * n; names->mask *= 2) {
        /* void */
    }

    names->names = ngx_pcalloc(cf->temp_pool,
                               names->mask * sizeof(ngx_http_ratelimit_name_t));
    if (names->names == NULL) {
        return NGX_ERROR;
    }

    names->mask--;

    for (i = 1; i <= cells; i++) {
        owner = ngx_http_ratelimit_statistics_owner(names, i);

        if (owner->generation) {
            ngx_http_ratelimit_statistics_find(names, &owner->name)->cell = i;
        }
    }

    return NGX_OK;
}


/* the names that the configuration has; returns how many have no cell yet */

static ngx_uint_t
ngx_http_ratelimit_statistics_want(ngx_http_ratelimit_names_t *names)
{
    ngx_uint_t                   i, k, n;
    ngx_http_ratelimit_use_t   **use;
    ngx_http_ratelimit_zone_t  **zone;

    n = 0;
    zone = names->zones->elts;

    for (i = 0; i < names->zones->nelts; i++) {
        use = zone[i]->uses.elts;

        for (k = 0; k < zone[i]->uses.nelts; k++) {

            if (use[k]->budget) {
                continue;
            }

            n += ngx_http_ratelimit_statistics_want_name(
                     ngx_http_ratelimit_statistics_find_use(names, use[k]));

            if (use[k]->next != NULL) {
                n += ngx_http_ratelimit_statistics_want_name(
                         ngx_http_ratelimit_statistics_find_ring(names,
                                                                 use[k]));
            }
        }
    }

    return n;
}


static ngx_uint_t
ngx_http_ratelimit_statistics_want_name(ngx_http_ratelimit_name_t *name)
{
    ngx_uint_t  missing;

    missing = (!name->wanted && name->cell == 0);
    name->wanted = 1;

    return missing;
}


static ngx_int_t
ngx_http_ratelimit_statistics_find_vacancies(ngx_conf_t *cf,
    ngx_http_ratelimit_names_t *names, ngx_uint_t wanted)
{
    ngx_uint_t                   cell, end, alone;
    ngx_http_ratelimit_owner_t  *owner;

    if (ngx_array_init(&names->vacancies, cf->temp_pool,
                       NGX_HTTP_RATELIMIT_CELLS,
                       sizeof(ngx_http_ratelimit_vacancy_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    names->nblocks = names->blocks.nelts;

    end = names->nblocks * NGX_HTTP_RATELIMIT_CELLS;
    alone = ngx_http_ratelimit_reload_is_over();

    for (cell = 1; cell <= end; cell++) {
        owner = ngx_http_ratelimit_statistics_owner(names, cell);

        if (ngx_http_ratelimit_statistics_is_free(names, owner, alone)
            && ngx_http_ratelimit_statistics_add_vacancy(names,
                                                         owner->generation,
                                                         cell)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    while (names->nblocks == 0 || names->vacancies.nelts < wanted) {
        names->nblocks++;

        for (end += NGX_HTTP_RATELIMIT_CELLS; cell <= end; cell++) {
            if (ngx_http_ratelimit_statistics_add_vacancy(names, 0, cell)
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    ngx_qsort(names->vacancies.elts, names->vacancies.nelts,
              sizeof(ngx_http_ratelimit_vacancy_t),
              ngx_http_ratelimit_statistics_compare);

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_statistics_add_vacancy(ngx_http_ratelimit_names_t *names,
    uint64_t generation, ngx_uint_t cell)
{
    ngx_http_ratelimit_vacancy_t  *vacancy;

    vacancy = ngx_array_push(&names->vacancies);
    if (vacancy == NULL) {
        return NGX_ERROR;
    }

    vacancy->generation = generation;
    vacancy->cell = cell;

    return NGX_OK;
}


static int ngx_libc_cdecl
ngx_http_ratelimit_statistics_compare(const void *one, const void *two)
{
    const ngx_http_ratelimit_vacancy_t  *a = one;
    const ngx_http_ratelimit_vacancy_t  *b = two;

    if (a->generation != b->generation) {
        return a->generation < b->generation ? -1 : 1;
    }

    return a->cell < b->cell ? -1 : 1;
}


/* that of a limit that is gone is free if no worker can know it any more */

static ngx_uint_t
ngx_http_ratelimit_statistics_is_free(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_owner_t *owner, ngx_uint_t alone)
{
    ngx_http_ratelimit_statistics_t  **block;

    block = names->blocks.elts;

    if (owner->generation == 0) {
        return 1;
    }

    if (owner->generation == block[0]->generation || !alone) {
        return 0;
    }

    return !ngx_http_ratelimit_statistics_find(names, &owner->name)->wanted;
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

    ngx_http_ratelimit_statistics_hash(use, &hash);

    return ngx_http_ratelimit_statistics_find(names, &hash);
}


/* the limit and those that follow it, up to itself */

static ngx_http_ratelimit_name_t *
ngx_http_ratelimit_statistics_find_ring(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_use_t *use)
{
    ratelimit_hash_t           hash;
    ngx_http_ratelimit_use_t  *each;

    ngx_memzero(&hash, sizeof(ratelimit_hash_t));

    each = use;

    do {
        ngx_http_ratelimit_statistics_hash(each, &hash);
        each = each->next;

    } while (each != use);

    return ngx_http_ratelimit_statistics_find(names, &hash);
}


static void
ngx_http_ratelimit_statistics_hash(ngx_http_ratelimit_use_t *use,
    ratelimit_hash_t *hash)
{
    ratelimit_hash(hash, use->zone->name.data, use->zone->name.len, hash);
    ratelimit_hash(hash, use->name.data, use->name.len, hash);
}


static ngx_int_t
ngx_http_ratelimit_statistics_add_zone(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                         i;
    ngx_http_ratelimit_use_t         **use;
    ngx_http_ratelimit_statistics_t  **block;

    block = names->blocks.elts;
    zone->statistics = block[0];

    if (ngx_array_init(&zone->tallies, zone->pool, 1,
                       sizeof(ngx_http_ratelimit_tally_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    use = zone->uses.elts;

    for (i = 0; i < zone->uses.nelts; i++) {
        if (!use[i]->budget
            && ngx_http_ratelimit_statistics_add_use(names, use[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_statistics_add_use(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_use_t *use)
{
    ngx_http_ratelimit_name_t   *name, *ring;
    ngx_http_ratelimit_tally_t  *tally;

    name = ngx_http_ratelimit_statistics_find_use(names, use);
    ring = use->next ? ngx_http_ratelimit_statistics_find_ring(names, use)
                     : name;

    ngx_http_ratelimit_statistics_add_cell(names, name, name);
    ngx_http_ratelimit_statistics_add_cell(names, ring, name);

    if (name->tally == 0) {
        tally = ngx_http_ratelimit_statistics_add_tally(use);
        if (tally == NULL) {
            return NGX_ERROR;
        }

        tally->owner = ngx_http_ratelimit_statistics_owner(names, name->cell);

        name->zone = use->zone;
        name->tally = use->zone->tallies.nelts;
    }

    tally = use->zone->tallies.elts;
    tally += name->tally - 1;
    tally->keys |= 1 << use->key;

    use->cell = ngx_http_ratelimit_statistics_cell(names, name->cell);
    use->ring_cell = ngx_http_ratelimit_statistics_cell(names, ring->cell);
    use->number = tally->owner->number;

    return ngx_http_ratelimit_statistics_add_rates(tally, use);
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

    if (ngx_array_init(&tally->sources, zone->pool, 1,
                       sizeof(ngx_http_ratelimit_source_t))
        != NGX_OK
        || ngx_array_init(&tally->rules, zone->pool, 1,
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


/*
 * A cell of the limit, unless the name has one; there are as many vacancies as
 * names without.
 */

static void
ngx_http_ratelimit_statistics_add_cell(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_name_t *name, ngx_http_ratelimit_name_t *limit)
{
    u_char                            *cell;
    ngx_uint_t                         lane;
    ngx_http_ratelimit_owner_t        *owner;
    ngx_http_ratelimit_vacancy_t      *vacancy;
    ngx_http_ratelimit_statistics_t  **block;

    if (name->cell) {
        return;
    }

    block = names->blocks.elts;
    vacancy = names->vacancies.elts;

    name->cell = vacancy[names->taken++].cell;

    owner = ngx_http_ratelimit_statistics_owner(names, name->cell);
    cell = ngx_http_ratelimit_statistics_cell(names, name->cell);

    if (owner->next) {
        ngx_http_ratelimit_statistics_open_ring(names, name->cell);
    }

    for (lane = 0; lane < block[0]->nlanes; lane++) {
        ngx_memzero(cell + lane * NGX_HTTP_RATELIMIT_LANE_SIZE,
                    sizeof(ngx_http_ratelimit_counts_t));
    }

    ngx_memzero(owner, sizeof(ngx_http_ratelimit_owner_t));

    owner->name = name->name;
    owner->limit = limit->name;
    owner->generation = block[0]->generation + 1;
    owner->number = ++block[0]->numbers;
}


/* all of its cells are there */

static void
ngx_http_ratelimit_statistics_close_rings(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                    i, cell;
    ngx_http_ratelimit_use_t    **use;
    ngx_http_ratelimit_owner_t   *owner;

    use = zone->uses.elts;

    for (i = 0; i < zone->uses.nelts; i++) {

        if (use[i]->next == NULL) {
            continue;
        }

        cell = ngx_http_ratelimit_statistics_find_ring(names, use[i])->cell;
        owner = ngx_http_ratelimit_statistics_owner(names, cell);

        owner->next = ngx_http_ratelimit_statistics_find_ring(names,
                                                              use[i]->next)
                      ->cell;
    }
}


/*
 * A ring that is gone: its counts go to the cells that its limits have alone.
 * Workers may read them meanwhile.
 */

static void
ngx_http_ratelimit_statistics_open_ring(ngx_http_ratelimit_names_t *names,
    ngx_uint_t first)
{
    ngx_uint_t                         cell;
    ngx_http_ratelimit_owner_t        *owner;
    ngx_http_ratelimit_statistics_t  **block;

    block = names->blocks.elts;

    ngx_http_ratelimit_statistics_lock(block[0]);

    cell = first;

    do {
        ngx_http_ratelimit_statistics_hand_over(names, cell);

        cell = ngx_http_ratelimit_statistics_owner(names, cell)->next;

    } while (cell != first);

    do {
        owner = ngx_http_ratelimit_statistics_owner(names, cell);
        cell = owner->next;

        ngx_memzero(owner, sizeof(ngx_http_ratelimit_owner_t));

    } while (cell != first);

    ngx_http_ratelimit_statistics_unlock(block[0]);
}


/* a limit that is gone, too, has no cell any more, or may have */

static void
ngx_http_ratelimit_statistics_hand_over(ngx_http_ratelimit_names_t *names,
    ngx_uint_t cell)
{
    ngx_uint_t                         each;
    ngx_http_ratelimit_name_t         *name;
    ngx_http_ratelimit_owner_t        *owner, *alone;
    ngx_http_ratelimit_counts_t        counts;
    ngx_http_ratelimit_statistics_t  **block;

    block = names->blocks.elts;
    each = cell;

    do {
        owner = ngx_http_ratelimit_statistics_owner(names, each);
        name = ngx_http_ratelimit_statistics_find(names, &owner->limit);

        alone = name->cell ? ngx_http_ratelimit_statistics_owner(names,
                                                                 name->cell)
                           : NULL;

        if (alone != NULL
            && ngx_memcmp(&alone->name, &name->name, sizeof(ratelimit_hash_t))
               == 0)
        {
            ngx_memzero(&counts, sizeof(ngx_http_ratelimit_counts_t));

            ngx_http_ratelimit_statistics_add(block[0], &counts,
                            ngx_http_ratelimit_statistics_cell(names, cell),
                            each == cell);
            ngx_http_ratelimit_statistics_give(
                      ngx_http_ratelimit_statistics_cell(names, name->cell),
                      &counts);
        }

        each = owner->next;

    } while (each != cell);
}


/* in the first lane, where a worker may count */

static void
ngx_http_ratelimit_statistics_give(u_char *cell,
    ngx_http_ratelimit_counts_t *counts)
{
    ngx_uint_t                    i;
    ngx_http_ratelimit_counts_t  *to;

    to = (ngx_http_ratelimit_counts_t *) cell;

    (void) ngx_atomic_fetch_add(&to->delayed, counts->delayed);

    for (i = 0; i < NGX_HTTP_RATELIMIT_STATUSES - 1; i++) {
        (void) ngx_atomic_fetch_add(&to->requests[i], counts->requests[i]);
    }
}


/* cells of limits of the configuration, also those of rings that are gone */

static ngx_int_t
ngx_http_ratelimit_statistics_add_sources(ngx_http_ratelimit_names_t *names)
{
    ngx_uint_t                   cell, each, end;
    ngx_http_ratelimit_owner_t  *owner;

    end = names->blocks.nelts * NGX_HTTP_RATELIMIT_CELLS;

    for (cell = 1; cell <= end; cell++) {
        each = cell;

        do {
            owner = ngx_http_ratelimit_statistics_owner(names, each);

            if (ngx_http_ratelimit_statistics_add_source(names, &owner->limit,
                                                         cell, each == cell)
                != NGX_OK)
            {
                return NGX_ERROR;
            }

            each = owner->next ? owner->next : cell;

        } while (each != cell);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_statistics_add_source(ngx_http_ratelimit_names_t *names,
    ratelimit_hash_t *limit, ngx_uint_t cell, ngx_uint_t own)
{
    ngx_http_ratelimit_name_t    *name;
    ngx_http_ratelimit_owner_t   *owner;
    ngx_http_ratelimit_tally_t   *tally;
    ngx_http_ratelimit_source_t  *source;

    owner = ngx_http_ratelimit_statistics_owner(names, cell);

    if (owner->number == 0) {
        return NGX_OK;
    }

    name = ngx_http_ratelimit_statistics_find(names, limit);

    if (name->tally == 0) {
        return NGX_OK;
    }

    tally = name->zone->tallies.elts;

    source = ngx_array_push(&tally[name->tally - 1].sources);
    if (source == NULL) {
        return NGX_ERROR;
    }

    source->owner = owner;
    source->number = owner->number;
    source->cell = ngx_http_ratelimit_statistics_cell(names, cell);
    source->own = own;
    source->used = ngx_http_ratelimit_statistics_find(names, &owner->name)
                   ->wanted;

    return NGX_OK;
}


static ngx_http_ratelimit_owner_t *
ngx_http_ratelimit_statistics_owner(ngx_http_ratelimit_names_t *names,
    ngx_uint_t cell)
{
    return &ngx_http_ratelimit_statistics_block(names, cell)
            ->owners[(cell - 1) % NGX_HTTP_RATELIMIT_CELLS];
}


/* of the first lane */

static u_char *
ngx_http_ratelimit_statistics_cell(ngx_http_ratelimit_names_t *names,
    ngx_uint_t cell)
{
    return (u_char *) &ngx_http_ratelimit_statistics_block(names, cell)
                       ->lanes[0][(cell - 1) % NGX_HTTP_RATELIMIT_CELLS];
}


static ngx_http_ratelimit_statistics_t *
ngx_http_ratelimit_statistics_block(ngx_http_ratelimit_names_t *names,
    ngx_uint_t cell)
{
    ngx_http_ratelimit_statistics_t  **block;

    block = names->blocks.elts;

    return block[(cell - 1) / NGX_HTTP_RATELIMIT_CELLS];
}


/* the configuration is used from now on */

void
ngx_http_ratelimit_statistics_activate(ngx_cycle_t *cycle, ngx_array_t *zones)
{
    ngx_uint_t                         i, k, n;
    ngx_http_ratelimit_zone_t        **zone;
    ngx_http_ratelimit_tally_t        *tally;
    ngx_http_ratelimit_source_t       *source;
    ngx_http_ratelimit_statistics_t   *statistics;

    statistics = ngx_http_ratelimit_statistics_of(cycle, 0);

    ngx_http_ratelimit_counted = (statistics != NULL);

    if (statistics == NULL) {
        return;
    }

    statistics->generation++;

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {
        tally = zone[i]->tallies.elts;

        for (k = 0; k < zone[i]->tallies.nelts; k++) {
            source = tally[k].sources.elts;

            for (n = 0; n < tally[k].sources.nelts; n++) {
                if (source[n].used) {
                    source[n].owner->generation = statistics->generation;
                }
            }
        }
    }
}


/* a block, from 0 on; NULL if there is none */

static ngx_http_ratelimit_statistics_t *
ngx_http_ratelimit_statistics_of(ngx_cycle_t *cycle, ngx_uint_t n)
{
    u_char  *p;

    p = ngx_http_ratelimit_shm_find(cycle, ngx_http_ratelimit_statistics_init,
                                    n);

    return p ? (ngx_http_ratelimit_statistics_t *) (p + ngx_pagesize) : NULL;
}


void
ngx_http_ratelimit_statistics_init_process(ngx_cycle_t *cycle,
    ngx_array_t *zones)
{
    ngx_uint_t                         i, k, lane;
    ngx_atomic_uint_t                  nlanes;
    ngx_http_ratelimit_use_t         **use;
    ngx_http_ratelimit_zone_t        **zone;
    ngx_http_ratelimit_statistics_t   *statistics;

    lane = ngx_worker % NGX_HTTP_RATELIMIT_LANES;
    ngx_http_ratelimit_lane = lane;

    statistics = ngx_http_ratelimit_statistics_of(cycle, 0);

    if (statistics == NULL) {
        return;
    }

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {
        use = zone[i]->uses.elts;

        for (k = 0; k < zone[i]->uses.nelts; k++) {
            if (!use[k]->budget) {
                use[k]->cell += lane * NGX_HTTP_RATELIMIT_LANE_SIZE;
                use[k]->ring_cell += lane * NGX_HTTP_RATELIMIT_LANE_SIZE;
            }
        }
    }

    do {
        nlanes = statistics->nlanes;
    } while (nlanes <= lane
             && !ngx_atomic_cmp_set(&statistics->nlanes, nlanes, lane + 1));
}


void
ngx_http_ratelimit_statistics_read(ngx_http_ratelimit_tally_t *tally,
    ngx_http_ratelimit_counts_t *all, ngx_http_ratelimit_counts_t *recent)
{
    ngx_uint_t                        i;
    ngx_http_ratelimit_source_t      *source;
    ngx_http_ratelimit_statistics_t  *statistics;

    statistics = tally->use->zone->statistics;
    source = tally->sources.elts;

    /* another worker may reset them: in this order these are never more */

    *recent = tally->owner->former;

    ngx_memory_barrier();

    ngx_memzero(all, sizeof(ngx_http_ratelimit_counts_t));

    ngx_http_ratelimit_statistics_lock(statistics);

    for (i = 0; i < tally->sources.nelts; i++) {
        if (source[i].owner->number == source[i].number) {
            ngx_http_ratelimit_statistics_add(statistics, all, source[i].cell,
                                              source[i].own);
        }
    }

    ngx_http_ratelimit_statistics_unlock(statistics);

    recent->delayed = all->delayed - recent->delayed;

    for (i = 0; i < NGX_HTTP_RATELIMIT_STATUSES - 1; i++) {
        recent->requests[i] = all->requests[i] - recent->requests[i];
    }
}


/*
 * What a cell says of its limit, or, as it passes what one of the others stops,
 * of another one in the ring.
 */

static void
ngx_http_ratelimit_statistics_add(ngx_http_ratelimit_statistics_t *statistics,
    ngx_http_ratelimit_counts_t *sum, u_char *cell, ngx_uint_t own)
{
    ngx_uint_t                    i, said;
    ngx_http_ratelimit_counts_t   counts;

    if (own) {
        ngx_http_ratelimit_sum_lanes(cell, NGX_HTTP_RATELIMIT_LANE_SIZE,
                                     statistics->nlanes, sum,
                                     sizeof(ngx_http_ratelimit_counts_t));
        return;
    }

    ngx_memzero(&counts, sizeof(ngx_http_ratelimit_counts_t));

    ngx_http_ratelimit_sum_lanes(cell, NGX_HTTP_RATELIMIT_LANE_SIZE,
                                 statistics->nlanes, &counts,
                                 sizeof(ngx_http_ratelimit_counts_t));

    for (i = 0; i < NGX_HTTP_RATELIMIT_STATUSES - 1; i++) {
        said = (i == NGX_HTTP_RATELIMIT_BYPASSED - 1)
               ? i : NGX_HTTP_RATELIMIT_PASSED - 1;

        sum->requests[said] += counts.requests[i];
    }
}


void
ngx_http_ratelimit_sum_lanes(void *first, size_t step, ngx_uint_t n, void *sum,
    size_t size)
{
    u_char             *lane;
    ngx_uint_t          i;
    ngx_atomic_t       *from;
    ngx_atomic_uint_t  *to;

    to = sum;

    for (lane = first; n; n--, lane += step) {
        from = (ngx_atomic_t *) lane;

        for (i = 0; i < size / sizeof(ngx_atomic_t); i++) {
            to[i] += from[i];
        }
    }
}


/* that of the slab pool before it, which nginx unlocks if a worker dies */

static void
ngx_http_ratelimit_statistics_lock(ngx_http_ratelimit_statistics_t *statistics)
{
    ngx_slab_pool_t  *pool;

    pool = (ngx_slab_pool_t *) ((u_char *) statistics - ngx_pagesize);

    ngx_shmtx_lock(&pool->mutex);
}


static void
ngx_http_ratelimit_statistics_unlock(
    ngx_http_ratelimit_statistics_t *statistics)
{
    ngx_slab_pool_t  *pool;

    pool = (ngx_slab_pool_t *) ((u_char *) statistics - ngx_pagesize);

    ngx_shmtx_unlock(&pool->mutex);
}


ngx_uint_t
ngx_http_ratelimit_statistics_lanes(ngx_http_ratelimit_zone_t *zone)
{
    return zone->statistics->nlanes;
}


void
ngx_http_ratelimit_statistics_reset(ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                    i;
    ngx_http_ratelimit_tally_t   *tally;
    ngx_http_ratelimit_counts_t   all, recent;

    tally = zone->tallies.elts;

    for (i = 0; i < zone->tallies.nelts; i++) {
        ngx_http_ratelimit_statistics_read(&tally[i], &all, &recent);

        ngx_memory_barrier();

        tally[i].owner->former = all;
    }

    ngx_http_ratelimit_restore_evictions(zone);
    ratelimit_table_dismiss_evictions(zone->table);
}
