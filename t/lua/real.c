
/*
 * The scripts unchanged, with Redis' clock: which script decides which limits,
 * when a state expires, and what happens with a state of arbitrary bytes.
 *
 *   real SOCKET [SEED]
 */


#include <unistd.h>

#include "redis.h"
#include "random.h"


#define REAL_ALL   ((1 << RATELIMIT_ALGORITHMS) - 1)

/* of a large log: places, and bytes with its index */
#define REAL_LARGE        4096
#define REAL_LARGE_BYTES  (15 + REAL_LARGE * 5 + REAL_LARGE / 8               \
                           + REAL_LARGE / 256 * 4 + 8)


static char  real_sha[RATELIMIT_SCRIPTS][41];


static void real_rule(ratelimit_item_t *item, ratelimit_shape_t *shape,
    ratelimit_rule_t *rule, ratelimit_algorithm_e algorithm);
static redisReply *real_call(unsigned mask, ratelimit_script_e op,
    ratelimit_item_t *items, const char *const *keys, size_t n);
static int real_decide(unsigned mask, ratelimit_item_t *items,
    const char *const *keys, size_t n);
static int real_one(ratelimit_item_t *item, const char *key);
static uint64_t real_now(void);
static long long real_number(const char *command, const char *key);
static void real_sets(void);
static void real_expiry(ratelimit_algorithm_e algorithm);
static void real_expiries(void);
static void real_expired(void);
static void real_always_expires(ratelimit_algorithm_e algorithm);
static void real_wrong_type(void);
static void real_garbage(ratelimit_algorithm_e algorithm);
static void real_text(ratelimit_algorithm_e algorithm);
static uint64_t real_plant(void);
static void real_large_garbage(void);


/* ten requests in a second, at once */

static void
real_rule(ratelimit_item_t *item, ratelimit_shape_t *shape,
    ratelimit_rule_t *rule, ratelimit_algorithm_e algorithm)
{
    memset(item, 0, sizeof(ratelimit_item_t));
    memset(shape, 0, sizeof(ratelimit_shape_t));
    memset(rule, 0, sizeof(ratelimit_rule_t));

    rule->limit = 10;
    rule->period = RATELIMIT_SECOND;
    rule->capacity = 10;
    rule->ceiling = 10;
    rule->free = RATELIMIT_NODELAY;

    shape->algorithm = algorithm;
    shape->buckets = 10;

    ratelimit_shape_fit(shape, rule->ceiling);

    item->shape = shape;
    item->rule = rule;
    item->cost = 1;
}


static redisReply *
real_call(unsigned mask, ratelimit_script_e op, ratelimit_item_t *items,
    const char *const *keys, size_t n)
{
    redis_args_t  args;

    redis_evalsha(&args, real_sha[ratelimit_script_select(mask)], op, keys,
                  items, n);

    return redis_call(&args);
}


/* returns 0 if there are no valid verdicts */

static int
real_decide(unsigned mask, ratelimit_item_t *items, const char *const *keys,
    size_t n)
{
    int                   valid;
    size_t                i;
    redisReply           *reply;
    const unsigned char  *result;

    reply = real_call(mask, RATELIMIT_SCRIPT_DECIDE, items, keys, n);

    result = redis_verdicts(reply, n);
    valid = (result != NULL);

    if (reply->type == REDIS_REPLY_ERROR) {
        tap_note("%s", reply->str);
    }

    for (i = 0; i < n && valid; i++) {
        valid = ratelimit_script_verdict(&items[i],
                                         result
                                         + i * RATELIMIT_SCRIPT_VERDICT);
    }

    freeReplyObject(reply);

    return valid;
}


static int
real_one(ratelimit_item_t *item, const char *key)
{
    return real_decide(1 << item->shape->algorithm, item, &key, 1);
}


static uint64_t
real_now(void)
{
    uint64_t     now;
    redisReply  *reply;

    reply = redisCommand(redis, "TIME");

    now = strtoull(reply->element[0]->str, NULL, 10) * RATELIMIT_SECOND
          + strtoull(reply->element[1]->str, NULL, 10);

    freeReplyObject(reply);

    return now;
}


static long long
real_number(const char *command, const char *key)
{
    long long    number;
    redisReply  *reply;

    reply = redisCommand(redis, "%s %s", command, key);
    number = (reply->type == REDIS_REPLY_INTEGER) ? reply->integer : -9;

    freeReplyObject(reply);

    return number;
}


/* any set of algorithms is decided by the script that is selected for it */

static void
real_sets(void)
{
    char               names[RATELIMIT_ALGORITHMS][32];
    size_t             n;
    unsigned           i, mask, good;
    const char        *keys[RATELIMIT_ALGORITHMS];
    ratelimit_rule_t   rules[RATELIMIT_ALGORITHMS];
    ratelimit_item_t   items[RATELIMIT_ALGORITHMS];
    ratelimit_shape_t  shapes[RATELIMIT_ALGORITHMS];

    good = 0;

    for (mask = 1; mask <= REAL_ALL; mask++) {
        n = 0;

        for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
            if (mask & 1 << i) {
                real_rule(&items[n], &shapes[n], &rules[n], i);
                snprintf(names[n], sizeof(names[n]), "mask:%u:%u", mask, i);
                keys[n] = names[n];
                n++;
            }
        }

        if (!real_decide(mask, items, keys, n)) {
            continue;
        }

        for (i = 0; i < n; i++) {
            if (!items[i].verdict.allowed || items[i].verdict.remaining != 9) {
                break;
            }
        }

        good += (i == n);
    }

    tap_ok(good == REAL_ALL, "%u sets of algorithms have a script", good);
}


/* a charge has an expiry, which is the time at which the limit is whole */

static void
real_expiry(ratelimit_algorithm_e algorithm)
{
    char               key[64];
    uint64_t           before, after;
    unsigned           i, bad, tried;
    long long          expires;
    ratelimit_rule_t   rule;
    ratelimit_item_t   item;
    ratelimit_shape_t  shape;

    static const uint64_t  periods[] = { 1, 60, 86400, 366 * 86400 };

    bad = 0;
    tried = 0;

    for (i = 0; i < 200; i++) {
        real_rule(&item, &shape, &rule, algorithm);

        rule.period = periods[i / 4 % 4] * RATELIMIT_SECOND;
        item.cost = random_between(1, 3);

        snprintf(key, sizeof(key), "expiry:%u:%u", algorithm, i / 4);

        before = real_now();

        if (!real_one(&item, key)) {
            bad++;
            break;
        }

        after = real_now();
        expires = real_number("PEXPIRETIME", key);

        if (!item.verdict.allowed) {
            continue;
        }

        tried++;

        /* on a busy machine it may have expired already */

        if (expires == -2) {
            bad += (real_now() < before + item.verdict.reset_after);
            continue;
        }

        expires *= 1000;

        bad += (expires < (long long) (before + item.verdict.reset_after)
                || expires > (long long) (after + item.verdict.reset_after
                                          + 1000));
    }

    tap_ok(bad == 0 && tried >= 150,
           "%s: a state expires when it equals one never seen (%u tried)",
           ratelimit_algorithms[algorithm]->name, tried);
}


static void
real_expiries(void)
{
    unsigned  i;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        real_expiry(i);
    }
}


/* a state is there until its expiry; after it, the key is as never seen */

static void
real_expired(void)
{
    char               key[RATELIMIT_ALGORITHMS][32];
    uint64_t           now, last, whole[RATELIMIT_ALGORITHMS];
    unsigned           i, early, gone, fresh;
    ratelimit_rule_t   rule;
    ratelimit_item_t   item;
    ratelimit_shape_t  shape;

    early = 0;
    gone = 0;
    fresh = 0;
    last = 0;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        snprintf(key[i], sizeof(key[i]), "gone:%u", i);
        real_rule(&item, &shape, &rule, i);
        item.cost = 10;

        whole[i] = real_now();

        if (!real_one(&item, key[i]) || item.verdict.remaining != 0) {
            early++;
        }

        whole[i] += item.verdict.reset_after;

        now = real_now() + item.verdict.reset_after;
        last = (now > last) ? now : last;
    }

    do {
        for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
            gone = (unsigned) real_number("EXISTS", key[i]);
            early += (gone == 0 && real_now() < whole[i]);
        }

        usleep(1000);
        now = real_now();

    } while (now < last + 3000);

    gone = 0;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        gone += (real_number("EXISTS", key[i]) == 0);

        real_rule(&item, &shape, &rule, i);

        fresh += (real_one(&item, key[i]) && item.verdict.allowed
                  && item.verdict.remaining == 9);
    }

    tap_ok(early == 0, "no state expires early");
    tap_ok(gone == RATELIMIT_ALGORITHMS, "all states expire");
    tap_ok(fresh == RATELIMIT_ALGORITHMS,
           "an expired state is as one never seen");
}


/* whatever the call, there is no key without an expiry */

static void
real_always_expires(ratelimit_algorithm_e algorithm)
{
    char                  key[32];
    unsigned              i, endless, charged;
    const char           *keys[1];
    redisReply           *reply;
    ratelimit_rule_t      rule;
    ratelimit_item_t      item;
    ratelimit_shape_t     shape;
    ratelimit_script_e    op;

    endless = 0;
    charged = 0;
    keys[0] = key;

    real_rule(&item, &shape, &rule, algorithm);

    rule.period = 60 * RATELIMIT_SECOND;

    for (i = 0; i < 500; i++) {
        snprintf(key, sizeof(key), "always:%u:%u", algorithm, i / 50);

        item.cost = random_below(5);
        item.count_rejected = random_percent(20);

        op = random_percent(60) ? RATELIMIT_SCRIPT_DECIDE
             : random_percent(70) ? RATELIMIT_SCRIPT_REFUND
             : RATELIMIT_SCRIPT_REFUSED;

        if (op == RATELIMIT_SCRIPT_DECIDE) {
            charged += real_one(&item, key);

        } else {
            reply = real_call(1 << algorithm, op, &item, keys, 1);
            endless += (redis_verdicts(reply, op != RATELIMIT_SCRIPT_REFUND)
                        == NULL);
            freeReplyObject(reply);
        }

        endless += (real_number("PTTL", key) == -1);
    }

    tap_ok(endless == 0 && charged, "%s: a state always has an expiry",
           ratelimit_algorithms[algorithm]->name);
}


/* as if it had never been seen: the next charge replaces it */

static void
real_wrong_type(void)
{
    unsigned              i, decided, refunded, replaced;
    redisReply           *reply;
    ratelimit_rule_t      rules[2];
    ratelimit_item_t      items[2];
    ratelimit_shape_t     shapes[2];
    const unsigned char  *result;

    static const char *const  keys[] = { "right", "wrong" };

    decided = 0;
    refunded = 0;
    replaced = 0;

    for (i = 0; i < 2 * RATELIMIT_ALGORITHMS; i++) {
        real_rule(&items[0], &shapes[0], &rules[0], i / 2);
        real_rule(&items[1], &shapes[1], &rules[1], i / 2);

        /* a long log is read in pieces */

        if (i % 2 && shapes[1].ring) {
            shapes[1].ring = 2000;
        }

        freeReplyObject(redisCommand(redis, "DEL right wrong"));
        freeReplyObject(redisCommand(redis, "RPUSH wrong a b c"));

        reply = real_call(1 << (i / 2), RATELIMIT_SCRIPT_REFUND, items, keys,
                          2);
        refunded += (redis_verdicts(reply, 0) != NULL);
        freeReplyObject(reply);

        reply = real_call(1 << (i / 2), RATELIMIT_SCRIPT_DECIDE, items, keys,
                          2);

        result = redis_verdicts(reply, 2);
        decided += (result != NULL
                    && ratelimit_script_verdict(&items[1], result
                                                + RATELIMIT_SCRIPT_VERDICT)
                    && items[1].verdict.allowed);
        freeReplyObject(reply);

        replaced += (real_number("PTTL", "wrong") > 0
                     && real_number("STRLEN", "wrong") > 0);
    }

    tap_ok(refunded == 2 * RATELIMIT_ALGORITHMS,
           "a value of another type has nothing to refund");
    tap_ok(decided == 2 * RATELIMIT_ALGORITHMS,
           "the request is decided as if there was none");
    tap_ok(replaced == 2 * RATELIMIT_ALGORITHMS, "and the value is replaced");
}


/* a text as long as a state is none: its time is that of no clock */

static void
real_text(ratelimit_algorithm_e algorithm)
{
    unsigned           admitted;
    ratelimit_rule_t   rule;
    ratelimit_item_t   item;
    ratelimit_shape_t  shape;
    const char *const  *text;

    static const char *const  texts[] = {
        "abcdefghijkl", "abcdefghijklmnopqrstuvwxyz", NULL
    };

    admitted = 0;

    for (text = texts; *text != NULL; text++) {
        real_rule(&item, &shape, &rule, algorithm);
        freeReplyObject(redisCommand(redis, "SET text %s", *text));

        admitted += (real_one(&item, "text") && item.verdict.allowed
                     && item.verdict.remaining == rule.capacity - 1
                     && real_number("STRLEN", "text") == 12);
    }

    tap_ok(admitted == 2, "%s: a text is replaced",
           ratelimit_algorithms[algorithm]->name);
}


/* a state of any bytes gives a valid verdict, and gets an expiry */

static void
real_garbage(ratelimit_algorithm_e algorithm)
{
    char               state[512];
    size_t             j, len, most;
    unsigned           i, bad, endless;
    redis_args_t       args;
    ratelimit_rule_t   rule;
    ratelimit_item_t   item;
    ratelimit_shape_t  shape;

    size_t  lengths[] = { 0, 10 + 22, 10 + 44, 15 + 5, 15 + 50 };

    bad = 0;
    endless = 0;
    most = sizeof(state);

    /* the length of a state that the script has written */

    real_rule(&item, &shape, &rule, algorithm);
    bad += !real_one(&item, "garbage");
    lengths[0] = (size_t) real_number("STRLEN", "garbage");

    for (i = 0; i < 1000; i++) {
        real_rule(&item, &shape, &rule, algorithm);

        len = random_percent(60) ? lengths[random_below(5)]
                                 : random_below(most);

        for (j = 0; j < len; j++) {
            state[j] = random_percent(50) ? 0 : (char) random_next();
        }

        args.n = 0;
        redis_add(&args, "SET", 3);
        redis_add(&args, "garbage", 7);
        redis_add(&args, state, len);
        freeReplyObject(redis_call(&args));

        for (j = 0; j < 3; j++) {
            item.count_rejected = (j == 1);
            bad += !real_one(&item, "garbage");
        }

        endless += (real_number("PTTL", "garbage") == -1);

        freeReplyObject(redisCommand(redis, "DEL garbage"));
    }

    tap_ok(bad == 0, "%s: any bytes give valid verdicts (%u failed)",
           ratelimit_algorithms[algorithm]->name, bad);
    tap_ok(endless == 0, "%s: any bytes get an expiry (%u have none)",
           ratelimit_algorithms[algorithm]->name, endless);
}


/* a large log, 32 times of each 100 us, that has an index of any bytes */

static uint64_t
real_plant(void)
{
    size_t         j;
    uint32_t       head, n, edge, gap;
    uint64_t       now, time;
    redis_args_t   args;

    static unsigned char  state[REAL_LARGE_BYTES];

    now = real_now();
    head = (uint32_t) random_below(REAL_LARGE);
    n = (uint32_t) random_below(REAL_LARGE + 1);
    edge = (uint32_t) random_below(REAL_LARGE + 10);
    gap = random_percent(50) ? 0 : (uint32_t) random_below(REAL_LARGE + 10);

    for (j = 15; j < REAL_LARGE_BYTES; j++) {
        state[j] = random_percent(80) ? 0 : (unsigned char) random_next();
    }

    for (j = 0; j < REAL_LARGE; j++) {
        time = now - j / 32 * 100;
        memcpy(state + 15 + (head + REAL_LARGE - 1 - j) % REAL_LARGE * 5, &time,
               5);
    }

    memcpy(state, &now, 7);
    head |= 1U << 30;
    memcpy(state + 7, &head, 4);
    memcpy(state + 11, &n, 4);
    memcpy(state + REAL_LARGE_BYTES - 8, &edge, 4);
    memcpy(state + REAL_LARGE_BYTES - 4, &gap, 4);

    args.n = 0;
    redis_add(&args, "SET", 3);
    redis_add(&args, "garbage", 7);
    redis_add(&args, state, REAL_LARGE_BYTES);
    freeReplyObject(redis_call(&args));

    return now;
}


static void
real_large_garbage(void)
{
    uint64_t           now;
    unsigned           i, j, bad;
    redisReply        *reply;
    const char        *key;
    ratelimit_rule_t   rule;
    ratelimit_item_t   item;
    ratelimit_shape_t  shape;

    bad = 0;
    key = "garbage";

    for (i = 0; i < 1000; i++) {
        real_rule(&item, &shape, &rule, RATELIMIT_SLIDING_LOG);

        if (random_percent(80)) {
            rule.limit = random_between(10, 2 * REAL_LARGE);
            rule.ceiling = rule.limit;
            ratelimit_shape_fit(&shape, rule.ceiling);
        }

        now = real_plant();
        item.count_rejected = 1;

        for (j = 0; j < 4; j++) {
            item.cost = 1;
            bad += !real_one(&item, key);

            item.cost = random_between(1, 50);
            item.verdict.stamp = random_percent(50) ? RATELIMIT_LATEST
                                 : now - random_below(REAL_LARGE / 32) * 100;

            reply = real_call(1 << RATELIMIT_SLIDING_LOG,
                              RATELIMIT_SCRIPT_REFUND, &item, &key, 1);
            bad += (redis_verdicts(reply, 0) == NULL);
            freeReplyObject(reply);
        }

        bad += (real_number("PTTL", key) == -1);

        freeReplyObject(redisCommand(redis, "DEL %s", key));
    }

    tap_ok(bad == 0, "a large sliding_log: any bytes give valid verdicts "
           "(%u failed)", bad);
}


int
main(int argc, char **argv)
{
    unsigned  i;

    if (argc < 2) {
        fprintf(stderr, "usage: real SOCKET [SEED]\n");
        return 2;
    }

    random_start(argc - 1, argv + 1);
    redis_open(argv[1]);

    for (i = 0; i < RATELIMIT_SCRIPTS; i++) {
        redis_load(ratelimit_scripts[i].text, real_sha[i]);
    }

    real_sets();
    real_expiries();
    real_expired();

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        real_always_expires(i);
    }

    real_wrong_type();

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        real_garbage(i);
    }

    real_text(RATELIMIT_TOKEN_BUCKET);
    real_text(RATELIMIT_LEAKY_BUCKET);
    real_large_garbage();

    redisFree(redis);

    return tap_done();
}
