
/*
 * A decision: all segments that it concerns are held while it looks at all
 * limits, and charges all or none.
 *
 * It is written once.  The compiler makes it for one and for two limits of each
 * of the usual kinds of tables, where it knows the kind, and for one and any
 * number of all others, where the kind is NULL and each place has that of its
 * table.
 */


#include "core/ratelimit_bucket.h"
#include "core/ratelimit_decide.h"
#include "core/ratelimit_fixed_window.h"
#include "core/ratelimit_sliding_window.h"
#include "table/ratelimit_lockset.h"


/* what was seen without a lock */

#define RATELIMIT_SEEN_STABLE   0x01    /* all places have tickets */
#define RATELIMIT_SEEN_REFUSED  0x02    /* a key may be known to be refused */


static ratelimit_inline int ratelimit_decide_run(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me, const ratelimit_kind_t *kind);
static int ratelimit_decide_one_any(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me);
static ratelimit_inline unsigned ratelimit_decide_find(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_kind_t *kind);
static ratelimit_inline int ratelimit_decide_refuse(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_kind_t *kind);
static ratelimit_inline int ratelimit_decide_look_unlocked(
    ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_kind_t *kind, const ratelimit_clock_t *clock,
    int *allowed);
static ratelimit_inline ratelimit_state_t *ratelimit_decide_copy(
    const ratelimit_table_t *table, const ratelimit_kind_t *kind,
    const ratelimit_slot_t *slot, ratelimit_state_t *words);
static ratelimit_inline int ratelimit_decide_is_refused(
    const ratelimit_place_t *place, uint64_t now);
static ratelimit_inline int ratelimit_decide_try(ratelimit_place_t *places,
    size_t n, uint32_t me);
static ratelimit_inline void ratelimit_decide_tick(ratelimit_place_t *places,
    size_t n);
static void ratelimit_decide_lock(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, uint32_t me);
static ratelimit_inline int ratelimit_decide_look(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_kind_t *kind);
static ratelimit_inline int ratelimit_decide_allocate(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, uint32_t me,
    const ratelimit_kind_t *kind, int allowed);
static ratelimit_inline int ratelimit_decide_changes(
    const ratelimit_item_t *item, int allowed);
static int ratelimit_decide_insert(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, size_t i, uint32_t me);
static ratelimit_inline void ratelimit_decide_charge(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, uint32_t me,
    const ratelimit_kind_t *kind);
static void ratelimit_decide_punish(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, uint32_t me);
static void ratelimit_decide_outlive(const ratelimit_item_t *item,
    const ratelimit_place_t *place, const ratelimit_clock_t *clock,
    uint32_t me);
static void ratelimit_decide_settle(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me, unsigned commit);
static ratelimit_inline int ratelimit_decide_fits(
    const ratelimit_kind_t *kind);
static ratelimit_inline void ratelimit_decide_copy_state(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_kind_t *kind);
static ratelimit_inline void ratelimit_decide_remember(ratelimit_item_t *item,
    ratelimit_place_t *place, const ratelimit_kind_t *kind,
    const ratelimit_clock_t *clock, uint64_t cost);
static ratelimit_inline const ratelimit_kind_t *ratelimit_decide_kind(
    const ratelimit_kind_t *kind, const ratelimit_place_t *place);


#define ratelimit_decide_instance(name, shape, where, form, drips, size,      \
                                  look, charge)                               \
                                                                              \
static const ratelimit_kind_t  ratelimit_kind_##name = {                      \
    shape, where, form, drips, size, look, charge                             \
};                                                                            \
                                                                              \
                                                                              \
static int                                                                    \
ratelimit_decide_one_##name(ratelimit_item_t *items,                          \
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,      \
    uint32_t me)                                                              \
{                                                                             \
    (void) n;                                                                 \
                                                                              \
    return ratelimit_decide_run(items, places, 1, clock, me,                  \
                                &ratelimit_kind_##name);                      \
}                                                                             \
                                                                              \
                                                                              \
static int                                                                    \
ratelimit_decide_two_##name(ratelimit_item_t *items,                          \
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,      \
    uint32_t me)                                                              \
{                                                                             \
    (void) n;                                                                 \
                                                                              \
    return ratelimit_decide_run(items, places, 2, clock, me,                  \
                                &ratelimit_kind_##name);                      \
}


#define ratelimit_shape(algorithm, buckets, width)                            \
    { algorithm, buckets, width, 0, 0 }


ratelimit_decide_instance(fixed_window,
    ratelimit_shape(RATELIMIT_FIXED_WINDOW, 1, 0),
    RATELIMIT_IN_WORD, RATELIMIT_FORM_TIME_COUNT, 0, 16,
    ratelimit_fixed_window_look, ratelimit_fixed_window_charge)

ratelimit_decide_instance(token_bucket,
    ratelimit_shape(RATELIMIT_TOKEN_BUCKET, 1, 0),
    RATELIMIT_IN_WORD, RATELIMIT_FORM_TIME_COUNT, 1, 16,
    ratelimit_token_bucket_look, ratelimit_bucket_charge)

ratelimit_decide_instance(leaky_bucket,
    ratelimit_shape(RATELIMIT_LEAKY_BUCKET, 1, 0),
    RATELIMIT_IN_WORD, RATELIMIT_FORM_TIME_COUNT, 1, 16,
    ratelimit_leaky_bucket_look, ratelimit_bucket_charge)

ratelimit_decide_instance(fixed_window_plain,
    ratelimit_shape(RATELIMIT_FIXED_WINDOW, 0, 0),
    RATELIMIT_IN_LINE, RATELIMIT_FORM_TIME_COUNT, 0, 16,
    ratelimit_fixed_window_look, ratelimit_fixed_window_charge)

ratelimit_decide_instance(token_bucket_plain,
    ratelimit_shape(RATELIMIT_TOKEN_BUCKET, 0, 0),
    RATELIMIT_IN_LINE, RATELIMIT_FORM_TIME_COUNT, 1, 16,
    ratelimit_token_bucket_look, ratelimit_bucket_charge)

ratelimit_decide_instance(sliding_window_1,
    ratelimit_shape(RATELIMIT_SLIDING_WINDOW, 1, sizeof(uint32_t)),
    RATELIMIT_IN_WORD, RATELIMIT_FORM_SUB_WINDOWS, 0, 16,
    ratelimit_sliding_window_look, ratelimit_sliding_window_charge)

ratelimit_decide_instance(sliding_window_10,
    ratelimit_shape(RATELIMIT_SLIDING_WINDOW, 10, sizeof(uint16_t)),
    RATELIMIT_IN_LINE, RATELIMIT_FORM_SUB_WINDOWS, 0, 32,
    ratelimit_sliding_window_look, ratelimit_sliding_window_charge)

ratelimit_decide_instance(sliding_window_10_wide,
    ratelimit_shape(RATELIMIT_SLIDING_WINDOW, 10, sizeof(uint32_t)),
    RATELIMIT_IN_BLOCK, RATELIMIT_FORM_SUB_WINDOWS, 0, 56,
    ratelimit_sliding_window_look, ratelimit_sliding_window_charge)


#define ratelimit_decide_entry(name)                                          \
    { &ratelimit_kind_##name, ratelimit_decide_one_##name,                    \
      ratelimit_decide_two_##name }

static const ratelimit_instance_t  ratelimit_decide_instances[] = {
    ratelimit_decide_entry(fixed_window),
    ratelimit_decide_entry(token_bucket),
    ratelimit_decide_entry(leaky_bucket),
    ratelimit_decide_entry(fixed_window_plain),
    ratelimit_decide_entry(token_bucket_plain),
    ratelimit_decide_entry(sliding_window_1),
    ratelimit_decide_entry(sliding_window_10),
    ratelimit_decide_entry(sliding_window_10_wide)
};


const ratelimit_instance_t  ratelimit_table_any = {
    NULL, ratelimit_decide_one_any, ratelimit_table_decide_any
};


const ratelimit_instance_t *
ratelimit_table_instance(const ratelimit_kind_t *kind)
{
    size_t                       i;
    const ratelimit_kind_t      *known;
    const ratelimit_instance_t  *instance;

    instance = ratelimit_decide_instances;

    for (i = sizeof(ratelimit_decide_instances) / sizeof(ratelimit_instance_t);
         i;
         i--, instance++)
    {
        known = instance->kind;

        if (known->shape.algorithm != kind->shape.algorithm
            || known->where != kind->where || known->size != kind->size)
        {
            continue;
        }

        /* only sub-windows have buckets, and packed ones have one */

        if (kind->where == RATELIMIT_IN_WORD
            || (known->shape.buckets == kind->shape.buckets
                && known->shape.width == kind->shape.width))
        {
            return instance;
        }
    }

    return &ratelimit_table_any;
}


static int
ratelimit_decide_one_any(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    (void) n;

    return ratelimit_decide_run(items, places, 1, clock, me, NULL);
}


int
ratelimit_table_decide_any(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    return ratelimit_decide_run(items, places, n, clock, me, NULL);
}


/*
 * The clock of the decision is the first place's.  N and the kind may be known
 * to the compiler.
 */

static ratelimit_inline int
ratelimit_decide_run(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me,
    const ratelimit_kind_t *kind)
{
    int       allowed;
    unsigned  seen;

    if (clock != &places[0].clock) {
        places[0].clock = *clock;
    }

    places[0].evicted = 0;

    seen = ratelimit_decide_find(items, places, n, kind);

    if (seen & RATELIMIT_SEEN_REFUSED
        && ratelimit_decide_refuse(items, places, n, kind))
    {
        return 0;
    }

    if (seen & RATELIMIT_SEEN_STABLE && ratelimit_decide_try(places, n, me)) {
        ratelimit_decide_tick(places, n);

    } else {
        ratelimit_decide_lock(items, places, n, me);
    }

    do {
        allowed = ratelimit_decide_look(items, places, n, kind);

    } while (!ratelimit_decide_allocate(items, places, n, me, kind, allowed));

    if (allowed) {
        ratelimit_decide_charge(items, places, n, me, kind);

    } else {
        ratelimit_decide_punish(items, places, n, me);
    }

    ratelimit_lockset_unlock(places, n);

    return allowed;
}


/* looks for all slots without a lock */

static ratelimit_inline unsigned
ratelimit_decide_find(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_kind_t *kind)
{
    size_t              i;
    uint64_t            segment, period, ticket;
    unsigned            seen;
    ratelimit_table_t  *active;
    ratelimit_place_t  *place;
    ratelimit_where_e   where;

    seen = RATELIMIT_SEEN_STABLE;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        place = &places[i];

        active = kind ? place->table : ratelimit_lockset_active(places, i);
        where = kind ? kind->where : active->kind.where;
        period = items[i].rule->period;
        segment = ratelimit_slot_segment(active, &place->hash);

        if (!ratelimit_read_begin(&active->segments[segment].lock, &ticket)) {
            return 0;
        }

        ratelimit_slot_locate(active, place, segment, period, where);

        place->ticket = ticket;

        if (ratelimit_slot_find(place, segment, period, where)) {
            seen |= RATELIMIT_SEEN_REFUSED;
        }

        if (kind == NULL && place->table->older) {
            seen &= ~RATELIMIT_SEEN_STABLE;
        }
    }

    return seen;
}


/*
 * A key is refused again by reading alone: workers do not wait for one another,
 * and no memory changes hands.
 */

static ratelimit_inline int
ratelimit_decide_refuse(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_kind_t *kind)
{
    int                 allowed;
    size_t              i;
    ratelimit_place_t  *place;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        place = &places[i];

        /* a key that was not looked for in older tables may be there */

        if (items[i].count_rejected
            || (kind == NULL && place->slot == NULL && place->active->older))
        {
            return 0;
        }

        ratelimit_lockset_catch_up(place->segment, &places[0].clock);
    }

    allowed = 1;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        place = &places[i];

        if (!ratelimit_decide_look_unlocked(&items[i], place,
                                            ratelimit_decide_kind(kind, place),
                                            &places[0].clock, &allowed))
        {
            return 0;
        }
    }

    return !allowed;
}


/* looks without a lock; returns 0 if what was seen is no reason to refuse */

static ratelimit_inline int
ratelimit_decide_look_unlocked(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_kind_t *kind, const ratelimit_clock_t *clock, int *allowed)
{
    int                 allows;
    ratelimit_state_t   words[RATELIMIT_NEVER_SEEN], *copy;

    copy = ratelimit_decide_fits(kind) ? place->state : words;

    item->shape = &place->active->kind.shape;
    item->state = ratelimit_decide_copy(place->active, kind, place->slot, copy);

    allows = ratelimit_item_look(item, &kind->shape, clock, kind->look);

    ratelimit_decide_remember(item, place, kind, clock, item->cost);

    if (item->verdict.rebase
        || !ratelimit_read_end(&place->segment->lock, place->ticket))
    {
        return 0;
    }

    *allowed &= allows;

    /* a refusal is to be noted in the slot now and then */

    return allows || place->slot == NULL
           || ratelimit_decide_is_refused(place, clock->now);
}


/*
 * The same for a process that has no lock: a copy, which another process can't
 * change while it is looked at.  A state that is too large is not copied: its
 * algorithm reads what it needs with care.
 */

static ratelimit_inline ratelimit_state_t *
ratelimit_decide_copy(const ratelimit_table_t *table,
    const ratelimit_kind_t *kind, const ratelimit_slot_t *slot,
    ratelimit_state_t *words)
{
    size_t              i;
    ratelimit_state_t  *state;

    state = ratelimit_slot_state(table, kind, slot, words);

    if (kind->where == RATELIMIT_IN_WORD
        || kind->size > sizeof(ratelimit_slot_never_seen))
    {
        return state;
    }

#pragma GCC unroll 8

    for (i = 0; i < kind->size / sizeof(ratelimit_state_t); i++) {
        words[i] = __atomic_load_n(&state[i], __ATOMIC_RELAXED);
    }

    return words;
}


/* whether its key is known to be refused, and that was noted recently */

static ratelimit_inline int
ratelimit_decide_is_refused(const ratelimit_place_t *place, uint64_t now)
{
    uint64_t  id;

    id = __atomic_load_n(&place->slot->id, __ATOMIC_RELAXED);

    return (id & RATELIMIT_REFUSED)
           && ((ratelimit_slot_minute(now) - id) & (RATELIMIT_EPOCHS - 1))
              < RATELIMIT_RECENT;
}


/*
 * Locks all segments if no other process has held one since the tickets were
 * given; waits for none.
 */

static ratelimit_inline int
ratelimit_decide_try(ratelimit_place_t *places, size_t n, uint32_t me)
{
    if (ratelimit_lockset_is_single(places, n)) {
        return ratelimit_lock_unchanged(&places[0].segment->lock,
                                        places[0].ticket, me);
    }

    return ratelimit_lockset_try_all(places, n, me);
}


static ratelimit_inline void
ratelimit_decide_tick(ratelimit_place_t *places, size_t n)
{
    size_t  i;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        if (i == 0 || places[i].segment != places[i - 1].segment) {
            ratelimit_lockset_tick(places[i].segment, &places[0].clock);
        }
    }
}


/* another process holds a lock, or has held it, or the table is not alone */

static ratelimit_noinline void
ratelimit_decide_lock(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, uint32_t me)
{
    ratelimit_lockset_t  set;

    ratelimit_lockset_init(&set, places, n, &places[0].clock, me);
    ratelimit_lockset_lock(items, &set);
}


static ratelimit_inline int
ratelimit_decide_look(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_kind_t *kind)
{
    int                      allowed;
    size_t                   i;
    ratelimit_item_t        *item;
    ratelimit_place_t       *place;
    const ratelimit_kind_t  *own;

    allowed = 1;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        item = &items[i];
        place = &places[i];
        own = ratelimit_decide_kind(kind, place);

        item->shape = &place->active->kind.shape;
        item->state = ratelimit_slot_state(place->active, own, place->slot,
                                           place->state);

        allowed &= ratelimit_item_look(item, &own->shape, &places[0].clock,
                                       own->look);
    }

    return allowed;
}


/*
 * All that will be written has a slot before anything is.  Returns 0 if all
 * has to be looked at again, because another process was in the way.
 */

static ratelimit_inline int
ratelimit_decide_allocate(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, uint32_t me, const ratelimit_kind_t *kind, int allowed)
{
    size_t              i;
    ratelimit_item_t   *item;
    ratelimit_place_t  *place;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        item = &items[i];
        place = &places[i];

        if (place->slot || !ratelimit_decide_changes(item, allowed)) {
            continue;
        }

        if (!ratelimit_decide_insert(items, places, n, i, me)) {
            return 0;
        }

        item->state = ratelimit_slot_state(place->active,
                                           ratelimit_decide_kind(kind, place),
                                           place->slot, place->state);
    }

    return 1;
}


/* whether the decision changes the state, once it is known if all allow */

static ratelimit_inline int
ratelimit_decide_changes(const ratelimit_item_t *item, int allowed)
{
    return item->verdict.rebase
           || (allowed ? item->cost != 0 : item->count_rejected);
}


/* allocates a slot for the i'th place */

static int
ratelimit_decide_insert(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, size_t i, uint32_t me)
{
    ratelimit_lockset_t  set;

    ratelimit_lockset_init(&set, places, n, &places[0].clock, me);

    if (ratelimit_slot_allocate(&places[i], &set)) {
        return 1;
    }

    ratelimit_lockset_retry(items, &set);

    return 0;
}


static ratelimit_inline void
ratelimit_decide_charge(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, uint32_t me, const ratelimit_kind_t *kind)
{
    size_t                   i;
    ratelimit_item_t        *item;
    ratelimit_place_t       *place;
    const ratelimit_kind_t  *own;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        item = &items[i];
        place = &places[i];
        own = ratelimit_decide_kind(kind, place);

        if (ratelimit_decide_changes(item, 1)) {
            ratelimit_item_charge(item, &own->shape, &places[0].clock,
                                  own->charge);
            ratelimit_slot_write(own, place->slot, item->state);
            ratelimit_slot_use(place, item->rule, own, 0, places[0].clock.now,
                               me);
        }

        ratelimit_decide_copy_state(item, place, own);
        ratelimit_decide_remember(item, place, own, &places[0].clock, 0);
    }
}


/* counts a refusal if refused requests count, and notes it in the slot */

static ratelimit_noinline void
ratelimit_decide_punish(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, uint32_t me)
{
    size_t                   i;
    uint64_t                 refused, cost;
    ratelimit_item_t        *item;
    ratelimit_place_t       *place;
    const ratelimit_kind_t  *kind;

    for (i = 0; i < n; i++) {
        item = &items[i];
        place = &places[i];
        kind = &place->active->kind;

        refused = item->verdict.allowed ? 0 : RATELIMIT_REFUSED;
        cost = item->cost;

        if (ratelimit_decide_changes(item, 0)) {
            cost = ratelimit_item_punish(item, &places[0].clock);
            ratelimit_decide_outlive(item, place, &places[0].clock, me);
            ratelimit_slot_write(kind, place->slot, item->state);
            ratelimit_slot_use(place, item->rule, kind, refused,
                               places[0].clock.now, me);

        } else if (refused && place->slot) {
            ratelimit_slot_use(place, item->rule, kind, refused,
                               places[0].clock.now, me);
        }

        if (refused && place->slot) {
            ratelimit_slot_refuse(place, places[0].clock.now);
        }

        ratelimit_decide_copy_state(item, place, kind);
        ratelimit_decide_remember(item, place, kind, &places[0].clock, cost);
    }
}


/* a debt may take longer to drip off than the rule tells */

static void
ratelimit_decide_outlive(const ratelimit_item_t *item,
    const ratelimit_place_t *place, const ratelimit_clock_t *clock,
    uint32_t me)
{
    uint64_t            end;
    ratelimit_table_t  *table;

    table = place->active;

    if (item->count_rejected != RATELIMIT_IN_FULL || !table->kind.drips) {
        return;
    }

    end = table->algorithm->expires(item->shape, item->rule, item->state);

    ratelimit_table_outlive(table, ratelimit_sub(end, clock->now), me);
}


/* whether a place can remember a state */

static ratelimit_inline int
ratelimit_decide_fits(const ratelimit_kind_t *kind)
{
    return kind->size <= sizeof(ratelimit_state_t) * RATELIMIT_REMEMBERED;
}


/* a state that stands in the table is copied before it is unlocked */

static ratelimit_inline void
ratelimit_decide_copy_state(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_kind_t *kind)
{
    if (kind->where != RATELIMIT_IN_WORD && ratelimit_decide_fits(kind)) {
        memcpy(place->state, item->state, kind->size);
        item->state = place->state;
    }
}


/*
 * What describe needs: the state, some of the cost may be in it already.  A
 * state that is too large to be remembered is described at once.
 */

static ratelimit_inline void
ratelimit_decide_remember(ratelimit_item_t *item, ratelimit_place_t *place,
    const ratelimit_kind_t *kind, const ratelimit_clock_t *clock,
    uint64_t cost)
{
    if (!ratelimit_decide_fits(kind)) {
        place->active->algorithm->describe(item->shape, item->rule,
                                           item->state, clock, cost,
                                           &item->verdict);
        item->state = NULL;
        return;
    }

    place->cost = cost;

    if (&place->clock != clock) {
        place->clock = *clock;
    }
}


static ratelimit_inline const ratelimit_kind_t *
ratelimit_decide_kind(const ratelimit_kind_t *kind,
    const ratelimit_place_t *place)
{
    return kind ? kind : &place->active->kind;
}


void
ratelimit_table_describe(ratelimit_item_t *items,
    const ratelimit_place_t *places, size_t n)
{
    size_t                    i;
    const ratelimit_place_t  *place;

    for (i = 0; i < n; i++) {
        place = &places[i];

        if (items[i].state == NULL) {
            continue;
        }

        place->active->algorithm->describe(items[i].shape, items[i].rule,
                                           place->state, &place->clock,
                                           place->cost, &items[i].verdict);
        items[i].state = NULL;
    }
}


void
ratelimit_table_peek(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    size_t  i;

    places[0].clock = *clock;

    ratelimit_decide_lock(items, places, n, me);
    (void) ratelimit_decide_look(items, places, n, NULL);

    for (i = 0; i < n; i++) {
        places[i].active->algorithm->describe(items[i].shape, items[i].rule,
                                              items[i].state,
                                              &places[0].clock, items[i].cost,
                                              &items[i].verdict);
        items[i].state = NULL;
    }

    ratelimit_lockset_unlock(places, n);
}


void
ratelimit_table_reset(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    size_t  i;

    places[0].clock = *clock;

    ratelimit_decide_lock(items, places, n, me);

    for (i = 0; i < n; i++) {
        if (places[i].slot) {
            ratelimit_slot_remove(places[i].segment, places[i].slot);
        }
    }

    ratelimit_lockset_unlock(places, n);
}


void
ratelimit_table_refund(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    ratelimit_decide_settle(items, places, n, clock, me, 0);
}


void
ratelimit_table_commit(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    size_t    i;
    uint64_t  stamps;

    stamps = 0;

    for (i = 0; i < n; i++) {
        stamps |= items[i].verdict.stamp;
    }

    if (stamps & RATELIMIT_RESERVED) {
        ratelimit_decide_settle(items, places, n, clock, me, 1);
    }
}


/* the request is over: it is known what of it counts */

static void
ratelimit_decide_settle(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me, unsigned commit)
{
    size_t                i;
    ratelimit_table_t    *table;
    ratelimit_state_t    *state, words[2];
    ratelimit_clock_t     now;
    ratelimit_lockset_t   set;
    ratelimit_settle_pt   settle;

    now = *clock;

    ratelimit_lockset_init(&set, places, n, &now, me);
    ratelimit_lockset_lock(items, &set);

    for (i = 0; i < n; i++) {
        table = places[i].active;
        settle = commit ? table->algorithm->commit : table->algorithm->refund;

        if (places[i].slot == NULL || items[i].cost == 0 || settle == NULL) {
            continue;
        }

        state = ratelimit_slot_state(table, &table->kind, places[i].slot,
                                     words);

        settle(&table->kind.shape, items[i].rule, state, &now,
               items[i].verdict.stamp, items[i].cost);

        ratelimit_slot_write(&table->kind, places[i].slot, state);
    }

    ratelimit_lockset_unlock(places, n);
}
