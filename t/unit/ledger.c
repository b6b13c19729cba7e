
/*
 * The ledger of write-back: what may be charged, what is in which batch, and
 * that no delta is lost or counted twice when processes that charge or report
 * are killed.
 */


/* no sanitizer */

#include <time.h>

#include "fleet.h"
#include "redis/ratelimit_ledger.h"


#define INTERVAL   (100000ULL)
#define NOW        (5000 * RATELIMIT_SECOND)
#define KEYS       300
#define PROCESSES  4


/*
 * A Redis: for each counter the number of the last batch, 40 bits, and what was
 * counted, 24 bits
 */

typedef struct {
    uint64_t                        redis[KEYS];
    uint64_t                        charged[KEYS];
    uint64_t                        work;
    uint32_t                        stop;
} ledger_world_t;


typedef struct {
    unsigned                        n;
    unsigned                        most;
    ratelimit_ledger_copy_t         last;
} ledger_taken_t;


static ratelimit_ledger_t  ledger;
static fleet_t             fleet;
static ratelimit_rule_t    rule;


static void ledger_make(ratelimit_algorithm_e algorithm, uint32_t buckets,
    size_t size);
static ratelimit_ledger_id_t ledger_id(uint64_t key);
static ratelimit_ledger_name_t ledger_name(uint64_t key);
static void ledger_grant(uint64_t key, uint64_t lease, uint64_t standing,
    uint64_t share, uint64_t asked);
static void ledger_counted(const ratelimit_ledger_copy_t *copy,
    uint64_t lease);
static int ledger_charge(uint64_t key, uint64_t stamp, uint64_t now);
static int ledger_take(void *data, const ratelimit_ledger_copy_t *copy);
static unsigned ledger_cut(ledger_taken_t *taken, uint64_t now,
    uint64_t again);
static void ledger_bounds(void);
static void ledger_batches(void);
static void ledger_late(void);
static void ledger_stamps(void);
static void ledger_times(void);
static void ledger_costs(void);
static void ledger_order(void);
static void ledger_full(void);
static void ledger_merged(void);
static void ledger_client(fleet_t *f, int number, void *data);
static int ledger_report(void *data, const ratelimit_ledger_copy_t *copy);
static void ledger_reporter(fleet_t *f, int number, void *data);
static void ledger_kill(int victims);


static void
ledger_make(ratelimit_algorithm_e algorithm, uint32_t buckets, size_t size)
{
    memset(&fleet, 0, sizeof(fleet_t));

    fleet.n = 1;
    fleet.rules[0] = fleet_rule(1000, 3600);
    fleet_open(&fleet, 1 << 20, algorithm, buckets);

    rule = fleet.rules[0];

    if (!ratelimit_ledger_open(&ledger, fleet_memory(size), size, &fleet.shape,
                               INTERVAL, 42, fleet.lifelines))
    {
        fprintf(stderr, "the ledger does not open\n");
        exit(2);
    }
}


static ratelimit_ledger_id_t
ledger_id(uint64_t key)
{
    ratelimit_ledger_id_t  id;

    fleet_hash(&fleet, key, &id.hash);
    id.rule = &rule;

    return id;
}


/* the number of the key is in it; they differ in length */

static ratelimit_ledger_name_t
ledger_name(uint64_t key)
{
    ratelimit_ledger_name_t  name;

    static unsigned char  bytes[4096];

    memset(bytes, 'x', sizeof(bytes));
    memcpy(bytes, &key, sizeof(uint64_t));

    name.data = bytes;
    name.len = sizeof(uint64_t) + key % 200;

    return name;
}


static void
ledger_grant(uint64_t key, uint64_t lease, uint64_t standing, uint64_t share,
    uint64_t asked)
{
    ratelimit_grant_t        grant = { lease, standing, share, 1, 0, NULL,
                                         0 };
    ratelimit_answer_t       answer = { 0, 0, asked, 1, &grant };
    ratelimit_ledger_id_t    id = ledger_id(key);
    ratelimit_ledger_copy_t  copy;
    ratelimit_ledger_name_t  name = ledger_name(key);

    (void) ratelimit_ledger_ask(&ledger, &id, asked, &copy, fleet.me);

    answer.number = copy.number;
    answer.spent = copy.spent;

    ratelimit_ledger_answer(&ledger, &id, &name, &answer, &copy, fleet.me);
}


static void
ledger_counted(const ratelimit_ledger_copy_t *copy, uint64_t lease)
{
    ratelimit_grant_t        grant = { lease, lease, lease, 1, 0, NULL, 0 };
    ratelimit_answer_t       answer = { copy->number, 0, NOW, 0, &grant };
    ratelimit_ledger_id_t    id;
    ratelimit_ledger_copy_t  after;

    id.hash = copy->hash;
    id.rule = &copy->rule;

    ratelimit_ledger_answer(&ledger, &id, NULL, &answer, &after, fleet.me);
}


static int
ledger_charge(uint64_t key, uint64_t stamp, uint64_t now)
{
    ratelimit_ledger_id_t  id = ledger_id(key);

    return ratelimit_ledger_charge(&ledger, &id, 1, stamp, now,
                                   RATELIMIT_LEDGER_LEASE, fleet.me);
}


static int
ledger_take(void *data, const ratelimit_ledger_copy_t *copy)
{
    ledger_taken_t  *taken = data;

    taken->last = *copy;
    taken->n++;

    return taken->most == 0 || taken->n < taken->most;
}


static unsigned
ledger_cut(ledger_taken_t *taken, uint64_t now, uint64_t again)
{
    uint32_t  cursor;

    cursor = 0;
    taken->n = 0;

    (void) ratelimit_ledger_batch(&ledger, &cursor, now, again, ledger_take,
                                  taken, fleet.me);

    return taken->n;
}


static void
ledger_bounds(void)
{
    int                    good;
    ratelimit_rule_t       other;
    ratelimit_ledger_id_t  id;

    ledger_make(RATELIMIT_FIXED_WINDOW, 0, 1 << 20);

    id = ledger_id(1);

    tap_ok(!ratelimit_ledger_affords(&ledger, &id, 1, NOW, fleet.me)
           && !ledger_charge(1, 100, NOW), "no account, no charge");

    ledger_grant(1, 3, 1, 5, NOW);

    tap_ok(ratelimit_ledger_affords(&ledger, &id, 3, NOW, fleet.me)
           && !ratelimit_ledger_affords(&ledger, &id, 4, NOW, fleet.me),
           "a lease bounds a cost");

    good = ledger_charge(1, 100, NOW) && ledger_charge(1, 100, NOW)
           && ledger_charge(1, 100, NOW) && !ledger_charge(1, 100, NOW);

    tap_ok(good, "three charges for a lease of three");

    good = ratelimit_ledger_charge(&ledger, &id, 2, 100, NOW,
                                   RATELIMIT_LEDGER_SHARE, fleet.me)
           && !ratelimit_ledger_charge(&ledger, &id, 1, 100, NOW,
                                       RATELIMIT_LEDGER_SHARE, fleet.me);

    tap_ok(good, "two more of the share");

    ledger_grant(1, 10, 2, 10, NOW);

    other = rule;
    other.ceiling = 500;
    id.rule = &other;

    tap_ok(!ratelimit_ledger_affords(&ledger, &id, 1, NOW, fleet.me),
           "a lease is that of one ceiling");

    good = ledger_charge(1, 100, NOW + INTERVAL)
           && ledger_charge(1, 100, NOW + 3 * INTERVAL)
           && !ledger_charge(1, 100, NOW + 3 * INTERVAL)
           && ledger_charge(1, 100, NOW + INTERVAL);

    tap_ok(good, "long after the exchange the standing lease bounds");

    ledger_grant(1, 10, 10, 10, NOW);

    tap_ok(ledger_charge(1, 100, NOW + 59 * RATELIMIT_SECOND)
           && !ledger_charge(1, 100, NOW + 60 * RATELIMIT_SECOND),
           "a standing lease ends");
}


static void
ledger_batches(void)
{
    ledger_taken_t         taken;
    ratelimit_ledger_id_t  id;

    memset(&taken, 0, sizeof(ledger_taken_t));

    ledger_make(RATELIMIT_FIXED_WINDOW, 0, 1 << 20);
    ledger_grant(1, 100, 100, 100, NOW);

    tap_ok(ratelimit_ledger_clean(&ledger) && ledger_cut(&taken, NOW, 0) == 0,
           "nothing to report");

    (void) ledger_charge(1, 100, NOW);
    (void) ledger_charge(1, 100, NOW);

    tap_ok(!ratelimit_ledger_clean(&ledger) && ledger_cut(&taken, NOW, 0) == 1
           && taken.last.number == 1 && taken.last.nbatch == 1
           && taken.last.batch[0].added == 2 && taken.last.nopen == 0
           && taken.last.name.len == ledger_name(1).len,
           "two charges are a batch");

    (void) ledger_charge(1, 100, NOW);

    tap_ok(ledger_cut(&taken, NOW, NOW) == 0,
           "while it is under way there is no other");

    tap_ok(ledger_cut(&taken, NOW + 1, NOW + 1) == 1
           && taken.last.number == 1 && taken.last.batch[0].added == 2
           && taken.last.nopen == 1 && taken.last.open[0].added == 1,
           "the same batch is sent again");

    ledger_counted(&taken.last, 5);

    id = ledger_id(1);

    tap_ok(ratelimit_ledger_affords(&ledger, &id, 4, NOW, fleet.me)
           && !ratelimit_ledger_affords(&ledger, &id, 5, NOW, fleet.me),
           "the new lease begins with the batch");

    ledger_counted(&taken.last, 5);

    tap_ok(ratelimit_ledger_refund(&ledger, &id, 1, 100, NOW, fleet.me)
           && ratelimit_ledger_refund(&ledger, &id, 1, 90, NOW, fleet.me)
           && ledger_cut(&taken, NOW + 2, 0) == 1 && taken.last.number == 2
           && taken.last.nbatch == 2 && taken.last.batch[0].added == 1
           && taken.last.batch[0].refunded == 1
           && taken.last.batch[1].stamp == 90
           && taken.last.batch[1].refunded == 1,
           "refunds are apart from charges, also of a batch before");

    ledger_counted(&taken.last, 5);
    (void) ledger_cut(&taken, NOW + 3, 0);

    tap_ok(ratelimit_ledger_clean(&ledger), "all is counted");

    id = ledger_id(2);

    tap_ok(!ratelimit_ledger_refund(&ledger, &id, 1, 100, NOW, fleet.me),
           "without an account there is nothing to refund here");
}


/* an exchange is answered after a question that had the same batch */

static void
ledger_late(void)
{
    unsigned               i;
    ledger_taken_t         taken, late;
    ratelimit_ledger_id_t  id;

    memset(&taken, 0, sizeof(ledger_taken_t));

    ledger_make(RATELIMIT_FIXED_WINDOW, 0, 1 << 20);
    ledger_grant(1, 10, 10, 10, NOW);

    (void) ledger_charge(1, 100, NOW);
    (void) ledger_cut(&taken, NOW, 0);

    late = taken;

    ledger_grant(1, 10, 10, 10, NOW);

    for (i = 0; i < 4; i++) {
        (void) ledger_charge(1, 100, NOW);
    }

    tap_ok(ledger_cut(&taken, NOW, 0) == 1
           && taken.last.number == late.last.number + 1, "the next batch");

    ledger_counted(&late.last, 10);

    id = ledger_id(1);

    tap_ok(ratelimit_ledger_affords(&ledger, &id, 6, NOW, fleet.me)
           && !ratelimit_ledger_affords(&ledger, &id, 7, NOW, fleet.me),
           "an answer that is late gives no lease");
}


/* of windows the oldest is past; times of a bucket are folded */

static void
ledger_stamps(void)
{
    int             i, good;
    ledger_taken_t  taken;

    memset(&taken, 0, sizeof(ledger_taken_t));

    ledger_make(RATELIMIT_SLIDING_WINDOW, 10, 1 << 20);
    ledger_grant(1, 1000, 1000, 1000, NOW);

    for (i = 0; i < 100; i++) {
        (void) ledger_charge(1, 500 + i / 2, NOW);
    }

    (void) ledger_cut(&taken, NOW, 0);

    good = (taken.last.nbatch == 13);

    for (i = 0; i < 13; i++) {
        good &= (taken.last.batch[i].stamp >= 537
                 && taken.last.batch[i].added == 2);
    }

    tap_ok(good, "as many sub-windows as count, and two more");

    ledger_make(RATELIMIT_TOKEN_BUCKET, 0, 1 << 20);
    ledger_grant(1, 1000, 1000, 1000, NOW);

    for (i = 0; i < 100; i++) {
        (void) ledger_charge(1, NOW + i * 1000, NOW);
    }

    (void) ledger_charge(1, NOW + 99000 + INTERVAL, NOW);
    (void) ledger_cut(&taken, NOW, 0);

    tap_ok(taken.last.nbatch == 2 && taken.last.batch[0].stamp == NOW + 99000
           && taken.last.batch[0].added == 100
           && taken.last.batch[1].added == 1,
           "what a bucket gave at about one time is one delta");
}


/* times of a log are kept, and folded when the list is full */

static void
ledger_times(void)
{
    int                     i, good;
    uint64_t                last;
    ledger_taken_t          taken;
    ratelimit_delta_t      *delta;
    ratelimit_ledger_id_t   id;

    memset(&taken, 0, sizeof(ledger_taken_t));

    ledger_make(RATELIMIT_SLIDING_LOG, 0, 1 << 20);
    ledger_grant(1, 1000, 1000, 1000, NOW);

    good = 0;

    for (i = 0; i < 2 * RATELIMIT_LEDGER_DELTAS; i++) {
        good += ledger_charge(1, NOW + i * 1000, NOW);
    }

    tap_ok(good == RATELIMIT_LEDGER_DELTAS,
           "a log keeps each time, as long as there is room");

    id = ledger_id(1);
    last = NOW + (i - 1) * 1000;

    good = ratelimit_ledger_charge(&ledger, &id, 5, last, NOW,
                                   RATELIMIT_LEDGER_SHARE, fleet.me)
           && ratelimit_ledger_refund(&ledger, &id, 2, last - 1000, NOW,
                                      fleet.me)
           && !ratelimit_ledger_refund(&ledger, &id, 1, RATELIMIT_LATEST, NOW,
                                       fleet.me);

    (void) ledger_cut(&taken, NOW, 0);

    delta = &taken.last.batch[RATELIMIT_LEDGER_DELTAS - 1];

    tap_ok(good && taken.last.nbatch == RATELIMIT_LEDGER_DELTAS
           && delta->stamp == last && delta->added == 6
           && delta->refunded == 2
           && delta[-1].stamp == NOW + (RATELIMIT_LEDGER_DELTAS - 2) * 1000,
           "then its last time takes what Redis can't be asked about");
}


/* far more is reserved and refunded than counts in the end */

static void
ledger_costs(void)
{
    int                    i, good;
    ledger_taken_t         taken;
    ratelimit_delta_t     *delta;
    ratelimit_ledger_id_t  id = ledger_id(1);

    memset(&taken, 0, sizeof(ledger_taken_t));

    ledger_make(RATELIMIT_FIXED_WINDOW, 0, 1 << 20);
    ledger_grant(1, 1ULL << 32, 1, 1, NOW);

    good = 1;

    for (i = 0; i < 20; i++) {
        good &= ratelimit_ledger_charge(&ledger, &id, 1 << 30, 500, NOW,
                                        RATELIMIT_LEDGER_LEASE, fleet.me);
        good &= ratelimit_ledger_refund(&ledger, &id, (1 << 30) - 3, 500, NOW,
                                        fleet.me);
    }

    (void) ledger_cut(&taken, NOW, 0);

    delta = taken.last.batch;

    tap_ok(good && taken.last.nbatch == 1
           && delta->added - delta->refunded == 60,
           "what was refunded leaves room for more");
}


/* Redis refunds no more than was taken from the bucket so far */

static void
ledger_order(void)
{
    ledger_taken_t         taken;
    ratelimit_ledger_id_t  id = ledger_id(1);

    memset(&taken, 0, sizeof(ledger_taken_t));

    ledger_make(RATELIMIT_TOKEN_BUCKET, 0, 1 << 20);
    ledger_grant(1, 100, 100, 100, NOW);

    (void) ratelimit_ledger_refund(&ledger, &id, 1, NOW, NOW, fleet.me);
    (void) ledger_charge(1, NOW + INTERVAL, NOW);
    (void) ratelimit_ledger_refund(&ledger, &id, 1, NOW, NOW, fleet.me);

    (void) ledger_cut(&taken, NOW, 0);

    tap_ok(taken.last.nbatch == 2 && taken.last.batch[0].added == 1
           && taken.last.batch[1].refunded == 2,
           "what a bucket got back comes after what was taken");
}


static void
ledger_full(void)
{
    unsigned                    i, noted, again;
    ledger_taken_t              taken;
    ratelimit_ledger_id_t       id;
    ratelimit_ledger_name_t     name;
    ratelimit_ledger_figures_t  figures;

    memset(&taken, 0, sizeof(ledger_taken_t));

    ledger_make(RATELIMIT_FIXED_WINDOW, 0, 256 << 10);

    for (i = 0; i < 5000; i++) {
        ledger_grant(i, 10, 10, 10, NOW + i);
    }

    tap_ok(ledger_charge(4999, 100, NOW), "a new lease takes an idle one's "
           "place");

    noted = 0;

    for (i = 0; i < 5000; i++) {
        id = ledger_id(i);
        name = ledger_name(i);
        noted += ratelimit_ledger_debit(&ledger, &id, &name, 1, 100, NOW,
                                        fleet.me);
    }

    ratelimit_ledger_figures(&ledger, &figures, fleet.me);

    tap_ok(noted > 500 && noted < 2000 && figures.pending == noted
           && figures.oldest == NOW,
           "%u of 5000 deltas find room in 256k", noted);

    tap_ok(ledger_cut(&taken, NOW, 0) == noted, "all of these are reported");

    again = 0;

    for (i = 0; i < 5000; i++) {
        id = ledger_id(i);

        if (ratelimit_ledger_ask(&ledger, &id, NOW, &taken.last, fleet.me)) {
            ledger_counted(&taken.last, 1);
            again++;
        }
    }

    tap_ok(again == noted, "and found again");

    (void) ledger_cut(&taken, NOW, 0);

    tap_ok(ratelimit_ledger_clean(&ledger), "and counted");

    id = ledger_id(7);
    name = ledger_name(7);
    name.len = 1 << 20;

    tap_ok(!ratelimit_ledger_debit(&ledger, &id, &name, 1, 100, NOW, fleet.me)
           || ratelimit_ledger_ask(&ledger, &id, NOW, &taken.last, fleet.me),
           "a name that is longer than a segment finds none");
}


/* some charge, each of its own luck */

static void
ledger_client(fleet_t *f, int number, void *data)
{
    uint64_t                  seed, key;
    ledger_world_t           *world = data;
    ratelimit_ledger_id_t     id;
    ratelimit_ledger_name_t   name;

    fleet.me = f->me;
    seed = 88172645463325252ULL + (uint64_t) number;

    while (!__atomic_load_n(&world->stop, __ATOMIC_RELAXED)) {
        key = fleet_random(&seed) % KEYS;
        id = ledger_id(key);
        name = ledger_name(key);

        if (ratelimit_ledger_debit(&ledger, &id, &name, 1,
                                   100 + fleet_random(&seed) % 2, NOW,
                                   fleet.me))
        {
            __atomic_fetch_add(&world->charged[key], 1, __ATOMIC_RELAXED);
        }

        __atomic_fetch_add(&world->work, 1, __ATOMIC_RELAXED);
    }
}


/* what the script does, in one instruction as it were: by one process */

static int
ledger_report(void *data, const ratelimit_ledger_copy_t *copy)
{
    unsigned         i;
    uint64_t         key, sum;
    ledger_taken_t  *taken = data;
    ledger_world_t  *world;

    world = (ledger_world_t *) taken->last.name.data;
    memcpy(&key, copy->name.data, sizeof(uint64_t));

    sum = 0;

    for (i = 0; i < copy->nbatch; i++) {
        sum += copy->batch[i].added;
    }

    if (copy->number > world->redis[key] >> 24) {
        sum += world->redis[key] & 0xffffff;
        __atomic_store_n(&world->redis[key],
                         copy->number << 24 | sum, __ATOMIC_RELAXED);
    }

    taken->last.hash = copy->hash;
    taken->last.rule = copy->rule;
    taken->last.number = copy->number;
    taken->n++;

    return 0;
}


static void
ledger_reporter(fleet_t *f, int number, void *data)
{
    uint32_t                  cursor;
    uint64_t                  time;
    ledger_taken_t            taken;
    ledger_world_t           *world = data;

    fleet.me = f->me;
    time = NOW;

    memset(&taken, 0, sizeof(ledger_taken_t));
    taken.last.name.data = data;

    /* even numbers never finish: the answers are lost */

    do {
        cursor = 0;
        time++;

        while (ratelimit_ledger_batch(&ledger, &cursor, time, time,
                                      ledger_report, &taken, fleet.me))
        {
            if (number % 2) {
                ledger_counted(&taken.last, 0);
            }
        }

        __atomic_fetch_add(&world->work, 1, __ATOMIC_RELAXED);

    } while (!__atomic_load_n(&world->stop, __ATOMIC_RELAXED)
             || (number % 2 && !ratelimit_ledger_clean(&ledger)));
}


static void
ledger_kill(int victims)
{
    int              i, killed;
    pid_t            pid[PROCESSES + 1];
    unsigned         lost, twice;
    uint64_t         before, counted;
    ledger_world_t  *world;
    struct timespec  pause;

    world = fleet_memory(sizeof(ledger_world_t));
    ledger_make(RATELIMIT_FIXED_WINDOW, 0, 2 << 20);

    for (i = 0; i < PROCESSES; i++) {
        pid[i] = fleet_fork(&fleet, ledger_client, i, world);
    }

    pid[PROCESSES] = fleet_fork(&fleet, ledger_reporter, 1, world);
    pause.tv_sec = 0;

    for (killed = 0; killed < victims; killed++) {
        i = killed % (PROCESSES + 1);
        before = __atomic_load_n(&world->work, __ATOMIC_RELAXED);
        pause.tv_nsec = 1000 * (killed % 97);

        while (__atomic_load_n(&world->work, __ATOMIC_RELAXED) < before + 10) {
            (void) nanosleep(&pause, NULL);
        }

        (void) kill(pid[i], SIGKILL);
        (void) fleet_wait(pid[i]);

        pid[i] = fleet_fork(&fleet, i == PROCESSES ? ledger_reporter
                                                   : ledger_client,
                            killed, world);
    }

    __atomic_store_n(&world->stop, 1, __ATOMIC_RELAXED);

    for (i = 0; i <= PROCESSES; i++) {
        (void) fleet_wait(pid[i]);
    }

    ledger_reporter(&fleet, 1, world);

    lost = 0;
    twice = 0;

    for (i = 0; i < KEYS; i++) {
        counted = world->redis[i] & 0xffffff;

        lost += (counted < world->charged[i]) ? world->charged[i] - counted
                                              : 0;
        twice += (counted > world->charged[i]) ? counted - world->charged[i]
                                               : 0;
    }

    /* a charge that was not told any more is one of a process that is dead */

    tap_ok(lost == 0 && twice <= (unsigned) victims,
           "%d processes killed: %u deltas lost, %u of the dead", killed,
           lost, twice);
}


/* a log has room for one more time than it allows, and forgets the oldest */

static void
ledger_merged(void)
{
    ratelimit_rule_t              rule;
    ratelimit_clock_t             clock;
    ratelimit_shape_t             shape;
    ratelimit_state_t            *state;
    ratelimit_verdict_t           v;
    ratelimit_ledger_copy_t       copy;
    const ratelimit_algorithm_t  *log;

    log = ratelimit_algorithms[RATELIMIT_SLIDING_LOG];

    memset(&shape, 0, sizeof(ratelimit_shape_t));
    memset(&rule, 0, sizeof(ratelimit_rule_t));
    memset(&copy, 0, sizeof(ratelimit_ledger_copy_t));

    rule.limit = 10;
    rule.period = 60 * RATELIMIT_SECOND;
    rule.capacity = 10;
    rule.ceiling = 10;

    shape.algorithm = RATELIMIT_SLIDING_LOG;
    ratelimit_shape_fit(&shape, rule.ceiling);

    clock.now = 6000 * RATELIMIT_SECOND;
    clock.wall = clock.now;

    state = calloc(1, log->size(&shape));
    if (state == NULL) {
        abort();
    }

    log->look(&shape, &rule, state, &clock, 8, &v);
    log->charge(&shape, &rule, state, &clock, 8, &v);

    copy.nbatch = 1;
    copy.batch[0].stamp = v.stamp;
    copy.batch[0].added = 6;
    copy.batch[0].refunded = 4;

    ratelimit_ledger_merge(&copy, &shape, &rule, &clock, state);

    log->look(&shape, &rule, state, &clock, 0, &v);
    log->describe(&shape, &rule, state, &clock, 0, &v);

    tap_ok(v.remaining == 0, "of a delta the difference counts");

    free(state);
}


int
main(void)
{
    (void) alarm(600);   /* a hang is a failure */

    ledger_bounds();
    ledger_batches();
    ledger_late();
    ledger_stamps();
    ledger_times();
    ledger_costs();
    ledger_order();
    ledger_full();
    ledger_merged();
    ledger_kill(600);

    return tap_done();
}
