
/*
 * Zones and their limits as JSON.
 */


#include "api/ngx_http_ratelimit_api.h"


static ngx_uint_t ngx_http_ratelimit_api_has_limit(ngx_http_request_t *r,
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *key);
static void ngx_http_ratelimit_api_memory(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_zone_t *zone);
static void ngx_http_ratelimit_api_limit(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_tally_t *tally, ngx_http_ratelimit_counts_t *counts);
static void ngx_http_ratelimit_api_rates(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_tally_t *tally);
static void ngx_http_ratelimit_api_counts(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_counts_t *counts);
static void ngx_http_ratelimit_api_add_counts(
    ngx_http_ratelimit_counts_t *sum, ngx_http_ratelimit_counts_t *counts);


#define ngx_http_ratelimit_status_name(NAME, name)  #name,

const char  *ngx_http_ratelimit_status_names[] = {
    ngx_http_ratelimit_each_status(ngx_http_ratelimit_status_name)
};


void
ngx_http_ratelimit_api_zones(ngx_http_request_t *r,
    ngx_http_ratelimit_text_t *text, ngx_str_t *key)
{
    ngx_uint_t                        i;
    ngx_http_ratelimit_zone_t       **zone;
    ngx_http_ratelimit_main_conf_t   *rmcf;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    zone = rmcf->zones.elts;

    ngx_http_ratelimit_json_open(text, '[');

    for (i = 0; i < rmcf->zones.nelts; i++) {
        if (key->len == 0
            || ngx_http_ratelimit_api_has_limit(r, zone[i], key))
        {
            ngx_http_ratelimit_api_zone(text, zone[i]);
        }
    }

    ngx_http_ratelimit_json_close(text, ']');
}


/* whether one can have the key, or there is no memory to know */

static ngx_uint_t
ngx_http_ratelimit_api_has_limit(ngx_http_request_t *r,
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *key)
{
    ngx_str_t                    found;
    ngx_uint_t                   i;
    ngx_http_ratelimit_tally_t  *tally;

    tally = zone->tallies.elts;

    for (i = 0; i < zone->tallies.nelts; i++) {
        if (ngx_http_ratelimit_api_parse_key(r, key, &tally[i], &found)
            != NGX_DECLINED)
        {
            return 1;
        }
    }

    return 0;
}


void
ngx_http_ratelimit_api_zone(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_zone_t *zone)
{
    ngx_str_t                     name;
    ngx_uint_t                    i;
    ngx_http_ratelimit_tally_t   *tally;
    ngx_http_ratelimit_counts_t   all, sum, *counts;

    ngx_memzero(&sum, sizeof(ngx_http_ratelimit_counts_t));

    tally = zone->tallies.elts;

    counts = ngx_palloc(text->pool, (zone->tallies.nelts + 1)
                                    * sizeof(ngx_http_ratelimit_counts_t));
    if (counts == NULL) {
        text->failed = 1;
        return;
    }

    for (i = 0; i < zone->tallies.nelts; i++) {
        ngx_http_ratelimit_statistics_read(&tally[i], &all, &counts[i]);
        ngx_http_ratelimit_api_add_counts(&sum, &counts[i]);
    }

    ngx_http_ratelimit_json_open(text, '{');
    ngx_http_ratelimit_json_name(text, "zone");
    ngx_http_ratelimit_json_string(text, &zone->name);
    ngx_http_ratelimit_json_name(text, "key");
    ngx_http_ratelimit_json_string(text, &zone->key_text);
    ngx_http_ratelimit_json_name(text, "algorithm");

    name.data = (u_char *) ngx_http_ratelimit_traits(zone)->name;
    name.len = ngx_strlen(name.data);

    ngx_http_ratelimit_json_string(text, &name);
    ngx_http_ratelimit_json_name(text, "backend");
    ngx_http_ratelimit_json_string(text,
                                 &ngx_http_ratelimit_backends[zone->backend]);

    if (zone->redis_name.len) {
        ngx_http_ratelimit_json_name(text, "redis");
        ngx_http_ratelimit_json_string(text, &zone->redis_name);
    }

    ngx_http_ratelimit_api_memory(text, zone);
    ngx_http_ratelimit_api_counts(text, &sum);

    ngx_http_ratelimit_json_name(text, "limits");
    ngx_http_ratelimit_json_open(text, '[');

    for (i = 0; i < zone->tallies.nelts; i++) {
        ngx_http_ratelimit_api_limit(text, &tally[i], &counts[i]);
    }

    ngx_http_ratelimit_json_close(text, ']');
    ngx_http_ratelimit_json_close(text, '}');
}


static void
ngx_http_ratelimit_api_memory(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_zone_t *zone)
{
    ngx_http_ratelimit_memory_t  memory;

    ngx_http_ratelimit_store_memory(zone, &memory);

    /* as requests, since they were last reset */

    memory.evictions -= memory.dismissed;

    ngx_http_ratelimit_json_figures(text,
                                    ngx_http_ratelimit_api_memory_figures,
                                    &memory);
}


static void
ngx_http_ratelimit_api_limit(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_tally_t *tally, ngx_http_ratelimit_counts_t *counts)
{
    ngx_http_ratelimit_json_open(text, '{');
    ngx_http_ratelimit_json_name(text, "name");
    ngx_http_ratelimit_json_string(text, &tally->use->name);
    ngx_http_ratelimit_json_name(text, "rates");
    ngx_http_ratelimit_api_rates(text, tally);
    ngx_http_ratelimit_api_counts(text, counts);
    ngx_http_ratelimit_json_close(text, '}');
}


/* as they may be configured; of one that varies, its variables */

static void
ngx_http_ratelimit_api_rates(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_tally_t *tally)
{
    char                 rate[RATELIMIT_RATE_LEN];
    ngx_str_t            value, **variable;
    ngx_uint_t           i;
    ratelimit_rule_t   **rule;

    rule = tally->rules.elts;
    variable = tally->variables.elts;

    ngx_http_ratelimit_json_open(text, '[');

    for (i = 0; i < tally->rules.nelts; i++) {
        value.data = (u_char *) rate;
        value.len = ratelimit_format_rate(rule[i]->limit, rule[i]->period,
                                          rate);
        ngx_http_ratelimit_json_string(text, &value);
    }

    for (i = 0; i < tally->variables.nelts; i++) {
        ngx_http_ratelimit_json_string(text, variable[i]);
    }

    ngx_http_ratelimit_json_close(text, ']');
}


static void
ngx_http_ratelimit_api_counts(ngx_http_ratelimit_text_t *text,
    ngx_http_ratelimit_counts_t *counts)
{
    ngx_uint_t  i;

    ngx_http_ratelimit_json_name(text, "requests");
    ngx_http_ratelimit_json_open(text, '{');

    for (i = 0; i < NGX_HTTP_RATELIMIT_STATUSES - 1; i++) {
        ngx_http_ratelimit_json_name(text, ngx_http_ratelimit_status_names[i]);
        ngx_http_ratelimit_json_number(text, counts->requests[i]);
    }

    ngx_http_ratelimit_json_close(text, '}');

    ngx_http_ratelimit_json_name(text, "delayed_seconds");
    ngx_http_ratelimit_json_seconds(text, counts->delayed);
}


static void
ngx_http_ratelimit_api_add_counts(ngx_http_ratelimit_counts_t *sum,
    ngx_http_ratelimit_counts_t *counts)
{
    ngx_uint_t  i;

    sum->delayed += counts->delayed;

    for (i = 0; i < NGX_HTTP_RATELIMIT_STATUSES - 1; i++) {
        sum->requests[i] += counts->requests[i];
    }
}
