
/*
 * A table in shared memory, and a fleet of processes that use it; or threads,
 * as ThreadSanitizer sees only what is done in one process.
 */


#ifndef _FLEET_H_INCLUDED_
#define _FLEET_H_INCLUDED_


#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/ratelimit.h"
#include "core/ratelimit_key.h"
#include "table/ratelimit_table.h"

#include "tap.h"


#define FLEET_LIMITS  4


typedef struct {
    ratelimit_lifelines_t  *lifelines;
    ratelimit_table_t       table;
    ratelimit_hasher_t      hasher;
    ratelimit_shape_t       shape;
    ratelimit_rule_t        rules[FLEET_LIMITS];
    size_t                  n;
    uint32_t                me;
    uint64_t                now;      /* us */
    uint64_t                ahead;    /* the clock of what is asked about */
    unsigned                count_rejected;   /* refused requests count, too */
    unsigned                reserves; /* requests count by their end */
    uint64_t                asked;    /* so many */
    uint64_t                secret;   /* of the next table, if not 0 */

    const ratelimit_instance_t  *instance;
} fleet_t;


typedef void (*fleet_run_pt)(fleet_t *f, int number, void *data);


/* a process or a thread that runs a function */

typedef struct {
    fleet_t                 fleet;    /* a thread needs one of its own */
    fleet_run_pt            run;
    int                     number;
    void                   *data;
    pid_t                   pid;
    pthread_t               thread;
} fleet_worker_t;


/* start threads, not processes */
static unsigned  fleet_threads;


static void *
fleet_memory(size_t size)
{
    void  *memory;

    memory = mmap(NULL, size, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANONYMOUS,
                  -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }

    return memory;
}


static ratelimit_rule_t __attribute__((unused))
fleet_rule(uint64_t limit, uint64_t seconds)
{
    ratelimit_rule_t  rule;

    memset(&rule, 0, sizeof(ratelimit_rule_t));

    rule.limit = limit;
    rule.capacity = limit;
    rule.ceiling = limit;
    rule.period = seconds * RATELIMIT_SECOND;

    return rule;
}


/* the usual number of sub-windows, 0 if the algorithm has none */

static uint32_t __attribute__((unused))
fleet_buckets(ratelimit_algorithm_e algorithm)
{
    return (ratelimit_algorithms[algorithm]->takes & RATELIMIT_TAKES_BUCKETS)
           ? 10 : 0;
}


/* opens a table for the rules that the fleet has */

static void __attribute__((unused))
fleet_open(fleet_t *f, size_t size, ratelimit_algorithm_e algorithm,
    uint32_t buckets)
{
    size_t            i;
    uint32_t          packed;
    ratelimit_hash_t  secret;

    secret.lo = f->secret ? f->secret : 0x0123456789abcdef;
    secret.hi = 0xfedcba9876543210;

    memset(&f->shape, 0, sizeof(ratelimit_shape_t));

    f->shape.algorithm = algorithm;
    f->shape.buckets = buckets;
    f->shape.reserves = f->reserves;

    packed = 1;

    for (i = 0; i < f->n; i++) {
        packed &= ratelimit_table_fit(&f->shape, &f->rules[i]);
    }

    if (f->lifelines == NULL) {
        f->lifelines = ratelimit_lifelines_create(
                                   fleet_memory(ratelimit_lifelines_size()));
        f->me = ratelimit_lifelines_claim(f->lifelines);
        f->now = 1000000 * RATELIMIT_SECOND;
    }

    if (f->lifelines == NULL || f->me == 0
        || ratelimit_table_open(&f->table, fleet_memory(size), size, &f->shape,
                                packed, &secret, f->lifelines)
           == NULL)
    {
        fprintf(stderr, "the table does not open\n");
        exit(2);
    }

    f->instance = f->table.instance;

    ratelimit_hasher_init(&f->hasher, ratelimit_table_secret(&f->table));

    for (i = 0; i < f->n; i++) {
        ratelimit_table_add_rule(&f->table, &f->rules[i], f->me);
    }
}


static void __attribute__((unused))
fleet_hash(const fleet_t *f, uint64_t key, ratelimit_hash_t *hash)
{
    ratelimit_key_hash(&f->hasher, &key, sizeof(uint64_t), hash);
}


static void
fleet_clock(const fleet_t *f, ratelimit_clock_t *clock)
{
    clock->now = f->now + f->ahead;
    clock->wall = clock->now;
    clock->steady = f->now;
}


static int
fleet_ask(fleet_t *f, uint64_t key, uint64_t cost, ratelimit_item_t *items)
{
    int                allowed;
    size_t             i;
    ratelimit_hash_t   hash;
    ratelimit_clock_t  clock;
    ratelimit_place_t  places[FLEET_LIMITS];

    fleet_hash(f, key, &hash);

    for (i = 0; i < f->n; i++) {
        items[i].rule = &f->rules[i];
        items[i].cost = cost;
        items[i].count_rejected = f->count_rejected;
        items[i].reserve = 0;
        places[i].table = &f->table;
        places[i].hash = hash;
    }

    fleet_clock(f, &clock);

    /* by turns as compiled for the kind and as for all others */

    f->table.instance = (f->asked++ % 2) ? f->instance
                                           : &ratelimit_table_any;

    allowed = ratelimit_table_decide(items, places, f->n, &clock, f->me);
    ratelimit_table_describe(items, places, f->n);

    f->table.instance = f->instance;

    return allowed;
}


/* one request */

static int __attribute__((unused))
fleet_hit(fleet_t *f, uint64_t key)
{
    ratelimit_item_t  items[FLEET_LIMITS];

    return fleet_ask(f, key, 1, items);
}


static uint64_t __attribute__((unused))
fleet_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;

    return *seed;
}


/* runs a function in a process of its own */

static pid_t __attribute__((unused))
fleet_fork(fleet_t *f, fleet_run_pt run, int number, void *data)
{
    pid_t  pid;

    fflush(stdout);

    pid = fork();

    if (pid == 0) {
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);   /* ends with its parent */
        f->me = ratelimit_lifelines_claim(f->lifelines);
        run(f, number, data);
        _exit(0);
    }

    if (pid == -1) {
        perror("fork");
        exit(2);
    }

    return pid;
}


static int __attribute__((unused))
fleet_wait(pid_t pid)
{
    int  status;

    if (waitpid(pid, &status, 0) != pid) {
        return -1;
    }

    return status;
}


static void * __attribute__((unused))
fleet_thread(void *data)
{
    fleet_worker_t  *w = data;

    w->fleet.me = ratelimit_lifelines_claim(w->fleet.lifelines);
    w->run(&w->fleet, w->number, w->data);

    return NULL;
}


static void __attribute__((unused))
fleet_start(fleet_worker_t *w, fleet_t *f, fleet_run_pt run, int number,
    void *data)
{
    if (!fleet_threads) {
        w->pid = fleet_fork(f, run, number, data);
        return;
    }

    w->fleet = *f;
    w->run = run;
    w->number = number;
    w->data = data;

    if (pthread_create(&w->thread, NULL, fleet_thread, w) != 0) {
        perror("pthread_create");
        exit(2);
    }
}


/* returns 0 if it ended well */

static int __attribute__((unused))
fleet_join(fleet_worker_t *w)
{
    return fleet_threads ? pthread_join(w->thread, NULL) : fleet_wait(w->pid);
}


#endif /* _FLEET_H_INCLUDED_ */
