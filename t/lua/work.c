
/*
 * What a refund of a long sliding_log costs Redis: the bytes that the script
 * reads and writes, wherever in the log the request is, and those of a request
 * after it.  Some kilobytes must do, of megabytes.
 *
 *   work SOCKET [SEED]
 */


#include "fake.h"
#include "core/ratelimit_math.h"
#include "random.h"


#define WORK_STAMPS  500     /* moments at which requests came */
#define WORK_FIRST   ((uint64_t) 1 << 50)
#define WORK_ROUNDS  4000
#define WORK_BYTES   16384


typedef struct {
    ratelimit_item_t                item;
    ratelimit_shape_t               shape;
    ratelimit_rule_t                rule;
    uint64_t                        now;
    uint64_t                        admitted;
    uint64_t                        refunded;     /* the most bytes of one */
    uint64_t                        charged;
    unsigned                        refused;
} work_t;


static char  work_sha[41];

/* before the first line of sliding_log.lua */

static const char  work_from[] = "local rep, sub =";
static const char  work_to[] =
    "local direct = call\n"
    "local function call(...)\n"
    "    local reply, bytes = direct(...), 0\n"
    "    for i = 1, select('#', ...) do\n"
    "        bytes = bytes + #select(i, ...)\n"
    "    end\n"
    "    if type(reply) == 'string' then\n"
    "        bytes = bytes + #reply\n"
    "    end\n"
    "    redis.call('INCRBY', 'work', bytes)\n"
    "    return reply\n"
    "end\n"
    "local rep, sub =";


static uint64_t work_call(work_t *w, ratelimit_script_e op);
static uint64_t work_charge(work_t *w, uint64_t cost);
static void work_fill(work_t *w, uint64_t limit);
static void work_rounds(work_t *w);
static void work_run(uint64_t limit);


/* returns the bytes that it took */

static uint64_t
work_call(work_t *w, ratelimit_script_e op)
{
    char                  now[32];
    uint64_t              bytes;
    redisReply           *reply;
    const char           *key;
    redis_args_t          args;
    const unsigned char  *verdict;

    key = "log";
    snprintf(now, sizeof(now), "%llu", (unsigned long long) w->now);

    redis_evalsha(&args, work_sha, op, &key, &w->item, 1);
    redis_add(&args, now, strlen(now));
    redis_add(&args, now, strlen(now));

    redis_send(&args);
    (void) redisAppendCommand(redis, "GETSET work 0");

    reply = redis_receive();
    verdict = redis_verdicts(reply, ratelimit_script_settles(op) ? 0 : 1);

    if (verdict == NULL
        || (!ratelimit_script_settles(op)
            && !ratelimit_script_verdict(&w->item, verdict)))
    {
        fprintf(stderr, "no verdict: %s\n", reply->str);
        exit(2);
    }

    freeReplyObject(reply);

    reply = redis_receive();
    bytes = reply->str ? strtoull(reply->str, NULL, 10) : 0;
    freeReplyObject(reply);

    return bytes;
}


static uint64_t
work_charge(work_t *w, uint64_t cost)
{
    uint64_t  bytes;

    w->item.cost = cost;
    w->now += RATELIMIT_SECOND;

    bytes = work_call(w, RATELIMIT_SCRIPT_DECIDE);

    if (w->item.verdict.allowed) {
        w->admitted += cost;

    } else {
        w->refused++;
    }

    return bytes;
}


/* as many requests as are allowed in a day */

static void
work_fill(work_t *w, uint64_t limit)
{
    unsigned  i;

    memset(w, 0, sizeof(work_t));

    w->now = WORK_FIRST - RATELIMIT_SECOND;
    w->rule.limit = limit;
    w->rule.ceiling = limit;
    w->rule.period = 86400 * RATELIMIT_SECOND;
    w->shape.algorithm = RATELIMIT_SLIDING_LOG;

    ratelimit_shape_fit(&w->shape, limit);

    w->item.shape = &w->shape;
    w->item.rule = &w->rule;

    for (i = 0; i < WORK_STAMPS; i++) {
        (void) work_charge(w, limit / WORK_STAMPS);
    }
}


/* a request of any of these moments is refunded, and another one is admitted */

static void
work_rounds(work_t *w)
{
    unsigned  i;
    uint64_t  bytes;

    for (i = 0; i < WORK_ROUNDS; i++) {
        w->item.cost = 1;
        w->item.verdict.stamp = WORK_FIRST + random_below(WORK_STAMPS)
                                             * RATELIMIT_SECOND;

        bytes = work_call(w, RATELIMIT_SCRIPT_REFUND);
        w->refunded = ratelimit_max(w->refunded, bytes);

        bytes = work_charge(w, 1);
        w->charged = ratelimit_max(w->charged, bytes);
    }
}


static void
work_run(uint64_t limit)
{
    work_t  w;

    work_fill(&w, limit);

    tap_ok(w.admitted == limit && w.refused == 0, "%llu requests",
           (unsigned long long) limit);

    (void) work_charge(&w, 1);

    tap_ok(w.refused == 1, "and no more");

    work_rounds(&w);

    tap_ok(w.admitted == limit + WORK_ROUNDS && w.refused == 1,
           "one more for each that is refunded");

    (void) work_charge(&w, 1);

    tap_ok(w.refused == 2, "and no more");

    tap_ok(w.refunded && w.refunded < WORK_BYTES,
           "a refund: %llu bytes at most", (unsigned long long) w.refunded);
    tap_ok(w.charged && w.charged < WORK_BYTES,
           "a request: %llu bytes at most", (unsigned long long) w.charged);

    freeReplyObject(redisCommand(redis, "DEL log"));
}


int
main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: work SOCKET [SEED]\n");
        return 2;
    }

    random_start(argc - 1, argv + 1);

    redis_open(argv[1]);
    fake_load(&ratelimit_scripts[RATELIMIT_SLIDING_LOG], work_from, work_to,
              work_sha);

    work_run(50000);
    work_run(1000000);

    redisFree(redis);

    return tap_done();
}
