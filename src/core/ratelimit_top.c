
/*
 * The sketch of the keys that are counted most.
 */


#include <stdlib.h>
#include <string.h>

#include "core/ratelimit_math.h"
#include "core/ratelimit_top.h"


/* after so many steps nothing is left of any count */
#define RATELIMIT_TOP_FORGOTTEN  (64 * RATELIMIT_TOP_HALF / RATELIMIT_TOP_STEP)


static void ratelimit_top_insert(ratelimit_top_t *top, size_t k, uint64_t id,
    uint32_t limit, const void *key, size_t len);
static ratelimit_top_score_t *ratelimit_top_choose(ratelimit_top_t *top,
    size_t k);
static void ratelimit_top_link(ratelimit_top_t *top,
    ratelimit_top_score_t *score);
static void ratelimit_top_unlink(ratelimit_top_t *top,
    ratelimit_top_score_t *score);
static void ratelimit_top_decay(ratelimit_top_t *top, size_t k, uint64_t now);
static uint64_t ratelimit_top_steps(const ratelimit_top_t *top, uint64_t now);
static uint64_t ratelimit_top_fade(uint64_t count, uint64_t steps);
static ratelimit_top_score_t *ratelimit_top_find(ratelimit_top_sum_t *sum,
    const ratelimit_top_score_t *score);
static uint64_t ratelimit_top_least(const ratelimit_top_t *top, size_t k,
    uint64_t steps);
static int ratelimit_top_compare(const void *one, const void *two);


size_t
ratelimit_top_size(size_t k)
{
    return offsetof(ratelimit_top_t, scores)
           + k * sizeof(ratelimit_top_score_t);
}


void
ratelimit_top_add(ratelimit_top_t *top, size_t k, uint64_t now, uint64_t id,
    uint32_t limit, const void *key, size_t len)
{
    if (now >= top->until) {
        ratelimit_top_decay(top, k, now);
    }

    if (!ratelimit_top_repeat(top, now, id)) {
        ratelimit_top_insert(top, k, id, limit, key, len);
    }
}


/* a score for a key that has none */

static void
ratelimit_top_insert(ratelimit_top_t *top, size_t k, uint64_t id,
    uint32_t limit, const void *key, size_t len)
{
    ratelimit_top_score_t  *score;

    score = ratelimit_top_choose(top, k);

    if (score->id) {
        ratelimit_top_unlink(top, score);

        /* while it is written it is none */

        __atomic_store_n(&score->id, 0, __ATOMIC_RELEASE);
    }

    score->error = score->count;
    score->count += RATELIMIT_TOP_ONE;
    score->limit = limit;
    score->len = (uint32_t) ratelimit_min(len, UINT32_MAX);

    memcpy(score->text, key, ratelimit_min(len, RATELIMIT_TOP_TEXT));

    __atomic_store_n(&score->id, id, __ATOMIC_RELEASE);

    ratelimit_top_link(top, score);
}


/*
 * A score of the least count.  As counts only grow until they decay, the
 * search may end at any that is not above what was the least when it last went
 * all the way round.
 */

static ratelimit_top_score_t *
ratelimit_top_choose(ratelimit_top_t *top, size_t k)
{
    size_t                  i, n;
    ratelimit_top_score_t  *score, *lowest;

    i = top->turn;
    lowest = &top->scores[i];

    for (n = 0; n < k; n++) {
        score = &top->scores[i];
        i = (i + 1 < k) ? i + 1 : 0;

        if (score->count <= lowest->count) {
            lowest = score;
            top->turn = i;

            if (score->count <= top->least) {
                break;
            }
        }
    }

    top->least = lowest->count;

    return lowest;
}


static void
ratelimit_top_link(ratelimit_top_t *top, ratelimit_top_score_t *score)
{
    uint16_t  *chain;

    chain = &top->chains[score->id >> (64 - RATELIMIT_TOP_BITS)];
    score->next = *chain;
    *chain = (uint16_t) ((uint64_t *) score - (uint64_t *) top);
}


static void
ratelimit_top_unlink(ratelimit_top_t *top, ratelimit_top_score_t *score)
{
    uint16_t  *at;

    at = &top->chains[score->id >> (64 - RATELIMIT_TOP_BITS)];

    while (ratelimit_top_score(top, *at) != score) {
        at = &ratelimit_top_score(top, *at)->next;
    }

    *at = score->next;
}


/* the first write says which weights the counts have */

static void
ratelimit_top_decay(ratelimit_top_t *top, size_t k, uint64_t now)
{
    size_t                  i;
    uint64_t                steps;
    ratelimit_top_score_t  *score;

    steps = ratelimit_top_steps(top, now);

    __atomic_store_n(&top->until, top->until + steps * RATELIMIT_TOP_STEP,
                     __ATOMIC_RELEASE);

    for (i = 0; i < k; i++) {
        score = &top->scores[i];

        score->error = ratelimit_top_fade(score->error, steps);
        score->count = ratelimit_top_fade(score->count, steps);

        if (score->count < RATELIMIT_TOP_ONE / 2) {
            __atomic_store_n(&score->id, 0, __ATOMIC_RELEASE);
            score->count = 0;
        }
    }

    ratelimit_top_mend(top, k);
}


void
ratelimit_top_mend(ratelimit_top_t *top, size_t k)
{
    size_t  i;

    memset(top->chains, 0, sizeof(top->chains));

    top->least = 0;
    top->turn = 0;

    for (i = 0; i < k; i++) {
        if (top->scores[i].id) {
            ratelimit_top_link(top, &top->scores[i]);
        }
    }
}


/* after which the weights are those of this time */

static uint64_t
ratelimit_top_steps(const ratelimit_top_t *top, uint64_t now)
{
    return now < top->until ? 0 : (now - top->until) / RATELIMIT_TOP_STEP + 1;
}


/* rounded up, so that no count is less than it should be */

static uint64_t
ratelimit_top_fade(uint64_t count, uint64_t steps)
{
    if (steps > RATELIMIT_TOP_FORGOTTEN) {
        return 0;
    }

    while (steps--) {
        count -= (uint64_t) (((unsigned __int128) count
                              * (RATELIMIT_TOP_ONE - RATELIMIT_TOP_KEEP))
                             / RATELIMIT_TOP_ONE);
    }

    return count;
}


/* until the sum is finished, counts and errors are those above "absent" */

void
ratelimit_top_merge(ratelimit_top_sum_t *sum, const ratelimit_top_t *top,
    size_t k, uint64_t now)
{
    size_t                        i;
    uint64_t                      steps, count, absent;
    ratelimit_top_score_t        *total;
    const ratelimit_top_score_t  *score;

    steps = ratelimit_top_steps(top, now);
    absent = ratelimit_top_least(top, k, steps);

    for (i = 0; i < k; i++) {
        score = &top->scores[i];
        count = ratelimit_top_fade(score->count, steps);

        if (score->id == 0 || count < RATELIMIT_TOP_ONE / 2) {
            continue;
        }

        total = ratelimit_top_find(sum, score);

        total->count += count - absent;
        total->error += ratelimit_top_fade(score->error, steps) - absent;
    }

    sum->absent += absent;
}


/* the score of this key, a new one if there is none */

static ratelimit_top_score_t *
ratelimit_top_find(ratelimit_top_sum_t *sum,
    const ratelimit_top_score_t *score)
{
    size_t                  i;
    ratelimit_top_score_t  *total;

    for (i = score->id & sum->mask; sum->index[i]; i = (i + 1) & sum->mask) {
        total = &sum->scores[sum->index[i] - 1];

        if (total->id == score->id) {
            return total;
        }
    }

    total = &sum->scores[sum->n++];
    sum->index[i] = (uint32_t) sum->n;

    *total = *score;
    total->count = 0;
    total->error = 0;

    return total;
}


/* the count that a key without a score may have */

static uint64_t
ratelimit_top_least(const ratelimit_top_t *top, size_t k, uint64_t steps)
{
    size_t    i;
    uint64_t  least;

    least = UINT64_MAX;

    for (i = 0; i < k; i++) {
        least = ratelimit_min(least, top->scores[i].count);
    }

    least = k ? ratelimit_top_fade(least, steps) : 0;

    return least < RATELIMIT_TOP_ONE / 2 ? 0 : least;
}


void
ratelimit_top_finish(ratelimit_top_sum_t *sum)
{
    size_t  i;

    for (i = 0; i < sum->n; i++) {
        sum->scores[i].count += sum->absent;
        sum->scores[i].error += sum->absent;
    }

    qsort(sum->scores, sum->n, sizeof(ratelimit_top_score_t),
          ratelimit_top_compare);
}


static int
ratelimit_top_compare(const void *one, const void *two)
{
    const ratelimit_top_score_t  *a = one;
    const ratelimit_top_score_t  *b = two;

    if (a->count != b->count) {
        return a->count < b->count ? 1 : -1;
    }

    return (a->error > b->error) - (a->error < b->error);
}
