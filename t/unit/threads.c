
/*
 * All that processes share, used by threads: counts are as exact, and
 * ThreadSanitizer, which sees only one process, finds no access to shared
 * memory that is neither atomic nor under a lock ("make tsan").
 */


/* no sanitizer, then ThreadSanitizer */

#include "redis/ratelimit_breaker.h"
#include "redis/ratelimit_ledger.h"
#include "table/ratelimit_clock.h"
#include "table/ratelimit_table_slot.h"

#include "deny.h"
#include "hammer.h"
#include "migrate.h"


#define THREADS_HITS  20000

/* more than there is room for in a segment of a ledger */
#define THREADS_KEYS  300
#define THREADS_SIZE  (100 << 10)
#define THREADS_NOW   (5000 * RATELIMIT_SECOND)


/* what threads share beside a table */

typedef struct {
    ratelimit_breaker_t             breaker;
    uint64_t                        clock;
    uint64_t                        opened;
    uint64_t                        closed;
    uint64_t                        reported;
    uint64_t                        wrong;
    uint32_t                        stop;
} threads_shared_t;


typedef struct {
    ratelimit_ledger_t              ledger;
    uint64_t                        charged;
    uint64_t                        counted;
} threads_ledger_t;


static void threads_run(fleet_t *f, fleet_run_pt run, void *data);
static void threads_look_and_reset(fleet_t *f, uint64_t key);
static void threads_crowd_hit(fleet_t *f, int number, void *data);
static void threads_crowd_watch(fleet_t *f, int number, void *data);
static void threads_crowd(ratelimit_algorithm_e algorithm, uint32_t buckets,
    uint64_t limit);
static void threads_settle_hit(fleet_t *f, int number, void *data);
static void threads_settle(ratelimit_algorithm_e algorithm, uint32_t buckets,
    unsigned reserves);
static void threads_die_hold(fleet_t *f, int number, void *data);
static void threads_die(void);
static void threads_deny_work(fleet_t *f, int number, void *data);
static void threads_deny(void);
static void threads_breaker_work(fleet_t *f, int number, void *data);
static void threads_breaker(void);
static void threads_ledger_answer(fleet_t *f, threads_ledger_t *shared,
    uint64_t key, const ratelimit_ledger_copy_t *copy, unsigned question);
static int threads_ledger_take(void *data,
    const ratelimit_ledger_copy_t *copy);
static unsigned threads_ledger_report(fleet_t *f, threads_ledger_t *shared);
static void threads_ledger_work(fleet_t *f, int number, void *data);
static void threads_ledger(void);
static void threads_round(void);


static deny_tally_t  *deny_tally;


static void
threads_run(fleet_t *f, fleet_run_pt run, void *data)
{
    int             i;
    fleet_worker_t  worker[HAMMER_WORKERS];

    for (i = 0; i < HAMMER_WORKERS; i++) {
        fleet_start(&worker[i], f, run, i, data);
    }

    for (i = 0; i < HAMMER_WORKERS; i++) {
        (void) fleet_join(&worker[i]);
    }
}


/* as an operator may do at any time */

static void
threads_look_and_reset(fleet_t *f, uint64_t key)
{
    size_t             i;
    ratelimit_item_t   items[FLEET_LIMITS];
    ratelimit_clock_t  clock;
    ratelimit_place_t  places[FLEET_LIMITS];

    memset(items, 0, sizeof(items));

    fleet_clock(f, &clock);

    for (i = 0; i < f->n; i++) {
        items[i].rule = &f->rules[i];
        places[i].table = &f->table;
        fleet_hash(f, key, &places[i].hash);
    }

    ratelimit_table_peek(items, places, f->n, &clock, f->me);
    ratelimit_table_reset(items, places, f->n, &clock, f->me);
}


/*
 * More keys than there is room for, and time goes by: keys are refused, expire,
 * and are evicted; rules come and go.
 */

static void
threads_crowd_hit(fleet_t *f, int number, void *data)
{
    uint64_t           i, key, seed;
    ratelimit_rule_t   rule;
    threads_shared_t  *shared = data;

    seed = 88172645463325252ULL + (uint64_t) number;

    for (i = 0; i < THREADS_HITS; i++) {
        key = fleet_random(&seed) % 5000;
        key = (key % 4) ? key % 16 : key;

        (void) fleet_hit(f, key);

        f->now += 1000 * (fleet_random(&seed) % 3);

        if (i % 64 == 0) {
            threads_look_and_reset(f, key);
        }

        if (i % 1000 == 0) {
            rule = fleet_rule(2 + key % 50, 60 + key % 50);
            ratelimit_table_add_rule(&f->table, &rule, f->me);
        }

        if (i % 16 == 0) {
            __atomic_fetch_add(&shared->reported,
                               ratelimit_table_new_evictions(&f->table,
                                                             f->now),
                               __ATOMIC_RELAXED);
            (void) ratelimit_table_once_a_second(&f->table, i % 3, f->now);
            (void) ratelimit_clock_wall(&shared->clock, f->now / 1000,
                                        f->now / 1000 + key % 2);
        }
    }
}


static void
threads_crowd_watch(fleet_t *f, int number, void *data)
{
    uint64_t           evictions, used, size, last;
    threads_shared_t  *shared = data;

    (void) number;

    last = 0;

    while (!__atomic_load_n(&shared->stop, __ATOMIC_RELAXED)) {
        evictions = ratelimit_table_evictions(&f->table);
        used = ratelimit_table_bytes_used(&f->table, &size);

        shared->wrong += evictions < last
                         || ratelimit_table_entries(&f->table) > size / 16
                         || used > 2 * size;

        last = evictions;
    }
}


static void
threads_crowd(ratelimit_algorithm_e algorithm, uint32_t buckets,
    uint64_t limit)
{
    fleet_t            f;
    uint64_t           evictions;
    fleet_worker_t     watch;
    threads_shared_t  *shared;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 2;
    f.rules[0] = fleet_rule(limit, 3600);
    f.rules[1] = fleet_rule(2 * limit, 60);

    fleet_open(&f, 32 << 10, algorithm, buckets);
    shared = fleet_memory(sizeof(threads_shared_t));

    fleet_start(&watch, &f, threads_crowd_watch, 0, shared);
    threads_run(&f, threads_crowd_hit, shared);

    __atomic_store_n(&shared->stop, 1, __ATOMIC_RELAXED);
    (void) fleet_join(&watch);

    evictions = ratelimit_table_evictions(&f.table);
    f.now += 3600 * RATELIMIT_SECOND;
    shared->reported += ratelimit_table_new_evictions(&f.table, f.now);

    tap_ok(evictions > 0 && shared->reported == evictions
           && shared->wrong == 0,
           "%s buckets=%u limit=%u: %u evictions, each is reported once",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) limit,
           (unsigned) evictions);
}


/* all that is taken is refunded, at once or when its end is known */

static void
threads_settle_hit(fleet_t *f, int number, void *data)
{
    unsigned           i;
    uint64_t           seed;
    ratelimit_item_t   item;
    ratelimit_clock_t  clock;
    ratelimit_place_t  place;

    (void) data;

    seed = 88172645463325252ULL + (uint64_t) number;

    fleet_clock(f, &clock);

    for (i = 0; i < THREADS_HITS; i++) {
        memset(&item, 0, sizeof(ratelimit_item_t));

        item.rule = &f->rules[0];
        item.cost = 1;
        item.reserve = f->reserves;
        place.table = &f->table;
        fleet_hash(f, fleet_random(&seed) % 8, &place.hash);

        if (!ratelimit_table_decide(&item, &place, 1, &clock, f->me)) {
            continue;
        }

        ratelimit_table_describe(&item, &place, 1);
        ratelimit_table_refund(&item, &place, 1, &clock, f->me);
    }
}


static void
threads_settle(ratelimit_algorithm_e algorithm, uint32_t buckets,
    unsigned reserves)
{
    fleet_t           f;
    uint64_t          key;
    unsigned          wrong;
    ratelimit_item_t  items[FLEET_LIMITS];

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.reserves = reserves;
    f.rules[0] = fleet_rule(3, 3600);

    fleet_open(&f, 64 << 10, algorithm, buckets);
    threads_run(&f, threads_settle_hit, NULL);

    wrong = 0;

    for (key = 0; key < 8; key++) {
        (void) fleet_ask(&f, key, 0, items);
        wrong += items[0].verdict.remaining != 3;
    }

    tap_ok(wrong == 0, "%s buckets=%u%s: all was refunded, %u keys have less",
           ratelimit_algorithms[algorithm]->name, buckets,
           reserves ? ", reserved" : "", wrong);
}


/* a thread that ends with a lock is as dead as a process */

static void
threads_die_hold(fleet_t *f, int number, void *data)
{
    uint32_t  i;

    (void) number;
    (void) data;

    for (i = 0; i < f->table.nsegments; i++) {
        (void) ratelimit_lock(&f->table.segments[i].lock, f->me,
                              f->lifelines);
    }
}


static void
threads_die(void)
{
    fleet_t          f;
    fleet_worker_t   holder;
    hammer_tally_t  *tally;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(HAMMER_LIMIT, 86400);

    fleet_open(&f, 64 << 10, RATELIMIT_FIXED_WINDOW, 0);
    tally = fleet_memory(sizeof(hammer_tally_t));

    fleet_start(&holder, &f, threads_die_hold, 0, NULL);
    (void) fleet_join(&holder);

    threads_run(&f, hammer_all_keys, tally);

    tap_ok(hammer_wrong(tally, HAMMER_LIMIT, HAMMER_LIMIT) == 0,
           "all segments are taken over from a thread that has ended");
}


static void
threads_deny_work(fleet_t *f, int number, void *data)
{
    ratelimit_deny_cache_t  *cache = data;

    deny_me = f->me;
    random_state = (uint64_t) number * 1000003;

    deny_work(cache, deny_tally);
}


static void
threads_deny(void)
{
    int                     i;
    fleet_t                 f;
    fleet_worker_t          worker[HAMMER_WORKERS];
    ratelimit_deny_cache_t  cache;

    memset(&f, 0, sizeof(fleet_t));
    f.lifelines = deny_lifelines;

    deny_open(&cache, 8);
    deny_tally = deny_memory(sizeof(deny_tally_t));

    for (i = 0; i < HAMMER_WORKERS; i++) {
        fleet_start(&worker[i], &f, threads_deny_work, i, &cache);
    }

    while (__atomic_load_n(&deny_tally->done, __ATOMIC_RELAXED)
           < HAMMER_WORKERS * THREADS_HITS)
    {
        (void) sched_yield();
    }

    __atomic_store_n(&deny_tally->stop, 1, __ATOMIC_RELAXED);

    for (i = 0; i < HAMMER_WORKERS; i++) {
        (void) fleet_join(&worker[i]);
    }

    tap_ok(deny_tally->found > 0 && deny_tally->wrong == 0,
           "deny cache: %u entries found, %u of them half written",
           (unsigned) deny_tally->found, (unsigned) deny_tally->wrong);
}


/* each change is told to one of all threads */

static void
threads_breaker_work(fleet_t *f, int number, void *data)
{
    uint64_t              i, seed;
    ratelimit_breaker_e   permit;
    threads_shared_t     *shared = data;

    (void) f;

    seed = 88172645463325252ULL + (uint64_t) number;

    for (i = 0; i < THREADS_HITS; i++) {
        permit = ratelimit_breaker_ask(&shared->breaker, 1000 * i, 10);

        if (permit == RATELIMIT_BREAKER_STOP) {
            continue;
        }

        if (fleet_random(&seed) % 4) {
            __atomic_fetch_add(&shared->opened,
                               ratelimit_breaker_failure(&shared->breaker,
                                                         permit, 1000 * i, 0),
                               __ATOMIC_RELAXED);

        } else {
            __atomic_fetch_add(&shared->closed,
                               ratelimit_breaker_success(&shared->breaker),
                               __ATOMIC_RELAXED);
        }
    }
}


static void
threads_breaker(void)
{
    fleet_t            f;
    threads_shared_t  *shared;

    memset(&f, 0, sizeof(fleet_t));
    f.lifelines = deny_lifelines;

    shared = fleet_memory(sizeof(threads_shared_t));
    threads_run(&f, threads_breaker_work, shared);

    shared->closed += ratelimit_breaker_success(&shared->breaker);

    tap_ok(shared->opened > 0 && shared->opened == shared->closed,
           "breaker: %u times opened, %u times closed",
           (unsigned) shared->opened, (unsigned) shared->closed);
}


/* Redis has counted a batch; of two answers to it one counts */

static void
threads_ledger_answer(fleet_t *f, threads_ledger_t *shared, uint64_t key,
    const ratelimit_ledger_copy_t *copy, unsigned question)
{
    unsigned                 i;
    unsigned char            bytes[200];
    ratelimit_grant_t        grant;
    ratelimit_answer_t       answer;
    ratelimit_ledger_id_t    id;
    ratelimit_ledger_copy_t  after;
    ratelimit_ledger_name_t  name;

    memset(bytes, 'x', sizeof(bytes));
    memset(&grant, 0, sizeof(ratelimit_grant_t));

    name.data = bytes;
    name.len = 1 + key % sizeof(bytes);

    grant.lease = 10;
    grant.counted = 1;

    answer.number = copy->number;
    answer.spent = copy->spent;
    answer.asked = THREADS_NOW;
    answer.question = question;
    answer.grant = &grant;

    if (question) {
        fleet_hash(f, key, &id.hash);

    } else {
        id.hash = copy->hash;
    }

    id.rule = &f->rules[0];

    ratelimit_ledger_answer(&shared->ledger, &id, &name, &answer, &after,
                            f->me);

    for (i = 0; after.counted && i < copy->nbatch; i++) {
        __atomic_fetch_add(&shared->counted, copy->batch[i].added,
                           __ATOMIC_RELAXED);
    }
}


static int
threads_ledger_take(void *data, const ratelimit_ledger_copy_t *copy)
{
    ratelimit_ledger_copy_t  *taken = data;

    *taken = *copy;

    return 0;
}


static unsigned
threads_ledger_report(fleet_t *f, threads_ledger_t *shared)
{
    uint32_t                 cursor;
    ratelimit_ledger_copy_t  taken;

    cursor = 0;
    taken.number = 0;

    (void) ratelimit_ledger_batch(&shared->ledger, &cursor, THREADS_NOW,
                                  THREADS_NOW, threads_ledger_take, &taken,
                                  f->me);

    if (taken.number) {
        threads_ledger_answer(f, shared, 0, &taken, 0);
    }

    return taken.number != 0;
}


static void
threads_ledger_work(fleet_t *f, int number, void *data)
{
    uint64_t                    i, key, seed;
    threads_ledger_t           *shared = data;
    ratelimit_ledger_t         *ledger;
    ratelimit_ledger_id_t       id;
    ratelimit_ledger_copy_t     copy;
    ratelimit_ledger_figures_t  figures;

    ledger = &shared->ledger;
    seed = 88172645463325252ULL + (uint64_t) number;
    id.rule = &f->rules[0];

    for (i = 0; i < THREADS_HITS; i++) {
        key = fleet_random(&seed) % THREADS_KEYS;
        key = (key % 4) ? key % 16 : key;
        fleet_hash(f, key, &id.hash);

        if (!ratelimit_ledger_affords(ledger, &id, 1, THREADS_NOW, f->me)) {
            (void) ratelimit_ledger_ask(ledger, &id, THREADS_NOW, &copy,
                                        f->me);
            threads_ledger_answer(f, shared, key, &copy, 1);
        }

        if (ratelimit_ledger_charge(ledger, &id, 1, 100, THREADS_NOW,
                                    RATELIMIT_LEDGER_LEASE, f->me))
        {
            __atomic_fetch_add(&shared->charged, 1, __ATOMIC_RELAXED);
        }

        if (i % 64 == 0) {
            (void) threads_ledger_report(f, shared);
            (void) ratelimit_ledger_due(ledger, THREADS_NOW);
            (void) ratelimit_ledger_clean(ledger);
            ratelimit_ledger_stay(ledger, f->me);
            ratelimit_ledger_figures(ledger, &figures, f->me);
        }
    }
}


static void
threads_ledger(void)
{
    fleet_t            f;
    threads_ledger_t  *shared;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(1000, 3600);

    fleet_open(&f, 64 << 10, RATELIMIT_FIXED_WINDOW, 0);
    shared = fleet_memory(sizeof(threads_ledger_t));

    if (!ratelimit_ledger_open(&shared->ledger, fleet_memory(THREADS_SIZE),
                               THREADS_SIZE, &f.shape, RATELIMIT_SECOND, 42,
                               f.lifelines))
    {
        tap_ok(0, "the ledger does not open");
        return;
    }

    threads_run(&f, threads_ledger_work, shared);

    while (threads_ledger_report(&f, shared)) { /* void */ }

    tap_ok(shared->charged > THREADS_HITS
           && shared->counted == shared->charged,
           "ledger: %u charges, %u of them counted",
           (unsigned) shared->charged, (unsigned) shared->counted);
}


static void
threads_round(void)
{
    unsigned  i;

    (void) alarm(600);   /* a hang is a failure */

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        hammer_exact(i, fleet_buckets(i), 1, 1);
        hammer_exact(i, fleet_buckets(i), 2, 1);
        hammer_together(i, fleet_buckets(i));
        threads_crowd(i, fleet_buckets(i), 5);
        threads_settle(i, fleet_buckets(i), 0);
        migrate_test(i, fleet_buckets(i), 1 << 20, 2 << 20, MIGRATE_LIMIT);
    }

    hammer_exact(RATELIMIT_SLIDING_WINDOW, 1, 2, 1);
    threads_crowd(RATELIMIT_SLIDING_WINDOW, 1, 5);
    threads_crowd(RATELIMIT_SLIDING_WINDOW, 10, 70000);
    threads_crowd(RATELIMIT_SLIDING_WINDOW, 60, 5);
    threads_crowd(RATELIMIT_SLIDING_LOG, 0, 100);
    threads_settle(RATELIMIT_TOKEN_BUCKET, 0, 1);
    threads_settle(RATELIMIT_LEAKY_BUCKET, 0, 1);

    migrate_pair(4);

    threads_die();
    threads_deny();
    threads_breaker();
    threads_ledger();
}


/* so many times as the environment's ROUNDS says */

int
main(void)
{
    int          rounds;
    const char  *text;

    fleet_threads = 1;
    hammer_keys = 32;

    deny_lifelines = ratelimit_lifelines_create(
                                     deny_memory(ratelimit_lifelines_size()));

    text = getenv("ROUNDS");
    rounds = (text != NULL) ? atoi(text) : 1;

    while (rounds--) {
        threads_round();
    }

    return tap_done();
}
