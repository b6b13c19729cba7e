
/*
 * What a decision says at once, and what it explains later, when others have
 * come meanwhile, is what a check of the same requests says.
 */


#include "fleet.h"
#include "random.h"


#define EXPLAIN_STEPS    20000
#define EXPLAIN_PENDING  5
#define EXPLAIN_KEYS     7
#define EXPLAIN_SIZE     (256 * 1024)


typedef struct {
    size_t              n;
    ratelimit_item_t    want[2];
    ratelimit_item_t    items[2];
    ratelimit_place_t   places[2];
} explain_t;


static void explain_rules(fleet_t *f, ratelimit_algorithm_e algorithm,
    uint64_t limit);
static void explain_ask(fleet_t *f, uint64_t key, ratelimit_item_t *items,
    ratelimit_place_t *places, const uint64_t *costs);
static int explain_same(const ratelimit_verdict_t *a,
    const ratelimit_verdict_t *b);
static int explain_step(fleet_t *a, fleet_t *b, explain_t *e);
static void explain_run(ratelimit_algorithm_e algorithm, uint32_t buckets,
    size_t n, uint64_t limit);


static void
explain_rules(fleet_t *f, ratelimit_algorithm_e algorithm, uint64_t limit)
{
    size_t             i;
    ratelimit_rule_t  *rule;

    f->rules[0] = fleet_rule(limit, 10);
    f->rules[1] = fleet_rule(limit * 3, 60);

    for (i = 0; i < f->n; i++) {
        rule = &f->rules[i];
        rule->ceiling += i * limit / 2;

        if (algorithm == RATELIMIT_LEAKY_BUCKET) {
            rule->free = 1;
        }

        if (algorithm == RATELIMIT_TOKEN_BUCKET) {
            rule->wait = i * RATELIMIT_SECOND;
        }
    }
}


static void
explain_ask(fleet_t *f, uint64_t key, ratelimit_item_t *items,
    ratelimit_place_t *places, const uint64_t *costs)
{
    size_t            i;
    ratelimit_hash_t  hash;

    fleet_hash(f, key, &hash);

    for (i = 0; i < f->n; i++) {
        memset(&items[i], 0xa5, sizeof(ratelimit_item_t));
        memset(&places[i], 0xa5, sizeof(ratelimit_place_t));

        items[i].rule = &f->rules[i];
        items[i].cost = costs[i];
        items[i].insist = f->insist;
        places[i].table = &f->table;
        places[i].hash = hash;
    }
}


static int
explain_same(const ratelimit_verdict_t *a, const ratelimit_verdict_t *b)
{
    return a->limit == b->limit && a->remaining == b->remaining
           && a->reset_after == b->reset_after
           && a->retry_after == b->retry_after && a->delay == b->delay
           && a->excess == b->excess && a->stamp == b->stamp
           && a->allowed == b->allowed && a->soft == b->soft
           && a->rebase == b->rebase;
}


/* explains what was decided long ago, and decides anew in its place */

static int
explain_step(fleet_t *a, fleet_t *b, explain_t *e)
{
    int                same, allowed;
    size_t             i;
    uint64_t           key, costs[2];
    ratelimit_clock_t  clock;
    ratelimit_place_t  places[2];

    ratelimit_table_explain(e->items, e->places, e->n);

    same = 1;

    for (i = 0; i < e->n; i++) {
        same &= explain_same(&e->want[i].verdict, &e->items[i].verdict);
    }

    key = random_below(EXPLAIN_KEYS);
    costs[0] = random_percent(80) ? 1 : random_below(20);
    costs[1] = random_percent(80) ? costs[0] : random_below(20);

    a->insist = b->insist = random_percent(10);
    clock.now = a->now;
    clock.wall = a->now + 12345000;

    explain_ask(a, key, e->want, places, costs);
    explain_ask(b, key, e->items, e->places, costs);

    e->n = a->n;
    allowed = ratelimit_table_check(e->want, places, a->n, &clock, a->me);

    return same && ratelimit_table_decide(e->items, e->places, b->n, &clock,
                                          b->me)
                   == allowed;
}


static void
explain_run(ratelimit_algorithm_e algorithm, uint32_t buckets, size_t n,
    uint64_t limit)
{
    fleet_t    a, b;
    unsigned   i, odd;
    explain_t  pending[EXPLAIN_PENDING];

    memset(&a, 0, sizeof(fleet_t));
    memset(pending, 0, sizeof(pending));

    a.n = n;
    explain_rules(&a, algorithm, limit);
    fleet_open(&a, EXPLAIN_SIZE, algorithm, buckets);

    b = a;
    fleet_open(&b, EXPLAIN_SIZE, algorithm, buckets);

    odd = 0;

    for (i = 0; i < EXPLAIN_STEPS; i++) {
        odd += !explain_step(&a, &b, &pending[i % EXPLAIN_PENDING]);

        if (random_percent(30)) {
            a.now += random_below(random_percent(90) ? 1000 : 30000) * 1000;
        }
    }

    tap_ok(odd == 0, "%s buckets=%u, %u rules of %llu: %u of %u differ",
           a.table.algorithm->name, buckets, (unsigned) n,
           (unsigned long long) limit, odd, EXPLAIN_STEPS);
}


int
main(int argc, char **argv)
{
    size_t  n;

    random_start(argc, argv);

    for (n = 1; n <= 2; n++) {
        explain_run(RATELIMIT_FIXED_WINDOW, 0, n, 10);
        explain_run(RATELIMIT_SLIDING_WINDOW, 1, n, 10);
        explain_run(RATELIMIT_SLIDING_WINDOW, 10, n, 10);
        explain_run(RATELIMIT_SLIDING_WINDOW, 10, n, 100000);
        explain_run(RATELIMIT_SLIDING_WINDOW, 60, n, 10);
        explain_run(RATELIMIT_SLIDING_LOG, 0, n, 10);
        explain_run(RATELIMIT_TOKEN_BUCKET, 0, n, 10);
        explain_run(RATELIMIT_LEAKY_BUCKET, 0, n, 10);
        explain_run(RATELIMIT_FIXED_WINDOW, 0, n, 100000000);
    }

    return tap_done();
}
