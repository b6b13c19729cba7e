
/*
 * What a request has cost is known at its end.  What it cost less than was
 * charged was never there; what it cost more is a debt, which ends with its
 * window or drips off, exactly when the client is told.
 */


#include "properties.h"
#include "decision.h"


#define SETTLE_WORLDS  1000
#define SETTLE_STEPS   20


enum {
    SETTLE_LESS = 0,
    SETTLE_DEBT,
    SETTLE_FULL,
    SETTLE_RETRY,
    SETTLE_ENDS,
    SETTLE_ALL
};


static property_t  settle_properties[SETTLE_ALL] = {
    { "what is refunded of a charge was never there", 0, 0 },
    { "a debt leaves nothing", 0, 0 },
    { "a debt counts in full", 0, 0 },
    { "a debt is refused for exactly as long as is told", 0, 0 },
    { "when a debt has expired it was never there", 0, 0 },
};


static void settle_open(world_t *w, ratelimit_algorithm_e algorithm);
static void settle_less(world_t *w);
static int settle_as_good(const world_t *w, const ratelimit_state_t *state,
    const ratelimit_state_t *wanted);
static int settle_is_full(const world_t *w, uint64_t cost,
    const ratelimit_verdict_t *before, const ratelimit_verdict_t *after);
static void settle_debt(world_t *w);
static uint64_t settle_random_debt(const ratelimit_rule_t *rule);
static void settle_world(ratelimit_algorithm_e algorithm);


/* states have room for debts */

static void
settle_open(world_t *w, ratelimit_algorithm_e algorithm)
{
    uint64_t  ceiling;

    ceiling = w->rule.ceiling;

    if (!ratelimit_algorithms[algorithm]->sized) {
        w->rule.ceiling = RATELIMIT_MAX_LIMIT;
    }

    world_open(w, algorithm, world_random_buckets());

    w->rule.ceiling = ceiling;
}


/* the rest of a charge against a charge of what it has cost */

static void
settle_less(world_t *w)
{
    uint64_t             cost, actual;
    ratelimit_verdict_t  v;

    cost = random_between(1, w->rule.ceiling);
    actual = random_below(cost + 1);

    world_look(w, w->state, 0, cost, &v);

    if (!v.allowed) {
        return;
    }

    memcpy(w->scratch, w->state, w->size);

    world_charge(w, w->scratch, actual);
    w->algorithm->charge(&w->shape, &w->rule, w->state, &w->clock, cost, &v);

    world_forward(w, world_random_step(w, &v));

    world_refund(w, w->state,
                 ratelimit_stamp_above(&w->shape, &w->rule, v.stamp, actual),
                 cost - actual);

    property_check(&settle_properties[SETTLE_LESS], w,
                   settle_as_good(w, w->state, w->scratch), "differs");
}


/* a bucket may be a few microseconds behind, but not ahead */

static int
settle_as_good(const world_t *w, const ratelimit_state_t *state,
    const ratelimit_state_t *wanted)
{
    ratelimit_verdict_t  a, b;

    if (!w->algorithm->drips) {
        return world_same(w, state, wanted, 0, 1)
               && world_same(w, state, wanted, 0, 0);
    }

    world_look(w, state, 0, 0, &a);
    world_look(w, wanted, 0, 0, &b);

    return a.reset_after >= b.reset_after
           && a.reset_after <= b.reset_after + 2;
}


static uint64_t
settle_random_debt(const ratelimit_rule_t *rule)
{
    uint64_t  most;

    most = ratelimit_min((RATELIMIT_MAX_PRODUCT - 1) / rule->period,
                         RATELIMIT_MAX_LIMIT);

    return random_between(1, random_percent(80)
                             ? ratelimit_min(most, 4 * rule->ceiling) : most);
}


/* a bucket is whole later by as long as the debt takes to drip off */

static int
settle_is_full(const world_t *w, uint64_t cost,
    const ratelimit_verdict_t *before, const ratelimit_verdict_t *after)
{
    model_int_t  level, later;

    if (!w->algorithm->drips) {
        return after->reset_after >= before->reset_after;
    }

    level = (model_int_t) before->reset_after * w->rule.limit;

    if (level + (model_int_t) cost * w->rule.period
        > RATELIMIT_MAX_PRODUCT)
    {
        return after->reset_after >= before->reset_after;
    }

    later = (model_int_t) cost * w->rule.period / w->rule.limit;

    return after->reset_after + 2 >= before->reset_after + later
           && after->reset_after <= before->reset_after + later + 2;
}


static void
settle_debt(world_t *w)
{
    uint64_t             cost, expires;
    ratelimit_item_t     item;
    ratelimit_verdict_t  before, v;

    memset(&item, 0, sizeof(ratelimit_item_t));

    item.shape = &w->shape;
    item.rule = &w->rule;
    item.state = w->state;
    item.cost = settle_random_debt(&w->rule);
    item.count_rejected = RATELIMIT_IN_FULL;

    world_look(w, w->state, 0, 0, &before);

    (void) decision_make(&item, 1, &w->clock);

    world_look(w, w->state, 0, 0, &v);
    property_check(&settle_properties[SETTLE_FULL], w,
                   settle_is_full(w, item.cost, &before, &v), "does not");
    property_check(&settle_properties[SETTLE_DEBT], w,
                   item.cost < w->rule.capacity || v.remaining == 0,
                   "something is left");

    cost = random_between(1, w->rule.ceiling);
    world_look(w, w->state, 0, cost, &v);

    if (!v.allowed) {
        property_check(&settle_properties[SETTLE_RETRY], w,
                       world_retry_exact(w, &v, cost), "not exact");
    }

    expires = w->algorithm->expires(&w->shape, &w->rule, w->state);

    if (expires > w->clock.now) {
        property_check(&settle_properties[SETTLE_ENDS], w,
                       world_same(w, w->state, w->never,
                                  expires - w->clock.now, cost),
                       "lasts for longer");
    }
}


static void
settle_world(ratelimit_algorithm_e algorithm)
{
    world_t              w;
    unsigned             i;
    ratelimit_verdict_t  v;

    memset(&w, 0, sizeof(world_t));
    memset(&v, 0, sizeof(ratelimit_verdict_t));

    world_random_rule(&w.rule, algorithm);
    settle_open(&w, algorithm);

    w.clock.now = ((uint64_t) 1 << 50) + random_bits(49);
    w.clock.wall = w.clock.now;

    for (i = 0; i < SETTLE_STEPS; i++) {

        if (random_percent(70)) {
            settle_less(&w);

        } else {
            settle_debt(&w);
        }

        world_forward(&w, world_random_step(&w, &v));
    }

    world_close(&w);
}


int
main(int argc, char **argv)
{
    unsigned  i, n;

    random_start(argc, argv);

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {

        for (n = 0; n < SETTLE_WORLDS; n++) {
            settle_world((ratelimit_algorithm_e) i);
        }

        property_report(settle_properties, SETTLE_ALL,
                        ratelimit_algorithms[i]->name);
    }

    return tap_done();
}
