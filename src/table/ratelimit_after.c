
/*
 * What may come after a decision: verdicts are explained, charges are given
 * back.
 */


#include "table/ratelimit_party.h"


void
ratelimit_table_explain(ratelimit_item_t *items,
    const ratelimit_place_t *places, size_t n)
{
    size_t                    i;
    ratelimit_verdict_t      *verdict;
    const ratelimit_place_t  *place;

    for (i = 0; i < n; i++) {
        place = &places[i];
        verdict = &items[i].verdict;

        if (!verdict->brief) {
            continue;
        }

        place->active->algorithm->describe(items[i].shape, items[i].rule,
                                           place->state, &place->clock,
                                           place->asked, verdict);
        verdict->brief = 0;
    }
}


void
ratelimit_table_refund(ratelimit_item_t *items, ratelimit_place_t *places,
    size_t n, const ratelimit_clock_t *clock, uint32_t me)
{
    size_t              i;
    ratelimit_table_t  *table;
    ratelimit_party_t   party;
    ratelimit_state_t  *state;

    party.places = places;
    party.n = n;
    party.clock = *clock;
    party.me = me;
    party.brief = 0;

    ratelimit_party_place(items, places, n);
    ratelimit_party_lock(items, &party);

    for (i = 0; i < n; i++) {

        if (places[i].slot == NULL || items[i].cost == 0) {
            continue;
        }

        table = places[i].active;
        state = ratelimit_slot_state(table, places[i].slot, places[i].state);

        table->algorithm->refund(&table->shape, items[i].rule, state,
                                 &party.clock, items[i].verdict.stamp,
                                 items[i].cost);

        if (table->small) {
            ratelimit_slot_pack(table->shape.algorithm, places[i].slot, state);
        }
    }

    ratelimit_party_unlock(places, n);
}
