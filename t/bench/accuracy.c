
/*
 * How often an algorithm is wrong.  Clients of several habits send the same
 * requests through each algorithm and through an exact log, which is a list of
 * times here and none of ours: what the log decides is right.  The traces are
 * random, but the same for all, and each time for one seed.
 *
 *     accuracy [SEED]      lines of: trace, algorithm, requests, wrongly
 *                          admitted, wrongly refused, most in any W
 *     accuracy attack      lines of: algorithm, second, requests in the last W
 */


#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/ratelimit.h"

#include "decision.h"
#include "random.h"


#define ACCURACY_LIMIT    100
#define ACCURACY_PERIOD   (60 * RATELIMIT_SECOND)
#define ACCURACY_DAY      (86400 * RATELIMIT_SECOND)
#define ACCURACY_TICK     1000             /* us: nginx knows milliseconds */
#define ACCURACY_CLIENTS  200              /* of each habit */
#define ACCURACY_WORDS    512
#define ACCURACY_BURST    20


typedef enum {
    ACCURACY_STEADY = 0,
    ACCURACY_BURSTY,
    ACCURACY_DIURNAL,
    ACCURACY_GREEDY,
    ACCURACY_EDGE,
    ACCURACY_SUBEDGE,
    ACCURACY_HABITS
} accuracy_habit_e;

#define ACCURACY_LIGHT    ACCURACY_HABITS


typedef struct {
    const char             *name;
    ratelimit_algorithm_e   algorithm;
    uint32_t                buckets;
} accuracy_kind_t;


/* an algorithm, and the times of what it admitted: twice N is the most */

typedef struct {
    ratelimit_shape_t       shape;
    ratelimit_state_t       state[ACCURACY_WORDS];
    uint64_t                admitted[2 * ACCURACY_LIMIT + 2];
    uint64_t                first;
    uint64_t                last;
} accuracy_client_t;


typedef struct {
    uint64_t                requests;
    uint64_t                admitted;      /* wrongly */
    uint64_t                refused;       /* wrongly */
    uint64_t                most;
} accuracy_count_t;


/* a client's habit, and where it is */

typedef struct {
    accuracy_habit_e        habit;
    double                  load;          /* of the limit, on average */
    uint64_t                now;
    uint64_t                burst;         /* requests left of it */
    uint64_t                step;
} accuracy_source_t;


static void accuracy_init(accuracy_client_t *client, const accuracy_kind_t
    *kind);
static uint64_t accuracy_inside(accuracy_client_t *client, uint64_t now);
static int accuracy_decide(accuracy_client_t *client, uint64_t now);
static void accuracy_note(accuracy_client_t *client, uint64_t now);
static int accuracy_exact(accuracy_client_t *client, uint64_t now);
static void accuracy_judge(accuracy_client_t *client, uint64_t now, int right,
    accuracy_count_t *count);
static double accuracy_uniform(void);
static uint64_t accuracy_pause(double number);
static uint64_t accuracy_bursty(accuracy_source_t *s);
static uint64_t accuracy_diurnal(accuracy_source_t *s);
static uint64_t accuracy_attack(accuracy_source_t *s, uint64_t window);
static uint64_t accuracy_next(accuracy_source_t *s);
static double accuracy_load(accuracy_habit_e habit);
static void accuracy_live(accuracy_habit_e habit);
static void accuracy_add(accuracy_count_t *sum, const accuracy_count_t *count);
static void accuracy_print(const char *trace, unsigned from, unsigned to);
static void accuracy_picture(void);


static const char *const  accuracy_habits[ACCURACY_HABITS] = {
    "steady", "bursty", "diurnal", "greedy", "edge", "sub-edge"
};

static const accuracy_kind_t  accuracy_kinds[] = {
    { "fixed_window", RATELIMIT_FIXED_WINDOW, 0 },
    { "sliding_window buckets=1", RATELIMIT_SLIDING_WINDOW, 1 },
    { "sliding_window", RATELIMIT_SLIDING_WINDOW, 10 },
    { "sliding_window buckets=60", RATELIMIT_SLIDING_WINDOW, 60 },
    { "sliding_log", RATELIMIT_SLIDING_LOG, 0 },
    { "token_bucket", RATELIMIT_TOKEN_BUCKET, 0 },
    { "leaky_bucket", RATELIMIT_LEAKY_BUCKET, 0 }
};

#define ACCURACY_KINDS  (sizeof(accuracy_kinds) / sizeof(accuracy_kinds[0]))


static accuracy_client_t  accuracy_clients[ACCURACY_KINDS];
static accuracy_count_t   accuracy_counts[ACCURACY_HABITS + 1][ACCURACY_KINDS];


static void
accuracy_init(accuracy_client_t *client, const accuracy_kind_t *kind)
{
    memset(client, 0, sizeof(accuracy_client_t));

    client->shape.algorithm = kind->algorithm;
    client->shape.buckets = kind->buckets;

    ratelimit_shape_fit(&client->shape, ACCURACY_LIMIT);

    if (ratelimit_algorithms[kind->algorithm]->size(&client->shape)
        > sizeof(client->state))
    {
        fprintf(stderr, "%s: a state is too large\n", kind->name);
        exit(2);
    }
}


/* requests in (now - W, now] */

static uint64_t
accuracy_inside(accuracy_client_t *client, uint64_t now)
{
    const uint64_t  n = sizeof(client->admitted) / sizeof(uint64_t);

    while (client->first < client->last
           && client->admitted[client->first % n] + ACCURACY_PERIOD <= now)
    {
        client->first++;
    }

    return client->last - client->first;
}


static int
accuracy_decide(accuracy_client_t *client, uint64_t now)
{
    ratelimit_item_t         item;
    ratelimit_clock_t        clock;
    static ratelimit_rule_t  rule = {
        ACCURACY_LIMIT, ACCURACY_PERIOD, ACCURACY_LIMIT, ACCURACY_LIMIT,
        RATELIMIT_NODELAY, 0
    };

    memset(&item, 0, sizeof(ratelimit_item_t));

    item.shape = &client->shape;
    item.rule = &rule;
    item.state = client->state;
    item.cost = 1;

    clock.now = now;
    clock.wall = now;

    if (!decision_make(&item, 1, &clock)) {
        return 0;
    }

    accuracy_note(client, now);

    return 1;
}


static void
accuracy_note(accuracy_client_t *client, uint64_t now)
{
    const uint64_t  n = sizeof(client->admitted) / sizeof(uint64_t);

    if (client->last - client->first == n) {
        fprintf(stderr, "more than twice the limit was admitted\n");
        exit(2);
    }

    client->admitted[client->last++ % n] = now;
}


/* the exact log: fewer than N in (now - W, now] */

static int
accuracy_exact(accuracy_client_t *client, uint64_t now)
{
    if (accuracy_inside(client, now) >= ACCURACY_LIMIT) {
        return 0;
    }

    accuracy_note(client, now);

    return 1;
}


static void
accuracy_judge(accuracy_client_t *client, uint64_t now, int right,
    accuracy_count_t *count)
{
    int       allowed;
    uint64_t  inside;

    inside = accuracy_inside(client, now);
    allowed = accuracy_decide(client, now);

    count->requests++;
    count->admitted += (allowed && !right);
    count->refused += (!allowed && right);

    inside += allowed;

    if (inside > count->most) {
        count->most = inside;
    }
}


static double
accuracy_uniform(void)
{
    return ((double) (random_next() >> 11) + 0.5) / 9007199254740992.0;
}


/* until the next of events that come at random, so many in a period */

static uint64_t
accuracy_pause(double number)
{
    return (uint64_t) (-log(accuracy_uniform()) * ACCURACY_PERIOD / number);
}


/* bursts of 20 requests on average, 50 ms apart on average */

static uint64_t
accuracy_bursty(accuracy_source_t *s)
{
    if (s->burst > 0) {
        s->burst--;
        return s->now + accuracy_pause(ACCURACY_PERIOD / 50000.0);
    }

    s->burst = (uint64_t) (-log(accuracy_uniform()) * ACCURACY_BURST);

    return s->now + accuracy_pause(s->load * ACCURACY_LIMIT / ACCURACY_BURST);
}


/* at noon nearly twice the average, at midnight nearly nothing */

static uint64_t
accuracy_diurnal(accuracy_source_t *s)
{
    double    level;
    uint64_t  now;

    now = s->now;

    do {
        now += accuracy_pause(2 * s->load * ACCURACY_LIMIT);
        level = 1 - 0.95 * cos(2 * M_PI * (now % ACCURACY_DAY) / ACCURACY_DAY);

    } while (accuracy_uniform() * 2 > level);

    return now;
}


/*
 * N right before the end of a (sub-)window, and from then on as many as pass,
 * for two periods; then a rest, so that the next attack is as good
 */

static uint64_t
accuracy_attack(accuracy_source_t *s, uint64_t window)
{
    uint64_t  cycle, from, edge;

    cycle = 4 * ACCURACY_PERIOD;
    from = s->now / cycle * cycle;
    edge = from + ACCURACY_PERIOD + window;

    if (s->now < edge - ACCURACY_LIMIT * ACCURACY_TICK) {
        return edge - ACCURACY_LIMIT * ACCURACY_TICK;
    }

    if (s->now < edge) {
        return s->now + ACCURACY_TICK;
    }

    if (s->now < edge + ACCURACY_PERIOD * 3 / 2) {
        return s->now + s->step;
    }

    return from + cycle;
}


static uint64_t
accuracy_next(accuracy_source_t *s)
{
    uint64_t  next;

    switch (s->habit) {

    case ACCURACY_STEADY:
    case ACCURACY_GREEDY:
        next = s->now + accuracy_pause(s->load * ACCURACY_LIMIT);
        break;

    case ACCURACY_BURSTY:
        next = accuracy_bursty(s);
        break;

    case ACCURACY_DIURNAL:
        next = accuracy_diurnal(s);
        break;

    case ACCURACY_EDGE:
        next = accuracy_attack(s, ACCURACY_PERIOD);
        break;

    default:
        next = accuracy_attack(s, ACCURACY_PERIOD / 10);
        break;
    }

    return next / ACCURACY_TICK * ACCURACY_TICK;
}


/*
 * Most are far below their limit: loads from 1 % to 50 % of it, each order of
 * magnitude as likely; the greedy want 2 to 20 times as much as they may.
 */

static double
accuracy_load(accuracy_habit_e habit)
{
    return (habit == ACCURACY_GREEDY) ? 2 * pow(10, accuracy_uniform())
                                      : 0.01 * pow(50, accuracy_uniform());
}


/* one client for a day */

static void
accuracy_live(accuracy_habit_e habit)
{
    int                right;
    size_t             i;
    uint64_t           start, end;
    accuracy_client_t  log;
    accuracy_count_t   counts[ACCURACY_KINDS];
    accuracy_source_t  s;

    memset(&s, 0, sizeof(accuracy_source_t));
    memset(&log, 0, sizeof(accuracy_client_t));
    memset(counts, 0, sizeof(counts));

    for (i = 0; i < ACCURACY_KINDS; i++) {
        accuracy_init(&accuracy_clients[i], &accuracy_kinds[i]);
    }

    /* sometime, but an attacker knows the clock */

    start = 1000 * ACCURACY_DAY;

    s.habit = habit;
    s.load = accuracy_load(habit);
    s.now = start;
    s.step = random_between(5, 500) * ACCURACY_TICK;

    end = start + (habit >= ACCURACY_GREEDY ? ACCURACY_DAY / 24
                                            : ACCURACY_DAY);

    for (s.now = accuracy_next(&s); s.now < end; s.now = accuracy_next(&s)) {
        right = accuracy_exact(&log, s.now);

        for (i = 0; i < ACCURACY_KINDS; i++) {
            accuracy_judge(&accuracy_clients[i], s.now, right, &counts[i]);
        }
    }

    for (i = 0; i < ACCURACY_KINDS; i++) {
        accuracy_add(&accuracy_counts[habit][i], &counts[i]);

        if (habit < ACCURACY_GREEDY && s.load <= 0.1) {
            accuracy_add(&accuracy_counts[ACCURACY_LIGHT][i], &counts[i]);
        }
    }
}


static void
accuracy_add(accuracy_count_t *sum, const accuracy_count_t *count)
{
    sum->requests += count->requests;
    sum->admitted += count->admitted;
    sum->refused += count->refused;

    if (count->most > sum->most) {
        sum->most = count->most;
    }
}


static void
accuracy_print(const char *trace, unsigned from, unsigned to)
{
    unsigned          h, i;
    accuracy_count_t  sum;

    for (i = 0; i < ACCURACY_KINDS; i++) {
        memset(&sum, 0, sizeof(accuracy_count_t));

        for (h = from; h <= to; h++) {
            accuracy_add(&sum, &accuracy_counts[h][i]);
        }

        printf("%s\t%s\t%llu\t%llu\t%llu\t%llu\n", trace,
               accuracy_kinds[i].name, (unsigned long long) sum.requests,
               (unsigned long long) sum.admitted,
               (unsigned long long) sum.refused,
               (unsigned long long) sum.most);
    }
}


/* for a picture: N in the last second before an edge, then all that pass */

static void
accuracy_picture(void)
{
    size_t              i;
    uint64_t            now, start, edge;
    accuracy_client_t  *client;

    start = 1000 * ACCURACY_DAY;
    edge = start + ACCURACY_PERIOD;

    for (i = 0; i < ACCURACY_KINDS; i++) {
        client = &accuracy_clients[i];
        accuracy_init(client, &accuracy_kinds[i]);

        for (now = edge - RATELIMIT_SECOND; now < edge + 2 * ACCURACY_PERIOD;
             now += 10 * ACCURACY_TICK)
        {
            (void) accuracy_inside(client, now);
            (void) accuracy_decide(client, now);

            if (now % (RATELIMIT_SECOND / 4) == 0) {
                printf("%s\t%.2f\t%llu\n", accuracy_kinds[i].name,
                       (double) (now - start) / RATELIMIT_SECOND,
                       (unsigned long long) accuracy_inside(client, now));
            }
        }
    }
}


int
main(int argc, char **argv)
{
    unsigned  i, habit;

    if (argc > 1 && strcmp(argv[1], "attack") == 0) {
        accuracy_picture();
        return 0;
    }

    random_start(argc, argv);

    for (habit = 0; habit < ACCURACY_HABITS; habit++) {
        for (i = 0; i < ACCURACY_CLIENTS; i++) {
            accuracy_live(habit);
        }

        accuracy_print(accuracy_habits[habit], habit, habit);
    }

    accuracy_print("mixed", ACCURACY_STEADY, ACCURACY_DIURNAL);
    accuracy_print("light", ACCURACY_LIGHT, ACCURACY_LIGHT);

    return 0;
}
