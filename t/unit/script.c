
/*
 * What is said to Redis, and what is believed of its answers.
 */


#include <stdlib.h>
#include <string.h>

#include "core/ratelimit.h"
#include "redis/ratelimit_script.h"

#include "random.h"
#include "tap.h"


#define SCRIPT_TOO_LARGE  ((uint64_t) 1 << 53)


static void script_put(unsigned char *p, uint64_t number);
static uint64_t script_get(const unsigned char *p, unsigned bytes);
static int script_believed(unsigned field, uint64_t number);
static void script_texts(void);
static void script_argument(void);
static void script_verdict(void);
static void script_lies(void);
static void script_noise(void);


static ratelimit_shape_t  script_shape;
static ratelimit_rule_t   script_rule;
static ratelimit_item_t   script_item;
static unsigned char      script_reply[RATELIMIT_SCRIPT_VERDICT];


static void
script_put(unsigned char *p, uint64_t number)
{
    unsigned  i;

    for (i = 0; i < 8; i++) {
        p[i] = (unsigned char) (number >> 8 * i);
    }
}


static uint64_t
script_get(const unsigned char *p, unsigned bytes)
{
    uint64_t  number;

    number = 0;

    while (bytes) {
        number = number << 8 | p[--bytes];
    }

    return number;
}


/* the verdict that is at hand, with another value of one field */

static int
script_believed(unsigned field, uint64_t number)
{
    unsigned char  reply[RATELIMIT_SCRIPT_VERDICT];

    memcpy(reply, script_reply, RATELIMIT_SCRIPT_VERDICT);
    script_put(reply + 8 * field, number);

    return ratelimit_script_verdict(&script_item, reply);
}


/* the text of an algorithm's script has no branch for another algorithm */

static void
script_texts(void)
{
    char                       branch[32];
    unsigned                   i, j, good;
    const ratelimit_script_t  *script;

    good = 0;

    for (i = 0; i < RATELIMIT_SCRIPTS; i++) {
        script = &ratelimit_scripts[i];

        good += (strlen(script->text) == script->len
                 && strstr(script->text, "--") == NULL);

        for (j = 0; j <= RATELIMIT_ALGORITHMS; j++) {
            snprintf(branch, sizeof(branch), "if algorithm == %u then\n", j);

            good += ((strstr(script->text, branch) != NULL)
                     == (i == RATELIMIT_SCRIPT_MIXED
                         && j < RATELIMIT_ALGORITHMS));
        }
    }

    tap_ok(good == RATELIMIT_SCRIPTS * (RATELIMIT_ALGORITHMS + 2),
           "only the mixed script has a branch for each algorithm");

    good = 0;

    for (i = 1; i < 1 << RATELIMIT_ALGORITHMS; i++) {
        j = ratelimit_script_select(i);

        good += (i & (i - 1)) ? j == RATELIMIT_SCRIPT_MIXED
                              : j < RATELIMIT_ALGORITHMS && i == 1U << j;
    }

    tap_ok(good == (1 << RATELIMIT_ALGORITHMS) - 1,
           "one algorithm has a script of its own, several have the mixed one");
}


static void
script_argument(void)
{
    unsigned char  argument[RATELIMIT_SCRIPT_ARGUMENT + 1];

    argument[RATELIMIT_SCRIPT_ARGUMENT] = 0xa5;

    script_item.cost = 7;
    script_item.count_rejected = 1;
    script_item.verdict.stamp = 0x1122334455667;

    ratelimit_script_argument(&script_item, argument);

    tap_ok(argument[0] == RATELIMIT_TOKEN_BUCKET && argument[1] == 60
           && argument[2] == 4 && argument[3] == 1
           && script_get(argument + 4, 4) == 0x12345678,
           "shape and count_rejected");

    tap_ok(script_get(argument + 8, 8) == 7
           && script_get(argument + 16, 8) == 100
           && script_get(argument + 24, 8) == RATELIMIT_MAX_PERIOD
           && script_get(argument + 32, 8) == 300
           && script_get(argument + 40, 8) == 200
           && script_get(argument + 56, 8) == 5
           && script_get(argument + 64, 8) == 0x1122334455667,
           "rule, cost and stamp");

    tap_ok(script_get(argument + 48, 8) == SCRIPT_TOO_LARGE - 1,
           "what is too large for Lua is the largest");

    tap_ok(argument[RATELIMIT_SCRIPT_ARGUMENT] == 0xa5, "and no more");
}


static void
script_verdict(void)
{
    unsigned              i;
    ratelimit_verdict_t  *v;

    static const uint64_t  fields[] = { 7, 0, 11, 0, 13, 14, 15 };

    for (i = 0; i < 7; i++) {
        script_put(script_reply + 8 * i, fields[i]);
    }

    v = &script_item.verdict;
    memset(v, 0xa5, sizeof(ratelimit_verdict_t));

    tap_ok(ratelimit_script_verdict(&script_item, script_reply)
           && v->allowed && v->soft && v->rebase && v->remaining == 0
           && v->reset_after == 11 && v->retry_after == 0 && v->delay == 13
           && v->excess == 14 && v->stamp == 15,
           "a verdict");

    tap_ok(v->limit == 200, "the limit of a bucket is its capacity");

    script_shape.algorithm = RATELIMIT_SLIDING_LOG;
    (void) ratelimit_script_verdict(&script_item, script_reply);

    tap_ok(v->limit == 100, "that of a window is not");
}


static void
script_lies(void)
{
    unsigned  i, believed;

    believed = 0;

    for (i = 0; i < 7; i++) {
        believed += script_believed(i, SCRIPT_TOO_LARGE);
        believed += script_believed(i, UINT64_MAX);
    }

    tap_ok(believed == 0, "no number is too large for Lua");

    tap_ok(!script_believed(0, 8), "there are no more flags");
    tap_ok(!script_believed(1, 1), "a verdict above the limit has none left");
    tap_ok(script_believed(3, 1) && script_item.verdict.retry_after == 0
           && script_item.verdict.next_after == 1,
           "the retry of a verdict that allows is that of the next request");

    script_put(script_reply, 1);

    tap_ok(script_believed(1, 100) && !script_believed(1, 101),
           "there is never more left than the limit");

    script_put(script_reply, 0);
    script_put(script_reply + 24, 1);

    tap_ok(!script_believed(4, 13), "a verdict that refuses has no delay");

    script_put(script_reply + 32, 0);

    tap_ok(script_believed(3, 1), "a verdict that refuses has a retry");
    tap_ok(!script_believed(3, 0), "but not at once");
    tap_ok(!script_believed(0, 2), "and is not above the limit softly");
}


/* whatever comes, a verdict that is believed makes sense */

static void
script_noise(void)
{
    unsigned              i, j, believed, bad;
    ratelimit_verdict_t  *v;

    v = &script_item.verdict;
    believed = 0;
    bad = 0;

    for (i = 0; i < 100000; i++) {
        for (j = 0; j < 7; j++) {
            script_put(script_reply + 8 * j,
                       random_percent(50) ? random_below(9)
                                          : random_bits(56));
        }

        if (!ratelimit_script_verdict(&script_item, script_reply)) {
            continue;
        }

        believed++;
        bad += ((v->allowed ? v->retry_after != 0 : v->retry_after == 0)
                || v->remaining > v->limit);
    }

    tap_ok(bad == 0 && believed, "noise (%u believed)", believed);
}


int
main(int argc, char **argv)
{
    random_start(argc, argv);

    script_shape.algorithm = RATELIMIT_TOKEN_BUCKET;
    script_shape.buckets = 60;
    script_shape.width = 4;
    script_shape.ring = 0x12345678;

    script_rule.limit = 100;
    script_rule.period = RATELIMIT_MAX_PERIOD;
    script_rule.capacity = 200;
    script_rule.ceiling = 300;
    script_rule.free = RATELIMIT_NODELAY;
    script_rule.wait = 5;

    script_item.shape = &script_shape;
    script_item.rule = &script_rule;

    script_texts();
    script_argument();
    script_verdict();
    script_lies();
    script_noise();

    return tap_done();
}
