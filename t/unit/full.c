
/*
 * A table without room: whose block is taken when a decision needs several, and
 * what can be taken because no key needs it.  Two counters in one block would
 * look like clients that count for one another.
 */


#include "table/ratelimit_table_slot.h"

#include "fleet.h"


#define SIZE  (1 << 16)
#define KEYS  5000


static void full_two_new(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void full_given_back(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void full_old_offenders(ratelimit_algorithm_e algorithm,
    uint32_t buckets, uint64_t keys, unsigned minutes, unsigned others);
static void full_offenders(ratelimit_algorithm_e algorithm, uint32_t buckets);
static uint64_t full_segment(const fleet_t *f, uint64_t key);
static void full_hold(fleet_t *f, int number, void *data);
static void full_dead_holder(void);


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

    tap_ok(wrong == 0 && ratelimit_table_evictions(&f.table) > KEYS,
           "%s buckets=%u: two limits of %d new keys, %u counted wrongly",
           ratelimit_algorithms[algorithm]->name, buckets, KEYS, wrong);
}


/* a counter of which all was refunded is as good as none */

static void
full_given_back(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    fleet_t            f;
    uint64_t           key;
    ratelimit_item_t   item;
    ratelimit_place_t  place;
    ratelimit_clock_t  clock;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(20, 3600);

    fleet_open(&f, SIZE, algorithm, buckets);

    item.rule = &f.rules[0];
    item.cost = 1;
    item.count_rejected = 0;
    place.table = &f.table;
    fleet_clock(&f, &clock);

    for (key = 0; key < KEYS; key++) {
        fleet_hash(&f, key, &place.hash);

        (void) ratelimit_table_decide(&item, &place, 1, &clock, f.me);
        ratelimit_table_refund(&item, &place, 1, &clock, f.me);
    }

    tap_ok(ratelimit_table_evictions(&f.table) == 0,
           "%s buckets=%u: %d keys that were refunded, %u dropped",
           ratelimit_algorithms[algorithm]->name, buckets, KEYS,
           (unsigned) ratelimit_table_evictions(&f.table));
}


/*
 * A zone full of keys that were refused so many minutes ago, and since then
 * other ones, if any: keys that come now and are used again do not go for one
 * another, and to find room is no long search.
 */

static void
full_old_offenders(ratelimit_algorithm_e algorithm, uint32_t buckets,
    uint64_t keys, unsigned minutes, unsigned others)
{
    fleet_t           f;
    uint32_t          hand;
    uint64_t          key;
    unsigned          minute;
    unsigned          lost, looks;
    ratelimit_item_t  items[FLEET_LIMITS];

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(2, 86400);

    fleet_open(&f, 16 * SIZE, algorithm, buckets);

    for (key = 0; ratelimit_table_evictions(&f.table) < KEYS; key++) {
        while (fleet_hit(&f, key)) { /* void */ }
        f.now += 1000;
    }

    for (minute = 0; minute < minutes; minute++) {
        f.now += 60 * RATELIMIT_SECOND;

        for (key = 0; key < others; key++) {
            while (fleet_hit(&f, (1 << 29) + key)) { /* void */ }
        }
    }

    hand = f.table.header->hand;
    lost = 0;

    for (key = 0; key < keys; key++) {
        (void) fleet_hit(&f, (1 << 30) + key);
    }

    looks = (f.table.header->hand - hand) / keys;

    for (key = 0; key < keys; key++) {
        (void) fleet_ask(&f, (1 << 30) + key, 0, items);
        lost += (items[0].verdict.remaining != 1);
    }

    tap_ok(lost * 100 <= keys && looks <= 16,
           "%s buckets=%u: of %u new keys %u go for one another while "
           "offenders of %u minutes ago stay, %u blocks looked at for each",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) keys,
           lost, minutes, looks);
}


/* while all are being refused, a new key finds room without a long search */

static void
full_offenders(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    fleet_t   f;
    uint32_t  hand;
    uint64_t  key, keys;
    unsigned  denied, looks;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(2, 86400);

    fleet_open(&f, 4 * SIZE, algorithm, buckets);

    for (key = 0; ratelimit_table_evictions(&f.table) == 0; key++) {
        while (fleet_hit(&f, key)) { /* void */ }
    }

    hand = f.table.header->hand;
    denied = 0;

    for (keys = 1; keys <= 1000; keys++) {
        denied += !fleet_hit(&f, key + keys);
        while (fleet_hit(&f, key + keys)) { /* void */ }
    }

    looks = (f.table.header->hand - hand) / 1000;

    tap_ok(denied == 0 && looks <= 40,
           "%s buckets=%u: %u blocks are looked at for a new key among "
           "offenders", ratelimit_algorithms[algorithm]->name, buckets, looks);
}


static uint64_t
full_segment(const fleet_t *f, uint64_t key)
{
    ratelimit_hash_t  hash;

    fleet_hash(f, key, &hash);

    return ratelimit_slot_segment(&f->table, &hash);
}


/* a process dies that holds all segments but the first */

static void
full_hold(fleet_t *f, int number, void *data)
{
    uint32_t  i;

    (void) number;
    (void) data;

    for (i = 1; i < f->table.nsegments; i++) {
        ratelimit_lock(&f->table.segments[i].lock, f->me, f->lifelines);
    }

    raise(SIGKILL);
}


/* all blocks are held by dead processes: these are taken over */

static void
full_dead_holder(void)
{
    fleet_t   f;
    uint64_t  key;

    memset(&f, 0, sizeof(fleet_t));
    f.n = 1;
    f.rules[0] = fleet_rule(20, 3600);

    fleet_open(&f, 8 * SIZE, RATELIMIT_SLIDING_LOG, 0);

    for (key = 0; key < 4 * KEYS; key++) {
        if (full_segment(&f, key)) {
            (void) fleet_hit(&f, key);
        }
    }

    (void) fleet_wait(fleet_fork(&f, full_hold, 0, NULL));

    for (key = 0; full_segment(&f, key); key++) { /* void */ }

    tap_ok(!ratelimit_block_fresh(&f.table) && fleet_hit(&f, key),
           "a block is taken from a segment that a dead process holds");
}


int
main(void)
{
    unsigned  i;

    (void) alarm(600);   /* a hang is a failure */

    full_two_new(RATELIMIT_SLIDING_LOG, 0);
    full_two_new(RATELIMIT_SLIDING_WINDOW, 60);

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        full_given_back(i, fleet_buckets(i));
    }

    full_given_back(RATELIMIT_SLIDING_WINDOW, 1);
    full_given_back(RATELIMIT_SLIDING_WINDOW, 60);

    full_old_offenders(RATELIMIT_FIXED_WINDOW, 0, 20000, 25, 0);
    full_old_offenders(RATELIMIT_SLIDING_WINDOW, 1, 20000, 25, 0);
    full_old_offenders(RATELIMIT_SLIDING_WINDOW, 10, 8000, 25, 0);
    full_old_offenders(RATELIMIT_SLIDING_WINDOW, 60, 3000, 25, 0);
    full_old_offenders(RATELIMIT_SLIDING_LOG, 0, 4000, 25, 0);
    full_old_offenders(RATELIMIT_TOKEN_BUCKET, 0, 20000, 25, 0);

    /* the minutes of marks begin again every 36 minutes */

    for (i = 35; i < 38; i++) {
        full_old_offenders(RATELIMIT_FIXED_WINDOW, 0, 20000, i, 0);
        full_old_offenders(RATELIMIT_FIXED_WINDOW, 0, 20000, i, 500);
        full_old_offenders(RATELIMIT_SLIDING_WINDOW, 60, 3000, i, 0);
        full_old_offenders(RATELIMIT_SLIDING_WINDOW, 60, 2500, i, 500);
    }

    full_offenders(RATELIMIT_SLIDING_WINDOW, 10);
    full_offenders(RATELIMIT_SLIDING_WINDOW, 60);

    full_dead_holder();

    return tap_done();
}
