
/*
 * The scripts against the core: random decisions and refunds of random limits,
 * some at a time, while the clock goes forward and is set back and rules are
 * changed.  Each verdict and each expiry must be the same.
 *
 * What happens next depends on the core alone, so many commands are sent before
 * their replies are received.
 *
 *   compare SOCKET STEPS [SEED [ALGORITHM]]
 */


#include "algorithm.h"
#include "fake.h"
#include "core/ratelimit_math.h"
#include "decision.h"
#include "world.h"


#define COMPARE_BATCH   200
#define COMPARE_WORLD   150    /* steps of one world */
#define COMPARE_CHARGES 64     /* charges that may be refunded */
#define COMPARE_KEPT    (compare_small ? COMPARE_CHARGES : 8)
#define COMPARE_MIXED   RATELIMIT_SCRIPT_MIXED
#define COMPARE_RESERVED 26    /* bytes of a bucket with reservations */


typedef struct {
    ratelimit_shape_t               shape;
    ratelimit_rule_t                rule;
    ratelimit_state_t              *state;
    unsigned                        shared;   /* the state is that of the
                                                 limit before */
    char                            key[32];
} compare_limit_t;


/* one decision that may be refunded */

typedef struct {
    uint64_t                        stamp[REDIS_ITEMS];
    uint64_t                        cost[REDIS_ITEMS];
    uint8_t                         reserve[REDIS_ITEMS];
    unsigned                        settled;
} compare_charge_t;


typedef struct {
    ratelimit_clock_t               clock;
    size_t                          n;
    compare_limit_t                 limits[REDIS_ITEMS];
    ratelimit_item_t                items[REDIS_ITEMS];
    compare_charge_t                refundable[COMPARE_CHARGES];
    unsigned                        charges;
    unsigned                        changed;  /* to a smaller shape */
} compare_world_t;


/* a call of a script, and the verdicts of the core */

typedef struct {
    ratelimit_script_e              op;
    ratelimit_clock_t               clock;
    size_t                          n;
    ratelimit_item_t                items[REDIS_ITEMS];
    ratelimit_shape_t               shapes[REDIS_ITEMS];
    ratelimit_rule_t                rules[REDIS_ITEMS];
    uint64_t                        next_after[REDIS_ITEMS];
    uint64_t                        expires[REDIS_ITEMS];
    unsigned                        with_expires;
} compare_call_t;

/* where another limit has the same state, that is not compared */
#define COMPARE_ANY  UINT64_MAX


/*
 * The sizes of a large log, and others with which a small one is large: its
 * places, those of a group, what a refund may move, and what more for each time
 * that it takes back.
 */

#define COMPARE_SIZES   4
#define COMPARE_TINY    3

static const char      *compare_large[COMPARE_SIZES] = {
    "4096", "256", "1024 +", "48 *"
};

static const char      *compare_tiny[COMPARE_TINY][COMPARE_SIZES] = {
    { "8", "8", "0 +", "1 *" },
    { "16", "8", "6 +", "2 *" },
    { "24", "16", "1 +", "3 *" }
};

static char             compare_sha[41];
static char             compare_sync[41];
static compare_call_t   compare_calls[COMPARE_BATCH];
static unsigned         compare_n;
static unsigned         compare_keys;

static unsigned         compare_verdicts;
static unsigned         compare_refused;
static unsigned         compare_rebased;
static unsigned         compare_soft;
static unsigned         compare_wide;
static unsigned         compare_last;
static unsigned         compare_expiries;
static unsigned         compare_added;
static unsigned         compare_read;
static unsigned         compare_states;
static unsigned         compare_failed;
static unsigned         compare_small;    /* which small logs are large */


static int compare_seldom(unsigned percent);
static void compare_fit(compare_limit_t *limit);
static void compare_random_rule(compare_limit_t *limit);
static void compare_change(compare_world_t *w);
static void compare_open(compare_world_t *w, unsigned algorithm);
static void compare_close(compare_world_t *w);
static void compare_move(compare_world_t *w);
static int compare_stale(const compare_world_t *w,
    const compare_charge_t *charge);
static uint64_t compare_late(const compare_world_t *w,
    const compare_limit_t *limit);
static void compare_keep(compare_world_t *w, compare_charge_t *charge);
static ratelimit_script_e compare_settle_op(compare_world_t *w,
    compare_charge_t *charge);
static ratelimit_script_e compare_give_back(compare_world_t *w);
static ratelimit_script_e compare_batch(compare_world_t *w);
static uint64_t compare_cost(const ratelimit_rule_t *rule);
static ratelimit_script_e compare_op(compare_world_t *w);
static void compare_debit(compare_world_t *w);
static void compare_core(compare_world_t *w, ratelimit_script_e op);
static uint64_t compare_next(const compare_world_t *w, size_t i,
    ratelimit_script_e op);
static void compare_send(compare_world_t *w, ratelimit_script_e op);
static void compare_send_expires(compare_world_t *w, compare_call_t *call);
static void compare_expires(const compare_call_t *call, size_t i,
    const redisReply *reply);
static void compare_grants(compare_call_t *call, const redisReply *reply);
static void compare_receive(void);
static void compare_report(const compare_call_t *call, size_t i,
    const char *what, uint64_t got, uint64_t want);
static void compare_verdict(compare_call_t *call, size_t i,
    const unsigned char *bytes);
static void compare_step(compare_world_t *w);
static void compare_load(const ratelimit_script_t *script, char *sha);
static void compare_run(unsigned algorithm, unsigned steps);
static void compare_run_large(unsigned steps);


/* what would empty a log, or make it small, before much is refunded there */

static int
compare_seldom(unsigned percent)
{
    return random_percent(percent) && (!compare_small || random_percent(15));
}


static void
compare_fit(compare_limit_t *limit)
{
    limit->shape.width = 0;
    limit->shape.ring = 0;

    ratelimit_shape_fit(&limit->shape, limit->rule.ceiling);
}


/* of all sizes that are allowed; a period that is set stays */

static void
compare_random_rule(compare_limit_t *limit)
{
    uint64_t                      most, waiting;
    ratelimit_rule_t             *rule;
    const ratelimit_algorithm_t  *traits;

    rule = &limit->rule;
    traits = ratelimit_algorithms[limit->shape.algorithm];

    if (rule->period == 0) {
        rule->period = random_percent(40) ? random_between(1, 60)
                       : random_percent(50) ? random_between(1, 366 * 86400)
                       : random_percent(50) ? 366 * 86400
                       : random_between(549754, 549757);
        rule->period *= RATELIMIT_SECOND;
    }

    most = ratelimit_min((RATELIMIT_MAX_PRODUCT - 1) / rule->period,
                         RATELIMIT_MAX_LIMIT);

    if (traits->sized) {
        most = random_percent(10) ? 3000 : random_percent(30) ? 100 : 8;

    } else if (random_percent(50)) {
        most = random_percent(50) ? 8 : 100000;
    }

    if (compare_small) {
        most = random_percent(20) ? 1000 : 100;
    }

    rule->limit = random_percent(20) ? most : random_between(1, most);
    rule->capacity = rule->limit;

    if (traits->takes & (RATELIMIT_TAKES_CAPACITY|RATELIMIT_TAKES_BURST)) {
        rule->capacity = random_percent(20) ? most : random_between(1, most);
    }

    rule->ceiling = random_percent(30) ? random_between(rule->capacity, most)
                    : random_percent(5) ? random_between(1, rule->capacity)
                    : rule->capacity;
    rule->free = random_percent(30) ? RATELIMIT_NODELAY : random_below(5);
    rule->wait = 0;

    if (traits->takes & RATELIMIT_TAKES_WAIT && random_percent(40)) {
        rule->wait = random_below(2 * rule->period);
        waiting = (rule->wait + rule->period - 1) / rule->period;

        if (ratelimit_max(rule->ceiling, rule->limit) + waiting * rule->limit
            > (RATELIMIT_MAX_PRODUCT - 1) / rule->period)
        {
            rule->wait = 0;
        }
    }

    compare_fit(limit);
}


/* what the new shape has no room for is lost with the next charge */

static void
compare_change(compare_world_t *w)
{
    size_t                        i;
    compare_limit_t              *limit, old;
    const ratelimit_algorithm_t  *algorithm;

    for (i = 0; i < w->n; i++) {
        limit = &w->limits[i];

        if (limit->shared) {
            *limit = w->limits[i - 1];
            limit->shared = 1;
            continue;
        }

        old = *limit;
        compare_random_rule(limit);

        algorithm = ratelimit_algorithms[limit->shape.algorithm];

        limit->state = calloc(1, algorithm->size(&limit->shape));
        if (limit->state == NULL) {
            abort();
        }

        algorithm->copy(&limit->shape, limit->state, &old.shape, old.state);

        free(old.state);

        w->changed |= (limit->shape.width < old.shape.width
                       || limit->shape.ring < old.shape.ring);
    }
}


static void
compare_open(compare_world_t *w, unsigned algorithm)
{
    size_t            i;
    compare_limit_t  *limit;

    memset(w, 0, sizeof(compare_world_t));

    w->n = (algorithm == COMPARE_MIXED || random_percent(25))
           ? random_between(2, REDIS_ITEMS) : 1;

    w->clock.now = random_percent(5) ? 0
                   : ((uint64_t) 1 << 50) + random_bits(49);

    for (i = 0; i < w->n; i++) {
        limit = &w->limits[i];

        if (i && random_percent(10)) {
            *limit = w->limits[i - 1];
            limit->shared = 1;
            continue;
        }

        limit->shape.algorithm = (algorithm == COMPARE_MIXED)
                                 ? random_below(RATELIMIT_ALGORITHMS)
                                 : algorithm;
        limit->shape.buckets = world_random_buckets();
        limit->shape.reserves = (ratelimit_algorithms[limit->shape.algorithm]
                                 ->reserve != NULL);

        compare_random_rule(limit);

        snprintf(limit->key, sizeof(limit->key), "%u", ++compare_keys);

        limit->state = calloc(1, ratelimit_algorithms[limit->shape.algorithm]
                                 ->size(&limit->shape));
        if (limit->state == NULL) {
            abort();
        }
    }
}


static void
compare_close(compare_world_t *w)
{
    size_t  i;

    for (i = 0; i < w->n; i++) {
        if (!w->limits[i].shared) {
            free(w->limits[i].state);
        }
    }
}


/* the next moment: often an edge of the last verdict, sometimes the past */

static void
compare_move(compare_world_t *w)
{
    uint64_t             step;
    world_t              world;
    compare_limit_t     *limit;
    ratelimit_verdict_t *v;

    static const uint64_t  back[] = {
        1, RATELIMIT_SKEW - 1, RATELIMIT_SKEW, RATELIMIT_SKEW + 1
    };

    limit = &w->limits[random_below(w->n)];
    v = &w->items[random_below(w->n)].verdict;

    if (compare_seldom(3)) {
        step = random_percent(60) ? back[random_below(4)]
                                  : random_below(3 * limit->rule.period);
        w->clock.now = ratelimit_sub(w->clock.now, step);

    } else if (compare_small && random_percent(99)) {

        /* a log that fills up */

        w->clock.now += random_below(limit->rule.period / 50);

    } else {
        world.rule = limit->rule;
        world.shape = limit->shape;

        step = world_random_step(&world, v);
        w->clock.now += ratelimit_min(step, 3 * limit->rule.period);
    }

    /* a time that the numbers of Lua can express */

    w->clock.now = ratelimit_min(w->clock.now, (uint64_t) 1 << 52);
    w->clock.wall = w->clock.now;
}


/*
 * Whether a log may have dropped what is to be refunded: a log of the core
 * holds times that have left the period until it is full, a log of Redis until
 * it needs room.
 */

static int
compare_stale(const compare_world_t *w, const compare_charge_t *charge)
{
    size_t  i;

    for (i = 0; i < w->n; i++) {
        if (w->limits[i].shape.algorithm == RATELIMIT_SLIDING_LOG
            && w->clock.now >= charge->stamp[i] + w->limits[i].rule.period)
        {
            return 1;
        }
    }

    return 0;
}


/* a charge that was made a while ago, often when it is just past */

static uint64_t
compare_late(const compare_world_t *w, const compare_limit_t *limit)
{
    uint64_t                  back, period;
    const ratelimit_shape_t  *shape;

    shape = &limit->shape;
    period = limit->rule.period;

    switch (shape->algorithm) {

    case RATELIMIT_FIXED_WINDOW:
        return w->clock.now - w->clock.now % period
               + period * random_below(3);

    case RATELIMIT_SLIDING_WINDOW:
        back = random_percent(30) ? 0 : random_below(shape->buckets + 3);
        return ratelimit_sub(w->clock.now * shape->buckets / period, back);

    default:
        back = random_percent(50) ? random_below(period)
                                  : random_below(3 * period);
        return ratelimit_sub(w->clock.now, back);
    }
}


/* a charge is refunded in part, and a second time once more */

static void
compare_keep(compare_world_t *w, compare_charge_t *charge)
{
    size_t             i;
    uint64_t           kept;
    ratelimit_item_t  *item;

    for (i = 0; i < w->n; i++) {
        item = &w->items[i];

        if (item->reserve || item->cost == 0) {
            continue;
        }

        kept = random_below(item->cost);
        item->cost -= kept;
        charge->cost[i] = kept;

        item->verdict.stamp = ratelimit_stamp_above(item->shape, item->rule,
                                                    item->verdict.stamp,
                                                    kept);
    }
}


/* a charge may be refunded twice, a reservation counts once */

static ratelimit_script_e
compare_settle_op(compare_world_t *w, compare_charge_t *charge)
{
    size_t  i;

    for (i = 0; i < w->n; i++) {
        w->items[i].verdict.stamp = charge->stamp[i];
        w->items[i].cost = charge->cost[i];
        w->items[i].reserve = charge->reserve[i];
    }

    if (charge->settled == 0 && random_percent(30)) {
        compare_keep(w, charge);
        return RATELIMIT_SCRIPT_REFUND;
    }

    if (!charge->settled++ && random_percent(50)) {
        return RATELIMIT_SCRIPT_COMMIT;
    }

    return RATELIMIT_SCRIPT_REFUND;
}


/* whatever was charged last */

static ratelimit_script_e
compare_give_back(compare_world_t *w)
{
    size_t  i;

    for (i = 0; i < w->n; i++) {
        w->items[i].verdict.stamp = RATELIMIT_LATEST;
        w->items[i].reserve = 0;

        if (compare_small && random_percent(10)) {
            w->items[i].cost = random_between(1, w->limits[i].rule.ceiling);
        }
    }

    return RATELIMIT_SCRIPT_REFUND;
}


/* limits that share a state have one batch */

static ratelimit_script_e
compare_batch(compare_world_t *w)
{
    size_t  i;

    for (i = 0; i < w->n; i++) {
        w->items[i].verdict.stamp = compare_late(w, &w->limits[i]);
        w->items[i].cost = random_between(1, 4);
        w->items[i].reserve = 0;

        if (w->limits[i].shared) {
            w->items[i] = w->items[i - 1];
        }
    }

    return RATELIMIT_SCRIPT_EXCHANGE;
}


static uint64_t
compare_cost(const ratelimit_rule_t *rule)
{
    if (compare_small && random_percent(95)) {
        return random_between(1, random_percent(70) ? 4 : 20);
    }

    return ratelimit_min(world_random_cost(rule), RATELIMIT_MAX_LIMIT);
}


static ratelimit_script_e
compare_op(compare_world_t *w)
{
    size_t             i;
    unsigned           place;
    compare_charge_t  *charge;

    for (i = 0; i < w->n; i++) {
        w->items[i].shape = &w->limits[i].shape;
        w->items[i].rule = &w->limits[i].rule;
        w->items[i].state = w->limits[i].state;
        w->items[i].cost = compare_cost(&w->limits[i].rule);
        w->items[i].count_rejected = random_percent(15);
        w->items[i].reserve = random_percent(30);
    }

    if (w->changed) {
        for (i = 0; i < w->n; i++) {
            w->items[i].cost = 1;
            w->items[i].count_rejected = 1;
        }

        w->changed = 0;

        return RATELIMIT_SCRIPT_REFUSED;
    }

    if (compare_seldom(10)) {
        return compare_batch(w);
    }

    if (compare_seldom(5)) {
        for (i = 0; i < w->n; i++) {
            w->items[i].cost = random_percent(20)
                               ? random_between(1, RATELIMIT_MAX_LIMIT)
                               : random_between(1, w->limits[i].rule.ceiling);
            w->items[i].reserve = 0;
        }

        return RATELIMIT_SCRIPT_DEBIT;
    }

    place = random_below(COMPARE_KEPT);
    charge = &w->refundable[place];

    if (place < w->charges && !compare_stale(w, charge)
        && random_percent(compare_small ? 40 : 15))
    {
        return compare_settle_op(w, charge);
    }

    if (random_percent(5)) {
        return compare_give_back(w);
    }

    return random_percent(95) ? RATELIMIT_SCRIPT_DECIDE
                              : RATELIMIT_SCRIPT_REFUSED;
}


static void
compare_debit(compare_world_t *w)
{
    size_t            i;
    ratelimit_item_t  item;

    for (i = 0; i < w->n; i++) {
        item = w->items[i];
        item.count_rejected = RATELIMIT_IN_FULL;

        (void) decision_make(&item, 1, &w->clock);
    }
}


static void
compare_core(compare_world_t *w, ratelimit_script_e op)
{
    size_t                        i;
    compare_charge_t             *charge;
    ratelimit_item_t             *item;
    const ratelimit_algorithm_t  *algorithm;

    if (op == RATELIMIT_SCRIPT_DECIDE) {

        if (decision_make(w->items, w->n, &w->clock)) {
            charge = &w->refundable[w->charges++ % COMPARE_KEPT];

            for (i = 0; i < w->n; i++) {
                charge->stamp[i] = w->items[i].verdict.stamp;
                charge->cost[i] = w->items[i].cost;
                charge->reserve[i] = w->items[i].reserve;
            }

            charge->settled = 0;
        }

        return;
    }

    if (op == RATELIMIT_SCRIPT_REFUSED) {
        (void) decision_look(w->items, w->n, &w->clock);
        decision_settle(w->items, w->n, &w->clock, 0);

        return;
    }

    if (op == RATELIMIT_SCRIPT_DEBIT) {
        compare_debit(w);
        return;
    }

    for (i = 0; i < w->n; i++) {
        item = &w->items[i];
        algorithm = ratelimit_algorithms[item->shape->algorithm];

        if (op == RATELIMIT_SCRIPT_EXCHANGE) {
            algorithm->add(item->shape, item->rule, item->state, &w->clock,
                           item->verdict.stamp,
                           w->limits[i].shared ? 0 : item->cost);

        } else if (op == RATELIMIT_SCRIPT_REFUND) {
            algorithm->refund(item->shape, item->rule, item->state, &w->clock,
                              item->verdict.stamp, item->cost);

        } else if (algorithm->commit) {
            algorithm->commit(item->shape, item->rule, item->state, &w->clock,
                              item->verdict.stamp, item->cost);
        }
    }

    if (op == RATELIMIT_SCRIPT_EXCHANGE) {
        for (i = 0; i < w->n; i++) {
            w->items[i].cost = 1;
        }

        (void) decision_look(w->items, w->n, &w->clock);
    }
}


/* how long another request would have to wait now; 0 if it would not */

static uint64_t
compare_next(const compare_world_t *w, size_t i, ratelimit_script_e op)
{
    size_t            k;
    ratelimit_item_t  item;

    for (k = 0; k < w->n; k++) {
        if (!w->items[k].verdict.allowed
            || (k != i && w->limits[k].state == w->limits[i].state))
        {
            return COMPARE_ANY;
        }
    }

    item = w->items[i];

    /* what is reserved is cut to 2^32 */

    if (op != RATELIMIT_SCRIPT_DECIDE
        || (item.reserve && item.rule->ceiling + 4 * item.rule->limit
                            > RATELIMIT_MAX_LIMIT))
    {
        return COMPARE_ANY;
    }

    return decision_look(&item, 1, &w->clock) ? 0 : item.verdict.retry_after;
}


static void
compare_send(compare_world_t *w, ratelimit_script_e op)
{
    char          now[32], names[REDIS_ITEMS][64];
    size_t        i;
    const char   *keys[REDIS_ITEMS], *records[REDIS_ITEMS];
    redis_args_t  args;

    snprintf(now, sizeof(now), "%llu", (unsigned long long) w->clock.now);

    for (i = 0; i < w->n; i++) {
        snprintf(names[i], sizeof(names[i]), "record:%s", w->limits[i].key);
        keys[i] = w->limits[i].key;
        records[i] = names[i];
    }

    if (op == RATELIMIT_SCRIPT_EXCHANGE) {
        redis_exchange(&args, compare_sync, keys, records, w->items, w->n);

    } else {
        redis_evalsha(&args, compare_sha, op, keys, w->items, w->n);
    }

    redis_add(&args, now, strlen(now));
    redis_add(&args, now, strlen(now));

    redis_send(&args);
}


static void
compare_send_expires(compare_world_t *w, compare_call_t *call)
{
    char                          key[64];
    size_t                        i;
    redis_args_t                  args;
    const ratelimit_algorithm_t  *algorithm;

    args.n = 0;
    redis_add(&args, "MGET", 4);

    for (i = 0; i < w->n; i++) {
        algorithm = ratelimit_algorithms[w->limits[i].shape.algorithm];

        call->expires[i] = algorithm->expires(&w->limits[i].shape,
                                              &w->limits[i].rule,
                                              w->limits[i].state);
        if (w->items[i].cost == 0) {
            call->expires[i] = 0;
        }
    }

    for (i = 0; i < w->n; i++) {
        snprintf(key, sizeof(key), "expires:%s", w->limits[i].key);
        args.data[args.n] = strdup(key);
        args.len[args.n++] = strlen(key);
    }

    redis_send(&args);

    for (i = 1; i <= w->n; i++) {
        free((char *) args.data[i]);
    }
}


static void
compare_report(const compare_call_t *call, size_t i, const char *what,
    uint64_t got, uint64_t want)
{
    const ratelimit_rule_t   *rule;
    const ratelimit_shape_t  *shape;

    if (++compare_failed > 5) {
        return;
    }

    rule = &call->rules[i];
    shape = &call->shapes[i];

    tap_note("%s: %s is %llu, not %llu; op=%c limit=%llu period=%lluus "
             "capacity=%llu ceiling=%llu free=%lld wait=%lluus buckets=%u "
             "width=%u ring=%u cost=%llu count_rejected=%u now=%lluus, "
             "%zu of %zu",
             ratelimit_algorithms[shape->algorithm]->name, what,
             (unsigned long long) got, (unsigned long long) want, call->op,
             (unsigned long long) rule->limit,
             (unsigned long long) rule->period,
             (unsigned long long) rule->capacity,
             (unsigned long long) rule->ceiling, (long long) rule->free,
             (unsigned long long) rule->wait, shape->buckets, shape->width,
             shape->ring, (unsigned long long) call->items[i].cost,
             call->items[i].count_rejected,
             (unsigned long long) call->clock.now, i + 1, call->n);
}


static void
compare_verdict(compare_call_t *call, size_t i, const unsigned char *bytes)
{
    const char           *field;
    ratelimit_item_t      lua;
    ratelimit_verdict_t  *c;

    lua = call->items[i];
    lua.shape = &call->shapes[i];
    lua.rule = &call->rules[i];

    memset(&lua.verdict, 0xa5, sizeof(ratelimit_verdict_t));

    c = &call->items[i].verdict;

    compare_verdicts++;
    compare_refused += !c->allowed;
    compare_rebased += c->rebase;
    compare_soft += c->soft;
    compare_wide += (call->rules[i].ceiling
                     > ((uint64_t) 1 << 53) / call->rules[i].period);

    if (!ratelimit_script_verdict(&lua, bytes)) {
        compare_report(call, i, "invalid", 1, 0);
        return;
    }

    /* the core marks stamps of reservations; only these matter then */

    if (lua.reserve && call->shapes[i].reserves) {
        c->stamp = (c->stamp & RATELIMIT_RESERVED)
                   ? c->stamp & ~RATELIMIT_RESERVED : lua.verdict.stamp;
    }

    if (call->next_after[i] != COMPARE_ANY) {
        compare_last += (call->next_after[i] != 0);

        if (fake_near(lua.verdict.next_after)
            != fake_near(call->next_after[i]))
        {
            compare_report(call, i, "next_after", lua.verdict.next_after,
                           call->next_after[i]);
        }
    }

    field = fake_differs(&lua.verdict, c);

    if (field != NULL) {
        compare_report(call, i, field,
                     *field == 'a' || *field == 's' ? lua.verdict.stamp
                     : strcmp(field, "remaining") == 0 ? lua.verdict.remaining
                     : strcmp(field, "excess") == 0 ? lua.verdict.excess
                     : strcmp(field, "delay") == 0 ? lua.verdict.delay
                     : strcmp(field, "retry_after") == 0
                     ? lua.verdict.retry_after : lua.verdict.reset_after,
                     *field == 'a' || *field == 's' ? c->stamp
                     : strcmp(field, "remaining") == 0 ? c->remaining
                     : strcmp(field, "excess") == 0 ? c->excess
                     : strcmp(field, "delay") == 0 ? c->delay
                     : strcmp(field, "retry_after") == 0
                     ? c->retry_after : c->reset_after);
    }
}


/* in milliseconds, rounded up */

static void
compare_expires(const compare_call_t *call, size_t i,
    const redisReply *reply)
{
    uint64_t  got, want;

    if (call->expires[i] == 0) {
        return;
    }

    compare_expiries++;

    got = (reply->type == REDIS_REPLY_STRING) ? strtoull(reply->str, NULL, 10)
                                              : 0;
    want = (call->expires[i] + 999) / 1000;

    if (ratelimit_min(got, FAKE_FAR / 1000)
        != ratelimit_min(want, FAKE_FAR / 1000))
    {
        compare_report(call, i, "expires", got, want);
    }
}


/* a state that comes back is that of the core: it allows as much */

static void
compare_grants(compare_call_t *call, const redisReply *reply)
{
    size_t                        i;
    ratelimit_grant_t             grant;
    ratelimit_state_t            *state;
    ratelimit_verdict_t           verdict;
    const unsigned char          *p, *last;
    const ratelimit_algorithm_t  *algorithm;

    p = redis_result(reply, RATELIMIT_EXCHANGE_TIME);
    p = (p == NULL) ? NULL : p + RATELIMIT_EXCHANGE_TIME;
    last = (unsigned char *) reply->str + reply->len;

    for (i = 0; i < call->n; i++) {
        p = (p == NULL) ? NULL : ratelimit_exchange_grant(p, last, &grant);

        if (p == NULL || !grant.counted) {
            compare_report(call, i, "grant", 0, 1);
            return;
        }

        compare_added++;

        /* reservations are not exchanged, and no clock of Redis begins */

        if (grant.len == 0 || grant.len == COMPARE_RESERVED || compare_small
            || call->clock.now < 2 * call->rules[i].period)
        {
            continue;
        }

        compare_read++;

        algorithm = ratelimit_algorithms[call->shapes[i].algorithm];
        state = calloc(1, algorithm->size(&call->shapes[i]));

        if (state == NULL) {
            abort();
        }

        if (ratelimit_exchange_state(&call->shapes[i], &call->rules[i],
                                     &call->clock, &grant, state))
        {
            algorithm->look(&call->shapes[i], &call->rules[i], state,
                            &call->clock, 1, &verdict);
            algorithm->describe(&call->shapes[i], &call->rules[i], state,
                                &call->clock, 1, &verdict);

            compare_states += (verdict.remaining
                               == call->items[i].verdict.remaining
                               && verdict.allowed
                                  == call->items[i].verdict.allowed);
        }

        free(state);
    }

    if (p != last) {
        compare_report(call, 0, "bytes", last - p, 0);
    }
}


static void
compare_receive(void)
{
    size_t           i;
    unsigned         k;
    redisReply      *reply;
    compare_call_t  *call;

    for (k = 0; k < compare_n; k++) {
        call = &compare_calls[k];
        reply = redis_receive();

        if (reply->type == REDIS_REPLY_ERROR) {
            tap_note("%s", reply->str);
            compare_report(call, 0, "error", 1, 0);

        } else if (ratelimit_script_settles(call->op)) {
            if (redis_verdicts(reply, 0) == NULL) {
                compare_report(call, 0, "status", reply->type, 0);
            }

        } else if (call->op == RATELIMIT_SCRIPT_EXCHANGE) {
            compare_grants(call, reply);

        } else if (redis_verdicts(reply, call->n) == NULL) {
            compare_report(call, 0, "bytes", reply->len, 0);

        } else {
            for (i = 0; i < call->n; i++) {
                compare_verdict(call, i, redis_verdicts(reply, call->n)
                                         + i * RATELIMIT_SCRIPT_VERDICT);
            }
        }

        freeReplyObject(reply);

        if (!call->with_expires) {
            continue;
        }

        reply = redis_receive();

        for (i = 0; i < call->n; i++) {
            compare_expires(call, i, reply->element[i]);
        }

        freeReplyObject(reply);
    }

    compare_n = 0;
}


static void
compare_step(compare_world_t *w)
{
    size_t              i;
    compare_call_t     *call;
    ratelimit_script_e  op;

    compare_move(w);

    if (compare_seldom(3)) {
        compare_change(w);
    }

    op = compare_op(w);
    call = &compare_calls[compare_n++];

    call->op = op;
    call->clock = w->clock;
    call->n = w->n;
    call->with_expires = 0;

    compare_send(w, op);
    compare_core(w, op);

    for (i = 0; i < w->n; i++) {
        call->items[i] = w->items[i];
        call->shapes[i] = w->limits[i].shape;
        call->rules[i] = w->limits[i].rule;
        call->next_after[i] = compare_next(w, i, op);
        call->with_expires |= w->items[i].verdict.allowed;
    }

    /* a time at which all were charged */

    for (i = 0; i < w->n; i++) {
        call->with_expires &= w->items[i].verdict.allowed;
    }

    call->with_expires &= (op == RATELIMIT_SCRIPT_DECIDE
                           && random_percent(30));

    if (call->with_expires) {
        compare_send_expires(w, call);
    }

    if (compare_n == COMPARE_BATCH) {
        compare_receive();
    }
}


static void
compare_load(const ratelimit_script_t *script, char *sha)
{
    unsigned            i;
    ratelimit_script_t  changed;

    changed = *script;

    for (i = 0; compare_small && i < COMPARE_SIZES; i++) {
        changed.text = fake_replace(changed.text, compare_large[i],
                                    compare_tiny[compare_small - 1][i]);
    }

    fake_load(&changed, NULL, NULL, sha);
}


static void
compare_run(unsigned algorithm, unsigned steps)
{
    unsigned         i;
    const char      *name;
    compare_world_t  w;

    memset(&w, 0, sizeof(compare_world_t));

    compare_load(&ratelimit_scripts[algorithm], compare_sha);
    compare_load(&ratelimit_sync_scripts[algorithm], compare_sync);
    fake_check();

    compare_verdicts = 0;
    compare_refused = 0;
    compare_rebased = 0;
    compare_soft = 0;
    compare_wide = 0;
    compare_last = 0;
    compare_expiries = 0;
    compare_added = 0;
    compare_read = 0;
    compare_states = 0;
    compare_failed = 0;

    for (i = 0; i < steps && compare_failed == 0; i++) {

        if (i % (compare_small ? 4 * COMPARE_WORLD : COMPARE_WORLD) == 0) {
            compare_close(&w);
            compare_open(&w, algorithm);
        }

        compare_step(&w);
    }

    compare_receive();
    compare_close(&w);
    freeReplyObject(redisCommand(redis, "FLUSHALL"));

    name = compare_small ? "large sliding_log"
           : (algorithm == COMPARE_MIXED) ? "mixed limits"
                                        : ratelimit_algorithms[algorithm]->name;

    tap_ok(compare_failed == 0, "%s: %u steps, %u verdicts, %u expiries",
           name, i, compare_verdicts, compare_expiries);

    tap_ok(compare_failed || compare_small
           || (compare_states && compare_states == compare_read),
           "%s: %u charges of others, %u states", name, compare_added,
           compare_states);

    tap_note("%s: %u refused, %u the last one, %u soft, %u rebased, "
             "%u beyond 2^53", name, compare_refused, compare_last,
             compare_soft, compare_rebased, compare_wide);

    tap_ok(compare_failed
           || (compare_refused > steps / 20 && compare_soft > steps / 200
               && compare_last > steps / 50
               && compare_rebased > steps / 2000
               && (compare_wide > steps / 20
                   || algorithm == RATELIMIT_SLIDING_LOG)
               && compare_expiries > steps / 30),
           "%s: of all kinds", name);
}


/* logs that keep what is refunded in its place */

static void
compare_run_large(unsigned steps)
{
    for (compare_small = 1; compare_small <= COMPARE_TINY; compare_small++) {
        compare_run(RATELIMIT_SLIDING_LOG, steps);
    }

    compare_small = 0;
}


int
main(int argc, char **argv)
{
    unsigned  i, steps;

    if (argc < 3) {
        fprintf(stderr, "usage: compare SOCKET STEPS [SEED [ALGORITHM]]\n");
        return 2;
    }

    random_start(argc - 2, argv + 2);

    redis_open(argv[1]);
    steps = strtoul(argv[2], NULL, 10);

    if (argc > 4 && strcmp(argv[4], "large") == 0) {
        compare_run_large(steps);
        redisFree(redis);

        return tap_done();
    }

    if (argc > 4) {
        compare_run(algorithm_find(argv[4]), steps);
        redisFree(redis);

        return tap_done();
    }

    for (i = 0; i <= COMPARE_MIXED; i++) {
        compare_run(i, steps);
    }

    compare_run_large(steps);

    redisFree(redis);

    return tap_done();
}
