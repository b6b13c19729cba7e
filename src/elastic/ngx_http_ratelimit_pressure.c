
/*
 * What workers tell one another in shared memory: how many connections each
 * of them has, and how busy the processors are, which one of them measures.
 *
 * All of it are single words that go stale.  A worker that dies is missed
 * when its word has, nothing else happens.
 */


#include "elastic/ngx_http_ratelimit_elastic.h"


/* milliseconds */
#define NGX_HTTP_RATELIMIT_PRESSURE_TICK   250
#define NGX_HTTP_RATELIMIT_PRESSURE_LEASE  2000
#define NGX_HTTP_RATELIMIT_PRESSURE_STALE  3000

/* of which processors are measured in one */
#define NGX_HTTP_RATELIMIT_PRESSURE_TICKS  4


typedef struct {
    ngx_event_t                    *event;
    void                           *dummy;
    ngx_log_t                      *log;

    /* after three pointers, as in ngx_connection_t, for debug logging */
    ngx_socket_t                    fd;

    ngx_http_ratelimit_elastic_t   *elastic;

    /* what was measured last, by this worker */
    ratelimit_cpu_t                 cpu;
    ngx_uint_t                      source;
    ngx_uint_t                      wait;     /* ticks until the next time */
    ngx_uint_t                      failed;   /* as the log says */
} ngx_http_ratelimit_gauge_t;


static void ngx_http_ratelimit_pressure_handler(ngx_event_t *ev);
static ngx_uint_t ngx_http_ratelimit_pressure_lease(
    ngx_http_ratelimit_pressure_t *pressure);
static void ngx_http_ratelimit_pressure_leave(
    ngx_http_ratelimit_pressure_t *pressure);
static void ngx_http_ratelimit_pressure_measure(
    ngx_http_ratelimit_gauge_t *gauge);
static void ngx_http_ratelimit_pressure_note(
    ngx_http_ratelimit_gauge_t *gauge, ngx_uint_t source);
static void ngx_http_ratelimit_pressure_tell(
    ngx_http_ratelimit_pressure_t *pressure, ngx_uint_t always);


/* a word has the time of its writing in its upper half */

static ngx_inline ngx_atomic_uint_t
ngx_http_ratelimit_pressure_word(uint32_t value)
{
    return (ngx_atomic_uint_t) ngx_current_msec << 32 | value;
}


/* times start again every 49 days, and those of other workers may lie ahead */

static ngx_inline ngx_uint_t
ngx_http_ratelimit_pressure_older(ngx_atomic_uint_t word, int32_t msec)
{
    return (int32_t) ((uint32_t) ngx_current_msec - (uint32_t) (word >> 32))
           > msec;
}


static ngx_inline ngx_uint_t
ngx_http_ratelimit_pressure_stale(ngx_atomic_uint_t word)
{
    return ngx_http_ratelimit_pressure_older(word,
                                           NGX_HTTP_RATELIMIT_PRESSURE_STALE);
}


ngx_int_t
ngx_http_ratelimit_elastic_init_process(ngx_cycle_t *cycle)
{
    ngx_event_t                     *ev;
    ngx_core_conf_t                 *ccf;
    ngx_http_ratelimit_gauge_t      *gauge;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    rmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_ratelimit_module);

    if (rmcf == NULL || rmcf->elastic == NULL
        || !(rmcf->elastic->cpu || rmcf->elastic->connections))
    {
        return NGX_OK;
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    rmcf->elastic->nworkers = (ngx_process == NGX_PROCESS_SINGLE) ? 1
                              : ngx_min(ccf->worker_processes,
                                        NGX_HTTP_RATELIMIT_WORKERS);

    gauge = ngx_pcalloc(cycle->pool, sizeof(ngx_http_ratelimit_gauge_t));
    if (gauge == NULL) {
        return NGX_ERROR;
    }

    ev = ngx_pcalloc(cycle->pool, sizeof(ngx_event_t));
    if (ev == NULL) {
        return NGX_ERROR;
    }

    gauge->fd = (ngx_socket_t) -1;
    gauge->event = ev;
    gauge->log = cycle->log;
    gauge->elastic = rmcf->elastic;

    ev->handler = ngx_http_ratelimit_pressure_handler;
    ev->data = gauge;
    ev->log = cycle->log;
    ev->cancelable = 1;

    ngx_http_ratelimit_pressure_handler(ev);

    return NGX_OK;
}


static void
ngx_http_ratelimit_pressure_handler(ngx_event_t *ev)
{
    ngx_http_ratelimit_gauge_t     *gauge;
    ngx_http_ratelimit_pressure_t  *pressure;

    gauge = ev->data;
    pressure = gauge->elastic->shm_zone->data;

    /* from now on new workers count, and measure */

    if (ngx_exiting) {
        ngx_http_ratelimit_pressure_leave(pressure);
        return;
    }

    if (gauge->elastic->connections) {
        ngx_http_ratelimit_pressure_tell(pressure, 1);
        (void) ngx_http_ratelimit_elastic_connections(gauge->elastic);
    }

    if (gauge->elastic->cpu) {

        if (ngx_http_ratelimit_pressure_lease(pressure)) {
            ngx_http_ratelimit_pressure_measure(gauge);

        } else {
            gauge->source = 0;
            gauge->wait = 0;
        }

        (void) ngx_http_ratelimit_elastic_cpu(gauge->elastic);
    }

    ngx_add_timer(ev, NGX_HTTP_RATELIMIT_PRESSURE_TICK);
}


/* whether this worker is the one that measures */

static ngx_uint_t
ngx_http_ratelimit_pressure_lease(ngx_http_ratelimit_pressure_t *pressure)
{
    ngx_atomic_uint_t  lease, mine;

    lease = pressure->lease;
    mine = ngx_http_ratelimit_pressure_word((uint32_t) ngx_pid);

    if (lease
        && (uint32_t) lease != (uint32_t) ngx_pid
        && !ngx_http_ratelimit_pressure_older(lease,
                                           NGX_HTTP_RATELIMIT_PRESSURE_LEASE))
    {
        return 0;
    }

    return ngx_atomic_cmp_set(&pressure->lease, lease, mine);
}


static void
ngx_http_ratelimit_pressure_leave(ngx_http_ratelimit_pressure_t *pressure)
{
    ngx_atomic_uint_t  lease;

    lease = pressure->lease;

    if ((uint32_t) lease == (uint32_t) ngx_pid) {
        (void) ngx_atomic_cmp_set(&pressure->lease, lease, 0);
    }
}


/* the first share is known after a tick, further ones once a second */

static void
ngx_http_ratelimit_pressure_measure(ngx_http_ratelimit_gauge_t *gauge)
{
    uint32_t                        share;
    ngx_uint_t                      source;
    ratelimit_cpu_t                 cpu;
    ngx_http_ratelimit_pressure_t  *pressure;

    if (gauge->wait) {
        gauge->wait--;
        return;
    }

    ngx_time_update();

    source = ngx_http_ratelimit_cpu_read(&cpu);

    if (source && source == gauge->source) {
        share = ratelimit_pressure_cpu(&gauge->cpu, &cpu);

        ngx_log_debug2(NGX_LOG_DEBUG_HTTP, gauge->log, 0,
                       "ratelimit: cpu source:%ui share:%uD", source, share);

        if (share != RATELIMIT_PRESSURE_UNKNOWN) {
            pressure = gauge->elastic->shm_zone->data;
            pressure->cpu = ngx_http_ratelimit_pressure_word(share + 1);

            gauge->wait = NGX_HTTP_RATELIMIT_PRESSURE_TICKS - 1;
        }
    }

    ngx_http_ratelimit_pressure_note(gauge, source);

    gauge->source = source;
    gauge->cpu = cpu;
}


/* one line for a change, not for each second */

static void
ngx_http_ratelimit_pressure_note(ngx_http_ratelimit_gauge_t *gauge,
    ngx_uint_t source)
{
    if (source == 0 && !gauge->failed) {
        ngx_log_error(NGX_LOG_ERR, gauge->log, 0,
                      "ratelimit can't tell how busy the processors are, "
                      "limits are not elastic");
    }

    gauge->failed = (source == 0);
}


uint32_t
ngx_http_ratelimit_pressure_cpu(ngx_http_ratelimit_elastic_t *elastic)
{
    ngx_atomic_uint_t               word;
    ngx_http_ratelimit_pressure_t  *pressure;

    pressure = elastic->shm_zone->data;
    word = pressure->cpu;

    if (word == 0 || ngx_http_ratelimit_pressure_stale(word)) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    return (uint32_t) word - 1;
}


uint32_t
ngx_http_ratelimit_pressure_connections(ngx_http_ratelimit_elastic_t *elastic)
{
    uint64_t                        used;
    ngx_uint_t                      i;
    ngx_atomic_uint_t               word;
    ngx_http_ratelimit_pressure_t  *pressure;

    pressure = elastic->shm_zone->data;

    ngx_http_ratelimit_pressure_tell(pressure, 0);

    used = 0;

    for (i = 0; i < elastic->nworkers; i++) {
        word = pressure->workers[i].used;

        if (word && !ngx_http_ratelimit_pressure_stale(word)) {
            used += (uint32_t) word;
        }
    }

    return ratelimit_pressure_share(used,
                           (uint64_t) elastic->nworkers
                           * ngx_cycle->connection_n);
}


/*
 * Tells others of the connections of this worker: always, or if there are
 * more or less of them now.
 */

static void
ngx_http_ratelimit_pressure_tell(ngx_http_ratelimit_pressure_t *pressure,
    ngx_uint_t always)
{
    uint32_t       used;
    ngx_atomic_t  *word;

    /* the worker that comes after this one has its place already */

    if (ngx_exiting || ngx_worker >= NGX_HTTP_RATELIMIT_WORKERS) {
        return;
    }

    used = ngx_cycle->connection_n - ngx_cycle->free_connection_n;
    word = &pressure->workers[ngx_worker].used;

    if (always || (uint32_t) *word != used) {
        *word = ngx_http_ratelimit_pressure_word(used);
    }
}
