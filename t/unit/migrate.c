
/*
 * A table that follows another one, of another size or shape, while processes
 * that know only the older one go on: no count may be lost or doubled, before,
 * while and after the older one is sealed.
 */


/* no sanitizer */

#include <sched.h>

#include "fleet.h"


#define OLD    2
#define NEW    2
#define KEYS   256
#define LIMIT  100


typedef struct {
    uint64_t                        admitted[KEYS];
    uint64_t                        asked;
    uint32_t                        stop_old;
    uint32_t                        stop_new;
} tally_t;


typedef struct {
    fleet_t                        *x;
    fleet_t                        *y;
    tally_t                        *tally;
} pair_t;


static void migrate_run(fleet_t *f, int number, void *data);
static void migrate_await(tally_t *tally, uint64_t more);
static unsigned migrate_wrong(fleet_t *f, tally_t *tally, uint64_t limit);
static void migrate_stop(uint32_t *stop, pid_t *pid, int n);
static void migrate_test(ratelimit_algorithm_e algorithm, uint32_t buckets,
    size_t old_size, size_t new_size, uint64_t new_limit);
static void migrate_pair_run(fleet_t *f, int number, void *data);
static void migrate_pair(void);
static void migrate_chain(void);


static void
migrate_run(fleet_t *f, int number, void *data)
{
    tally_t   *tally = data;
    uint32_t  *stop;
    uint64_t   key, seed;

    seed = 88172645463325252ULL + (uint64_t) number;
    stop = number < OLD ? &tally->stop_old : &tally->stop_new;

    while (!__atomic_load_n(stop, __ATOMIC_RELAXED)) {
        key = fleet_random(&seed) % KEYS;

        if (fleet_hit(f, key)) {
            __atomic_fetch_add(&tally->admitted[key], 1, __ATOMIC_RELAXED);
        }

        __atomic_fetch_add(&tally->asked, 1, __ATOMIC_RELAXED);
    }
}


static void
migrate_await(tally_t *tally, uint64_t more)
{
    uint64_t  goal;

    goal = __atomic_load_n(&tally->asked, __ATOMIC_RELAXED) + more;

    while (__atomic_load_n(&tally->asked, __ATOMIC_RELAXED) < goal) {
        (void) sched_yield();
    }
}


/* uses up what is left of each key; counts the keys that got another sum */

static unsigned
migrate_wrong(fleet_t *f, tally_t *tally, uint64_t limit)
{
    unsigned  wrong;
    uint64_t  key;

    wrong = 0;

    for (key = 0; key < KEYS; key++) {

        while (fleet_hit(f, key)) {
            tally->admitted[key]++;
        }

        wrong += tally->admitted[key] != limit;
    }

    return wrong;
}


static void
migrate_stop(uint32_t *stop, pid_t *pid, int n)
{
    int  i;

    __atomic_store_n(stop, 1, __ATOMIC_RELAXED);

    for (i = 0; i < n; i++) {
        (void) fleet_wait(pid[i]);
    }
}


static void
migrate_test(ratelimit_algorithm_e algorithm, uint32_t buckets,
    size_t old_size, size_t new_size, uint64_t new_limit)
{
    int       i;
    pid_t     pid[OLD + NEW];
    fleet_t   old, new;
    tally_t  *tally;
    unsigned  wrong;

    memset(&old, 0, sizeof(fleet_t));
    old.n = 1;
    old.rules[0] = fleet_rule(LIMIT, 86400);

    tally = fleet_memory(sizeof(tally_t));
    fleet_open(&old, old_size, algorithm, buckets);

    for (i = 0; i < OLD; i++) {
        pid[i] = fleet_fork(&old, migrate_run, i, tally);
    }

    migrate_await(tally, KEYS * LIMIT / 8);

    /* the newer table has a view of its own of the older one */

    new = old;
    new.rules[0] = fleet_rule(new_limit, 86400);

    fleet_open(&new, new_size, algorithm, buckets);
    new.table.older = &old.table;

    for (i = OLD; i < OLD + NEW; i++) {
        pid[i] = fleet_fork(&new, migrate_run, i, tally);
    }

    migrate_await(tally, KEYS * LIMIT / 8);

    migrate_stop(&tally->stop_old, pid, OLD);
    migrate_await(tally, KEYS * LIMIT / 8);

    ratelimit_table_seal(&old.table, new.now);

    migrate_await(tally, KEYS * LIMIT / 8);

    migrate_stop(&tally->stop_new, pid + OLD, NEW);

    wrong = migrate_wrong(&new, tally, new_limit);

    tap_ok(wrong == 0 && ratelimit_table_evicted(&old.table) == 0
           && ratelimit_table_evicted(&new.table) == 0,
           "%s buckets=%u, %u to %u bytes, limit %u to %u: %u keys wrong",
           ratelimit_algorithms[algorithm]->name, buckets,
           (unsigned) old_size, (unsigned) new_size, LIMIT,
           (unsigned) new_limit, wrong);
}


/*
 * Decisions about two tables, one of which follows an older one that is sealed
 * meanwhile: whatever each process holds then, none waits for another for ever.
 */

static void
migrate_pair_run(fleet_t *f, int number, void *data)
{
    pair_t             *pair = data;
    uint64_t            key, seed;
    ratelimit_clock_t   clock;
    ratelimit_item_t    items[2];
    ratelimit_place_t   places[2];

    seed = 88172645463325252ULL + (uint64_t) number;

    clock.now = f->now;
    clock.wall = f->now;

    while (!__atomic_load_n(&pair->tally->stop_new, __ATOMIC_RELAXED)) {
        key = fleet_random(&seed) % 4;

        memset(items, 0, sizeof(items));

        items[0].rule = &pair->x->rules[0];
        items[0].cost = 1;
        items[1].rule = &pair->y->rules[0];
        items[1].cost = 1;

        places[0].table = &pair->x->table;
        places[1].table = &pair->y->table;

        fleet_hash(pair->x, key, &places[0].hash);
        fleet_hash(pair->y, UINT64_MAX, &places[1].hash);

        (void) ratelimit_table_decide(items, places, 2, &clock, f->me);

        __atomic_fetch_add(&pair->tally->asked, 1, __ATOMIC_RELAXED);
    }
}


static void
migrate_pair(void)
{
    int      i, round;
    pid_t    pid[NEW + 1];
    pair_t   pair;
    fleet_t  old, x, y;

    for (round = 0; round < 40; round++) {

        memset(&old, 0, sizeof(fleet_t));
        old.n = 1;
        old.rules[0] = fleet_rule(1000000, 86400);
        fleet_open(&old, 64 << 10, RATELIMIT_FIXED_WINDOW, 0);

        /* both orders of the two tables' secrets must do */

        x = old;
        fleet_open(&x, 128 << 10, RATELIMIT_FIXED_WINDOW, 0);
        x.table.older = &old.table;

        y = old;
        y.secret = round % 2 ? 1 : UINT64_MAX;
        fleet_open(&y, 64 << 10, RATELIMIT_FIXED_WINDOW, 0);

        pair.x = &x;
        pair.y = &y;
        pair.tally = fleet_memory(sizeof(tally_t));

        for (i = 0; i < NEW + 1; i++) {
            pid[i] = fleet_fork(&x, migrate_pair_run, i, &pair);
        }

        migrate_await(pair.tally, 2000);
        ratelimit_table_seal(&old.table, old.now);
        migrate_await(pair.tally, 2000);
        migrate_stop(&pair.tally->stop_new, pid, NEW + 1);
    }

    tap_ok(1, "two tables, one sealed under load %d times: no process hangs",
           40);
}


/* which tables are in the chain, and when one leaves it */

static void
migrate_chain(void)
{
    fleet_t   a, b, c;
    unsigned  admitted;

    memset(&a, 0, sizeof(fleet_t));
    a.n = 1;
    a.rules[0] = fleet_rule(10, 60);
    fleet_open(&a, 1 << 20, RATELIMIT_FIXED_WINDOW, 0);

    admitted = fleet_hit(&a, 1) + fleet_hit(&a, 1) + fleet_hit(&a, 1);

    b = a;
    fleet_open(&b, 2 << 20, RATELIMIT_FIXED_WINDOW, 0);
    b.table.older = &a.table;

    c = b;
    fleet_open(&c, 3 << 20, RATELIMIT_FIXED_WINDOW, 0);
    c.table.older = &b.table;

    admitted += fleet_hit(&c, 1) + fleet_hit(&b, 1) + fleet_hit(&a, 1);

    ratelimit_table_seal(&a.table, a.now);
    admitted += fleet_hit(&c, 1) + fleet_hit(&b, 1);

    ratelimit_table_seal(&b.table, a.now);

    while (fleet_hit(&c, 1)) {
        admitted++;
    }

    tap_ok(admitted == 10, "one count through three tables: %u", admitted);

    tap_ok(!ratelimit_table_spent(&a.table, a.now + 60 * RATELIMIT_SECOND)
           && ratelimit_table_spent(&a.table, a.now + 600 * RATELIMIT_SECOND),
           "a sealed table is spent when its last counter has run out");
}


int
main(void)
{
    (void) alarm(120);   /* a hang is a failure */

    migrate_test(RATELIMIT_FIXED_WINDOW, 0, 1 << 20, 4 << 20, LIMIT);
    migrate_test(RATELIMIT_FIXED_WINDOW, 0, 4 << 20, 1 << 20, LIMIT);
    migrate_test(RATELIMIT_FIXED_WINDOW, 0, 1 << 20, 1 << 20, 150);
    migrate_test(RATELIMIT_TOKEN_BUCKET, 0, 1 << 20, 2 << 20, LIMIT);
    migrate_test(RATELIMIT_TOKEN_BUCKET, 0, 1 << 20, 8 << 20, 200);
    migrate_test(RATELIMIT_LEAKY_BUCKET, 0, 1 << 20, 2 << 20, LIMIT);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 1, 1 << 20, 2 << 20, LIMIT);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 10, 1 << 20, 2 << 20, LIMIT);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 10, 2 << 20, 1 << 20, LIMIT);
    migrate_test(RATELIMIT_SLIDING_LOG, 0, 1 << 20, 2 << 20, LIMIT);
    migrate_test(RATELIMIT_SLIDING_LOG, 0, 2 << 20, 4 << 20, 130);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 10, 1 << 20, 2 << 20, 70000);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 1, 1 << 20, 2 << 20, 300000);

    migrate_pair();
    migrate_chain();

    return tap_done();
}
