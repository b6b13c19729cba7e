
/*
 * Small worlds, all of them: every sequence of a few requests over a few
 * steps of the clock, for tiny rules, against the naive model.
 */


#include "world.h"


#define EXHAUSTIVE_DEPTH  4
#define EXHAUSTIVE_BYTES  64


typedef struct {
    world_t                         world;
    unsigned                        looked;
    unsigned                        failed;
} exhaustive_run_t;


/* a way back */

typedef struct {
    ratelimit_clock_t               clock;
    model_t                         model;
    uint8_t                         state[EXHAUSTIVE_BYTES];
} exhaustive_save_t;


static void exhaustive_fail(exhaustive_run_t *run, const char *what,
    uint64_t cost);
static void exhaustive_save(const world_t *w, exhaustive_save_t *save);
static void exhaustive_restore(world_t *w, const exhaustive_save_t *save);
static int exhaustive_request(exhaustive_run_t *run, uint64_t cost);
static void exhaustive_costs(exhaustive_run_t *run, unsigned depth);
static void exhaustive_steps(exhaustive_run_t *run, unsigned depth);
static void exhaustive_rule(exhaustive_run_t *run,
    ratelimit_algorithm_e algorithm, uint32_t buckets);
static void exhaustive_algorithm(ratelimit_algorithm_e algorithm);


static void
exhaustive_fail(exhaustive_run_t *run, const char *what, uint64_t cost)
{
    world_t  *w;

    w = &run->world;

    if (run->failed++ < 3) {
        tap_note("%s: %s: limit=%d period=%dus capacity=%d ceiling=%d "
                 "buckets=%d now=%lluus cost=%d",
                 w->algorithm->name, what, (int) w->rule.limit,
                 (int) w->rule.period, (int) w->rule.capacity,
                 (int) w->rule.ceiling, (int) w->shape.buckets,
                 (unsigned long long) w->clock.now, (int) cost);
    }
}


static void
exhaustive_save(const world_t *w, exhaustive_save_t *save)
{
    save->clock = w->clock;
    save->model = w->model;
    memcpy(save->state, w->state, w->size);
}


static void
exhaustive_restore(world_t *w, const exhaustive_save_t *save)
{
    w->clock = save->clock;
    w->model = save->model;
    memcpy(w->state, save->state, w->size);
}


/* one verdict compared in all; returns 1 if the request was charged */

static int
exhaustive_request(exhaustive_run_t *run, uint64_t cost)
{
    int                   rebase;
    world_t              *w;
    const char           *field;
    ratelimit_verdict_t   v, want;

    w = &run->world;
    run->looked++;

    world_look(w, w->state, 0, cost, &v);

    rebase = model_rebase(&w->model, &w->clock);
    model_look(&w->model, &w->clock, cost, &want);

    field = model_differs(&w->model, &v, &want, cost);

    if (field != NULL || v.rebase != rebase) {
        exhaustive_fail(run, field ? field : "rebase", cost);
        return 0;
    }

    if (v.allowed) {
        world_charge(w, w->state, cost);
        (void) model_charge(&w->model, &w->clock, cost);
        return 1;
    }

    if (rebase) {
        world_charge(w, w->state, 0);
    }

    if (!world_retry_exact(w, &v, cost)) {
        exhaustive_fail(run, "retry", cost);
    }

    return rebase;
}


static void
exhaustive_costs(exhaustive_run_t *run, unsigned depth)
{
    uint64_t           cost;
    exhaustive_save_t  save;

    exhaustive_save(&run->world, &save);

    for (cost = 1; cost <= 4; cost++) {

        if (exhaustive_request(run, cost) && depth) {
            exhaustive_steps(run, depth - 1);
        }

        exhaustive_restore(&run->world, &save);
    }
}


/* what is refused changes nothing, so a longer step goes on from there */

static void
exhaustive_steps(exhaustive_run_t *run, unsigned depth)
{
    unsigned           i;
    world_t           *w;
    exhaustive_save_t  save;

    static const int64_t  steps[] = { 0, 1, 2, 3, 5, -1, -3000000 };

    w = &run->world;

    exhaustive_save(w, &save);

    for (i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {

        if (steps[i] < 0
            && (model_is_bucket(&w->model)
                || w->clock.now < (uint64_t) -steps[i]))
        {
            continue;
        }

        world_forward(w, steps[i]);
        exhaustive_costs(run, depth);
        exhaustive_restore(w, &save);
    }
}


static void
exhaustive_rule(exhaustive_run_t *run, ratelimit_algorithm_e algorithm,
    uint32_t buckets)
{
    world_t   *w;
    unsigned   i;

    static const uint64_t  starts[] = { 0, 3600 * RATELIMIT_SECOND + 1 };

    w = &run->world;

    for (i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        world_open(w, algorithm, buckets);

        if (w->size > EXHAUSTIVE_BYTES) {
            abort();
        }

        w->clock.now = starts[i];
        w->clock.wall = starts[i] + i;

        exhaustive_costs(run, EXHAUSTIVE_DEPTH - 1);

        world_close(w);
    }
}


/* windows have sub-windows, buckets a capacity: both are the form */

static void
exhaustive_algorithm(ratelimit_algorithm_e algorithm)
{
    uint32_t           form, forms;
    uint64_t           limit, period, soft;
    unsigned           takes, capacity;
    ratelimit_rule_t  *rule;

    static exhaustive_run_t  run;

    memset(&run, 0, sizeof(exhaustive_run_t));

    rule = &run.world.rule;
    takes = ratelimit_algorithms[algorithm]->takes;
    capacity = takes & (RATELIMIT_TAKES_CAPACITY|RATELIMIT_TAKES_BURST);
    forms = (capacity || takes & RATELIMIT_TAKES_BUCKETS) ? 3 : 1;

    for (limit = 1; limit <= 3; limit++) {
        for (period = 1; period <= 5; period += 2) {
            for (soft = 0; soft <= 1; soft++) {
                for (form = 1; form <= forms; form++) {
                    memset(rule, 0, sizeof(ratelimit_rule_t));

                    rule->limit = limit;
                    rule->period = period;
                    rule->capacity = capacity ? form : limit;
                    rule->ceiling = rule->capacity + soft;

                    exhaustive_rule(&run, algorithm, form);
                }
            }
        }
    }

    tap_ok(run.looked && run.failed == 0, "%s: %u verdicts",
           ratelimit_algorithms[algorithm]->name, run.looked);
}


int
main(void)
{
    int  i;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        exhaustive_algorithm(i);
    }

    return tap_done();
}
