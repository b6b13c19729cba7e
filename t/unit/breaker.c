
/*
 * The breaker: what it says in every order of things that can happen to it,
 * how long its pauses are, and that many processes at once make one probe
 * and tell each change once.
 */


#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "redis/ratelimit_breaker.h"

#include "random.h"
#include "tap.h"


#define BREAKER_LEASE      250
#define BREAKER_LONGEST    2500
#define BREAKER_DEPTH      9
#define BREAKER_PROCESSES  4
#define BREAKER_QUESTIONS  500000

/* the lease of probes that must not overlap */
#define BREAKER_FOREVER    ((uint64_t) 1 << 40)


/* what may happen next */

typedef enum {
    BREAKER_ASK = 0,
    BREAKER_SUCCESS,
    BREAKER_FAILURE,
    BREAKER_PROBE_FAILURE,
    BREAKER_WAIT,
    BREAKER_EVENTS
} breaker_event_e;


/* what must be true of a breaker, told by what happened to it */

typedef struct {
    ratelimit_breaker_t             breaker;
    uint64_t                        now;
    unsigned                        row;      /* failures while closed */
    unsigned                        open;
    uint64_t                        earliest; /* of the next probe */
    uint64_t                        latest;
} breaker_case_t;


typedef struct {
    ratelimit_breaker_t             breaker;
    uint64_t                        now;
    uint64_t                        seen[BREAKER_PROCESSES];
    int                             opened;
    int                             closed;
    int                             probes;
    int                             probing;
    int                             together;
} breaker_shared_t;


static void breaker_break(ratelimit_breaker_t *breaker, uint64_t now);
static void breaker_test_opens(void);
static void breaker_test_late(void);
static void breaker_test_probe(void);
static void breaker_test_pauses(void);
static void breaker_test_clock(void);
static int breaker_step(breaker_case_t *c, breaker_event_e event);
static int breaker_asked(breaker_case_t *c);
static void breaker_pause(breaker_case_t *c, uint64_t shortest);
static unsigned breaker_walk(const breaker_case_t *from, unsigned depth);
static void breaker_test_all_orders(void);
static uint64_t breaker_time(breaker_shared_t *shared, int number, int waits);
static void breaker_race(breaker_shared_t *shared, int number);
static int breaker_count(int *counter, int n);
static void breaker_test_processes(void);


static void
breaker_break(ratelimit_breaker_t *breaker, uint64_t now)
{
    unsigned  i;

    breaker->word = 0;

    for (i = 0; i < RATELIMIT_BREAKER_FAILURES; i++) {
        ratelimit_breaker_failure(breaker, RATELIMIT_BREAKER_GO, now, 0);
    }
}


static void
breaker_test_opens(void)
{
    unsigned             i, opened;
    ratelimit_breaker_t  b;

    b.word = 0;

    tap_ok(ratelimit_breaker_ask(&b, 1000, BREAKER_LEASE)
           == RATELIMIT_BREAKER_GO
           && !ratelimit_breaker_is_open(&b), "closed at first");

    tap_ok(ratelimit_breaker_success(&b) == 0 && b.word == 0,
           "a success of a closed one changes nothing");

    opened = 0;

    for (i = 1; i < RATELIMIT_BREAKER_FAILURES; i++) {
        opened += ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_GO, 1000, 0);
    }

    tap_ok(opened == 0 && !ratelimit_breaker_is_open(&b)
           && ratelimit_breaker_ask(&b, 1000, BREAKER_LEASE)
              == RATELIMIT_BREAKER_GO, "closed after 4 failures");

    tap_ok(ratelimit_breaker_success(&b) == 0 && b.word == 0,
           "a success forgets them, and closes nothing");

    for (i = 1; i < RATELIMIT_BREAKER_FAILURES; i++) {
        opened += ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_GO, 1000, 0);
    }

    tap_ok(opened == 0
           && ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_GO, 1000, 0) == 1
           && ratelimit_breaker_is_open(&b), "the fifth in a row opens it");

    tap_ok(ratelimit_breaker_ask(&b, 1074, BREAKER_LEASE)
           == RATELIMIT_BREAKER_STOP, "then no request may be sent");

    tap_ok(ratelimit_breaker_success(&b) == 1
           && ratelimit_breaker_ask(&b, 1074, BREAKER_LEASE)
              == RATELIMIT_BREAKER_GO, "a success closes it");

    tap_ok(ratelimit_breaker_success(&b) == 0, "once");
}


static void
breaker_test_late(void)
{
    int                  opened;
    unsigned             i;
    uint64_t             word;
    ratelimit_breaker_t  b;

    breaker_break(&b, 1000);

    word = b.word;
    opened = 0;

    for (i = 0; i < 1000; i++) {
        opened |= ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_GO, 1000 + i,
                                            0);
    }

    tap_ok(!opened && b.word == word,
           "failures of earlier requests make no pause longer");

    tap_ok(ratelimit_breaker_ask(&b, 1075, BREAKER_LEASE)
           == RATELIMIT_BREAKER_PROBE
           && ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_GO, 1080, 0) == 0
           && ratelimit_breaker_ask(&b, 1075 + BREAKER_LEASE - 1,
                                    BREAKER_LEASE)
              == RATELIMIT_BREAKER_STOP,
           "nor do they end the turn of a probe");
}


static void
breaker_test_probe(void)
{
    ratelimit_breaker_t  b;

    breaker_break(&b, 1000);

    tap_ok(ratelimit_breaker_ask(&b, 1075, BREAKER_LEASE)
           == RATELIMIT_BREAKER_PROBE, "after the pause one may probe");

    tap_ok(ratelimit_breaker_ask(&b, 1075, BREAKER_LEASE)
           == RATELIMIT_BREAKER_STOP
           && ratelimit_breaker_ask(&b, 1075 + BREAKER_LEASE - 1,
                                    BREAKER_LEASE)
              == RATELIMIT_BREAKER_STOP, "only one");

    tap_ok(ratelimit_breaker_ask(&b, 1075 + BREAKER_LEASE, BREAKER_LEASE)
           == RATELIMIT_BREAKER_PROBE,
           "a probe that was never heard of is followed by another");

    tap_ok(ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_PROBE, 2000, 0) == 0
           && ratelimit_breaker_ask(&b, 2149, BREAKER_LEASE)
              == RATELIMIT_BREAKER_STOP
           && ratelimit_breaker_ask(&b, 2150, BREAKER_LEASE)
              == RATELIMIT_BREAKER_PROBE,
           "one that fails doubles the pause and is no change");

    tap_ok(ratelimit_breaker_success(&b) == 1
           && ratelimit_breaker_ask(&b, 2151, BREAKER_LEASE)
              == RATELIMIT_BREAKER_GO, "one that succeeds closes it");

    tap_ok(ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_PROBE, 2160, 0) == 0
           && ratelimit_breaker_ask(&b, 2161, BREAKER_LEASE)
              == RATELIMIT_BREAKER_GO,
           "a probe that fails when it is closed counts as any other");

    breaker_break(&b, 3000);

    tap_ok(ratelimit_breaker_ask(&b, 3074, BREAKER_LEASE)
           == RATELIMIT_BREAKER_STOP
           && ratelimit_breaker_ask(&b, 3075, BREAKER_LEASE)
              == RATELIMIT_BREAKER_PROBE,
           "the first pause is short again");
}


static void
breaker_test_pauses(void)
{
    size_t               i;
    unsigned             j, wrong;
    uint64_t             pause, low, high;
    ratelimit_breaker_t  b;

    static const uint64_t  middle[] = {
        100, 200, 400, 800, 1600, 2000, 2000, 2000, 2000
    };

    for (i = 0; i < sizeof(middle) / sizeof(uint64_t); i++) {
        low = UINT64_MAX;
        high = 0;

        for (j = 0; j < 20000; j++) {
            b.word = (i != 0) ? (uint64_t) i << 8
                              : RATELIMIT_BREAKER_FAILURES - 1;

            ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_PROBE, 1000,
                                      (uint32_t) random_next());

            pause = (b.word >> 16) - 1000;
            low = (pause < low) ? pause : low;
            high = (pause > high) ? pause : high;
        }

        tap_ok(low == middle[i] * 3 / 4
               && high == middle[i] * 3 / 4 + middle[i] / 2,
               "pause %u is %llu ms, a quarter more or less", (unsigned) i + 1,
               (unsigned long long) middle[i]);
    }

    breaker_break(&b, 1000);

    for (j = 0, wrong = 0; j < 1000; j++) {
        wrong += ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_PROBE, 1000,
                                           UINT32_MAX);
        wrong += (b.word >> 16) > 1000 + BREAKER_LONGEST;
    }

    tap_ok(wrong == 0 && ratelimit_breaker_is_open(&b)
           && (b.word >> 16) >= 3000, "the thousandth is no longer");
}


static void
breaker_test_clock(void)
{
    size_t               i;
    uint64_t             now;
    ratelimit_breaker_t  b;

    static const uint64_t  clocks[] = {
        0, 1, 99, 1000000, ((uint64_t) 1 << 32) - 50,
        ((uint64_t) 1 << 48) - 50, ((uint64_t) 1 << 48) + 7, UINT64_MAX - 50
    };

    for (i = 0; i < sizeof(clocks) / sizeof(uint64_t); i++) {
        now = clocks[i];

        breaker_break(&b, now);

        tap_ok(ratelimit_breaker_ask(&b, now + 74, BREAKER_LEASE)
               == RATELIMIT_BREAKER_STOP
               && ratelimit_breaker_ask(&b, now + 75, BREAKER_LEASE)
                  == RATELIMIT_BREAKER_PROBE
               && ratelimit_breaker_ask(&b, now + 76, BREAKER_LEASE)
                  == RATELIMIT_BREAKER_STOP
               && ratelimit_breaker_ask(&b, now + 75 + BREAKER_LEASE,
                                        BREAKER_LEASE)
                  == RATELIMIT_BREAKER_PROBE,
               "a clock at %llu", (unsigned long long) now);
    }

    breaker_break(&b, 10000000);

    tap_ok(ratelimit_breaker_ask(&b, 1000, BREAKER_LEASE)
           == RATELIMIT_BREAKER_PROBE
           && ratelimit_breaker_ask(&b, 1001, BREAKER_LEASE)
              == RATELIMIT_BREAKER_STOP,
           "a clock that steps back a lot makes the probe due, once");

    breaker_break(&b, 1000);

    tap_ok(ratelimit_breaker_ask(&b, 10000000000, BREAKER_LEASE)
           == RATELIMIT_BREAKER_PROBE
           && ratelimit_breaker_ask(&b, 10000000001, BREAKER_LEASE)
              == RATELIMIT_BREAKER_STOP, "one that steps forward, too");

    breaker_break(&b, 10000);

    tap_ok(ratelimit_breaker_ask(&b, 10075, 3600000) == RATELIMIT_BREAKER_PROBE
           && ratelimit_breaker_ask(&b, 3600000, 3600000)
              == RATELIMIT_BREAKER_STOP, "a long lease is no such step");

    breaker_break(&b, 10000);

    tap_ok(ratelimit_breaker_ask(&b, 10075, 50) == RATELIMIT_BREAKER_PROBE
           && ratelimit_breaker_ask(&b, 9900, 50) == RATELIMIT_BREAKER_STOP,
           "nor is a process that is behind");

    b.word = (uint64_t) 12 << 8;
    ratelimit_breaker_failure(&b, RATELIMIT_BREAKER_PROBE, 10000, 1000);

    tap_ok(b.word >> 16 == 12500
           && ratelimit_breaker_ask(&b, 9960, 50) == RATELIMIT_BREAKER_STOP,
           "not in the longest pause either");
}


/* one thing happens; returns whether it was answered as it must be */

static int
breaker_step(breaker_case_t *c, breaker_event_e event)
{
    int       changed, open;
    unsigned  row;

    open = c->open;

    switch (event) {

    case BREAKER_ASK:
        return breaker_asked(c);

    case BREAKER_WAIT:
        c->now += 80;
        return 1;

    case BREAKER_SUCCESS:
        c->row = 0;
        c->open = 0;

        return ratelimit_breaker_success(&c->breaker) == open;

    default:
        break;
    }

    changed = ratelimit_breaker_failure(&c->breaker,
                                        event == BREAKER_PROBE_FAILURE
                                        ? RATELIMIT_BREAKER_PROBE
                                        : RATELIMIT_BREAKER_GO,
                                        c->now, (uint32_t) random_next());

    if (open) {
        if (event == BREAKER_PROBE_FAILURE) {
            breaker_pause(c, 150);
        }

        return changed == 0;
    }

    row = ++c->row;

    if (row == RATELIMIT_BREAKER_FAILURES) {
        c->open = 1;
        breaker_pause(c, 75);
    }

    return changed == (row == RATELIMIT_BREAKER_FAILURES);
}


static int
breaker_asked(breaker_case_t *c)
{
    int                  stops;
    ratelimit_breaker_e  verdict;

    stops = ratelimit_breaker_stops(&c->breaker, c->now, BREAKER_LEASE);
    verdict = ratelimit_breaker_ask(&c->breaker, c->now, BREAKER_LEASE);

    if (stops != (verdict == RATELIMIT_BREAKER_STOP)) {
        return 0;
    }

    if (!c->open) {
        return verdict == RATELIMIT_BREAKER_GO;
    }

    if (verdict == RATELIMIT_BREAKER_PROBE && c->now >= c->earliest) {
        c->earliest = c->now + BREAKER_LEASE;
        c->latest = c->earliest;
        return 1;
    }

    return verdict == RATELIMIT_BREAKER_STOP && c->now < c->latest;
}


static void
breaker_pause(breaker_case_t *c, uint64_t shortest)
{
    c->earliest = c->now + shortest;
    c->latest = c->now + BREAKER_LONGEST;
}


/* every order of so many events that may follow; returns wrong answers */

static unsigned
breaker_walk(const breaker_case_t *from, unsigned depth)
{
    int             event;
    unsigned        wrong;
    breaker_case_t  c;

    if (depth == 0) {
        return 0;
    }

    wrong = 0;

    for (event = 0; event < BREAKER_EVENTS; event++) {
        c = *from;

        if (breaker_step(&c, event)) {
            wrong += breaker_walk(&c, depth - 1);

        } else {
            wrong++;
        }
    }

    return wrong;
}


static void
breaker_test_all_orders(void)
{
    unsigned        i, wrong;
    breaker_case_t  c;

    memset(&c, 0, sizeof(breaker_case_t));

    c.now = 5000;

    wrong = breaker_walk(&c, BREAKER_DEPTH);

    tap_ok(wrong == 0, "every order of %u events from a closed one: %u wrong",
           BREAKER_DEPTH, wrong);

    for (i = 0; i < RATELIMIT_BREAKER_FAILURES; i++) {
        breaker_step(&c, BREAKER_FAILURE);
    }

    wrong = breaker_walk(&c, BREAKER_DEPTH);

    tap_ok(wrong == 0, "every order of %u events from an open one: %u wrong",
           BREAKER_DEPTH, wrong);
}


/*
 * The time of all processes goes on while they wait, but that of none by more
 * than the longest pause before that of another, which may not run just now.
 */

static uint64_t
breaker_time(breaker_shared_t *shared, int number, int waits)
{
    int       i;
    uint64_t  now, seen;

    now = __atomic_load_n(&shared->now, __ATOMIC_RELAXED);

    __atomic_store_n(&shared->seen[number], now, __ATOMIC_RELAXED);

    if (!waits) {
        return now;
    }

    for (i = 0; i < BREAKER_PROCESSES; i++) {
        seen = __atomic_load_n(&shared->seen[i], __ATOMIC_RELAXED);

        if (seen + BREAKER_LONGEST / 2 < now) {
            sched_yield();
            return now;
        }
    }

    return __atomic_add_fetch(&shared->now, 5, __ATOMIC_RELAXED);
}


/* asks and is answered, or not, as chance will have it */

static void
breaker_race(breaker_shared_t *shared, int number)
{
    int                  changed;
    unsigned             i;
    uint64_t             now;
    ratelimit_breaker_e  told;

    random_state += (uint64_t) number;

    told = RATELIMIT_BREAKER_GO;

    for (i = 0; i < BREAKER_QUESTIONS; i++) {
        now = breaker_time(shared, number, told == RATELIMIT_BREAKER_STOP);

        told = ratelimit_breaker_ask(&shared->breaker, now, BREAKER_FOREVER);

        if (told == RATELIMIT_BREAKER_STOP) {
            continue;
        }

        if (told == RATELIMIT_BREAKER_PROBE) {
            breaker_count(&shared->probes, 1);
            breaker_count(&shared->together,
                          breaker_count(&shared->probing, 1) != 1);
            breaker_count(&shared->probing, -1);
        }

        if (random_percent(70)) {
            changed = ratelimit_breaker_failure(&shared->breaker, told, now,
                                                (uint32_t) random_next());
            breaker_count(&shared->opened, changed);

        } else {
            changed = ratelimit_breaker_success(&shared->breaker);
            breaker_count(&shared->closed, changed);
        }
    }

    __atomic_store_n(&shared->seen[number], UINT64_MAX / 2, __ATOMIC_RELAXED);
}


static int
breaker_count(int *counter, int n)
{
    return __atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}


static void
breaker_test_processes(void)
{
    int                i, status, died;
    pid_t              pid[BREAKER_PROCESSES];
    breaker_shared_t  *shared;

    shared = mmap(NULL, sizeof(breaker_shared_t), PROT_READ|PROT_WRITE,
                  MAP_SHARED|MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        abort();
    }

    for (i = 0; i < BREAKER_PROCESSES; i++) {
        pid[i] = fork();

        if (pid[i] == 0) {
            breaker_race(shared, i);
            _exit(0);
        }
    }

    for (i = 0, died = 0; i < BREAKER_PROCESSES; i++) {
        died += waitpid(pid[i], &status, 0) != pid[i] || status != 0;
    }

    tap_ok(died == 0 && shared->opened > 1000
           && shared->opened
              == shared->closed + ratelimit_breaker_is_open(&shared->breaker),
           "%d processes: each change is told once, %d opened and %d closed",
           BREAKER_PROCESSES, shared->opened, shared->closed);

    tap_ok(shared->probes > 1000 && shared->together == 0,
           "never two probes at a time of %d: %d", shared->probes,
           shared->together);

    munmap(shared, sizeof(breaker_shared_t));
}


int
main(int argc, char **argv)
{
    random_start(argc, argv);

    breaker_test_opens();
    breaker_test_late();
    breaker_test_probe();
    breaker_test_pauses();
    breaker_test_clock();
    breaker_test_all_orders();
    breaker_test_processes();

    return tap_done();
}
