
/*
 * Write-back by several machines: ledgers as gateways have them, the scripts in
 * a real Redis, and a clock, delays and requests that are made up.  However
 * they come, no more than the stated bound is admitted beyond a limit, none
 * less than the limit if more was asked for, and Redis has counted in the end
 * what was admitted.
 *
 *   machines SOCKET RUNS SEED
 */


#include "core/ratelimit_math.h"
#include "fake.h"
#include "random.h"
#include "redis/ratelimit_bytes.h"
#include "redis/ratelimit_ledger.h"


#define MACHINES_MAX     8
#define MACHINES_MOVES   512
#define MACHINES_ASKING  40

/* requests after which Redis should have counted N */
#define MACHINES_PATIENCE  20000
#define MACHINES_LEDGER  (256 << 10)
#define MACHINES_BEGIN   (1000000 * RATELIMIT_SECOND)
#define MACHINES_MS      1000ULL


/* what is under way: a question or a report, then its reply */

typedef struct {
    unsigned                        open;
    unsigned                        machine;
    char                            op;
    unsigned                        executed;
    unsigned                        lost;     /* its reply will be */
    uint64_t                        time;     /* of the next step */
    uint64_t                        asked;
    ratelimit_ledger_copy_t         copy;
    redisReply                     *reply;
} machines_move_t;


typedef struct {
    ratelimit_ledger_t              ledger;
    void                           *memory;
    uint64_t                        report;   /* time of the next one */
    unsigned                        refused;  /* which it remembers */
    unsigned                        asking;   /* requests that wait */
    uint64_t                        touch;    /* a hoarder is used again */
} machines_machine_t;


/* how requests are spread */

typedef enum {
    MACHINES_RANDOM = 0,            /* over all machines */
    MACHINES_BURSTS,                /* to one for a while, then to another */
    MACHINES_HOARD,                 /* some get leases and use them at last */
    MACHINES_STYLES
} machines_style_e;


typedef struct {
    uint64_t                        now;
    uint64_t                        interval;
    uint64_t                        delay;    /* the longest of a way */
    uint64_t                        gap;      /* between requests, mean */
    machines_style_e                style;
    unsigned                        machines;
    unsigned                        favourite;
    uint64_t                        until;    /* it is */
    uint64_t                        requests; /* that come when Redis has
                                                 counted N */
    uint64_t                        asked;
    uint64_t                        admitted;
    uint64_t                        counted;  /* by Redis */
    uint64_t                        full;     /* time at which that was N */
    uint64_t                        ntimes;
    uint64_t                        times[1 << 16];  /* of each that Redis has
                                                        counted */
} machines_world_t;


static machines_machine_t     machines[MACHINES_MAX];
static machines_move_t        moves[MACHINES_MOVES];
static machines_world_t       world;
static ratelimit_rule_t       rule;
static ratelimit_shape_t      shape;
static ratelimit_ledger_id_t  id;
static ratelimit_lifelines_t *lifelines;
static uint32_t               me;
static uint64_t               question;
static char                   sha[41], key[32], record[40];


static void machines_open(unsigned run);
static redisReply *machines_call(unsigned machine, char op,
    const ratelimit_ledger_copy_t *copy, uint64_t number, uint64_t settled);
static unsigned char *machines_deltas(unsigned char *p,
    const ratelimit_delta_t *deltas, unsigned n);
static void machines_start(unsigned machine, char op,
    const ratelimit_ledger_copy_t *copy);
static void machines_step(machines_move_t *move);
static void machines_answer(machines_move_t *move,
    const ratelimit_grant_t *grant);
static uint64_t machines_counter(const unsigned char *state);
static void machines_count(const ratelimit_grant_t *grant);
static int machines_take(void *data, const ratelimit_ledger_copy_t *copy);
static void machines_report(unsigned machine);
static void machines_request(void);
static unsigned machines_choose(void);
static int machines_next(void);
static void machines_check(unsigned run, double *worst);
static uint64_t machines_used(void);
static void machines_questions(void);


/* another counter, and machines that have never heard of it */

static void
machines_open(unsigned run)
{
    unsigned           i;
    machines_world_t  *w;

    w = &world;
    memset(w, 0, sizeof(machines_world_t));

    snprintf(key, sizeof(key), "counter:%u", run);
    snprintf(record, sizeof(record), "counter:%u:m", run);

    rule.limit = random_percent(20) ? 1 + random_below(40)
                                    : 40 + random_below(1500);
    rule.capacity = rule.limit;
    rule.ceiling = rule.limit;
    rule.period = 86400 * RATELIMIT_SECOND;

    shape.algorithm = RATELIMIT_FIXED_WINDOW;
    id.rule = &rule;
    id.hash.lo = run;
    id.hash.hi = random_next();

    w->now = MACHINES_BEGIN;
    w->machines = 1 + random_below(MACHINES_MAX);
    w->interval = (10 + random_below(random_percent(50) ? 90 : 900))
                  * MACHINES_MS;
    w->delay = 1 + random_below(w->interval / 2 + 50 * MACHINES_MS);
    w->requests = rule.limit + 100;
    w->gap = 1 + w->interval * (1 + random_below(40)) / rule.limit / 4;
    w->style = random_below(MACHINES_STYLES);

    for (i = 0; i < w->machines; i++) {
        memset(machines[i].memory, 0, MACHINES_LEDGER);

        if (!ratelimit_ledger_open(&machines[i].ledger, machines[i].memory,
                                   MACHINES_LEDGER, &shape, w->interval,
                                   i + 1, lifelines))
        {
            fprintf(stderr, "the ledger does not open\n");
            exit(2);
        }

        machines[i].report = w->now + random_below(w->interval);
        machines[i].refused = 0;
        machines[i].asking = 0;
        machines[i].touch = 0;
    }
}


/*
 * A question has all that is not reported, a report the batch alone.  A capital
 * letter is the same call with this counter for two limits.
 */

static redisReply *
machines_call(unsigned machine, char op, const ratelimit_ledger_copy_t *copy,
    uint64_t number, uint64_t settled)
{
    char                now[32];
    unsigned            i, n;
    const char         *name;
    unsigned char      *p;
    redis_args_t        args;
    ratelimit_item_t    item;
    ratelimit_report_t  report;

    static unsigned char  argument[RATELIMIT_SCRIPT_ARGUMENT
                                   + RATELIMIT_EXCHANGE_TAIL
                                   + 2 * RATELIMIT_LEDGER_DELTAS
                                     * RATELIMIT_EXCHANGE_DELTA];

    n = (op < 'a') ? 2 : 1;
    op |= ' ';

    memset(&item, 0, sizeof(ratelimit_item_t));

    item.shape = &shape;
    item.rule = &rule;
    item.cost = (op != RATELIMIT_SCRIPT_EXCHANGE);

    report.machine = machine + 1;
    report.number = copy->number;
    report.interval = world.interval;
    report.question = number;
    report.settled = settled;
    report.worker = 7;
    report.batch = copy->nbatch;
    report.open = (op == RATELIMIT_SCRIPT_EXCHANGE) ? 0 : copy->nopen;

    ratelimit_script_argument(&item, argument);

    p = ratelimit_exchange_tail(argument + RATELIMIT_SCRIPT_ARGUMENT, &report);
    p = machines_deltas(p, copy->batch, report.batch);
    p = machines_deltas(p, copy->open, report.open);

    snprintf(now, sizeof(now), "%llu", (unsigned long long) world.now);

    args.n = 0;
    redis_add(&args, "EVALSHA", 7);
    redis_add(&args, sha, 40);
    redis_add(&args, (n == 2) ? "4" : "2", 1);

    for (i = 0; i < 2 * n; i++) {
        name = (i < n) ? key : record;
        redis_add(&args, name, strlen(name));
    }

    redis_add(&args, &op, 1);

    for (i = 0; i < n; i++) {
        redis_add(&args, argument, p - argument);
    }

    redis_add(&args, redis_echo, RATELIMIT_SCRIPT_ECHO);
    redis_add(&args, now, strlen(now));
    redis_add(&args, now, strlen(now));

    return redis_call(&args);
}


static unsigned char *
machines_deltas(unsigned char *p, const ratelimit_delta_t *deltas, unsigned n)
{
    unsigned  i;

    for (i = 0; i < n; i++) {
        p = ratelimit_exchange_delta(p, &deltas[i]);
    }

    return p;
}


static void
machines_start(unsigned machine, char op, const ratelimit_ledger_copy_t *copy)
{
    machines_move_t  *move;

    for (move = moves; move->open; move++) {
        if (move == &moves[MACHINES_MOVES - 1]) {
            fprintf(stderr, "too much is under way\n");
            exit(2);
        }
    }

    memset(move, 0, sizeof(machines_move_t));

    move->open = 1;
    move->machine = machine;
    move->op = op;
    move->lost = (op == RATELIMIT_SCRIPT_EXCHANGE && random_percent(5));
    move->asked = world.now;
    move->time = world.now + random_below(world.delay + 1);
    move->copy = *copy;
}


/* Redis executes it, or the machine has the reply */

static void
machines_step(machines_move_t *move)
{
    size_t                len;
    ratelimit_grant_t     grant;
    const unsigned char  *p, *last;

    if (!move->executed) {
        move->executed = 1;
        move->time = world.now + random_below(world.delay + 1);
        move->reply = machines_call(move->machine, move->op, &move->copy, 0,
                                    0);
        if (move->reply->type != REDIS_REPLY_STRING) {
            fprintf(stderr, "%s\n", move->reply->str);
            exit(2);
        }
    }

    len = RATELIMIT_EXCHANGE_TIME
          + (move->op == RATELIMIT_SCRIPT_ASK ? RATELIMIT_SCRIPT_VERDICT : 0);

    p = redis_result(move->reply, len);
    last = (unsigned char *) move->reply->str + move->reply->len;

    if (p == NULL || ratelimit_exchange_grant(p + len, last, &grant) == NULL) {
        fprintf(stderr, "a reply that no script returns\n");
        exit(2);
    }

    if (move->executed++ == 1) {
        machines_count(&grant);
        return;
    }

    if (move->op == RATELIMIT_SCRIPT_ASK) {
        machines[move->machine].asking--;

        if (ratelimit_bytes_read(p + RATELIMIT_EXCHANGE_TIME) & 1) {
            world.admitted++;

        } else {
            machines[move->machine].refused = 1;
        }
    }

    if (!move->lost) {
        machines_answer(move, &grant);
    }

    freeReplyObject(move->reply);
    move->open = 0;
}


static void
machines_answer(machines_move_t *move, const ratelimit_grant_t *grant)
{
    ratelimit_answer_t       answer;
    ratelimit_ledger_name_t  name;

    name.data = (unsigned char *) key;
    name.len = strlen(key);

    answer.number = move->copy.number;
    answer.question = (move->op == RATELIMIT_SCRIPT_ASK);
    answer.spent = move->copy.spent;
    answer.asked = move->asked;
    answer.grant = grant;

    ratelimit_ledger_answer(&machines[move->machine].ledger, &id, &name,
                            &answer, &move->copy, me);
}


/* the last 5 of 12 bytes of a fixed window's state */

static uint64_t
machines_counter(const unsigned char *state)
{
    return ratelimit_bytes_read(state + 4) >> 24;
}


static void
machines_count(const ratelimit_grant_t *grant)
{
    uint64_t  counted;

    counted = (grant->len == 12) ? machines_counter(grant->state) : 0;

    while (world.counted < counted) {
        world.times[world.counted++] = world.now;
    }

    if (world.full == 0 && counted >= rule.limit) {
        world.full = world.now;
    }
}


static int
machines_take(void *data, const ratelimit_ledger_copy_t *copy)
{
    machines_start(*(unsigned *) data, RATELIMIT_SCRIPT_EXCHANGE, copy);

    return 1;
}


/* what has no reply after two delays will have none */

static void
machines_report(unsigned machine)
{
    uint32_t  cursor;

    cursor = 0;

    (void) ratelimit_ledger_batch(&machines[machine].ledger, &cursor, world.now,
                                  world.now - 2 * world.delay, machines_take,
                                  &machine, me);

    machines[machine].report = world.now + world.interval;
}


static void
machines_request(void)
{
    unsigned                 machine;
    uint64_t                 stamp;
    ratelimit_ledger_t      *ledger;
    ratelimit_ledger_copy_t  copy;

    machine = machines_choose();
    ledger = &machines[machine].ledger;
    stamp = world.now + rule.period - world.now % rule.period;

    world.asked += (machines[machine].asking < MACHINES_ASKING);

    if (world.full || world.asked > MACHINES_PATIENCE) {
        world.requests--;
    }

    if (ratelimit_ledger_charge(ledger, &id, 1, stamp, world.now,
                                RATELIMIT_LEDGER_LEASE, me))
    {
        world.admitted++;
        return;
    }

    if (machines[machine].refused
        || machines[machine].asking == MACHINES_ASKING)
    {
        return;
    }

    machines[machine].asking++;

    (void) ratelimit_ledger_ask(ledger, &id, world.now, &copy, me);
    machines_start(machine, RATELIMIT_SCRIPT_ASK, &copy);
}


static unsigned
machines_choose(void)
{
    unsigned  i;

    if (world.style == MACHINES_RANDOM) {
        return random_below(world.machines);
    }

    if (world.now >= world.until) {
        world.favourite = random_below(world.machines);
        world.until = world.now + random_below(2 * world.interval) + 1;
    }

    if (world.style == MACHINES_BURSTS) {
        return world.favourite;
    }

    /* each keeps its lease fresh, and uses it when Redis has no more */

    for (i = 1; i < world.machines && !world.full; i++) {
        if (world.now >= machines[i].touch) {
            machines[i].touch = world.now + world.interval / 2;
            return i;
        }
    }

    return world.full ? random_below(world.machines) : 0;
}


/* the next that happens; 0 when nothing will */

static int
machines_next(void)
{
    unsigned          i;
    uint64_t          time, request;
    machines_move_t  *move;

    static uint64_t  next;

    move = NULL;
    time = UINT64_MAX;

    for (i = 0; i < MACHINES_MOVES; i++) {
        if (moves[i].open && moves[i].time < time) {
            move = &moves[i];
            time = move->time;
        }
    }

    next = (next < world.now) ? world.now : next;
    request = world.requests ? next : UINT64_MAX;

    for (i = 0; i < world.machines; i++) {
        if (machines[i].report <= time && machines[i].report <= request
            && (world.requests || !ratelimit_ledger_clean(&machines[i].ledger)))
        {
            world.now = machines[i].report;
            machines_report(i);
            return 1;
        }
    }

    if (request < time) {
        world.now = request;
        next = (world.style == MACHINES_HOARD && world.full)
               ? request : request + random_below(2 * world.gap);
        machines_request();
        return 1;
    }

    if (move == NULL) {
        return 0;
    }

    world.now = time;
    machines_step(move);

    return 1;
}


/*
 * What was left when the oldest lease was granted that may still be used when
 * Redis refuses, or was used and is not reported, is what Redis has counted
 * since.  docs/redis.md has the argument.
 */

static void
machines_check(unsigned run, double *worst)
{
    double    share, bound;
    uint64_t  over, since, left, i;

    over = ratelimit_sub(world.admitted, rule.limit);
    since = world.full - (5 * world.interval / 2 + 50 * MACHINES_MS
                          + world.delay);

    for (left = 0; left < rule.limit
                   && world.times[rule.limit - 1 - left] > since; left++)
    {
        /* void */
    }

    share = 0;

    for (i = 1; i <= world.machines; i++) {
        share += 1.0 / (i + 1);
    }

    bound = share * (left / 4.0 + rule.limit / 40.0);

    if (bound >= 1 && over / bound > *worst) {
        *worst = over / bound;
    }

    if (world.admitted < rule.limit || over > bound
        || world.counted != world.admitted || machines_used() != world.counted)
    {
        tap_ok(0, "run %u: %u machines, style %u, %llu of %llu admitted, "
               "%llu counted, at most %.1f more", run, world.machines,
               world.style, (unsigned long long) world.admitted,
               (unsigned long long) rule.limit,
               (unsigned long long) world.counted, bound);
    }
}


/* as it is in Redis */

static uint64_t
machines_used(void)
{
    uint64_t       used;
    redisReply    *reply;
    redis_args_t   args;

    args.n = 0;
    redis_add(&args, "GET", 3);
    redis_add(&args, key, strlen(key));

    reply = redis_call(&args);
    used = (reply->type == REDIS_REPLY_STRING && reply->len == 12)
           ? machines_counter((unsigned char *) reply->str) : 0;

    freeReplyObject(reply);

    return used;
}


/*
 * Calls of one machine about one counter.  One whose reply is lost is void,
 * before or after it is executed.
 */

static const struct {
    const char  *ops;               /* a: ask, v: the same is void, n: another
                                       question, x: a report; from a 3 on with
                                       a batch of 3, from a 2 on with 2 that
                                       are in none */
    uint64_t     used;
    const char  *name;
} machines_cases[] = {
    { "a", 1, "a question is charged" },
    { "av", 0, "one that is void is not" },
    { "va", 0, "nor is one that comes after that" },
    { "avv", 0, "that may be said again" },
    { "vav", 0, "also then" },
    { "nav", 1, "others stay" },
    { "navv", 1, "however often it is said" },
    { "anv", 1, "also later ones" },
    { "axv", 0, "a report in between changes nothing" },
    { "vxa", 0, "nor does it if the question comes later" },
    { "A", 2, "two limits of a counter are charged" },
    { "AV", 0, "both are void" },
    { "VA", 0, "also before they are charged" },
    { "VAV", 0, "and after it" },
    { "3A", 5, "their batch counts once" },
    { "3Ax", 5, "and not again" },
    { "3X", 3, "also without a question" },
    { "3x2A", 5, "what is in no batch does not count" },
    { "3x2Ax", 5, "and hides no batch that does" }
};


static void
machines_questions(void)
{
    char                     op;
    unsigned                 i, k;
    ratelimit_ledger_copy_t  copy;

    for (i = 0; i < sizeof(machines_cases) / sizeof(machines_cases[0]); i++) {
        machines_open(1000000 + i);
        rule.limit = rule.capacity = rule.ceiling = 100;
        question += 10;

        memset(&copy, 0, sizeof(ratelimit_ledger_copy_t));

        copy.batch[0].stamp = world.now + rule.period - world.now % rule.period;
        copy.batch[0].added = 3;
        copy.open[0].stamp = copy.batch[0].stamp;
        copy.open[0].added = 2;

        for (k = 0; machines_cases[i].ops[k]; k++) {
            op = machines_cases[i].ops[k];

            if (op == '3') {
                copy.number = copy.nbatch = 1;

            } else if (op == '2') {
                copy.nopen = 1;

            } else {
                freeReplyObject(machines_call(0, op == 'n' ? 'a' : op, &copy,
                                              (op | ' ') == 'x' ? 0
                                              : question + (op == 'n'),
                                              question));
            }
        }

        tap_ok(machines_used() == machines_cases[i].used, "%s: %s",
               machines_cases[i].ops, machines_cases[i].name);
    }
}


int
main(int argc, char **argv)
{
    double    worst;
    unsigned  i, runs;

    if (argc != 4) {
        fprintf(stderr, "usage: machines SOCKET RUNS SEED\n");
        return 2;
    }

    runs = strtoul(argv[2], NULL, 10);
    random_start(2, argv + 2);

    redis_open(argv[1]);
    fake_load(&ratelimit_sync_scripts[RATELIMIT_FIXED_WINDOW], NULL, NULL,
              sha);
    fake_check();

    lifelines = ratelimit_lifelines_create(calloc(1,
                                                ratelimit_lifelines_size()));
    me = ratelimit_lifelines_claim(lifelines);

    for (i = 0; i < MACHINES_MAX; i++) {
        machines[i].memory = malloc(MACHINES_LEDGER);
    }

    worst = 0;

    for (i = 0; i < runs; i++) {
        machines_open(i);

        while (machines_next()) {
            /* void */
        }

        machines_check(i, &worst);
    }

    tap_ok(tap_failures == 0, "%u runs, none beyond its bound", runs);
    tap_note("the worst used %.0f %% of it", worst * 100);

    machines_questions();

    redisFree(redis);

    return tap_done();
}
