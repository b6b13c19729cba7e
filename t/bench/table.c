
/*
 * The table alone, against a mutex with a red-black tree and a queue: decisions
 * a second of one process and of two, keys of 16 bytes.  All are measured in
 * turn, round by round, and the median of the rounds counts.  "touch" is the
 * floor: one write to a random cache line of 64 bytes for each key.
 *
 *     table [ROUNDS [MOST KEYS]]
 *
 * Prints lines of: what, structure, keys, processes, millions a second.
 */


#define _GNU_SOURCE

#include <sched.h>
#include <time.h>

#include "fleet.h"
#include "rbtree.h"


#define TABLE_PROCESSES   2
#define TABLE_ROUNDS      99
#define TABLE_SLICE       100000000ULL     /* ns */
#define TABLE_BATCH       256
#define TABLE_LINE        64


typedef enum {
    TABLE_UNIFORM = 0,
    TABLE_ADMITTED,
    TABLE_REFUSED
} table_load_e;


/* a structure under test: ours, or the tree */

typedef struct {
    const char       *name;
    void             *memory;
    size_t            size;
    rbtree_t         *tree;
    uint64_t         *lines;
    uint64_t          nlines;
    fleet_t           fleet;
} table_store_t;


/* what the processes are to do, in memory that they share */

typedef struct {
    uint32_t          ready;
    uint32_t          go;
    unsigned          store;
    table_load_e      load;
    uint64_t          keys;
    double            rates[TABLE_PROCESSES];
    uint64_t          denied[TABLE_PROCESSES];
} table_job_t;


static uint64_t table_clock(void);
static int table_touch_line(table_store_t *s, uint64_t hash);
static int table_decide(table_store_t *s, uint64_t number, uint64_t now);
static ratelimit_rule_t table_rule(table_load_e load);
static void table_open(unsigned i, uint64_t keys, table_load_e load);
static void table_close(unsigned i);
static void table_touch(void);
static uint64_t table_waited(void);
static void table_slice(unsigned number);
static void table_work(unsigned number, int commands);
static void table_start(int *pipes);
static void table_stop(int *pipes);
static double table_measure(int *pipes, unsigned processes);
static int table_compare(const void *a, const void *b);
static void table_run(const char *what, table_load_e load, uint64_t keys);


static const struct {
    const char             *name;
    ratelimit_algorithm_e   algorithm;
    uint32_t                buckets;
    size_t                  bytes;         /* of a key */
} table_kinds[] = {
    { "touch", RATELIMIT_ALGORITHMS, 0, TABLE_LINE },
    { "tree", RATELIMIT_ALGORITHMS, 0, RBTREE_NODE },
    { "fixed_window", RATELIMIT_FIXED_WINDOW, 0, 24 },
    { "sliding_window", RATELIMIT_SLIDING_WINDOW, 10, 72 }
};

#define TABLE_STORES  (sizeof(table_kinds) / sizeof(table_kinds[0]))


static table_store_t   table_stores[TABLE_STORES];
static table_job_t    *table_job;
static unsigned        table_rounds;
static pid_t           table_workers[TABLE_PROCESSES];


static uint64_t
table_clock(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}


/* the next address is not known before this line has come */

static int
table_touch_line(table_store_t *s, uint64_t hash)
{
    static uint64_t  last;

    uint64_t  *line;

    line = s->lines + ((hash ^ last) >> 20) % s->nlines * (TABLE_LINE / 8);
    last = __atomic_add_fetch(line, 1, __ATOMIC_RELAXED) >> 63;

    return 1;
}


static int
table_decide(table_store_t *s, uint64_t number, uint64_t now)
{
    uint64_t           key[2];
    ratelimit_item_t   item;
    ratelimit_clock_t  clock;
    ratelimit_place_t  place;

    key[0] = number * 0x9e3779b97f4a7c15ULL;
    key[1] = number;

    if (s->lines) {
        return table_touch_line(s, key[0]);
    }

    if (s->tree) {
        return rbtree_check(s->tree, key, sizeof(key), now / 1000000);
    }

    ratelimit_key_hash(&s->fleet.hasher, key, sizeof(key), &place.hash);

    place.table = &s->fleet.table;
    item.rule = &s->fleet.rules[0];
    item.cost = 1;
    item.count_rejected = 0;

    clock.now = now / 1000000 * 1000;
    clock.wall = clock.now;
    clock.steady = clock.now;

    return ratelimit_table_decide(&item, &place, 1, &clock, s->fleet.me);
}


/*
 * A rule that refuses all, or nothing.  A higher limit would need larger
 * states, for which there is no room.  One key that has all decisions is not to
 * reach it, either: its period is as short as can be, and its time runs faster.
 */

static ratelimit_rule_t
table_rule(table_load_e load)
{
    ratelimit_rule_t  rule;

    if (load == TABLE_REFUSED) {
        return fleet_rule(1, 86400);
    }

    rule = fleet_rule(60000, 60);

    if (load == TABLE_ADMITTED) {
        rule.period = RATELIMIT_SECOND / 1000;
    }

    return rule;
}


/* a store of its own for each structure, with keys in it if they are many */

static void
table_open(unsigned i, uint64_t keys, table_load_e load)
{
    fleet_t        *f;
    uint64_t        k, now;
    table_store_t  *s;

    s = &table_stores[i];
    f = &s->fleet;
    memset(s, 0, sizeof(table_store_t));

    s->name = table_kinds[i].name;

    if (table_kinds[i].bytes == TABLE_LINE) {
        s->size = keys * TABLE_LINE;
        s->memory = fleet_memory(s->size);
        s->lines = s->memory;
        s->nlines = keys;

    } else if (table_kinds[i].algorithm == RATELIMIT_ALGORITHMS) {
        s->size = rbtree_size(keys);
        s->memory = fleet_memory(s->size);
        s->tree = rbtree_create(s->memory, s->size,
                                load == TABLE_REFUSED ? 0 : 1ULL << 40,
                                load == TABLE_REFUSED ? 0 : 1ULL << 60);

    } else {
        f->n = 1;
        f->rules[0] = table_rule(load);

        fleet_open(f, keys * table_kinds[i].bytes + (1 << 20),
                   table_kinds[i].algorithm, table_kinds[i].buckets);

        s->memory = ratelimit_table_memory(&f->table, &s->size);
    }

    now = table_clock();

    for (k = 0; k < keys; k++) {
        (void) table_decide(s, k, now);
    }

    /* a key that was refused once is marked */

    (void) table_decide(s, 0, now);
    (void) table_decide(s, 0, now);

    if (s->fleet.n && ratelimit_table_evictions(&f->table) > keys / 10000) {
        fprintf(stderr, "%s: too small for %llu keys\n", s->name,
                (unsigned long long) keys);
        exit(2);
    }
}


static void
table_close(unsigned i)
{
    munmap(table_stores[i].memory, table_stores[i].size);
}


/* the pages are there before time is taken */

static void
table_touch(void)
{
    size_t    at;
    unsigned  i;

    for (i = 0; i < TABLE_STORES; i++) {
        for (at = 0; at < table_stores[i].size; at += 4096) {
            (void) __atomic_fetch_add((char *) table_stores[i].memory + at, 0,
                                      __ATOMIC_RELAXED);
        }
    }
}


/* ns that this process could have run, but others did */

static uint64_t
table_waited(void)
{
    FILE                *in;
    unsigned long long   ran, waited;

    in = fopen("/proc/self/schedstat", "r");

    if (in == NULL || fscanf(in, "%llu %llu", &ran, &waited) != 2) {
        perror("schedstat");
        exit(2);
    }

    fclose(in);

    return waited;
}


static void
table_slice(unsigned number)
{
    uint64_t        begin, now, end, seed, key, denied, n, waited, hurry;
    table_store_t  *s;

    s = &table_stores[table_job->store];
    seed = 88172645463325252ULL + number * 0x9e3779b97f4a7c15ULL
           + table_clock();
    key = 0;
    n = 0;
    denied = 0;

    /* the time of one key runs faster, so that no limit is too low for it */

    hurry = (table_job->load == TABLE_ADMITTED) ? 10 : 1;

    waited = table_waited();
    begin = table_clock();
    end = begin + TABLE_SLICE;
    now = begin;

    do {
        if (table_job->load == TABLE_UNIFORM) {
            key = fleet_random(&seed) % table_job->keys;
        }

        denied += !table_decide(s, key, now * hurry);

        if (++n % TABLE_BATCH == 0) {
            now = table_clock();
        }

    } while (now < end);

    waited = table_waited() - waited;

    table_job->rates[number] = (double) n * 1000 / (now - begin - waited);
    table_job->denied[number] = denied;
}


/* a process: waits for jobs until it is killed */

static void
table_work(unsigned number, int commands)
{
    char       c;
    unsigned   i;
    cpu_set_t  cpus;

    CPU_ZERO(&cpus);
    CPU_SET(number % sysconf(_SC_NPROCESSORS_ONLN), &cpus);
    (void) sched_setaffinity(0, sizeof(cpu_set_t), &cpus);

    for (i = 0; i < TABLE_STORES; i++) {
        if (table_stores[i].fleet.lifelines) {
            table_stores[i].fleet.me = ratelimit_lifelines_claim(
                                          table_stores[i].fleet.lifelines);
        }
    }

    table_touch();

    while (read(commands, &c, 1) == 1) {
        __atomic_add_fetch(&table_job->ready, 1, __ATOMIC_ACQ_REL);

        while (!__atomic_load_n(&table_job->go, __ATOMIC_ACQUIRE)) {
            /* void */
        }

        table_slice(number);

        __atomic_sub_fetch(&table_job->ready, 1, __ATOMIC_ACQ_REL);
    }
}


static void
table_start(int *pipes)
{
    int       fd[2];
    unsigned  i;

    for (i = 0; i < TABLE_PROCESSES; i++) {

        if (pipe(fd) == -1) {
            perror("pipe");
            exit(2);
        }

        fflush(stdout);

        table_workers[i] = fork();

        if (table_workers[i] == 0) {
            if (i > 0) {
                close(pipes[0]);
            }

            close(fd[1]);
            table_work(i, fd[0]);
            _exit(0);
        }

        close(fd[0]);
        pipes[i] = fd[1];
    }
}


static void
table_stop(int *pipes)
{
    unsigned  i;

    for (i = 0; i < TABLE_PROCESSES; i++) {
        close(pipes[i]);
    }

    for (i = 0; i < TABLE_PROCESSES; i++) {
        (void) fleet_wait(table_workers[i]);
    }
}


/* millions of decisions a second */

static double
table_measure(int *pipes, unsigned processes)
{
    double    sum;
    unsigned  i;

    table_job->go = 0;

    for (i = 0; i < processes; i++) {
        if (write(pipes[i], "", 1) != 1) {
            perror("write");
            exit(2);
        }
    }

    while (__atomic_load_n(&table_job->ready, __ATOMIC_ACQUIRE) < processes) {
        usleep(50);
    }

    __atomic_store_n(&table_job->go, 1, __ATOMIC_RELEASE);

    while (__atomic_load_n(&table_job->ready, __ATOMIC_ACQUIRE) > 0) {
        usleep(1000);
    }

    sum = 0;

    for (i = 0; i < processes; i++) {
        sum += table_job->rates[i];

        if (table_stores[table_job->store].lines == NULL
            && (table_job->load == TABLE_REFUSED)
               != (table_job->denied[i] > 0))
        {
            fprintf(stderr, "%s: %llu were refused\n",
                    table_stores[table_job->store].name,
                    (unsigned long long) table_job->denied[i]);
            exit(2);
        }
    }

    return sum;
}


static int
table_compare(const void *a, const void *b)
{
    double  x, y;

    x = *(const double *) a;
    y = *(const double *) b;

    return (x > y) - (x < y);
}


static void
table_run(const char *what, table_load_e load, uint64_t keys)
{
    int       pipes[TABLE_PROCESSES];
    double    rates[TABLE_STORES][TABLE_PROCESSES][TABLE_ROUNDS];
    unsigned  i, p, round;

    for (i = 0; i < TABLE_STORES; i++) {
        table_open(i, keys, load);
    }

    table_start(pipes);

    table_job->load = load;
    table_job->keys = keys;

    for (round = 0; round < table_rounds; round++) {
        for (p = 0; p < TABLE_PROCESSES; p++) {
            for (i = 0; i < TABLE_STORES; i++) {
                table_job->store = i;
                rates[i][p][round] = table_measure(pipes, p + 1);
            }
        }
    }

    table_stop(pipes);

    for (i = 0; i < TABLE_STORES; i++) {
        for (p = 0; p < TABLE_PROCESSES; p++) {
            qsort(rates[i][p], table_rounds, sizeof(double), table_compare);

            printf("%s\t%s\t%llu\t%u\t%.3f\n", what, table_stores[i].name,
                   (unsigned long long) keys, p + 1,
                   rates[i][p][table_rounds / 2]);
        }

        table_close(i);
    }

    fflush(stdout);
}


int
main(int argc, char **argv)
{
    uint64_t  keys, most;

    table_rounds = (argc > 1) ? atoi(argv[1]) : 7;
    most = (argc > 2) ? strtoull(argv[2], NULL, 10) : 10000000;

    if (table_rounds == 0 || table_rounds > TABLE_ROUNDS) {
        fprintf(stderr, "1 to %u rounds\n", TABLE_ROUNDS);
        return 2;
    }

    table_job = fleet_memory(sizeof(table_job_t));

    table_run("admitted", TABLE_ADMITTED, 1);
    table_run("refused", TABLE_REFUSED, 1);

    for (keys = 10000; keys <= most; keys *= 10) {
        table_run("uniform", TABLE_UNIFORM, keys);
    }

    return 0;
}
