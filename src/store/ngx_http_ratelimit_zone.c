
/*
 * Zones as the configuration declares and uses them.
 */


#include "store/ngx_http_ratelimit_shm.h"


static ngx_int_t ngx_http_ratelimit_zone_set_refusals_hold(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone);
static int ngx_libc_cdecl ngx_http_ratelimit_zone_compare_names(
    const void *one, const void *two);
static ngx_int_t ngx_http_ratelimit_zone_refusals_hold(ngx_conf_t *cf,
    ngx_http_ratelimit_use_t **use, ngx_uint_t n);
static ngx_uint_t ngx_http_ratelimit_zone_same_pace(ngx_array_t *rules);
static int ngx_libc_cdecl ngx_http_ratelimit_zone_compare_periods(
    const void *one, const void *two);
static ngx_int_t ngx_http_ratelimit_zone_layout(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone);
static ngx_int_t ngx_http_ratelimit_zone_name_ledger(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone);
static void ngx_http_ratelimit_zone_fit(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_use_t *use);
static ngx_uint_t ngx_http_ratelimit_zone_holds(
    ngx_http_ratelimit_zone_t *zone, size_t size, ngx_uint_t max_rules);
static void ngx_http_ratelimit_zone_too_small(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_uint_t max_rules);
static ngx_http_ratelimit_use_t *ngx_http_ratelimit_zone_largest(
    ngx_http_ratelimit_zone_t *zone, uint64_t *requests);
static size_t ngx_http_ratelimit_zone_enough(ngx_http_ratelimit_zone_t *zone,
    ngx_uint_t max_rules);


ngx_int_t
ngx_http_ratelimit_store_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, size_t size, void *tag)
{
    ngx_str_t        name;
    ngx_shm_zone_t  *shm_zone;

    /* no zone of the configuration can have this name */

    ngx_str_set(&name, "ratelimit:lifelines");

    zone->lifelines = ngx_http_ratelimit_shm_add(cf, &name,
                                        ratelimit_lifelines_size()
                                        + 8 * ngx_pagesize,
                                        tag,
                                        ngx_http_ratelimit_shm_init_lifelines,
                                        NULL);
    if (zone->lifelines == NULL) {
        return NGX_ERROR;
    }

    shm_zone = ngx_shared_memory_add(cf, &zone->name, size, tag);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    if (shm_zone->data) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate zone \"%V\"", &zone->name);
        return NGX_ERROR;
    }

    shm_zone->init = ngx_http_ratelimit_shm_init_zone;
    shm_zone->data = zone;

    zone->shm_zone = shm_zone;
    zone->store = &ngx_http_ratelimit_shm_store;
    zone->pool = cf->pool;
    zone->file = cf->conf_file->file.name;
    zone->line = cf->conf_file->line;

    return ngx_array_init(&zone->uses, cf->pool, 4,
                          sizeof(ngx_http_ratelimit_use_t *));
}


ngx_int_t
ngx_http_ratelimit_store_use(ngx_conf_t *cf, ngx_http_ratelimit_use_t *use)
{
    ngx_http_ratelimit_use_t          **slot;
    const ngx_http_ratelimit_store_t   *store;

    slot = ngx_array_push(&use->zone->uses);
    if (slot == NULL) {
        return NGX_ERROR;
    }

    *slot = use;
    store = use->zone->store;

    if (use->label.len == 0) {
        use->label = use->zone->name;
    }

    return store->use ? store->use(cf, use) : NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_store_finish(ngx_conf_t *cf)
{
    ngx_uint_t                   i;
    ngx_array_t                 *zones;
    ngx_http_ratelimit_zone_t  **zone;

    zones = ngx_http_ratelimit_zones(cf->cycle, cf->temp_pool);
    if (zones == NULL) {
        return NGX_ERROR;
    }

    zone = zones->elts;

    for (i = 0; i < zones->nelts; i++) {

        if (ngx_http_ratelimit_zone_set_refusals_hold(cf, zone[i]) != NGX_OK
            || ngx_http_ratelimit_zone_layout(cf, zone[i]) != NGX_OK
            || ngx_http_ratelimit_reload_find(cf, zone[i]) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_ratelimit_reload_prepare(cf->log);
}


/*
 * Uses of one name share their counters: refusals of one of them hold no longer
 * than those of any other.  There may be tens of thousands, so they are sorted
 * by name.
 */

static ngx_int_t
ngx_http_ratelimit_zone_set_refusals_hold(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone)
{
    ngx_int_t                   refusals_hold;
    ngx_uint_t                  i, k, n;
    ngx_http_ratelimit_use_t  **use;

    n = zone->uses.nelts;

    use = ngx_palloc(cf->temp_pool,
                     (n + 1) * sizeof(ngx_http_ratelimit_use_t *));
    if (use == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(use, zone->uses.elts, n * sizeof(ngx_http_ratelimit_use_t *));
    ngx_qsort(use, n, sizeof(ngx_http_ratelimit_use_t *),
              ngx_http_ratelimit_zone_compare_names);

    for ( /* void */ ; n; use += i, n -= i) {

        for (i = 1; i < n; i++) {
            if (ngx_http_ratelimit_zone_compare_names(&use[0], &use[i]) != 0) {
                break;
            }
        }

        refusals_hold = ngx_http_ratelimit_zone_refusals_hold(cf, use, i);

        if (refusals_hold == NGX_ERROR) {
            return NGX_ERROR;
        }

        for (k = 0; k < i; k++) {
            use[k]->refusals_hold = refusals_hold;
        }
    }

    return NGX_OK;
}


static int ngx_libc_cdecl
ngx_http_ratelimit_zone_compare_names(const void *one, const void *two)
{
    const ngx_http_ratelimit_use_t  *a, *b;

    a = *(ngx_http_ratelimit_use_t **) one;
    b = *(ngx_http_ratelimit_use_t **) two;

    return ngx_memn2cmp(a->name.data, b->name.data, a->name.len, b->name.len);
}


/*
 * How long refusals by any of these uses hold, which share their counters:
 * limits that share a bucket must refill it at one rate.
 */

static ngx_int_t
ngx_http_ratelimit_zone_refusals_hold(ngx_conf_t *cf,
    ngx_http_ratelimit_use_t **use, ngx_uint_t n)
{
    ngx_int_t           hold;
    ngx_uint_t          i, k;
    ngx_array_t         rules;
    ratelimit_rule_t  **rule;

    hold = NGX_HTTP_RATELIMIT_HOLD;

    for (i = 0; i < n; i++) {
        hold = ngx_min(hold, (ngx_int_t) use[i]->refusals_hold);
    }

    if (hold != NGX_HTTP_RATELIMIT_HOLD
        || !ratelimit_algorithms[use[0]->zone->shape.algorithm]->drips)
    {
        return hold;
    }

    if (ngx_array_init(&rules, cf->temp_pool, n, sizeof(ratelimit_rule_t *))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < n; i++) {
        for (k = 0; k < use[i]->nrules; k++) {

            rule = ngx_array_push(&rules);
            if (rule == NULL) {
                return NGX_ERROR;
            }

            *rule = &use[i]->rules[k];
        }
    }

    return ngx_http_ratelimit_zone_same_pace(&rules)
           ? NGX_HTTP_RATELIMIT_HOLD : NGX_HTTP_RATELIMIT_HOLD_BRIEFLY;
}


/* whether rules of one period have one limit */

static ngx_uint_t
ngx_http_ratelimit_zone_same_pace(ngx_array_t *rules)
{
    ngx_uint_t          i;
    ratelimit_rule_t  **rule;

    rule = rules->elts;

    ngx_qsort(rule, rules->nelts, sizeof(ratelimit_rule_t *),
              ngx_http_ratelimit_zone_compare_periods);

    for (i = 1; i < rules->nelts; i++) {
        if (rule[i]->period == rule[i - 1]->period
            && rule[i]->limit != rule[i - 1]->limit)
        {
            return 0;
        }
    }

    return 1;
}


static int ngx_libc_cdecl
ngx_http_ratelimit_zone_compare_periods(const void *one, const void *two)
{
    const ratelimit_rule_t  *a, *b;

    a = *(ratelimit_rule_t **) one;
    b = *(ratelimit_rule_t **) two;

    if (a->period == b->period) {
        return 0;
    }

    return a->period > b->period ? 1 : -1;
}


/* all zones of a configuration: they are known by their init handler */

ngx_array_t *
ngx_http_ratelimit_zones(ngx_cycle_t *cycle, ngx_pool_t *pool)
{
    ngx_uint_t                   i;
    ngx_array_t                 *zones;
    ngx_list_part_t             *part;
    ngx_shm_zone_t              *shm_zone;
    ngx_http_ratelimit_zone_t  **zone;

    zones = ngx_array_create(pool, 4, sizeof(ngx_http_ratelimit_zone_t *));
    if (zones == NULL) {
        return NULL;
    }

    for (part = &cycle->shared_memory.part; part; part = part->next) {
        shm_zone = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (shm_zone[i].init != ngx_http_ratelimit_shm_init_zone) {
                continue;
            }

            zone = ngx_array_push(zones);
            if (zone == NULL) {
                return NULL;
            }

            *zone = shm_zone[i].data;
        }
    }

    return zones;
}


/*
 * The memory of a zone is used again on reload only if the layout is the same:
 * nginx compares names, so the layout becomes part of the name.
 */

static ngx_int_t
ngx_http_ratelimit_zone_layout(ngx_conf_t *cf, ngx_http_ratelimit_zone_t *zone)
{
    u_char                     *p;
    size_t                      len;
    ngx_uint_t                  i, max_rules;
    ratelimit_shape_t          *shape;
    ngx_http_ratelimit_use_t  **use;

    shape = &zone->shape;
    use = zone->uses.elts;

    max_rules = 1;

    /* times of Redis do not fit, and nothing is reserved there */

    zone->packed = (zone->sync == 0);

    ratelimit_shape_fit(shape, 1);

    for (i = 0; i < zone->uses.nelts; i++) {
        ngx_http_ratelimit_zone_fit(zone, use[i]);

        max_rules = ngx_max(max_rules, use[i]->max_rules);
    }

    if (!ngx_http_ratelimit_zone_holds(zone, zone->shm_zone->shm.size,
                                       max_rules))
    {
        ngx_http_ratelimit_zone_too_small(cf, zone, max_rules);
        return NGX_ERROR;
    }

    len = zone->name.len + zone->key_text.len + 7 * (NGX_INT32_LEN + 1) + 1;

    p = ngx_pnalloc(cf->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    zone->shm_zone->shm.name.data = p;
    p = ngx_sprintf(p, "%V %d %uD %uD %uD %uD %uD %d ", &zone->name,
                    (int) shape->algorithm, shape->buckets, shape->width,
                    shape->ring, shape->reserves, zone->packed,
                    zone->sync != 0);
    p = ngx_cpymem(p, zone->key_text.data, zone->key_text.len);
    zone->shm_zone->shm.name.len = p - zone->shm_zone->shm.name.data;

    return zone->ledger ? ngx_http_ratelimit_zone_name_ledger(cf, zone)
                        : NGX_OK;
}


/* what is to be reported goes to one Redis, and is of one layout */

static ngx_int_t
ngx_http_ratelimit_zone_name_ledger(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone)
{
    u_char     *p;
    ngx_str_t  *name, *layout;

    name = &zone->ledger->shm.name;
    layout = &zone->shm_zone->shm.name;

    p = ngx_pnalloc(cf->pool, name->len + layout->len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(ngx_cpymem(p, name->data, name->len), layout->data,
               layout->len);

    name->data = p;
    name->len += layout->len;

    return NGX_OK;
}


static void
ngx_http_ratelimit_zone_fit(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_use_t *use)
{
    ngx_uint_t                    i;
    ratelimit_shape_t            *shape;
    const ratelimit_algorithm_t  *algorithm;

    /* what one request may cost in the end, whatever the limit */

    static const ratelimit_rule_t  debt = {
        .limit = 1,
        .period = RATELIMIT_SECOND,
        .capacity = RATELIMIT_MAX_LIMIT,
        .ceiling = RATELIMIT_MAX_LIMIT
    };

    shape = &zone->shape;
    algorithm = ratelimit_algorithms[shape->algorithm];

    if (use->reserved && zone->sync == 0 && algorithm->reserve != NULL) {
        shape->reserves = 1;
    }

    for (i = 0; i < use->nrules; i++) {
        zone->packed &= ratelimit_table_fit(shape, &use->rules[i]);
    }

    if (use->bound) {
        zone->packed &= ratelimit_table_fit(shape, use->bound);
    }

    if (use->settles && !algorithm->sized) {
        zone->packed &= ratelimit_table_fit(shape, &debt);
    }
}


/* the first page is nginx's */

static ngx_uint_t
ngx_http_ratelimit_zone_holds(ngx_http_ratelimit_zone_t *zone, size_t size,
    ngx_uint_t max_rules)
{
    return ratelimit_table_holds(&zone->shape, zone->packed,
                                 size - ngx_pagesize, max_rules);
}


static void
ngx_http_ratelimit_zone_too_small(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_uint_t max_rules)
{
    uint64_t                   requests;
    ngx_http_ratelimit_use_t  *use;

    use = ngx_http_ratelimit_zone_largest(zone, &requests);

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "\"ratelimit_zone\" zone \"%V\" is too small for its rates: "
                  "%uL requests%s%V%s need at least %uzk in %V:%ui",
                  &zone->name, requests,
                  use->name.len ? " of limit \"" : "", &use->name,
                  use->name.len ? "\"" : "",
                  ngx_http_ratelimit_zone_enough(zone, max_rules),
                  &zone->file, zone->line);
}


/* the use that needs the largest states, as it counts most requests */

static ngx_http_ratelimit_use_t *
ngx_http_ratelimit_zone_largest(ngx_http_ratelimit_zone_t *zone,
    uint64_t *requests)
{
    ngx_uint_t                  i, k;
    ngx_http_ratelimit_use_t  **use, *largest;

    use = zone->uses.elts;
    largest = use[0];
    *requests = 0;

    for (i = 0; i < zone->uses.nelts; i++) {

        for (k = 0; k < use[i]->nrules; k++) {
            if (use[i]->rules[k].ceiling > *requests) {
                *requests = use[i]->rules[k].ceiling;
                largest = use[i];
            }
        }

        if (use[i]->bound && use[i]->bound->ceiling > *requests) {
            *requests = use[i]->bound->ceiling;
            largest = use[i];
        }
    }

    return largest;
}


/* the least size that is, in kilobytes */

static size_t
ngx_http_ratelimit_zone_enough(ngx_http_ratelimit_zone_t *zone,
    ngx_uint_t max_rules)
{
    size_t  low, high, size;

    low = ngx_align(zone->shm_zone->shm.size, 1024) / 1024 - 1;
    high = low;

    do {
        high *= 2;

    } while (!ngx_http_ratelimit_zone_holds(zone, high * 1024, max_rules));

    while (high - low > 1) {
        size = low + (high - low) / 2;

        if (ngx_http_ratelimit_zone_holds(zone, size * 1024, max_rules)) {
            high = size;

        } else {
            low = size;
        }
    }

    return high;
}


ngx_uint_t
ngx_http_ratelimit_store_is_up(ngx_http_ratelimit_zone_t *zone)
{
    return zone->store->up == NULL || zone->store->up(zone);
}


ngx_shm_zone_t *
ngx_http_ratelimit_shm_add(ngx_conf_t *cf, ngx_str_t *name, size_t size,
    void *tag, ngx_shm_zone_init_pt init, void *data)
{
    ngx_shm_zone_t  *shm_zone;

    shm_zone = ngx_shared_memory_add(cf, name, size, tag);

    if (shm_zone != NULL) {
        shm_zone->init = init;
        shm_zone->data = data;
    }

    return shm_zone;
}


u_char *
ngx_http_ratelimit_shm_find(ngx_cycle_t *cycle, ngx_shm_zone_init_pt init,
    ngx_uint_t n)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_shm_zone_t   *shm_zone;

    for (part = &cycle->shared_memory.part; part; part = part->next) {
        shm_zone = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (shm_zone[i].init == init && n-- == 0) {
                return shm_zone[i].shm.addr;
            }
        }
    }

    return NULL;
}


ngx_uint_t
ngx_http_ratelimit_is_same(const ngx_str_t *one, const ngx_str_t *two)
{
    return one->len == two->len
           && (one->len == 0
               || ngx_memcmp(one->data, two->data, one->len) == 0);
}
