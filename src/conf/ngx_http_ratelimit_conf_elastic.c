
/*
 * ratelimit_elastic [cpu=P%] [connections=P%] [zone=NAME:P%]...;
 *
 * A zone may be declared further down, so what depends on it waits until the
 * whole configuration has been read.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static const char *ngx_http_ratelimit_elastic_zone(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static ngx_int_t ngx_http_ratelimit_elastic_bind_budget(ngx_conf_t *cf,
    ngx_http_ratelimit_elastic_budget_t *budget);
static const char *ngx_http_ratelimit_elastic_check_zone(
    ngx_http_ratelimit_zone_t *zone);


static ngx_http_ratelimit_param_t  ngx_http_ratelimit_elastic_params[] = {

    { ngx_string("cpu="),
      ngx_http_ratelimit_param_percent,
      offsetof(ngx_http_ratelimit_elastic_t, cpu),
      1, 100, 0 },

    { ngx_string("connections="),
      ngx_http_ratelimit_param_percent,
      offsetof(ngx_http_ratelimit_elastic_t, connections),
      1, 100, 0 },

    { ngx_string("zone="),
      ngx_http_ratelimit_elastic_zone,
      offsetof(ngx_http_ratelimit_elastic_t, budgets),
      1, 100, 1 },

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


static const char *
ngx_http_ratelimit_elastic_zone(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_array_t  *budgets = field;

    u_char                               *colon;
    ngx_str_t                             name, percent;
    ngx_uint_t                            i;
    ngx_http_ratelimit_param_t            mark;
    ngx_http_ratelimit_elastic_budget_t  *budget;

    colon = ngx_strlchr(value->data, value->data + value->len, ':');

    if (colon == NULL || colon == value->data) {
        return "must be \"zone=NAME:PERCENTAGE\"";
    }

    name.data = value->data;
    name.len = colon - value->data;

    percent.data = colon + 1;
    percent.len = value->len - name.len - 1;

    budget = budgets->elts;

    for (i = 0; i < budgets->nelts; i++) {
        if (budget[i].name.len == name.len
            && ngx_strncmp(budget[i].name.data, name.data, name.len) == 0)
        {
            return "is duplicate";
        }
    }

    budget = ngx_array_push(budgets);
    if (budget == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(budget, sizeof(ngx_http_ratelimit_elastic_budget_t));

    budget->name = name;

    /* "zone=NAME:" */

    mark = *param;
    mark.name.data = value->data - param->name.len;
    mark.name.len = percent.data - mark.name.data;

    return ngx_http_ratelimit_param_percent(cf, &mark, &percent,
                                            &budget->mark);
}


ngx_int_t
ngx_http_ratelimit_elastic_bind(ngx_conf_t *cf)
{
    ngx_int_t                             rc;
    ngx_uint_t                            i;
    ngx_conf_file_t                      *saved;
    ngx_http_ratelimit_main_conf_t       *rmcf;
    ngx_http_ratelimit_elastic_budget_t  *budgets;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    if (rmcf->elastic == NULL) {
        return NGX_OK;
    }

    budgets = rmcf->elastic->budgets.elts;
    saved = cf->conf_file;

    for (i = 0; i < rmcf->elastic->budgets.nelts; i++) {

        /* what is wrong is reported where it is written */

        cf->conf_file = &rmcf->elastic->origin;
        rc = ngx_http_ratelimit_elastic_bind_budget(cf, &budgets[i]);
        cf->conf_file = saved;

        if (rc != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* looks at the counters of those who use the zone as it is */

static ngx_int_t
ngx_http_ratelimit_elastic_bind_budget(ngx_conf_t *cf,
    ngx_http_ratelimit_elastic_budget_t *budget)
{
    ngx_uint_t                       i;
    const char                      *reason;
    ratelimit_rate_t                *rates;
    ratelimit_rule_t                *rules;
    ngx_http_ratelimit_zone_t       *zone;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    zone = ngx_http_ratelimit_find_zone(rmcf, &budget->name);

    reason = ngx_http_ratelimit_elastic_check_zone(zone);
    if (reason != NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone \"%V\" in \"ratelimit_elastic\" "
                           "directive: %s", &budget->name, reason);
        return NGX_ERROR;
    }

    rates = zone->rates.elts;

    rules = ngx_pcalloc(cf->pool,
                        zone->rates.nelts * sizeof(ratelimit_rule_t));
    if (rules == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < zone->rates.nelts; i++) {
        rules[i].limit = rates[i].limit;
        rules[i].period = rates[i].period;
        rules[i].capacity = zone->capacity ? zone->capacity : rates[i].limit;
        rules[i].ceiling = rules[i].capacity;

        ratelimit_shape_fit(&zone->shape, rules[i].ceiling);
    }

    /* a zone in Redis is looked at as far as this machine knows it */

    zone->mirror = (zone->redis != NULL);

    ngx_str_set(&budget->use.name, "");
    budget->use.zone = zone;
    budget->use.rules = rules;
    budget->use.nrules = zone->rates.nelts;
    budget->use.lasting = 1;

    return ngx_http_ratelimit_store_use(cf, &budget->use);
}


/* NULL, or the reason why no share of the zone's limits can be told */

static const char *
ngx_http_ratelimit_elastic_check_zone(ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t         i;
    ratelimit_rate_t  *rates;

    if (zone == NULL) {
        return "there is no such zone";
    }

    if (zone->rates.nelts == 0) {
        return "the zone has no fixed rate";
    }

    if (zone->shape.algorithm == RATELIMIT_LEAKY_BUCKET) {
        return "a leaky_bucket has a pace, but no budget";
    }

    rates = zone->rates.elts;

    for (i = 0; i < zone->rates.nelts; i++) {
        if (zone->capacity > (RATELIMIT_MAX_PRODUCT - 1) / rates[i].period) {
            return "capacity times period is too large";
        }
    }

    return NULL;
}
