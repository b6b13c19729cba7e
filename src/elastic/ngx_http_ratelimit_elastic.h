
/*
 * Whether there are resources to spare, so that limits may be exceeded: what
 * "ratelimit_elastic" says, and what is known of it by all workers.
 */


#ifndef _NGX_HTTP_RATELIMIT_ELASTIC_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_ELASTIC_H_INCLUDED_


#include "conf/ngx_http_ratelimit_conf.h"
#include "elastic/ratelimit_pressure.h"


/* no more workers than nginx may have */
#define NGX_HTTP_RATELIMIT_WORKERS  NGX_MAX_PROCESSES

/* of keys of zones, a power of two */
#define NGX_HTTP_RATELIMIT_STATES   1024


/* of one worker, in a cache line of its own */

typedef struct {
    ngx_atomic_t                    used;     /* msec:32, connections:32 */
    ngx_atomic_t                    unused[7];
} ngx_http_ratelimit_worker_t;


/* in shared memory, zeros at first, and the same for all configurations */

typedef struct {
    ngx_atomic_t                    lease;    /* msec:32, pid:32; of the one
                                                 worker that measures cpu */
    ngx_atomic_t                    cpu;      /* msec:32, share + 1:32 */
    ngx_atomic_t                    cpu_state;
    ngx_atomic_t                    connections_state;

    /* by the hash of the key */
    ngx_atomic_t                    states[NGX_HTTP_RATELIMIT_STATES];

    ngx_http_ratelimit_worker_t     workers[NGX_HTTP_RATELIMIT_WORKERS];
} ngx_http_ratelimit_pressure_t;


/* zone=NAME:P% */

typedef struct {
    ngx_str_t                       name;
    uint64_t                        mark;
    ngx_http_ratelimit_use_t        use;      /* of the zone's own counters */
    ngx_http_ratelimit_expr_t       key;
} ngx_http_ratelimit_budget_t;


/* ratelimit_elastic; marks are per cent, 0 if not given */

struct ngx_http_ratelimit_elastic_s {
    uint64_t                        cpu;
    uint64_t                        connections;
    ngx_array_t                     budgets;  /* ngx_http_ratelimit_budget_t */
    ngx_conf_file_t                 origin;   /* where errors are found */
    ngx_shm_zone_t                 *shm_zone;
    ngx_uint_t                      nworkers; /* known when one starts */
};


/* ngx_http_ratelimit_elastic.c: whether a signal has come to its mark */

ngx_uint_t ngx_http_ratelimit_elastic_cpu(
    ngx_http_ratelimit_elastic_t *elastic);
ngx_uint_t ngx_http_ratelimit_elastic_connections(
    ngx_http_ratelimit_elastic_t *elastic);


/* ngx_http_ratelimit_pressure.c: shares that are in use, or UNKNOWN */

uint32_t ngx_http_ratelimit_pressure_cpu(
    ngx_http_ratelimit_elastic_t *elastic);
uint32_t ngx_http_ratelimit_pressure_connections(
    ngx_http_ratelimit_elastic_t *elastic);


/* ngx_http_ratelimit_cpu.c */

/*
 * What the machine has used so far, or the cgroup if that has a quota.  The
 * source tells one from another, it is 0 if nothing can be known.
 */
ngx_uint_t ngx_http_ratelimit_cpu_read(ratelimit_cpu_t *cpu);


#endif /* _NGX_HTTP_RATELIMIT_ELASTIC_H_INCLUDED_ */
