
/*
 * The table under many processes: exact counts when all race for the same
 * keys, inserts and evictions included, and while processes are killed.  One
 * process alone can't lose a count, so nothing else would see these.
 */


/* no sanitizer */

#include <time.h>

#include "hammer.h"


static void hammer_until_stopped(fleet_t *f, int number, void *data);
static int hammer_kill_some(fleet_t *f, hammer_tally_t *tally, pid_t *pid,
    int victims);
static void hammer_kill(ratelimit_algorithm_e algorithm, uint32_t buckets,
    int victims);
static void hammer_hold(fleet_t *f, int number, void *data);
static void hammer_dead_holder(void);


static void
hammer_until_stopped(fleet_t *f, int number, void *data)
{
    uint64_t         seed;
    hammer_tally_t  *tally = data;

    seed = 88172645463325252ULL + (uint64_t) number;

    while (!__atomic_load_n(&tally->stop, __ATOMIC_RELAXED)) {
        hammer_once(f, fleet_random(&seed) % HAMMER_KEYS, tally);
        __atomic_fetch_add(&tally->asked, 1, __ATOMIC_RELAXED);
    }
}


/* kills one process after another; processes work between two deaths */

static int
hammer_kill_some(fleet_t *f, hammer_tally_t *tally, pid_t *pid, int victims)
{
    int              i, killed;
    uint64_t         before;
    struct timespec  pause;

    pause.tv_sec = 0;

    for (killed = 0; killed < victims; killed++) {
        i = killed % HAMMER_WORKERS;

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
    int              i, killed;
    pid_t            pid[HAMMER_WORKERS];
    fleet_t          f;
    uint64_t         sum;
    unsigned         wrong;
    hammer_tally_t  *tally;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(HAMMER_LIMIT, 86400);

    tally = fleet_memory(sizeof(hammer_tally_t));
    fleet_open(&f, 1 << 20, algorithm, buckets);

    for (i = 0; i < HAMMER_WORKERS; i++) {
        pid[i] = fleet_fork(&f, hammer_until_stopped, i, tally);
    }

    killed = hammer_kill_some(&f, tally, pid, victims);

    __atomic_store_n(&tally->stop, 1, __ATOMIC_RELAXED);

    for (i = 0; i < HAMMER_WORKERS; i++) {
        (void) fleet_wait(pid[i]);
    }

    /* all keys can still be used, by this process too */

    for (i = 0; i < HAMMER_KEYS * (HAMMER_LIMIT + 1); i++) {
        hammer_once(&f, i % HAMMER_KEYS, tally);
    }

    /* a charge of the dead was never answered: at most one for each */

    sum = 0;

    for (i = 0; i < HAMMER_KEYS; i++) {
        sum += tally->admitted[i];
    }

    wrong = hammer_wrong(tally, 0, HAMMER_LIMIT);

    tap_ok(wrong == 0
           && sum + (uint64_t) victims >= HAMMER_KEYS * HAMMER_LIMIT,
           "%s buckets=%u: %d processes killed, %u of %u admitted, "
           "%u keys beyond",
           ratelimit_algorithms[algorithm]->name, buckets, killed,
           (unsigned) sum, HAMMER_KEYS * HAMMER_LIMIT, wrong);
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
    f.rules[0] = fleet_rule(HAMMER_LIMIT, 86400);

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

    (void) alarm(600);   /* a hang is a failure */

    hammer_dead_holder();

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        hammer_exact(i, fleet_buckets(i), 1, 10);
    }

    hammer_exact(RATELIMIT_SLIDING_WINDOW, 1, 1, 10);
    hammer_exact(RATELIMIT_FIXED_WINDOW, 0, 2, 10);
    hammer_exact(RATELIMIT_SLIDING_WINDOW, 10, 2, 10);

    hammer_together(RATELIMIT_FIXED_WINDOW, 0);
    hammer_together(RATELIMIT_SLIDING_WINDOW, 10);
    hammer_together(RATELIMIT_SLIDING_LOG, 0);

    hammer_kill(RATELIMIT_FIXED_WINDOW, 0, 400);
    hammer_kill(RATELIMIT_SLIDING_WINDOW, 10, 400);
    hammer_kill(RATELIMIT_SLIDING_LOG, 0, 400);
    hammer_kill(RATELIMIT_TOKEN_BUCKET, 0, 400);

    return tap_done();
}
