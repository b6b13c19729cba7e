
/*
 * The whole configuration has been read: limits find their zones, rates
 * become rules, and the store learns who uses it.
 */


#include "conf/ngx_http_ratelimit_conf.h"


#define NGX_HTTP_RATELIMIT_MAX_WAIT  86400000    /* ms */


typedef ngx_int_t (*ngx_http_ratelimit_bind_pt)(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);


static void ngx_http_ratelimit_find_stages(ngx_http_ratelimit_set_t *set);
static ngx_int_t ngx_http_ratelimit_bind_set(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set);
static ngx_int_t ngx_http_ratelimit_count_rules(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set);
static ngx_int_t ngx_http_ratelimit_each(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_bind_pt bind);
static ngx_int_t ngx_http_ratelimit_compare_limits(const void *one,
    const void *two);
static ngx_int_t ngx_http_ratelimit_bind_limit(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_bind_zone(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);
static void ngx_http_ratelimit_bind_name(ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_check_name(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_bind_delay(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit);
static ngx_uint_t ngx_http_ratelimit_gives_back(
    ngx_http_ratelimit_main_conf_t *rmcf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit);


ngx_http_ratelimit_zone_t *
ngx_http_ratelimit_find_zone(ngx_http_ratelimit_main_conf_t *rmcf,
    ngx_str_t *name)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_zone_t  **zones;

    zones = rmcf->zones.elts;

    for (i = 0; i < rmcf->zones.nelts; i++) {
        if (zones[i]->name.len == name->len
            && ngx_strncmp(zones[i]->name.data, name->data, name->len) == 0)
        {
            return zones[i];
        }
    }

    return NULL;
}


ngx_int_t
ngx_http_ratelimit_bind(ngx_conf_t *cf)
{
    ngx_uint_t                        i;
    ngx_http_ratelimit_set_t        **sets;
    ngx_http_ratelimit_main_conf_t   *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    if (ngx_http_ratelimit_check_mentions(cf) != NGX_OK
        || ngx_http_ratelimit_bind_redis(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    sets = rmcf->sets.elts;

    for (i = 0; i < rmcf->sets.nelts; i++) {
        ngx_http_ratelimit_find_stages(sets[i]);
        rmcf->stages |= sets[i]->stages;
    }

    for (i = 0; i < rmcf->sets.nelts; i++) {
        if (ngx_http_ratelimit_bind_set(cf, sets[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_ratelimit_elastic_bind(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (rmcf->zones.nelts == 0) {
        return NGX_OK;
    }

    return ngx_http_ratelimit_store_finish(cf);
}


static void
ngx_http_ratelimit_find_stages(ngx_http_ratelimit_set_t *set)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_limit_t  *limits;

    limits = set->limits.elts;

    for (i = 0; i < set->limits.nelts; i++) {
        set->stages |= limits[i].stage;
    }
}


static ngx_int_t
ngx_http_ratelimit_bind_set(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set)
{
    if (set->server != NULL) {
        set->name = set->server->server_name;

        if (set->name.len == 0) {
            ngx_str_set(&set->name, "server");
        }
    }

    if (ngx_http_ratelimit_each(cf, set, ngx_http_ratelimit_bind_zone)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_sort(set->limits.elts, set->limits.nelts,
             sizeof(ngx_http_ratelimit_limit_t),
             ngx_http_ratelimit_compare_limits);

    if (ngx_http_ratelimit_each(cf, set, ngx_http_ratelimit_bind_limit)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_count_rules(cf, set);
}


static ngx_int_t
ngx_http_ratelimit_count_rules(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set)
{
    ngx_uint_t                   i, n;
    ngx_conf_file_t             *saved;
    ngx_http_ratelimit_limit_t  *limits;

    limits = set->limits.elts;

    for (i = 0; i < set->limits.nelts; i++) {

        n = limits[i].plan.nrules ? limits[i].plan.nrules
                                  : NGX_HTTP_RATELIMIT_MAX_RATES;

        if (limits[i].stage == NGX_HTTP_RATELIMIT_AFTER_AUTH) {
            set->nrules_after += n;

        } else {
            set->nrules_before += n;
        }

        if (limits[i].use.zone->redis != NULL) {
            set->remote |= limits[i].stage;
        }
    }

    n = set->nrules_before + set->nrules_after;

    if (n > RATELIMIT_MAX_ITEMS) {
        saved = cf->conf_file;
        cf->conf_file = &limits[0].origin;
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "too many rates in \"ratelimit\" directives of one "
                           "block: %ui, there may be %d",
                           n, RATELIMIT_MAX_ITEMS);
        cf->conf_file = saved;

        return NGX_ERROR;
    }

    for (i = 0; i < set->limits.nelts; i++) {
        limits[i].use.together = n;
    }

    set->nrules = n;
    set->direct = ngx_http_ratelimit_direct_set(set);

    return NGX_OK;
}


/* what is wrong is reported where it is written */

static ngx_int_t
ngx_http_ratelimit_each(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_bind_pt bind)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i;
    ngx_conf_file_t             *saved;
    ngx_http_ratelimit_limit_t  *limits;

    limits = set->limits.elts;
    saved = cf->conf_file;
    rc = NGX_OK;

    for (i = 0; i < set->limits.nelts && rc == NGX_OK; i++) {
        cf->conf_file = &limits[i].origin;
        rc = bind(cf, set, &limits[i]);
    }

    cf->conf_file = saved;

    return rc;
}


/*
 * Limits of one store follow one another, those in memory first, which are
 * asked before others; then, of one store, those that fail alike.
 */

static ngx_int_t
ngx_http_ratelimit_compare_limits(const void *one, const void *two)
{
    const ngx_http_ratelimit_limit_t  *a = one;
    const ngx_http_ratelimit_limit_t  *b = two;

    uintptr_t  left, right;

    left = (uintptr_t) a->use.zone->redis;
    right = (uintptr_t) b->use.zone->redis;

    if (left != right) {
        return left > right ? 1 : -1;
    }

    return left ? (ngx_int_t) a->use.zone->fail - (ngx_int_t) b->use.zone->fail
                : 0;
}


static ngx_int_t
ngx_http_ratelimit_bind_limit(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    ngx_http_ratelimit_bind_name(set, limit);

    if (ngx_http_ratelimit_check_name(cf, set, limit) != NGX_OK) {
        return NGX_ERROR;
    }

    if (limit->key.value == NULL) {
        ngx_http_ratelimit_expr_init(cf, &limit->key, &limit->use.zone->key);
    }

    if (ngx_http_ratelimit_make_labels(cf, limit) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_bind_delay(cf, limit) != NGX_OK
        || ngx_http_ratelimit_bind_rates(cf, limit) != NGX_OK)
    {
        return NGX_ERROR;
    }

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    if (limit->outcomes != NULL) {
        rmcf->outcomes = 1;
    }

    if (limit->elastic && rmcf->elastic == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "parameter \"elastic\" in \"ratelimit\" directive "
                           "needs \"ratelimit_elastic\"");
        return NGX_ERROR;
    }

    limit->use.lasting = !ngx_http_ratelimit_gives_back(rmcf, set, limit);

    return ngx_http_ratelimit_store_use(cf, &limit->use);
}


static ngx_int_t
ngx_http_ratelimit_bind_zone(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_http_ratelimit_zone_t       *zone;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    zone = ngx_http_ratelimit_find_zone(rmcf, &limit->zone);

    if (zone == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown zone \"%V\" in \"ratelimit\" directive",
                           &limit->zone);
        return NGX_ERROR;
    }

    if (zone->shape.algorithm != RATELIMIT_LEAKY_BUCKET
        && (limit->burst || limit->free == RATELIMIT_NODELAY))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "parameter \"%s\" in \"ratelimit\" directive needs "
                           "algorithm \"leaky_bucket\", "
                           "but zone \"%V\" has \"%s\"",
                           limit->burst ? "burst" : "nodelay",
                           &zone->name,
                           ratelimit_algorithms[zone->shape.algorithm]->name);
        return NGX_ERROR;
    }

    if (limit->rates.list.nelts == 0 && limit->rates.variable == NULL
        && zone->rates.nelts == 0 && zone->rate == NULL)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"ratelimit\" directive must have \"rate\" "
                           "parameter, as zone \"%V\" has none",
                           &zone->name);
        return NGX_ERROR;
    }

    limit->use.zone = zone;

    return NGX_OK;
}


/* a limit with a key or rates of its own counts apart from the zone's others */

static void
ngx_http_ratelimit_bind_name(ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit)
{
    if (limit->use.name.len) {
        return;
    }

    if (limit->key.value != NULL || limit->rates.list.nelts
        || limit->rates.variable != NULL)
    {
        limit->use.name = set->name;
        return;
    }

    ngx_str_set(&limit->use.name, "");
}


/* one decision must not look twice at one counter */

static ngx_int_t
ngx_http_ratelimit_check_name(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_http_ratelimit_limit_t  *other;

    for (other = set->limits.elts; other < limit; other++) {

        if (other->use.zone != limit->use.zone
            || other->use.name.len != limit->use.name.len
            || ngx_strncmp(other->use.name.data, limit->use.name.data,
                           limit->use.name.len)
               != 0)
        {
            continue;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate zone \"%V\" in \"ratelimit\" directive, "
                           "it needs a \"name\" parameter to count apart",
                           &limit->zone);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* delay= is a number of requests to a leaky_bucket, a time to a token_bucket */

static ngx_int_t
ngx_http_ratelimit_bind_delay(ngx_conf_t *cf, ngx_http_ratelimit_limit_t *limit)
{
    ngx_int_t                   wait;
    const char                 *reason;
    ngx_http_ratelimit_zone_t  *zone;

    if (limit->delay.len == 0) {
        return NGX_OK;
    }

    zone = limit->use.zone;
    reason = NULL;

    if (zone->shape.algorithm == RATELIMIT_LEAKY_BUCKET) {

        if (ratelimit_parse_number((char *) limit->delay.data,
                                   limit->delay.len, RATELIMIT_MAX_LIMIT - 1,
                                   &limit->free)
            != NULL
            || limit->free == 0)
        {
            reason = "must be a number from 1 to 4294967294";
        }

    } else if (zone->shape.algorithm == RATELIMIT_TOKEN_BUCKET) {
        wait = ngx_parse_time(&limit->delay, 0);

        if (wait == NGX_ERROR || wait == 0
            || (uint64_t) wait > NGX_HTTP_RATELIMIT_MAX_WAIT)
        {
            reason = "must be a time from 1ms to 1d";

        } else {
            limit->wait = (uint64_t) wait * 1000;
        }

    } else {
        reason = "needs algorithm \"leaky_bucket\" or \"token_bucket\"";
    }

    if (reason == NULL) {
        return NGX_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"delay=%V\" in \"ratelimit\" "
                       "directive: %s", &limit->delay, reason);

    return NGX_ERROR;
}


/*
 * Whether a charge may be given back: by its outcome, by who leaves a queue
 * for a token, or because those refuse that are asked later.  Or by another
 * plan, whose bucket fills faster.  A redirect may lead to the other stage of
 * any other set, be it that before authentication.
 */

static ngx_uint_t
ngx_http_ratelimit_gives_back(ngx_http_ratelimit_main_conf_t *rmcf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_limit_t  *other;

    if (limit->outcomes != NULL || rmcf->stages != limit->stage) {
        return 1;
    }

    if (limit->rate.value != NULL
        && (limit->use.zone->shape.algorithm == RATELIMIT_TOKEN_BUCKET
            || limit->use.zone->shape.algorithm == RATELIMIT_LEAKY_BUCKET))
    {
        return 1;
    }

    other = set->limits.elts;

    for (i = 0; i < set->limits.nelts; i++, other++) {

        if (other->delay.len
            && other->use.zone->shape.algorithm == RATELIMIT_TOKEN_BUCKET)
        {
            return 1;
        }

        if (other > limit
            && other->use.zone->redis != limit->use.zone->redis)
        {
            return 1;
        }
    }

    return 0;
}
