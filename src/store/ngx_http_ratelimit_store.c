
/*
 * Queries: limits of any stores as one decision.  Most have limits in shared
 * memory alone, which decides at once.  Otherwise each store decides atomically
 * about its own limits; stores are asked one after the other, the fastest
 * first, and when one refuses, the others refund what they have charged.
 */


#include "store/ngx_http_ratelimit_shm.h"


#if (NGX_HTTP_RATELIMIT_MAX_ROWS != RATELIMIT_MAX_ITEMS)
#error the table decides about another number of items
#endif


/* how far a query has come on its way through the stores */

struct ngx_http_ratelimit_progress_s {
    ngx_http_ratelimit_query_t     *query;
    ngx_http_ratelimit_query_t      part;     /* what one store is asked */
    ngx_uint_t                      first;    /* of the part in the query */
    ngx_uint_t                      next;     /* to be asked */
    ngx_uint_t                      recalled; /* where the part begins that is
                                                 known to refuse; or n */
};


static ratelimit_inline ngx_int_t ngx_http_ratelimit_query_decide_n(
    ngx_http_ratelimit_query_t *q, ngx_uint_t n);
static ratelimit_inline ngx_uint_t ngx_http_ratelimit_query_prepare(
    ngx_http_ratelimit_query_t *q, ngx_uint_t n);
static ngx_int_t ngx_http_ratelimit_query_start(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_query_continue(
    ngx_http_ratelimit_progress_t *progress);
static ngx_uint_t ngx_http_ratelimit_query_recall(
    ngx_http_ratelimit_progress_t *progress);
static void ngx_http_ratelimit_query_part_done(
    ngx_http_ratelimit_query_t *part, ngx_int_t rc);
static ngx_int_t ngx_http_ratelimit_query_fall_back(
    ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_query_let_pass(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_query_refuse(
    ngx_http_ratelimit_progress_t *progress, ngx_int_t rc);
static ngx_uint_t ngx_http_ratelimit_query_part(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_http_ratelimit_query_t *part);
static void ngx_http_ratelimit_query_slice(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, ngx_http_ratelimit_query_t *slice);


const size_t  ngx_http_ratelimit_row_size =
    sizeof(ratelimit_item_t) + sizeof(ngx_http_ratelimit_subject_t)
    + sizeof(ratelimit_place_t);


ngx_int_t
ngx_http_ratelimit_query_decide_one(ngx_http_ratelimit_query_t *q)
{
    return ngx_http_ratelimit_query_decide_n(q, 1);
}


ngx_int_t
ngx_http_ratelimit_query_decide_two(ngx_http_ratelimit_query_t *q)
{
    return ngx_http_ratelimit_query_decide_n(q, 2);
}


ngx_int_t
ngx_http_ratelimit_query_decide_any(ngx_http_ratelimit_query_t *q)
{
    return ngx_http_ratelimit_query_decide_n(q, q->n);
}


static ratelimit_inline ngx_int_t
ngx_http_ratelimit_query_decide_n(ngx_http_ratelimit_query_t *q, ngx_uint_t n)
{
    ngx_int_t  rc;

    q->failed = 0;

    if (ngx_http_ratelimit_query_prepare(q, n)) {
        rc = ngx_http_ratelimit_query_start(q);

    } else {
        rc = ngx_http_ratelimit_shm_decide(q, n);

        if (rc != NGX_OK) {
            rc = ngx_http_ratelimit_query_fall_back(q);
        }
    }

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, q->pool->log, 0,
                   "ratelimit: %ui rules, rc:%i allowed:%ui",
                   n, rc, q->allowed);

    q->rc = rc;

    return rc;
}


/* finds the places; returns whether some are not on this machine */

static ratelimit_inline ngx_uint_t
ngx_http_ratelimit_query_prepare(ngx_http_ratelimit_query_t *q, ngx_uint_t n)
{
    ngx_uint_t                     i, remote;
    ratelimit_hash_t               hash;
    ratelimit_place_t             *place;
    ngx_http_ratelimit_use_t      *use;
    ngx_http_ratelimit_zone_t     *zone;
    ngx_http_ratelimit_subject_t  *subject;

    use = NULL;
    remote = 0;

#pragma GCC unroll 2

    for (i = 0; i < n; i++) {
        subject = &q->subjects[i];
        place = &q->places[i];

        /* rules of one limit follow one another, and have one key */

        if (i == 0 || subject->use != use) {
            use = subject->use;

            ratelimit_key_hash(&use->hasher, subject->key.data,
                               subject->key.len, &hash);
        }

        zone = use->zone;
        remote |= zone->backend;

        place->table = zone->table;
        place->hash = hash;

        subject->backend = zone->backend;
    }

    return remote;
}


ngx_int_t
ngx_http_ratelimit_query_look(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    (void) ngx_http_ratelimit_query_prepare(q, q->n);

    for (i = 0; i < q->n; i++) {
        q->subjects[i].backend = NGX_HTTP_RATELIMIT_LOCAL;
    }

    return ngx_http_ratelimit_shm_decide(q, q->n);
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_query_start(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                      i;
    ngx_http_ratelimit_progress_t  *progress;

    q->allowed = 0;

    for (i = 0; i < q->n; i++) {
        q->items[i].shape = &q->subjects[i].use->zone->shape;
        q->items[i].verdict.stamp = 0;
        q->subjects[i].stamp = 0;
    }

    progress = ngx_palloc(q->pool, sizeof(ngx_http_ratelimit_progress_t));
    if (progress == NULL) {
        return ngx_http_ratelimit_query_fall_back(q);
    }

    progress->query = q;
    progress->next = 0;
    progress->recalled = q->n;

    q->progress = progress;
    q->started = ngx_current_msec;

    return ngx_http_ratelimit_query_continue(progress);
}


/* asks store after store until one refuses, fails or has to be waited for */

static ngx_int_t
ngx_http_ratelimit_query_continue(ngx_http_ratelimit_progress_t *progress)
{
    ngx_int_t                    rc;
    ngx_http_ratelimit_zone_t   *zone;
    ngx_http_ratelimit_query_t  *q, *part;

    q = progress->query;
    part = &progress->part;

    while (progress->next < q->n) {
        progress->first = progress->next;
        progress->next += ngx_http_ratelimit_query_part(q, progress->first,
                                                        part);

        part->done = ngx_http_ratelimit_query_part_done;
        part->data = progress;

        zone = part->subjects[0].use->zone;

        if (zone->rank && ngx_http_ratelimit_query_recall(progress)) {
            progress->next = progress->first;
            return ngx_http_ratelimit_query_refuse(progress, NGX_OK);
        }

        rc = zone->store->decide(part);

        if (rc == NGX_AGAIN) {
            return NGX_AGAIN;
        }

        if (rc == NGX_ERROR) {
            rc = ngx_http_ratelimit_query_fall_back(part);
        }

        if (rc != NGX_OK || !part->allowed) {
            return ngx_http_ratelimit_query_refuse(progress, rc);
        }

        q->failed += part->failed;
    }

    q->allowed = 1;

    return NGX_OK;
}


/*
 * Whether a limit that has not been asked is known to refuse: then the rest of
 * them is not asked, and nothing has to be refunded there.
 */

static ngx_uint_t
ngx_http_ratelimit_query_recall(ngx_http_ratelimit_progress_t *progress)
{
    ngx_uint_t                         i, n;
    ngx_http_ratelimit_query_t        *q, part;
    const ngx_http_ratelimit_store_t  *store;

    q = progress->query;

    for (i = progress->first; i < q->n; i += n) {
        n = ngx_http_ratelimit_query_part(q, i, &part);

        store = part.subjects[0].use->zone->store;

        if (store->recall && store->recall(&part)) {
            progress->recalled = i;
            return 1;
        }
    }

    return 0;
}


static void
ngx_http_ratelimit_query_part_done(ngx_http_ratelimit_query_t *part,
    ngx_int_t rc)
{
    ngx_http_ratelimit_query_t     *q;
    ngx_http_ratelimit_progress_t  *progress;

    progress = part->data;
    q = progress->query;

    if (rc == NGX_ERROR) {
        rc = ngx_http_ratelimit_query_fall_back(part);
    }

    if (rc == NGX_OK && part->allowed) {
        q->failed += part->failed;
        rc = ngx_http_ratelimit_query_continue(progress);

    } else {
        rc = ngx_http_ratelimit_query_refuse(progress, rc);
    }

    if (rc != NGX_AGAIN) {
        q->rc = rc;
        q->done(q, rc);
    }
}


/*
 * A store can't be asked: fail= of each zone says what happens.  Limits that
 * shared memory decides instead stand before those that let pass.
 */

static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_query_fall_back(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                     i, n;
    ngx_http_ratelimit_zone_t     *zone;
    ngx_http_ratelimit_query_t     local, open;
    ngx_http_ratelimit_subject_t  *subject;

    subject = q->subjects;
    n = 0;

    for (i = 0; i < q->n; i++) {
        zone = subject[i].use->zone;

        if (zone->fail == NGX_HTTP_RATELIMIT_FAIL_CLOSED) {
            q->allowed = 0;
            return NGX_BUSY;
        }

        if (zone->fail == NGX_HTTP_RATELIMIT_FAIL_LOCAL) {
            subject[i].backend = NGX_HTTP_RATELIMIT_LOCAL;
            n++;
        }
    }

    ngx_http_ratelimit_query_slice(q, 0, n, &local);
    local.allowed = 1;

    if (n && ngx_http_ratelimit_shm_decide(&local, n) != NGX_OK) {
        n = 0;
    }

    ngx_http_ratelimit_query_slice(q, n, q->n - n, &open);
    ngx_http_ratelimit_query_let_pass(&open);

    q->failed = open.n;
    q->allowed = local.allowed;

    return NGX_OK;
}


/* the verdicts of limits that were not asked: nothing used, nothing charged */

static void
ngx_http_ratelimit_query_let_pass(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t            i;
    ratelimit_verdict_t  *verdict;

    for (i = 0; i < q->n; i++) {
        verdict = &q->items[i].verdict;

        ngx_memzero(verdict, sizeof(ratelimit_verdict_t));

        verdict->limit = q->items[i].rule->capacity;
        verdict->remaining = UINT64_MAX;
        verdict->allowed = 1;

        q->items[i].cost = 0;
        q->subjects[i].backend = NGX_HTTP_RATELIMIT_UNASKED;
    }
}


/*
 * A refusal, or a failure that refuses: stores that were asked before refund
 * their charges, those that come after count the request where refused ones
 * count.
 */

static ngx_int_t
ngx_http_ratelimit_query_refuse(ngx_http_ratelimit_progress_t *progress,
    ngx_int_t rc)
{
    ngx_uint_t                   i, first;
    ngx_http_ratelimit_query_t  *q, part;

    q = progress->query;
    q->allowed = 0;

    for (i = 0; i < progress->first; i++) {
        if (q->items[i].insist) {
            q->items[i].cost = 0;
        }
    }

    ngx_http_ratelimit_query_refund(q, 0, progress->first);

    while (progress->next < q->n) {
        first = progress->next;
        progress->next += ngx_http_ratelimit_query_part(q, first, &part);

        if (first == progress->recalled) {
            continue;
        }

        part.subjects[0].use->zone->store->punish(&part);
        ngx_http_ratelimit_query_let_pass(&part);
    }

    return rc;
}


/* the limits from the first on that are asked together; returns how many */

static ngx_uint_t
ngx_http_ratelimit_query_part(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_http_ratelimit_query_t *part)
{
    ngx_uint_t                     n;
    ngx_http_ratelimit_subject_t  *subject;

    subject = &q->subjects[first];

    for (n = 1; first + n < q->n; n++) {
        if (subject[n].use->zone->rank != subject[0].use->zone->rank
            || subject[n].backend != subject[0].backend)
        {
            break;
        }
    }

    ngx_http_ratelimit_query_slice(q, first, n, part);

    return n;
}


static void
ngx_http_ratelimit_query_slice(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, ngx_http_ratelimit_query_t *slice)
{
    *slice = *q;

    slice->items += first;
    slice->places += first;
    slice->subjects += first;
    slice->n = n;
    slice->failed = 0;
}


ngx_uint_t
ngx_http_ratelimit_query_describe(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    for (i = 0; i < q->n; i++) {

        /* a verdict of Redis is complete */

        if (q->subjects[i].backend == NGX_HTTP_RATELIMIT_SHM
            || q->subjects[i].backend == NGX_HTTP_RATELIMIT_LOCAL)
        {
            ratelimit_table_describe(&q->items[i], &q->places[i], 1);
        }
    }

    return ratelimit_tightest(q->items, q->n);
}


void
ngx_http_ratelimit_query_refund(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n)
{
    ngx_uint_t                         i, last;
    ngx_http_ratelimit_query_t         range, part;
    const ngx_http_ratelimit_store_t  *store;

    last = first + n;
    ngx_http_ratelimit_query_slice(q, 0, last, &range);

    while (first < last) {
        i = first;
        first += ngx_http_ratelimit_query_part(&range, i, &part);

        if (part.subjects[0].backend == NGX_HTTP_RATELIMIT_UNASKED) {
            continue;
        }

        store = (part.subjects[0].backend == NGX_HTTP_RATELIMIT_LOCAL)
                ? &ngx_http_ratelimit_shm_store
                : part.subjects[0].use->zone->store;

        store->refund(&part);

        for ( /* void */ ; i < first; i++) {
            q->items[i].cost = 0;
        }
    }
}


void
ngx_http_ratelimit_query_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t refund)
{
    ngx_http_ratelimit_progress_t  *progress;

    progress = q->progress;

    progress->part.subjects[0].use->zone->store->cancel(&progress->part,
                                                        refund);

    if (refund) {
        ngx_http_ratelimit_query_refund(q, 0, progress->first);
    }
}
