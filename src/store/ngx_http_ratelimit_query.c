
/*
 * Queries: limits of any stores as one decision.  Most have limits in shared
 * memory alone, which decides at once.  Otherwise each store, or each part of
 * it, decides atomically about its own limits: first shared memory, then all
 * others at the same time.  When one refuses, the others refund what they have
 * charged.
 */


#include "store/ngx_http_ratelimit_shm.h"


#if (NGX_HTTP_RATELIMIT_MAX_ROWS != RATELIMIT_MAX_ITEMS)
#error the table decides about another number of items
#endif


/* the limits of one store in a query */

typedef struct {
    ngx_http_ratelimit_query_t      query;
    ngx_http_ratelimit_progress_t  *progress;
    ngx_int_t                       rc;       /* NGX_DECLINED: not asked yet,
                                                 NGX_AGAIN: asked */
    ngx_uint_t                      charged;  /* if it allows */
} ngx_http_ratelimit_part_t;


/* how far a query has come on its way through the stores */

struct ngx_http_ratelimit_progress_s {
    ngx_http_ratelimit_query_t     *query;
    ngx_uint_t                      nparts;
    ngx_uint_t                      waiting;  /* parts that have been asked */
    ngx_http_ratelimit_part_t       parts[1];
};


static ratelimit_inline ngx_int_t ngx_http_ratelimit_query_decide_n(
    ngx_http_ratelimit_query_t *q, ngx_uint_t n);
static ratelimit_inline ngx_int_t ngx_http_ratelimit_query_decide_shm(
    ngx_http_ratelimit_query_t *q, ngx_uint_t n);
static ratelimit_inline ngx_uint_t ngx_http_ratelimit_query_prepare(
    ngx_http_ratelimit_query_t *q, ngx_uint_t n);
static void ngx_http_ratelimit_query_inspect(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_query_init_items(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_query_start(ngx_http_ratelimit_query_t *q);
static uint32_t ngx_http_ratelimit_query_find_part(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i);
static ngx_int_t ngx_http_ratelimit_query_attempt(
    ngx_http_ratelimit_query_t *q);
static ngx_http_ratelimit_progress_t *ngx_http_ratelimit_query_split(
    ngx_http_ratelimit_query_t *q);
static ngx_uint_t ngx_http_ratelimit_query_recall(
    ngx_http_ratelimit_progress_t *progress);
static void ngx_http_ratelimit_query_ask(ngx_http_ratelimit_part_t *part,
    ngx_uint_t refused);
static void ngx_http_ratelimit_query_part_done(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);
static void ngx_http_ratelimit_query_part_failed(
    ngx_http_ratelimit_part_t *part);
static ngx_int_t ngx_http_ratelimit_query_fall_back(
    ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_query_let_pass(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_query_finish(
    ngx_http_ratelimit_progress_t *progress);


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
        rc = ngx_http_ratelimit_query_decide_shm(q, n);

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


static ratelimit_inline ngx_int_t
ngx_http_ratelimit_query_decide_shm(ngx_http_ratelimit_query_t *q, ngx_uint_t n)
{
    if (ngx_http_ratelimit_self == 0) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_shm_clock(&q->places[0].clock);

    return ngx_http_ratelimit_shm_decide_at(q, n);
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

    /* the first rule sets it, which clang does not see */

    ngx_memzero(&hash, sizeof(ratelimit_hash_t));

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
ngx_http_ratelimit_query_decide_local(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    (void) ngx_http_ratelimit_query_prepare(q, q->n);

    for (i = 0; i < q->n; i++) {
        q->subjects[i].backend = NGX_HTTP_RATELIMIT_LOCAL;
        q->subjects[i].part = ngx_http_ratelimit_query_find_part(q, i);
    }

    return ngx_http_ratelimit_shm_store.decide(q);
}


ngx_int_t
ngx_http_ratelimit_query_peek(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_query_inspect(q);

    return q->subjects[0].use->zone->store->peek(q);
}


ngx_int_t
ngx_http_ratelimit_query_reset(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_query_inspect(q);

    return q->subjects[0].use->zone->store->reset(q);
}


/* nothing is charged, nor counted because it is refused */

static void
ngx_http_ratelimit_query_inspect(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    (void) ngx_http_ratelimit_query_prepare(q, q->n);

    ngx_http_ratelimit_query_init_items(q);

    for (i = 0; i < q->n; i++) {
        q->items[i].count_rejected = 0;
        q->items[i].reserve = 0;
    }
}


/* what shared memory does not need before it decides */

static void
ngx_http_ratelimit_query_init_items(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    for (i = 0; i < q->n; i++) {
        q->items[i].shape = &q->subjects[i].use->zone->shape;
        q->items[i].state = NULL;
        q->items[i].verdict.stamp = 0;
        q->subjects[i].stamp = 0;
        q->subjects[i].part = ngx_http_ratelimit_query_find_part(q, i);
    }
}


void
ngx_http_ratelimit_query_abort(ngx_http_ratelimit_query_t *q)
{
    q->subjects[0].use->zone->store->cancel(q, 0);
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_query_start(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                      i, refused;
    ngx_http_ratelimit_part_t      *part;
    ngx_http_ratelimit_progress_t  *progress;

    q->allowed = 0;

    ngx_http_ratelimit_query_init_items(q);

    if (ngx_http_ratelimit_query_attempt(q) == NGX_OK) {
        return NGX_OK;
    }

    progress = ngx_http_ratelimit_query_split(q);
    if (progress == NULL) {
        return ngx_http_ratelimit_query_fall_back(q);
    }

    q->progress = progress;

    part = progress->parts;
    refused = 0;

    if (part->query.subjects[0].use->zone->rank == 0) {
        ngx_http_ratelimit_query_ask(part, 0);
        refused = (part->rc != NGX_OK || !part->query.allowed);
    }

    refused |= ngx_http_ratelimit_query_recall(progress);

    for (i = 0; i < progress->nparts; i++) {
        if (progress->parts[i].rc == NGX_DECLINED) {
            ngx_http_ratelimit_query_ask(&progress->parts[i], refused);
        }
    }

    return progress->waiting ? NGX_AGAIN
                             : ngx_http_ratelimit_query_finish(progress);
}


static uint32_t
ngx_http_ratelimit_query_find_part(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_http_ratelimit_subject_t      *subject;
    const ngx_http_ratelimit_store_t  *store;

    subject = &q->subjects[i];
    store = subject->use->zone->store;

    if (store->part == NULL) {
        return 0;
    }

    /* rules of one limit follow one another, and have one key */

    return (i && subject[-1].use == subject->use) ? subject[-1].part
                                                  : store->part(subject);
}


/* limits of one store may be decided at once, though not in shared memory */

static ngx_int_t
ngx_http_ratelimit_query_attempt(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_query_t         part;
    const ngx_http_ratelimit_store_t  *store;

    store = q->subjects[0].use->zone->store;

    if (store->attempt == NULL
        || ngx_http_ratelimit_query_part(q, 0, &part) != q->n)
    {
        return NGX_DECLINED;
    }

    return store->attempt(q);
}


static ngx_http_ratelimit_progress_t *
ngx_http_ratelimit_query_split(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                      i, n;
    ngx_http_ratelimit_part_t      *part;
    ngx_http_ratelimit_query_t      slice;
    ngx_http_ratelimit_progress_t  *progress;

    n = 0;

    for (i = 0; i < q->n; n++) {
        i += ngx_http_ratelimit_query_part(q, i, &slice);
    }

    progress = ngx_palloc(q->pool, sizeof(ngx_http_ratelimit_progress_t)
                                   + (n - 1)
                                     * sizeof(ngx_http_ratelimit_part_t));
    if (progress == NULL) {
        return NULL;
    }

    progress->query = q;
    progress->nparts = n;
    progress->waiting = 0;

    part = progress->parts;

    for (i = 0; i < q->n; part++) {
        i += ngx_http_ratelimit_query_part(q, i, &part->query);

        part->query.done = ngx_http_ratelimit_query_part_done;
        part->query.data = part;
        part->progress = progress;
        part->rc = NGX_DECLINED;
        part->charged = 0;
    }

    return progress;
}


/* whether a store that has not been asked is known to refuse */

static ngx_uint_t
ngx_http_ratelimit_query_recall(ngx_http_ratelimit_progress_t *progress)
{
    ngx_uint_t                         i, refused;
    ngx_http_ratelimit_part_t         *part;
    const ngx_http_ratelimit_store_t  *store;

    refused = 0;

    for (i = 0; i < progress->nparts; i++) {
        part = &progress->parts[i];
        store = part->query.subjects[0].use->zone->store;

        if (part->rc == NGX_DECLINED && store->recall
            && store->recall(&part->query))
        {
            part->rc = NGX_OK;
            part->query.allowed = 0;
            refused = 1;
        }
    }

    return refused;
}


/*
 * A store that comes after a refusal does not charge, but it counts where
 * refused requests count, and may know of a longer wait.
 */

static void
ngx_http_ratelimit_query_ask(ngx_http_ratelimit_part_t *part,
    ngx_uint_t refused)
{
    const ngx_http_ratelimit_store_t  *store;

    store = part->query.subjects[0].use->zone->store;

    if (refused) {
        part->rc = store->refused(&part->query);

    } else {
        part->charged = 1;
        part->rc = store->decide(&part->query);
    }

    if (part->rc == NGX_AGAIN) {
        part->progress->waiting++;

    } else if (part->rc != NGX_OK) {
        ngx_http_ratelimit_query_part_failed(part);
    }
}


static void
ngx_http_ratelimit_query_part_done(ngx_http_ratelimit_query_t *q, ngx_int_t rc)
{
    ngx_http_ratelimit_part_t      *part;
    ngx_http_ratelimit_query_t     *whole;
    ngx_http_ratelimit_progress_t  *progress;

    part = q->data;
    progress = part->progress;
    whole = progress->query;

    part->rc = rc;

    if (rc != NGX_OK) {
        ngx_http_ratelimit_query_part_failed(part);
    }

    if (--progress->waiting == 0) {
        whole->rc = ngx_http_ratelimit_query_finish(progress);
        whole->done(whole, whole->rc);
    }
}


static void
ngx_http_ratelimit_query_part_failed(ngx_http_ratelimit_part_t *part)
{
    if (part->charged) {
        part->rc = ngx_http_ratelimit_query_fall_back(&part->query);
        return;
    }

    ngx_http_ratelimit_query_let_pass(&part->query);

    part->rc = NGX_OK;
    part->query.allowed = 1;
}


/*
 * A store can't be asked: fail= of each zone says what happens.  Limits that
 * shared memory decides instead stand before those that let pass.
 */

static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_query_fall_back(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                         i, n;
    ngx_http_ratelimit_zone_t         *zone;
    ngx_http_ratelimit_query_t         local, open;
    ngx_http_ratelimit_subject_t      *subject;
    const ngx_http_ratelimit_store_t  *store;

    subject = q->subjects;
    n = 0;

    for (i = 0; i < q->n; i++) {
        zone = subject[i].use->zone;

        if (zone->fail == NGX_HTTP_RATELIMIT_FAIL_CLOSED) {
            ngx_http_ratelimit_query_let_pass(q);
            q->allowed = 0;
            return NGX_BUSY;
        }

        /* of one clock, as they are decided together */

        if (zone->fail == NGX_HTTP_RATELIMIT_FAIL_LOCAL && n == i
            && zone->offsets == subject[0].use->zone->offsets)
        {
            subject[i].backend = NGX_HTTP_RATELIMIT_LOCAL;
            n++;
        }
    }

    ngx_http_ratelimit_query_slice(q, 0, n, &local);
    local.allowed = 1;

    if (n && ngx_http_ratelimit_shm_store.decide(&local) != NGX_OK) {
        n = 0;
    }

    store = subject[0].use->zone->store;

    if (n && local.allowed && store->local) {
        store->local(&local);
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


static ngx_int_t
ngx_http_ratelimit_query_finish(ngx_http_ratelimit_progress_t *progress)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i;
    ngx_http_ratelimit_part_t   *part;
    ngx_http_ratelimit_query_t  *q;

    q = progress->query;
    rc = NGX_OK;

    q->allowed = 1;
    q->failed = 0;

    for (i = 0; i < progress->nparts; i++) {
        part = &progress->parts[i];

        if (part->rc == NGX_BUSY) {
            rc = NGX_BUSY;
        }

        q->allowed &= (part->rc == NGX_OK && part->query.allowed);
        q->failed += part->query.failed;
    }

    if (!q->allowed) {
        for (i = 0; i < progress->nparts; i++) {
            part = &progress->parts[i];

            if (part->rc == NGX_OK && part->charged && part->query.allowed) {
                (void) ngx_http_ratelimit_query_refuse(&part->query);
            }
        }
    }

    return rc;
}


ngx_uint_t
ngx_http_ratelimit_query_part(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_http_ratelimit_query_t *part)
{
    ngx_uint_t                     n;
    ngx_http_ratelimit_subject_t  *subject;

    subject = &q->subjects[first];

    for (n = 1; first + n < q->n; n++) {
        if (subject[n].use->zone->rank != subject[0].use->zone->rank
            || subject[n].backend != subject[0].backend
            || (subject[n].use->zone->parted
                && subject[n].part != subject[0].part))
        {
            break;
        }
    }

    ngx_http_ratelimit_query_slice(q, first, n, part);

    return n;
}


void
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


void
ngx_http_ratelimit_query_drop(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_uint_t                    n;
    ratelimit_item_t              item;
    ratelimit_place_t             place;
    ngx_http_ratelimit_subject_t  subject;

    item = q->items[i];
    place = q->places[i];
    subject = q->subjects[i];

    n = --q->n - i;

    ngx_memmove(&q->items[i], &q->items[i + 1], n * sizeof(ratelimit_item_t));
    ngx_memmove(&q->places[i], &q->places[i + 1],
                n * sizeof(ratelimit_place_t));
    ngx_memmove(&q->subjects[i], &q->subjects[i + 1],
                n * sizeof(ngx_http_ratelimit_subject_t));

    q->items[q->n] = item;
    q->places[q->n] = place;
    q->subjects[q->n] = subject;

    q->dropped++;
}


ngx_uint_t
ngx_http_ratelimit_query_describe(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    for (i = 0; i < q->n; i++) {

        /* a verdict of Redis is complete */

        if (q->subjects[i].backend != NGX_HTTP_RATELIMIT_REDIS
            && q->subjects[i].backend != NGX_HTTP_RATELIMIT_UNASKED)
        {
            ratelimit_table_describe(&q->items[i], &q->places[i], 1);
        }
    }

    return ratelimit_tightest(q->items, q->n);
}


void
ngx_http_ratelimit_query_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t refund)
{
    ngx_uint_t                      i;
    ngx_http_ratelimit_part_t      *part;
    ngx_http_ratelimit_progress_t  *progress;

    progress = q->progress;

    for (i = 0; i < progress->nparts; i++) {
        part = &progress->parts[i];

        if (part->rc == NGX_AGAIN) {
            part->query.subjects[0].use->zone->store->cancel(&part->query,
                                                    refund && part->charged);

        } else if (refund && part->rc == NGX_OK && part->charged
                   && part->query.allowed)
        {
            ngx_http_ratelimit_query_refund(&part->query, 0, part->query.n);
        }
    }
}
