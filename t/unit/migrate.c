
/*
 * A table that follows another one, of another size or shape, while processes
 * that know only the older one go on: no count may be lost or doubled, before,
 * while and after the older one is sealed.
 */


/* no sanitizer */

#include "migrate.h"


static void migrate_chain(void);
static void migrate_plans(void);
static void migrate_debt(void);
static void migrate_raised(void);
static void migrate_looks(ratelimit_algorithm_e algorithm);


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

    ratelimit_table_seal(&b.table, a.now);
    admitted += fleet_hit(&c, 1) + fleet_hit(&b, 1);

    ratelimit_table_seal(&c.table, a.now);

    while (fleet_hit(&c, 1)) {
        admitted++;
    }

    tap_ok(admitted == 10, "one count through three tables: %u", admitted);

    tap_ok(!ratelimit_table_spent(&a.table, a.now + 60 * RATELIMIT_SECOND)
           && ratelimit_table_spent(&a.table, a.now + 600 * RATELIMIT_SECOND),
           "a sealed table is spent when its last counter has run out");
}


/* a table in between, with short counters alone, ends no older one */

static void
migrate_plans(void)
{
    int       spent;
    fleet_t   day, second, last;
    uint64_t  now;

    memset(&day, 0, sizeof(fleet_t));
    day.n = 1;
    day.rules[0] = fleet_rule(1, 86400);
    fleet_open(&day, 1 << 20, RATELIMIT_SLIDING_LOG, 0);

    (void) fleet_hit(&day, 1);

    second = day;
    second.rules[0] = fleet_rule(1, 1);
    fleet_open(&second, 2 << 20, RATELIMIT_SLIDING_LOG, 0);
    ratelimit_table_follow(&second.table, &day.table);
    ratelimit_table_seal(&second.table, second.now);

    last = second;
    fleet_open(&last, 3 << 20, RATELIMIT_SLIDING_LOG, 0);
    ratelimit_table_follow(&last.table, &second.table);
    ratelimit_table_seal(&last.table, last.now);

    now = last.now + 3600 * RATELIMIT_SECOND;
    spent = ratelimit_table_spent(&second.table, now)
            || ratelimit_table_spent(&day.table, now);

    now += 3 * 86400 * RATELIMIT_SECOND;

    tap_ok(!spent && ratelimit_table_spent(&second.table, now),
           "a table is spent when older ones are spent, too");
}


/* a debt of a hundred periods, which moves on before it has dripped off */

static void
migrate_debt(void)
{
    int               i;
    fleet_t           f[3];
    unsigned          spent;
    uint64_t          end;
    ratelimit_item_t  item;

    memset(&f[0], 0, sizeof(fleet_t));
    f[0].n = 1;
    f[0].rules[0] = fleet_rule(10, 60);
    fleet_open(&f[0], 1 << 20, RATELIMIT_TOKEN_BUCKET, 0);

    f[0].count_rejected = RATELIMIT_IN_FULL;
    (void) fleet_ask(&f[0], 1, 1000, &item);
    f[0].count_rejected = 0;

    spent = 0;
    end = f[0].now + 99 * 60 * RATELIMIT_SECOND;

    for (i = 1; i < 3; i++) {
        f[i] = f[i - 1];
        fleet_open(&f[i], (i + 1) << 20, RATELIMIT_TOKEN_BUCKET, 0);
        ratelimit_table_follow(&f[i].table, &f[i - 1].table);
        ratelimit_table_seal(&f[i].table, f[i].now);

        spent += ratelimit_table_spent(&f[i - 1].table, end);

        (void) fleet_hit(&f[i], 1);
    }

    tap_ok(spent == 0, "a table is not spent before debts have dripped off");
}


/* a capacity that is raised while the older table is still in use */

static void
migrate_raised(void)
{
    int       i;
    fleet_t   old, new;
    unsigned  admitted;

    memset(&old, 0, sizeof(fleet_t));
    old.n = 1;
    old.rules[0] = fleet_rule(10, 60);
    fleet_open(&old, 1 << 20, RATELIMIT_TOKEN_BUCKET, 0);

    new = old;
    new.rules[0].capacity = 1000;
    new.rules[0].ceiling = 1000;
    fleet_open(&new, 2 << 20, RATELIMIT_TOKEN_BUCKET, 0);
    ratelimit_table_follow(&new.table, &old.table);
    ratelimit_table_add_rule(&new.table, &new.rules[0], new.me);

    admitted = 0;

    for (i = 0; i < 1100; i++) {
        admitted += fleet_hit(&new, 1);
    }

    ratelimit_table_seal(&new.table, new.now);

    tap_ok(admitted == 1000
           && !ratelimit_table_spent(&old.table,
                                     new.now + 99 * 60 * RATELIMIT_SECOND),
           "a table lives as long as what newer rules count there");
}


/* looks at one counter with several costs: the first of them moves it */

static void
migrate_looks(ratelimit_algorithm_e algorithm)
{
    int                i;
    fleet_t            old, new;
    ratelimit_clock_t  clock;
    ratelimit_item_t   items[2];
    ratelimit_place_t  places[2];

    memset(&old, 0, sizeof(fleet_t));
    old.n = 1;
    old.rules[0] = fleet_rule(1, 3600);
    fleet_open(&old, 1 << 20, algorithm, fleet_buckets(algorithm));

    (void) fleet_hit(&old, 1);

    new = old;
    fleet_open(&new, 2 << 20, algorithm, fleet_buckets(algorithm));
    new.table.older = &old.table;
    ratelimit_table_seal(&new.table, new.now);

    memset(items, 0, sizeof(items));

    for (i = 0; i < 2; i++) {
        items[i].rule = &new.rules[0];
        items[i].cost = i;
        places[i].table = &new.table;
        fleet_hash(&new, 1, &places[i].hash);
    }

    clock.now = new.now;
    clock.wall = new.now;

    ratelimit_table_peek(items, places, 2, &clock, new.me);

    tap_ok(items[0].verdict.remaining == 0 && !items[1].verdict.allowed
           && items[1].verdict.retry_after,
           "%s: two looks at a counter that moves see the same",
           ratelimit_algorithms[algorithm]->name);
}


int
main(void)
{
    (void) alarm(600);   /* a hang is a failure */

    migrate_test(RATELIMIT_FIXED_WINDOW, 0, 1 << 20, 4 << 20, MIGRATE_LIMIT);
    migrate_test(RATELIMIT_FIXED_WINDOW, 0, 4 << 20, 1 << 20, MIGRATE_LIMIT);
    migrate_test(RATELIMIT_FIXED_WINDOW, 0, 1 << 20, 1 << 20, 150);
    migrate_test(RATELIMIT_TOKEN_BUCKET, 0, 1 << 20, 2 << 20, MIGRATE_LIMIT);
    migrate_test(RATELIMIT_TOKEN_BUCKET, 0, 1 << 20, 8 << 20, 200);
    migrate_test(RATELIMIT_LEAKY_BUCKET, 0, 1 << 20, 2 << 20, MIGRATE_LIMIT);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 1, 1 << 20, 2 << 20, MIGRATE_LIMIT);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 10, 1 << 20, 2 << 20,
                 MIGRATE_LIMIT);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 10, 2 << 20, 1 << 20,
                 MIGRATE_LIMIT);
    migrate_test(RATELIMIT_SLIDING_LOG, 0, 1 << 20, 2 << 20, MIGRATE_LIMIT);
    migrate_test(RATELIMIT_SLIDING_LOG, 0, 2 << 20, 4 << 20, 130);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 10, 1 << 20, 2 << 20, 70000);
    migrate_test(RATELIMIT_SLIDING_WINDOW, 1, 1 << 20, 2 << 20, 300000);

    migrate_pair(40);
    migrate_chain();
    migrate_plans();
    migrate_debt();
    migrate_raised();

    migrate_looks(RATELIMIT_FIXED_WINDOW);
    migrate_looks(RATELIMIT_SLIDING_WINDOW);
    migrate_looks(RATELIMIT_SLIDING_LOG);
    migrate_looks(RATELIMIT_TOKEN_BUCKET);

    return tap_done();
}
