
/*
 * What workers share: how many connections each of them has, and how busy the
 * processors are, which the worker that holds the claim measures.
 *
 * These are single words that carry the time of their writing and become
 * stale, so a worker that dies needs no clean-up.
 */


#include "elastic/ngx_http_ratelimit_elastic.h"


/* milliseconds */
#define NGX_HTTP_RATELIMIT_ELASTIC_TICK   250
#define NGX_HTTP_RATELIMIT_ELASTIC_CLAIM  2000
#define NGX_HTTP_RATELIMIT_ELASTIC_STALE  3000

/* processors are measured at one tick of so many */
#define NGX_HTTP_RATELIMIT_ELASTIC_TICKS  4


typedef struct {
    ngx_http_ratelimit_elastic_t   *elastic;

    /* the last measurement of this worker */
    ratelimit_cpu_t                 cpu;
    ngx_uint_t                      source;
    ngx_uint_t                      ticks;    /* until the next one */
    ngx_uint_t                      failed;   /* and has been logged */
} ngx_http_ratelimit_elastic_gauge_t;


static ngx_int_t ngx_http_ratelimit_elastic_init_zone(
    ngx_shm_zone_t *shm_zone, void *data);
static void ngx_http_ratelimit_elastic_handler(ngx_event_t *ev);
static ngx_uint_t ngx_http_ratelimit_elastic_claim(
    ngx_http_ratelimit_elastic_shared_t *shared);
static void ngx_http_ratelimit_elastic_release(
    ngx_http_ratelimit_elastic_shared_t *shared);
static void ngx_http_ratelimit_elastic_measure(
    ngx_http_ratelimit_elastic_gauge_t *gauge);
static void ngx_http_ratelimit_elastic_log(
    ngx_http_ratelimit_elastic_gauge_t *gauge, ngx_uint_t source);
static void ngx_http_ratelimit_elastic_publish(
    ngx_http_ratelimit_elastic_shared_t *shared, ngx_uint_t always);


/* the upper half of a word is the time of its writing */

static ngx_inline ngx_atomic_uint_t
ngx_http_ratelimit_elastic_word(uint32_t value)
{
    return (ngx_atomic_uint_t) ngx_current_msec << 32 | value;
}


/* times wrap every 49 days, and other workers may be ahead of this one */

static ngx_inline ngx_uint_t
ngx_http_ratelimit_elastic_older(ngx_atomic_uint_t word, int32_t msec)
{
    return (int32_t) ((uint32_t) ngx_current_msec - (uint32_t) (word >> 32))
           > msec;
}


static ngx_inline ngx_uint_t
ngx_http_ratelimit_elastic_stale(ngx_atomic_uint_t word)
{
    return ngx_http_ratelimit_elastic_older(word,
                                           NGX_HTTP_RATELIMIT_ELASTIC_STALE);
}


ngx_int_t
ngx_http_ratelimit_elastic_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_elastic_t *elastic, void *tag)
{
    size_t     size;
    ngx_str_t  name;

    /* no zone of a configuration has a colon in its name */

    ngx_str_set(&name, "ratelimit:elastic");

    size = sizeof(ngx_http_ratelimit_elastic_shared_t) + 8 * ngx_pagesize;

    elastic->shm_zone = ngx_http_ratelimit_shm_add(cf, &name, size, tag,
                                        ngx_http_ratelimit_elastic_init_zone,
                                        NULL);

    return elastic->shm_zone ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_elastic_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data == NULL && !shm_zone->shm.exists) {
        shpool->data = ngx_slab_calloc(shpool,
                                  sizeof(ngx_http_ratelimit_elastic_shared_t));
        if (shpool->data == NULL) {
            return NGX_ERROR;
        }
    }

    shm_zone->data = shpool->data;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_elastic_init_process(ngx_cycle_t *cycle,
    ngx_http_ratelimit_elastic_t *elastic)
{
    ngx_core_conf_t                     *ccf;
    ngx_http_ratelimit_elastic_gauge_t  *gauge;

    if ((ngx_process != NGX_PROCESS_WORKER
         && ngx_process != NGX_PROCESS_SINGLE)
        || !(elastic->cpu || elastic->connections))
    {
        return NGX_OK;
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    elastic->nworkers = (ngx_process == NGX_PROCESS_SINGLE) ? 1
                        : ngx_min(ccf->worker_processes, NGX_MAX_PROCESSES);

    gauge = ngx_pcalloc(cycle->pool,
                        sizeof(ngx_http_ratelimit_elastic_gauge_t));
    if (gauge == NULL) {
        return NGX_ERROR;
    }

    gauge->elastic = elastic;

    return ngx_http_ratelimit_timer_start(cycle,
                                          ngx_http_ratelimit_elastic_handler,
                                          gauge);
}


static void
ngx_http_ratelimit_elastic_handler(ngx_event_t *ev)
{
    ngx_http_ratelimit_elastic_gauge_t   *gauge;
    ngx_http_ratelimit_elastic_shared_t  *shared;

    gauge = ngx_http_ratelimit_timer_data(ev);
    shared = gauge->elastic->shm_zone->data;

    /* from now on, new workers publish and measure */

    if (ngx_exiting) {
        ngx_http_ratelimit_elastic_release(shared);
        return;
    }

    if (gauge->elastic->connections) {
        ngx_http_ratelimit_elastic_publish(shared, 1);
        (void) ngx_http_ratelimit_elastic_connections_pressed(gauge->elastic);
    }

    if (gauge->elastic->cpu) {

        if (ngx_http_ratelimit_elastic_claim(shared)) {
            ngx_http_ratelimit_elastic_measure(gauge);

        } else {
            gauge->source = 0;
            gauge->ticks = 0;
        }

        (void) ngx_http_ratelimit_elastic_cpu_pressed(gauge->elastic);
    }

    ngx_add_timer(ev, NGX_HTTP_RATELIMIT_ELASTIC_TICK);
}


/* whether this worker measures: it holds the claim, or takes an old one */

static ngx_uint_t
ngx_http_ratelimit_elastic_claim(ngx_http_ratelimit_elastic_shared_t *shared)
{
    ngx_atomic_uint_t  claim, mine;

    claim = shared->claim;
    mine = ngx_http_ratelimit_elastic_word((uint32_t) ngx_pid);

    if (claim
        && (uint32_t) claim != (uint32_t) ngx_pid
        && !ngx_http_ratelimit_elastic_older(claim,
                                           NGX_HTTP_RATELIMIT_ELASTIC_CLAIM))
    {
        return 0;
    }

    return ngx_atomic_cmp_set(&shared->claim, claim, mine);
}


static void
ngx_http_ratelimit_elastic_release(ngx_http_ratelimit_elastic_shared_t *shared)
{
    ngx_atomic_uint_t  claim;

    claim = shared->claim;

    if ((uint32_t) claim == (uint32_t) ngx_pid) {
        (void) ngx_atomic_cmp_set(&shared->claim, claim, 0);
    }
}


/* the first usage is known after one tick, further ones once a second */

static void
ngx_http_ratelimit_elastic_measure(ngx_http_ratelimit_elastic_gauge_t *gauge)
{
    uint32_t                              usage;
    ngx_uint_t                            source;
    ratelimit_cpu_t                       cpu;
    ngx_http_ratelimit_elastic_shared_t  *shared;

    if (gauge->ticks) {
        gauge->ticks--;
        return;
    }

    ngx_time_update();

    source = ngx_http_ratelimit_elastic_read_cpu(&cpu);

    if (source && source == gauge->source) {
        usage = ratelimit_pressure_cpu_usage(&gauge->cpu, &cpu);

        ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                       "ratelimit: cpu source:%ui usage:%uD", source, usage);

        if (usage != RATELIMIT_PRESSURE_UNKNOWN) {
            shared = gauge->elastic->shm_zone->data;
            shared->cpu = ngx_http_ratelimit_elastic_word(usage + 1);

            gauge->ticks = NGX_HTTP_RATELIMIT_ELASTIC_TICKS - 1;
        }
    }

    ngx_http_ratelimit_elastic_log(gauge, source);

    gauge->source = source;
    gauge->cpu = cpu;
}


/* a line for each change, not for each second */

static void
ngx_http_ratelimit_elastic_log(ngx_http_ratelimit_elastic_gauge_t *gauge,
    ngx_uint_t source)
{
    if (source == 0 && !gauge->failed) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "ratelimit can't read the load of the processors, "
                      "limits are not elastic");
    }

    gauge->failed = (source == 0);
}


uint32_t
ngx_http_ratelimit_elastic_cpu_usage(ngx_http_ratelimit_elastic_t *elastic)
{
    ngx_atomic_uint_t                     word;
    ngx_http_ratelimit_elastic_shared_t  *shared;

    shared = elastic->shm_zone->data;
    word = shared->cpu;

    if (word == 0 || ngx_http_ratelimit_elastic_stale(word)) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    return (uint32_t) word - 1;
}


uint32_t
ngx_http_ratelimit_elastic_connections_usage(
    ngx_http_ratelimit_elastic_t *elastic)
{
    uint64_t                              used;
    ngx_uint_t                            i;
    ngx_atomic_uint_t                     word;
    ngx_http_ratelimit_elastic_shared_t  *shared;

    shared = elastic->shm_zone->data;

    ngx_http_ratelimit_elastic_publish(shared, 0);

    used = 0;

    for (i = 0; i < elastic->nworkers; i++) {
        word = shared->workers[i].used;

        if (word && !ngx_http_ratelimit_elastic_stale(word)) {
            used += (uint32_t) word;
        }
    }

    return ratelimit_pressure_usage(used,
                           (uint64_t) elastic->nworkers
                           * ngx_cycle->connection_n);
}


/* writes the connections of this worker: always, or if the number changed */

static void
ngx_http_ratelimit_elastic_publish(ngx_http_ratelimit_elastic_shared_t *shared,
    ngx_uint_t always)
{
    uint32_t       used;
    ngx_atomic_t  *word;

    /* the worker that replaces this one has the same slot */

    if (ngx_exiting || ngx_worker >= NGX_MAX_PROCESSES) {
        return;
    }

    used = ngx_cycle->connection_n - ngx_cycle->free_connection_n;
    word = &shared->workers[ngx_worker].used;

    if (always || (uint32_t) *word != used) {
        *word = ngx_http_ratelimit_elastic_word(used);
    }
}
