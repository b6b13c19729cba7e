
/*
 * What is reserved in a bucket and not settled yet: requests that are under
 * way and that count only if they end badly.  They take room, but nothing of
 * them drips off, and they do not fill the bucket either.  If this fails, many
 * guesses at once slip through after a while of good logins, or a good login is
 * refused.
 */


#include "properties.h"


#define RESERVE_WORLDS  500
#define RESERVE_STEPS   120
#define RESERVE_OPEN    32


typedef struct {
    uint64_t                        time;
    uint64_t                        cost;
    uint64_t                        stamp;
} reserve_open_t;


typedef struct {
    world_t                         world;
    reserve_open_t                  open[RESERVE_OPEN];
    unsigned                        n;
} reserve_run_t;


/* a client that sends requests at an even pace, each answered later */

typedef struct {
    uint64_t                        from;
    uint64_t                        until;
    uint64_t                        step;     /* between two requests */
    uint64_t                        answer;   /* after so long */
    unsigned                        bad;      /* every so many'th, 0: none */
    unsigned                        admitted[2];  /* good, bad */
    unsigned                        refused[2];
} reserve_client_t;


enum {
    RESERVE_MODEL = 0,
    RESERVE_RETRY,
    RESERVE_STILL,
    RESERVE_EXPIRES,
    RESERVE_COPY,
    RESERVE_ALL
};


static property_t  reserve_properties[RESERVE_ALL] = {
    { "reserved: the verdict is that of the model", 0, 0 },
    { "reserved: retry is exact once all counts", 0, 0 },
    { "reserved: what is released was never there", 0, 0 },
    { "reserved: an expired state is like one never seen", 0, 0 },
    { "reserved: a copy says the same", 0, 0 },
};


static void reserve_open_world(world_t *w, ratelimit_algorithm_e algorithm);
static void reserve_look(reserve_run_t *run, uint64_t cost,
    ratelimit_verdict_t *v);
static void reserve_retry(reserve_run_t *run, uint64_t cost,
    const ratelimit_verdict_t *v);
static void reserve_settle(reserve_run_t *run, unsigned i, int counts);
static void reserve_release_all(reserve_run_t *run);
static void reserve_expires(world_t *w);
static void reserve_copy(world_t *w, uint64_t cost, int bare);
static void reserve_step(reserve_run_t *run, ratelimit_verdict_t *v);
static void reserve_world(ratelimit_algorithm_e algorithm);
static void reserve_run(world_t *w, reserve_client_t *client);
static void reserve_brute_force(ratelimit_algorithm_e algorithm);
static void reserve_good_ones(ratelimit_algorithm_e algorithm);
static void reserve_forgotten(ratelimit_algorithm_e algorithm);


/* a world whose states have room for reservations */

static void
reserve_open_world(world_t *w, ratelimit_algorithm_e algorithm)
{
    world_open(w, algorithm, 1);
    world_close(w);

    w->shape.reserves = 1;
    w->size = w->algorithm->size(&w->shape);
    w->state = world_state(w->size);
    w->scratch = world_state(w->size);
    w->never = world_state(w->size);
}


/* the model has no reservations: they are as good as counted just now */

static void
reserve_look(reserve_run_t *run, uint64_t cost, ratelimit_verdict_t *v)
{
    world_t              *w;
    uint64_t              held, epoch;
    unsigned              i;
    model_t               model;
    const char           *field;
    ratelimit_verdict_t   want;

    w = &run->world;
    held = 0;
    epoch = w->clock.now / RATELIMIT_RESERVED_TIME;

    for (i = 0; i < run->n; i++) {
        if (run->open[i].time / RATELIMIT_RESERVED_TIME + 1 >= epoch) {
            held += run->open[i].cost;
        }
    }

    model = w->model;

    if (held) {
        (void) model_charge(&model, &w->clock, held);
    }

    world_look(w, w->state, 0, cost, v);
    model_look(&model, &w->clock, cost, &want);

    field = model_differs(&model, v, &want, cost);

    property_check(&reserve_properties[RESERVE_MODEL], w, field == NULL,
                   field ? field : "");
}


static void
reserve_retry(reserve_run_t *run, uint64_t cost, const ratelimit_verdict_t *v)
{
    world_t            *w;
    unsigned            i;
    ratelimit_state_t  *state;

    w = &run->world;

    memcpy(w->scratch, w->state, w->size);

    for (i = 0; i < run->n; i++) {
        w->algorithm->commit(&w->shape, &w->rule, w->scratch, &w->clock,
                             run->open[i].stamp, run->open[i].cost);

        /* one that was forgotten counts again when it is settled */

        if (run->open[i].time / RATELIMIT_RESERVED_TIME + 1
            < w->clock.now / RATELIMIT_RESERVED_TIME)
        {
            return;
        }
    }

    state = w->state;
    w->state = w->scratch;

    property_check(&reserve_properties[RESERVE_RETRY], w,
                   world_retry_exact(w, v, cost), "not exact");

    w->state = state;
}


static void
reserve_settle(reserve_run_t *run, unsigned i, int counts)
{
    world_t         *w;
    reserve_open_t  *open;

    w = &run->world;
    open = &run->open[i];

    if (counts) {
        w->algorithm->commit(&w->shape, &w->rule, w->state, &w->clock,
                             open->stamp, open->cost);
        (void) model_charge(&w->model, &w->clock, open->cost);

    } else {
        w->algorithm->refund(&w->shape, &w->rule, w->state, &w->clock,
                             open->stamp, open->cost);
    }

    *open = run->open[--run->n];
}


/* on a copy: what is left is a state without reservations */

static void
reserve_release_all(reserve_run_t *run)
{
    world_t            *w;
    unsigned            i;
    ratelimit_state_t   bare[4];

    w = &run->world;

    memcpy(w->scratch, w->state, w->size);
    memset(bare, 0, sizeof(bare));

    bare[0] = w->state[0];
    bare[1] = w->state[1];

    for (i = 0; i < run->n; i++) {
        w->algorithm->refund(&w->shape, &w->rule, w->scratch, &w->clock,
                             run->open[i].stamp, run->open[i].cost);
    }

    property_check(&reserve_properties[RESERVE_STILL], w,
                   world_same(w, w->scratch, bare, 0, w->rule.ceiling)
                   && world_same(w, w->scratch, bare,
                                 random_below(2 * w->rule.period), 1),
                   "differs");
}


static void
reserve_expires(world_t *w)
{
    uint64_t  expires, later;

    expires = w->algorithm->expires(&w->shape, &w->rule, w->state);
    later = (expires > w->clock.now) ? expires - w->clock.now : 0;

    property_check(&reserve_properties[RESERVE_EXPIRES], w,
                   world_same(w, w->state, w->never, later, w->rule.ceiling)
                   && world_same(w, w->state, w->never,
                                 later + random_bits(44), 0), "differs");
}


/* to the same shape and, if nothing is reserved, to a smaller one and back */

static void
reserve_copy(world_t *w, uint64_t cost, int bare)
{
    ratelimit_shape_t  plain;
    ratelimit_state_t  small[2];

    w->algorithm->copy(&w->shape, w->scratch, &w->shape, w->state);

    property_check(&reserve_properties[RESERVE_COPY], w,
                   world_same(w, w->state, w->scratch, 0, cost), "differs");

    if (!bare) {
        return;
    }

    plain = w->shape;
    plain.reserves = 0;

    w->algorithm->copy(&plain, small, &w->shape, w->state);
    w->algorithm->copy(&w->shape, w->scratch, &plain, small);

    property_check(&reserve_properties[RESERVE_COPY], w,
                   world_same(w, w->state, w->scratch, 0, cost), "is lost");
}


static void
reserve_step(reserve_run_t *run, ratelimit_verdict_t *v)
{
    world_t   *w;
    uint64_t   cost;

    w = &run->world;
    cost = world_random_cost(&w->rule);

    reserve_look(run, cost, v);

    if (!v->allowed) {
        reserve_retry(run, cost, v);

    } else if (cost && run->n < RESERVE_OPEN && random_percent(70)) {
        run->open[run->n].time = w->clock.now;
        run->open[run->n].cost = cost;
        run->open[run->n].stamp = w->algorithm->reserve(&w->shape, &w->rule,
                                                        w->state, &w->clock,
                                                        cost);
        run->n++;

    } else if (cost && random_percent(50)) {
        world_charge(w, w->state, cost);
        (void) model_charge(&w->model, &w->clock, cost);
    }

    while (run->n && random_percent(40)) {
        reserve_settle(run, random_below(run->n), random_percent(50));
    }

    reserve_release_all(run);

    reserve_expires(w);
    reserve_copy(w, cost, run->n == 0);

    world_forward(w, random_percent(3) ? RATELIMIT_RESERVED_TIME
                                       : world_random_step(w, v));
}


static void
reserve_world(ratelimit_algorithm_e algorithm)
{
    unsigned             i;
    ratelimit_verdict_t  v;

    static reserve_run_t  run;

    memset(&run, 0, sizeof(reserve_run_t));
    memset(&v, 0, sizeof(ratelimit_verdict_t));

    do {
        world_random_rule(&run.world.rule, algorithm);
    } while (run.world.rule.ceiling > 100000);

    reserve_open_world(&run.world, algorithm);
    run.world.clock.now = random_percent(10) ? 0 : random_bits(48);

    for (i = 0; i < RESERVE_STEPS; i++) {
        reserve_step(&run, &v);
    }

    world_close(&run.world);
}


/* one after another, and each settled when its answer is there */

static void
reserve_run(world_t *w, reserve_client_t *client)
{
    unsigned              i, first, n, bad;
    reserve_open_t       *open;
    ratelimit_verdict_t   v;

    static reserve_open_t  all[10000];

    first = 0;
    n = 0;
    i = 0;

    for (w->clock.now = client->from; /* void */ ;
         w->clock.now += RATELIMIT_SECOND / 10)
    {
        while (first < n
               && all[first].time + client->answer <= w->clock.now)
        {
            open = &all[first++];
            bad = (open->cost == 2);

            if (bad) {
                w->algorithm->commit(&w->shape, &w->rule, w->state, &w->clock,
                                     open->stamp, 1);

            } else {
                w->algorithm->refund(&w->shape, &w->rule, w->state, &w->clock,
                                     open->stamp, 1);
            }
        }

        if (w->clock.now >= client->until) {

            if (first == n) {
                return;
            }

            continue;
        }

        if ((w->clock.now - client->from) % client->step) {
            continue;
        }

        bad = (client->bad && ++i % client->bad == 0);

        world_look(w, w->state, 0, 1, &v);

        if (!v.allowed) {
            client->refused[bad]++;
            continue;
        }

        client->admitted[bad]++;
        all[n].time = w->clock.now;
        all[n].cost = 1 + bad;
        all[n].stamp = w->algorithm->reserve(&w->shape, &w->rule, w->state,
                                             &w->clock, 1);
        n++;
    }
}


/* 60r/m, ten at once: after 50 s of good logins 12 guesses pass in 1.8 s */

static void
reserve_brute_force(ratelimit_algorithm_e algorithm)
{
    unsigned          most;
    world_t           w;
    reserve_client_t  good, bad;

    memset(&w, 0, sizeof(world_t));
    memset(&good, 0, sizeof(reserve_client_t));

    w.rule.limit = 60;
    w.rule.period = 60 * RATELIMIT_SECOND;
    w.rule.capacity = 10;
    w.rule.ceiling = 10;
    w.rule.free = RATELIMIT_NODELAY;

    reserve_open_world(&w, algorithm);

    good.from = 1000000 * RATELIMIT_SECOND;
    good.until = good.from + 50 * RATELIMIT_SECOND;
    good.step = RATELIMIT_SECOND / 2;
    good.answer = 2 * RATELIMIT_SECOND;

    bad = good;
    bad.from = good.until + 2 * RATELIMIT_SECOND;
    bad.until = bad.from + 1800000;
    bad.step = RATELIMIT_SECOND / 10;
    bad.bad = 1;

    reserve_run(&w, &good);
    reserve_run(&w, &bad);

    most = 12;

    tap_ok(good.refused[0] == 0 && bad.admitted[1] <= most,
           "%s: %u good logins, then %u guesses of at most %u",
           w.algorithm->name, good.admitted[0], bad.admitted[1], most);

    world_close(&w);
}


/* below the rate no good login is refused, however long answers take */

static void
reserve_good_ones(ratelimit_algorithm_e algorithm)
{
    world_t           w;
    reserve_client_t  client;

    memset(&w, 0, sizeof(world_t));
    memset(&client, 0, sizeof(reserve_client_t));

    w.rule.limit = 60;
    w.rule.period = 60 * RATELIMIT_SECOND;
    w.rule.capacity = 5;
    w.rule.ceiling = 5;
    w.rule.free = RATELIMIT_NODELAY;

    reserve_open_world(&w, algorithm);

    client.from = 1000000 * RATELIMIT_SECOND;
    client.until = client.from + 600 * RATELIMIT_SECOND;
    client.step = RATELIMIT_SECOND / 2;
    client.answer = RATELIMIT_SECOND;
    client.bad = 2;

    reserve_run(&w, &client);

    tap_ok(client.refused[0] == 0 && client.refused[1] == 0
           && client.admitted[0] == 600,
           "%s: %u good logins pass among %u bad ones, %u and %u do not",
           w.algorithm->name, client.admitted[0], client.admitted[1],
           client.refused[0], client.refused[1]);

    world_close(&w);
}


/* of a killed worker: held for long enough, but not for ever */

static void
reserve_forgotten(ratelimit_algorithm_e algorithm)
{
    int       held, busy;
    world_t   w;
    uint64_t  stamp;
    unsigned  i;

    memset(&w, 0, sizeof(world_t));

    w.rule.limit = 60;
    w.rule.period = 60 * RATELIMIT_SECOND;
    w.rule.capacity = 3;
    w.rule.ceiling = 3;
    w.rule.free = RATELIMIT_NODELAY;

    reserve_open_world(&w, algorithm);

    w.clock.now = 1000123 * RATELIMIT_SECOND;

    (void) w.algorithm->reserve(&w.shape, &w.rule, w.state, &w.clock, 3);

    held = !world_admits(&w, RATELIMIT_RESERVED_TIME, 1);
    busy = 1;

    /* others do not keep it alive */

    for (i = 0; i < 30; i++) {
        world_forward(&w, RATELIMIT_RESERVED_TIME / 10);

        stamp = w.algorithm->reserve(&w.shape, &w.rule, w.state, &w.clock, 1);
        w.algorithm->refund(&w.shape, &w.rule, w.state, &w.clock, stamp, 1);

        busy = i < 20 ? 0 : busy | !world_admits(&w, 0, 3);
    }

    tap_ok(held && !busy, "%s: what is never settled is forgotten in time",
           w.algorithm->name);

    world_close(&w);
}


int
main(int argc, char **argv)
{
    unsigned               i, n;
    ratelimit_algorithm_e  algorithm;

    static const ratelimit_algorithm_e  buckets[] = {
        RATELIMIT_TOKEN_BUCKET, RATELIMIT_LEAKY_BUCKET
    };

    random_start(argc, argv);

    for (i = 0; i < sizeof(buckets) / sizeof(buckets[0]); i++) {
        algorithm = buckets[i];

        for (n = 0; n < RESERVE_WORLDS; n++) {
            reserve_world(algorithm);
        }

        property_report(reserve_properties, RESERVE_ALL,
                        ratelimit_algorithms[algorithm]->name);

        reserve_brute_force(algorithm);
        reserve_good_ones(algorithm);
        reserve_forgotten(algorithm);
    }

    return tap_done();
}
