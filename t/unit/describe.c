
/*
 * A decision of the table that is described later, when other requests have
 * come meanwhile, says what the core says at once of states of its own.
 */


#include "decision.h"
#include "fleet.h"
#include "random.h"


#define DESCRIBE_STEPS    20000
#define DESCRIBE_PENDING  5
#define DESCRIBE_KEYS     7
#define DESCRIBE_SIZE     (256 * 1024)
#define DESCRIBE_WORDS    64     /* of a state */


typedef struct {
    size_t              n;
    ratelimit_item_t    want[2];
    ratelimit_item_t    items[2];
    ratelimit_place_t   places[2];
} describe_t;


static ratelimit_state_t
    describe_states[DESCRIBE_KEYS][2][DESCRIBE_WORDS];


static void describe_rules(fleet_t *f, ratelimit_algorithm_e algorithm,
    uint64_t limit);
static void describe_ask(fleet_t *f, uint64_t key, ratelimit_item_t *items,
    ratelimit_place_t *places, const uint64_t *costs);
static int describe_same(const ratelimit_verdict_t *a,
    const ratelimit_verdict_t *b);
static int describe_step(fleet_t *f, describe_t *e);
static void describe_run(ratelimit_algorithm_e algorithm, uint32_t buckets,
    size_t n, uint64_t limit);


static void
describe_rules(fleet_t *f, ratelimit_algorithm_e algorithm, uint64_t limit)
{
    size_t             i;
    unsigned           takes;
    ratelimit_rule_t  *rule;

    takes = ratelimit_algorithms[algorithm]->takes;

    f->rules[0] = fleet_rule(limit, 10);
    f->rules[1] = fleet_rule(limit * 3, 60);

    for (i = 0; i < f->n; i++) {
        rule = &f->rules[i];
        rule->ceiling += i * limit / 2;

        if (takes & RATELIMIT_TAKES_BURST) {
            rule->free = 1;
        }

        if (takes & RATELIMIT_TAKES_WAIT) {
            rule->wait = i * RATELIMIT_SECOND;
        }
    }
}


static void
describe_ask(fleet_t *f, uint64_t key, ratelimit_item_t *items,
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
        items[i].count_rejected = f->count_rejected;
        places[i].table = &f->table;
        places[i].hash = hash;
    }
}


static int
describe_same(const ratelimit_verdict_t *a, const ratelimit_verdict_t *b)
{
    return a->limit == b->limit && a->remaining == b->remaining
           && a->reset_after == b->reset_after
           && a->retry_after == b->retry_after && a->delay == b->delay
           && a->excess == b->excess && a->stamp == b->stamp
           && a->allowed == b->allowed && a->soft == b->soft
           && a->rebase == b->rebase;
}


/* describes what was decided before, and decides again in its place */

static int
describe_step(fleet_t *f, describe_t *e)
{
    int                same, allowed;
    size_t             i;
    uint64_t           key, costs[2];
    ratelimit_clock_t  clock;

    ratelimit_table_describe(e->items, e->places, e->n);

    same = 1;

    for (i = 0; i < e->n; i++) {
        same &= describe_same(&e->want[i].verdict, &e->items[i].verdict);
    }

    key = random_below(DESCRIBE_KEYS);
    costs[0] = random_percent(80) ? 1 : random_below(20);
    costs[1] = random_percent(80) ? costs[0] : random_below(20);

    f->count_rejected = random_percent(10);
    fleet_clock(f, &clock);
    clock.wall = f->now + 12345000;

    describe_ask(f, key, e->want, e->places, costs);
    describe_ask(f, key, e->items, e->places, costs);

    e->n = f->n;

    for (i = 0; i < e->n; i++) {
        e->want[i].shape = &f->table.kind.shape;
        e->want[i].state = describe_states[key][i];
    }

    allowed = decision_make(e->want, e->n, &clock);

    /* by turns as compiled for the kind and as for all others */

    f->table.instance = random_percent(50) ? f->instance
                                           : &ratelimit_table_any;

    return same && ratelimit_table_decide(e->items, e->places, f->n, &clock,
                                          f->me)
                   == allowed;
}


static void
describe_run(ratelimit_algorithm_e algorithm, uint32_t buckets, size_t n,
    uint64_t limit)
{
    fleet_t     f;
    unsigned    i, odd;
    describe_t  pending[DESCRIBE_PENDING];

    memset(&f, 0, sizeof(fleet_t));
    memset(pending, 0, sizeof(pending));
    memset(describe_states, 0, sizeof(describe_states));

    f.n = n;
    describe_rules(&f, algorithm, limit);
    fleet_open(&f, DESCRIBE_SIZE, algorithm, buckets);

    odd = 0;

    for (i = 0; i < DESCRIBE_STEPS; i++) {
        odd += !describe_step(&f, &pending[i % DESCRIBE_PENDING]);

        if (random_percent(30)) {
            f.now += random_below(random_percent(90) ? 1000 : 30000) * 1000;
        }
    }

    tap_ok(odd == 0, "%s buckets=%u, %u rules of %llu: %u of %u differ",
           f.table.algorithm->name, buckets, (unsigned) n,
           (unsigned long long) limit, odd, DESCRIBE_STEPS);
}


int
main(int argc, char **argv)
{
    size_t    n;
    unsigned  i;

    random_start(argc, argv);

    for (n = 1; n <= 2; n++) {

        for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
            describe_run(i, fleet_buckets(i), n, 10);
        }

        describe_run(RATELIMIT_SLIDING_WINDOW, 1, n, 10);
        describe_run(RATELIMIT_SLIDING_WINDOW, 10, n, 100000);
        describe_run(RATELIMIT_SLIDING_WINDOW, 60, n, 10);
        describe_run(RATELIMIT_FIXED_WINDOW, 0, n, 100000000);
    }

    return tap_done();
}
