
/*
 * A table that is resized again and again: the newest takes the counters of
 * older ones, so that these can be freed, while processes count, and while one
 * that takes is killed.  No count may be lost or doubled, also of keys that are
 * not used meanwhile.
 */


#include "migrate.h"


#define TAKE_TABLES  9
#define TAKE_TIMES   3
#define TAKE_HITS    400
#define TAKE_PAGE    4096


static int take_some(fleet_t *f);
static void take_run(fleet_t *f, int number, void *data);
static size_t take_free(fleet_t *f);
static void take_round(fleet_t *f, migrate_tally_t *tally, int round);
static void take_test(ratelimit_algorithm_e algorithm, uint32_t buckets,
    uint64_t limit);


static const size_t  take_sizes[TAKE_TABLES] = {
    1 << 20, 2 << 20, 1 << 20, 3 << 20, 2 << 20, 1 << 20, 4 << 20, 1 << 20,
    2 << 20
};


static int
take_some(fleet_t *f)
{
    ratelimit_clock_t  clock;

    f->now += 10 * RATELIMIT_SECOND / 1000;

    clock.now = f->now;
    clock.wall = f->now;

    return ratelimit_table_take(&f->table, TAKE_TIMES, &clock, f->me);
}


/* each process but the first uses one half of the keys */

static void
take_run(fleet_t *f, int number, void *data)
{
    unsigned          i;
    uint64_t          key, seed;
    migrate_tally_t  *tally = data;

    if (number == 0) {
        while (take_some(f)) { /* void */ }
        return;
    }

    seed = 88172645463325252ULL + (uint64_t) number;

    for (i = 0; i < TAKE_HITS; i++) {
        key = fleet_random(&seed) % (MIGRATE_KEYS / 2);

        if (fleet_hit(f, key)) {
            __atomic_fetch_add(&tally->admitted[key], 1, __ATOMIC_RELAXED);
        }

        if (number == 1) {
            (void) take_some(f);
        }
    }
}


/* writes over all that may not be used any more; returns the bytes of others */

static size_t
take_free(fleet_t *f)
{
    void               *memory;
    size_t              size, total;
    ratelimit_table_t  *older;

    (void) ratelimit_table_memory(&f->table, &total);

    for (older = f->table.older; older; older = older->older) {
        memory = ratelimit_table_memory(older, &size);

        if (!ratelimit_table_moved(older)) {
            total += size;

        } else if (older->nsegments) {
            memset((char *) memory + TAKE_PAGE, 0xff, size - TAKE_PAGE);
            ratelimit_table_forget(older);
        }
    }

    return total;
}


static void
take_round(fleet_t *f, migrate_tally_t *tally, int round)
{
    int              i;
    uint64_t         key;
    fleet_worker_t   worker[3];

    for (i = 0; i < 3; i++) {
        fleet_start(&worker[i], f, take_run, i, tally);
    }

    (void) usleep(rand() % 2000);
    (void) kill(worker[0].pid, SIGKILL);

    for (i = 0; i < 3; i++) {
        (void) fleet_join(&worker[i]);
    }

    while (take_some(f)) { /* void */ }

    /* the other half: a few keys a round, each once or twice */

    for (key = MIGRATE_KEYS / 2; key < MIGRATE_KEYS; key++) {
        if (key % TAKE_TABLES == (uint64_t) round || key % 37 == 0) {
            tally->admitted[key] += fleet_hit(f, key);
        }
    }
}


static void
take_test(ratelimit_algorithm_e algorithm, uint32_t buckets, uint64_t limit)
{
    int               i;
    size_t            most;
    fleet_t           f[TAKE_TABLES];
    unsigned          wrong, large;
    migrate_tally_t  *tally;

    tally = fleet_memory(sizeof(migrate_tally_t));
    large = 0;

    for (i = 0; i < TAKE_TABLES; i++) {

        if (i == 0) {
            memset(&f[0], 0, sizeof(fleet_t));
            f[0].n = 2;
            f[0].rules[0] = fleet_rule(limit, 86400);
            f[0].rules[1] = fleet_rule(limit + 10, 2 * 86400);

        } else {
            f[i] = f[i - 1];
        }

        fleet_open(&f[i], take_sizes[i], algorithm, buckets);

        if (i) {
            ratelimit_table_follow(&f[i].table, &f[i - 1].table);
            ratelimit_table_seal(&f[i].table, f[i].now);
        }

        take_round(&f[i], tally, i);

        most = (i < 3) ? 2 << 20 : (i < 6) ? 3 << 20 : 4 << 20;
        large += take_free(&f[i]) > TAKE_TIMES * most;
    }

    wrong = migrate_wrong(&f[TAKE_TABLES - 1], tally, limit);

    tap_ok(wrong == 0 && large == 0
           && ratelimit_table_evictions(&f[TAKE_TABLES - 1].table) == 0,
           "%s buckets=%u limit=%u: %u keys wrong, too large %u times",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) limit,
           wrong, large);
}


int
main(void)
{
    int  i;

    (void) alarm(600);   /* a hang is a failure */

    srand((unsigned) getpid());

    for (i = 0; i < 3; i++) {
        take_test(RATELIMIT_FIXED_WINDOW, 0, 100);
        take_test(RATELIMIT_TOKEN_BUCKET, 0, 100);
        take_test(RATELIMIT_LEAKY_BUCKET, 0, 100);
        take_test(RATELIMIT_SLIDING_WINDOW, 1, 100);
        take_test(RATELIMIT_SLIDING_WINDOW, 10, 100);
        take_test(RATELIMIT_SLIDING_WINDOW, 60, 100);
        take_test(RATELIMIT_SLIDING_LOG, 0, 100);
    }

    return tap_done();
}
