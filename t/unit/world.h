
/*
 * A world: one rule, the state that the algorithm keeps for it, the naive
 * model of the same, and a clock.
 */


#ifndef _WORLD_H_INCLUDED_
#define _WORLD_H_INCLUDED_


#include "model.h"
#include "random.h"


typedef struct {
    const ratelimit_algorithm_t    *algorithm;
    ratelimit_shape_t               shape;
    ratelimit_rule_t                rule;
    ratelimit_clock_t               clock;

    size_t                          size;     /* of each state, in bytes */
    ratelimit_state_t              *state;
    ratelimit_state_t              *scratch;  /* for copies */
    ratelimit_state_t              *never;    /* never seen */

    model_t                         model;
} world_t;


static ratelimit_state_t *
world_state(size_t size)
{
    ratelimit_state_t  *state;

    state = calloc(1, size);
    if (state == NULL) {
        abort();
    }

    return state;
}


/* algorithm, buckets and the rule are set before */

static void __attribute__((unused))
world_open(world_t *w, ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    w->algorithm = ratelimit_algorithms[algorithm];

    memset(&w->shape, 0, sizeof(ratelimit_shape_t));

    w->shape.algorithm = algorithm;
    w->shape.buckets = buckets;

    ratelimit_shape_fit(&w->shape, w->rule.ceiling);

    w->size = w->algorithm->size(&w->shape);
    w->state = world_state(w->size);
    w->scratch = world_state(w->size);
    w->never = world_state(w->size);

    model_init(&w->model, algorithm, buckets, &w->rule);
}


static void __attribute__((unused))
world_close(world_t *w)
{
    free(w->state);
    free(w->scratch);
    free(w->never);
}


static void __attribute__((unused))
world_forward(world_t *w, uint64_t us)
{
    w->clock.now += us;
    w->clock.wall += us;
}


/* what a state says so many microseconds later */

static void
world_look(const world_t *w, const ratelimit_state_t *state, uint64_t later,
    uint64_t cost, ratelimit_verdict_t *v)
{
    ratelimit_clock_t  clock;

    clock.now = w->clock.now + later;
    clock.wall = w->clock.wall + later;

    memset(v, 0xa5, sizeof(ratelimit_verdict_t));

    w->algorithm->look(&w->shape, &w->rule, state, &clock, cost, v);
    w->algorithm->describe(&w->shape, &w->rule, state, &clock, cost, v);
}


static int __attribute__((unused))
world_admits(const world_t *w, uint64_t later, uint64_t cost)
{
    ratelimit_verdict_t  v;

    world_look(w, w->state, later, cost, &v);

    return v.allowed;
}


/* an allowed charge is described before it is counted as afterwards */

static void __attribute__((unused))
world_charge(world_t *w, ratelimit_state_t *state, uint64_t cost)
{
    ratelimit_verdict_t  v, after;

    world_look(w, state, 0, cost, &v);

    w->algorithm->charge(&w->shape, &w->rule, state, &w->clock, cost, &v);

    after = v;
    w->algorithm->describe(&w->shape, &w->rule, state, &w->clock, 0, &after);

    if (v.allowed
        && (after.limit != v.limit || after.remaining != v.remaining
            || after.reset_after != v.reset_after
            || after.retry_after != v.retry_after
            || after.excess != v.excess))
    {
        printf("Bail out! %s: the charge changes the figures\n",
               w->algorithm->name);
        exit(2);
    }
}


static void __attribute__((unused))
world_refund(world_t *w, ratelimit_state_t *state, uint64_t stamp,
    uint64_t cost)
{
    w->algorithm->refund(&w->shape, &w->rule, state, &w->clock, stamp, cost);
}


/* whether two states give the same verdict */

static int __attribute__((unused))
world_same(const world_t *w, const ratelimit_state_t *one,
    const ratelimit_state_t *two, uint64_t later, uint64_t cost)
{
    ratelimit_verdict_t  a, b;

    world_look(w, one, later, cost, &a);
    world_look(w, two, later, cost, &b);

    return (a.allowed == b.allowed && a.remaining == b.remaining
            && a.retry_after == b.retry_after
            && a.reset_after == b.reset_after
            && a.delay == b.delay && a.soft == b.soft
            && a.excess == b.excess);
}


/* refused until just before it may be tried again, admitted then */

static int __attribute__((unused))
world_retry_exact(const world_t *w, const ratelimit_verdict_t *v,
    uint64_t cost)
{
    if (v->retry_after == 0) {
        return 0;
    }

    if (cost > w->rule.ceiling) {
        return (v->retry_after >= w->rule.period
                && !world_admits(w, v->retry_after, cost));
    }

    return (!world_admits(w, v->retry_after - 1, cost)
            && world_admits(w, v->retry_after, cost));
}


static uint64_t
world_random_period(void)
{
    switch (random_below(6)) {

    case 0:
        return random_between(1, 30);

    case 1:
        return random_between(1, 2000000);

    case 2:
        return 60 * RATELIMIT_SECOND;

    case 3:
        return random_between(1, 86400) * RATELIMIT_SECOND;

    case 4:
        /* a log counts milliseconds from here on */
        return ((uint64_t) 1 << 39) / 1000 * 1000
               + random_below(3) * 1000;

    default:
        return random_between(1, 366 * 86400) * RATELIMIT_SECOND;
    }
}


/* a rule of any size; mostly small, so that limits are met often */

static void __attribute__((unused))
world_random_rule(ratelimit_rule_t *rule, ratelimit_algorithm_e algorithm)
{
    uint64_t                      most;
    const ratelimit_algorithm_t  *traits;

    traits = ratelimit_algorithms[algorithm];

    memset(rule, 0, sizeof(ratelimit_rule_t));

    rule->period = world_random_period();

    most = (RATELIMIT_MAX_PRODUCT - 1) / rule->period;

    if (random_percent(80) || traits->sized) {
        most = 12;

    } else if (most > RATELIMIT_MAX_LIMIT) {
        most = RATELIMIT_MAX_LIMIT;
    }

    rule->limit = random_between(1, most);
    rule->capacity = rule->limit;

    if (traits->takes & (RATELIMIT_TAKES_CAPACITY|RATELIMIT_TAKES_BURST)) {
        rule->capacity = random_between(1, most);
    }

    rule->ceiling = rule->capacity;

    if (random_percent(30)) {
        rule->ceiling = random_between(rule->capacity, most);
    }

    rule->free = random_percent(30) ? RATELIMIT_NODELAY : random_below(5);

    if (traits->takes & RATELIMIT_TAKES_WAIT && random_percent(30)) {
        rule->wait = random_below(2 * rule->period);

        /* what may be owed is a quantity of the rule, too */

        if ((model_int_t) rule->ceiling * rule->period
            + (model_int_t) rule->limit * rule->wait
            >= (model_int_t) RATELIMIT_MAX_PRODUCT)
        {
            rule->wait = 0;
        }
    }
}


static uint32_t __attribute__((unused))
world_random_buckets(void)
{
    return random_percent(20) ? 1
           : random_percent(20) ? RATELIMIT_MAX_BUCKETS
           : random_between(1, 12);
}


static uint64_t __attribute__((unused))
world_random_cost(const ratelimit_rule_t *rule)
{
    switch (random_below(8)) {

    case 0:
        return 0;

    case 1:
        return rule->ceiling;

    case 2:
        return rule->ceiling + random_below(3);

    case 3:
    case 4:
        return random_between(1, rule->ceiling);

    default:
        return 1 + rule->ceiling / 20;
    }
}


/* the next moment that matters: often an edge of the last verdict */

static uint64_t __attribute__((unused))
world_random_step(const world_t *w, const ratelimit_verdict_t *v)
{
    uint64_t  W;

    W = w->rule.period;

    switch (random_below(12)) {

    case 0:
    case 1:
        return 0;

    case 2:
        return 1;

    case 3:
        return v->retry_after;

    case 4:
        return v->retry_after ? v->retry_after - 1 : W / w->rule.limit;

    case 5:
        return random_percent(30) ? v->reset_after : W / w->shape.buckets;

    case 6:
        return random_percent(30) ? W : random_below(W + 1);

    case 7:
        return random_percent(20) ? random_below(3 * W) : 0;

    case 8:
        return random_percent(5) ? random_bits(45) : 0;

    default:
        return random_below(1 + 2 * W / w->rule.limit);
    }
}


#endif /* _WORLD_H_INCLUDED_ */
