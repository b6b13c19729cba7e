
/*
 * How one table takes over from another, of another size or shape, while
 * processes that know only the older one still count in it.
 */


#include "table/ratelimit_table_slot.h"


static void ratelimit_migrate_inherit(uint64_t *heir, uint64_t n);
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


void
ratelimit_table_seal(ratelimit_table_t *table, uint64_t now)
{
    uint64_t            unsealed;
    ratelimit_table_t  *older;

    older = table->older;

    if (older == NULL) {
        return;
    }

    ratelimit_table_seal(older, now);

    /* all processes do this, some when the memory is dropped already */

    ratelimit_migrate_inherit(&table->header->inherited,
                              ratelimit_table_evictions(older));
    ratelimit_migrate_inherit(&table->header->dismissed,
                              ratelimit_table_dismissed(older));

    unsealed = 0;

    (void) __atomic_compare_exchange_n(&older->header->sealed, &unsealed,
                                       now ? now : 1, 0, __ATOMIC_SEQ_CST,
                                       __ATOMIC_RELAXED);
}


static void
ratelimit_migrate_inherit(uint64_t *heir, uint64_t n)
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


/* since it was sealed no process has charged there */

int
ratelimit_table_spent(const ratelimit_table_t *older, uint64_t now)
{
    uint64_t  sealed, horizon;

    sealed = __atomic_load_n(&older->header->sealed, __ATOMIC_SEQ_CST);
    horizon = __atomic_load_n(&older->header->horizon, __ATOMIC_RELAXED);

    return sealed && now >= sealed + horizon;
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
    int                 done;
    uint64_t            segment;
    ratelimit_place_t   from;
    ratelimit_table_t  *older;

    for (older = place->active->older; older; older = older->older) {
        from = *place;

        segment = ratelimit_slot_segment(older, &from.hash);

        ratelimit_slot_locate(older, &from, segment, rule->period,
                              older->kind.where);

        if (!ratelimit_trylock(&from.segment->lock, set->me)) {
            set->blocked = from.segment;
            set->blocked_table = older;
            return 0;
        }

        (void) ratelimit_slot_find(&from, segment, rule->period,
                                   older->kind.where);

        done = from.slot ? ratelimit_migrate_move(&from, place, rule, set) : 1;

        ratelimit_unlock(&from.segment->lock);

        if (!done || place->slot) {
            return done;
        }
    }

    return 1;
}


/* written there before it is removed here: a dead process leaves it to find */

static int
ratelimit_migrate_move(ratelimit_place_t *from, ratelimit_place_t *to,
    const ratelimit_rule_t *rule, ratelimit_lockset_t *set)
{
    ratelimit_state_t  *state, *copy;
    ratelimit_table_t  *table;

    if (ratelimit_evict_expired(from->active, from->slot, set->clock->now)) {
        return 1;
    }

    if (!ratelimit_slot_allocate(to, set)) {
        return 0;
    }

    table = to->active;

    state = ratelimit_slot_state(from->active, &from->active->kind, from->slot,
                                 from->state);
    copy = ratelimit_slot_state(table, &table->kind, to->slot, to->state);

    table->algorithm->copy(&table->kind.shape, copy,
                           &from->active->kind.shape, state);

    ratelimit_slot_write(&table->kind, to->slot, copy);
    ratelimit_slot_use(to, rule, &table->kind,
                       from->slot->id & RATELIMIT_REFUSED, set->clock->now,
                       set->me);

    ratelimit_slot_remove(from->segment, from->slot);

    return 1;
}
