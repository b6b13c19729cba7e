
/*
 * A table without room: whose block is taken when a decision needs several, and
 * what can be taken because nobody needs it.  Two counters in one block would
 * look like clients that count for one another.
 */


#include "fleet.h"


#define SIZE  (1 << 16)
#define KEYS  5000


static void full_two_new(ratelimit_algorithm_e algorithm, uint32_t buckets);


/* a key that takes two blocks takes two different ones */

static void
full_two_new(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    fleet_t           f;
    uint64_t          key;
    unsigned          wrong;
    ratelimit_item_t  items[FLEET_LIMITS];

    memset(&f, 0, sizeof(fleet_t));
    f.n = 2;
    f.rules[0] = fleet_rule(20, 60);
    f.rules[1] = fleet_rule(30, 3600);

    fleet_open(&f, SIZE, algorithm, buckets);

    wrong = 0;

    for (key = 0; key < KEYS; key++) {
        (void) fleet_ask(&f, key, 1, items);
        (void) fleet_ask(&f, key, 0, items);

        wrong += (items[0].verdict.remaining != 19
                  || items[1].verdict.remaining != 29);
    }

    tap_ok(wrong == 0 && ratelimit_table_evicted(&f.table) > KEYS,
           "%s buckets=%u: two limits of %d new keys, %u counted wrongly",
           ratelimit_algorithms[algorithm]->name, buckets, KEYS, wrong);
}


int
main(void)
{
    (void) alarm(60);   /* a hang is a failure */

    full_two_new(RATELIMIT_SLIDING_LOG, 0);
    full_two_new(RATELIMIT_SLIDING_WINDOW, 60);

    return tap_done();
}
