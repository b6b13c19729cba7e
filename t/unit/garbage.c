
/*
 * Any bits at all as a state: whatever the answer is, nothing is read or
 * written beyond the state and no arithmetic is undefined.
 */


#include <stdlib.h>
#include <string.h>

#include "core/ratelimit.h"

#include "random.h"


#define GARBAGE_ROUNDS  30000


static void garbage_rule(ratelimit_rule_t *rule, ratelimit_algorithm_e i);
static void garbage_shape(ratelimit_shape_t *shape, ratelimit_algorithm_e i,
    const ratelimit_rule_t *rule);
static void garbage_state(ratelimit_state_t *state, size_t size);
static void garbage_clock(ratelimit_clock_t *clock,
    const ratelimit_state_t *state);
static void garbage_copy(const ratelimit_algorithm_t *algorithm,
    const ratelimit_shape_t *shape, const ratelimit_state_t *state);
static int garbage_round(ratelimit_algorithm_e i);
static int garbage_sound(const ratelimit_rule_t *rule,
    const ratelimit_verdict_t *verdict, uint64_t cost);


/* any rule that a configuration can say */

static void
garbage_rule(ratelimit_rule_t *rule, ratelimit_algorithm_e i)
{
    uint64_t                      most;
    const ratelimit_algorithm_t  *traits;

    traits = ratelimit_algorithms[i];

    memset(rule, 0, sizeof(ratelimit_rule_t));

    rule->period = 1 + random_bits(45) % RATELIMIT_MAX_PERIOD;

    most = (RATELIMIT_MAX_PRODUCT - 1) / rule->period;

    if (most > RATELIMIT_MAX_LIMIT) {
        most = RATELIMIT_MAX_LIMIT;
    }

    if (traits->sized && most > 300) {
        most = 300;
    }

    rule->limit = 1 + random_bits(32) % most;
    rule->capacity = rule->limit;

    if (traits->takes & (RATELIMIT_TAKES_CAPACITY|RATELIMIT_TAKES_BURST)) {
        rule->capacity = 1 + random_bits(32) % most;
    }

    rule->ceiling = rule->capacity
                    + random_bits(32) % (most - rule->capacity + 1);
    rule->free = (random_below(2)) ? RATELIMIT_NODELAY
                                        : random_bits(32);
    rule->wait = (random_below(2)) ? 0 : random_bits(45);
}


static void
garbage_shape(ratelimit_shape_t *shape, ratelimit_algorithm_e i,
    const ratelimit_rule_t *rule)
{
    memset(shape, 0, sizeof(ratelimit_shape_t));

    shape->algorithm = i;
    shape->buckets = 1 + random_below(RATELIMIT_MAX_BUCKETS);

    ratelimit_shape_fit(shape, rule->ceiling);

    /* a zone's other rules may need more room */

    if (random_below(4) == 0) {
        ratelimit_shape_fit(shape, rule->ceiling + random_below(100));
    }
}


static void
garbage_state(ratelimit_state_t *state, size_t size)
{
    size_t  i;

    for (i = 0; i < size / sizeof(ratelimit_state_t); i++) {

        switch (random_below(4)) {

        case 0:
            state[i] = 0;
            break;

        case 1:
            state[i] = ~(uint64_t) 0;
            break;

        case 2:
            state[i] = random_bits(64);
            break;

        default:
            state[i] = random_next();
        }
    }
}


/* often near to a number of the state */

static void
garbage_clock(ratelimit_clock_t *clock, const ratelimit_state_t *state)
{
    clock->now = random_bits(53);
    clock->wall = random_bits(53);

    if (random_below(2)) {
        clock->now = (state[0] + random_bits(40) - random_bits(40))
                     & (((uint64_t) 1 << 53) - 1);
    }
}


static int
garbage_sound(const ratelimit_rule_t *rule, const ratelimit_verdict_t *verdict,
    uint64_t cost)
{
    if (verdict->remaining > verdict->limit) {
        return 0;
    }

    if (verdict->allowed) {
        return (cost <= rule->ceiling && verdict->retry_after == 0);
    }

    return (cost != 0 && verdict->retry_after >= 1 && !verdict->soft);
}


/* into a shape with more room, or with less */

static void
garbage_copy(const ratelimit_algorithm_t *algorithm,
    const ratelimit_shape_t *shape, const ratelimit_state_t *state)
{
    ratelimit_shape_t   other;
    ratelimit_state_t  *copy;

    other = *shape;
    other.width = 0;
    other.ring = 0;

    ratelimit_shape_fit(&other, random_below(400));

    if (shape->algorithm == RATELIMIT_SLIDING_WINDOW && random_percent(50)) {
        ratelimit_shape_fit(&other, RATELIMIT_MAX_LIMIT);
    }

    copy = malloc(algorithm->size(&other));
    if (copy == NULL) {
        abort();
    }

    algorithm->copy(&other, copy, shape, state);

    free(copy);
}


static int
garbage_round(ratelimit_algorithm_e i)
{
    int                           sound;
    size_t                        size;
    uint64_t                      cost;
    unsigned                      step;
    ratelimit_rule_t              rule;
    ratelimit_clock_t             clock;
    ratelimit_shape_t             shape;
    ratelimit_state_t            *state;
    ratelimit_verdict_t           verdict;
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[i];

    garbage_rule(&rule, i);
    garbage_shape(&shape, i, &rule);

    size = algorithm->size(&shape);

    state = malloc(size);
    if (state == NULL) {
        abort();
    }

    sound = (size % 8 == 0);

    garbage_state(state, size);

    for (step = 0; step < 4; step++) {
        garbage_clock(&clock, state);

        cost = random_bits(random_below(2) ? 4 : 53);

        algorithm->look(&shape, &rule, state, &clock, cost, &verdict);
        algorithm->describe(&shape, &rule, state, &clock, cost, &verdict);
        sound &= garbage_sound(&rule, &verdict, cost);

        (void) algorithm->expires(&shape, &rule, state);

        if (random_below(3) == 0) {
            algorithm->punish(&shape, &rule, state, &clock, cost, &verdict);

        } else if (random_below(3)) {
            algorithm->charge(&shape, &rule, state, &clock, cost, &verdict);

        } else {
            algorithm->refund(&shape, &rule, state, &clock,
                              random_percent(50) ? verdict.stamp
                                                 : random_bits(64),
                              cost);
        }

        (void) algorithm->expires(&shape, &rule, state);
    }

    garbage_copy(algorithm, &shape, state);

    free(state);

    return sound;
}


int
main(int argc, char **argv)
{
    int       i;
    unsigned  odd, round;

    random_start(argc, argv);

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        odd = 0;

        for (round = 0; round < GARBAGE_ROUNDS; round++) {
            odd += !garbage_round(i);
        }

        tap_ok(odd == 0, "%s survives any state",
               ratelimit_algorithms[i]->name);
    }

    return tap_done();
}
