
/*
 * Which counter has to go when a new key finds no room: an expired one,
 * otherwise the one that is worth least.
 */


#include "core/ratelimit_math.h"
#include "table/ratelimit_table_slot.h"


/* if more of 16 slots are empty, none that has a block needs to go */
#define RATELIMIT_EVICT_MANY      8

/* equals no class of any id */
#define RATELIMIT_EVICT_NO_CLASS  UINT64_MAX

/* equals the class if the key of an id is not refused */
#define RATELIMIT_EVICT_MARKS     (RATELIMIT_CLASS_MASK | RATELIMIT_REFUSED)

/* worth more than any slot */
#define RATELIMIT_EVICT_NEVER     (2 * RATELIMIT_EPOCHS)


/* what shows that a counter has expired */

typedef enum {
    RATELIMIT_EVICT_BY_WORD = 0,  /* its word is below a bound */
    RATELIMIT_EVICT_BY_LINE,      /* the first word of a state of the usual
                                     size in the line is */
    RATELIMIT_EVICT_BY_STATE,     /* the first word of any other is */
    RATELIMIT_EVICT_BY_TIME       /* only the algorithm knows */
} ratelimit_evict_e;


static inline ratelimit_evict_e ratelimit_evict_by(
    const ratelimit_table_t *table);
static uint64_t ratelimit_evict_bound(const ratelimit_table_t *table,
    uint64_t id, uint64_t now);
static ratelimit_inline int ratelimit_evict_is_past(
    const ratelimit_table_t *table, const ratelimit_slot_t *slot,
    ratelimit_evict_e by, uint64_t bound, uint64_t now);
static int ratelimit_evict_is_past_time(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now);
static ratelimit_inline void ratelimit_evict_enter(
    const ratelimit_table_t *table, uint64_t id, uint64_t now,
    uint64_t *class, uint64_t *bound);
static ratelimit_inline ratelimit_slot_t *ratelimit_evict_search(
    const ratelimit_place_t *place, const ratelimit_lockset_t *set,
    ratelimit_evict_e by, int *worth);


int
ratelimit_evict_expired(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now)
{
    uint64_t  bound;

    bound = ratelimit_evict_bound(table, slot->id, now);

    return ratelimit_evict_is_past(table, slot, ratelimit_evict_by(table),
                                   bound, now);
}


static inline ratelimit_evict_e
ratelimit_evict_by(const ratelimit_table_t *table)
{
    if (table->algorithm->past == NULL) {
        return RATELIMIT_EVICT_BY_TIME;
    }

    if (table->kind.where == RATELIMIT_IN_WORD) {
        return RATELIMIT_EVICT_BY_WORD;
    }

    return table->slot_size == RATELIMIT_MAX_IN_LINE
           ? RATELIMIT_EVICT_BY_LINE : RATELIMIT_EVICT_BY_STATE;
}


/* states of a class have expired if what they begin with is below this */

static uint64_t
ratelimit_evict_bound(const ratelimit_table_t *table, uint64_t id,
    uint64_t now)
{
    uint64_t           period;
    ratelimit_state_t  state[2];

    if (table->algorithm->past == NULL) {
        return 0;
    }

    period = ratelimit_table_class_period(table, ratelimit_slot_class(id));

    state[0] = table->algorithm->past(&table->kind.shape, period, now);
    state[1] = 0;

    return table->kind.where == RATELIMIT_IN_WORD
           ? ratelimit_pack(table->kind.form, state) : state[0];
}


static ratelimit_inline int
ratelimit_evict_is_past(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, ratelimit_evict_e by, uint64_t bound,
    uint64_t now)
{
    switch (by) {

    case RATELIMIT_EVICT_BY_WORD:
        return *ratelimit_slot_word(slot) < bound;

    case RATELIMIT_EVICT_BY_LINE:
        return ratelimit_slot_words(slot, RATELIMIT_MAX_IN_LINE)[0] < bound;

    case RATELIMIT_EVICT_BY_STATE:
        return ratelimit_slot_state(table, &table->kind, slot, NULL)[0]
               < bound;

    default:
        return ratelimit_evict_is_past_time(table, slot, now);
    }
}


static int
ratelimit_evict_is_past_time(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot, uint64_t now)
{
    ratelimit_rule_t    rule;
    ratelimit_class_t   class;
    ratelimit_state_t   words[2], *state;

    class = ratelimit_table_get_class(table, ratelimit_slot_class(slot->id));
    state = ratelimit_slot_state(table, &table->kind, slot, words);

    if (class.period == 0) {
        return state[0]
               + __atomic_load_n(&table->header->horizon, __ATOMIC_RELAXED)
               <= now;
    }

    /* this is all that expires looks at */

    rule.limit = class.limit;
    rule.period = class.period;
    rule.ceiling = RATELIMIT_MAX_LIMIT;

    return table->algorithm->expires(&table->kind.shape, &rule, state) <= now;
}


ratelimit_slot_t *
ratelimit_evict_choose(const ratelimit_place_t *place,
    const ratelimit_lockset_t *set, int *worth)
{
    switch (ratelimit_evict_by(place->active)) {

    case RATELIMIT_EVICT_BY_WORD:
        return ratelimit_evict_search(place, set, RATELIMIT_EVICT_BY_WORD,
                                       worth);

    case RATELIMIT_EVICT_BY_LINE:
        return ratelimit_evict_search(place, set, RATELIMIT_EVICT_BY_LINE,
                                       worth);

    case RATELIMIT_EVICT_BY_STATE:
        return ratelimit_evict_search(place, set, RATELIMIT_EVICT_BY_STATE,
                                       worth);

    default:
        return ratelimit_evict_search(place, set, RATELIMIT_EVICT_BY_TIME,
                                       worth);
    }
}


/* to the class of an id; 0 is that of an empty slot, and of one too many */

static ratelimit_inline void
ratelimit_evict_enter(const ratelimit_table_t *table, uint64_t id,
    uint64_t now, uint64_t *class, uint64_t *bound)
{
    uint64_t  of;

    of = id & RATELIMIT_CLASS_MASK;

    if (of != *class) {
        *class = of ? of : RATELIMIT_EVICT_NO_CLASS;
        *bound = ratelimit_evict_bound(table, id, now);
    }
}


static ratelimit_inline ratelimit_slot_t *
ratelimit_evict_search(const ratelimit_place_t *place,
    const ratelimit_lockset_t *set, ratelimit_evict_e by, int *worth)
{
    int                 lowest, candidate;
    uint64_t            id, class, bound, next, now;
    unsigned            i, k, empty;
    ratelimit_slot_t   *slot, *line, *least;
    ratelimit_table_t  *table;

    table = place->active;
    now = set->clock->now;
    next = ratelimit_slot_epoch(table, place->segment) + 1;
    class = RATELIMIT_EVICT_NO_CLASS;
    bound = 0;
    lowest = RATELIMIT_EVICT_NEVER;
    empty = 0;

    /* more limits of one request than ways: one of them loses */

    least = place->line[0];

    for (k = 0; k < 2; k++) {
        line = __builtin_assume_aligned(place->line[k], RATELIMIT_CACHE_LINE);

#pragma GCC unroll 8

        for (i = 0; i < RATELIMIT_LINE_SLOTS; i++) {
            slot = &line[i];
            id = slot->id;

            /* mostly all are of one class, and none is empty or refused */

            if (ratelimit_likely((id & RATELIMIT_EVICT_MARKS) == class)) {
                candidate = ratelimit_slot_idle_worth(id, next);

            } else if (id == 0) {
                empty++;
                continue;

            } else {
                ratelimit_evict_enter(table, id, now, &class, &bound);
                candidate = ratelimit_slot_worth(place->segment, id, next, now);
            }

            if (ratelimit_unlikely(ratelimit_evict_is_past(table, slot, by,
                                                           bound, now))
                && !ratelimit_slot_in_use(set, slot))
            {
                *worth = RATELIMIT_WORTHLESS;
                return slot;
            }

            if (candidate < lowest && !ratelimit_slot_in_use(set, slot)) {
                least = slot;
                lowest = candidate;
            }
        }
    }

    *worth = (empty <= (table->nblocks ? RATELIMIT_EVICT_MANY : 0))
             ? lowest : RATELIMIT_EVICT_NEVER;

    return least;
}
