
/*
 * All limits of a request are one decision: look at all; if all allow, charge
 * all; otherwise settle each.  The caller finds the states, and passes the
 * functions of their algorithm, which the compiler may know.
 */


#ifndef _RATELIMIT_DECIDE_H_INCLUDED_
#define _RATELIMIT_DECIDE_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


/* returns whether this limit allows */

static ratelimit_inline int
ratelimit_item_look(ratelimit_item_t *item, const ratelimit_shape_t *shape,
    const ratelimit_clock_t *clock, ratelimit_look_pt look)
{
    look(shape, item->rule, item->state, clock, item->cost, &item->verdict);

    return item->verdict.allowed;
}


/* all limits allow */

static ratelimit_inline void
ratelimit_item_charge(ratelimit_item_t *item, const ratelimit_shape_t *shape,
    const ratelimit_clock_t *clock, ratelimit_charge_pt charge)
{
    const ratelimit_algorithm_t  *algorithm;

    if (shape->reserves && item->reserve && item->cost) {
        algorithm = ratelimit_algorithms[shape->algorithm];

        item->verdict.stamp = algorithm->reserve(shape, item->rule,
                                                 item->state, clock,
                                                 item->cost);
        return;
    }

    charge(shape, item->rule, item->state, clock, item->cost, &item->verdict);
}


/*
 * Not all limits allow: a refused request is counted where
 * "rejected=count" says so.
 * Returns what the state does not contain of the cost, for describe.
 */
uint64_t ratelimit_item_punish(ratelimit_item_t *item,
    const ratelimit_clock_t *clock);


#endif /* _RATELIMIT_DECIDE_H_INCLUDED_ */
