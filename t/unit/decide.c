
/*
 * Several limits are one decision: all are charged or none is, and the
 * tightest one speaks.
 */


#include "decision.h"
#include "world.h"


#define DECIDE_ROUNDS  3000
#define DECIDE_ITEMS   4
#define DECIDE_STEPS   15


typedef struct {
    world_t                         world[DECIDE_ITEMS];
    ratelimit_item_t                item[DECIDE_ITEMS];
    size_t                          n;

    unsigned                        allowed;
    unsigned                        refused;
    unsigned                        rebased;
    unsigned                        failed;
} decide_run_t;


static void decide_open(decide_run_t *run);
static void decide_close(decide_run_t *run);
static int decide_expected(decide_run_t *run, ratelimit_verdict_t *want);
static void decide_step(decide_run_t *run, const ratelimit_clock_t *clock);
static int decide_same(const ratelimit_verdict_t *a,
    const ratelimit_verdict_t *b);
static void decide_test_random(void);
static void decide_test_no_pollution(void);
static void decide_set(ratelimit_item_t *item, int allowed, uint64_t remaining,
    uint64_t retry);
static void decide_test_tightest(void);
static void decide_test_shapes(void);


static void
decide_open(decide_run_t *run)
{
    size_t                 i;
    world_t               *w;
    ratelimit_item_t      *item;
    ratelimit_algorithm_e  algorithm;

    run->n = random_between(1, DECIDE_ITEMS);

    for (i = 0; i < run->n; i++) {
        w = &run->world[i];
        item = &run->item[i];
        algorithm = random_below(RATELIMIT_ALGORITHMS);

        world_random_rule(&w->rule, algorithm);

        /* limits that are met together */
        w->rule.period = random_between(1, 60) * RATELIMIT_SECOND;
        w->rule.limit = random_between(1, 6);
        w->rule.capacity = w->rule.limit;
        w->rule.ceiling = w->rule.limit;
        w->rule.wait = 0;

        world_open(w, algorithm, world_random_buckets());

        item->shape = &w->shape;
        item->rule = &w->rule;
        item->state = w->state;
    }
}


static void
decide_close(decide_run_t *run)
{
    size_t  i;

    for (i = 0; i < run->n; i++) {
        world_close(&run->world[i]);
    }
}


/* what each limit says by itself; the scratch becomes what is expected */

static int
decide_expected(decide_run_t *run, ratelimit_verdict_t *want)
{
    int       allowed;
    size_t    i;
    world_t  *w;

    allowed = 1;

    for (i = 0; i < run->n; i++) {
        w = &run->world[i];

        world_look(w, w->state, 0, run->item[i].cost, &want[i]);
        allowed = allowed && want[i].allowed;
    }

    for (i = 0; i < run->n; i++) {
        w = &run->world[i];

        memcpy(w->scratch, w->state, w->size);

        if (allowed || want[i].rebase) {
            world_charge(w, w->scratch, allowed ? run->item[i].cost : 0);
            run->rebased += want[i].rebase;
        }
    }

    return allowed;
}


static int
decide_same(const ratelimit_verdict_t *a, const ratelimit_verdict_t *b)
{
    return (a->allowed == b->allowed && a->limit == b->limit
            && a->remaining == b->remaining
            && a->retry_after == b->retry_after
            && a->reset_after == b->reset_after && a->stamp == b->stamp
            && a->soft == b->soft && a->delay == b->delay);
}


static void
decide_step(decide_run_t *run, const ratelimit_clock_t *clock)
{
    int                  allowed;
    size_t               i;
    world_t             *w;
    ratelimit_verdict_t  want[DECIDE_ITEMS];

    for (i = 0; i < run->n; i++) {
        run->world[i].clock = *clock;
        run->item[i].cost = random_percent(10)
                            ? 0 : random_percent(90) ? 1 : 2;
    }

    allowed = decide_expected(run, want);

    run->allowed += allowed;
    run->refused += !allowed;

    if (decision_make(run->item, run->n, clock) != allowed) {
        run->failed++;
    }

    for (i = 0; i < run->n; i++) {
        w = &run->world[i];

        if (memcmp(w->state, w->scratch, w->size) != 0
            || !decide_same(&run->item[i].verdict, &want[i]))
        {
            run->failed++;
        }
    }
}


static void
decide_test_random(void)
{
    unsigned           i, j;
    ratelimit_clock_t  clock;

    static decide_run_t  run;

    for (i = 0; i < DECIDE_ROUNDS; i++) {
        decide_open(&run);

        clock.now = random_between(1000, 100000) * RATELIMIT_SECOND;
        clock.wall = random_bits(50);

        for (j = 0; j < DECIDE_STEPS; j++) {
            decide_step(&run, &clock);
            clock.now += random_below(10 * RATELIMIT_SECOND);

            if (random_percent(3)) {
                clock.now -= 900 * RATELIMIT_SECOND;
            }
        }

        decide_close(&run);
    }

    tap_ok(run.failed == 0, "all or nothing, of %u allowed and %u refused",
           run.allowed, run.refused);
    tap_ok(run.rebased > 0, "with %u states from the future", run.rebased);
}


/* a limit of 2 refuses 98 requests: one of 100 beside it is charged for 2 */

static void
decide_test_no_pollution(void)
{
    int                i, order;
    unsigned           allowed;
    decide_run_t       run;
    ratelimit_clock_t  clock;

    for (order = 0; order < 2; order++) {
        memset(&run, 0, sizeof(decide_run_t));

        clock.now = 6000 * RATELIMIT_SECOND;
        clock.wall = clock.now;
        run.n = 2;
        allowed = 0;

        for (i = 0; i < 2; i++) {
            run.world[i].rule.limit = (i == order) ? 2 : 100;
            run.world[i].rule.period = 60 * RATELIMIT_SECOND;
            run.world[i].rule.capacity = run.world[i].rule.limit;
            run.world[i].rule.ceiling = run.world[i].rule.limit;

            world_open(&run.world[i], RATELIMIT_SLIDING_WINDOW, 10);

            run.item[i].shape = &run.world[i].shape;
            run.item[i].rule = &run.world[i].rule;
            run.item[i].state = run.world[i].state;
            run.item[i].cost = 1;
        }

        for (i = 0; i < 100; i++) {
            allowed += decision_make(run.item, 2, &clock);
        }

        run.item[1 - order].cost = 0;
        (void) decision_make(&run.item[1 - order], 1, &clock);

        tap_ok(allowed == 2 && run.item[1 - order].verdict.remaining == 98,
               "what limit %d refuses costs the other nothing",
               order + 1);

        decide_close(&run);
    }
}


static void
decide_set(ratelimit_item_t *item, int allowed, uint64_t remaining,
    uint64_t retry)
{
    memset(item, 0, sizeof(ratelimit_item_t));

    item->verdict.allowed = allowed;
    item->verdict.remaining = remaining;
    item->verdict.retry_after = retry;
}


static void
decide_test_tightest(void)
{
    ratelimit_item_t  item[3];

    decide_set(&item[0], 1, 5, 0);
    tap_ok(ratelimit_tightest(item, 1) == 0, "one limit speaks for itself");

    decide_set(&item[1], 1, 3, 0);
    decide_set(&item[2], 1, 4, 0);
    tap_ok(ratelimit_tightest(item, 3) == 1, "the fewest requests left speak");

    decide_set(&item[2], 0, 7, 1);
    tap_ok(ratelimit_tightest(item, 3) == 2,
           "a refusal speaks before them, however many are left");

    decide_set(&item[0], 0, 9, 10);
    tap_ok(ratelimit_tightest(item, 3) == 0, "the longest wait speaks");

    decide_set(&item[0], 0, 0, 10);
    decide_set(&item[1], 0, 5, 30);
    decide_set(&item[2], 0, 0, 20);
    tap_ok(ratelimit_tightest(item, 3) == 1,
           "the longest wait speaks, wherever it stands");

    decide_set(&item[0], 1, 0, 0);
    decide_set(&item[1], 0, 5, 1);
    tap_ok(ratelimit_tightest(item, 2) == 1,
           "none left is not tighter than a refusal");

    decide_set(&item[0], 1, 2, 0);
    decide_set(&item[1], 1, 40, 0);
    decide_set(&item[2], 1, 3, 0);
    item[0].cost = 1;
    item[1].cost = 30;
    tap_ok(ratelimit_tightest(item, 3) == 1,
           "the fewest further requests speak, not the fewest units");

    item[1].cost = 20;
    tap_ok(ratelimit_tightest(item, 3) == 0, "of equals the first one");

    item[0].cost = 0;
    item[1].cost = 40;
    tap_ok(ratelimit_tightest(item, 3) == 1,
           "without a cost any number is left");

    item[0].cost = 1;
    item[1].cost = 0;
    item[1].verdict.remaining = 1;
    item[2].cost = 0;
    item[2].verdict.remaining = 0;
    tap_ok(ratelimit_tightest(item, 3) == 0, "even of one that has none left");
    tap_ok(ratelimit_tightest(item + 1, 2) == 1,
           "the fewest units speak if all are without a cost");
}


/* bytes of a state; the table adds a slot of 16 for those above 16 */

static void
decide_test_shapes(void)
{
    ratelimit_shape_t  shape;

    memset(&shape, 0, sizeof(ratelimit_shape_t));

    shape.algorithm = RATELIMIT_SLIDING_WINDOW;
    shape.buckets = 10;
    ratelimit_shape_fit(&shape, 65535);
    tap_ok(shape.width == 2, "65535 fit counters of two bytes");

    tap_ok(ratelimit_sliding_window.size(&shape) <= 32,
           "ten sub-windows and one take 32 bytes");

    ratelimit_shape_fit(&shape, 65536);
    tap_ok(shape.width == 4, "65536 fit counters of four bytes");

    ratelimit_shape_fit(&shape, 5);
    tap_ok(shape.width == 4, "a shape that was fitted does not shrink");

    shape.algorithm = RATELIMIT_SLIDING_LOG;
    shape.ring = 0;
    ratelimit_shape_fit(&shape, 100);
    tap_ok(shape.ring == 101, "a log has one more place than its ceiling");
    tap_ok(ratelimit_sliding_log.size(&shape) <= 64 + 5 * 100,
           "and takes five bytes for each");
}


int
main(int argc, char **argv)
{
    random_start(argc, argv);

    decide_test_random();
    decide_test_no_pollution();
    decide_test_tightest();
    decide_test_shapes();

    return tap_done();
}
