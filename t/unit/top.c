
/*
 * The sketch of the keys that are counted most, against an exact count: on
 * streams whose keys are as unevenly distributed as those of clients are
 * (Zipf), in one sketch and in several that are merged, with and without time
 * that goes by, and with processes that are killed while they count.
 */


#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/ratelimit_top.h"

#include "random.h"
#include "tap.h"


#define TOP_KEYS     20000
#define TOP_EVENTS   400000
#define TOP_MOST     64      /* scores */
#define TOP_SKETCHES 8
#define TOP_KILLS    200


static void top_zipf(double exponent);
static size_t top_key(void);
static uint64_t top_id(size_t key);
static void top_count(ratelimit_top_t *top, size_t k, uint64_t now,
    size_t key);
static void top_forget(uint64_t steps);
static const ratelimit_top_score_t *top_find(size_t n, uint64_t id);
static size_t top_merge(size_t k, size_t sketches, uint64_t now);
static int top_holds(size_t k, size_t sketches, uint64_t now);
static void top_stream(const char *name, double exponent, size_t k,
    size_t sketches, uint64_t pause);
static void top_yesterday(void);
static void top_long(void);
static void top_chains(void);
static int top_is_sound(ratelimit_top_t *top, size_t k);
static void top_killed(void);


static double    top_share[TOP_KEYS];    /* up to and with a key */
static double    top_exact[TOP_KEYS];    /* weights of its events */
static double    top_slack = 1;          /* of a sketch, see top_holds() */

static ratelimit_top_t        *top_sketch[TOP_SKETCHES];
static ratelimit_top_score_t   top_sum[TOP_SKETCHES * TOP_MOST];
static uint32_t                top_index[4 * TOP_SKETCHES * TOP_MOST];


static void
top_zipf(double exponent)
{
    double  sum;
    size_t  i;

    sum = 0;

    for (i = 0; i < TOP_KEYS; i++) {
        sum += 1 / pow((double) i + 1, exponent);
        top_share[i] = sum;
    }

    for (i = 0; i < TOP_KEYS; i++) {
        top_share[i] /= sum;
    }
}


static size_t
top_key(void)
{
    double  x;
    size_t  low, high, middle;

    x = (double) (random_next() >> 11) / 9007199254740992.0;
    low = 0;
    high = TOP_KEYS - 1;

    while (low < high) {
        middle = (low + high) / 2;

        if (top_share[middle] < x) {
            low = middle + 1;

        } else {
            high = middle;
        }
    }

    return low;
}


/* as random as a hash is, and never 0 */

static uint64_t
top_id(size_t key)
{
    return ((uint64_t) key + 1) * 0x9e3779b97f4a7c15ULL;
}


static void
top_count(ratelimit_top_t *top, size_t k, uint64_t now, size_t key)
{
    char    text[32];
    size_t  len;

    len = (size_t) snprintf(text, sizeof(text), "key-%zu", key);

    ratelimit_top_add(top, k, now, top_id(key), 5, text, len);
}


/* each step some weight is lost, as the sketch loses it */

static void
top_forget(uint64_t steps)
{
    size_t  i;

    for (i = 0; i < TOP_KEYS; i++) {
        top_exact[i] *= pow((double) RATELIMIT_TOP_KEEP
                            / (double) RATELIMIT_TOP_ONE, (double) steps);
    }
}


static const ratelimit_top_score_t *
top_find(size_t n, uint64_t id)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        if (top_sum[i].id == id) {
            return &top_sum[i];
        }
    }

    return NULL;
}


static size_t
top_merge(size_t k, size_t sketches, uint64_t now)
{
    size_t               i;
    ratelimit_top_sum_t  sum;

    memset(&sum, 0, sizeof(ratelimit_top_sum_t));
    memset(top_index, 0, sizeof(top_index));

    sum.scores = top_sum;
    sum.index = top_index;
    sum.mask = 4 * TOP_SKETCHES * TOP_MOST - 1;

    for (i = 0; i < sketches; i++) {
        ratelimit_top_merge(&sum, top_sketch[i], k, now);
    }

    ratelimit_top_finish(&sum);

    return sum.n;
}


/*
 * What the header promises; half an event may be dropped, and units rounded, or
 * as many be counted, or not, as processes are killed.
 */

static int
top_holds(size_t k, size_t sketches, uint64_t now)
{
    double                        total, count, error, slack;
    size_t                        i, n;
    const ratelimit_top_score_t  *score;

    n = top_merge(k, sketches, now);
    total = 0;

    for (i = 0; i < TOP_KEYS; i++) {
        total += top_exact[i];
    }

    slack = (double) sketches * top_slack;

    for (i = 0; i < sketches; i++) {
        if (!top_is_sound(top_sketch[i], k)) {
            printf("# sketch %zu is not sound\n", i);
            return 0;
        }
    }

    for (i = 0; i < TOP_KEYS; i++) {
        score = top_find(n, top_id(i));

        if (score == NULL) {

            if (top_exact[i] > total / (double) k + slack) {
                printf("# key %zu of %f is missing\n", i, top_exact[i]);
                return 0;
            }

            continue;
        }

        count = (double) score->count / (double) RATELIMIT_TOP_ONE;
        error = (double) score->error / (double) RATELIMIT_TOP_ONE;

        if (top_exact[i] > count + slack
            || count - error > top_exact[i] + slack)
        {
            printf("# key %zu of %f is %f, error %f\n", i, top_exact[i],
                   count, error);
            return 0;
        }
    }

    for (i = 1; i < n; i++) {
        if (top_sum[i].count > top_sum[i - 1].count) {
            return 0;
        }
    }

    return 1;
}


static void
top_stream(const char *name, double exponent, size_t k, size_t sketches,
    uint64_t pause)
{
    int       good;
    char      text[32];
    size_t    i, key;
    uint64_t  now;

    top_zipf(exponent);
    memset(top_exact, 0, sizeof(top_exact));

    for (i = 0; i < sketches; i++) {
        memset(top_sketch[i], 0, ratelimit_top_size(TOP_MOST));
    }

    good = 1;
    now = 1000 * RATELIMIT_TOP_STEP;

    for (i = 0; i < TOP_EVENTS && good; i++) {

        if (pause && i % pause == pause - 1) {
            now += 3 * RATELIMIT_TOP_STEP;
            top_forget(3);
        }

        key = top_key();

        top_count(top_sketch[random_next() % sketches], k, now, key);
        top_exact[key] += 1;

        if (i % (TOP_EVENTS / 20) == 0) {
            good = top_holds(k, sketches, now);
        }
    }

    tap_ok(good && top_holds(k, sketches, now), "%s", name);

    memset(text, 0, sizeof(text));
    memcpy(text, top_sum[0].text, top_sum[0].len);

    tap_ok(sscanf(text, "key-%zu", &key) == 1
           && top_sum[0].id == top_id(key) && top_sum[0].limit == 5,
           "%s: its texts", name);
}


/* an attack of yesterday leaves the list, one of now is in it */

static void
top_yesterday(void)
{
    size_t            i, n;
    uint64_t          now;
    ratelimit_top_t  *top;

    top = top_sketch[0];
    memset(top, 0, ratelimit_top_size(TOP_MOST));
    now = 1;

    for (i = 0; i < 1000000; i++) {
        ratelimit_top_add(top, 4, now, 1 + i % 4, 0, "old", 3);
    }

    n = top_merge(4, 1, now + RATELIMIT_TOP_HALF);

    tap_ok(n == 4 && top_sum[0].count / RATELIMIT_TOP_ONE > 124500
           && top_sum[0].count / RATELIMIT_TOP_ONE < 125500,
           "half is left after half an age");

    now += 86400 * RATELIMIT_SECOND;
    ratelimit_top_add(top, 4, now, 9, 0, "new", 3);

    n = top_merge(4, 1, now);

    tap_ok(n == 1 && top_sum[0].id == 9
           && top_sum[0].count == RATELIMIT_TOP_ONE && top_sum[0].error == 0,
           "yesterday's keys are gone");

    /* a clock that is a little behind changes nothing */

    ratelimit_top_add(top, 4, now - RATELIMIT_TOP_STEP, 9, 0, "new", 3);

    n = top_merge(4, 1, now);

    tap_ok(n == 1 && top_sum[0].count == 2 * RATELIMIT_TOP_ONE,
           "a clock that is behind");
}


static void
top_long(void)
{
    char    key[1000];
    size_t  n;

    memset(key, 'x', sizeof(key));
    memset(top_sketch[0], 0, ratelimit_top_size(TOP_MOST));

    ratelimit_top_add(top_sketch[0], 1, 1, 77, 3, key, sizeof(key));
    ratelimit_top_add(top_sketch[0], 1, 1, 77, 3, key, sizeof(key));

    n = top_merge(1, 1, 1);

    tap_ok(n == 1 && top_sum[0].len == sizeof(key)
           && top_sum[0].count == 2 * RATELIMIT_TOP_ONE
           && memcmp(top_sum[0].text, key, RATELIMIT_TOP_TEXT) == 0,
           "a long key is cut, and its length known");
}


/* many ids of one chain: each is found, and leaves it */

static void
top_chains(void)
{
    int               good;
    size_t            i, n;
    ratelimit_top_t  *top;

    top = top_sketch[0];
    memset(top, 0, ratelimit_top_size(TOP_MOST));

    for (i = 0; i < 10000; i++) {
        ratelimit_top_add(top, 16, 1, 1 + random_next() % 40, 0, "x", 1);
    }

    good = top_is_sound(top, 16);
    n = top_merge(16, 1, 1);

    for (i = 0; i < n; i++) {
        ratelimit_top_add(top, 16, 1, top_sum[i].id, 0, "x", 1);
    }

    for (i = 0; i < n; i++) {
        good &= top->scores[i].count
                == top_find(n, top->scores[i].id)->count + RATELIMIT_TOP_ONE;
    }

    tap_ok(good && n == 16, "ids of one chain");
}


/* each score is in the chain of its key, once, and no count is below "least" */

static int
top_is_sound(ratelimit_top_t *top, size_t k)
{
    size_t                  i, linked, used;
    uint16_t                at;
    ratelimit_top_score_t  *score;

    linked = 0;
    used = 0;

    for (i = 0; i < k; i++) {
        used += (top->scores[i].id != 0);

        if (top->scores[i].count < top->least) {
            return 0;
        }
    }

    for (i = 0; i < RATELIMIT_TOP_CHAINS; i++) {

        for (at = top->chains[i]; at; at = score->next) {
            score = ratelimit_top_score(top, at);

            if (++linked > k || score->id == 0
                || score->id >> (64 - RATELIMIT_TOP_BITS) != i)
            {
                return 0;
            }
        }
    }

    return linked == used;
}


/* a process that counts what it has done is killed, and another goes on */

static void
top_killed(void)
{
    int               good;
    pid_t             pid;
    size_t            i, k, key;
    uint64_t          now, *done, before;
    ratelimit_top_t  *top;

    k = 16;
    now = 7 * RATELIMIT_TOP_STEP;
    good = 1;

    done = mmap(NULL, (TOP_KEYS + 1) * sizeof(uint64_t)
                      + ratelimit_top_size(k),
                PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    top = (ratelimit_top_t *) &done[TOP_KEYS + 1];

    top_zipf(0.9);
    memset(top_exact, 0, sizeof(top_exact));

    for (i = 0; i < TOP_KILLS && good; i++) {
        before = __atomic_load_n(&done[TOP_KEYS], __ATOMIC_RELAXED);
        pid = fork();

        if (pid == 0) {
            for ( ;; ) {
                key = top_key();
                top_count(top, k, now, key);
                done[key]++;
                __atomic_add_fetch(&done[TOP_KEYS], 1, __ATOMIC_RELAXED);
            }
        }

        while (__atomic_load_n(&done[TOP_KEYS], __ATOMIC_RELAXED)
               < before + 100 + random_next() % 100)
        {
            usleep(10);
        }

        (void) kill(pid, SIGKILL);
        (void) waitpid(pid, NULL, 0);

        (void) random_next();
        ratelimit_top_mend(top, k);
        good = top_is_sound(top, k);
    }

    for (key = 0; key < TOP_KEYS; key++) {
        top_exact[key] = (double) done[key];
    }

    top_slack = TOP_KILLS;
    memcpy(top_sketch[0], top, ratelimit_top_size(k));

    tap_ok(good && top_holds(k, 1, now), "processes are killed");

    (void) munmap(done, (TOP_KEYS + 1) * sizeof(uint64_t)
                        + ratelimit_top_size(k));
}


int
main(int argc, char **argv)
{
    size_t  i;

    random_start(argc, argv);

    for (i = 0; i < TOP_SKETCHES; i++) {
        top_sketch[i] = malloc(ratelimit_top_size(TOP_MOST));
    }

    top_stream("Zipf 1.0, 32 scores", 1.0, 32, 1, 0);
    top_stream("Zipf 1.3, 8 scores", 1.3, 8, 1, 0);
    top_stream("Zipf 0.8, 64 scores", 0.8, 64, 1, 0);
    top_stream("Zipf 1.1, one score", 1.1, 1, 1, 0);
    top_stream("Zipf 1.1, 4 sketches of 32", 1.1, 32, 4, 0);
    top_stream("Zipf 1.1, 8 sketches of 16, time goes by", 1.1, 16, 8, 9973);
    top_stream("Zipf 1.2, 32 scores, time goes by", 1.2, 32, 1, 4999);
    top_yesterday();
    top_long();
    top_chains();
    top_killed();

    for (i = 0; i < TOP_SKETCHES; i++) {
        free(top_sketch[i]);
    }

    return tap_done();
}
