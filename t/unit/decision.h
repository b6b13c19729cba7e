
/*
 * A decision about states that the caller has at hand, made of the pieces of
 * which the table makes it.
 */


#ifndef _DECISION_H_INCLUDED_
#define _DECISION_H_INCLUDED_


#include "core/ratelimit_decide.h"


static void
decision_describe(ratelimit_item_t *item, const ratelimit_clock_t *clock)
{
    ratelimit_algorithms[item->shape->algorithm]->describe(item->shape,
                                           item->rule, item->state, clock,
                                           item->cost, &item->verdict);
}


/* returns 1 if all limits allow */

static int
decision_look(ratelimit_item_t *items, size_t n,
    const ratelimit_clock_t *clock)
{
    int                           allowed;
    size_t                        i;
    const ratelimit_algorithm_t  *algorithm;

    allowed = 1;

    for (i = 0; i < n; i++) {
        algorithm = ratelimit_algorithms[items[i].shape->algorithm];
        allowed &= ratelimit_item_look(&items[i], items[i].shape, clock,
                                       algorithm->look);

        decision_describe(&items[i], clock);
    }

    return allowed;
}


static void
decision_settle(ratelimit_item_t *items, size_t n,
    const ratelimit_clock_t *clock, int allowed)
{
    size_t             i;
    ratelimit_item_t  *item;

    for (i = 0; i < n; i++) {
        item = &items[i];

        if (allowed) {
            ratelimit_item_charge(item, item->shape, clock,
                        ratelimit_algorithms[item->shape->algorithm]->charge);

        } else if (ratelimit_item_punish(item, clock)
                   && item->count_rejected && !item->verdict.allowed)
        {
            decision_describe(item, clock);
        }
    }
}


static int __attribute__((unused))
decision_make(ratelimit_item_t *items, size_t n,
    const ratelimit_clock_t *clock)
{
    int  allowed;

    allowed = decision_look(items, n, clock);
    decision_settle(items, n, clock, allowed);

    return allowed;
}


#endif /* _DECISION_H_INCLUDED_ */
