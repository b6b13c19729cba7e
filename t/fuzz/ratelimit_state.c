
/*
 * Any bytes as a shape, a rule, a state and what is done to it: nothing is
 * read or written beyond the state, no arithmetic is undefined, and verdicts
 * do not contradict themselves.
 */


#include <string.h>

#include "core/ratelimit.h"

#include "../unit/decision.h"
#include "fuzz.h"


#define FUZZ_MAX_LOG    600
#define FUZZ_MAX_STEPS  64


typedef struct {
    const uint8_t                  *p;
    const uint8_t                  *end;
} fuzz_input_t;


typedef struct {
    const ratelimit_algorithm_t    *algorithm;
    ratelimit_shape_t               shape;
    ratelimit_rule_t                rule;
    ratelimit_state_t              *state;
    ratelimit_verdict_t             verdict;  /* the last one */
} fuzz_world_t;


static uint64_t fuzz_take(fuzz_input_t *in, size_t bytes);
static uint64_t fuzz_between(fuzz_input_t *in, uint64_t least, uint64_t most);
static void fuzz_rule(fuzz_input_t *in, ratelimit_algorithm_e algorithm,
    ratelimit_rule_t *rule);
static ratelimit_state_t *fuzz_state(const fuzz_world_t *world);
static void fuzz_start(fuzz_input_t *in, fuzz_world_t *world);
static void fuzz_look(fuzz_world_t *world, const ratelimit_clock_t *clock,
    uint64_t cost);
static void fuzz_copy(fuzz_input_t *in, fuzz_world_t *world);
static void fuzz_decide(fuzz_world_t *world, const ratelimit_clock_t *clock,
    uint64_t cost);
static void fuzz_step(fuzz_input_t *in, fuzz_world_t *world);


/* zeros when there is no more */

static uint64_t
fuzz_take(fuzz_input_t *in, size_t bytes)
{
    size_t    left;
    uint64_t  value;

    value = 0;
    left = (size_t) (in->end - in->p);

    if (bytes > left) {
        bytes = left;
    }

    if (bytes != 0) {
        memcpy(&value, in->p, bytes);
        in->p += bytes;
    }

    return value;
}


/* small ranges are to be reached by few bits */

static uint64_t
fuzz_between(fuzz_input_t *in, uint64_t least, uint64_t most)
{
    return least + fuzz_take(in, 1 + fuzz_take(in, 1) % 8) % (most - least + 1);
}


/* any rule that a configuration can say */

static void
fuzz_rule(fuzz_input_t *in, ratelimit_algorithm_e algorithm,
    ratelimit_rule_t *rule)
{
    uint64_t                      most;
    const ratelimit_algorithm_t  *traits;

    traits = ratelimit_algorithms[algorithm];

    memset(rule, 0, sizeof(ratelimit_rule_t));

    rule->period = fuzz_between(in, 1, RATELIMIT_MAX_PERIOD);

    most = (RATELIMIT_MAX_PRODUCT - 1) / rule->period;

    if (most > RATELIMIT_MAX_LIMIT) {
        most = RATELIMIT_MAX_LIMIT;
    }

    if (traits->sized && most > FUZZ_MAX_LOG) {
        most = FUZZ_MAX_LOG;
    }

    rule->limit = fuzz_between(in, 1, most);
    rule->capacity = rule->limit;

    if (traits->takes & (RATELIMIT_TAKES_CAPACITY|RATELIMIT_TAKES_BURST)) {
        rule->capacity = fuzz_between(in, 1, most);
    }

    rule->ceiling = fuzz_between(in, rule->capacity, most);
    rule->free = fuzz_take(in, 1) % 2 ? RATELIMIT_NODELAY : fuzz_take(in, 4);
    rule->wait = fuzz_take(in, 6);
}


/* the caller frees it */

static ratelimit_state_t *
fuzz_state(const fuzz_world_t *world)
{
    size_t              size;
    ratelimit_state_t  *state;

    size = world->algorithm->size(&world->shape);

    fuzz_check(size != 0 && size % sizeof(ratelimit_state_t) == 0);

    state = malloc(size);

    fuzz_check(state != NULL);

    return state;
}


static void
fuzz_start(fuzz_input_t *in, fuzz_world_t *world)
{
    size_t                 i, words;
    ratelimit_algorithm_e  algorithm;

    memset(world, 0, sizeof(fuzz_world_t));

    algorithm = fuzz_take(in, 1) % RATELIMIT_ALGORITHMS;

    world->algorithm = ratelimit_algorithms[algorithm];
    world->shape.algorithm = algorithm;
    world->shape.buckets = fuzz_between(in, 1, RATELIMIT_MAX_BUCKETS);

    fuzz_rule(in, algorithm, &world->rule);
    ratelimit_shape_fit(&world->shape, world->rule.ceiling);

    world->state = fuzz_state(world);

    words = world->algorithm->size(&world->shape) / sizeof(ratelimit_state_t);

    for (i = 0; i < words; i++) {
        world->state[i] = fuzz_take(in, sizeof(ratelimit_state_t));
    }
}


static void
fuzz_look(fuzz_world_t *world, const ratelimit_clock_t *clock, uint64_t cost)
{
    ratelimit_verdict_t  verdict;

    world->algorithm->look(&world->shape, &world->rule, world->state, clock,
                           cost, &verdict);
    world->algorithm->describe(&world->shape, &world->rule, world->state,
                               clock, cost, &verdict);

    fuzz_check(verdict.remaining <= verdict.limit);

    if (verdict.allowed) {
        fuzz_check(cost <= world->rule.ceiling);
        fuzz_check(verdict.retry_after == 0);

    } else {
        fuzz_check(cost != 0);
        fuzz_check(verdict.retry_after != 0);
        fuzz_check(!verdict.soft);
    }

    world->verdict = verdict;
}


/* to a zone that has room for other rules, whose rule is another one then */

static void
fuzz_copy(fuzz_input_t *in, fuzz_world_t *world)
{
    fuzz_world_t  next;

    next = *world;
    next.shape.width = 0;
    next.shape.ring = 0;

    fuzz_rule(in, next.shape.algorithm, &next.rule);
    ratelimit_shape_fit(&next.shape, next.rule.ceiling);

    next.state = fuzz_state(&next);
    next.algorithm->copy(&next.shape, next.state, &world->shape, world->state);

    free(world->state);
    *world = next;
}


static void
fuzz_decide(fuzz_world_t *world, const ratelimit_clock_t *clock, uint64_t cost)
{
    int               allowed;
    ratelimit_item_t  item;

    memset(&item, 0, sizeof(ratelimit_item_t));

    item.shape = &world->shape;
    item.rule = &world->rule;
    item.state = world->state;
    item.cost = cost;

    allowed = decision_make(&item, 1, clock);

    fuzz_check(allowed == item.verdict.allowed);
    fuzz_check(ratelimit_tightest(&item, 1) == 0);

    world->verdict = item.verdict;
}


static void
fuzz_step(fuzz_input_t *in, fuzz_world_t *world)
{
    uint64_t           cost;
    unsigned           action;
    ratelimit_clock_t  clock;

    action = (unsigned) fuzz_take(in, 1);

    /* times and costs are below 2^53 */

    clock.now = fuzz_take(in, 7) >> 3;
    clock.wall = fuzz_take(in, 7) >> 3;

    /* often near to what the state remembers */

    if (action & 0x80) {
        clock.now = (clock.now + world->state[0]) & (((uint64_t) 1 << 53) - 1);
    }

    cost = (action & 0x40) ? fuzz_take(in, 1) : fuzz_take(in, 7) >> 3;

    fuzz_look(world, &clock, cost);

    switch (action % 6) {

    case 0:
        fuzz_decide(world, &clock, cost);
        break;

    case 1:
        world->algorithm->charge(&world->shape, &world->rule, world->state,
                                 &clock, cost, &world->verdict);
        break;

    case 2:
        world->algorithm->refund(&world->shape, &world->rule, world->state,
                                 &clock, world->verdict.stamp, cost);
        break;

    case 3:
        world->algorithm->refund(&world->shape, &world->rule, world->state,
                                 &clock, fuzz_take(in, 8), cost);
        break;

    case 4:
        fuzz_copy(in, world);
        break;

    default:
        break;
    }

    (void) world->algorithm->expires(&world->shape, &world->rule,
                                     world->state);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned      step;
    fuzz_input_t  in;
    fuzz_world_t  world;

    in.p = data;
    in.end = data + size;

    fuzz_start(&in, &world);

    /* once at least, with whatever the state has become */

    for (step = 0; step < FUZZ_MAX_STEPS; step++) {
        fuzz_step(&in, &world);

        if (in.p == in.end) {
            break;
        }
    }

    free(world.state);

    return 0;
}
