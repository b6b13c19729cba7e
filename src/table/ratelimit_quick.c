
/*
 * The decisions that most requests need: one key, with one or two limits that
 * let it pass, or refuse it as they did just before.  They are compiled for
 * each of the usual shapes; all others, and whatever else may happen, are for
 * ratelimit_check.c.
 */


#include "table/ratelimit_quick.h"


static ratelimit_inline int ratelimit_quick_run(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me, const ratelimit_shape_t *shape);
static ratelimit_inline int ratelimit_quick_find(ratelimit_row_t *rows,
    size_t n, uint64_t segment, const ratelimit_shape_t *shape);
static ratelimit_inline int ratelimit_quick_guarded(
    const ratelimit_row_t *rows, size_t n);
static ratelimit_inline int ratelimit_quick_refuse(ratelimit_row_t *rows,
    size_t n, ratelimit_clock_t *clock, const ratelimit_shape_t *shape,
    const ratelimit_segment_t *segment, uint64_t ticket);
static ratelimit_inline int ratelimit_quick_look(ratelimit_row_t *rows,
    size_t n, const ratelimit_clock_t *clock, const ratelimit_shape_t *shape);
static ratelimit_inline int ratelimit_quick_insert(ratelimit_row_t *rows,
    size_t n, ratelimit_segment_t *segment, uint32_t me,
    const ratelimit_shape_t *shape);
static ratelimit_noinline int ratelimit_quick_reserve(
    ratelimit_place_t *places, size_t n, uint32_t me);
static ratelimit_inline void ratelimit_quick_charge(ratelimit_row_t *rows,
    size_t n, const ratelimit_clock_t *clock, const ratelimit_shape_t *shape,
    const ratelimit_segment_t *segment);


static const ratelimit_shape_t  ratelimit_quick_shapes[] = {
    { RATELIMIT_FIXED_WINDOW, 1, 0, 0, 0 },
    { RATELIMIT_TOKEN_BUCKET, 1, 0, 0, 0 },
    { RATELIMIT_LEAKY_BUCKET, 1, 0, 0, 0 },
    { RATELIMIT_SLIDING_WINDOW, 1, sizeof(uint32_t), 0, 0 },
    { RATELIMIT_SLIDING_WINDOW, 10, sizeof(uint16_t), 0, 0 }
};


/* for one limit, and for two */

#define ratelimit_quick_decide(one, two, shape)                               \
                                                                              \
static int                                                                    \
one(ratelimit_item_t *items, ratelimit_place_t *places,                       \
    const ratelimit_clock_t *clock, uint32_t me)                              \
{                                                                             \
    return ratelimit_quick_run(items, places, 1, clock, me, shape);           \
}                                                                             \
                                                                              \
                                                                              \
static int                                                                    \
two(ratelimit_item_t *items, ratelimit_place_t *places,                       \
    const ratelimit_clock_t *clock, uint32_t me)                              \
{                                                                             \
    return ratelimit_quick_run(items, places, 2, clock, me, shape);           \
}


ratelimit_quick_decide(ratelimit_quick_fixed, ratelimit_quick_two_fixed,
                       &ratelimit_quick_shapes[0])
ratelimit_quick_decide(ratelimit_quick_token, ratelimit_quick_two_token,
                       &ratelimit_quick_shapes[1])
ratelimit_quick_decide(ratelimit_quick_leaky, ratelimit_quick_two_leaky,
                       &ratelimit_quick_shapes[2])
ratelimit_quick_decide(ratelimit_quick_pair, ratelimit_quick_two_pair,
                       &ratelimit_quick_shapes[3])
ratelimit_quick_decide(ratelimit_quick_ten, ratelimit_quick_two_ten,
                       &ratelimit_quick_shapes[4])


static const ratelimit_quick_t  ratelimit_quick_all[] = {
    { ratelimit_quick_fixed, ratelimit_quick_two_fixed },
    { ratelimit_quick_token, ratelimit_quick_two_token },
    { ratelimit_quick_leaky, ratelimit_quick_two_leaky },
    { ratelimit_quick_pair, ratelimit_quick_two_pair },
    { ratelimit_quick_ten, ratelimit_quick_two_ten }
};


const ratelimit_quick_t *
ratelimit_quick(const ratelimit_table_t *table)
{
    unsigned                  i;
    const ratelimit_shape_t  *shape;

    for (i = 0; i < sizeof(ratelimit_quick_all) / sizeof(ratelimit_quick_t);
         i++)
    {
        shape = &ratelimit_quick_shapes[i];

        if (table->shape.algorithm != shape->algorithm
            || (int) table->small != ratelimit_row_small(shape))
        {
            continue;
        }

        if (table->small
            || (table->shape.buckets == shape->buckets
                && table->shape.width == shape->width))
        {
            return &ratelimit_quick_all[i];
        }
    }

    return NULL;
}


static ratelimit_inline int
ratelimit_quick_run(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me,
    const ratelimit_shape_t *shape)
{
    int                   found, allowed;
    size_t                i;
    uint64_t              number, ticket;
    ratelimit_row_t       rows[2];
    ratelimit_clock_t    *now;
    ratelimit_segment_t  *segment;

    number = ratelimit_slot_segment(places[0].table, &places[0].hash);
    segment = &places[0].table->segments[number];

    found = ratelimit_read_begin(&segment->lock, &ticket);

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        rows[i].item = &items[i];
        rows[i].place = &places[i];

        /* what costs nothing, and so is only looked at, is not for here */

        if (!found || items[i].cost == 0) {
            return ratelimit_table_decide_any(items, places, n, clock, me);
        }
    }

    places[0].evicted = 0;

    now = &places[0].clock;
    *now = *clock;

    found = ratelimit_quick_find(rows, n, number, shape);

    if (found && ratelimit_quick_guarded(rows, n)
        && ratelimit_quick_refuse(rows, n, now, shape, segment, ticket))
    {
        return 0;
    }

    if (!ratelimit_lock_unchanged(&segment->lock, ticket, me)) {
        return ratelimit_table_decide_any(items, places, n, clock, me);
    }

    ratelimit_party_tick(segment, now);

    allowed = ratelimit_quick_look(rows, n, now, shape);

    if (allowed && !found) {
        allowed = ratelimit_quick_insert(rows, n, segment, me, shape);
    }

    if (allowed) {
        ratelimit_quick_charge(rows, n, now, shape, segment);
    }

    ratelimit_unlock(&segment->lock);

    return allowed ? 1 : ratelimit_table_decide_any(items, places, n, clock,
                                                    me);
}


static ratelimit_inline int
ratelimit_quick_find(ratelimit_row_t *rows, size_t n, uint64_t segment,
    const ratelimit_shape_t *shape)
{
    int     found;
    size_t  i;

    found = 1;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        found &= ratelimit_row_find(&rows[i], segment, shape);
    }

    return found;
}


/* whether one of them may be known to be refused */

static ratelimit_inline int
ratelimit_quick_guarded(const ratelimit_row_t *rows, size_t n)
{
    size_t    i;
    uint64_t  id;

    id = 0;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        id |= rows[i].slot->id;
    }

    return (id & RATELIMIT_REFUSED) != 0;
}


/* by reading alone, as ratelimit_table_refuse() does it */

static ratelimit_inline int
ratelimit_quick_refuse(ratelimit_row_t *rows, size_t n,
    ratelimit_clock_t *clock, const ratelimit_shape_t *shape,
    const ratelimit_segment_t *segment, uint64_t ticket)
{
    int                refused;
    size_t             i;
    ratelimit_item_t  *item;

    refused = 0;

    ratelimit_party_late(segment, clock);

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        item = rows[i].item;

        if (item->insist) {
            return 0;
        }

        (void) ratelimit_row_look(&rows[i], clock, shape);
        ratelimit_row_keep(&rows[i], clock, shape, item->cost);

        if (item->verdict.rebase) {
            return 0;
        }

        if (item->verdict.allowed) {
            continue;
        }

        /* who is refused for the first time in an epoch is to be marked */

        if (!ratelimit_slot_guarded(rows[i].slot, rows[i].place->table,
                                    segment))
        {
            return 0;
        }

        refused = 1;
    }

    return refused && ratelimit_read_end(&segment->lock, ticket);
}


static ratelimit_inline int
ratelimit_quick_look(ratelimit_row_t *rows, size_t n,
    const ratelimit_clock_t *clock, const ratelimit_shape_t *shape)
{
    int     allowed;
    size_t  i;

    allowed = 1;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        allowed &= ratelimit_row_look(&rows[i], clock, shape);
    }

    return allowed;
}


/* returns 0 if others are in the way */

static ratelimit_inline int
ratelimit_quick_insert(ratelimit_row_t *rows, size_t n,
    ratelimit_segment_t *segment, uint32_t me, const ratelimit_shape_t *shape)
{
    size_t  i;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        rows[i].place->slot = rows[i].slot;
        rows[i].place->segment = segment;
        rows[i].place->blocked = NULL;
    }

    if (!ratelimit_quick_reserve(rows[0].place, n, me)) {
        return 0;
    }

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        rows[i].slot = rows[i].place->slot;
        ratelimit_row_load(&rows[i], shape);
    }

    return 1;
}


static ratelimit_noinline int
ratelimit_quick_reserve(ratelimit_place_t *places, size_t n, uint32_t me)
{
    size_t             i;
    ratelimit_party_t  party;

    party.places = places;
    party.n = n;
    party.clock = places[0].clock;
    party.me = me;
    party.brief = 1;

    for (i = 0; i < n; i++) {
        if (places[i].slot == NULL
            && !ratelimit_slot_reserve(&places[i], &party))
        {
            return 0;
        }
    }

    return 1;
}


static ratelimit_inline void
ratelimit_quick_charge(ratelimit_row_t *rows, size_t n,
    const ratelimit_clock_t *clock, const ratelimit_shape_t *shape,
    const ratelimit_segment_t *segment)
{
    size_t    i;
    uint64_t  epoch;

    epoch = ratelimit_slot_epoch(rows[0].place->table, segment);

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        ratelimit_row_charge(&rows[i], clock, shape, epoch);
        ratelimit_row_keep(&rows[i], clock, shape, 0);
    }
}
