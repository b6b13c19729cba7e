
/*
 * Figures for Prometheus: its text format, or OpenMetrics for a client that
 * accepts it.  Counters never go back, so those of requests are all since nginx
 * was started, whatever was reset.  No label has values that clients choose.
 */


#include "api/ngx_http_ratelimit_api.h"

#include <nginx.h>


#define NGX_HTTP_RATELIMIT_PROMETHEUS                                         \
    "text/plain; version=0.0.4; charset=utf-8"
#define NGX_HTTP_RATELIMIT_OPENMETRICS                                        \
    "application/openmetrics-text; version=1.0.0; charset=utf-8"


typedef struct {
    ngx_http_ratelimit_text_t       text;
    ngx_uint_t                      open;     /* OpenMetrics */

    /* of all limits, and of all zones */
    ngx_array_t                     limit_labels;  /* ngx_str_t */
    ngx_array_t                     counts;   /* ngx_http_ratelimit_counts_t */
    ngx_array_t                     zone_labels;  /* ngx_str_t */
    ngx_array_t                     memory;   /* ngx_http_ratelimit_memory_t */
} ngx_http_ratelimit_metrics_t;


static ngx_int_t ngx_http_ratelimit_metrics_read(
    ngx_http_ratelimit_metrics_t *metrics,
    ngx_http_ratelimit_main_conf_t *rmcf);
static ngx_int_t ngx_http_ratelimit_metrics_read_zone(
    ngx_http_ratelimit_metrics_t *metrics, ngx_http_ratelimit_zone_t *zone);
static ngx_int_t ngx_http_ratelimit_metrics_labels(ngx_pool_t *pool,
    ngx_str_t *labels, const char *one, ngx_str_t *first, const char *two,
    ngx_str_t *second);
static size_t ngx_http_ratelimit_metrics_escape(u_char *p, ngx_str_t *value);
static void ngx_http_ratelimit_metrics_family(
    ngx_http_ratelimit_metrics_t *metrics, const char *name,
    const char *type, const char *help);
static void ngx_http_ratelimit_metrics_begin(
    ngx_http_ratelimit_metrics_t *metrics, const char *name,
    const char *suffix, ngx_str_t *labels);
static void ngx_http_ratelimit_metrics_label(
    ngx_http_ratelimit_metrics_t *metrics, const char *name,
    const char *value);
static void ngx_http_ratelimit_metrics_number(
    ngx_http_ratelimit_metrics_t *metrics, uint64_t value);
static void ngx_http_ratelimit_metrics_seconds(
    ngx_http_ratelimit_metrics_t *metrics, uint64_t usec);
static void ngx_http_ratelimit_metrics_figures(
    ngx_http_ratelimit_metrics_t *metrics,
    const ngx_http_ratelimit_api_figure_t *figure, ngx_str_t *labels,
    void *data, size_t size, ngx_uint_t n);
static void ngx_http_ratelimit_metrics_build(
    ngx_http_ratelimit_metrics_t *metrics);
static void ngx_http_ratelimit_metrics_limits(
    ngx_http_ratelimit_metrics_t *metrics);
static ngx_int_t ngx_http_ratelimit_metrics_redis(
    ngx_http_ratelimit_metrics_t *metrics,
    ngx_http_ratelimit_main_conf_t *rmcf);
static void ngx_http_ratelimit_metrics_latency(
    ngx_http_ratelimit_metrics_t *metrics,
    ngx_http_ratelimit_redis_figures_t *figures, ngx_str_t *labels);


#define ngx_http_ratelimit_metrics_add(metrics, literal)                      \
    ngx_http_ratelimit_text_add(&(metrics)->text, literal, sizeof(literal) - 1)


ngx_int_t
ngx_http_ratelimit_api_metrics(ngx_http_request_t *r)
{
    ngx_http_ratelimit_metrics_t     metrics;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

    ngx_http_ratelimit_text_init(&metrics.text, r->pool);

    metrics.open = ngx_http_ratelimit_api_prefers(r,
                                              "application/openmetrics-text",
                                              "text/plain");

    if (ngx_http_ratelimit_metrics_read(&metrics, rmcf) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_ratelimit_metrics_build(&metrics);
    ngx_http_ratelimit_metrics_limits(&metrics);
    ngx_http_ratelimit_metrics_figures(&metrics,
                                       ngx_http_ratelimit_api_memory_figures,
                                       metrics.zone_labels.elts,
                                       metrics.memory.elts,
                                       sizeof(ngx_http_ratelimit_memory_t),
                                       metrics.memory.nelts);

    if (ngx_http_ratelimit_metrics_redis(&metrics, rmcf) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (metrics.open) {
        ngx_http_ratelimit_metrics_add(&metrics, "# EOF\n");
    }

    return ngx_http_ratelimit_api_send(r, NGX_HTTP_OK,
                               metrics.open ? NGX_HTTP_RATELIMIT_OPENMETRICS
                                            : NGX_HTTP_RATELIMIT_PROMETHEUS,
                               &metrics.text);
}


static ngx_int_t
ngx_http_ratelimit_metrics_read(ngx_http_ratelimit_metrics_t *metrics,
    ngx_http_ratelimit_main_conf_t *rmcf)
{
    ngx_uint_t                    i, n;
    ngx_pool_t                   *pool;
    ngx_http_ratelimit_zone_t   **zone;

    pool = metrics->text.pool;
    zone = rmcf->zones.elts;
    n = rmcf->zones.nelts + 1;

    if (ngx_array_init(&metrics->limit_labels, pool, n, sizeof(ngx_str_t))
        != NGX_OK
        || ngx_array_init(&metrics->counts, pool, n,
                          sizeof(ngx_http_ratelimit_counts_t))
           != NGX_OK
        || ngx_array_init(&metrics->zone_labels, pool, n, sizeof(ngx_str_t))
           != NGX_OK
        || ngx_array_init(&metrics->memory, pool, n,
                          sizeof(ngx_http_ratelimit_memory_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < rmcf->zones.nelts; i++) {
        if (ngx_http_ratelimit_metrics_read_zone(metrics, zone[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_metrics_read_zone(ngx_http_ratelimit_metrics_t *metrics,
    ngx_http_ratelimit_zone_t *zone)
{
    ngx_str_t                    *labels;
    ngx_uint_t                    i;
    ngx_http_ratelimit_tally_t   *tally;
    ngx_http_ratelimit_counts_t  *counts, recent;
    ngx_http_ratelimit_memory_t  *memory;

    labels = ngx_array_push(&metrics->zone_labels);
    memory = ngx_array_push(&metrics->memory);

    if (labels == NULL || memory == NULL
        || ngx_http_ratelimit_metrics_labels(metrics->text.pool, labels,
                                             "zone", &zone->name, NULL, NULL)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_store_memory(zone, memory);

    tally = zone->tallies.elts;

    for (i = 0; i < zone->tallies.nelts; i++) {
        labels = ngx_array_push(&metrics->limit_labels);
        counts = ngx_array_push(&metrics->counts);

        if (labels == NULL || counts == NULL
            || ngx_http_ratelimit_metrics_labels(metrics->text.pool, labels,
                                                 "zone", &zone->name, "limit",
                                                 &tally[i].use->name)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_http_ratelimit_statistics_read(&tally[i], counts, &recent);
    }

    return NGX_OK;
}


/* one="first",two="second", ready to be copied; the second may be left out */

static ngx_int_t
ngx_http_ratelimit_metrics_labels(ngx_pool_t *pool, ngx_str_t *labels,
    const char *one, ngx_str_t *first, const char *two, ngx_str_t *second)
{
    u_char  *p;
    size_t   len;

    len = ngx_strlen(one) + 3 * first->len + sizeof("=\"\",=\"\"");

    if (two != NULL) {
        len += ngx_strlen(two) + 3 * second->len;
    }

    p = ngx_pnalloc(pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    labels->data = p;

    p = ngx_sprintf(p, "%s=\"", one);
    p += ngx_http_ratelimit_metrics_escape(p, first);
    *p++ = '"';

    if (two != NULL) {
        p = ngx_sprintf(p, ",%s=\"", two);
        p += ngx_http_ratelimit_metrics_escape(p, second);
        *p++ = '"';
    }

    labels->len = p - labels->data;

    return NGX_OK;
}


/* what is not plain is percent-encoded, as in JSON */

static size_t
ngx_http_ratelimit_metrics_escape(u_char *p, ngx_str_t *value)
{
    u_char      ch, *start;
    ngx_uint_t  i;

    if (!ngx_http_ratelimit_text_is_plain(value)) {
        return (u_char *) ngx_escape_uri(p, value->data, value->len,
                                         NGX_ESCAPE_URI_COMPONENT) - p;
    }

    start = p;

    for (i = 0; i < value->len; i++) {
        ch = value->data[i];

        if (ch == '\\' || ch == '"' || ch == LF) {
            *p++ = '\\';
            ch = (ch == LF) ? 'n' : ch;
        }

        *p++ = ch;
    }

    return p - start;
}


/* OpenMetrics names the family of a counter without "_total" */

static void
ngx_http_ratelimit_metrics_family(ngx_http_ratelimit_metrics_t *metrics,
    const char *name, const char *type, const char *help)
{
    size_t       len;
    ngx_uint_t   i, total;
    const char  *words[2], *texts[2];

    words[0] = "# HELP nginx_ratelimit_";
    words[1] = "# TYPE nginx_ratelimit_";
    texts[0] = help;
    texts[1] = type;

    len = ngx_strlen(name);
    total = !metrics->open && ngx_strcmp(type, "counter") == 0;

    for (i = 0; i < 2; i++) {
        ngx_http_ratelimit_text_add(&metrics->text, words[i],
                                    ngx_strlen(words[i]));
        ngx_http_ratelimit_text_add(&metrics->text, name, len);

        if (total) {
            ngx_http_ratelimit_metrics_add(metrics, "_total");
        }

        ngx_http_ratelimit_metrics_add(metrics, " ");
        ngx_http_ratelimit_text_add(&metrics->text, texts[i],
                                    ngx_strlen(texts[i]));
        ngx_http_ratelimit_metrics_add(metrics, "\n");
    }
}


/* a sample: its name with labels, perhaps another label, and its value */

static void
ngx_http_ratelimit_metrics_begin(ngx_http_ratelimit_metrics_t *metrics,
    const char *name, const char *suffix, ngx_str_t *labels)
{
    ngx_http_ratelimit_metrics_add(metrics, "nginx_ratelimit_");
    ngx_http_ratelimit_text_add(&metrics->text, name, ngx_strlen(name));
    ngx_http_ratelimit_text_add(&metrics->text, suffix, ngx_strlen(suffix));
    ngx_http_ratelimit_metrics_add(metrics, "{");
    ngx_http_ratelimit_text_add(&metrics->text, labels->data, labels->len);
}


static void
ngx_http_ratelimit_metrics_label(ngx_http_ratelimit_metrics_t *metrics,
    const char *name, const char *value)
{
    ngx_http_ratelimit_metrics_add(metrics, ",");
    ngx_http_ratelimit_text_add(&metrics->text, name, ngx_strlen(name));
    ngx_http_ratelimit_metrics_add(metrics, "=\"");
    ngx_http_ratelimit_text_add(&metrics->text, value, ngx_strlen(value));
    ngx_http_ratelimit_metrics_add(metrics, "\"");
}


static void
ngx_http_ratelimit_metrics_number(ngx_http_ratelimit_metrics_t *metrics,
    uint64_t value)
{
    ngx_http_ratelimit_metrics_add(metrics, "} ");
    ngx_http_ratelimit_text_number(&metrics->text, value);
    ngx_http_ratelimit_metrics_add(metrics, "\n");
}


static void
ngx_http_ratelimit_metrics_seconds(ngx_http_ratelimit_metrics_t *metrics,
    uint64_t usec)
{
    ngx_http_ratelimit_metrics_add(metrics, "} ");
    ngx_http_ratelimit_text_seconds(&metrics->text, usec);
    ngx_http_ratelimit_metrics_add(metrics, "\n");
}


/* families of figures: those of n structs of a size, each with its labels */

static void
ngx_http_ratelimit_metrics_figures(ngx_http_ratelimit_metrics_t *metrics,
    const ngx_http_ratelimit_api_figure_t *figure, ngx_str_t *labels,
    void *data, size_t size, ngx_uint_t n)
{
    u_char      *p;
    uint64_t     value;
    ngx_uint_t   i, counter;

    for ( /* void */ ; figure->metric != NULL; figure++) {
        counter = (figure->kind == NGX_HTTP_RATELIMIT_COUNTER);

        ngx_http_ratelimit_metrics_family(metrics, figure->metric,
                                          counter ? "counter" : "gauge",
                                          figure->help);
        p = data;

        for (i = 0; i < n; i++) {
            value = ngx_http_ratelimit_api_value(figure, p);

            ngx_http_ratelimit_metrics_begin(metrics, figure->metric,
                                             counter ? "_total" : "",
                                             &labels[i]);

            if (figure->kind == NGX_HTTP_RATELIMIT_GAUGE_SECONDS) {
                ngx_http_ratelimit_metrics_seconds(metrics, value);

            } else {
                ngx_http_ratelimit_metrics_number(metrics, value);
            }

            p += size;
        }
    }
}


static void
ngx_http_ratelimit_metrics_build(ngx_http_ratelimit_metrics_t *metrics)
{
    static ngx_str_t  labels = ngx_string("version=\""
                                          NGX_HTTP_RATELIMIT_VERSION
                                          "\",nginx=\"" NGINX_VERSION "\"");

    ngx_http_ratelimit_metrics_family(metrics,
                                      metrics->open ? "build" : "build_info",
                                      metrics->open ? "info" : "gauge",
                                      "The versions of module and nginx.");
    ngx_http_ratelimit_metrics_begin(metrics, "build_info", "", &labels);
    ngx_http_ratelimit_metrics_number(metrics, 1);
}


static void
ngx_http_ratelimit_metrics_limits(ngx_http_ratelimit_metrics_t *metrics)
{
    ngx_str_t                    *labels;
    ngx_uint_t                    i, k;
    ngx_http_ratelimit_counts_t  *counts;

    labels = metrics->limit_labels.elts;
    counts = metrics->counts.elts;

    ngx_http_ratelimit_metrics_family(metrics, "requests", "counter",
                                      "Requests, by what a limit has said.");

    for (i = 0; i < metrics->counts.nelts; i++) {
        for (k = 0; k < NGX_HTTP_RATELIMIT_STATUSES - 1; k++) {
            ngx_http_ratelimit_metrics_begin(metrics, "requests", "_total",
                                             &labels[i]);
            ngx_http_ratelimit_metrics_label(metrics, "status",
                                         ngx_http_ratelimit_status_names[k]);
            ngx_http_ratelimit_metrics_number(metrics, counts[i].requests[k]);
        }
    }

    ngx_http_ratelimit_metrics_family(metrics, "delayed_seconds", "counter",
                                      "Time for which a limit has delayed "
                                      "requests.");

    for (i = 0; i < metrics->counts.nelts; i++) {
        ngx_http_ratelimit_metrics_begin(metrics, "delayed_seconds", "_total",
                                         &labels[i]);
        ngx_http_ratelimit_metrics_seconds(metrics, counts[i].delayed);
    }
}


static ngx_int_t
ngx_http_ratelimit_metrics_redis(ngx_http_ratelimit_metrics_t *metrics,
    ngx_http_ratelimit_main_conf_t *rmcf)
{
    ngx_str_t                           *labels;
    ngx_uint_t                           i;
    ngx_array_t                         *servers;
    ngx_http_ratelimit_redis_figures_t  *figures;

    servers = ngx_http_ratelimit_api_get_redis(metrics->text.pool, rmcf);
    if (servers == NULL) {
        return NGX_ERROR;
    }

    labels = ngx_palloc(metrics->text.pool,
                        (servers->nelts + 1) * sizeof(ngx_str_t));
    if (labels == NULL) {
        return NGX_ERROR;
    }

    figures = servers->elts;

    for (i = 0; i < servers->nelts; i++) {
        if (ngx_http_ratelimit_metrics_labels(metrics->text.pool, &labels[i],
                                              "redis", &figures[i].name,
                                              "address", &figures[i].address)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (servers->nelts == 0) {
        return NGX_OK;
    }

    ngx_http_ratelimit_metrics_figures(metrics,
                                  ngx_http_ratelimit_api_redis_figures,
                                  labels, figures,
                                  sizeof(ngx_http_ratelimit_redis_figures_t),
                                  servers->nelts);

    ngx_http_ratelimit_metrics_family(metrics, "redis_duration_seconds",
                                      "histogram",
                                      "Time from a command to its reply.");

    for (i = 0; i < servers->nelts; i++) {
        ngx_http_ratelimit_metrics_latency(metrics, &figures[i], &labels[i]);
    }

    return NGX_OK;
}


static void
ngx_http_ratelimit_metrics_latency(ngx_http_ratelimit_metrics_t *metrics,
    ngx_http_ratelimit_redis_figures_t *figures, ngx_str_t *labels)
{
    uint64_t    count;
    ngx_uint_t  i;

    static const char  name[] = "redis_duration_seconds";

    count = 0;

    for (i = 0; i < NGX_HTTP_RATELIMIT_LATENCIES; i++) {
        count += figures->counters.latency[i];

        ngx_http_ratelimit_metrics_begin(metrics, name, "_bucket", labels);
        ngx_http_ratelimit_metrics_label(metrics, "le",
                                         ngx_http_ratelimit_latencies[i]);
        ngx_http_ratelimit_metrics_number(metrics, count);
    }

    ngx_http_ratelimit_metrics_begin(metrics, name, "_count", labels);
    ngx_http_ratelimit_metrics_number(metrics, count);
    ngx_http_ratelimit_metrics_begin(metrics, name, "_sum", labels);
    ngx_http_ratelimit_metrics_seconds(metrics, figures->counters.latency_sum);
}
