
/*
 * Workers of a fleet that race for the same keys: exact counts, of one limit
 * and of several that are one decision.
 */


#ifndef _HAMMER_H_INCLUDED_
#define _HAMMER_H_INCLUDED_


#include "fleet.h"


#define HAMMER_WORKERS  4
#define HAMMER_KEYS     512
#define HAMMER_LIMIT    20


typedef struct {
    uint64_t                        admitted[HAMMER_KEYS];
    uint64_t                        shared;
    uint64_t                        asked;
    uint32_t                        stop;
} hammer_tally_t;


/* so many of them are used */
static uint64_t  hammer_keys = HAMMER_KEYS;


static void
hammer_once(fleet_t *f, uint64_t key, hammer_tally_t *tally)
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

    for (i = 0; i < 3 * hammer_keys * HAMMER_LIMIT; i++) {
        hammer_once(f, fleet_random(&seed) % hammer_keys, data);
    }

    /* whatever chance left over */

    for (i = 0; i < hammer_keys * HAMMER_LIMIT; i++) {
        hammer_once(f, i % hammer_keys, data);
    }
}


static unsigned
hammer_wrong(const hammer_tally_t *tally, uint64_t low, uint64_t high)
{
    unsigned  i, wrong;

    wrong = 0;

    for (i = 0; i < hammer_keys; i++) {
        wrong += (tally->admitted[i] < low || tally->admitted[i] > high);
    }

    return wrong;
}


/* n limits of each key, of which the first is the tightest */

static void
hammer_exact(ratelimit_algorithm_e algorithm, uint32_t buckets, size_t n,
    unsigned rounds)
{
    int              i;
    fleet_t          f;
    hammer_tally_t  *tally;
    unsigned         round, wrong;
    fleet_worker_t   worker[HAMMER_WORKERS];

    wrong = 0;

    for (round = 0; round < rounds; round++) {

        memset(&f, 0, sizeof(fleet_t));
        f.n = n;
        f.rules[0] = fleet_rule(HAMMER_LIMIT, 86400);
        f.rules[1] = fleet_rule(2 * HAMMER_LIMIT, 3600);

        tally = fleet_memory(sizeof(hammer_tally_t));
        fleet_open(&f, 1 << 20, algorithm, buckets);

        for (i = 0; i < HAMMER_WORKERS; i++) {
            fleet_start(&worker[i], &f, hammer_all_keys, i, tally);
        }

        for (i = 0; i < HAMMER_WORKERS; i++) {
            wrong += (fleet_join(&worker[i]) != 0);
        }

        wrong += hammer_wrong(tally, HAMMER_LIMIT, HAMMER_LIMIT);
        wrong += ratelimit_table_evictions(&f.table) != 0;

        (void) munmap(tally, sizeof(hammer_tally_t));
    }

    tap_ok(wrong == 0,
           "%s buckets=%u, %u limits: %d workers, %u keys, exactly %d each",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) n,
           HAMMER_WORKERS, (unsigned) hammer_keys, HAMMER_LIMIT);
}


/* one limit for each key and one for all: what one refuses, none is charged */

static int
hammer_hit_two(fleet_t *f, uint64_t key)
{
    ratelimit_clock_t  clock;
    ratelimit_item_t   items[2];
    ratelimit_place_t  places[2];

    fleet_clock(f, &clock);

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
    uint64_t         i, key, seed;
    hammer_tally_t  *tally = data;

    seed = 88172645463325252ULL + (uint64_t) number;

    for (i = 0; i < 200 * hammer_keys; i++) {
        key = fleet_random(&seed) % hammer_keys;

        if (hammer_hit_two(f, key)) {
            __atomic_fetch_add(&tally->admitted[key], 1, __ATOMIC_RELAXED);
            __atomic_fetch_add(&tally->shared, 1, __ATOMIC_RELAXED);
        }
    }
}


static void
hammer_together(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int              i;
    fleet_t          f;
    hammer_tally_t  *tally;
    uint64_t         half;
    unsigned         wrong;
    fleet_worker_t   worker[HAMMER_WORKERS];

    half = hammer_keys * HAMMER_LIMIT / 2;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 2;
    f.rules[0] = fleet_rule(HAMMER_LIMIT, 86400);
    f.rules[1] = fleet_rule(half, 3600);

    tally = fleet_memory(sizeof(hammer_tally_t));
    fleet_open(&f, 32 << 20, algorithm, buckets);

    for (i = 0; i < HAMMER_WORKERS; i++) {
        fleet_start(&worker[i], &f, hammer_two, i, tally);
    }

    wrong = 0;

    for (i = 0; i < HAMMER_WORKERS; i++) {
        wrong += (fleet_join(&worker[i]) != 0);
    }

    wrong += hammer_wrong(tally, 0, HAMMER_LIMIT);

    tap_ok(wrong == 0 && tally->shared == half,
           "%s buckets=%u: two limits as one, %u of %u for all",
           ratelimit_algorithms[algorithm]->name, buckets,
           (unsigned) tally->shared, (unsigned) half);
}


#endif /* _HAMMER_H_INCLUDED_ */
