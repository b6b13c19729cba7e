
/*
 * What is said to Redis and what it answers, as bytes.
 *
 * An argument, little endian:
 *
 *   1 byte each   algorithm, buckets, width, insist
 *   4 bytes       ring
 *   8 bytes each  cost, limit, period, ceiling, capacity, free, wait, stamp
 *
 * A verdict, 8 bytes each: flags, remaining, reset_after, retry_after, delay,
 * excess, stamp.  The numbers of Lua are exact below 2^53: what is beyond is
 * said to be the largest one.
 */


#include <string.h>

#include "core/ratelimit.h"
#include "core/ratelimit_math.h"
#include "redis/ratelimit_lua.h"
#include "redis/ratelimit_script.h"


#define RATELIMIT_SCRIPT_MAX      (((uint64_t) 1 << 53) - 1)

/* where they stand in an argument */
#define RATELIMIT_SCRIPT_COST     8
#define RATELIMIT_SCRIPT_STAMP    64

#define RATELIMIT_SCRIPT_ALLOWED  1
#define RATELIMIT_SCRIPT_SOFT     2
#define RATELIMIT_SCRIPT_REBASE   4
#define RATELIMIT_SCRIPT_FLAGS    7

#define RATELIMIT_SCRIPT_BUCKETS  (1 << RATELIMIT_TOKEN_BUCKET                \
                                   | 1 << RATELIMIT_LEAKY_BUCKET)
#define RATELIMIT_SCRIPT_DIVIDE   (1 << RATELIMIT_SLIDING_WINDOW              \
                                   | RATELIMIT_SCRIPT_BUCKETS)


/* the sections of an algorithm, see prelude.lua */

typedef struct {
    const char                     *number;
    const char                     *functions;  /* may be NULL */
    const char                     *load;
    const char                     *look;
    const char                     *charge;
    const char                     *punish;
    const char                     *refund;
} ratelimit_script_sections_t;


typedef struct {
    char                           *text;
    size_t                          len;
} ratelimit_script_text_t;


static void ratelimit_script_one(ratelimit_script_text_t *script,
    const ratelimit_script_sections_t *algorithm);
static void ratelimit_script_limit(ratelimit_script_text_t *script,
    const ratelimit_script_sections_t *algorithm);
static void ratelimit_script_add(ratelimit_script_text_t *script,
    const char *text);
static unsigned char *ratelimit_script_put(unsigned char *p, uint64_t number);
static unsigned char *ratelimit_script_write(unsigned char *p,
    uint64_t number);
static uint64_t ratelimit_script_get(const unsigned char *p);
static int ratelimit_script_sound(const ratelimit_rule_t *rule,
    const ratelimit_verdict_t *verdict, uint64_t flags);


#define ratelimit_script_algorithm(name, functions, punish)                   \
    { ratelimit_lua_##name, functions, ratelimit_lua_##name##_load,           \
      ratelimit_lua_##name##_look, ratelimit_lua_##name##_charge,             \
      ratelimit_lua_##name##_##punish, ratelimit_lua_##name##_refund }


/* by ratelimit_algorithm_e */

static const ratelimit_script_sections_t  ratelimit_script_algorithms[] = {
    ratelimit_script_algorithm(fixed_window, NULL, charge),
    ratelimit_script_algorithm(sliding_window, NULL, charge),
    ratelimit_script_algorithm(sliding_log,
                               ratelimit_lua_sliding_log_functions, charge),
    ratelimit_script_algorithm(token_bucket, NULL, punish),
    ratelimit_script_algorithm(leaky_bucket, NULL, punish)
};


size_t
ratelimit_script_text(unsigned algorithms, char *text)
{
    unsigned                            i;
    ratelimit_script_text_t             script;
    const ratelimit_script_sections_t  *algorithm;

    script.text = text;
    script.len = 0;

    ratelimit_script_add(&script, ratelimit_lua_prelude);
    ratelimit_script_add(&script, ratelimit_lua_clock);

    if (algorithms & RATELIMIT_SCRIPT_DIVIDE) {
        ratelimit_script_add(&script, ratelimit_lua_math);
    }

    if (algorithms & RATELIMIT_SCRIPT_BUCKETS) {
        ratelimit_script_add(&script, ratelimit_lua_math_up);
    }

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        algorithm = &ratelimit_script_algorithms[i];

        if (algorithms & 1 << i) {
            ratelimit_script_add(&script, algorithm->functions);
        }

        if (algorithms == 1U << i) {
            ratelimit_script_one(&script, algorithm);
        }
    }

    ratelimit_script_add(&script, ratelimit_lua_decide);

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        if (algorithms & 1 << i) {
            ratelimit_script_limit(&script, &ratelimit_script_algorithms[i]);
        }
    }

    ratelimit_script_add(&script, ratelimit_lua_decide_limits);

    return script.len;
}


static void
ratelimit_script_one(ratelimit_script_text_t *script,
    const ratelimit_script_sections_t *algorithm)
{
    ratelimit_script_add(script, ratelimit_lua_one);
    ratelimit_script_add(script, algorithm->load);
    ratelimit_script_add(script, algorithm->look);
    ratelimit_script_add(script, ratelimit_lua_one_looked);
    ratelimit_script_add(script, algorithm->charge);
    ratelimit_script_add(script, ratelimit_lua_one_charged);
}


static void
ratelimit_script_limit(ratelimit_script_text_t *script,
    const ratelimit_script_sections_t *algorithm)
{
    ratelimit_script_add(script, algorithm->number);
    ratelimit_script_add(script, ratelimit_lua_limit);
    ratelimit_script_add(script, algorithm->load);
    ratelimit_script_add(script, algorithm->refund);
    ratelimit_script_add(script, ratelimit_lua_limit_refunded);
    ratelimit_script_add(script, algorithm->load);
    ratelimit_script_add(script, algorithm->look);
    ratelimit_script_add(script, ratelimit_lua_limit_looked);
    ratelimit_script_add(script, algorithm->charge);
    ratelimit_script_add(script, ratelimit_lua_limit_charged);
    ratelimit_script_add(script, algorithm->punish);
    ratelimit_script_add(script, ratelimit_lua_limit_punished);
}


static void
ratelimit_script_add(ratelimit_script_text_t *script, const char *text)
{
    size_t  len;

    if (text == NULL) {
        return;
    }

    len = strlen(text);

    if (script->text != NULL) {
        memcpy(script->text + script->len, text, len);
    }

    script->len += len;
}


void
ratelimit_script_argument(const ratelimit_item_t *item,
    unsigned char *argument)
{
    unsigned char            *p;
    const ratelimit_rule_t   *rule;
    const ratelimit_shape_t  *shape;

    p = argument;
    rule = item->rule;
    shape = item->shape;

    (void) ratelimit_script_write(p, (uint64_t) shape->ring << 32);

    p[0] = (unsigned char) shape->algorithm;
    p[1] = (unsigned char) shape->buckets;
    p[2] = (unsigned char) shape->width;
    p[3] = (unsigned char) item->insist;
    p += 8;

    p = ratelimit_script_put(p, item->cost);
    p = ratelimit_script_put(p, rule->limit);
    p = ratelimit_script_put(p, rule->period);
    p = ratelimit_script_put(p, rule->ceiling);
    p = ratelimit_script_put(p, rule->capacity);
    p = ratelimit_script_put(p, rule->free);
    p = ratelimit_script_put(p, rule->wait);

    (void) ratelimit_script_put(p, item->verdict.stamp);
}


static unsigned char *
ratelimit_script_put(unsigned char *p, uint64_t number)
{
    return ratelimit_script_write(p, ratelimit_min(number,
                                                   RATELIMIT_SCRIPT_MAX));
}


/* compilers make one instruction of these */

static unsigned char *
ratelimit_script_write(unsigned char *p, uint64_t number)
{
    p[0] = (unsigned char) number;
    p[1] = (unsigned char) (number >> 8);
    p[2] = (unsigned char) (number >> 16);
    p[3] = (unsigned char) (number >> 24);
    p[4] = (unsigned char) (number >> 32);
    p[5] = (unsigned char) (number >> 40);
    p[6] = (unsigned char) (number >> 48);
    p[7] = (unsigned char) (number >> 56);

    return p + 8;
}


static uint64_t
ratelimit_script_get(const unsigned char *p)
{
    return (uint64_t) p[0] | (uint64_t) p[1] << 8 | (uint64_t) p[2] << 16
           | (uint64_t) p[3] << 24 | (uint64_t) p[4] << 32
           | (uint64_t) p[5] << 40 | (uint64_t) p[6] << 48
           | (uint64_t) p[7] << 56;
}


int
ratelimit_script_verdict(ratelimit_item_t *item, const unsigned char *reply)
{
    uint64_t              flags;
    ratelimit_verdict_t  *verdict;

    verdict = &item->verdict;
    flags = ratelimit_script_get(reply);

    verdict->limit = item->rule->limit;

    if (1 << item->shape->algorithm & RATELIMIT_SCRIPT_BUCKETS) {
        verdict->limit = item->rule->capacity;
    }

    verdict->remaining = ratelimit_script_get(reply + 8);
    verdict->reset_after = ratelimit_script_get(reply + 16);
    verdict->retry_after = ratelimit_script_get(reply + 24);
    verdict->delay = ratelimit_script_get(reply + 32);
    verdict->excess = ratelimit_script_get(reply + 40);
    verdict->stamp = ratelimit_script_get(reply + 48);

    verdict->allowed = ((flags & RATELIMIT_SCRIPT_ALLOWED) != 0);
    verdict->soft = ((flags & RATELIMIT_SCRIPT_SOFT) != 0);
    verdict->rebase = ((flags & RATELIMIT_SCRIPT_REBASE) != 0);

    return ratelimit_script_sound(item->rule, verdict, flags);
}


/*
 * Who is refused is told when to come again, and nothing else; nobody waits for
 * longer than a rule can make him wait.
 */

static int
ratelimit_script_sound(const ratelimit_rule_t *rule,
    const ratelimit_verdict_t *verdict, uint64_t flags)
{
    uint64_t  longest;

    longest = rule->wait + rule->ceiling * rule->period / rule->limit
              + RATELIMIT_SKEW;

    if (flags > RATELIMIT_SCRIPT_FLAGS
        || verdict->remaining > verdict->limit
        || verdict->reset_after > RATELIMIT_SCRIPT_MAX
        || verdict->retry_after > RATELIMIT_SCRIPT_MAX
        || verdict->delay > longest
        || verdict->excess > RATELIMIT_SCRIPT_MAX
        || verdict->stamp > RATELIMIT_SCRIPT_MAX)
    {
        return 0;
    }

    if (!verdict->allowed) {
        return verdict->retry_after && !verdict->delay && !verdict->soft;
    }

    return !verdict->retry_after && !(verdict->soft && verdict->remaining);
}


void
ratelimit_script_keep(unsigned char *argument)
{
    (void) ratelimit_script_put(argument + RATELIMIT_SCRIPT_COST, 0);
}


int
ratelimit_script_turn(unsigned char *argument, const unsigned char *reply)
{
    (void) ratelimit_script_put(argument + RATELIMIT_SCRIPT_STAMP,
                                ratelimit_script_get(reply + 48));

    return (ratelimit_script_get(reply) & RATELIMIT_SCRIPT_ALLOWED) != 0;
}
