
/*
 * How one table takes over from another, of another size or shape, while
 * processes that know only the older one still count in it.
 */


#include "table/ratelimit_lockset.h"


/*
 * So many lines are taken, and again after so many microseconds, by the process
 * that comes first: 64 MB take ten seconds.  With so many of them at once a
 * segment is locked: others hardly wait.
 */
#define RATELIMIT_TAKE_LINES    512
#define RATELIMIT_TAKE_AT_ONCE  128
#define RATELIMIT_TAKE_TIME     10000

/*
 * What the slot of a key that was taken is worth, see ratelimit_slot_worth():
 * next to nothing, and so for some epochs.
 */
#define RATELIMIT_TAKEN_WORTH   3


static void ratelimit_migrate_inherit(ratelimit_table_t *table);
static void ratelimit_migrate_raise(uint64_t *heir, uint64_t n);
static int ratelimit_migrate_search(ratelimit_place_t *place,
    ratelimit_table_t *older, const ratelimit_rule_t *rule,
    ratelimit_lockset_t *set);
static int ratelimit_migrate_find(ratelimit_place_t *place,
    ratelimit_table_t *older, const ratelimit_hash_t *hash, uint64_t period,
    const ratelimit_rule_t *rule, ratelimit_lockset_t *set);
static int ratelimit_migrate_has_keys(const ratelimit_segment_t *segment);
static ratelimit_table_t *ratelimit_migrate_heir(ratelimit_table_t *table,
    const ratelimit_table_t *older);
static void ratelimit_migrate_hash(const ratelimit_table_t *older,
    uint64_t segment, uint64_t fingerprint, ratelimit_hash_t *hash);
static ratelimit_table_t *ratelimit_migrate_begin(ratelimit_table_t *table,
    size_t times, const ratelimit_clock_t *clock, uint32_t me);
static ratelimit_table_t *ratelimit_migrate_choose(ratelimit_table_t *table,
    size_t times);
static int ratelimit_migrate_used(const ratelimit_table_t *older,
    const ratelimit_table_t *active);
static ratelimit_table_t *ratelimit_migrate_elect(ratelimit_table_t *table,
    const ratelimit_table_t *older);
static int ratelimit_migrate_holds(const ratelimit_table_t *heir,
    const ratelimit_table_t *older);
static void ratelimit_migrate_outlive(ratelimit_table_t *heir,
    const ratelimit_table_t *older, uint32_t me);
static uint64_t ratelimit_migrate_lines(ratelimit_table_t *heir,
    ratelimit_table_t *older, uint64_t n, uint64_t *left,
    const ratelimit_clock_t *clock, uint32_t me);
static void ratelimit_migrate_adopt(ratelimit_table_t *heir,
    ratelimit_place_t *from, const ratelimit_clock_t *clock, uint32_t me);
static int ratelimit_migrate_yield(ratelimit_place_t *from,
    const ratelimit_place_t *to, ratelimit_lockset_t *set);
static void ratelimit_migrate_idle(const ratelimit_place_t *place);
static void ratelimit_migrate_rule(const ratelimit_place_t *from,
    ratelimit_rule_t *rule);
static int ratelimit_migrate_move(ratelimit_place_t *from,
    ratelimit_place_t *to, const ratelimit_rule_t *rule,
    ratelimit_lockset_t *set);


ratelimit_table_t *
ratelimit_migrate_active(ratelimit_table_t *table)
{
    while (table->older && !ratelimit_table_sealed(table->older)) {
        table = table->older;
    }

    return table;
}


/* numbers rise from table to table, and a table keeps its own */

void
ratelimit_table_follow(ratelimit_table_t *table, ratelimit_table_t *older)
{
    table->older = older;

    if (table->header->serial == 0) {
        table->header->serial = older->header->serial + 1;
    }
}


/* the newest first: a table that was never used is not used now either */

void
ratelimit_table_seal(ratelimit_table_t *table, uint64_t now)
{
    uint64_t            unsealed;
    ratelimit_table_t  *older;

    ratelimit_migrate_inherit(table);

    for (older = table->older; older; older = older->older) {
        unsealed = 0;

        (void) __atomic_compare_exchange_n(&older->header->sealed, &unsealed,
                                           now ? now : 1, 0, __ATOMIC_SEQ_CST,
                                           __ATOMIC_RELAXED);
    }
}


/* all processes do this, some when the memory is dropped already */

static void
ratelimit_migrate_inherit(ratelimit_table_t *table)
{
    if (table->older == NULL) {
        return;
    }

    ratelimit_migrate_inherit(table->older);

    ratelimit_migrate_raise(&table->header->inherited,
                            ratelimit_table_evictions(table->older));
    ratelimit_migrate_raise(&table->header->dismissed,
                            ratelimit_table_dismissed(table->older));
}


static void
ratelimit_migrate_raise(uint64_t *heir, uint64_t n)
{
    if (n > __atomic_load_n(heir, __ATOMIC_RELAXED)) {
        __atomic_store_n(heir, n, __ATOMIC_RELAXED);
    }
}


int
ratelimit_table_sealed(const ratelimit_table_t *older)
{
    return __atomic_load_n(&older->header->sealed, __ATOMIC_SEQ_CST) != 0;
}


/*
 * Since it was sealed no process has charged there, but older ones may have
 * counters that live longer, as those of plans that were not seen since.
 */

int
ratelimit_table_spent(const ratelimit_table_t *older, uint64_t now)
{
    uint64_t  sealed, horizon;

    for ( /* void */ ; older; older = older->older) {
        sealed = __atomic_load_n(&older->header->sealed, __ATOMIC_SEQ_CST);
        horizon = __atomic_load_n(&older->header->horizon, __ATOMIC_RELAXED);

        if (sealed == 0 || now < sealed + horizon) {
            return 0;
        }
    }

    return 1;
}


void
ratelimit_migrate_restrain(ratelimit_item_t *item, ratelimit_place_t *place)
{
    uint64_t                 most;
    const ratelimit_kind_t  *kind;

    kind = &place->active->kind;

    most = (kind->where == RATELIMIT_IN_WORD)
           ? ratelimit_pack_most(&kind->shape, item->rule)
           : ratelimit_shape_most(&kind->shape);

    if (item->rule->ceiling <= most) {
        return;
    }

    place->rule = *item->rule;
    place->rule.ceiling = most;
    place->rule.limit = most < item->rule->limit ? most : item->rule->limit;
    place->rule.capacity = most < item->rule->capacity ? most
                                                  : item->rule->capacity;
    item->rule = &place->rule;
}


/*
 * The lockset holds the place's segment, and the process that holds one of the
 * older table may wait for it: so that one is only tried.
 */

int
ratelimit_migrate_counter(ratelimit_place_t *place,
    const ratelimit_rule_t *rule, ratelimit_lockset_t *set)
{
    ratelimit_table_t  *older;

    for (older = place->active->older; older; older = older->older) {

        if (!ratelimit_migrate_search(place, older, rule, set)) {
            return 0;
        }

        if (place->slot) {
            break;
        }
    }

    return 1;
}


/* where the counter was, then where it is if it was taken from there */

static int
ratelimit_migrate_search(ratelimit_place_t *place, ratelimit_table_t *older,
    const ratelimit_rule_t *rule, ratelimit_lockset_t *set)
{
    uint64_t            period;
    ratelimit_hash_t    hash;
    ratelimit_table_t  *heir;

    hash = place->hash;
    period = rule->period;

    for ( ;; ) {

        if (!ratelimit_table_moved(older)
            && !ratelimit_migrate_find(place, older, &hash, period, rule, set))
        {
            return 0;
        }

        heir = ratelimit_migrate_heir(place->active, older);

        if (place->slot || heir == NULL) {
            return 1;
        }

        ratelimit_migrate_hash(older,
                               ((hash.hi >> 32) * older->spread) >> 32,
                               ratelimit_slot_fingerprint(&hash, period),
                               &hash);
        period = 0;
        older = heir;
    }
}


static int
ratelimit_migrate_find(ratelimit_place_t *place, ratelimit_table_t *older,
    const ratelimit_hash_t *hash, uint64_t period,
    const ratelimit_rule_t *rule, ratelimit_lockset_t *set)
{
    int                done, held;
    uint64_t           segment;
    ratelimit_place_t  from;

    from = *place;
    from.hash = *hash;

    segment = ratelimit_slot_segment(older, hash);

    ratelimit_slot_locate(older, &from, segment, period, older->kind.where);

    held = ratelimit_segment_held(set, from.segment);

    if (!held && !ratelimit_trylock(&from.segment->lock, set->me)) {
        set->blocked = from.segment;
        set->blocked_table = older;
        return 0;
    }

    from.slot = NULL;

    if (ratelimit_migrate_has_keys(from.segment)) {
        (void) ratelimit_slot_find(&from, segment, period, older->kind.where);
    }

    done = from.slot ? ratelimit_migrate_move(&from, place, rule, set) : 1;

    if (from.slot && older->kind.drips) {

        /* a debt lives longer than the rule tells */

        ratelimit_migrate_outlive(place->active, older, set->me);
    }

    if (!held) {
        ratelimit_unlock(&from.segment->lock);
    }

    return done;
}


/*
 * Of a segment that is locked.  Pages of one without keys are not even read:
 * they may have no memory.
 */

static int
ratelimit_migrate_has_keys(const ratelimit_segment_t *segment)
{
    return segment->inserts != segment->removals;
}


/* written there before it is removed here: a dead process leaves it to find */

static int
ratelimit_migrate_move(ratelimit_place_t *from, ratelimit_place_t *to,
    const ratelimit_rule_t *rule, ratelimit_lockset_t *set)
{
    int                 allocated;
    uint64_t            refused;
    ratelimit_state_t  *state, *copy;
    ratelimit_table_t  *table;

    if (ratelimit_evict_expired(from->active, from->slot, set->clock->now)) {
        return 1;
    }

    /* it may be in the same lines */

    set->moving = from->slot;
    allocated = to->slot || ratelimit_slot_allocate(to, set);
    set->moving = NULL;

    if (!allocated) {
        return 0;
    }

    table = to->active;

    state = ratelimit_slot_state(from->active, &from->active->kind, from->slot,
                                 from->state);
    copy = ratelimit_slot_state(table, &table->kind, to->slot, to->state);

    table->algorithm->copy(&table->kind.shape, copy,
                           &from->active->kind.shape, state);

    ratelimit_slot_write(&table->kind, to->slot, copy);
    refused = ratelimit_slot_is_refused(from->segment, from->slot->id,
                                        set->clock->now);

    ratelimit_slot_use(to, rule, &table->kind, refused, set->clock->now,
                       set->me);

    if (refused) {
        ratelimit_slot_refuse(to, set->clock->now);
    }

    ratelimit_slot_remove(from->segment, from->slot);

    return 1;
}


/* the table that takes the counters, among those from the given one on */

static ratelimit_table_t *
ratelimit_migrate_heir(ratelimit_table_t *table,
    const ratelimit_table_t *older)
{
    uint64_t  serial;

    serial = __atomic_load_n(&older->header->heir, __ATOMIC_ACQUIRE);

    for ( /* void */ ; serial && table && table != older; table = table->older)
    {
        if (table->header->serial == serial) {
            return table;
        }
    }

    return NULL;
}


/*
 * A slot does not know the hash of its key, so it can't be moved to where the
 * key is looked for in another table: it goes to where its place was hashed to.
 */

static void
ratelimit_migrate_hash(const ratelimit_table_t *older, uint64_t segment,
    uint64_t fingerprint, ratelimit_hash_t *hash)
{
    uint64_t  place[3];

    place[0] = older->header->serial;
    place[1] = segment;
    place[2] = fingerprint;

    ratelimit_hash(&older->header->secret, place, sizeof(place), hash);
}


int
ratelimit_table_moved(const ratelimit_table_t *older)
{
    return __atomic_load_n(&older->header->moved, __ATOMIC_ACQUIRE)
           == (uint64_t) older->spread * older->nlines;
}


int
ratelimit_table_abandoned(ratelimit_table_t *table,
    const ratelimit_table_t *older)
{
    return ratelimit_table_moved(older)
           && (__atomic_load_n(&older->header->adopted, __ATOMIC_RELAXED) == 0
               || ratelimit_migrate_heir(table, older) == NULL);
}


void
ratelimit_table_forget(ratelimit_table_t *older)
{
    older->nsegments = 0;
}


int
ratelimit_table_take(ratelimit_table_t *table, size_t times,
    const ratelimit_clock_t *clock, uint32_t me)
{
    uint64_t            n, end, next, left, last;
    ratelimit_table_t  *heir, *older;

    if (table->older == NULL) {
        return 0;
    }

    last = __atomic_load_n(&table->header->took_at, __ATOMIC_RELAXED);

    if (clock->now - last < RATELIMIT_TAKE_TIME) {
        return 1;
    }

    older = ratelimit_migrate_begin(table, times, clock, me);

    if (older == NULL) {
        return 0;
    }

    heir = ratelimit_migrate_heir(table, older);

    if (heir == NULL) {
        return 0;
    }

    n = __atomic_load_n(&older->header->moved, __ATOMIC_ACQUIRE);
    end = (uint64_t) older->nsegments * older->nlines;

    if (n < end) {
        ratelimit_migrate_outlive(heir, older, me);

        left = RATELIMIT_TAKE_LINES;

        for (next = n; next < end && left; /* void */ ) {
            next = ratelimit_migrate_lines(heir, older, next, &left, clock,
                                           me);
        }

        /* what the heir had to evict */

        ratelimit_migrate_inherit(table);

        (void) __atomic_compare_exchange_n(&older->header->moved, &n, next, 0,
                                           __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }

    return 1;
}


/*
 * The table that is taken; NULL if none has to be.  Its heir is chosen under a
 * lock, so that it is none of which another process takes the counters.
 */

static ratelimit_table_t *
ratelimit_migrate_begin(ratelimit_table_t *table, size_t times,
    const ratelimit_clock_t *clock, uint32_t me)
{
    ratelimit_table_t  *older;

    (void) ratelimit_lock(&table->header->lock, me, table->lifelines);

    older = ratelimit_migrate_choose(table, times);

    if (older) {
        __atomic_store_n(&table->header->took_at, clock->now,
                         __ATOMIC_RELAXED);

        if (older->header->heir == 0) {
            __atomic_store_n(&older->header->heir,
                          ratelimit_migrate_elect(table, older)->header->serial,
                          __ATOMIC_RELEASE);
        }
    }

    ratelimit_unlock(&table->header->lock);

    return older;
}


/*
 * First one of which some was taken, then one that is empty, then one that is
 * too much beside all that are newer: so the rest is not too large when even
 * older ones are freed.  The newest counts before it is used.
 */

static ratelimit_table_t *
ratelimit_migrate_choose(ratelimit_table_t *table, size_t times)
{
    uint64_t            total, largest;
    ratelimit_table_t  *active, *older, *empty, *surplus;

    active = ratelimit_migrate_active(table);
    total = table->header->size;
    largest = total;
    empty = NULL;
    surplus = NULL;

    for (older = table->older; older; older = older->older) {

        if (!ratelimit_migrate_used(older, active)) {
            continue;
        }

        if (__atomic_load_n(&older->header->heir, __ATOMIC_RELAXED)) {
            return older;
        }

        if (older != active && ratelimit_table_own_entries(older) == 0) {
            empty = older;
            continue;
        }

        total += older->header->size;
        largest = ratelimit_max(largest, older->header->size);

        if (total > times * largest && surplus == NULL) {
            surplus = older;
        }
    }

    return empty ? empty : surplus;
}


/* those between the newest and the active one wait to be used */

static int
ratelimit_migrate_used(const ratelimit_table_t *older,
    const ratelimit_table_t *active)
{
    return older == active
           || (ratelimit_table_sealed(older) && !ratelimit_table_moved(older));
}


/* of newer ones that can hold its counters, or else of all, the roomiest */

static ratelimit_table_t *
ratelimit_migrate_elect(ratelimit_table_t *table,
    const ratelimit_table_t *older)
{
    int                 holds, best_holds;
    uint64_t            room, best_room;
    ratelimit_table_t  *active, *best;

    active = ratelimit_migrate_active(table);
    best = NULL;
    best_room = 0;
    best_holds = 0;

    for (table = active; table != older; table = table->older) {

        if (!ratelimit_migrate_used(table, active)) {
            continue;
        }

        room = ratelimit_sub(ratelimit_table_own_places(table),
                             ratelimit_table_own_entries(table));
        holds = ratelimit_migrate_holds(table, older);

        if (best == NULL || holds > best_holds
            || (holds == best_holds && room > best_room))
        {
            best = table;
            best_room = room;
            best_holds = holds;
        }
    }

    return best;
}


/* whether no counter of the older table is too large for a state of the heir */

static int
ratelimit_migrate_holds(const ratelimit_table_t *heir,
    const ratelimit_table_t *older)
{
    return (heir->kind.where != RATELIMIT_IN_WORD
            || older->kind.where == RATELIMIT_IN_WORD)
           && ratelimit_shape_most(&heir->kind.shape)
              >= ratelimit_shape_most(&older->kind.shape);
}


/* the heir is spent no earlier than what it has taken */

static void
ratelimit_migrate_outlive(ratelimit_table_t *heir,
    const ratelimit_table_t *older, uint32_t me)
{
    ratelimit_table_outlive(heir, __atomic_load_n(&older->header->horizon,
                                                  __ATOMIC_RELAXED),
                            me);
}


/* from the n'th line on; returns how many are done then */

static uint64_t
ratelimit_migrate_lines(ratelimit_table_t *heir, ratelimit_table_t *older,
    uint64_t n, uint64_t *left, const ratelimit_clock_t *clock, uint32_t me)
{
    uint32_t           k;
    uint64_t           end;
    ratelimit_slot_t  *line;
    ratelimit_place_t  from;

    end = (n / older->nlines + 1) * older->nlines;

    from.active = older;
    from.segment = &older->segments[n / older->nlines];

    ratelimit_lockset_wait(older, from.segment, me);

    if (ratelimit_migrate_has_keys(from.segment)) {
        end = ratelimit_min(end, n + ratelimit_min(*left,
                                                   RATELIMIT_TAKE_AT_ONCE));
        *left -= end - n;

        for ( /* void */ ; n < end; n++) {
            line = (ratelimit_slot_t *) ((unsigned char *) older->slots
                                         + n * older->line_size);

            for (k = 0; k < RATELIMIT_LINE_SLOTS; k++) {
                from.slot = &line[k];

                if (from.slot->id) {
                    ratelimit_migrate_adopt(heir, &from, clock, me);
                }
            }
        }
    }

    ratelimit_unlock(&from.segment->lock);

    return end;
}


/*
 * The process that holds a segment of the heir never waits for one of the older
 * table, so this one may wait for it.
 */

static void
ratelimit_migrate_adopt(ratelimit_table_t *heir, ratelimit_place_t *from,
    const ratelimit_clock_t *clock, uint32_t me)
{
    int                  done;
    uint64_t             segment, inserts;
    ratelimit_rule_t     rule;
    ratelimit_place_t    to;
    ratelimit_clock_t    now;
    ratelimit_lockset_t  set;

    now = *clock;

    ratelimit_lockset_init(&set, &to, 1, &now, me);

    ratelimit_migrate_rule(from, &rule);
    ratelimit_migrate_hash(from->active,
                           from->segment - from->active->segments,
                           from->slot->id & RATELIMIT_FINGERPRINT, &to.hash);

    segment = ratelimit_slot_segment(heir, &to.hash);
    ratelimit_slot_locate(heir, &to, segment, 0, heir->kind.where);

    (void) __atomic_fetch_add(&from->active->header->adopted, 1,
                              __ATOMIC_RELAXED);

    do {
        if (set.blocked) {
            ratelimit_lockset_wait(heir, set.blocked, me);
            ratelimit_unlock(&set.blocked->lock);
            set.blocked = NULL;
        }

        ratelimit_lockset_wait(heir, to.segment, me);
        ratelimit_lockset_tick(to.segment, &now);

        (void) ratelimit_slot_find(&to, segment, 0, heir->kind.where);

        inserts = to.segment->inserts;

        done = ratelimit_migrate_yield(from, &to, &set)
               || ratelimit_migrate_move(from, &to, &rule, &set);

        if (inserts != to.segment->inserts) {
            ratelimit_migrate_idle(&to);
        }

        ratelimit_unlock(&to.segment->lock);

    } while (!done);
}


/*
 * The key was not used since the older table was sealed: where there is no room
 * it is dropped, not one that the heir has seen, unless it is being refused.
 */

static int
ratelimit_migrate_yield(ratelimit_place_t *from, const ratelimit_place_t *to,
    ratelimit_lockset_t *set)
{
    int       worth;
    uint64_t  now;

    now = set->clock->now;

    if (to->slot
        || ratelimit_slot_is_refused(from->segment, from->slot->id, now)
        || ratelimit_evict_expired(from->active, from->slot, now))
    {
        return 0;
    }

    (void) ratelimit_evict_choose(to, set, &worth);

    if (worth <= RATELIMIT_TAKEN_WORTH || worth >= (int) RATELIMIT_REFUSED) {
        return 0;
    }

    ratelimit_table_count_eviction(to->active, to->segment, set);
    ratelimit_slot_remove(from->segment, from->slot);

    return 1;
}


/*
 * A key that was taken is not a new one, by which epochs are counted, and its
 * slot goes first when the heir needs room.
 */

static void
ratelimit_migrate_idle(const ratelimit_place_t *place)
{
    uint64_t              id, next;
    ratelimit_segment_t  *segment;

    segment = place->segment;

    __atomic_store_n(&segment->removals, segment->removals - 1,
                     __ATOMIC_RELAXED);
    __atomic_store_n(&segment->inserts, segment->inserts - 1,
                     __ATOMIC_RELEASE);

    id = place->slot->id;

    if (id & RATELIMIT_REFUSED) {
        return;
    }

    next = ratelimit_slot_epoch(place->active, segment) + 1;

    id &= ~RATELIMIT_USAGE_MASK;
    id |= (next + RATELIMIT_TAKEN_WORTH) & (RATELIMIT_EPOCHS - 1);

    __atomic_store_n(&place->slot->id, id, __ATOMIC_RELEASE);
}


/* as much of the rule as its class tells; without one it lives for long */

static void
ratelimit_migrate_rule(const ratelimit_place_t *from, ratelimit_rule_t *rule)
{
    ratelimit_class_t   class;
    ratelimit_table_t  *table;

    table = from->active;
    class = ratelimit_table_get_class(table,
                                      ratelimit_slot_class(from->slot->id));

    memset(rule, 0, sizeof(ratelimit_rule_t));

    rule->limit = class.period ? class.limit : 1;
    rule->period = class.period
                   ? class.period
                   : __atomic_load_n(&table->header->horizon,
                                     __ATOMIC_RELAXED);
    rule->ceiling = rule->limit;
}
