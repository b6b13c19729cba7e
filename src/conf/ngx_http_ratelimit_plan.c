
/*
 * Rates become rules: once for a limit whose rates are written in the
 * configuration, once for each value where they come from a variable.
 */


#include "conf/ngx_http_ratelimit_conf.h"


/* values that a worker remembers for a limit; further ones are parsed anew */
#define NGX_HTTP_RATELIMIT_MAX_PLANS    1024

#define NGX_HTTP_RATELIMIT_LOGGED_PLAN  64    /* bytes of a bad one */


static const char *ngx_http_ratelimit_make_rule(
    ngx_http_ratelimit_limit_t *limit, ratelimit_rate_t *rate,
    ratelimit_rule_t *rule);
static ngx_http_ratelimit_plan_t *ngx_http_ratelimit_new_plan(
    ngx_http_request_t *r, ngx_http_ratelimit_limit_t *limit, ngx_str_t *text,
    uint32_t hash);
static ngx_int_t ngx_http_ratelimit_parse_plan(ngx_pool_t *pool,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_plan_t *plan);
static const char *ngx_http_ratelimit_parse_rates(ngx_str_t *text,
    ratelimit_rate_t *rates, ngx_uint_t *n);
static void ngx_http_ratelimit_log_plan(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_plan_t *plan);


/* rules and, if the limit is elastic, their elastic twins are allocated */

const char *
ngx_http_ratelimit_make_rules(ngx_http_ratelimit_limit_t *limit,
    ratelimit_rate_t *rates, ngx_http_ratelimit_plan_t *plan)
{
    uint64_t           more;
    ngx_uint_t         i;
    const char        *reason;
    ratelimit_rule_t  *rule;

    for (i = 0; i < plan->nrules; i++) {
        rule = &plan->rules[i];

        reason = ngx_http_ratelimit_make_rule(limit, &rates[i], rule);
        if (reason != NULL) {
            return reason;
        }

        if (plan->elastic == NULL) {
            continue;
        }

        more = rule->capacity * (100 + limit->elastic) / 100;

        plan->elastic[i] = *rule;
        plan->elastic[i].ceiling = ngx_max(more, rule->ceiling);
    }

    return NULL;
}


static const char *
ngx_http_ratelimit_make_rule(ngx_http_ratelimit_limit_t *limit,
    ratelimit_rate_t *rate, ratelimit_rule_t *rule)
{
    uint64_t                    most, waiting;
    ngx_http_ratelimit_zone_t  *zone;

    zone = limit->use.zone;

    ngx_memzero(rule, sizeof(ratelimit_rule_t));

    rule->limit = rate->limit;
    rule->period = rate->period;
    rule->capacity = rate->limit;
    rule->wait = limit->wait;

    if (zone->shape.algorithm == RATELIMIT_LEAKY_BUCKET) {
        rule->capacity = limit->burst + 1;
        rule->free = limit->free;

    } else if (zone->capacity) {
        rule->capacity = zone->capacity;
    }

    rule->ceiling = rule->capacity * (100 + limit->soft) / 100;

    /* the largest number that this rule will ever count */

    most = rule->capacity * (100 + ngx_max(limit->soft, limit->elastic)) / 100;
    waiting = (rule->wait + rule->period - 1) / rule->period;

    if (most > RATELIMIT_MAX_LIMIT
        || waiting > RATELIMIT_MAX_LIMIT / rule->limit
        || ngx_max(most, rule->limit) + waiting * rule->limit
           > (RATELIMIT_MAX_PRODUCT - 1) / rule->period)
    {
        return "requests times period is too large";
    }

    if (limit->use.bound && most > limit->use.bound->ceiling) {
        return "is more than the logs of the zone have room for";
    }

    return NULL;
}


ngx_http_ratelimit_plan_t *
ngx_http_ratelimit_get_plan(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *text)
{
    uint32_t                    hash;
    ngx_str_node_t             *node;
    ngx_http_ratelimit_plan_t  *plan;

    hash = ngx_crc32_short(text->data, text->len);

    node = ngx_str_rbtree_lookup(&limit->plans, text, hash);

    if (node != NULL) {
        plan = (ngx_http_ratelimit_plan_t *) node;

    } else {
        plan = ngx_http_ratelimit_new_plan(r, limit, text, hash);
        if (plan == NULL) {
            return NULL;
        }
    }

    if (plan->reason != NULL
        && ngx_http_ratelimit_store_tell(limit->use.zone, hash))
    {
        ngx_http_ratelimit_log_plan(r, limit, plan);
    }

    return plan;
}


static ngx_http_ratelimit_plan_t *
ngx_http_ratelimit_new_plan(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *text, uint32_t hash)
{
    ngx_pool_t                 *pool;
    ngx_http_ratelimit_plan_t  *plan;

    pool = limit->nplans < NGX_HTTP_RATELIMIT_MAX_PLANS ? ngx_cycle->pool
                                                        : r->pool;

    plan = ngx_pcalloc(pool, sizeof(ngx_http_ratelimit_plan_t) + text->len);
    if (plan == NULL) {
        return NULL;
    }

    plan->limit = limit;
    plan->node.node.key = hash;
    plan->node.str.len = text->len;
    plan->node.str.data = (u_char *) plan + sizeof(ngx_http_ratelimit_plan_t);

    ngx_memcpy(plan->node.str.data, text->data, text->len);

    if (ngx_http_ratelimit_parse_plan(pool, limit, plan) != NGX_OK) {
        return NULL;
    }

    if (pool != r->pool) {
        ngx_rbtree_insert(&limit->plans, &plan->node.node);
        limit->nplans++;
    }

    return plan;
}


static ngx_int_t
ngx_http_ratelimit_parse_plan(ngx_pool_t *pool,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_plan_t *plan)
{
    ngx_uint_t        i, n;
    ratelimit_rate_t  rates[NGX_HTTP_RATELIMIT_MAX_RATES];

    plan->reason = ngx_http_ratelimit_parse_rates(&plan->node.str, rates, &n);

    if (plan->reason != NULL) {
        return NGX_OK;
    }

    plan->rules = ngx_palloc(pool, 2 * n * sizeof(ratelimit_rule_t));
    if (plan->rules == NULL) {
        return NGX_ERROR;
    }

    plan->nrules = n;
    plan->elastic = limit->elastic ? plan->rules + n : NULL;

    plan->reason = ngx_http_ratelimit_make_rules(limit, rates, plan);

    if (plan->reason != NULL) {
        return NGX_OK;
    }

    for (i = 0; i < n; i++) {
        ngx_http_ratelimit_store_rule(&limit->use, &plan->rules[i]);

        if (plan->elastic != NULL) {
            plan->elastic[i].class = plan->rules[i].class;
        }
    }

    return ngx_http_ratelimit_make_policy(pool, limit, plan);
}


static const char *
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
        while (p < last && *p == ' ') {
            p++;
        }

        if (p == last) {
            return *n ? NULL : "no rate is there";
        }

        for (word = p; p < last && *p != ' '; p++) { /* void */ }

        if (*n == NGX_HTTP_RATELIMIT_MAX_RATES) {
            return "there are too many rates";
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
ngx_http_ratelimit_log_plan(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_plan_t *plan)
{
    size_t  len;
    u_char  text[NGX_HTTP_RATELIMIT_LOGGED_PLAN];

    len = ngx_http_ratelimit_printable(text, NGX_HTTP_RATELIMIT_LOGGED_PLAN,
                                       &plan->node.str);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "rate \"%V\" of zone \"%V\" is invalid: \"%*s\": %s",
                  &limit->rate.value->value, &limit->use.zone->name,
                  len, text, plan->reason);
}


/* for the log: a client may have chosen it */

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
