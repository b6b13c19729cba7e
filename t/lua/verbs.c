
/*
 * The verbs of the scripts as algorithms of the core: with these, the program
 * that runs t/vectors/ against the core runs them against the scripts.
 *
 * A state is a number here, which is its key in Redis; 0 if it has none yet.
 */


#include "fake.h"


extern const ratelimit_algorithm_t *const
    lua_algorithms[RATELIMIT_ALGORITHMS];


static void verbs_call(const char *verb, const ratelimit_item_t *item,
    const ratelimit_clock_t *clock, unsigned char *verdict);
static void verbs_args(redis_args_t *args, const char *verb,
    const ratelimit_item_t *item);
static void verbs_look(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static void verbs_charge(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict);
static void verbs_describe(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static void verbs_punish(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict);
static uint64_t verbs_reserve(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost);
static void verbs_commit(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static void verbs_refund(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static void verbs_add(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);
static size_t verbs_size(const ratelimit_shape_t *shape);
static void verbs_item(ratelimit_item_t *item, const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    uint64_t cost);


/* the verb is an argument instead of being chosen */

static const char  verbs_chosen[] = "local verb, again, result, before\n";
static const char  verbs_given[] =
    "local verb, again, result, before = ARGV[4], nil, ''\n";


#define verbs_algorithm(NAME, title)                                          \
    &(const ratelimit_algorithm_t) {                                          \
      .name = #title, .look = verbs_look, .charge = verbs_charge,             \
      .punish = verbs_punish, .describe = verbs_describe,                     \
      .reserve = verbs_reserve, .commit = verbs_commit,                       \
      .refund = verbs_refund, .add = verbs_add, .size = verbs_size },

const ratelimit_algorithm_t *const  lua_algorithms[RATELIMIT_ALGORITHMS] = {
    ratelimit_each_algorithm(verbs_algorithm)
};


static void
verbs_call(const char *verb, const ratelimit_item_t *item,
    const ratelimit_clock_t *clock, unsigned char *verdict)
{
    char                  now[32], wall[32];
    redisReply           *reply;
    redis_args_t          args;
    const unsigned char  *result;

    verbs_args(&args, verb, item);

    snprintf(now, sizeof(now), "%llu", (unsigned long long) clock->now);
    snprintf(wall, sizeof(wall), "%llu", (unsigned long long) clock->wall);

    redis_add(&args, now, strlen(now));
    redis_add(&args, wall, strlen(wall));

    reply = redis_call(&args);

    if (reply->type == REDIS_REPLY_ERROR) {
        fprintf(stderr, "%s: %s\n", verb, reply->str);
        exit(2);
    }

    if (verdict != NULL) {
        result = redis_verdicts(reply, 1);

        if (result == NULL) {
            fprintf(stderr, "%s: %zu bytes\n", verb, (size_t) reply->len);
            exit(2);
        }

        memcpy(verdict, result, RATELIMIT_SCRIPT_VERDICT);
    }

    freeReplyObject(reply);
}


static void
verbs_args(redis_args_t *args, const char *verb, const ratelimit_item_t *item)
{
    const char  *keys[2];

    static char      sha[41], sync[41], key[32], record[32];
    static uint64_t  states;

    if (redis == NULL) {
        redis_open(getenv("RATELIMIT_REDIS"));
        fake_load(&ratelimit_scripts[RATELIMIT_SCRIPT_MIXED], verbs_chosen,
                  verbs_given, sha);
        fake_load(&ratelimit_sync_scripts[RATELIMIT_SCRIPT_MIXED], NULL, NULL,
                  sync);
    }

    if (*item->state == 0) {
        *item->state = ++states;
    }

    snprintf(key, sizeof(key), "state:%llu",
             (unsigned long long) *item->state);
    snprintf(record, sizeof(record), "record:%llu",
             (unsigned long long) *item->state);

    keys[0] = key;
    keys[1] = record;

    if (strcmp(verb, "add") == 0) {
        redis_exchange(args, sync, keys, keys + 1, item, 1);
        return;
    }

    redis_evalsha(args, sha,
                  strcmp(verb, "refund") == 0 ? RATELIMIT_SCRIPT_REFUND
                  : strcmp(verb, "commit") == 0 ? RATELIMIT_SCRIPT_COMMIT
                  : RATELIMIT_SCRIPT_DECIDE,
                  keys, item, 1);
    redis_add(args, verb, strlen(verb));
}


static void
verbs_item(ratelimit_item_t *item, const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    uint64_t cost)
{
    memset(item, 0, sizeof(ratelimit_item_t));

    item->shape = shape;
    item->rule = rule;
    item->state = (ratelimit_state_t *) state;
    item->cost = cost;
}


static void
verbs_look(const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_state_t *state, const ratelimit_clock_t *clock,
    uint64_t cost, ratelimit_verdict_t *verdict)
{
    unsigned char     reply[RATELIMIT_SCRIPT_VERDICT];
    ratelimit_item_t  item;

    verbs_item(&item, shape, rule, state, cost);
    verbs_call("look", &item, clock, reply);

    if (!ratelimit_script_verdict(&item, reply)) {
        fprintf(stderr, "look: not a verdict\n");
        exit(2);
    }

    *verdict = item.verdict;
}


static void
verbs_charge(const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    ratelimit_state_t *state, const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict)
{
    ratelimit_item_t  item;

    (void) verdict;

    verbs_item(&item, shape, rule, state, cost);
    verbs_call("charge", &item, clock, NULL);
}


/* a script's look has set all fields */

static void
verbs_describe(const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_state_t *state, const ratelimit_clock_t *clock,
    uint64_t cost, ratelimit_verdict_t *verdict)
{
    (void) shape;
    (void) rule;
    (void) state;
    (void) clock;
    (void) cost;
    (void) verdict;
}


static void
verbs_punish(const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    ratelimit_state_t *state, const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict)
{
    ratelimit_item_t  item;

    (void) verdict;

    verbs_item(&item, shape, rule, state, cost);
    verbs_call("punish", &item, clock, NULL);
}


static void
verbs_refund(const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    ratelimit_state_t *state, const ratelimit_clock_t *clock, uint64_t stamp,
    uint64_t cost)
{
    ratelimit_item_t  item;

    verbs_item(&item, shape, rule, state, cost);
    item.reserve = ((stamp & RATELIMIT_RESERVED) != 0);
    item.verdict.stamp = stamp;

    verbs_call("refund", &item, clock, NULL);
}


/* the look says the stamp */

static uint64_t
verbs_reserve(const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    ratelimit_state_t *state, const ratelimit_clock_t *clock, uint64_t cost)
{
    unsigned char     reply[RATELIMIT_SCRIPT_VERDICT];
    ratelimit_item_t  item;

    verbs_item(&item, shape, rule, state, cost);
    item.reserve = 1;

    verbs_call("look", &item, clock, reply);

    if (!ratelimit_script_verdict(&item, reply)) {
        fprintf(stderr, "reserve: not a verdict\n");
        exit(2);
    }

    verbs_call("charge", &item, clock, NULL);

    return RATELIMIT_RESERVED | item.verdict.stamp;
}


static void
verbs_commit(const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    ratelimit_state_t *state, const ratelimit_clock_t *clock, uint64_t stamp,
    uint64_t cost)
{
    ratelimit_item_t  item;

    verbs_item(&item, shape, rule, state, cost);
    item.reserve = 1;
    item.verdict.stamp = stamp;

    verbs_call("commit", &item, clock, NULL);
}


static void
verbs_add(const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    ratelimit_state_t *state, const ratelimit_clock_t *clock, uint64_t stamp,
    uint64_t cost)
{
    ratelimit_item_t  item;

    verbs_item(&item, shape, rule, state, cost);
    item.verdict.stamp = stamp;

    verbs_call("add", &item, clock, NULL);
}


static size_t
verbs_size(const ratelimit_shape_t *shape)
{
    (void) shape;

    return sizeof(ratelimit_state_t);
}
