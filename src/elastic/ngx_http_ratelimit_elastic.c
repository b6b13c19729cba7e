
/*
 * Whether there are resources to spare: while no signal of pressure has come
 * to its mark.
 */


#include "elastic/ngx_http_ratelimit_elastic.h"


/* a state that is no key's */
#define NGX_HTTP_RATELIMIT_PRESSED  1


static ngx_uint_t ngx_http_ratelimit_elastic_pressed(ngx_atomic_t *state,
    ngx_atomic_uint_t on, uint32_t share, uint64_t mark, ngx_str_t *name);
static ngx_uint_t ngx_http_ratelimit_elastic_spent(ngx_http_request_t *r,
    ngx_http_ratelimit_budget_t *budget,
    ngx_http_ratelimit_pressure_t *pressure);
static uint32_t ngx_http_ratelimit_elastic_share(ngx_http_request_t *r,
    ngx_http_ratelimit_use_t *use, ratelimit_hash_t *hash);


ngx_uint_t
ngx_http_ratelimit_elastic_spare(ngx_http_request_t *r)
{
    ngx_uint_t                       i;
    ngx_http_ratelimit_budget_t     *budgets;
    ngx_http_ratelimit_elastic_t    *elastic;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

    elastic = rmcf->elastic;
    if (elastic == NULL) {
        return 0;
    }

    if (elastic->cpu && ngx_http_ratelimit_elastic_cpu(elastic)) {
        return 0;
    }

    if (elastic->connections
        && ngx_http_ratelimit_elastic_connections(elastic))
    {
        return 0;
    }

    budgets = elastic->budgets.elts;

    for (i = 0; i < elastic->budgets.nelts; i++) {
        if (ngx_http_ratelimit_elastic_spent(r, &budgets[i],
                                             elastic->shm_zone->data))
        {
            return 0;
        }
    }

    return 1;
}


ngx_uint_t
ngx_http_ratelimit_elastic_cpu(ngx_http_ratelimit_elastic_t *elastic)
{
    uint32_t                        share;
    ngx_str_t                       name;
    ngx_http_ratelimit_pressure_t  *pressure;

    pressure = elastic->shm_zone->data;
    share = ngx_http_ratelimit_pressure_cpu(elastic);

    ngx_str_set(&name, "cpu");

    return ngx_http_ratelimit_elastic_pressed(&pressure->cpu_state,
                                              NGX_HTTP_RATELIMIT_PRESSED,
                                              share, elastic->cpu, &name);
}


ngx_uint_t
ngx_http_ratelimit_elastic_connections(ngx_http_ratelimit_elastic_t *elastic)
{
    uint32_t                        share;
    ngx_str_t                       name;
    ngx_http_ratelimit_pressure_t  *pressure;

    pressure = elastic->shm_zone->data;
    share = ngx_http_ratelimit_pressure_connections(elastic);

    ngx_str_set(&name, "connections");

    return ngx_http_ratelimit_elastic_pressed(&pressure->connections_state,
                                              NGX_HTTP_RATELIMIT_PRESSED,
                                              share, elastic->connections,
                                              &name);
}


/*
 * Whether a share is too much: the state is "on" if it was so before, and is
 * set to what is so now.
 */

static ngx_uint_t
ngx_http_ratelimit_elastic_pressed(ngx_atomic_t *state, ngx_atomic_uint_t on,
    uint32_t share, uint64_t mark, ngx_str_t *name)
{
    int                is, was;
    ngx_uint_t         level;
    ngx_atomic_uint_t  old;

    /* what nobody knows is not there to be spent */

    if (share == RATELIMIT_PRESSURE_UNKNOWN) {
        return 1;
    }

    old = *state;
    was = (old == on);

    is = ratelimit_pressure(share, mark * RATELIMIT_PRESSURE_WHOLE / 100, was);

    if (is != was && ngx_atomic_cmp_set(state, old, is ? on : 0)) {

        /* keys may be many, and clients choose them */

        level = (on == NGX_HTTP_RATELIMIT_PRESSED) ? NGX_LOG_NOTICE
                                                   : NGX_LOG_INFO;

        ngx_log_error(level, ngx_cycle->log, 0,
                      "ratelimit pressure of \"%V\" %s: %uD.%uD%% in use",
                      name, is ? "begins" : "ends", share / 10, share % 10);
    }

    return is;
}


/*
 * Each key of the zone has a state of its own.  One that meets with another
 * key under pressure in its place loses it: then there is no hysteresis.
 */

static ngx_uint_t
ngx_http_ratelimit_elastic_spent(ngx_http_request_t *r,
    ngx_http_ratelimit_budget_t *budget,
    ngx_http_ratelimit_pressure_t *pressure)
{
    uint32_t           share;
    ngx_str_t          key;
    ngx_atomic_t      *state;
    ratelimit_hash_t   hash;

    if (ngx_http_ratelimit_eval(r, &budget->key, &key) != NGX_OK) {
        return 1;
    }

    /* such a request is not limited by the zone either */

    if (key.len == 0) {
        return 0;
    }

    ratelimit_key_hash(&budget->use.hasher, key.data, key.len, &hash);

    share = ngx_http_ratelimit_elastic_share(r, &budget->use, &hash);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "ratelimit: budget \"%V\" share:%uD",
                   &budget->name, share);

    state = &pressure->states[hash.lo & (NGX_HTTP_RATELIMIT_STATES - 1)];

    return ngx_http_ratelimit_elastic_pressed(state, hash.hi | 1, share,
                                              budget->mark, &budget->name);
}


/* how much is used of the fullest of the zone's limits */

static uint32_t
ngx_http_ratelimit_elastic_share(ngx_http_request_t *r,
    ngx_http_ratelimit_use_t *use, ratelimit_hash_t *hash)
{
    uint32_t                     share, fullest;
    ngx_uint_t                   i;
    ratelimit_verdict_t         *verdict;
    ngx_http_ratelimit_query_t   q;

    ngx_memzero(&q, sizeof(ngx_http_ratelimit_query_t));

    q.items = ngx_pcalloc(r->pool, use->nrules * sizeof(ratelimit_item_t));
    q.places = ngx_pcalloc(r->pool, use->nrules * sizeof(ratelimit_place_t));

    if (q.items == NULL || q.places == NULL) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    /* the cost is zero: nothing is counted */

    for (i = 0; i < use->nrules; i++) {
        q.items[i].rule = &use->rules[i];
        q.items[i].shape = &use->zone->shape;
        q.places[i].table = use->zone->table;
        q.places[i].hash = *hash;
    }

    q.n = use->nrules;
    q.log = r->connection->log;

    /* of a zone in Redis it is what this machine has admitted */

    if (ngx_http_ratelimit_shm_store.check(&q) != NGX_OK) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    ratelimit_table_explain(q.items, q.places, q.n);

    fullest = 0;

    for (i = 0; i < q.n; i++) {
        verdict = &q.items[i].verdict;

        share = ratelimit_pressure_share(verdict->limit - verdict->remaining,
                                         verdict->limit);
        fullest = ngx_max(fullest, share);
    }

    return fullest;
}
