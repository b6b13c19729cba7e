
/*
 * The table under many processes: exact counts when all race for the same
 * keys, inserts and evictions included, and while processes are killed.  One
 * process alone can't lose a count, so nothing else would see these.
 */


/* no sanitizer */

#include <time.h>

#include "fleet.h"


#define PROCESSES  4
#define KEYS       512
#define LIMIT      20


typedef struct {
    uint64_t                        admitted[KEYS];
    uint64_t                        shared;
    uint64_t                        asked;
    uint32_t                        stop;
} tally_t;


static void hammer_once(fleet_t *f, uint64_t key, tally_t *tally);
static void hammer_all_keys(fleet_t *f, int number, void *data);
static void hammer_until_stopped(fleet_t *f, int number, void *data);
static unsigned hammer_wrong(const tally_t *tally, uint64_t low, uint64_t
    high);
static void hammer_exact(ratelimit_algorithm_e algorithm, uint32_t buckets,
    size_t n);
static int hammer_hit_two(fleet_t *f, uint64_t key);
static void hammer_two(fleet_t *f, int number, void *data);
static void hammer_together(ratelimit_algorithm_e algorithm, uint32_t buckets);
static int hammer_kill_some(fleet_t *f, tally_t *tally, pid_t *pid, int
    victims);
static void hammer_kill(ratelimit_algorithm_e algorithm, uint32_t buckets, int
    victims);
static void hammer_hold(fleet_t *f, int number, void *data);
static void hammer_dead_holder(void);


static void
hammer_once(fleet_t *f, uint64_t key, tally_t *tally)
{
    /* admitted is counted before the answer is used: a process killed uncounted
     * was charged but has not been admitted */

    if (fleet_hit(f, key)) {
        __atomic_fetch_add(&tally->admitted[key], 1, __ATOMIC_RELAXED);
    }
}


static void
hammer_all_keys(fleet_t *f, int number, void *data)
{
    uint64_t  i, seed;

    seed = 88172645463325252ULL + (uint64_t) number;

    for (i = 0; i < 3 * KEYS * LIMIT; i++) {
        hammer_once(f, fleet_random(&seed) % KEYS, data);
    }

    /* whatever chance left over */

    for (i = 0; i < (uint64_t) KEYS * LIMIT; i++) {
        hammer_once(f, i % KEYS, data);
    }
}


static void
hammer_until_stopped(fleet_t *f, int number, void *data)
{
    tally_t   *tally = data;
    uint64_t   seed;

    seed = 88172645463325252ULL + (uint64_t) number;

    while (!__atomic_load_n(&tally->stop, __ATOMIC_RELAXED)) {
        hammer_once(f, fleet_random(&seed) % KEYS, tally);
        __atomic_fetch_add(&tally->asked, 1, __ATOMIC_RELAXED);
    }
}


static unsigned
hammer_wrong(const tally_t *tally, uint64_t low, uint64_t high)
{
    unsigned  i, wrong;

    wrong = 0;

    for (i = 0; i < KEYS; i++) {
        wrong += (tally->admitted[i] < low || tally->admitted[i] > high);
    }

    return wrong;
}


/* n limits of each key, of which the first is the tightest */

static void
hammer_exact(ratelimit_algorithm_e algorithm, uint32_t buckets, size_t n)
{
    int       i;
    pid_t     pid[PROCESSES];
    fleet_t   f;
    tally_t  *tally;
    unsigned  round, wrong;

    wrong = 0;

    for (round = 0; round < 10; round++) {

        memset(&f, 0, sizeof(fleet_t));
        f.n = n;
        f.rules[0] = fleet_rule(LIMIT, 86400);
        f.rules[1] = fleet_rule(2 * LIMIT, 3600);

        tally = fleet_memory(sizeof(tally_t));
        fleet_open(&f, 1 << 20, algorithm, buckets);

        for (i = 0; i < PROCESSES; i++) {
            pid[i] = fleet_fork(&f, hammer_all_keys, i, tally);
        }

        for (i = 0; i < PROCESSES; i++) {
            wrong += (fleet_wait(pid[i]) != 0);
        }

        wrong += hammer_wrong(tally, LIMIT, LIMIT);
        wrong += ratelimit_table_evicted(&f.table) != 0;

        (void) munmap(tally, sizeof(tally_t));
    }

    tap_ok(wrong == 0,
           "%s buckets=%u, %u limits: %d processes, %d keys, exactly %d each",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) n,
           PROCESSES, KEYS, LIMIT);
}


/* one limit for each key and one for all: what one refuses, none is charged */

static int
hammer_hit_two(fleet_t *f, uint64_t key)
{
    ratelimit_clock_t  clock;
    ratelimit_item_t   items[2];
    ratelimit_place_t  places[2];

    clock.now = f->now;
    clock.wall = f->now;

    items[0].rule = &f->rules[0];
    items[0].cost = 1;
    items[0].count_rejected = 0;
    items[1].rule = &f->rules[1];
    items[1].cost = 1;
    items[1].count_rejected = 0;

    places[0].table = &f->table;
    places[1].table = &f->table;

    fleet_hash(f, key, &places[0].hash);
    fleet_hash(f, UINT64_MAX, &places[1].hash);

    return ratelimit_table_decide(items, places, 2, &clock, f->me);
}


static void
hammer_two(fleet_t *f, int number, void *data)
{
    tally_t   *tally = data;
    uint64_t   i, key, seed;

    seed = 88172645463325252ULL + (uint64_t) number;

    for (i = 0; i < 100000; i++) {
        key = fleet_random(&seed) % KEYS;

        if (hammer_hit_two(f, key)) {
            __atomic_fetch_add(&tally->admitted[key], 1, __ATOMIC_RELAXED);
            __atomic_fetch_add(&tally->shared, 1, __ATOMIC_RELAXED);
        }
    }
}


static void
hammer_together(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int       i;
    pid_t     pid[PROCESSES];
    fleet_t   f;
    tally_t  *tally;
    unsigned  wrong;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 2;
    f.rules[0] = fleet_rule(LIMIT, 86400);
    f.rules[1] = fleet_rule(KEYS * LIMIT / 2, 3600);

    tally = fleet_memory(sizeof(tally_t));
    fleet_open(&f, 32 << 20, algorithm, buckets);

    for (i = 0; i < PROCESSES; i++) {
        pid[i] = fleet_fork(&f, hammer_two, i, tally);
    }

    wrong = 0;

    for (i = 0; i < PROCESSES; i++) {
        wrong += (fleet_wait(pid[i]) != 0);
    }

    wrong += hammer_wrong(tally, 0, LIMIT);

    tap_ok(wrong == 0 && tally->shared == KEYS * LIMIT / 2,
           "%s buckets=%u: two limits as one, %u of %u for all",
           ratelimit_algorithms[algorithm]->name, buckets,
           (unsigned) tally->shared, KEYS * LIMIT / 2);
}


/* kills one process after another; processes work between two deaths */

static int
hammer_kill_some(fleet_t *f, tally_t *tally, pid_t *pid, int victims)
{
    int              i, killed;
    uint64_t         before;
    struct timespec  pause;

    pause.tv_sec = 0;

    for (killed = 0; killed < victims; killed++) {
        i = killed % PROCESSES;

        before = __atomic_load_n(&tally->asked, __ATOMIC_RELAXED);
        pause.tv_nsec = 1000 * (killed % 97);

        while (__atomic_load_n(&tally->asked, __ATOMIC_RELAXED) == before) {
            (void) nanosleep(&pause, NULL);
        }

        (void) kill(pid[i], SIGKILL);
        (void) fleet_wait(pid[i]);

        pid[i] = fleet_fork(f, hammer_until_stopped, killed, tally);
    }

    return killed;
}


/*
 * Processes are killed as fast as they can be replaced; the rest goes on, and
 * no client ever gets more than the limit.
 */

static void
hammer_kill(ratelimit_algorithm_e algorithm, uint32_t buckets, int victims)
{
    int        i, killed;
    pid_t      pid[PROCESSES];
    fleet_t    f;
    tally_t   *tally;
    uint64_t   sum;
    unsigned   wrong;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(LIMIT, 86400);

    tally = fleet_memory(sizeof(tally_t));
    fleet_open(&f, 1 << 20, algorithm, buckets);

    for (i = 0; i < PROCESSES; i++) {
        pid[i] = fleet_fork(&f, hammer_until_stopped, i, tally);
    }

    killed = hammer_kill_some(&f, tally, pid, victims);

    __atomic_store_n(&tally->stop, 1, __ATOMIC_RELAXED);

    for (i = 0; i < PROCESSES; i++) {
        (void) fleet_wait(pid[i]);
    }

    /* all keys can still be used, by this process too */

    for (i = 0; i < KEYS * (LIMIT + 1); i++) {
        hammer_once(&f, i % KEYS, tally);
    }

    /* a charge of the dead was never answered: at most one for each */

    sum = 0;

    for (i = 0; i < KEYS; i++) {
        sum += tally->admitted[i];
    }

    wrong = hammer_wrong(tally, 0, LIMIT);

    tap_ok(wrong == 0 && sum + (uint64_t) victims >= KEYS * LIMIT,
           "%s buckets=%u: %d processes killed, %u of %u admitted, "
           "%u keys beyond",
           ratelimit_algorithms[algorithm]->name, buckets, killed,
           (unsigned) sum, KEYS * LIMIT, wrong);
}


/* a process dies with a lock in its hand */

static void
hammer_hold(fleet_t *f, int number, void *data)
{
    (void) number;

    ratelimit_lock(data, f->me, f->lifelines);

    raise(SIGKILL);
}


static void
hammer_dead_holder(void)
{
    int                i;
    pid_t              pid;
    fleet_t            f;
    ratelimit_lock_t  *lock;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(LIMIT, 86400);

    fleet_open(&f, 1 << 20, RATELIMIT_FIXED_WINDOW, 0);

    lock = fleet_memory(sizeof(ratelimit_lock_t));

    for (i = 0; i < 100; i++) {
        pid = fleet_fork(&f, hammer_hold, i, lock);

        /* not reaped yet: a zombie must not look alive */

        while ((uint32_t) __atomic_load_n(lock, __ATOMIC_ACQUIRE) == 0) {
            /* void */
        }

        ratelimit_lock(lock, f.me, f.lifelines);
        ratelimit_unlock(lock);

        (void) fleet_wait(pid);
    }

    tap_ok(1, "a lock is taken over from 100 dead holders");
    tap_ok(ratelimit_lifelines_alive(f.lifelines, f.me),
           "a process that lives is not taken for dead");
}


int
main(void)
{
    unsigned  i;

    (void) alarm(120);   /* a hang is a failure */

    hammer_dead_holder();

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        hammer_exact(i, fleet_buckets(i), 1);
    }

    hammer_exact(RATELIMIT_SLIDING_WINDOW, 1, 1);
    hammer_exact(RATELIMIT_FIXED_WINDOW, 0, 2);
    hammer_exact(RATELIMIT_SLIDING_WINDOW, 10, 2);

    hammer_together(RATELIMIT_FIXED_WINDOW, 0);
    hammer_together(RATELIMIT_SLIDING_WINDOW, 10);
    hammer_together(RATELIMIT_SLIDING_LOG, 0);

    hammer_kill(RATELIMIT_FIXED_WINDOW, 0, 400);
    hammer_kill(RATELIMIT_SLIDING_WINDOW, 10, 400);
    hammer_kill(RATELIMIT_SLIDING_LOG, 0, 400);
    hammer_kill(RATELIMIT_TOKEN_BUCKET, 0, 400);

    return tap_done();
}
