
/*
 * Random requests while the clock is set back now and then.  What was promised
 * is kept in true time, which only goes forward, and no client is locked out.
 */


#include "properties.h"


#define CLOCK_WORLDS  500
#define CLOCK_STEPS   60


typedef struct {
    uint64_t                        time;     /* true time */
    uint64_t                        cost;
} clock_admitted_t;


typedef struct {
    world_t                         world;
    clock_admitted_t                admitted[CLOCK_STEPS];
    unsigned                        n;
    unsigned                        backs;    /* so often set back */
    uint64_t                        time;     /* true time */
    uint64_t                        share;    /* most in one sub-window */
} clock_run_t;


enum {
    CLOCK_MODEL = 0,
    CLOCK_PROMISE,
    CLOCK_RETRY,
    CLOCK_HARM,
    CLOCK_ONCE,
    CLOCK_REFUND,
    CLOCK_ALL
};


static property_t  clock_properties[CLOCK_ALL] = {
    { "back: the verdict is that of the model", 0, 0 },
    { "back: never more than promised in true time", 0, 0 },
    { "back: retry is exact to the microsecond", 0, 0 },
    { "back: no client is locked out", 0, 0 },
    { "back: rebased by one charge, the verdict stays", 0, 0 },
    { "back: a refund restores", 0, 0 },
};


static void clock_world(ratelimit_algorithm_e algorithm);
static void clock_step(clock_run_t *run, ratelimit_verdict_t *v);
static void clock_rebase(world_t *w, uint64_t cost,
    const ratelimit_verdict_t *v);
static void clock_verdict(world_t *w, uint64_t cost,
    const ratelimit_verdict_t *v, int rebase);
static void clock_refund(world_t *w, uint64_t cost,
    const ratelimit_verdict_t *v);
static void clock_admit(clock_run_t *run, uint64_t cost);
static void clock_move(clock_run_t *run, const ratelimit_verdict_t *v);
static uint64_t clock_grain(const world_t *w);
static uint64_t clock_longest(const world_t *w, uint64_t cost);
static uint64_t clock_sum(const clock_run_t *run, unsigned first,
    unsigned last);
static int clock_kept(const clock_run_t *run, unsigned first, unsigned last);


/* a log of a long period counts milliseconds, as does nginx */

static uint64_t
clock_grain(const world_t *w)
{
    return (w->rule.period < ((uint64_t) 1 << 39)) ? 1 : 1000;
}


/* no client should have to wait for longer */

static uint64_t
clock_longest(const world_t *w, uint64_t cost)
{
    model_int_t  W;

    W = w->rule.period;

    switch (w->model.algorithm) {

    case RATELIMIT_SLIDING_WINDOW:
        return W + W / w->shape.buckets + 2 + RATELIMIT_SKEW;

    case RATELIMIT_FIXED_WINDOW:
    case RATELIMIT_SLIDING_LOG:
        return W + RATELIMIT_SKEW;

    default:

        /* what has leaked since the last two periods began may be lost */
        return model_ceil(cost * W, w->rule.limit) + w->rule.wait + 2 * W
               + RATELIMIT_SKEW;
    }
}


static void
clock_verdict(world_t *w, uint64_t cost, const ratelimit_verdict_t *v,
    int rebase)
{
    const char           *field;
    ratelimit_verdict_t   want;

    if (!model_is_bucket(&w->model)) {
        model_look(&w->model, &w->clock, cost, &want);

        field = model_differs(&w->model, v, &want, cost);

        property_check(&clock_properties[CLOCK_MODEL], w,
                       field == NULL && v->rebase == rebase,
                       field ? field : "rebase");

    } else {
        property_check(&clock_properties[CLOCK_MODEL], w,
                       v->allowed == (v->retry_after == 0)
                       && v->remaining <= w->rule.capacity, "unsound");
    }

    if (cost <= w->rule.ceiling) {
        property_check(&clock_properties[CLOCK_HARM], w,
                       v->retry_after <= clock_longest(w, cost),
                       "refused for too long");
    }
}


/* what was said of a state from the future holds once it is rebased */

static void
clock_rebase(world_t *w, uint64_t cost, const ratelimit_verdict_t *v)
{
    ratelimit_verdict_t  again;

    world_charge(w, w->state, 0);
    world_look(w, w->state, 0, cost, &again);

    property_check(&clock_properties[CLOCK_ONCE], w,
                   !again.rebase && again.allowed == v->allowed
                   && again.remaining == v->remaining
                   && again.retry_after == v->retry_after
                   && again.reset_after == v->reset_after, "differs");
}


/* charged and refunded at once, on a copy: as if it had not been */

static void
clock_refund(world_t *w, uint64_t cost, const ratelimit_verdict_t *v)
{
    memcpy(w->scratch, w->state, w->size);

    world_charge(w, w->scratch, cost);
    world_refund(w, w->scratch, v->stamp, cost);

    property_check(&clock_properties[CLOCK_REFUND], w,
                   world_same(w, w->scratch, w->state, 0, cost)
                   && world_same(w, w->scratch, w->state,
                                 random_below(2 * w->rule.period),
                                 world_random_cost(&w->rule)),
                   "differs");
}


static void
clock_admit(clock_run_t *run, uint64_t cost)
{
    world_t      *w;
    model_int_t   share;

    w = &run->world;

    world_charge(w, w->state, cost);

    if (cost == 0) {
        return;
    }

    (void) model_charge(&w->model, &w->clock, cost);

    share = model_sum(&w->model, w->model.newest, w->model.newest);

    if (share > (model_int_t) run->share) {
        run->share = share;
    }

    run->admitted[run->n].time = run->time;
    run->admitted[run->n].cost = cost;
    run->n++;
}


/* forward, and then back by a little or by a lot */

static void
clock_move(clock_run_t *run, const ratelimit_verdict_t *v)
{
    world_t   *w;
    uint64_t   step, grain;

    w = &run->world;
    grain = clock_grain(w);

    step = world_random_step(w, v) / grain * grain;
    world_forward(w, step);
    run->time += step;

    if (random_percent(90)) {
        return;
    }

    switch (random_below(4)) {

    case 0:
        step = random_below(RATELIMIT_SKEW + 2);
        break;

    case 1:
        step = random_below(2 * w->rule.period);
        break;

    case 2:
        step = w->rule.period + RATELIMIT_SKEW + random_below(3) - 1;
        break;

    default:
        step = random_bits(45);
    }

    step = step / grain * grain;

    if (step > w->clock.now) {
        step = w->clock.now;
    }

    w->clock.now -= step;
    w->clock.wall = random_percent(50) ? w->clock.wall : random_bits(52);
    run->backs++;
}


static void
clock_step(clock_run_t *run, ratelimit_verdict_t *v)
{
    int        rebase;
    world_t   *w;
    uint64_t   cost;

    w = &run->world;
    cost = world_random_cost(&w->rule);

    world_look(w, w->state, 0, cost, v);
    rebase = model_rebase(&w->model, &w->clock);

    clock_verdict(w, cost, v, rebase);

    if (v->rebase) {
        clock_rebase(w, cost, v);
    }

    if (!v->allowed) {
        property_check(&clock_properties[CLOCK_RETRY], w,
                       world_retry_exact(w, v, cost), "not exact");
    }

    if (v->allowed && cost) {
        clock_refund(w, cost, v);
    }

    if (v->allowed && random_percent(85)) {
        clock_admit(run, cost);
    }

    clock_move(run, v);
}


static uint64_t
clock_sum(const clock_run_t *run, unsigned first, unsigned last)
{
    uint64_t  sum;

    for (sum = 0; first <= last; first++) {
        sum += run->admitted[first].cost;
    }

    return sum;
}


/* whether all from the first to the last were promised */

static int
clock_kept(const clock_run_t *run, unsigned first, unsigned last)
{
    model_int_t              sum, span, C, N, W;
    const ratelimit_rule_t  *rule;

    rule = &run->world.rule;
    sum = clock_sum(run, first, last);
    span = run->admitted[last].time - run->admitted[first].time;
    C = rule->ceiling;
    N = rule->limit;
    W = rule->period;

    switch (run->world.model.algorithm) {

    case RATELIMIT_FIXED_WINDOW:

        /* each step may cut one window short */
        return (sum <= C * (span / W + 2 + run->backs));

    case RATELIMIT_SLIDING_WINDOW:

        /* each step may move the grid by less than a sub-window */
        return (span >= W || sum <= C + C / run->world.shape.buckets
                                    + run->backs * run->share);

    case RATELIMIT_SLIDING_LOG:
        return (span >= W || sum <= C);

    default:
        return (sum * W <= C * W + (span + rule->wait) * N);
    }
}


static void
clock_world(ratelimit_algorithm_e algorithm)
{
    unsigned             i, j;
    uint64_t             grain;
    ratelimit_verdict_t  v;

    static clock_run_t  run;

    memset(&run, 0, sizeof(clock_run_t));

    world_random_rule(&run.world.rule, algorithm);
    world_open(&run.world, algorithm, world_random_buckets());

    grain = clock_grain(&run.world);

    run.world.clock.now = random_bits(48) / grain * grain;
    run.world.clock.wall = random_bits(52);

    memset(&v, 0, sizeof(ratelimit_verdict_t));

    for (i = 0; i < CLOCK_STEPS; i++) {
        clock_step(&run, &v);
    }

    for (i = 0; i < run.n; i++) {
        for (j = i; j < run.n; j++) {
            property_check(&clock_properties[CLOCK_PROMISE], &run.world,
                           clock_kept(&run, i, j), "broken");
        }
    }

    world_close(&run.world);
}


int
main(int argc, char **argv)
{
    int       i;
    unsigned  n;

    random_start(argc, argv);

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {

        for (n = 0; n < CLOCK_WORLDS; n++) {
            clock_world(i);
        }

        property_report(clock_properties, CLOCK_ALL,
                        ratelimit_algorithms[i]->name);
    }

    return tap_done();
}
