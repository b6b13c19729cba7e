
/*
 * One limit of a quick decision.  Its shape is known to the compiler, which
 * makes one piece of all this.  For ratelimit_quick.c only.
 */


#ifndef _RATELIMIT_QUICK_H_INCLUDED_
#define _RATELIMIT_QUICK_H_INCLUDED_


#include "core/ratelimit_bucket.h"
#include "core/ratelimit_fixed_window.h"
#include "core/ratelimit_sliding_window.h"
#include "table/ratelimit_party.h"


typedef struct {
    ratelimit_item_t               *item;
    ratelimit_place_t              *place;
    ratelimit_slot_t               *slot;
    ratelimit_state_t              *state;
    uint64_t                        fingerprint;
} ratelimit_row_t;


/* in the slot, otherwise in a block */

static ratelimit_inline int
ratelimit_row_small(const ratelimit_shape_t *shape)
{
    return shape->buckets == 1;
}


/*
 * States that fill a few lines behind the ids: it takes as long to have most of
 * them come from memory together with the ids as to have these come alone.
 */

static ratelimit_inline void
ratelimit_row_prefetch(const ratelimit_slot_t *bucket)
{
    __builtin_prefetch(bucket);
    __builtin_prefetch(bucket + RATELIMIT_WAYS);
    __builtin_prefetch(bucket + 2 * RATELIMIT_WAYS);
    __builtin_prefetch(bucket + 3 * RATELIMIT_WAYS);
}


/* returns 0 if there is no slot; then the place knows where it could be */

static ratelimit_inline int
ratelimit_row_find(ratelimit_row_t *row, uint64_t segment,
    const ratelimit_shape_t *shape)
{
    uint64_t            mix, period;
    ratelimit_slot_t   *first, *second;
    ratelimit_place_t  *place;
    ratelimit_table_t  *table;

    place = row->place;
    table = place->table;
    period = row->item->rule->period;

    mix = ratelimit_slot_mix(&place->hash, period);

    if (ratelimit_row_small(shape)) {
        first = ratelimit_slot_first(table, segment, mix);
        second = NULL;

    } else {
        first = ratelimit_slot_bucket(table, segment, mix >> 16);
        second = ratelimit_slot_bucket(table, segment, mix);

        ratelimit_row_prefetch(first);
        ratelimit_row_prefetch(second);
    }

    row->fingerprint = ratelimit_slot_fingerprint(&place->hash, period);
    row->slot = ratelimit_slot_search(first, row->fingerprint);

    if (row->slot) {
        return 1;
    }

    if (ratelimit_row_small(shape)) {
        second = ratelimit_slot_bucket(table, segment, mix);
    }

    row->slot = ratelimit_slot_search(second, row->fingerprint);

    if (row->slot) {
        return 1;
    }

    place->bucket[0] = first;
    place->bucket[1] = second;

    return 0;
}


/* who has no slot has a state never seen */

static ratelimit_inline void
ratelimit_row_load(ratelimit_row_t *row, const ratelimit_shape_t *shape)
{
    uint64_t           word;
    ratelimit_slot_t  *slot;

    slot = row->slot;

    if (!ratelimit_row_small(shape)) {
        row->state = slot ? ratelimit_slot_inner(slot, RATELIMIT_KEPT
                                                 * sizeof(ratelimit_state_t))
                          : (ratelimit_state_t *) ratelimit_slot_nothing;
        return;
    }

    word = slot ? __atomic_load_n(ratelimit_slot_word(slot), __ATOMIC_RELAXED)
                : 0;

    row->state = row->place->state;
    ratelimit_small_unpack(shape->algorithm, word, row->state);
}


/* returns whether it may be charged, and so simply */

static ratelimit_inline int
ratelimit_row_look(ratelimit_row_t *row, const ratelimit_clock_t *clock,
    const ratelimit_shape_t *shape)
{
    ratelimit_item_t   *item;
    ratelimit_table_t  *table;

    item = row->item;
    table = row->place->table;

    item->shape = &table->shape;
    item->verdict.brief = 1;
    row->place->active = table;

    ratelimit_row_load(row, shape);

    switch (shape->algorithm) {

    case RATELIMIT_FIXED_WINDOW:
        ratelimit_fixed_window_look(shape, item->rule, row->state, clock,
                                      item->cost, &item->verdict);
        break;

    case RATELIMIT_TOKEN_BUCKET:
        ratelimit_token_bucket_look(shape, item->rule, row->state, clock,
                                      item->cost, &item->verdict);
        break;

    case RATELIMIT_LEAKY_BUCKET:
        ratelimit_leaky_bucket_look(shape, item->rule, row->state, clock,
                                      item->cost, &item->verdict);
        break;

    default:
        ratelimit_sliding_window_look(shape, item->rule, row->state, clock,
                                        item->cost, &item->verdict);
        break;
    }

    return item->verdict.allowed && !item->verdict.rebase;
}


static ratelimit_inline void
ratelimit_row_charge(ratelimit_row_t *row, const ratelimit_clock_t *clock,
    const ratelimit_shape_t *shape, uint64_t epoch)
{
    ratelimit_item_t  *item;

    item = row->item;

    switch (shape->algorithm) {

    case RATELIMIT_FIXED_WINDOW:
        ratelimit_fixed_window_charge(shape, item->rule, row->state, clock,
                                      item->cost, &item->verdict);
        break;

    case RATELIMIT_SLIDING_WINDOW:
        ratelimit_sliding_window_charge(shape, item->rule, row->state, clock,
                                        item->cost, &item->verdict);
        break;

    default:
        ratelimit_bucket_charge(shape, item->rule, row->state, clock,
                                item->cost, &item->verdict);
        break;
    }

    if (ratelimit_row_small(shape)) {
        ratelimit_slot_pack(shape->algorithm, row->slot, row->state);
    }

    ratelimit_slot_set_id(row->slot, row->fingerprint, item->rule->class,
                          epoch);
}


/* what explain needs; some of the cost may be in the state already */

static ratelimit_inline void
ratelimit_row_keep(ratelimit_row_t *row, const ratelimit_clock_t *clock,
    const ratelimit_shape_t *shape, uint64_t asked)
{
    ratelimit_place_t  *place;

    place = row->place;

    if (!ratelimit_row_small(shape)) {
        memcpy(place->state, row->state, sizeof(place->state));
    }

    place->asked = asked;
    place->clock = *clock;
}


#endif /* _RATELIMIT_QUICK_H_INCLUDED_ */
