
/*
 * The table in one process: exact counts, keys that never meet, eviction, and
 * how many keys it holds.  A mistake here admits too many or forgets offenders
 * and would be blamed on an algorithm.
 */


#include "fleet.h"


#define SIZE  (1 << 20)


static void table_counts(ratelimit_algorithm_e algorithm, uint32_t buckets,
    uint64_t limit);
static void table_two_limits(ratelimit_algorithm_e algorithm, uint32_t
    buckets);
static void table_refund(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void table_count_rejected(ratelimit_algorithm_e algorithm,
    uint32_t buckets);
static void table_count_rejected_beside(ratelimit_algorithm_e algorithm,
    uint32_t buckets);
static void table_flood(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void table_recency(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void table_two_periods(ratelimit_algorithm_e algorithm,
    uint32_t buckets);
static void table_late_clock(ratelimit_algorithm_e algorithm,
    uint32_t buckets);
static void table_two_clocks(ratelimit_algorithm_e algorithm,
    uint32_t buckets);
static void table_reserve(ratelimit_algorithm_e algorithm);
static void table_uptime(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void table_expiry(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void table_sizes(void);
static void table_many_rates(ratelimit_algorithm_e algorithm, uint32_t buckets,
    unsigned rates, unsigned periods);
static void table_nameless(void);
static void table_bytes(ratelimit_algorithm_e algorithm, uint32_t buckets,
    uint64_t limit, size_t size, double most);
static void table_wide(ratelimit_algorithm_e algorithm, uint32_t buckets,
    uint64_t limit, double most);


static void
table_counts(ratelimit_algorithm_e algorithm, uint32_t buckets, uint64_t limit)
{
    int       i, admitted, other;
    fleet_t   f;
    uint64_t  key;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(limit, 3600);

    fleet_open(&f, SIZE, algorithm, buckets);

    admitted = 0;
    other = 0;

    for (i = 0; i < 3 * (int) limit; i++) {
        admitted += fleet_hit(&f, 1);
        key = 1000 + (uint64_t) i;
        other += fleet_hit(&f, key);
    }

    tap_ok(admitted == (int) limit && other == 3 * (int) limit,
           "%s buckets=%u limit=%u admits %d of one key, %d of all others",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) limit,
           admitted, other);
}


/* two limits, and a refusal of one that charges nothing to the other */

static void
table_two_limits(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int               i, admitted;
    fleet_t           f;
    uint64_t          key;
    ratelimit_item_t  items[FLEET_LIMITS];

    memset(&f, 0, sizeof(fleet_t));
    f.n = 2;
    f.rules[0] = fleet_rule(3, 60);
    f.rules[1] = fleet_rule(5, 3600);

    fleet_open(&f, SIZE, algorithm, buckets);

    key = 7;
    admitted = 0;

    for (i = 0; i < 50; i++) {
        admitted += fleet_ask(&f, key, 1, items);
    }

    (void) fleet_ask(&f, key, 0, items);

    tap_ok(admitted == 3 && items[0].verdict.remaining == 0
           && items[1].verdict.remaining == 2,
           "%s buckets=%u: 3 admitted, 47 refusals left the other limit at 2",
           ratelimit_algorithms[algorithm]->name, buckets);

    f.now += 121 * RATELIMIT_SECOND;

    for (i = 0; i < 50; i++) {
        admitted += fleet_ask(&f, key, 1, items);
    }

    tap_ok(admitted == 5 && items[0].verdict.allowed
           && !items[1].verdict.allowed,
           "%s buckets=%u: then 2 more, and the second limit refuses",
           ratelimit_algorithms[algorithm]->name, buckets);
}


static void
table_refund(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    fleet_t            f;
    uint64_t           key;
    ratelimit_hash_t   hash;
    ratelimit_item_t   item;
    ratelimit_place_t  place;
    ratelimit_clock_t  clock;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(1, 3600);

    fleet_open(&f, SIZE, algorithm, buckets);

    key = 5;
    fleet_clock(&f, &clock);

    fleet_hash(&f, key, &hash);

    item.rule = &f.rules[0];
    item.cost = 1;
    item.count_rejected = 0;
    place.table = &f.table;
    place.hash = hash;

    tap_ok(ratelimit_table_decide(&item, &place, 1, &clock, f.me) == 1
           && fleet_hit(&f, key) == 0,
           "%s buckets=%u: the second is refused",
           ratelimit_algorithms[algorithm]->name, buckets);

    ratelimit_table_refund(&item, &place, 1, &clock, f.me);

    tap_ok(fleet_hit(&f, key) == 1 && fleet_hit(&f, key) == 0,
           "%s buckets=%u: after a refund one more is admitted",
           ratelimit_algorithms[algorithm]->name, buckets);
}


/* a client that keeps asking stays refused, one that stops is admitted */

static void
table_count_rejected(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int      i, admitted;
    fleet_t  f;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.count_rejected = 1;
    f.rules[0] = fleet_rule(2, 60);

    fleet_open(&f, SIZE, algorithm, buckets);

    admitted = fleet_hit(&f, 1) + fleet_hit(&f, 1);

    for (i = 0; i < 600; i++) {
        f.now += RATELIMIT_SECOND;
        admitted += fleet_hit(&f, 1);
    }

    f.now += 125 * RATELIMIT_SECOND;

    tap_ok(admitted == 2 && fleet_hit(&f, 1),
           "%s buckets=%u: %d admitted while it knocks, one after a rest",
           ratelimit_algorithms[algorithm]->name, buckets, admitted);
}


/* another limit refuses: with count_rejected the request is counted */

static void
table_count_rejected_beside(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    fleet_t           f;
    ratelimit_item_t  items[FLEET_LIMITS];

    memset(&f, 0, sizeof(fleet_t));
    f.n = 2;
    f.count_rejected = 1;
    f.rules[0] = fleet_rule(10, 3600);
    f.rules[1] = fleet_rule(1, 86400);

    fleet_open(&f, SIZE, algorithm, buckets);

    (void) fleet_hit(&f, 1);
    (void) fleet_hit(&f, 1);
    (void) fleet_ask(&f, 1, 0, items);

    tap_ok(items[0].verdict.remaining == 8,
           "%s buckets=%u: one admitted, one refused elsewhere, %u left of 10",
           ratelimit_algorithms[algorithm]->name, buckets,
           (unsigned) items[0].verdict.remaining);
}


/* a small table, an offender that keeps knocking, and a flood of new keys */

static void
table_flood(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int       refused, asked, denied;
    fleet_t   f;
    uint64_t  i;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(2, 86400);

    fleet_open(&f, 32 * 1024, algorithm, buckets);

    while (fleet_hit(&f, 42)) { /* void */ }

    asked = 0;
    refused = 0;
    denied = 0;

    for (i = 0; i < 200000; i++) {
        denied += !fleet_hit(&f, 1000 + i);

        if (i % 1000 == 0) {
            f.now += 1000;
            asked++;
            refused += !fleet_hit(&f, 42);
        }
    }

    tap_ok(refused == asked && denied == 0
           && ratelimit_table_evictions(&f.table) > 100000,
           "%s buckets=%u: the offender stays refused %d of %d times while "
           "%u keys are dropped, no newcomer is refused",
           ratelimit_algorithms[algorithm]->name, buckets, refused, asked,
           (unsigned) ratelimit_table_evictions(&f.table));
}


/* a key that is used again and again stays while idle ones go */

static void
table_recency(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int               kept;
    fleet_t           f;
    uint64_t          i, key;
    ratelimit_item_t  items[FLEET_LIMITS];

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(100000, 366 * 86400);

    fleet_open(&f, 64 * 1024, algorithm, buckets);

    kept = 1;
    key = 42;

    for (i = 0; i < 20000; i++) {
        f.now += 1000;
        (void) fleet_hit(&f, 1000 + i);

        if (i % 10 == 0) {
            (void) fleet_ask(&f, key, 1, items);
            kept = kept && items[0].verdict.remaining == 99999 - i / 10;
        }
    }

    tap_ok(kept, "%s buckets=%u: a key in use is never dropped",
           ratelimit_algorithms[algorithm]->name, buckets);
}


/* two rates of very different periods: the newest keys keep both counters */

static void
table_two_periods(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int               kept;
    fleet_t           f;
    uint64_t          i, keys;
    ratelimit_item_t  items[FLEET_LIMITS];

    memset(&f, 0, sizeof(fleet_t));
    f.n = 2;
    f.rules[0] = fleet_rule(1000, 3600);
    f.rules[1] = fleet_rule(1000, 30 * 86400);

    fleet_open(&f, 256 * 1024, algorithm, buckets);

    keys = 20000;

    for (i = 0; i < keys; i++) {
        f.now += 1000;
        (void) fleet_hit(&f, i);
    }

    kept = 0;

    for (i = keys - 1000; i < keys; i++) {
        (void) fleet_ask(&f, i, 0, items);
        kept += items[0].verdict.remaining < 1000;
        kept += items[1].verdict.remaining < 1000;
    }

    tap_ok(kept > 1980,
           "%s buckets=%u: of the newest 1000 keys %d counters of 2000 stay",
           ratelimit_algorithms[algorithm]->name, buckets, kept);
}


/* a process that reads its clock late does not turn that of counters back */

static void
table_late_clock(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int       i, more;
    fleet_t   f;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(100, 10);

    fleet_open(&f, SIZE, algorithm, buckets);

    f.now += 10 * RATELIMIT_SECOND;

    while (fleet_hit(&f, 1)) { /* void */ }

    more = 0;

    for (i = 0; i < 4; i++) {
        f.now -= 3 * RATELIMIT_SECOND;
        more += fleet_hit(&f, 1);
        f.now += 3 * RATELIMIT_SECOND;

        while (fleet_hit(&f, 1)) {
            more++;
        }
    }

    tap_ok(more == 0, "%s buckets=%u: a clock 3 s behind admits %d more",
           ratelimit_algorithms[algorithm]->name, buckets, more);
}


/* counters of two clocks, one of which is set, are in the same segments */

static void
table_two_clocks(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int       i, k, admitted;
    fleet_t   f;

    static const uint64_t  ahead[] = { 0, 5, 100, 2 };

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(100, 10);

    fleet_open(&f, SIZE, algorithm, buckets);

    admitted = 0;

    for (i = 0; i < 4; i++) {
        f.ahead = ahead[i] * RATELIMIT_SECOND;

        for (k = 0; k < 1000; k++) {
            (void) fleet_hit(&f, 1000 + k);
        }

        f.ahead = 0;

        while (fleet_hit(&f, 1)) {
            admitted++;
        }
    }

    tap_ok(admitted == 100, "%s buckets=%u: beside other clocks %d of 100",
           ratelimit_algorithms[algorithm]->name, buckets, admitted);
}


/* what is under way takes room until it is settled, and then counts or not */

static void
table_reserve(ratelimit_algorithm_e algorithm)
{
    int                i, held, refused;
    fleet_t            f;
    ratelimit_item_t   items[3];
    ratelimit_place_t  places[3];
    ratelimit_clock_t  clock;

    memset(&f, 0, sizeof(fleet_t));
    memset(items, 0, sizeof(items));

    f.n = 1;
    f.reserves = 1;
    f.rules[0] = fleet_rule(3, 30);

    fleet_open(&f, SIZE, algorithm, 0);

    fleet_clock(&f, &clock);
    held = 0;

    for (i = 0; i < 3; i++) {
        items[i].rule = &f.rules[0];
        items[i].cost = 1;
        items[i].reserve = 1;
        places[i].table = &f.table;
        fleet_hash(&f, 1, &places[i].hash);

        held += ratelimit_table_decide(&items[i], &places[i], 1, &clock, f.me);
    }

    f.now += 200 * RATELIMIT_SECOND;
    fleet_clock(&f, &clock);
    refused = !fleet_hit(&f, 1);

    ratelimit_table_refund(&items[0], &places[0], 1, &clock, f.me);
    ratelimit_table_commit(&items[1], &places[1], 1, &clock, f.me);
    refused += fleet_hit(&f, 1) && !fleet_hit(&f, 1);

    ratelimit_table_refund(&items[2], &places[2], 1, &clock, f.me);
    refused += fleet_hit(&f, 1) && !fleet_hit(&f, 1);

    f.now += 30 * RATELIMIT_SECOND;

    for (i = 0; i < 3; i++) {
        refused += fleet_hit(&f, 1);
    }

    tap_ok(held == 3 && refused == 6 && !fleet_hit(&f, 1),
           "%s: reservations are held, refunded and counted",
           ratelimit_algorithms[algorithm]->name);
}


/* a machine that is up for years: times need more bits than it seems */

static void
table_uptime(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int       i, admitted, wrong;
    fleet_t   f;
    uint64_t  years;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(5, 1);

    fleet_open(&f, SIZE, algorithm, buckets);

    wrong = 0;

    for (years = 1; years <= 34; years++) {
        f.now = years * 365 * 86400 * RATELIMIT_SECOND;
        admitted = 0;

        for (i = 0; i < 20; i++) {
            admitted += fleet_hit(&f, 1);
        }

        wrong += (admitted != 5);
    }

    tap_ok(wrong == 0, "%s buckets=%u: limits hold after 1 to 34 years of "
           "uptime, %d do not", ratelimit_algorithms[algorithm]->name, buckets,
           wrong);
}


/* what has run out is no eviction */

static void
table_expiry(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int       denied;
    fleet_t   f;
    uint64_t  i;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(2, 60);

    fleet_open(&f, 64 * 1024, algorithm, buckets);

    denied = 0;

    for (i = 0; i < 50000; i++) {
        denied += !fleet_hit(&f, i);
        f.now += RATELIMIT_SECOND;
    }

    tap_ok(denied == 0 && ratelimit_table_evictions(&f.table) == 0,
           "%s buckets=%u: 50000 keys come and run out, none is dropped early",
           ratelimit_algorithms[algorithm]->name, buckets);
}


/* as many rates as customers: all their counters expire all the same */

static void
table_many_rates(ratelimit_algorithm_e algorithm, uint32_t buckets,
    unsigned rates, unsigned periods)
{
    fleet_t   f;
    uint64_t  i;
    unsigned  denied;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(2, 60);

    fleet_open(&f, 128 * 1024, algorithm, buckets);

    /* one whose counters live long */

    f.rules[1] = fleet_rule(1, 30 * 86400);
    ratelimit_table_add_rule(&f.table, &f.rules[1], f.me);

    denied = 0;

    for (i = 0; i < 60000; i++) {
        f.rules[0] = fleet_rule(2 + i % rates, 60 + i % periods);

        if (i < rates * periods) {
            ratelimit_table_add_rule(&f.table, &f.rules[0], f.me);
        }

        denied += !fleet_hit(&f, i);
        f.now += RATELIMIT_SECOND;
    }

    tap_ok(denied == 0 && ratelimit_table_evictions(&f.table) == 0,
           "%s buckets=%u: %u rates and %u periods, %u counters dropped early",
           ratelimit_algorithms[algorithm]->name, buckets, rates, periods,
           (unsigned) ratelimit_table_evictions(&f.table));
}


/* bytes per key: a zone is filled until keys are displaced */

static void
table_bytes(ratelimit_algorithm_e algorithm, uint32_t buckets, uint64_t limit,
    size_t size, double most)
{
    double    bytes;
    fleet_t   f;
    uint64_t  i, keys;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(limit, 86400);

    /* the first page of a zone is nginx's */

    fleet_open(&f, size - 4096, algorithm, buckets);

    keys = (uint64_t) (size / most);

    for (i = 0; i < keys; i++) {
        (void) fleet_hit(&f, i);
    }

    bytes = (double) size / keys;

    tap_ok(ratelimit_table_evictions(&f.table) * 10000 <= keys,
           "%s buckets=%u limit=%u: %u keys in %u bytes, %.1f each, "
           "%u displaced early",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) limit,
           (unsigned) keys, (unsigned) size, bytes,
           (unsigned) ratelimit_table_evictions(&f.table));
}


/* limits that need wider counters */

static void
table_wide(ratelimit_algorithm_e algorithm, uint32_t buckets, uint64_t limit,
    double most)
{
    table_bytes(algorithm, buckets, limit, 24 << 20, most);
}


static void
table_sizes(void)
{
    table_bytes(RATELIMIT_FIXED_WINDOW, 0, 100, 24 << 20, 24);
    table_bytes(RATELIMIT_TOKEN_BUCKET, 0, 100, 24 << 20, 24);
    table_bytes(RATELIMIT_LEAKY_BUCKET, 0, 100, 24 << 20, 24);
    table_bytes(RATELIMIT_SLIDING_WINDOW, 1, 100, 24 << 20, 24);
    table_bytes(RATELIMIT_SLIDING_WINDOW, 10, 100, 24 << 20, 60);
    table_bytes(RATELIMIT_SLIDING_WINDOW, 60, 100, 24 << 20, 200);
    table_bytes(RATELIMIT_SLIDING_LOG, 0, 10, 24 << 20, 64 + 5 * 10);
    table_bytes(RATELIMIT_SLIDING_LOG, 0, 500, 24 << 20, 64 + 5 * 500);

    table_wide(RATELIMIT_FIXED_WINDOW, 0, 20000000, 36);
    table_wide(RATELIMIT_TOKEN_BUCKET, 0, 20000000, 36);
    table_wide(RATELIMIT_LEAKY_BUCKET, 0, 20000000, 36);
    table_wide(RATELIMIT_SLIDING_WINDOW, 1, 300000, 36);
    table_wide(RATELIMIT_SLIDING_WINDOW, 10, 70000, 90);
    table_wide(RATELIMIT_SLIDING_WINDOW, 60, 70000, 296);
}


/*
 * A process without a name takes no lock, which would be none to the others:
 * its rule finds no class, and a named process adds it later.
 */

static void
table_nameless(void)
{
    fleet_t           f;
    ratelimit_rule_t  rule, got;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(1, 3600);
    rule = fleet_rule(1, 7200);

    fleet_open(&f, SIZE, RATELIMIT_FIXED_WINDOW, 0);

    ratelimit_table_add_rule(&f.table, &rule, 0);

    tap_ok(!ratelimit_table_get_rule(&f.table, 1, &got),
           "a process without a name does not take the lock of classes");

    ratelimit_table_add_rule(&f.table, &rule, f.me);

    tap_ok(ratelimit_table_get_rule(&f.table, 1, &got)
           && got.period == rule.period,
           "one with a name does");
}


int
main(void)
{
    unsigned  i, buckets;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        buckets = fleet_buckets(i);

        table_counts(i, buckets, 20);
        table_two_limits(i, buckets);
        table_refund(i, buckets);
        table_flood(i, buckets);
        table_expiry(i, buckets);
        table_late_clock(i, buckets);
        table_two_clocks(i, buckets);
        table_uptime(i, buckets);
        table_count_rejected_beside(i, buckets);
    }

    table_counts(RATELIMIT_SLIDING_WINDOW, 1, 20);
    table_counts(RATELIMIT_SLIDING_WINDOW, 60, 20);
    table_two_limits(RATELIMIT_SLIDING_WINDOW, 1);
    table_refund(RATELIMIT_SLIDING_WINDOW, 1);
    table_flood(RATELIMIT_SLIDING_WINDOW, 1);
    table_expiry(RATELIMIT_SLIDING_WINDOW, 1);
    table_uptime(RATELIMIT_SLIDING_WINDOW, 1);

    table_nameless();
    table_many_rates(RATELIMIT_FIXED_WINDOW, 0, 100, 100);
    table_many_rates(RATELIMIT_SLIDING_WINDOW, 1, 100, 100);
    table_many_rates(RATELIMIT_SLIDING_WINDOW, 10, 100, 100);
    table_many_rates(RATELIMIT_SLIDING_WINDOW, 1, 1, 500);
    table_many_rates(RATELIMIT_SLIDING_WINDOW, 10, 1, 500);
    table_many_rates(RATELIMIT_SLIDING_LOG, 0, 2, 100);
    table_many_rates(RATELIMIT_SLIDING_LOG, 0, 1, 300);
    table_many_rates(RATELIMIT_TOKEN_BUCKET, 0, 1000, 1);
    table_many_rates(RATELIMIT_LEAKY_BUCKET, 0, 100, 100);

    table_reserve(RATELIMIT_TOKEN_BUCKET);
    table_reserve(RATELIMIT_LEAKY_BUCKET);

    table_count_rejected(RATELIMIT_SLIDING_WINDOW, 1);
    table_count_rejected(RATELIMIT_SLIDING_WINDOW, 10);
    table_count_rejected(RATELIMIT_SLIDING_LOG, 0);
    table_count_rejected(RATELIMIT_TOKEN_BUCKET, 0);
    table_count_rejected(RATELIMIT_LEAKY_BUCKET, 0);

    table_two_periods(RATELIMIT_FIXED_WINDOW, 0);
    table_two_periods(RATELIMIT_SLIDING_WINDOW, 1);
    table_two_periods(RATELIMIT_SLIDING_WINDOW, 10);
    table_two_periods(RATELIMIT_TOKEN_BUCKET, 0);

    table_recency(RATELIMIT_FIXED_WINDOW, 0);
    table_recency(RATELIMIT_SLIDING_WINDOW, 10);
    table_recency(RATELIMIT_TOKEN_BUCKET, 0);

    table_sizes();

    return tap_done();
}
