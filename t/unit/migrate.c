
/*
 * A table that follows another one, of another size or shape, while processes
 * that know only the older one go on: no count may be lost or doubled, before,
 * while and after the older one is sealed.
 */


/* no sanitizer */

#include "migrate.h"


static void migrate_chain(void);


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

    return tap_done();
}
