
/*
 * A table that is resized again and again: before the newest is used, counters
 * of older ones move together, so that memory can be freed, while processes
 * count, and while one that moves them is killed.  No count may be lost or
 * doubled, also of keys that are not used meanwhile, and at no time may the
 * tables have more memory than three times the largest that has any.
 */


#include "migrate.h"


#define TAKE_TABLES  9
#define TAKE_TIMES   3
#define TAKE_HITS    400
#define TAKE_PAGE    4096
#define TAKE_PAGES   1024    /* of the largest table */
#define TAKE_OTHERS  3000    /* keys that touch most pages of each table */


static int take_some(fleet_t *f);
static void take_run(fleet_t *f, int number, void *data);
static size_t take_resident(const ratelimit_table_t *table, size_t *size);
static unsigned take_exceeds(const fleet_t *f);
static unsigned take_round(fleet_t *f, migrate_tally_t *tally, int round);
static void take_test(ratelimit_algorithm_e algorithm, uint32_t buckets,
    uint64_t limit);
static void take_others(void);
static void take_full(void);


static const size_t  take_sizes[TAKE_TABLES] = {
    1 << 20, 2 << 20, 1 << 20, 3 << 20, 2 << 20, 1 << 20, 4 << 20, 1 << 20,
    2 << 20
};


/* what a worker does each time, up to the seal */

static int
take_some(fleet_t *f)
{
    int                 takes;
    void               *memory;
    size_t              size;
    ratelimit_clock_t   clock;
    ratelimit_table_t  *older;

    f->now += 10 * RATELIMIT_SECOND / 1000;

    fleet_clock(f, &clock);

    takes = ratelimit_table_take(&f->table, TAKE_TIMES, &clock, f->me);

    for (older = f->table.older; older; older = older->older) {

        if (ratelimit_table_moved(older) && older->nsegments) {
            memory = ratelimit_table_memory(older, &size);

            if (madvise((char *) memory + TAKE_PAGE, size - TAKE_PAGE,
                        MADV_REMOVE)
                == -1)
            {
                perror("madvise");
                exit(2);
            }

            ratelimit_table_forget(older);
        }
    }

    return takes;
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

        ratelimit_table_seal(&f->table, f->now);

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


/* bytes that have memory but those of the header, whichever process used it */

static size_t
take_resident(const ratelimit_table_t *table, size_t *size)
{
    void           *memory;
    size_t          i, n;
    unsigned char   pages[TAKE_PAGES];

    memory = ratelimit_table_memory(table, size);

    if (mincore(memory, *size, pages) == -1) {
        perror("mincore");
        exit(2);
    }

    n = 0;
    i = ((char *) table->slots - (char *) memory + TAKE_PAGE - 1) / TAKE_PAGE;

    for ( /* void */ ; i < *size / TAKE_PAGE; i++) {
        n += pages[i] & 1;
    }

    return n * TAKE_PAGE;
}


static unsigned
take_exceeds(const fleet_t *f)
{
    size_t                    n, size, total, largest;
    const ratelimit_table_t  *table;

    total = 0;
    largest = 0;

    for (table = &f->table; table; table = table->older) {
        n = take_resident(table, &size);
        total += n;

        if (n && size > largest) {
            largest = size;
        }
    }

    return total > TAKE_TIMES * largest;
}


/* returns how often the tables had too much memory */

static unsigned
take_round(fleet_t *f, migrate_tally_t *tally, int round)
{
    int              i;
    uint64_t         key;
    unsigned         exceeds;
    fleet_worker_t   worker[3];

    for (i = 0; i < 3; i++) {
        fleet_start(&worker[i], f, take_run, i, tally);
    }

    (void) usleep(rand() % 2000);
    (void) kill(worker[0].pid, SIGKILL);

    for (i = 0; i < 3; i++) {
        (void) fleet_join(&worker[i]);
    }

    exceeds = take_exceeds(f);

    while (take_some(f)) {
        exceeds += take_exceeds(f);
    }

    ratelimit_table_seal(&f->table, f->now);

    /* the other half: a few keys a round, each once or twice */

    for (key = MIGRATE_KEYS / 2; key < MIGRATE_KEYS; key++) {
        if (key % TAKE_TABLES == (uint64_t) round || key % 37 == 0) {
            tally->admitted[key] += fleet_hit(f, key);
        }
    }

    return exceeds + take_exceeds(f);
}


static void
take_test(ratelimit_algorithm_e algorithm, uint32_t buckets, uint64_t limit)
{
    int               i;
    fleet_t           f[TAKE_TABLES];
    unsigned          wrong, exceeds;
    migrate_tally_t  *tally;

    tally = fleet_memory(sizeof(migrate_tally_t));
    exceeds = 0;

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
        }

        exceeds += take_round(&f[i], tally, i);
    }

    wrong = migrate_wrong(&f[TAKE_TABLES - 1], tally, limit);

    tap_ok(wrong == 0 && exceeds == 0
           && ratelimit_table_evictions(&f[TAKE_TABLES - 1].table) == 0,
           "%s buckets=%u limit=%u: %u keys wrong, too large %u times",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) limit,
           wrong, exceeds);
}


/*
 * Each table gets keys of its own, which touch its pages, and are not used
 * again until the end.  Some are followed by another one before they are used.
 */

static void
take_others(void)
{
    int       i;
    size_t    size;
    fleet_t   f[2 * TAKE_TABLES];
    uint64_t  key, n;
    unsigned  wrong, exceeds, small;

    wrong = 0;
    exceeds = 0;
    small = 0;
    n = 0;

    for (i = 0; i < 2 * TAKE_TABLES; i++) {

        if (i == 0) {
            memset(&f[0], 0, sizeof(fleet_t));
            f[0].n = 1;
            f[0].rules[0] = fleet_rule(2, 86400);

        } else {
            f[i] = f[i - 1];
        }

        fleet_open(&f[i], take_sizes[i % TAKE_TABLES], RATELIMIT_FIXED_WINDOW,
                   0);

        if (i) {
            ratelimit_table_follow(&f[i].table, &f[i - 1].table);
        }

        if (i % 3 == 1) {
            continue;
        }

        while (take_some(&f[i])) {
            exceeds += take_exceeds(&f[i]);
        }

        ratelimit_table_seal(&f[i].table, f[i].now);

        for (key = n + TAKE_OTHERS; n < key; n++) {
            wrong += !fleet_hit(&f[i], n);
            exceeds += n % 100 == 0 && take_exceeds(&f[i]);
        }

        small += take_resident(&f[i].table, &size) < size / 10 * 9;
    }

    i--;

    for (key = 0; key < n; key++) {
        wrong += !fleet_hit(&f[i], key) || fleet_hit(&f[i], key);
    }

    tap_ok(wrong == 0 && exceeds == 0 && small == 0
           && ratelimit_table_evictions(&f[i].table) == 0,
           "keys that are not used meanwhile: %u wrong, too large %u times, "
           "tables not filled %u", wrong, exceeds, small);
}


/*
 * Tables so full that there is no room for the counters of the oldest: these
 * are dropped and counted, not those that were used since.
 */

static void
take_full(void)
{
    int       i;
    fleet_t   f[4];
    uint64_t  key, n[5], lost[3];

    memset(&f[0], 0, sizeof(fleet_t));
    f[0].n = 1;
    f[0].rules[0] = fleet_rule(1, 86400);
    n[0] = 0;

    for (i = 0; i < 4; i++) {

        if (i) {
            f[i] = f[i - 1];
        }

        fleet_open(&f[i], (1 << 18) + i * 8192, RATELIMIT_FIXED_WINDOW, 0);

        if (i) {
            ratelimit_table_follow(&f[i].table, &f[i - 1].table);
        }

        while (take_some(&f[i])) { /* void */ }

        ratelimit_table_seal(&f[i].table, f[i].now);

        n[i + 1] = n[i] + (uint64_t) f[i].table.nsegments * f[i].table.nlines
                          * 8 * 4 / 5;

        for (key = n[i]; i < 3 && key < n[i + 1]; key++) {
            (void) fleet_hit(&f[i], key);
        }
    }

    for (i = 2; i >= 0; i--) {
        lost[i] = 0;

        for (key = n[i]; key < n[i + 1]; key += 3) {
            lost[i] += fleet_hit(&f[3], key);
        }
    }

    /* a few found no room in their own table either */

    tap_ok((lost[2] + lost[1]) * 300 < n[3] - n[1]
           && lost[0] > 0 && lost[0] * 3 < n[1]
           && ratelimit_table_evictions(&f[3].table) > lost[0] * 2,
           "counters that find no room: lost %u of the last, %u, %u, "
           "evictions %u", (unsigned) lost[2], (unsigned) lost[1],
           (unsigned) lost[0],
           (unsigned) ratelimit_table_evictions(&f[3].table));
}


int
main(void)
{
    int  i;

    (void) alarm(600);   /* a hang is a failure */

    srand((unsigned) getpid());

    take_others();
    take_full();

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
