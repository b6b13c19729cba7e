
/*
 * All limits of a request are one decision.
 */


#include "core/ratelimit.h"


static int ratelimit_tighter(const ratelimit_verdict_t *a,
    const ratelimit_verdict_t *b);


int
ratelimit_look(ratelimit_item_t *items, size_t n,
    const ratelimit_clock_t *clock)
{
    int                           allowed;
    size_t                        i;
    ratelimit_item_t             *item;
    const ratelimit_algorithm_t  *algorithm;

    allowed = 1;

    for (i = 0; i < n; i++) {
        item = &items[i];
        algorithm = ratelimit_algorithms[item->shape->algorithm];

        algorithm->look(item->shape, item->rule, item->state, clock,
                        item->cost, &item->verdict);

        allowed &= item->verdict.allowed;
    }

    return allowed;
}


/* a refused request is counted only where somebody insists */

void
ratelimit_settle(ratelimit_item_t *item, const ratelimit_clock_t *clock)
{
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[item->shape->algorithm];

    if (item->insist && !item->verdict.allowed) {
        algorithm->punish(item->shape, item->rule, item->state, clock,
                          item->cost);

        /* who was refused waits for this one, too */

        algorithm->look(item->shape, item->rule, item->state, clock,
                        item->cost, &item->verdict);

    } else if (item->insist) {

        /* another limit refuses: this one counts as if it were admitted */

        algorithm->charge(item->shape, item->rule, item->state, clock,
                          item->cost);

    } else if (item->verdict.rebase) {

        /* what the clock left in the future must not stay there */

        algorithm->charge(item->shape, item->rule, item->state, clock, 0);
    }
}


int
ratelimit_decide(ratelimit_item_t *items, size_t n,
    const ratelimit_clock_t *clock)
{
    int                           allowed;
    size_t                        i;
    ratelimit_item_t             *item;
    const ratelimit_algorithm_t  *algorithm;

    allowed = ratelimit_look(items, n, clock);

    for (i = 0; i < n; i++) {
        item = &items[i];

        if (!allowed) {
            ratelimit_settle(item, clock);
            continue;
        }

        algorithm = ratelimit_algorithms[item->shape->algorithm];

        algorithm->charge(item->shape, item->rule, item->state, clock,
                          item->cost);
    }

    return allowed;
}


size_t
ratelimit_tightest(const ratelimit_item_t *items, size_t n)
{
    size_t  i, tightest;

    tightest = 0;

    for (i = 1; i < n; i++) {
        if (ratelimit_tighter(&items[i].verdict, &items[tightest].verdict)) {
            tightest = i;
        }
    }

    return tightest;
}


static int
ratelimit_tighter(const ratelimit_verdict_t *a, const ratelimit_verdict_t *b)
{
    if (a->allowed != b->allowed) {
        return b->allowed;
    }

    if (a->allowed) {
        return a->remaining < b->remaining;
    }

    return a->retry_after > b->retry_after;
}
