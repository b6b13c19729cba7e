
/*
 * Windows that are aligned to the wall clock, by processes that read their
 * clocks in milliseconds.  If this fails, a short window opens at the end of a
 * period, and a client gets its limit once more.
 */


#include <string.h>

#include "core/ratelimit.h"
#include "table/ratelimit_clock.h"

#include "decision.h"
#include "random.h"
#include "tap.h"


#define ALIGN_PERIODS  2000
#define ALIGN_LIMIT    5
#define ALIGN_OFFSET   123456789    /* us */


static void align_read(uint64_t time, uint64_t offset,
    ratelimit_clock_t *clock);
static uint64_t align_step(uint64_t time);
static void align_windows(void);
static void align_difference(void);


static uint64_t  align_shared;


/* what a process reads at a time, in us; it may be a little late */

static void
align_read(uint64_t time, uint64_t offset, ratelimit_clock_t *clock)
{
    uint64_t  now, wall;

    wall = (time + offset) / 1000;
    now = (time + random_below(200)) / 1000;

    clock->now = now * 1000;
    clock->wall = ratelimit_clock_wall(&align_shared, now, wall) * 1000;
}


/* to the next request: these are many around the end of a period */

static uint64_t
align_step(uint64_t time)
{
    uint64_t  past;

    past = (time + ALIGN_OFFSET + 3000) % RATELIMIT_SECOND;

    return (past < 6000) ? 50 + random_below(100) : 900;
}


/* many requests around the ends of periods, of which each admits its limit */

static void
align_windows(void)
{
    uint64_t           time, period, end, last;
    unsigned           i, n, wrong;
    ratelimit_item_t   item;
    ratelimit_rule_t   rule;
    ratelimit_shape_t  shape;
    ratelimit_clock_t  clock;
    ratelimit_state_t  state[2];

    memset(&item, 0, sizeof(ratelimit_item_t));
    memset(&rule, 0, sizeof(ratelimit_rule_t));
    memset(&shape, 0, sizeof(ratelimit_shape_t));
    memset(state, 0, sizeof(state));

    rule.limit = ALIGN_LIMIT;
    rule.capacity = ALIGN_LIMIT;
    rule.ceiling = ALIGN_LIMIT;
    rule.period = RATELIMIT_SECOND;

    shape.algorithm = RATELIMIT_FIXED_WINDOW;

    item.shape = &shape;
    item.rule = &rule;
    item.state = state;
    item.cost = 1;

    period = rule.period;
    time = 1000000 * RATELIMIT_SECOND + 700;
    wrong = 0;
    last = 0;

    for (i = 0; i < ALIGN_PERIODS; i++) {
        n = 0;

        end = time + period;

        for ( /* void */ ; time < end; time += align_step(time)) {
            align_read(time, ALIGN_OFFSET, &clock);

            if (clock.now < last) {
                clock.now = last;
            }

            last = clock.now;
            n += decision_make(&item, 1, &clock);
        }

        wrong += (n > 2 * ALIGN_LIMIT);
        time = end;
    }

    /* periods of the loop and of the clock are out of step by a part of one */

    tap_ok(wrong == 0, "%u of %d periods admit more than two limits", wrong,
           ALIGN_PERIODS);
}


/* the difference is that of the first reading until the clock is set */

static void
align_difference(void)
{
    uint64_t  now, wall;
    unsigned  i, changed;

    align_shared = 0;
    changed = 0;

    (void) ratelimit_clock_wall(&align_shared, 5000, 1700000000000);

    for (i = 0; i < 100000; i++) {
        now = 5000 + i * 7;
        wall = 1700000000000 + i * 7 + random_below(3) - 1;

        changed += (ratelimit_clock_wall(&align_shared, now, wall)
                    != (uint64_t) 1700000000000 + i * 7);
    }

    tap_ok(changed == 0, "the difference stays, %u times it does not",
           changed);

    tap_ok(ratelimit_clock_wall(&align_shared, 6000, 1700003601000)
           == 1700003601000
           && ratelimit_clock_wall(&align_shared, 7000, 1700003602001)
              == 1700003602000,
           "an hour forward is followed");

    tap_ok(ratelimit_clock_wall(&align_shared, 8000, 1600000000000)
           == 1600000000000
           && ratelimit_clock_wall(&align_shared, 9000, 1600000000999)
              == 1600000001000,
           "years back are followed");
}


int
main(int argc, char **argv)
{
    random_start(argc, argv);

    align_windows();
    align_difference();

    return tap_done();
}
