
/*
 * ratelimit_elastic [cpu=P%] [connections=P%] [zone=NAME:P%]...;
 *
 * A zone may be declared further down, so what depends on it is resolved when
 * http {} has been read.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static const char *ngx_http_ratelimit_elastic_zone(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static ngx_int_t ngx_http_ratelimit_resolve_budget(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf,
    ngx_http_ratelimit_elastic_budget_t *budget);
static const char *ngx_http_ratelimit_make_budget(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_http_ratelimit_use_t *use);


static ngx_http_ratelimit_param_t  ngx_http_ratelimit_elastic_params[] = {

    { ngx_string("cpu="), ngx_http_ratelimit_param_percent,
      offsetof(ngx_http_ratelimit_elastic_t, cpu), 1, 100, 0, NULL },

    { ngx_string("connections="), ngx_http_ratelimit_param_percent,
      offsetof(ngx_http_ratelimit_elastic_t, connections), 1, 100, 0, NULL },

    { ngx_string("zone="), ngx_http_ratelimit_elastic_zone,
      offsetof(ngx_http_ratelimit_elastic_t, budgets), 1, 100, 1, NULL },

      ngx_http_ratelimit_null_param
};


char *
ngx_http_ratelimit_set_elastic(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_main_conf_t  *rmcf = conf;

    ngx_http_ratelimit_elastic_t  *elastic;

    if (rmcf->elastic != NULL) {
        return "is duplicate";
    }

    elastic = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_elastic_t));
    if (elastic == NULL) {
        return NGX_CONF_ERROR;
    }

    if (ngx_array_init(&elastic->budgets, cf->pool, 1,
                       sizeof(ngx_http_ratelimit_elastic_budget_t))
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_ratelimit_params(cf, 1, ngx_http_ratelimit_elastic_params,
                                  elastic)
        != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_ratelimit_elastic_declare(cf, elastic,
                                           &ngx_http_ratelimit_module)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    elastic->origin = *cf->conf_file;
    rmcf->elastic = elastic;

    return NGX_CONF_OK;
}


/* NAME:PERCENTAGE */

static const char *
ngx_http_ratelimit_elastic_zone(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_array_t  *budgets = field;

    ngx_str_t                             name, percent;
    ngx_uint_t                            i;
    ngx_http_ratelimit_elastic_budget_t  *budget;

    if (ngx_http_ratelimit_parse_pair(value, &name, &percent) != NGX_OK
        || name.len == 0)
    {
        return "must be \"zone=NAME:PERCENTAGE\"";
    }

    budget = budgets->elts;

    for (i = 0; i < budgets->nelts; i++) {
        if (ngx_http_ratelimit_is_same(&budget[i].name, &name)) {
            return "is duplicate";
        }
    }

    budget = ngx_array_push(budgets);
    if (budget == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(budget, sizeof(ngx_http_ratelimit_elastic_budget_t));

    budget->name = name;

    return ngx_http_ratelimit_param_percent(cf, param, &percent,
                                            &budget->mark);
}


ngx_int_t
ngx_http_ratelimit_resolve_elastic(ngx_conf_t *cf)
{
    ngx_uint_t                            i;
    ngx_http_ratelimit_main_conf_t       *rmcf;
    ngx_http_ratelimit_elastic_budget_t  *budgets;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    if (rmcf->elastic == NULL) {
        return NGX_OK;
    }

    cf->conf_file = &rmcf->elastic->origin;
    budgets = rmcf->elastic->budgets.elts;

    for (i = 0; i < rmcf->elastic->budgets.nelts; i++) {
        if (ngx_http_ratelimit_resolve_budget(cf, rmcf, &budgets[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* a budget looks at the counters that limits without a name use */

static ngx_int_t
ngx_http_ratelimit_resolve_budget(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf,
    ngx_http_ratelimit_elastic_budget_t *budget)
{
    const char                 *reason;
    ngx_http_ratelimit_zone_t  *zone;

    zone = ngx_http_ratelimit_find_zone(rmcf, &budget->name);

    if (zone == NULL) {
        reason = "the zone is not declared";

    } else if (zone->rates.nelts == 0) {
        reason = "the zone has no rate without variables";

    } else if (ngx_http_ratelimit_traits(zone)->takes & RATELIMIT_TAKES_BURST) {
        reason = ngx_http_ratelimit_reason(cf,
                                     "algorithm \"%s\" has no budget",
                                     ngx_http_ratelimit_traits(zone)->name);

    } else {
        reason = ngx_http_ratelimit_make_budget(cf, zone, &budget->use);
    }

    if (reason == NULL) {
        budget->use.budget = 1;
        return ngx_http_ratelimit_store_use(cf, &budget->use);
    }

    if (reason != NGX_CONF_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone \"%V\" in \"ratelimit_elastic\" "
                           "directive: %s", &budget->name, reason);
    }

    return NGX_ERROR;
}


static const char *
ngx_http_ratelimit_make_budget(ngx_conf_t *cf, ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_use_t *use)
{
    ngx_uint_t                   i;
    const char                  *reason;
    ratelimit_rate_t            *rates;
    ngx_http_ratelimit_limit_t   limit;

    use->rules = ngx_palloc(cf->pool,
                            zone->rates.nelts * sizeof(ratelimit_rule_t));
    if (use->rules == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_str_set(&use->name, "");
    use->zone = zone;
    use->nrules = zone->rates.nelts;
    use->refusals_hold = NGX_HTTP_RATELIMIT_HOLD;

    /* of a zone in Redis, what this machine has admitted */

    zone->mirror = 1;

    ngx_memzero(&limit, sizeof(ngx_http_ratelimit_limit_t));

    limit.use = *use;
    rates = zone->rates.elts;

    for (i = 0; i < use->nrules; i++) {
        reason = ngx_http_ratelimit_make_rule(&limit, &rates[i],
                                              &use->rules[i]);
        if (reason != NULL) {
            return reason;
        }
    }

    return NULL;
}
