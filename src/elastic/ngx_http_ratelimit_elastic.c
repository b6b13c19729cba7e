
/*
 * Whether there are resources to spare: there are while no resource has
 * reached its mark.
 */


#include "elastic/ngx_http_ratelimit_elastic.h"


/* the state of what has no keys */
#define NGX_HTTP_RATELIMIT_ELASTIC_PRESSED  1


static ngx_uint_t ngx_http_ratelimit_elastic_pressed(ngx_atomic_t *state,
    ngx_atomic_uint_t on, uint32_t usage, uint64_t mark, ngx_str_t *name);
static ngx_uint_t ngx_http_ratelimit_elastic_budget_pressed(
    ngx_http_ratelimit_elastic_shared_t *shared,
    ngx_http_ratelimit_elastic_budget_t *budget, ngx_http_request_t *r);
static uint32_t ngx_http_ratelimit_elastic_budget_usage(ngx_http_request_t *r,
    ngx_http_ratelimit_use_t *use, ngx_str_t *key);


static ngx_str_t  ngx_http_ratelimit_elastic_cpu_name = ngx_string("cpu");
static ngx_str_t  ngx_http_ratelimit_elastic_connections_name =
    ngx_string("connections");


ngx_uint_t
ngx_http_ratelimit_elastic_spare(ngx_http_ratelimit_elastic_t *elastic,
    ngx_http_request_t *r)
{
    ngx_uint_t                            i;
    ngx_http_ratelimit_elastic_budget_t  *budgets;

    if (elastic->cpu && ngx_http_ratelimit_elastic_cpu_pressed(elastic)) {
        return 0;
    }

    if (elastic->connections
        && ngx_http_ratelimit_elastic_connections_pressed(elastic))
    {
        return 0;
    }

    budgets = elastic->budgets.elts;

    for (i = 0; i < elastic->budgets.nelts; i++) {
        if (ngx_http_ratelimit_elastic_budget_pressed(elastic->shm_zone->data,
                                                      &budgets[i], r))
        {
            return 0;
        }
    }

    return 1;
}


ngx_uint_t
ngx_http_ratelimit_elastic_cpu_pressed(ngx_http_ratelimit_elastic_t *elastic)
{
    ngx_http_ratelimit_elastic_shared_t  *shared;

    shared = elastic->shm_zone->data;

    return ngx_http_ratelimit_elastic_pressed(&shared->cpu_state,
                              NGX_HTTP_RATELIMIT_ELASTIC_PRESSED,
                              ngx_http_ratelimit_elastic_cpu_usage(elastic),
                              elastic->cpu,
                              &ngx_http_ratelimit_elastic_cpu_name);
}


ngx_uint_t
ngx_http_ratelimit_elastic_connections_pressed(
    ngx_http_ratelimit_elastic_t *elastic)
{
    ngx_http_ratelimit_elastic_shared_t  *shared;

    shared = elastic->shm_zone->data;

    return ngx_http_ratelimit_elastic_pressed(&shared->connections_state,
                        NGX_HTTP_RATELIMIT_ELASTIC_PRESSED,
                        ngx_http_ratelimit_elastic_connections_usage(elastic),
                        elastic->connections,
                        &ngx_http_ratelimit_elastic_connections_name);
}


/*
 * Whether a resource is under pressure.  Its state is "on" if it was so
 * before, and is set to "on" or 0.
 */

static ngx_uint_t
ngx_http_ratelimit_elastic_pressed(ngx_atomic_t *state, ngx_atomic_uint_t on,
    uint32_t usage, uint64_t mark, ngx_str_t *name)
{
    int                is, was;
    ngx_uint_t         level;
    ngx_atomic_uint_t  old;

    /* what is not known is not taken for spare */

    if (usage == RATELIMIT_PRESSURE_UNKNOWN) {
        return 1;
    }

    old = *state;
    was = (old == on);

    is = ratelimit_pressure_at(usage, mark * RATELIMIT_PRESSURE_WHOLE / 100,
                               was);

    if (is != was && ngx_atomic_cmp_set(state, old, is ? on : 0)) {

        /* a zone may have many keys, and clients choose them */

        level = (on == NGX_HTTP_RATELIMIT_ELASTIC_PRESSED) ? NGX_LOG_NOTICE
                                                           : NGX_LOG_INFO;

        ngx_log_error(level, ngx_cycle->log, 0,
                      "ratelimit pressure of \"%V\" %s: %uD.%uD%% in use",
                      name, is ? "begins" : "ends", usage / 10, usage % 10);
    }

    return is;
}


/*
 * Each key of the zone has a state of its own.  Keys whose hashes collide
 * overwrite the state of one another and so lose the hysteresis.
 */

static ngx_uint_t
ngx_http_ratelimit_elastic_budget_pressed(
    ngx_http_ratelimit_elastic_shared_t *shared,
    ngx_http_ratelimit_elastic_budget_t *budget, ngx_http_request_t *r)
{
    uint32_t           usage;
    ngx_str_t          key;
    ngx_atomic_t      *state;
    ratelimit_hash_t   hash;

    if (ngx_http_complex_value(r, &budget->use.zone->key, &key) != NGX_OK) {
        return 1;
    }

    /* the zone does not limit such a request either */

    if (key.len == 0) {
        return 0;
    }

    ratelimit_key_hash(&budget->use.hasher, key.data, key.len, &hash);

    usage = ngx_http_ratelimit_elastic_budget_usage(r, &budget->use, &key);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "ratelimit: budget \"%V\" usage:%uD",
                   &budget->name, usage);

    state = &shared->states[hash.lo
                            & (NGX_HTTP_RATELIMIT_ELASTIC_STATES - 1)];

    return ngx_http_ratelimit_elastic_pressed(state, hash.hi | 1, usage,
                                              budget->mark, &budget->name);
}


/* that of the fullest of the zone's limits */

static uint32_t
ngx_http_ratelimit_elastic_budget_usage(ngx_http_request_t *r,
    ngx_http_ratelimit_use_t *use, ngx_str_t *key)
{
    void                        *memory;
    uint32_t                     usage, fullest;
    ngx_uint_t                   i;
    ratelimit_verdict_t         *verdict;
    ngx_http_ratelimit_query_t   q;

    memory = ngx_palloc(r->pool, use->nrules * ngx_http_ratelimit_row_size);
    if (memory == NULL) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    ngx_http_ratelimit_query_init(&q, memory, use->nrules, r->pool);
    q.n = ngx_http_ratelimit_query_add(&q, 0, use, use->rules, use->nrules,
                                       key, 0, NULL);

    /* of a zone in Redis the usage is what this machine has admitted */

    if (ngx_http_ratelimit_query_decide_local(&q) != NGX_OK) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    (void) ngx_http_ratelimit_query_describe(&q);

    fullest = 0;

    for (i = 0; i < q.n; i++) {
        verdict = &q.items[i].verdict;

        usage = ratelimit_pressure_usage(verdict->limit - verdict->remaining,
                                         verdict->limit);
        fullest = ngx_max(fullest, usage);
    }

    return fullest;
}
