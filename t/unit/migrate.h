
/*
 * Workers of a fleet that count while one table takes over from another, and
 * while it is sealed.
 */


#ifndef _MIGRATE_H_INCLUDED_
#define _MIGRATE_H_INCLUDED_


#include <sched.h>

#include "fleet.h"


#define MIGRATE_OLD    2
#define MIGRATE_NEW    2
#define MIGRATE_KEYS   256
#define MIGRATE_LIMIT  100


typedef struct {
    uint64_t                        admitted[MIGRATE_KEYS];
    uint64_t                        asked;
    uint32_t                        stop_old;
    uint32_t                        stop_new;
} migrate_tally_t;


typedef struct {
    fleet_t                        *x;
    fleet_t                        *y;
    migrate_tally_t                *tally;
} migrate_pair_t;


static void
migrate_run(fleet_t *f, int number, void *data)
{
    uint32_t         *stop;
    uint64_t          key, seed;
    migrate_tally_t  *tally = data;

    seed = 88172645463325252ULL + (uint64_t) number;
    stop = number < MIGRATE_OLD ? &tally->stop_old : &tally->stop_new;

    while (!__atomic_load_n(stop, __ATOMIC_RELAXED)) {
        key = fleet_random(&seed) % MIGRATE_KEYS;

        if (fleet_hit(f, key)) {
            __atomic_fetch_add(&tally->admitted[key], 1, __ATOMIC_RELAXED);
        }

        __atomic_fetch_add(&tally->asked, 1, __ATOMIC_RELAXED);
    }
}


static void
migrate_await(migrate_tally_t *tally, uint64_t more)
{
    uint64_t  goal;

    goal = __atomic_load_n(&tally->asked, __ATOMIC_RELAXED) + more;

    while (__atomic_load_n(&tally->asked, __ATOMIC_RELAXED) < goal) {
        (void) sched_yield();
    }
}


/* uses up what is left of each key; counts the keys that got another sum */

static unsigned
migrate_wrong(fleet_t *f, migrate_tally_t *tally, uint64_t limit)
{
    unsigned  wrong;
    uint64_t  key;

    wrong = 0;

    for (key = 0; key < MIGRATE_KEYS; key++) {

        while (fleet_hit(f, key)) {
            tally->admitted[key]++;
        }

        wrong += tally->admitted[key] != limit;
    }

    return wrong;
}


static void
migrate_stop(uint32_t *stop, fleet_worker_t *worker, int n)
{
    int  i;

    __atomic_store_n(stop, 1, __ATOMIC_RELAXED);

    for (i = 0; i < n; i++) {
        (void) fleet_join(&worker[i]);
    }
}


static void __attribute__((unused))
migrate_test(ratelimit_algorithm_e algorithm, uint32_t buckets,
    size_t old_size, size_t new_size, uint64_t new_limit)
{
    int               i;
    fleet_t           old, new;
    unsigned          wrong;
    fleet_worker_t    worker[MIGRATE_OLD + MIGRATE_NEW];
    migrate_tally_t  *tally;

    memset(&old, 0, sizeof(fleet_t));
    old.n = 1;
    old.rules[0] = fleet_rule(MIGRATE_LIMIT, 86400);

    tally = fleet_memory(sizeof(migrate_tally_t));
    fleet_open(&old, old_size, algorithm, buckets);

    for (i = 0; i < MIGRATE_OLD; i++) {
        fleet_start(&worker[i], &old, migrate_run, i, tally);
    }

    migrate_await(tally, MIGRATE_KEYS * MIGRATE_LIMIT / 8);

    /* the newer table has a view of its own of the older one */

    new = old;
    new.rules[0] = fleet_rule(new_limit, 86400);

    fleet_open(&new, new_size, algorithm, buckets);
    new.table.older = &old.table;

    for (i = MIGRATE_OLD; i < MIGRATE_OLD + MIGRATE_NEW; i++) {
        fleet_start(&worker[i], &new, migrate_run, i, tally);
    }

    migrate_await(tally, MIGRATE_KEYS * MIGRATE_LIMIT / 8);

    migrate_stop(&tally->stop_old, worker, MIGRATE_OLD);
    migrate_await(tally, MIGRATE_KEYS * MIGRATE_LIMIT / 8);

    ratelimit_table_seal(&new.table, new.now);

    migrate_await(tally, MIGRATE_KEYS * MIGRATE_LIMIT / 8);

    migrate_stop(&tally->stop_new, worker + MIGRATE_OLD, MIGRATE_NEW);

    wrong = migrate_wrong(&new, tally, new_limit);

    tap_ok(wrong == 0 && ratelimit_table_evictions(&old.table) == 0
           && ratelimit_table_evictions(&new.table) == 0,
           "%s buckets=%u, %u to %u bytes, limit %u to %u: %u keys wrong",
           ratelimit_algorithms[algorithm]->name, buckets,
           (unsigned) old_size, (unsigned) new_size, MIGRATE_LIMIT,
           (unsigned) new_limit, wrong);
}


/*
 * Decisions about two tables, one of which follows an older one that is sealed
 * meanwhile: whatever each process holds then, none waits for another for ever.
 */

static void
migrate_pair_run(fleet_t *f, int number, void *data)
{
    uint64_t            key, seed;
    migrate_pair_t     *pair = data;
    ratelimit_clock_t   clock;
    ratelimit_item_t    items[2];
    ratelimit_place_t   places[2];

    seed = 88172645463325252ULL + (uint64_t) number;

    fleet_clock(f, &clock);

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


static void __attribute__((unused))
migrate_pair(int rounds)
{
    int             i, round;
    fleet_t         old, x, y;
    migrate_pair_t  pair;
    fleet_worker_t  worker[MIGRATE_NEW + 1];

    for (round = 0; round < rounds; round++) {

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
        pair.tally = fleet_memory(sizeof(migrate_tally_t));

        for (i = 0; i < MIGRATE_NEW + 1; i++) {
            fleet_start(&worker[i], &x, migrate_pair_run, i, &pair);
        }

        migrate_await(pair.tally, 2000);
        ratelimit_table_seal(&x.table, old.now);
        migrate_await(pair.tally, 2000);
        migrate_stop(&pair.tally->stop_new, worker, MIGRATE_NEW + 1);
    }

    tap_ok(1, "two tables, one sealed under load %d times: no worker hangs",
           rounds);
}


#endif /* _MIGRATE_H_INCLUDED_ */
