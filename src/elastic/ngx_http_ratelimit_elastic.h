
/*
 * Whether the machine has resources to spare, so that limits may be exceeded:
 * what "ratelimit_elastic" says, and what all workers know about it.
 */


#ifndef _NGX_HTTP_RATELIMIT_ELASTIC_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_ELASTIC_H_INCLUDED_


#include "store/ngx_http_ratelimit_store.h"
#include "elastic/ratelimit_pressure.h"


/* of keys of zones, a power of two */
#define NGX_HTTP_RATELIMIT_ELASTIC_STATES  1024


/* of one worker, in a cache line of its own */

typedef struct {
    ngx_atomic_t                    used;     /* msec:32, connections:32 */
    ngx_atomic_t                    unused[7];
} ngx_http_ratelimit_elastic_worker_t;


/* in shared memory, zeros at first, and the same for all configurations */

typedef struct {
    ngx_atomic_t                    claim;    /* msec:32, pid:32; of the one
                                                 worker that measures cpu */
    ngx_atomic_t                    cpu;      /* msec:32, usage + 1:32 */
    ngx_atomic_t                    cpu_state;
    ngx_atomic_t                    connections_state;

    /* by the hash of the key */
    ngx_atomic_t                    states[NGX_HTTP_RATELIMIT_ELASTIC_STATES];

    /* no more workers than nginx may have */
    ngx_http_ratelimit_elastic_worker_t  workers[NGX_MAX_PROCESSES];
} ngx_http_ratelimit_elastic_shared_t;


/* zone=NAME:P% */

typedef struct {
    ngx_str_t                       name;
    uint64_t                        mark;
    ngx_http_ratelimit_use_t        use;      /* of the zone's own counters */
} ngx_http_ratelimit_elastic_budget_t;


/* ratelimit_elastic; marks are per cent, 0 if not given */

typedef struct {
    uint64_t                        cpu;
    uint64_t                        connections;
    ngx_array_t                     budgets;  /* of zone=NAME:P% */
    ngx_conf_file_t                 origin;   /* where errors are reported */
    ngx_shm_zone_t                 *shm_zone;
    ngx_uint_t                      nworkers; /* set when a worker starts */
} ngx_http_ratelimit_elastic_t;


/* ngx_http_ratelimit_elastic.c */

/* whether there are resources to spare for the request */
ngx_uint_t ngx_http_ratelimit_elastic_spare(
    ngx_http_ratelimit_elastic_t *elastic, ngx_http_request_t *r);

/* whether a resource is under pressure; logs a change */
ngx_uint_t ngx_http_ratelimit_elastic_cpu_pressed(
    ngx_http_ratelimit_elastic_t *elastic);
ngx_uint_t ngx_http_ratelimit_elastic_connections_pressed(
    ngx_http_ratelimit_elastic_t *elastic);


/* ngx_http_ratelimit_elastic_shared.c */

ngx_int_t ngx_http_ratelimit_elastic_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_elastic_t *elastic, void *tag);
ngx_int_t ngx_http_ratelimit_elastic_init_process(ngx_cycle_t *cycle,
    ngx_http_ratelimit_elastic_t *elastic);

/* shares that are in use, or RATELIMIT_PRESSURE_UNKNOWN */
uint32_t ngx_http_ratelimit_elastic_cpu_usage(
    ngx_http_ratelimit_elastic_t *elastic);
uint32_t ngx_http_ratelimit_elastic_connections_usage(
    ngx_http_ratelimit_elastic_t *elastic);


/* ngx_http_ratelimit_elastic_cpu.c */

/*
 * Processor time of the cgroup if it has a quota, or of the machine.  Returns
 * the number of the source, 0 if none can be read.
 */
ngx_uint_t ngx_http_ratelimit_elastic_read_cpu(ratelimit_cpu_t *cpu);


#endif /* _NGX_HTTP_RATELIMIT_ELASTIC_H_INCLUDED_ */
