
/*
 * The rates of a limit, as far as the configuration knows them.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static ngx_int_t ngx_http_ratelimit_bind_plan(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit, ngx_array_t *rates);
static ngx_int_t ngx_http_ratelimit_bind_variable(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit, ngx_http_complex_value_t *rate);


/* the limit's own rates, or those of its zone */

ngx_int_t
ngx_http_ratelimit_bind_rates(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_array_t                *rates;
    ngx_http_ratelimit_zone_t  *zone;

    zone = limit->use.zone;

    if (limit->rates.variable != NULL) {
        return ngx_http_ratelimit_bind_variable(cf, limit,
                                                limit->rates.variable);
    }

    rates = limit->rates.list.nelts ? &limit->rates.list : &zone->rates;

    if (rates->nelts == 0) {
        return ngx_http_ratelimit_bind_variable(cf, limit, zone->rate);
    }

    return ngx_http_ratelimit_bind_plan(cf, limit, rates);
}


static ngx_int_t
ngx_http_ratelimit_bind_plan(ngx_conf_t *cf, ngx_http_ratelimit_limit_t *limit,
    ngx_array_t *rates)
{
    const char                 *reason;
    ngx_http_ratelimit_plan_t  *plan;

    plan = &limit->plan;

    plan->limit = limit;
    plan->nrules = rates->nelts;
    plan->rules = ngx_pcalloc(cf->pool,
                              2 * rates->nelts * sizeof(ratelimit_rule_t));
    if (plan->rules == NULL) {
        return NGX_ERROR;
    }

    limit->use.rules = plan->rules;
    limit->use.nrules = rates->nelts;

    if (limit->elastic) {
        plan->elastic = plan->rules + rates->nelts;
        limit->use.nrules *= 2;
    }

    reason = ngx_http_ratelimit_make_rules(limit, rates->elts, plan);

    if (reason != NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "limit of zone \"%V\" in \"ratelimit\" directive "
                           "is too large: %s", &limit->zone, reason);
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_make_policy(cf->pool, limit, plan);
}


/*
 * Nobody knows yet how much will be allowed, so counters are made for any
 * number.  A log can't be: the largest rate that is written down for its zone
 * says how long it may become.
 */

static ngx_int_t
ngx_http_ratelimit_bind_variable(ngx_conf_t *cf,
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

    if (zone->shape.algorithm == RATELIMIT_SLIDING_LOG) {
        bound->ceiling = 0;
        rates = zone->rates.elts;

        for (i = 0; i < zone->rates.nelts; i++) {
            bound->ceiling = ngx_max(bound->ceiling, rates[i].limit);
        }

        if (bound->ceiling == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"rate=%V\" in "
                               "\"ratelimit\" directive: zone \"%V\" with "
                               "algorithm \"sliding_log\" needs a rate "
                               "without variables that none exceeds",
                               &rate->value, &zone->name);
            return NGX_ERROR;
        }
    }

    limit->use.bound = bound;

    ngx_http_ratelimit_expr_init(cf, &limit->rate, rate);
    ngx_rbtree_init(&limit->plans, &limit->sentinel,
                    ngx_str_rbtree_insert_value);

    return NGX_OK;
}
