
/*
 * What a decision does where not all limits allow, and the limit that speaks
 * for it.
 */


#include "core/ratelimit_decide.h"


static int ratelimit_tighter(const ratelimit_item_t *one,
    const ratelimit_item_t *two);
static uint64_t ratelimit_requests_left(const ratelimit_item_t *item);


uint64_t
ratelimit_item_punish(ratelimit_item_t *item, const ratelimit_clock_t *clock)
{
    ratelimit_charge_pt           count;
    ratelimit_verdict_t           next;
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[item->shape->algorithm];

    if (!item->count_rejected) {

        /* no time of a state may stay in the future */

        if (item->verdict.rebase) {
            algorithm->charge(item->shape, item->rule, item->state, clock, 0,
                              &item->verdict);
        }

        return item->cost;
    }

    if (item->verdict.allowed) {

        /* another limit refuses: this one counts as if all had allowed */

        algorithm->charge(item->shape, item->rule, item->state, clock,
                          item->cost, &item->verdict);

        /* the client has to wait for it, too, if that was the last one */

        next = item->verdict;
        algorithm->look(item->shape, item->rule, item->state, clock,
                        item->cost, &next);

        if (next.allowed) {
            return 0;
        }

        item->verdict = next;

        return item->cost;
    }

    count = (item->count_rejected == RATELIMIT_IN_FULL) ? algorithm->charge
                                                        : algorithm->punish;

    count(item->shape, item->rule, item->state, clock, item->cost,
          &item->verdict);

    /* the refused client waits for this request to expire, too */

    algorithm->look(item->shape, item->rule, item->state, clock, item->cost,
                    &item->verdict);

    return item->cost;
}


size_t
ratelimit_tightest(const ratelimit_item_t *items, size_t n)
{
    size_t  i, tightest;

    tightest = 0;

    for (i = 1; i < n; i++) {
        if (ratelimit_tighter(&items[i], &items[tightest])) {
            tightest = i;
        }
    }

    return tightest;
}


static int
ratelimit_tighter(const ratelimit_item_t *one, const ratelimit_item_t *two)
{
    const ratelimit_verdict_t  *a, *b;

    a = &one->verdict;
    b = &two->verdict;

    if (a->allowed != b->allowed) {
        return b->allowed;
    }

    if (!a->allowed) {
        return a->retry_after > b->retry_after;
    }

    /* without a cost it admits any number of further requests */

    if (!one->cost != !two->cost) {
        return one->cost != 0;
    }

    return ratelimit_requests_left(one) < ratelimit_requests_left(two);
}


/* requests of the same cost that the limit admits now */

static uint64_t
ratelimit_requests_left(const ratelimit_item_t *item)
{
    return item->cost > 1 ? item->verdict.remaining / item->cost
                          : item->verdict.remaining;
}
