
/*
 * Limits of several stores as one decision.  Each store decides atomically
 * about its own; they are asked one after the other, the fastest first, and
 * when one refuses, the others get back what they have charged.
 */


#include "store/ngx_http_ratelimit_store.h"


struct ngx_http_ratelimit_decision_s {
    ngx_http_ratelimit_query_t     *whole;
    ngx_http_ratelimit_query_t      part;     /* what one store is asked */
    ngx_uint_t                      first;    /* of the part in the whole */
    ngx_uint_t                      next;     /* to be asked */
    ngx_uint_t                      known;    /* where one begins that refuses,
                                                 as is known; or n */
};


static ngx_int_t ngx_http_ratelimit_decision_go(
    ngx_http_ratelimit_decision_t *d);
static ngx_uint_t ngx_http_ratelimit_decision_known(
    ngx_http_ratelimit_decision_t *d);
static void ngx_http_ratelimit_decision_take(ngx_http_ratelimit_decision_t *d);
static void ngx_http_ratelimit_decision_done(ngx_http_ratelimit_query_t *part,
    ngx_int_t rc);
static ngx_int_t ngx_http_ratelimit_decision_fall(
    ngx_http_ratelimit_decision_t *d);
static void ngx_http_ratelimit_decision_pass(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_decision_stop(
    ngx_http_ratelimit_decision_t *d, ngx_int_t rc);
static ngx_uint_t ngx_http_ratelimit_decision_range(
    ngx_http_ratelimit_query_t *q, ngx_uint_t first,
    ngx_http_ratelimit_query_t *range);


ngx_int_t
ngx_http_ratelimit_decision(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_decision_t  *d;

    d = ngx_palloc(q->pool, sizeof(ngx_http_ratelimit_decision_t));
    if (d == NULL) {
        return NGX_ERROR;
    }

    d->whole = q;
    d->next = 0;
    d->known = q->n;

    q->decision = d;
    q->started = ngx_current_msec;
    q->failed = 0;

    return ngx_http_ratelimit_decision_go(d);
}


/* asks store after store until one refuses, fails or has to be waited for */

static ngx_int_t
ngx_http_ratelimit_decision_go(ngx_http_ratelimit_decision_t *d)
{
    ngx_int_t                   rc;
    ngx_http_ratelimit_zone_t  *zone;

    while (d->next < d->whole->n) {
        ngx_http_ratelimit_decision_take(d);

        zone = d->part.subjects[0].use->zone;

        if (zone->redis && ngx_http_ratelimit_decision_known(d)) {
            d->next = d->first;
            return ngx_http_ratelimit_decision_stop(d, NGX_OK);
        }

        rc = zone->store->check(&d->part);

        if (rc == NGX_AGAIN) {
            return NGX_AGAIN;
        }

        if (rc == NGX_ERROR) {
            rc = ngx_http_ratelimit_decision_fall(d);
        }

        if (rc != NGX_OK || !d->part.allowed) {
            return ngx_http_ratelimit_decision_stop(d, rc);
        }
    }

    d->whole->allowed = 1;

    return NGX_OK;
}


/*
 * Whether one of those that are left is known to refuse: then none of them is
 * asked, and none has to give back.
 */

static ngx_uint_t
ngx_http_ratelimit_decision_known(ngx_http_ratelimit_decision_t *d)
{
    ngx_uint_t                         n;
    ngx_http_ratelimit_query_t         part;
    const ngx_http_ratelimit_store_t  *store;

    for (d->known = d->first; d->known < d->whole->n; d->known += n) {
        n = ngx_http_ratelimit_decision_range(d->whole, d->known, &part);

        store = part.subjects[0].use->zone->store;

        if (store->known && store->known(&part)) {
            return 1;
        }
    }

    return 0;
}


static void
ngx_http_ratelimit_decision_take(ngx_http_ratelimit_decision_t *d)
{
    d->first = d->next;
    d->next += ngx_http_ratelimit_decision_range(d->whole, d->first, &d->part);

    d->part.done = ngx_http_ratelimit_decision_done;
    d->part.data = d;
}


static void
ngx_http_ratelimit_decision_done(ngx_http_ratelimit_query_t *part,
    ngx_int_t rc)
{
    ngx_http_ratelimit_query_t     *q;
    ngx_http_ratelimit_decision_t  *d;

    d = part->data;
    q = d->whole;

    if (rc == NGX_ERROR) {
        rc = ngx_http_ratelimit_decision_fall(d);
    }

    if (rc == NGX_OK && part->allowed) {
        rc = ngx_http_ratelimit_decision_go(d);

    } else {
        rc = ngx_http_ratelimit_decision_stop(d, rc);
    }

    if (rc != NGX_AGAIN) {
        q->done(q, rc);
    }
}


/*
 * A store can't be asked: each zone says what is to be done then.  Limits that
 * go on in shared memory stand before those that let pass.
 */

static ngx_int_t
ngx_http_ratelimit_decision_fall(ngx_http_ratelimit_decision_t *d)
{
    ngx_uint_t                     i, n;
    ngx_http_ratelimit_zone_t     *zone;
    ngx_http_ratelimit_query_t     local, open;
    ngx_http_ratelimit_subject_t  *subject;

    subject = d->part.subjects;
    n = 0;

    for (i = 0; i < d->part.n; i++) {
        zone = subject[i].use->zone;

        if (zone->fail == NGX_HTTP_RATELIMIT_FAIL_CLOSED) {
            return NGX_BUSY;
        }

        if (zone->fail == NGX_HTTP_RATELIMIT_FAIL_LOCAL && zone->redis) {
            subject[i].backend = NGX_HTTP_RATELIMIT_LOCAL;
            n++;
        }
    }

    local = d->part;
    local.n = n;
    local.allowed = 1;

    if (n && ngx_http_ratelimit_shm_store.check(&local) != NGX_OK) {
        local.n = 0;
    }

    open = d->part;
    open.items += local.n;
    open.n -= local.n;

    ngx_http_ratelimit_decision_pass(&open);

    d->whole->failed |= (open.n != 0);
    d->part.allowed = local.allowed;

    return NGX_OK;
}


/* limits that were not asked: nothing is used of them, nothing was charged */

static void
ngx_http_ratelimit_decision_pass(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t            i;
    ratelimit_verdict_t  *verdict;

    for (i = 0; i < q->n; i++) {
        verdict = &q->items[i].verdict;

        ngx_memzero(verdict, sizeof(ratelimit_verdict_t));

        verdict->limit = q->items[i].rule->capacity;
        verdict->remaining = NGX_HTTP_RATELIMIT_UNASKED;
        verdict->allowed = 1;

        q->items[i].cost = 0;
    }
}


/*
 * A refusal, or a failure that refuses: stores that were asked before get
 * their charges back, those that come after only hear of it where refused
 * requests count.
 */

static ngx_int_t
ngx_http_ratelimit_decision_stop(ngx_http_ratelimit_decision_t *d,
    ngx_int_t rc)
{
    ngx_uint_t                  i, first;
    ngx_http_ratelimit_query_t  before, after, *q;

    q = d->whole;
    q->allowed = 0;

    before = *q;
    before.n = d->first;

    for (i = 0; i < before.n; i++) {
        if (before.items[i].insist) {
            before.items[i].cost = 0;
        }
    }

    ngx_http_ratelimit_store_refund(&before);

    while (d->next < q->n) {
        first = d->next;
        d->next += ngx_http_ratelimit_decision_range(q, first, &after);

        if (first == d->known) {
            continue;
        }

        after.subjects[0].use->zone->store->settle(&after);
        ngx_http_ratelimit_decision_pass(&after);
    }

    return rc;
}


/* the limits from the first on that one store is asked about */

static ngx_uint_t
ngx_http_ratelimit_decision_range(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_http_ratelimit_query_t *range)
{
    ngx_uint_t                     n;
    ngx_http_ratelimit_subject_t  *subject;

    *range = *q;

    range->items += first;
    range->places += first;
    range->subjects += first;

    subject = range->subjects;

    for (n = 1; first + n < q->n; n++) {
        if (subject[n].use->zone->redis != subject[0].use->zone->redis
            || subject[n].backend != subject[0].backend)
        {
            break;
        }
    }

    range->n = n;

    return n;
}


void
ngx_http_ratelimit_store_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t give_back)
{
    ngx_http_ratelimit_query_t      before;
    ngx_http_ratelimit_decision_t  *d;

    d = q->decision;

    d->part.subjects[0].use->zone->store->cancel(&d->part, give_back);

    if (give_back) {
        before = *q;
        before.n = d->first;

        ngx_http_ratelimit_store_refund(&before);
    }
}


void
ngx_http_ratelimit_store_refund(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                  first;
    ngx_http_ratelimit_query_t  part;

    for (first = 0; first < q->n; /* void */) {
        first += ngx_http_ratelimit_decision_range(q, first, &part);

        if (part.subjects[0].backend == NGX_HTTP_RATELIMIT_REDIS) {
            part.subjects[0].use->zone->store->refund(&part);

        } else {
            ngx_http_ratelimit_shm_store.refund(&part);
        }
    }
}
