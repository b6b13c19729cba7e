
/*
 * The formats of arguments and verdicts.
 *
 * An argument, little endian:
 *
 *   1 byte each   algorithm, buckets, width, 1 to count_rejected + 2 to
 *                 reserve
 *   4 bytes       ring
 *   8 bytes each  cost, limit, period, ceiling, capacity, free, wait, stamp
 *
 * A verdict, 8 bytes each: flags, remaining, reset_after, retry_after, delay,
 * excess, stamp.  Of an allowed request retry_after is next_after.  The numbers
 * of Lua are exact below 2^53: a larger one is sent as the largest of these.
 */


#include "core/ratelimit.h"
#include "core/ratelimit_math.h"
#include "redis/ratelimit_bytes.h"
#include "redis/ratelimit_lua.h"
#include "redis/ratelimit_script.h"


#define RATELIMIT_SCRIPT_MAX             (((uint64_t) 1 << 53) - 1)

/* offsets in an argument and in a verdict */
#define RATELIMIT_SCRIPT_ARGUMENT_COST   8
#define RATELIMIT_SCRIPT_ARGUMENT_STAMP  64
#define RATELIMIT_SCRIPT_VERDICT_STAMP   48

#define RATELIMIT_SCRIPT_ALLOWED         1
#define RATELIMIT_SCRIPT_SOFT            2
#define RATELIMIT_SCRIPT_REBASE          4
#define RATELIMIT_SCRIPT_FLAGS           7


static unsigned char *ratelimit_script_write(unsigned char *p,
    uint64_t number);
static int ratelimit_script_valid(const ratelimit_rule_t *rule,
    const ratelimit_verdict_t *verdict, uint64_t flags);


#define ratelimit_script_text(NAME, name)                                     \
    { ratelimit_lua_##name, sizeof(ratelimit_lua_##name) - 1 },

const ratelimit_script_t  ratelimit_scripts[RATELIMIT_SCRIPTS] = {
    ratelimit_each_algorithm(ratelimit_script_text)
    ratelimit_script_text(MIXED, mixed)
};


#define ratelimit_sync_text(NAME, name)                                       \
    { ratelimit_lua_sync_##name, sizeof(ratelimit_lua_sync_##name) - 1 },

const ratelimit_script_t  ratelimit_sync_scripts[RATELIMIT_SCRIPTS] = {
    ratelimit_each_algorithm(ratelimit_sync_text)
    ratelimit_sync_text(MIXED, mixed)
};


unsigned
ratelimit_script_select(unsigned algorithms)
{
    unsigned  i;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        if (algorithms == 1U << i) {
            return i;
        }
    }

    return RATELIMIT_SCRIPT_MIXED;
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

    (void) ratelimit_bytes_write(p, (uint64_t) shape->ring << 32);

    p[0] = (unsigned char) shape->algorithm;
    p[1] = (unsigned char) shape->buckets;
    p[2] = (unsigned char) shape->width;
    p[3] = (unsigned char) (item->count_rejected | item->reserve << 1);
    p += 8;

    p = ratelimit_script_write(p, item->cost);
    p = ratelimit_script_write(p, rule->limit);
    p = ratelimit_script_write(p, rule->period);
    p = ratelimit_script_write(p, rule->ceiling);
    p = ratelimit_script_write(p, rule->capacity);
    p = ratelimit_script_write(p, rule->free);
    p = ratelimit_script_write(p, rule->wait);

    (void) ratelimit_script_write(p,
                                  item->verdict.stamp & ~RATELIMIT_RESERVED);
}


static unsigned char *
ratelimit_script_write(unsigned char *p, uint64_t number)
{
    return ratelimit_bytes_write(p, ratelimit_min(number,
                                                  RATELIMIT_SCRIPT_MAX));
}


int
ratelimit_script_verdict(ratelimit_item_t *item, const unsigned char *reply)
{
    uint64_t              flags;
    ratelimit_verdict_t  *verdict;

    verdict = &item->verdict;
    flags = ratelimit_bytes_read(reply);

    verdict->limit = item->rule->limit;

    if (ratelimit_algorithms[item->shape->algorithm]->drips) {
        verdict->limit = item->rule->capacity;
    }

    verdict->remaining = ratelimit_bytes_read(reply + 8);
    verdict->reset_after = ratelimit_bytes_read(reply + 16);
    verdict->retry_after = ratelimit_bytes_read(reply + 24);
    verdict->delay = ratelimit_bytes_read(reply + 32);
    verdict->excess = ratelimit_bytes_read(reply + 40);
    verdict->stamp = ratelimit_bytes_read(reply
                                          + RATELIMIT_SCRIPT_VERDICT_STAMP);

    verdict->allowed = ((flags & RATELIMIT_SCRIPT_ALLOWED) != 0);
    verdict->soft = ((flags & RATELIMIT_SCRIPT_SOFT) != 0);
    verdict->rebase = ((flags & RATELIMIT_SCRIPT_REBASE) != 0);

    verdict->next_after = 0;

    if (verdict->allowed) {
        verdict->next_after = verdict->retry_after;
        verdict->retry_after = 0;
    }

    return ratelimit_script_valid(item->rule, verdict, flags);
}


/*
 * A refusal has a time to retry, and neither a delay nor a soft limit; no delay
 * is longer than the rule can make it.
 */

static int
ratelimit_script_valid(const ratelimit_rule_t *rule,
    const ratelimit_verdict_t *verdict, uint64_t flags)
{
    uint64_t  longest;

    longest = rule->wait + RATELIMIT_SKEW
              + ratelimit_muldiv_ceil(rule->ceiling, rule->period,
                                      rule->limit);

    if (flags > RATELIMIT_SCRIPT_FLAGS
        || verdict->remaining > verdict->limit
        || verdict->reset_after > RATELIMIT_SCRIPT_MAX
        || verdict->retry_after > RATELIMIT_SCRIPT_MAX
        || verdict->next_after > RATELIMIT_SCRIPT_MAX
        || verdict->delay > longest
        || verdict->excess > RATELIMIT_SCRIPT_MAX
        || verdict->stamp > RATELIMIT_SCRIPT_MAX)
    {
        return 0;
    }

    if (!verdict->allowed) {
        return verdict->retry_after && !verdict->delay && !verdict->soft;
    }

    return !(verdict->soft && verdict->remaining);
}


void
ratelimit_script_no_refund(unsigned char *argument)
{
    (void) ratelimit_script_write(argument + RATELIMIT_SCRIPT_ARGUMENT_COST, 0);
}


int
ratelimit_script_to_refund(unsigned char *argument, const unsigned char *reply)
{
    uint64_t  stamp;

    stamp = ratelimit_bytes_read(reply + RATELIMIT_SCRIPT_VERDICT_STAMP);

    (void) ratelimit_script_write(argument + RATELIMIT_SCRIPT_ARGUMENT_STAMP,
                                  stamp);

    return (ratelimit_bytes_read(reply) & RATELIMIT_SCRIPT_ALLOWED) != 0;
}
