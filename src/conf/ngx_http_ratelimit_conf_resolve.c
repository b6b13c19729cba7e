
/*
 * When http {} has been read, limits find their zones, rates become rules, and
 * the store gets to know the limits that use its zones.
 */


#include "conf/ngx_http_ratelimit_conf.h"
#include "store/ngx_http_ratelimit_kept.h"
#include "store/ngx_http_ratelimit_statistics.h"
#include "store/ngx_http_ratelimit_top.h"


#define NGX_HTTP_RATELIMIT_MAX_DELAY  86400000    /* ms */


typedef ngx_int_t (*ngx_http_ratelimit_resolve_pt)(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);


static ngx_int_t ngx_http_ratelimit_resolve_all(ngx_conf_t *cf);
static ngx_int_t ngx_http_ratelimit_resolve_api(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf);
static void ngx_http_ratelimit_find_stages(ngx_http_ratelimit_set_t *set);
static void ngx_http_ratelimit_warn_unused(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf);
static ngx_int_t ngx_http_ratelimit_resolve_set(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set);
static void ngx_http_ratelimit_find_ring(ngx_http_ratelimit_set_t *set,
    ngx_uint_t stage, ngx_uint_t nrules);
static ngx_int_t ngx_http_ratelimit_count_rules(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set);
static ngx_uint_t ngx_http_ratelimit_is_simple(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_resolve_each(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_resolve_pt resolve);
static void ngx_http_ratelimit_sort_limits(ngx_http_ratelimit_set_t *set);
static ngx_int_t ngx_http_ratelimit_compare_limits(const void *one,
    const void *two);
static ngx_int_t ngx_http_ratelimit_resolve_limit(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_resolve_own(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_resolve_zone(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);
static ngx_http_ratelimit_key_e ngx_http_ratelimit_resolve_key(
    ngx_str_t *text);
static void ngx_http_ratelimit_resolve_name(ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_check_duplicate(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_resolve_delay(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_compare_keys(
    const ngx_http_ratelimit_limit_t *a, const ngx_http_ratelimit_limit_t *b);
static ngx_http_ratelimit_hold_e ngx_http_ratelimit_find_refusals_hold(
    ngx_http_ratelimit_main_conf_t *rmcf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit);
static ngx_uint_t ngx_http_ratelimit_may_refund(
    ngx_http_ratelimit_main_conf_t *rmcf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit);
static ngx_http_ratelimit_known_e ngx_http_ratelimit_find_known(
    ngx_str_t *text, ngx_uint_t by_status);


ngx_int_t
ngx_http_ratelimit_resolve(ngx_conf_t *cf)
{
    ngx_int_t         rc;
    ngx_conf_file_t  *saved;

    saved = cf->conf_file;
    rc = ngx_http_ratelimit_resolve_all(cf);
    cf->conf_file = saved;

    return rc;
}


static ngx_int_t
ngx_http_ratelimit_resolve_all(ngx_conf_t *cf)
{
    ngx_uint_t                        i;
    ngx_http_ratelimit_set_t        **sets;
    ngx_http_ratelimit_main_conf_t   *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    if (ngx_http_ratelimit_expr_check_all(cf) != NGX_OK
        || ngx_http_ratelimit_resolve_redis(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    sets = rmcf->sets.elts;

    for (i = 0; i < rmcf->sets.nelts; i++) {
        ngx_http_ratelimit_find_stages(sets[i]);
        rmcf->stages |= sets[i]->stages;
    }

    for (i = 0; i < rmcf->sets.nelts; i++) {
        if (ngx_http_ratelimit_resolve_set(cf, sets[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_ratelimit_resolve_domains(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_check_services(cf);
    ngx_http_ratelimit_warn_unused(cf, rmcf);

    if (ngx_http_ratelimit_resolve_elastic(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (rmcf->api && ngx_http_ratelimit_resolve_api(cf, rmcf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (rmcf->zones.nelts == 0) {
        return NGX_OK;
    }

    return ngx_http_ratelimit_store_finish(cf);
}


/* what the API shows has to be counted */

static ngx_int_t
ngx_http_ratelimit_resolve_api(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_zone_t  **zones;

    zones = rmcf->zones.elts;

    for (i = 0; i < rmcf->zones.nelts; i++) {
        if (zones[i]->top
            && ngx_http_ratelimit_top_declare(cf, zones[i],
                                              &ngx_http_ratelimit_module)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_ratelimit_kept_declare(cf, &ngx_http_ratelimit_module)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_statistics_declare(cf, &rmcf->zones,
                                                 &ngx_http_ratelimit_module);
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


/* of zones that no limit uses */

static void
ngx_http_ratelimit_warn_unused(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf)
{
    ngx_uint_t                   i;
    ngx_conf_file_t              origin;
    ngx_http_ratelimit_zone_t  **zones;

    zones = rmcf->zones.elts;

    for (i = 0; i < rmcf->zones.nelts; i++) {

        if (zones[i]->uses.nelts) {
            continue;
        }

        ngx_http_ratelimit_zone_origin(zones[i], &origin);
        cf->conf_file = &origin;

        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "zone \"%V\" of \"%s\" is used by no "
                           "\"ratelimit\"", &zones[i]->name,
                           ngx_http_ratelimit_has_rules(zones[i])
                           ? "ratelimit_rules" : "ratelimit_zone");
    }
}


static ngx_int_t
ngx_http_ratelimit_resolve_set(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set)
{
    if (set->server != NULL) {
        set->name = set->server->server_name;

        if (set->name.len == 0) {
            ngx_str_set(&set->name, "server");
        }
    }

    if (ngx_http_ratelimit_resolve_each(cf, set,
                                        ngx_http_ratelimit_resolve_zone)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_sort_limits(set);

    if (ngx_http_ratelimit_resolve_each(cf, set,
                                        ngx_http_ratelimit_resolve_limit)
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
    ngx_http_ratelimit_limit_t  *limits;

    limits = set->limits.elts;
    set->simple = 1;

    for (i = 0; i < set->limits.nelts; i++) {

        n = limits[i].rules.nrules ? limits[i].rules.nrules
            : limits[i].domain ? 1 : NGX_HTTP_RATELIMIT_MAX_RATES;

        if (limits[i].stage == NGX_HTTP_RATELIMIT_AFTER_AUTH) {
            set->nrules_after += n;

        } else {
            set->nrules_before += n;
        }

        set->simple &= ngx_http_ratelimit_is_simple(cf, &limits[i]);
    }

    n = set->nrules_before + set->nrules_after;

    if (n > NGX_HTTP_RATELIMIT_MAX_ROWS) {
        cf->conf_file = &limits[0].origin;
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "too many rates in \"ratelimit\" directives of one "
                           "block: %ui, at most %d are allowed",
                           n, NGX_HTTP_RATELIMIT_MAX_ROWS);
        return NGX_ERROR;
    }

    for (i = 0; i < set->limits.nelts; i++) {
        limits[i].use.max_rules = n;

        if (limits[i].domain != NULL) {
            ngx_http_ratelimit_domain_use(&limits[i]);
        }
    }

    ngx_http_ratelimit_find_ring(set, NGX_HTTP_RATELIMIT_BEFORE_AUTH,
                                 set->nrules_before);
    ngx_http_ratelimit_find_ring(set, NGX_HTTP_RATELIMIT_AFTER_AUTH,
                                 set->nrules_after);

    return NGX_OK;
}


/* limits of a stage that are counted at once */

static void
ngx_http_ratelimit_find_ring(ngx_http_ratelimit_set_t *set, ngx_uint_t stage,
    ngx_uint_t nrules)
{
    ngx_uint_t                   i, n;
    ngx_http_ratelimit_use_t    *uses[NGX_HTTP_RATELIMIT_RING];
    ngx_http_ratelimit_limit_t  *limits;

    limits = set->limits.elts;
    n = 0;

    for (i = 0; i < set->limits.nelts; i++) {

        if (limits[i].stage != stage) {
            continue;
        }

        /* which counters rule files mean depends on the request */

        if (limits[i].domain != NULL || n == NGX_HTTP_RATELIMIT_RING) {
            return;
        }

        uses[n++] = &limits[i].use;
    }

    if (n) {
        ngx_http_ratelimit_statistics_join(uses, n, nrules);
        set->rings[stage] = uses[0];
    }
}


/*
 * Most limits are: the path of a request is compiled once more for them.  It
 * does not note values for limits after authentication.
 */

static ngx_uint_t
ngx_http_ratelimit_is_simple(ngx_conf_t *cf, ngx_http_ratelimit_limit_t *limit)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    return limit->stage == NGX_HTTP_RATELIMIT_BEFORE_AUTH
           && limit->domain == NULL
           && limit->key.index != NGX_ERROR
           && limit->filter.value == NULL
           && limit->cost.value == NULL
           && limit->rate.value == NULL
           && limit->rules.elastic == NULL
           && (!(rmcf->stages & NGX_HTTP_RATELIMIT_AFTER_AUTH)
               || !ngx_http_ratelimit_expr_is_defined(cf, &limit->key));
}


static ngx_int_t
ngx_http_ratelimit_resolve_each(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_resolve_pt resolve)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_limit_t  *limits;

    limits = set->limits.elts;

    for (i = 0; i < set->limits.nelts; i++) {
        cf->conf_file = &limits[i].origin;

        if (resolve(cf, set, &limits[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static void
ngx_http_ratelimit_sort_limits(ngx_http_ratelimit_set_t *set)
{
    ngx_uint_t                   i, sorted;
    ngx_http_ratelimit_limit_t  *limits;

    limits = set->limits.elts;
    sorted = 0;

    ngx_sort(limits, set->limits.nelts, sizeof(ngx_http_ratelimit_limit_t),
             ngx_http_ratelimit_compare_limits);

    for (i = 0; i < set->limits.nelts; i++) {
        sorted |= (limits[i].order != i);
    }

    for (i = 0; i < set->limits.nelts; i++) {
        limits[i].sorted = sorted;
    }
}


/*
 * Limits of one store follow one another: those in shared memory first, as
 * they are decided before others; then, of one store, those that fail alike;
 * and of these, if keys are in different parts of it, those that have one key.
 */

static ngx_int_t
ngx_http_ratelimit_compare_limits(const void *one, const void *two)
{
    const ngx_http_ratelimit_limit_t  *a = one;
    const ngx_http_ratelimit_limit_t  *b = two;

    uintptr_t  left, right;

    left = a->use.zone->rank;
    right = b->use.zone->rank;

    if (left != right) {
        return left > right ? 1 : -1;
    }

    if (left == 0 || a->use.zone->fail != b->use.zone->fail) {
        return left ? (ngx_int_t) a->use.zone->fail
                      - (ngx_int_t) b->use.zone->fail
                    : 0;
    }

    return a->use.zone->parted ? ngx_http_ratelimit_compare_keys(a, b) : 0;
}


/* as they are configured; those of rules in files are others each */

static ngx_int_t
ngx_http_ratelimit_compare_keys(const ngx_http_ratelimit_limit_t *a,
    const ngx_http_ratelimit_limit_t *b)
{
    const ngx_str_t  *left, *right;

    if (a->domain != NULL || b->domain != NULL) {
        return (a->order > b->order) - (a->order < b->order);
    }

    left = a->key.value ? &a->key.value->value : &a->use.zone->key.value;
    right = b->key.value ? &b->key.value->value : &b->use.zone->key.value;

    return ngx_memn2cmp(left->data, right->data, left->len, right->len);
}


static ngx_int_t
ngx_http_ratelimit_resolve_limit(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    if (limit->domain == NULL
        && ngx_http_ratelimit_resolve_own(cf, set, limit) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (limit->statuses != NULL) {
        limit->use.reserved = 1;
        rmcf->statuses = 1;
    }

    if (limit->settle.value != NULL) {
        limit->known = ngx_http_ratelimit_find_known(
                                                &limit->settle.value->value,
                                                limit->statuses != NULL);
        limit->use.settles = 1;
        rmcf->settles = 1;
    }

    if (limit->elastic && rmcf->elastic == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "parameter \"elastic\" in \"ratelimit\" directive "
                           "needs \"ratelimit_elastic\"");
        return NGX_ERROR;
    }

    limit->use.refusals_hold = ngx_http_ratelimit_find_refusals_hold(rmcf, set,
                                                                     limit);

    if (limit->domain != NULL) {
        limit->match = set->nmatches++;
        return NGX_OK;
    }

    return ngx_http_ratelimit_store_use(cf, &limit->use);
}


/* what a limit has that is not in a rule file */

static ngx_int_t
ngx_http_ratelimit_resolve_own(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit)
{
    /* the default name, which keeps counters apart, is not shown */

    if (ngx_http_ratelimit_make_quoted_name(cf->pool,
                                            limit->use.name.len
                                            ? &limit->use.name
                                            : &limit->use.zone->name,
                                            &limit->rules.quoted_name)
        != NGX_OK
        || ngx_http_ratelimit_make_label(cf->pool, &limit->use) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_resolve_name(set, limit);

    if (ngx_http_ratelimit_check_duplicate(cf, set, limit) != NGX_OK) {
        return NGX_ERROR;
    }

    if (limit->key.value == NULL) {
        ngx_http_ratelimit_expr_init(cf, &limit->key, &limit->use.zone->key);
    }

    limit->use.limit = limit;
    limit->use.key = ngx_http_ratelimit_resolve_key(&limit->key.value->value);

    if (ngx_http_ratelimit_resolve_delay(cf, limit) != NGX_OK
        || ngx_http_ratelimit_resolve_rates(cf, limit) != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* "delay" of requests, as "nodelay" is, is about those of the burst */

    if (limit->free && limit->burst == 0) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "parameter \"%s\" in \"ratelimit\" directive has no "
                           "effect without \"burst\"",
                           limit->free == RATELIMIT_NODELAY ? "nodelay"
                                                            : "delay");
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_resolve_zone(ngx_conf_t *cf, ngx_http_ratelimit_set_t *set,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_http_ratelimit_zone_t       *zone;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    limit->order = limit - (ngx_http_ratelimit_limit_t *) set->limits.elts;

    if (limit->domain_name.len) {
        return ngx_http_ratelimit_resolve_domain(cf, limit);
    }

    zone = ngx_http_ratelimit_find_zone(rmcf, &limit->zone);

    if (zone == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown zone \"%V\" in \"ratelimit\" directive",
                           &limit->zone);
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_has_rules(zone)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" in \"ratelimit\" directive has the "
                           "limits of rule files, which are used by "
                           "\"rules=DOMAIN descriptor=KEY:VALUE,...\"",
                           &limit->zone);
        return NGX_ERROR;
    }

    if ((limit->burst || limit->free == RATELIMIT_NODELAY)
        && ngx_http_ratelimit_check_algorithm(cf, zone, "ratelimit",
                                              limit->burst ? "burst"
                                                           : "nodelay",
                                              RATELIMIT_TAKES_BURST)
           != NGX_OK)
    {
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


/* what the bytes of keys are */

static ngx_http_ratelimit_key_e
ngx_http_ratelimit_resolve_key(ngx_str_t *text)
{
    ngx_uint_t  i;

    static const struct {
        ngx_str_t                 text;
        ngx_http_ratelimit_key_e  key;
    } keys[] = {
        { ngx_string("$ratelimit_client"), NGX_HTTP_RATELIMIT_KEY_CLIENT },
        { ngx_string("${ratelimit_client}"), NGX_HTTP_RATELIMIT_KEY_CLIENT },
        { ngx_string("$binary_remote_addr"), NGX_HTTP_RATELIMIT_KEY_ADDRESS },
        { ngx_string("${binary_remote_addr}"), NGX_HTTP_RATELIMIT_KEY_ADDRESS }
    };

    for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (ngx_http_ratelimit_is_same(&keys[i].text, text)) {
            return keys[i].key;
        }
    }

    return NGX_HTTP_RATELIMIT_KEY_TEXT;
}


/* a limit with its own key or rates has its own counters in the zone */

static void
ngx_http_ratelimit_resolve_name(ngx_http_ratelimit_set_t *set,
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


/* a decision must not charge the same counter twice */

static ngx_int_t
ngx_http_ratelimit_check_duplicate(ngx_conf_t *cf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit)
{
    ngx_http_ratelimit_limit_t  *other;

    for (other = set->limits.elts; other < limit; other++) {

        if (other->domain != NULL || other->use.zone != limit->use.zone
            || !ngx_http_ratelimit_is_same(&other->use.name, &limit->use.name))
        {
            continue;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate zone \"%V\" in \"ratelimit\" directive: "
                           "it needs a \"name\" to count separately",
                           &limit->zone);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* delay= is a number of requests or a time, as the algorithm takes it */

static ngx_int_t
ngx_http_ratelimit_resolve_delay(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_int_t                   msec;
    const char                 *reason;
    ngx_http_ratelimit_zone_t  *zone;

    if (limit->delay.len == 0) {
        return NGX_OK;
    }

    zone = limit->use.zone;

    if (ngx_http_ratelimit_check_algorithm(cf, zone, "ratelimit", "delay",
                                           RATELIMIT_TAKES_BURST
                                           |RATELIMIT_TAKES_WAIT)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_traits(zone)->takes & RATELIMIT_TAKES_BURST) {

        if (ngx_http_ratelimit_parse_number(&limit->delay, 1,
                                            RATELIMIT_MAX_LIMIT - 1,
                                            &limit->free)
            == NGX_OK)
        {
            return NGX_OK;
        }

        reason = "must be a number from 1 to 4294967294";

    } else {
        msec = ngx_parse_time(&limit->delay, 0);

        if (msec > 0 && msec <= NGX_HTTP_RATELIMIT_MAX_DELAY) {
            limit->wait = (uint64_t) msec * 1000;
            return NGX_OK;
        }

        reason = "must be a time from 1ms to 1d";
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"delay=%V\" in \"ratelimit\" "
                       "directive: %s", &limit->delay, reason);

    return NGX_ERROR;
}


/*
 * A refusal by a store that has parts may rest on what another decision has
 * charged and will refund, because another part refuses it.
 */

static ngx_http_ratelimit_hold_e
ngx_http_ratelimit_find_refusals_hold(ngx_http_ratelimit_main_conf_t *rmcf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_limit_t  *other;

    other = set->limits.elts;

    for (i = 0; limit->use.zone->parted && i < set->limits.nelts; i++, other++)
    {
        if (other->use.zone->parted && other->stage == limit->stage
            && ngx_http_ratelimit_compare_keys(limit, other) != 0)
        {
            return NGX_HTTP_RATELIMIT_HOLD_NOT;
        }
    }

    return ngx_http_ratelimit_may_refund(rmcf, set, limit)
           ? NGX_HTTP_RATELIMIT_HOLD_BRIEFLY : NGX_HTTP_RATELIMIT_HOLD;
}


/*
 * Whether a charge may be refunded: because of the response, of a request that
 * leaves the queue for a token, or of a limit of another store that refuses.  A
 * rate that varies may fill the bucket faster, which has the same effect.  A
 * redirect may lead to the other stage of any other set, even to that before
 * authentication.
 */

static ngx_uint_t
ngx_http_ratelimit_may_refund(ngx_http_ratelimit_main_conf_t *rmcf,
    ngx_http_ratelimit_set_t *set, ngx_http_ratelimit_limit_t *limit)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_limit_t  *other;

    if (limit->statuses != NULL || limit->settle.value != NULL
        || rmcf->stages != limit->stage)
    {
        return 1;
    }

    if (limit->rate.value != NULL
        && ngx_http_ratelimit_traits(limit->use.zone)->drips)
    {
        return 1;
    }

    other = set->limits.elts;

    for (i = 0; i < set->limits.nelts; i++, other++) {

        if (other->delay.len
            && (ngx_http_ratelimit_traits(other->use.zone)->takes
                & RATELIMIT_TAKES_WAIT))
        {
            return 1;
        }

        if (other->use.zone->rank
            && other->use.zone->rank != limit->use.zone->rank)
        {
            return 1;
        }
    }

    return 0;
}


/* of a text that has no variables but fields of the upstream's response */

static ngx_http_ratelimit_known_e
ngx_http_ratelimit_find_known(ngx_str_t *text, ngx_uint_t by_status)
{
    u_char                      *p, *last;
    ngx_http_ratelimit_known_e   known;

    last = text->data + text->len;
    known = by_status ? NGX_HTTP_RATELIMIT_KNOWN_STATUS
                      : NGX_HTTP_RATELIMIT_KNOWN_HEADER;

    for (p = text->data; p < last; p++) {

        if (*p != '$') {
            continue;
        }

        p += (last - p > 1 && p[1] == '{') ? 2 : 1;

        if ((size_t) (last - p) >= sizeof("upstream_trailer_") - 1
            && ngx_strncmp(p, "upstream_trailer_",
                           sizeof("upstream_trailer_") - 1)
               == 0)
        {
            known = NGX_HTTP_RATELIMIT_KNOWN_TRAILER;

        } else if ((size_t) (last - p) < sizeof("upstream_http_") - 1
                   || ngx_strncmp(p, "upstream_http_",
                                  sizeof("upstream_http_") - 1)
                      != 0)
        {
            return NGX_HTTP_RATELIMIT_KNOWN_SENT;
        }
    }

    return known;
}
