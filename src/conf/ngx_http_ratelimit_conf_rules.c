
/*
 * Rates become rules: when the configuration is read, or, if the rate has
 * variables, for each of its values.
 */


#include "conf/ngx_http_ratelimit_conf.h"


/* values that a worker caches for a limit, others are parsed each time */
#define NGX_HTTP_RATELIMIT_MAX_CACHED   1024

#define NGX_HTTP_RATELIMIT_LOGGED_RATE  64    /* bytes */

/* as between the words of nginx.conf: a quoted value may have several lines */
#define ngx_http_ratelimit_is_space(ch)                                       \
    ((ch) == ' ' || (ch) == '\t' || (ch) == CR || (ch) == LF)


static ngx_int_t ngx_http_ratelimit_resolve_fixed(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit, ngx_array_t *rates);
static ngx_int_t ngx_http_ratelimit_resolve_variable(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit, ngx_http_complex_value_t *rate);
static const char *ngx_http_ratelimit_make_rules(
    ngx_http_ratelimit_limit_t *limit, ratelimit_rate_t *rates,
    ngx_http_ratelimit_rules_t *rules);
static ngx_http_ratelimit_rules_t *ngx_http_ratelimit_create_rules(
    ngx_http_request_t *r, ngx_http_ratelimit_limit_t *limit, ngx_str_t *text,
    uint32_t hash);
static ngx_int_t ngx_http_ratelimit_parse_rules(ngx_pool_t *pool,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rules_t *rules);
static void ngx_http_ratelimit_log_rate(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rules_t *rules);


/* the limit's own rates, or those of its zone */

ngx_int_t
ngx_http_ratelimit_resolve_rates(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_array_t                *rates;
    ngx_http_ratelimit_zone_t  *zone;

    zone = limit->use.zone;

    if (limit->rates.variable != NULL) {
        return ngx_http_ratelimit_resolve_variable(cf, limit,
                                                   limit->rates.variable);
    }

    rates = limit->rates.list.nelts ? &limit->rates.list : &zone->rates;

    if (rates->nelts == 0) {
        return ngx_http_ratelimit_resolve_variable(cf, limit, zone->rate);
    }

    return ngx_http_ratelimit_resolve_fixed(cf, limit, rates);
}


static ngx_int_t
ngx_http_ratelimit_resolve_fixed(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit, ngx_array_t *rates)
{
    const char                  *reason;
    ngx_http_ratelimit_rules_t  *rules;

    rules = &limit->rules;

    rules->limit = limit;
    rules->nrules = rates->nelts;
    rules->rules = ngx_pcalloc(cf->pool,
                               2 * rates->nelts * sizeof(ratelimit_rule_t));
    if (rules->rules == NULL) {
        return NGX_ERROR;
    }

    limit->use.rules = rules->rules;
    limit->use.nrules = rates->nelts;

    if (limit->elastic) {
        rules->elastic = rules->rules + rates->nelts;
        limit->use.nrules *= 2;
    }

    reason = ngx_http_ratelimit_make_rules(limit, rates->elts, rules);

    if (reason != NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "limit of zone \"%V\" in \"ratelimit\" directive "
                           "is too large: %s", &limit->zone, reason);
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_make_policy(cf->pool, rules);
}


/*
 * The limits are not known yet, so counters are made for any number.  States
 * that have room for each request can't be: the largest rate of the zone is
 * their bound.
 */

static ngx_int_t
ngx_http_ratelimit_resolve_variable(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit, ngx_http_complex_value_t *rate)
{
    ngx_uint_t                  i;
    ratelimit_rate_t           *rates;
    ratelimit_rule_t           *bound;
    ngx_http_ratelimit_zone_t  *zone;

    zone = limit->use.zone;

    bound = ngx_pcalloc(cf->pool, sizeof(ratelimit_rule_t));
    if (bound == NULL) {
        return NGX_ERROR;
    }

    bound->limit = RATELIMIT_MAX_LIMIT;
    bound->period = RATELIMIT_SECOND;
    bound->ceiling = RATELIMIT_MAX_LIMIT;

    if (ngx_http_ratelimit_traits(zone)->sized) {
        bound->ceiling = 0;
        rates = zone->rates.elts;

        for (i = 0; i < zone->rates.nelts; i++) {
            bound->ceiling = ngx_max(bound->ceiling, rates[i].limit);
        }

        if (bound->ceiling == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"rate=%V\" in "
                               "\"ratelimit\" directive: zone \"%V\" with "
                               "algorithm \"%s\" needs a rate without "
                               "variables as an upper bound",
                               &rate->value, &zone->name,
                               ngx_http_ratelimit_traits(zone)->name);
            return NGX_ERROR;
        }
    }

    limit->use.bound = bound;
    limit->use.variable = &rate->value;

    ngx_http_ratelimit_expr_init(cf, &limit->rate, rate);
    ngx_rbtree_init(&limit->cache, &limit->sentinel,
                    ngx_str_rbtree_insert_value);

    return NGX_OK;
}


/*
 * The caller has allocated the rules and, if the limit is elastic, the elastic
 * ones.  Returns NULL, or the reason why there can't be such rules.
 */

static const char *
ngx_http_ratelimit_make_rules(ngx_http_ratelimit_limit_t *limit,
    ratelimit_rate_t *rates, ngx_http_ratelimit_rules_t *rules)
{
    uint64_t           more;
    ngx_uint_t         i;
    const char        *reason;
    ratelimit_rule_t  *rule;

    for (i = 0; i < rules->nrules; i++) {
        rule = &rules->rules[i];

        reason = ngx_http_ratelimit_make_rule(limit, &rates[i], rule);
        if (reason != NULL) {
            return reason;
        }

        if (rules->elastic == NULL) {
            continue;
        }

        more = rule->capacity * (100 + limit->elastic) / 100;

        rules->elastic[i] = *rule;
        rules->elastic[i].ceiling = ngx_max(more, rule->ceiling);
    }

    return NULL;
}


const char *
ngx_http_ratelimit_make_rule(ngx_http_ratelimit_limit_t *limit,
    ratelimit_rate_t *rate, ratelimit_rule_t *rule)
{
    uint64_t                      most, waiting, product;
    ngx_http_ratelimit_zone_t    *zone;
    const ratelimit_algorithm_t  *algorithm;

    zone = limit->use.zone;
    algorithm = ngx_http_ratelimit_traits(zone);

    ngx_memzero(rule, sizeof(ratelimit_rule_t));

    rule->limit = rate->limit;
    rule->period = rate->period;
    rule->capacity = rate->limit;
    rule->wait = limit->wait;

    if (algorithm->takes & RATELIMIT_TAKES_BURST) {
        rule->capacity = limit->burst + 1;
        rule->free = limit->free;

    } else if (zone->capacity) {
        rule->capacity = zone->capacity;
    }

    rule->ceiling = rule->capacity * (100 + limit->soft) / 100;

    /* the largest number that this rule will ever count */

    most = rule->capacity * (100 + ngx_max(limit->soft, limit->elastic)) / 100;
    waiting = (rule->wait + rule->period - 1) / rule->period;

    /* of an aligned window, which is counted alone, there is no product */

    product = algorithm->aligned ? RATELIMIT_MAX_LIMIT
                                 : (RATELIMIT_MAX_PRODUCT - 1) / rule->period;

    if (most > RATELIMIT_MAX_LIMIT
        || waiting > RATELIMIT_MAX_LIMIT / rule->limit
        || ngx_max(most, rule->limit) + waiting * rule->limit > product)
    {
        return "requests times period is too large";
    }

    if (limit->use.bound && most > limit->use.bound->ceiling) {
        return "exceeds the largest fixed rate of the zone";
    }

    return NULL;
}


ngx_http_ratelimit_rules_t *
ngx_http_ratelimit_get_rules(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *text)
{
    uint32_t                     hash;
    ngx_str_node_t              *node;
    ngx_http_ratelimit_rules_t  *rules;

    hash = ngx_crc32_short(text->data, text->len);

    node = ngx_str_rbtree_lookup(&limit->cache, text, hash);

    if (node != NULL) {
        rules = (ngx_http_ratelimit_rules_t *) node;

    } else {
        rules = ngx_http_ratelimit_create_rules(r, limit, text, hash);
        if (rules == NULL) {
            return NULL;
        }
    }

    if (rules->reason != NULL
        && ngx_http_ratelimit_store_log_once(limit->use.zone, hash))
    {
        ngx_http_ratelimit_log_rate(r, limit, rules);
    }

    return rules;
}


static ngx_http_ratelimit_rules_t *
ngx_http_ratelimit_create_rules(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *text, uint32_t hash)
{
    ngx_pool_t                  *pool;
    ngx_http_ratelimit_rules_t  *rules;

    pool = limit->ncached < NGX_HTTP_RATELIMIT_MAX_CACHED ? ngx_cycle->pool
                                                        : r->pool;

    rules = ngx_pcalloc(pool, sizeof(ngx_http_ratelimit_rules_t) + text->len);
    if (rules == NULL) {
        return NULL;
    }

    rules->limit = limit;
    rules->quoted_name = limit->rules.quoted_name;
    rules->node.node.key = hash;
    rules->node.str.len = text->len;
    rules->node.str.data = (u_char *) &rules[1];

    ngx_memcpy(rules->node.str.data, text->data, text->len);

    if (ngx_http_ratelimit_parse_rules(pool, limit, rules) != NGX_OK) {
        return NULL;
    }

    if (pool != r->pool) {
        ngx_rbtree_insert(&limit->cache, &rules->node.node);
        limit->ncached++;
    }

    return rules;
}


static ngx_int_t
ngx_http_ratelimit_parse_rules(ngx_pool_t *pool,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rules_t *rules)
{
    ngx_uint_t        i, n;
    ratelimit_rate_t  rates[NGX_HTTP_RATELIMIT_MAX_RATES];

    rules->reason = ngx_http_ratelimit_parse_rates(&rules->node.str, rates,
                                                   &n);

    if (rules->reason != NULL) {
        return NGX_OK;
    }

    rules->rules = ngx_palloc(pool, 2 * n * sizeof(ratelimit_rule_t));
    if (rules->rules == NULL) {
        return NGX_ERROR;
    }

    rules->nrules = n;
    rules->elastic = limit->elastic ? rules->rules + n : NULL;

    rules->reason = ngx_http_ratelimit_make_rules(limit, rates, rules);

    if (rules->reason != NULL) {
        return NGX_OK;
    }

    for (i = 0; i < n; i++) {
        ngx_http_ratelimit_store_rule(&limit->use, &rules->rules[i]);
    }

    return ngx_http_ratelimit_make_policy(pool, rules);
}


const char *
ngx_http_ratelimit_parse_rates(ngx_str_t *text, ratelimit_rate_t *rates,
    ngx_uint_t *n)
{
    u_char      *p, *last, *word;
    ngx_uint_t   i;
    const char  *reason;

    *n = 0;
    p = text->data;
    last = p + text->len;

    for ( ;; ) {
        while (p < last && ngx_http_ratelimit_is_space(*p)) {
            p++;
        }

        if (p == last) {
            return *n ? NULL : "has no rate";
        }

        word = p;

        while (p < last && !ngx_http_ratelimit_is_space(*p)) {
            p++;
        }

        if (*n == NGX_HTTP_RATELIMIT_MAX_RATES) {
            return "has too many rates";
        }

        reason = ratelimit_parse_rate((char *) word, p - word, &rates[*n]);
        if (reason != NULL) {
            return reason;
        }

        for (i = 0; i < *n; i++) {
            if (rates[i].period == rates[*n].period) {
                return "two rates have the same period";
            }
        }

        (*n)++;
    }
}


static void
ngx_http_ratelimit_log_rate(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rules_t *rules)
{
    size_t  len;
    u_char  text[NGX_HTTP_RATELIMIT_LOGGED_RATE];

    len = ngx_http_ratelimit_printable(text, NGX_HTTP_RATELIMIT_LOGGED_RATE,
                                       &rules->node.str);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "rate \"%V\" of zone \"%V\" is invalid: \"%*s\": %s",
                  &limit->rate.value->value, &limit->use.zone->name,
                  len, text, rules->reason);
}


/* for the log: the client may have chosen the value */

size_t
ngx_http_ratelimit_printable(u_char *text, size_t size, ngx_str_t *value)
{
    size_t  i, len;

    len = ngx_min(value->len, size);

    for (i = 0; i < len; i++) {
        text[i] = value->data[i];

        if (text[i] < 0x20 || text[i] > 0x7e) {
            text[i] = '?';
        }
    }

    return len;
}
