
/*
 * The algorithms once more, as slow and as plain as their definitions: every
 * admitted request stays in a list, and each question is answered by reading
 * the whole list.  The arithmetic has 128 bits and knows no shortcut.
 */


#ifndef _MODEL_H_INCLUDED_
#define _MODEL_H_INCLUDED_


#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/ratelimit.h"


#define MODEL_ENTRIES  64


typedef __int128  model_int_t;


typedef struct {
    model_int_t                     at;       /* time, or index of a window */
    uint64_t                        cost;
    unsigned                        id;
} model_entry_t;


typedef struct {
    ratelimit_algorithm_e           algorithm;
    uint64_t                        buckets;
    const ratelimit_rule_t         *rule;

    model_entry_t                   entry[MODEL_ENTRIES];
    unsigned                        n;
    unsigned                        ids;
    model_int_t                     newest;   /* as an entry's at */

    model_int_t                     end;      /* of a fixed window */
    model_int_t                     level;    /* of a bucket at newest, in
                                                 1/period of a request */
} model_t;


static void
model_init(model_t *m, ratelimit_algorithm_e algorithm, uint64_t buckets,
    const ratelimit_rule_t *rule)
{
    memset(m, 0, sizeof(model_t));

    m->algorithm = algorithm;
    m->buckets = buckets;
    m->rule = rule;
    m->newest = -1;
}


static int
model_is_bucket(const model_t *m)
{
    return ratelimit_algorithms[m->algorithm]->drips;
}


static int
model_takes(const model_t *m, unsigned takes)
{
    return (ratelimit_algorithms[m->algorithm]->takes & takes) != 0;
}


static model_int_t
model_ceil(model_int_t a, model_int_t b)
{
    return (a + b - 1) / b;
}


static model_int_t
model_max(model_int_t a, model_int_t b)
{
    return (a > b) ? a : b;
}


/* the sub-window that a time belongs to, and when that one starts */

static model_int_t
model_index(const model_t *m, model_int_t t)
{
    return t * m->buckets / m->rule->period;
}


static model_int_t
model_start(const model_t *m, model_int_t index)
{
    return model_ceil(index * m->rule->period, m->buckets);
}


/* the time that a log writes down: long periods are counted in milliseconds */

static model_int_t
model_log_time(const model_t *m, model_int_t t)
{
    if (m->rule->period < ((uint64_t) 1 << 39)) {
        return t;
    }

    return model_ceil(t, 1000) * 1000;
}


static model_int_t
model_sum(const model_t *m, model_int_t from, model_int_t to)
{
    unsigned     i;
    model_int_t  sum;

    sum = 0;

    for (i = 0; i < m->n; i++) {
        if (m->entry[i].at >= from && m->entry[i].at <= to) {
            sum += m->entry[i].cost;
        }
    }

    return sum;
}


static model_int_t
model_used_sliding(const model_t *m, model_int_t t)
{
    model_int_t  i, last, inside, left, B, W;

    B = m->buckets;
    W = m->rule->period;

    i = model_index(m, t);

    /* the share of the oldest sub-window that is inside of the period */
    inside = W - (t * B - i * W);

    /* a clock that is a little behind is taken for the newest one's start */

    if (m->newest > i) {
        i = m->newest;
        inside = W;
    }

    last = model_sum(m, i - B, i - B);

    /* no more than a sub-window's part of the ceiling is taken to have left */

    left = model_max(model_ceil(last * inside, W),
                     last - (model_int_t) (m->rule->ceiling / m->buckets));

    return model_sum(m, i - B + 1, i) + left;
}


/* what counts against the limit at a time; for a bucket in 1/period */

static model_int_t
model_used(const model_t *m, model_int_t t)
{
    switch (m->algorithm) {

    case RATELIMIT_FIXED_WINDOW:
        return (t < m->end) ? model_sum(m, 0, 0) : 0;

    case RATELIMIT_SLIDING_WINDOW:
        return model_used_sliding(m, t);

    case RATELIMIT_SLIDING_LOG:
        return model_sum(m, t - m->rule->period + 1, (model_int_t) 1 << 100);

    default:
        return model_max(0, m->level
                            - model_max(0, t - m->newest) * m->rule->limit);
    }
}


/* whether a cost has room at a time; a token may be waited for */

static int
model_admits(const model_t *m, model_int_t t, uint64_t cost)
{
    model_int_t  used, room;

    if (cost == 0) {
        return 1;
    }

    if (cost > m->rule->ceiling) {
        return 0;
    }

    used = model_used(m, t);

    if (!model_is_bucket(m)) {
        return (used + cost <= m->rule->ceiling);
    }

    room = (model_int_t) (m->rule->ceiling - cost) * m->rule->period;

    if (model_takes(m, RATELIMIT_TAKES_WAIT)) {
        room += (model_int_t) m->rule->wait * m->rule->limit;
    }

    return (used <= room);
}


/* whether a time is one that is looked for: it admits, or nothing is used */

static int
model_found(const model_t *m, model_int_t t, uint64_t cost)
{
    return cost ? model_admits(m, t, cost) : (model_used(m, t) == 0);
}


/*
 * The first time from t on that admits the cost or, for cost 0, at which
 * nothing is used; what was used only shrinks by itself.
 */

static model_int_t
model_first(const model_t *m, model_int_t t, uint64_t cost)
{
    model_int_t  lo, hi, mid;

    if (model_found(m, t, cost)) {
        return t;
    }

    lo = t;
    hi = t + 1;

    while (!model_found(m, hi, cost)) {
        lo = hi;
        hi = t + (hi - t) * 2;
    }

    while (hi - lo > 1) {
        mid = lo + (hi - lo) / 2;

        if (model_found(m, mid, cost)) {
            hi = mid;

        } else {
            lo = mid;
        }
    }

    return hi;
}


static void
model_shift(model_t *m, model_int_t delta)
{
    unsigned  i;

    for (i = 0; i < m->n; i++) {
        m->entry[i].at -= delta;
    }

    m->newest -= delta;
}


/* returns 1 if the clock was set back, and forgets the future then */

static int __attribute__((unused))
model_rebase(model_t *m, const ratelimit_clock_t *clock)
{
    model_int_t  now, skew;

    now = clock->now;
    skew = RATELIMIT_SKEW;

    switch (m->algorithm) {

    case RATELIMIT_FIXED_WINDOW:
        if (m->end <= now + m->rule->period + skew) {
            return 0;
        }

        m->end = now + m->rule->period - clock->wall % m->rule->period;
        return 1;

    case RATELIMIT_SLIDING_WINDOW:
        if (m->newest <= model_index(m, now)
            || model_start(m, m->newest) <= now + skew)
        {
            return 0;
        }

        model_shift(m, m->newest - model_index(m, now));
        return 1;

    default:
        if (m->newest <= now + skew) {
            return 0;
        }

        model_shift(m, m->newest - now);
        return 1;
    }
}


static void
model_add(model_t *m, model_int_t at, uint64_t cost)
{
    if (m->n == MODEL_ENTRIES) {
        fprintf(stderr, "the model has no room\n");
        abort();
    }

    m->entry[m->n].at = at;
    m->entry[m->n].cost = cost;
    m->entry[m->n].id = ++m->ids;
    m->n++;
}


/* returns the name of the entry, to be refunded */

static unsigned
model_charge(model_t *m, const ratelimit_clock_t *clock, uint64_t cost)
{
    model_int_t  now;

    now = clock->now;

    switch (m->algorithm) {

    case RATELIMIT_FIXED_WINDOW:
        if (now >= m->end) {
            m->end = now + m->rule->period - clock->wall % m->rule->period;
            m->n = 0;
        }

        model_add(m, 0, cost);
        break;

    case RATELIMIT_SLIDING_WINDOW:
        m->newest = model_max(m->newest, model_index(m, now));
        model_add(m, m->newest, cost);
        break;

    case RATELIMIT_SLIDING_LOG:
        m->newest = model_max(m->newest, model_log_time(m, now));
        model_add(m, m->newest, cost);
        break;

    default:
        m->level = model_used(m, now)
                   + (model_int_t) cost * m->rule->period;
        m->newest = model_max(m->newest, now);
        return 0;
    }

    return m->ids;
}


/* refunds all of an entry, if it is there still */

static void __attribute__((unused))
model_refund(model_t *m, unsigned id)
{
    unsigned  i;

    for (i = 0; i < m->n; i++) {
        if (m->entry[i].id == id) {
            m->entry[i].cost = 0;
        }
    }
}


static void
model_measure(const model_t *m, const ratelimit_clock_t *clock,
    ratelimit_verdict_t *v, uint64_t cost)
{
    model_int_t  used, unit, now, free;

    now = clock->now;
    used = model_used(m, now);
    unit = model_is_bucket(m) ? m->rule->period : 1;

    v->limit = model_is_bucket(m) ? m->rule->capacity : m->rule->limit;
    v->remaining = model_max(0, (v->limit * unit - used)) / unit;
    v->reset_after = model_first(m, now, 0) - now;
    v->soft = (v->allowed && used > v->limit * unit);
    v->delay = 0;

    if (!v->allowed || cost == 0) {
        return;
    }

    if (model_takes(m, RATELIMIT_TAKES_WAIT)) {
        v->delay = model_ceil(model_max(0, used - m->rule->ceiling * unit),
                              m->rule->limit);
    }

    if (model_takes(m, RATELIMIT_TAKES_BURST)
        && m->rule->free != RATELIMIT_NODELAY)
    {
        free = m->rule->free;
        v->delay = model_ceil(model_max(0, used - (1 + free) * unit),
                              m->rule->limit);
    }
}


/* the verdict; the model has been rebased before */

static void __attribute__((unused))
model_look(const model_t *m, const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *v)
{
    model_t  after;

    memset(v, 0, sizeof(ratelimit_verdict_t));

    v->allowed = model_admits(m, clock->now, cost);

    if (!v->allowed) {
        model_measure(m, clock, v, cost);

        v->retry_after = (cost > m->rule->ceiling)
                         ? m->rule->period
                         : model_first(m, clock->now, cost) - clock->now;
        return;
    }

    after = *m;

    if (cost) {
        (void) model_charge(&after, clock, cost);
    }

    model_measure(&after, clock, v, cost);
}


/*
 * The first field by which a verdict differs from the model's, or NULL.  A
 * cost that never has room is told to wait for a period at least.
 */

static __attribute__((unused)) const char *
model_differs(const model_t *m, const ratelimit_verdict_t *v,
    const ratelimit_verdict_t *want, uint64_t cost)
{
    if (v->allowed != want->allowed) {
        return "allowed";
    }

    if (v->limit != want->limit) {
        return "limit";
    }

    if (v->remaining != want->remaining) {
        return "remaining";
    }

    if (v->reset_after != want->reset_after) {
        return "reset_after";
    }

    if (cost > m->rule->ceiling) {
        return (v->retry_after < m->rule->period) ? "retry_after" : NULL;
    }

    if (v->retry_after != want->retry_after) {
        return "retry_after";
    }

    if (cost && v->delay != want->delay) {
        return "delay";
    }

    if (m->rule->wait == 0 && v->soft != want->soft) {
        return "soft";
    }

    return NULL;
}


#endif /* _MODEL_H_INCLUDED_ */
