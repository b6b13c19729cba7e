
/*
 * Random requests of random rules while the clock goes forward: the verdicts
 * are those of the naive model, and keep what was promised.
 */


#include "properties.h"


#define PROPERTIES_WORLDS  500
#define PROPERTIES_STEPS   60


typedef struct {
    uint64_t                        time;
    uint64_t                        wall;
    uint64_t                        cost;
    uint64_t                        stamp;
    unsigned                        id;       /* of the model's entry */
} properties_admitted_t;


typedef struct {
    world_t                         world;
    properties_admitted_t           admitted[PROPERTIES_STEPS];
    unsigned                        n;
    unsigned                        forced;
} properties_run_t;


enum {
    PROPERTIES_MODEL = 0,
    PROPERTIES_PROMISE,
    PROPERTIES_RETRY,
    PROPERTIES_COST,
    PROPERTIES_STILL,
    PROPERTIES_REFUND,
    PROPERTIES_EXPIRES,
    PROPERTIES_RESET,
    PROPERTIES_ZERO,
    PROPERTIES_COPY,
    PROPERTIES_ALL
};


static property_t  properties[PROPERTIES_ALL] = {
    { "the verdict is that of the model", 0, 0 },
    { "never more than promised", 0, 0 },
    { "retry is exact to the microsecond", 0, 0 },
    { "what is admitted is so with a lower cost", 0, 0 },
    { "look changes nothing", 0, 0 },
    { "a refund restores", 0, 0 },
    { "an expired state is like one never seen", 0, 0 },
    { "a state expires when its limit is whole", 0, 0 },
    { "counting 0 counts nothing", 0, 0 },
    { "a copy of another shape says the same", 0, 0 },
};


static void properties_world(ratelimit_algorithm_e algorithm);
static void properties_step(properties_run_t *run, ratelimit_verdict_t *v);
static void properties_verdict(properties_run_t *run, uint64_t cost,
    ratelimit_verdict_t *v);
static void properties_cost(world_t *w, uint64_t cost,
    const ratelimit_verdict_t *v);
static void properties_refund(world_t *w, uint64_t cost,
    const ratelimit_verdict_t *v);
static void properties_charge(properties_run_t *run, uint64_t cost,
    const ratelimit_verdict_t *v);
static void properties_give_back(properties_run_t *run);
static void properties_copy(world_t *w);
static void properties_expires(world_t *w, const ratelimit_verdict_t *v);
static uint64_t properties_sum(const properties_run_t *run, unsigned last,
    uint64_t span);
static int properties_kept(const properties_run_t *run, unsigned last);
static int properties_bucket_kept(const properties_run_t *run, unsigned last);


static void
properties_verdict(properties_run_t *run, uint64_t cost,
    ratelimit_verdict_t *v)
{
    world_t              *w;
    const char           *field;
    ratelimit_verdict_t   want;

    w = &run->world;

    memcpy(w->scratch, w->state, w->size);

    world_look(w, w->state, 0, cost, v);

    property_check(&properties[PROPERTIES_STILL], w,
                   memcmp(w->scratch, w->state, w->size) == 0, "changed");

    model_look(&w->model, &w->clock, cost, &want);

    field = model_differs(&w->model, v, &want, cost);

    property_check(&properties[PROPERTIES_MODEL], w,
                   field == NULL && !v->rebase, field ? field : "rebase");

    if (!v->allowed) {
        property_check(&properties[PROPERTIES_RETRY], w,
                       world_retry_exact(w, v, cost), "not exact");
    }
}


static void
properties_cost(world_t *w, uint64_t cost, const ratelimit_verdict_t *v)
{
    ratelimit_verdict_t  other;

    if (v->allowed && cost) {
        property_check(&properties[PROPERTIES_COST], w,
                       world_admits(w, 0, cost - 1)
                       && world_admits(w, 0, random_below(cost)),
                       "refused with less");
        return;
    }

    world_look(w, w->state, 0, cost + 1, &other);

    property_check(&properties[PROPERTIES_COST], w,
                   v->allowed || (!other.allowed
                                  && (cost + 1 > w->rule.ceiling
                                      || other.retry_after
                                         >= v->retry_after)),
                   "more has room sooner");
}


/* charged and refunded at once, on a copy: as if it had not been */

static void
properties_refund(world_t *w, uint64_t cost, const ratelimit_verdict_t *v)
{
    uint64_t  later;
    unsigned  i;

    memcpy(w->scratch, w->state, w->size);

    world_charge(w, w->scratch, cost);
    world_refund(w, w->scratch, v->stamp, cost);

    for (i = 0; i < 6; i++) {
        later = (i < 2) ? 0 : random_below(2 * w->rule.period);

        property_check(&properties[PROPERTIES_REFUND], w,
                       world_same(w, w->scratch, w->state, later,
                                  world_random_cost(&w->rule)),
                       "differs");
    }
}


static void
properties_charge(properties_run_t *run, uint64_t cost,
    const ratelimit_verdict_t *v)
{
    world_t                *w;
    properties_admitted_t  *a;

    w = &run->world;

    world_charge(w, w->state, cost);

    if (cost == 0) {
        return;
    }

    a = &run->admitted[run->n++];

    a->time = w->clock.now;
    a->wall = w->clock.wall;
    a->cost = cost;
    a->stamp = v->stamp;

    a->id = model_charge(&w->model, &w->clock, cost);
}


/* later than at once; a bucket has no memory of single requests */

static void
properties_give_back(properties_run_t *run)
{
    world_t                *w;
    unsigned                i;
    ratelimit_verdict_t     v, want;
    properties_admitted_t  *a;

    w = &run->world;

    if (run->n == 0 || model_is_bucket(&w->model)) {
        return;
    }

    i = random_below(run->n);
    a = &run->admitted[i];

    world_refund(w, w->state, a->stamp, a->cost);
    model_refund(&w->model, a->id);

    *a = run->admitted[--run->n];

    world_look(w, w->state, 0, 1, &v);
    model_look(&w->model, &w->clock, 1, &want);

    property_check(&properties[PROPERTIES_REFUND], w,
                   model_differs(&w->model, &v, &want, 1) == NULL,
                   "a late one differs");
}


/* the rules of a zone were changed: more room or less, another limit */

static void
properties_copy(world_t *w)
{
    uint64_t              cost;
    world_t               other;
    ratelimit_verdict_t   a, b;

    other = *w;

    other.rule.ceiling = random_between(1, 2 * w->rule.ceiling);
    other.rule.limit = random_between(1, other.rule.ceiling);
    other.rule.capacity = other.rule.limit;

    world_open(&other, w->model.algorithm, w->shape.buckets);

    w->algorithm->copy(&other.shape, other.state, &w->shape, w->state);

    /* the old state looked at by the new rule */

    cost = random_between(1, other.rule.ceiling);

    w->algorithm->look(&w->shape, &other.rule, w->state, &w->clock, cost, &a);
    w->algorithm->describe(&w->shape, &other.rule, w->state, &w->clock, cost,
                           &a);
    world_look(&other, other.state, 0, cost, &b);

    property_check(&properties[PROPERTIES_COPY], &other,
                   a.allowed == b.allowed && a.remaining == b.remaining
                   && a.retry_after == b.retry_after
                   && a.reset_after == b.reset_after, "differs");

    world_close(&other);
}


/* the verdict is that before the charge */

static void
properties_expires(world_t *w, const ratelimit_verdict_t *v)
{
    uint64_t             expires, later;
    ratelimit_verdict_t  before;

    expires = w->algorithm->expires(&w->shape, &w->rule, w->state);
    later = (expires > w->clock.now) ? expires - w->clock.now : 0;

    property_check(&properties[PROPERTIES_RESET], w, later == v->reset_after,
                   "not then");

    property_check(&properties[PROPERTIES_EXPIRES], w,
                   world_same(w, w->state, w->never, later, 0)
                   && world_same(w, w->state, w->never, later,
                                 w->rule.ceiling)
                   && world_same(w, w->state, w->never,
                                 later + random_bits(44),
                                 world_random_cost(&w->rule)),
                   "differs");

    if (later == 0) {
        return;
    }

    world_look(w, w->state, later - 1, 0, &before);

    property_check(&properties[PROPERTIES_RESET], w, before.reset_after == 1,
                   "not just before");
}


static void
properties_step(properties_run_t *run, ratelimit_verdict_t *v)
{
    world_t   *w;
    uint64_t   cost;

    w = &run->world;
    cost = world_random_cost(&w->rule);

    properties_verdict(run, cost, v);
    properties_cost(w, cost, v);

    memcpy(w->scratch, w->state, w->size);
    world_charge(w, w->scratch, 0);

    property_check(&properties[PROPERTIES_ZERO], w,
                   world_same(w, w->scratch, w->state, 0, cost)
                   && world_same(w, w->scratch, w->state,
                                 random_below(2 * w->rule.period), cost),
                   "counted");

    if (v->allowed && cost) {
        properties_refund(w, cost, v);
    }

    if (v->allowed ? random_percent(85) : (run->forced && random_percent(20)
                                           && cost <= w->rule.ceiling))
    {
        properties_charge(run, cost, v);

        if (v->allowed && cost) {
            properties_expires(w, v);
        }
    }

    if (w->rule.ceiling <= 12 && random_percent(10)) {
        properties_copy(w);
    }

    if (random_percent(5) && !run->forced) {
        properties_give_back(run);
    }

    world_forward(w, world_random_step(w, v));
}


/* what was admitted in the span that ends with an admission */

static uint64_t
properties_sum(const properties_run_t *run, unsigned last, uint64_t span)
{
    uint64_t  sum;
    unsigned  i;

    sum = 0;

    for (i = 0; i < run->n; i++) {
        if (run->admitted[i].time <= run->admitted[last].time
            && run->admitted[last].time - run->admitted[i].time < span)
        {
            sum += run->admitted[i].cost;
        }
    }

    return sum;
}


/* in any time t no more than the bucket holds and t brings */

static int
properties_bucket_kept(const properties_run_t *run, unsigned last)
{
    uint64_t                 span;
    unsigned                 i;
    model_int_t              promised;
    const ratelimit_rule_t  *rule;

    rule = &run->world.rule;

    for (i = 0; i < run->n; i++) {

        if (run->admitted[i].time > run->admitted[last].time) {
            continue;
        }

        span = run->admitted[last].time - run->admitted[i].time;

        promised = (model_int_t) rule->ceiling * rule->period
                   + (model_int_t) (span + rule->wait) * rule->limit;

        if ((model_int_t) properties_sum(run, last, span + 1) * rule->period
            > promised)
        {
            return 0;
        }
    }

    return 1;
}


static int
properties_kept(const properties_run_t *run, unsigned last)
{
    uint64_t  sum, C, W;
    unsigned  i;

    C = run->world.rule.ceiling;
    W = run->world.rule.period;
    sum = 0;

    switch (run->world.model.algorithm) {

    case RATELIMIT_FIXED_WINDOW:

        for (i = 0; i < run->n; i++) {
            if (run->admitted[i].wall / W == run->admitted[last].wall / W) {
                sum += run->admitted[i].cost;
            }
        }

        return (sum <= C);

    case RATELIMIT_SLIDING_WINDOW:

        /* the oldest sub-window may have been full at its end */
        return (properties_sum(run, last, W)
                <= C + C / run->world.shape.buckets);

    case RATELIMIT_SLIDING_LOG:
        return (properties_sum(run, last, W) <= C);

    default:
        return properties_bucket_kept(run, last);
    }
}


static void
properties_world(ratelimit_algorithm_e algorithm)
{
    unsigned             i;
    ratelimit_verdict_t  v;

    static properties_run_t  run;

    world_random_rule(&run.world.rule, algorithm);
    world_open(&run.world, algorithm, world_random_buckets());

    run.n = 0;
    run.forced = (run.world.rule.ceiling < 100 && random_percent(20));
    run.world.clock.now = random_percent(10) ? 0 : random_bits(48);
    run.world.clock.wall = random_bits(52);

    memset(&v, 0, sizeof(ratelimit_verdict_t));

    for (i = 0; i < PROPERTIES_STEPS; i++) {
        properties_step(&run, &v);
    }

    for (i = 0; i < run.n && !run.forced; i++) {
        property_check(&properties[PROPERTIES_PROMISE], &run.world,
                       properties_kept(&run, i), "broken");
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

        for (n = 0; n < PROPERTIES_WORLDS; n++) {
            properties_world(i);
        }

        property_report(properties, PROPERTIES_ALL,
                        ratelimit_algorithms[i]->name);
    }

    return tap_done();
}
