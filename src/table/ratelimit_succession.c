
/*
 * How one table takes over from another, of another size or shape, while
 * processes that know only the older one still count in it.
 */


#include "table/ratelimit_slot.h"


static int ratelimit_table_move(ratelimit_place_t *from, ratelimit_place_t *to,
    const ratelimit_rule_t *rule, const ratelimit_party_t *party);


ratelimit_table_t *
ratelimit_table_oldest(ratelimit_table_t *table)
{
    while (table->older && !ratelimit_table_sealed(table->older)) {
        table = table->older;
    }

    return table;
}


void
ratelimit_table_seal(ratelimit_table_t *older, uint64_t now)
{
    uint64_t  unsealed;

    if (older->older) {
        ratelimit_table_seal(older->older, now);
    }

    unsealed = 0;

    (void) __atomic_compare_exchange_n(&older->header->sealed, &unsealed,
                                       now ? now : 1, 0, __ATOMIC_SEQ_CST,
                                       __ATOMIC_RELAXED);
}


int
ratelimit_table_sealed(const ratelimit_table_t *older)
{
    return __atomic_load_n(&older->header->sealed, __ATOMIC_SEQ_CST) != 0;
}


/* since it was sealed nobody has charged there */

int
ratelimit_table_spent(const ratelimit_table_t *older, uint64_t now)
{
    uint64_t  sealed;

    sealed = __atomic_load_n(&older->header->sealed, __ATOMIC_SEQ_CST);

    return sealed && now >= sealed + older->header->horizon;
}


void
ratelimit_table_restrain(ratelimit_item_t *item, ratelimit_place_t *place)
{
    uint64_t  most;

    most = ratelimit_slot_most(place->active, item->rule);

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
 * The party holds the place's segment, and whoever holds one of the older
 * table may wait for it: so it is only tried.
 */

int
ratelimit_table_adopt(ratelimit_place_t *place, const ratelimit_rule_t *rule,
    const ratelimit_party_t *party)
{
    int                 done;
    ratelimit_place_t   from;
    ratelimit_table_t  *older;

    for (older = place->active->older; older; older = older->older) {
        from = *place;

        ratelimit_slot_place(older, &from, rule->period);

        if (!ratelimit_trylock(&from.segment->lock, party->me)) {
            place->blocked = from.segment;
            return 0;
        }

        from.slot = ratelimit_slot_find(&from);

        done = from.slot ? ratelimit_table_move(&from, place, rule, party) : 1;

        ratelimit_unlock(&from.segment->lock);

        if (!done || place->slot) {
            return done;
        }
    }

    return 1;
}


/* written there before it is taken from here: whoever dies leaves it to find */

static int
ratelimit_table_move(ratelimit_place_t *from, ratelimit_place_t *to,
    const ratelimit_rule_t *rule, const ratelimit_party_t *party)
{
    ratelimit_state_t  *state, *copy;

    if (ratelimit_slot_expired(from->active, from->slot, party->clock.now)) {
        return 1;
    }

    if (!ratelimit_slot_reserve(to, party)) {
        return 0;
    }

    state = ratelimit_slot_state(from->active, from->slot, from->state);
    copy = ratelimit_slot_state(to->active, to->slot, to->state);

    to->active->algorithm->copy(&to->active->shape, copy,
                                &from->active->shape, state);

    if (to->active->small) {
        ratelimit_slot_pack(to->active->shape.algorithm, to->slot, copy);
    }

    ratelimit_slot_name(to, ratelimit_table_class_of(to, rule, party->me),
                        from->slot->id & RATELIMIT_REFUSED);

    __atomic_store_n(&from->slot->id, 0, __ATOMIC_RELEASE);

    return 1;
}
