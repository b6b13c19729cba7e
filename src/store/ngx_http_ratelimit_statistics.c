
/*
 * The memory of the statistics: its cells over reloads, and their sums.
 *
 * A cell belongs to the hash of a zone's and a limit's name.  It is kept when
 * a configuration has no such limit any more, in case that a later one has;
 * when there is no free cell left, such cells are used for others, those of
 * limits that are gone for longest first, as soon as no worker is left that
 * counts there.  If that is not enough, one more block of cells is added, which
 * stays as long as there are statistics.
 */


#include "store/ngx_http_ratelimit_kept.h"
#include "store/ngx_http_ratelimit_shm.h"
#include "store/ngx_http_ratelimit_statistics.h"


/* of a block */
#define NGX_HTTP_RATELIMIT_CELLS  4096


struct ngx_http_ratelimit_owner_s {
    ratelimit_hash_t                name;
    uint64_t                        generation;  /* that used it last; 0: none
                                                 did */
    ngx_uint_t                      number;   /* never given twice */
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
    ngx_uint_t                      tally;    /* of its zone, from 1 on; 0: none
                                                 yet */
} ngx_http_ratelimit_name_t;


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
static void ngx_http_ratelimit_statistics_add_cell(
    ngx_http_ratelimit_names_t *names, ngx_http_ratelimit_name_t *name);
static ngx_http_ratelimit_statistics_t *ngx_http_ratelimit_statistics_block(
    ngx_http_ratelimit_names_t *names, ngx_uint_t cell);
static ngx_http_ratelimit_owner_t *ngx_http_ratelimit_statistics_owner(
    ngx_http_ratelimit_names_t *names, ngx_uint_t cell);
static u_char *ngx_http_ratelimit_statistics_cell(
    ngx_http_ratelimit_names_t *names, ngx_uint_t cell);
static ngx_http_ratelimit_statistics_t *ngx_http_ratelimit_statistics_of(
    ngx_cycle_t *cycle, ngx_uint_t n);


size_t  ngx_http_ratelimit_lane;


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

    return NGX_OK;
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

    for (i = 0, n = cells; i < names->zones->nelts; i++) {
        n += zone[i]->uses.nelts;
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
    ngx_http_ratelimit_name_t   *name;
    ngx_http_ratelimit_zone_t  **zone;

    n = 0;
    zone = names->zones->elts;

    for (i = 0; i < names->zones->nelts; i++) {
        use = zone[i]->uses.elts;

        for (k = 0; k < zone[i]->uses.nelts; k++) {

            if (use[k]->budget) {
                continue;
            }

            name = ngx_http_ratelimit_statistics_find_use(names, use[k]);

            n += (!name->wanted && name->cell == 0);
            name->wanted = 1;
        }
    }

    return n;
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

    ratelimit_hash(&hash, use->zone->name.data, use->zone->name.len, &hash);
    ratelimit_hash(&hash, use->name.data, use->name.len, &hash);

    return ngx_http_ratelimit_statistics_find(names, &hash);
}


static ngx_int_t
ngx_http_ratelimit_statistics_add_zone(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                         i;
    ngx_http_ratelimit_use_t         **use;
    ngx_http_ratelimit_name_t         *name;
    ngx_http_ratelimit_tally_t        *tally;
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
                ngx_http_ratelimit_statistics_add_cell(names, name);
            }

            tally->owner = ngx_http_ratelimit_statistics_owner(names,
                                                               name->cell);
        }

        tally = zone->tallies.elts;
        tally += name->tally - 1;
        tally->keys |= 1 << use[i]->key;

        use[i]->cell = ngx_http_ratelimit_statistics_cell(names, name->cell);
        use[i]->number = tally->owner->number;

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


/* there are as many vacancies as names without a cell */

static void
ngx_http_ratelimit_statistics_add_cell(ngx_http_ratelimit_names_t *names,
    ngx_http_ratelimit_name_t *name)
{
    u_char                            *cell;
    ngx_uint_t                         lane;
    ngx_http_ratelimit_owner_t        *owner;
    ngx_http_ratelimit_vacancy_t      *vacancy;
    ngx_http_ratelimit_statistics_t  **block;

    block = names->blocks.elts;
    vacancy = names->vacancies.elts;

    name->cell = vacancy[names->taken++].cell;

    owner = ngx_http_ratelimit_statistics_owner(names, name->cell);
    cell = ngx_http_ratelimit_statistics_cell(names, name->cell);

    for (lane = 0; lane < block[0]->nlanes; lane++) {
        ngx_memzero(cell + lane * NGX_HTTP_RATELIMIT_LANE_SIZE,
                    sizeof(ngx_http_ratelimit_counts_t));
    }

    ngx_memzero(owner, sizeof(ngx_http_ratelimit_owner_t));

    owner->name = name->name;
    owner->generation = block[0]->generation + 1;
    owner->number = ++block[0]->numbers;
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
    ngx_uint_t                         i, k;
    ngx_http_ratelimit_zone_t        **zone;
    ngx_http_ratelimit_tally_t        *tally;
    ngx_http_ratelimit_statistics_t   *statistics;

    statistics = ngx_http_ratelimit_statistics_of(cycle, 0);

    if (statistics == NULL) {
        return;
    }

    statistics->generation++;

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {
        tally = zone[i]->tallies.elts;

        for (k = 0; k < zone[i]->tallies.nelts; k++) {
            tally[k].owner->generation = statistics->generation;
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
ngx_http_ratelimit_statistics_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                        lane;
    ngx_atomic_uint_t                 nlanes;
    ngx_http_ratelimit_statistics_t  *statistics;

    statistics = ngx_http_ratelimit_statistics_of(cycle, 0);

    if (statistics == NULL) {
        return;
    }

    lane = ngx_worker % NGX_HTTP_RATELIMIT_LANES;

    ngx_http_ratelimit_lane = lane * NGX_HTTP_RATELIMIT_LANE_SIZE;

    do {
        nlanes = statistics->nlanes;
    } while (nlanes <= lane
             && !ngx_atomic_cmp_set(&statistics->nlanes, nlanes, lane + 1));
}


void
ngx_http_ratelimit_statistics_read(ngx_http_ratelimit_tally_t *tally,
    ngx_http_ratelimit_counts_t *all, ngx_http_ratelimit_counts_t *recent)
{
    u_char                           *cell;
    ngx_uint_t                        i, lane;
    ngx_http_ratelimit_counts_t      *counts;
    ngx_http_ratelimit_statistics_t  *statistics;

    statistics = tally->use->zone->statistics;
    cell = tally->use->cell;

    /* another worker may reset them: in this order these are never more */

    *recent = tally->owner->former;

    ngx_memory_barrier();

    ngx_memzero(all, sizeof(ngx_http_ratelimit_counts_t));

    for (lane = 0; lane < statistics->nlanes; lane++) {
        counts = (ngx_http_ratelimit_counts_t *)
                 (cell + lane * NGX_HTTP_RATELIMIT_LANE_SIZE);

        all->delayed += counts->delayed;

        for (i = 0; i < NGX_HTTP_RATELIMIT_STATUSES - 1; i++) {
            all->requests[i] += counts->requests[i];
        }
    }

    recent->delayed = all->delayed - recent->delayed;

    for (i = 0; i < NGX_HTTP_RATELIMIT_STATUSES - 1; i++) {
        recent->requests[i] = all->requests[i] - recent->requests[i];
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
