
/*
 * The whole configuration has been read: limits find their zones, rates
 * become rules, and the store learns who uses it.
 */


#include "http/ngx_http_ratelimit.h"


static ngx_int_t ngx_http_ratelimit_bind_set(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set);
static ngx_int_t ngx_http_ratelimit_bind_limit(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_bind_zone(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit);
static void ngx_http_ratelimit_bind_name(ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_check_name(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_bind_rules(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_bind_rule(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit, ratelimit_rate_t *rate,
    ratelimit_rule_t *rule);
static ngx_array_t *ngx_http_ratelimit_rewrite_codes(ngx_conf_t *cf);


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

    if (ngx_http_ratelimit_check_mentions(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    sets = rmcf->sets.elts;

    for (i = 0; i < rmcf->sets.nelts; i++) {
        if (ngx_http_ratelimit_bind_set(cf, sets[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (rmcf->zones.nelts == 0) {
        return NGX_OK;
    }

    return ngx_http_ratelimit_store_finish(cf);
}


static ngx_int_t
ngx_http_ratelimit_bind_set(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i;
    ngx_conf_file_t             *saved;
    ngx_http_ratelimit_limit_t  *limits;

    if (set->server != NULL) {
        set->name = set->server->server_name;

        if (set->name.len == 0) {
            ngx_str_set(&set->name, "server");
        }
    }

    limits = set->limits.elts;
    saved = cf->conf_file;

    for (i = 0; i < set->limits.nelts; i++) {

        /* what is wrong is reported where it is written */

        cf->conf_file = &limits[i].origin;
        rc = ngx_http_ratelimit_bind_limit(cf, set, &limits[i]);
        cf->conf_file = saved;

        if (rc != NGX_OK) {
            return NGX_ERROR;
        }

        set->nrules += limits[i].use.nrules;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_bind_limit(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit)
{
    if (ngx_http_ratelimit_bind_zone(cf, limit) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_bind_name(set, limit);

    if (ngx_http_ratelimit_check_name(cf, set, limit) != NGX_OK) {
        return NGX_ERROR;
    }

    if (limit->key.value == NULL) {
        ngx_http_ratelimit_expr_init(cf, &limit->key, &limit->use.zone->key);
    }

    if (ngx_http_ratelimit_bind_rules(cf, limit) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_make_labels(cf, limit) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_store_use(cf, &limit->use);
}


static ngx_int_t
ngx_http_ratelimit_bind_zone(ngx_conf_t *cf, ngx_http_ratelimit_limit_t *limit)
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
        && (limit->burst || limit->free))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "parameter \"%s\" in \"ratelimit\" directive needs "
                           "algorithm \"leaky_bucket\", "
                           "but zone \"%V\" has \"%s\"",
                           limit->burst ? "burst"
                           : limit->free == RATELIMIT_NODELAY ? "nodelay"
                           : "delay",
                           &zone->name,
                           ratelimit_algorithms[zone->shape.algorithm]->name);
        return NGX_ERROR;
    }

    if (limit->rates.nelts == 0 && zone->rates.nelts == 0) {
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

    if (limit->key.value != NULL || limit->rates.nelts) {
        limit->use.name = set->name;
    }
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


static ngx_int_t
ngx_http_ratelimit_bind_rules(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_uint_t         i;
    ngx_array_t       *rates;
    ratelimit_rate_t  *rate;
    ratelimit_rule_t  *rules;

    rates = limit->rates.nelts ? &limit->rates : &limit->use.zone->rates;
    rate = rates->elts;

    rules = ngx_pcalloc(cf->pool, rates->nelts * sizeof(ratelimit_rule_t));
    if (rules == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < rates->nelts; i++) {
        if (ngx_http_ratelimit_bind_rule(cf, limit, &rate[i], &rules[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    limit->use.rules = rules;
    limit->use.nrules = rates->nelts;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_bind_rule(ngx_conf_t *cf, ngx_http_ratelimit_limit_t *limit,
    ratelimit_rate_t *rate, ratelimit_rule_t *rule)
{
    ngx_http_ratelimit_zone_t  *zone;

    zone = limit->use.zone;

    rule->limit = rate->limit;
    rule->period = rate->period;
    rule->capacity = rate->limit;

    if (zone->shape.algorithm == RATELIMIT_LEAKY_BUCKET) {
        rule->capacity = limit->burst + 1;
        rule->free = limit->free;

    } else if (zone->capacity) {
        rule->capacity = zone->capacity;
    }

    rule->ceiling = rule->capacity * (100 + limit->soft) / 100;

    if (rule->ceiling > RATELIMIT_MAX_LIMIT
        || ngx_max(rule->ceiling, rule->limit)
           > (RATELIMIT_MAX_PRODUCT - 1) / rule->period)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "limit of zone \"%V\" in \"ratelimit\" directive "
                           "is too large: %uL requests in %uL seconds",
                           &zone->name, ngx_max(rule->ceiling, rule->limit),
                           rule->period / RATELIMIT_SECOND);
        return NGX_ERROR;
    }

    ratelimit_shape_fit(&zone->shape, rule->ceiling);

    return NGX_OK;
}


void
ngx_http_ratelimit_check_return(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set)
{
    ngx_array_t                 *codes;
    ngx_conf_file_t             *saved;
    ngx_http_script_code_pt     *code;
    ngx_http_ratelimit_limit_t  *limits;

    codes = ngx_http_ratelimit_rewrite_codes(cf);
    if (codes == NULL || codes->nelts == 0) {
        return;
    }

    /* the one of an "if" comes after the code of the condition */

    code = codes->elts;
    if (*code != ngx_http_script_return_code) {
        return;
    }

    limits = set->limits.elts;

    saved = cf->conf_file;
    cf->conf_file = &limits[0].origin;

    ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                       "\"ratelimit\" directive is never reached because of "
                       "\"return\" in the same block");

    cf->conf_file = saved;
}


/* the rewrite module's configuration begins with its codes */

static ngx_array_t *
ngx_http_ratelimit_rewrite_codes(ngx_conf_t *cf)
{
    ngx_uint_t             i;
    ngx_array_t          **codes;
    ngx_module_t          *module;
    ngx_http_conf_ctx_t   *ctx;

    ctx = cf->ctx;

    for (i = 0; cf->cycle->modules[i]; i++) {
        module = cf->cycle->modules[i];

        if (ngx_strcmp(module->name, "ngx_http_rewrite_module") == 0) {
            codes = ctx->loc_conf[module->ctx_index];
            return *codes;
        }
    }

    return NULL;
}
