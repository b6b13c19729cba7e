
/*
 * Settling: what was charged to an allowed query is refunded, counts, or is
 * corrected, when it is known what the request has cost.
 */


#include "store/ngx_http_ratelimit_shm.h"


static void ngx_http_ratelimit_query_debit(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, uint64_t cost);
static void ngx_http_ratelimit_query_refund_rest(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, uint64_t charged, uint64_t kept);
static void ngx_http_ratelimit_query_settle(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, ngx_http_ratelimit_settle_e how);


void
ngx_http_ratelimit_query_refund(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n)
{
    ngx_http_ratelimit_query_settle(q, first, n, NGX_HTTP_RATELIMIT_REFUND);
}


/*
 * If what counts refused requests is left with too little by this one, the
 * client waits until the limit is whole.
 */

ngx_uint_t
ngx_http_ratelimit_query_refuse(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t            i, refuses;
    ratelimit_item_t     *item;
    ratelimit_verdict_t  *verdict;

    refuses = 0;

    for (i = 0; i < q->n; i++) {
        item = &q->items[i];
        verdict = &item->verdict;

        if (!item->count_rejected
            || q->subjects[i].backend == NGX_HTTP_RATELIMIT_UNASKED)
        {
            continue;
        }

        if (q->subjects[i].backend != NGX_HTTP_RATELIMIT_REDIS) {
            ratelimit_table_describe(item, &q->places[i], 1);
        }

        if (verdict->remaining < item->cost && verdict->reset_after) {
            verdict->allowed = 0;
            verdict->soft = 0;
            verdict->retry_after = verdict->reset_after;

            refuses = 1;
        }

        item->cost = 0;
    }

    ngx_http_ratelimit_query_refund(q, 0, q->n);

    return refuses;
}


void
ngx_http_ratelimit_query_commit(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n)
{
    ngx_http_ratelimit_query_settle(q, first, n, NGX_HTTP_RATELIMIT_COMMIT);
}


void
ngx_http_ratelimit_query_refund_latest(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, uint64_t cost)
{
    ratelimit_item_t              *item;
    const ratelimit_shape_t       *shape;
    ngx_http_ratelimit_subject_t  *subject;

    item = &q->items[i];
    subject = &q->subjects[i];
    shape = &subject->use->zone->shape;

    if (subject->backend == NGX_HTTP_RATELIMIT_UNASKED) {
        return;
    }

    item->cost = ratelimit_verdict_refund(shape, &item->verdict, cost);
    item->verdict.stamp = ratelimit_stamp_latest(shape, item->verdict.stamp);
    subject->stamp = ratelimit_stamp_latest(shape, subject->stamp);

    ngx_http_ratelimit_query_settle(q, i, 1, NGX_HTTP_RATELIMIT_REFUND);
}


/* a worker that is killed in between leaves too much charged */

void
ngx_http_ratelimit_query_adjust(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, uint64_t cost)
{
    uint64_t                    charged;
    ngx_uint_t                  reserved;
    ngx_http_ratelimit_zone_t  *zone;

    zone = q->subjects[first].use->zone;
    charged = q->items[first].cost;

    reserved = charged && q->items[first].reserve
               && ratelimit_algorithms[zone->shape.algorithm]->reserve;

    if (reserved) {

        /* the reservation counts from now on, as what it has cost */

        ngx_http_ratelimit_query_debit(q, first, n, cost);
        ngx_http_ratelimit_query_refund_rest(q, first, n, charged, 0);

    } else if (cost > charged) {
        ngx_http_ratelimit_query_debit(q, first, n, cost - charged);

    } else {
        ngx_http_ratelimit_query_refund_rest(q, first, n, charged, cost);
    }
}


static void
ngx_http_ratelimit_query_debit(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, uint64_t cost)
{
    ngx_uint_t  i, reserve;

    reserve = q->items[first].reserve;

    for (i = first; i < first + n; i++) {
        q->items[i].cost = cost;
        q->items[i].reserve = 0;
    }

    ngx_http_ratelimit_query_settle(q, first, n, NGX_HTTP_RATELIMIT_DEBIT);

    for (i = first; i < first + n; i++) {
        q->items[i].reserve = reserve;
    }
}


/* refunds a charge, except for the part that is kept */

static void
ngx_http_ratelimit_query_refund_rest(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, uint64_t charged, uint64_t kept)
{
    ngx_uint_t                     i;
    ratelimit_item_t              *item;
    const ratelimit_shape_t       *shape;
    ngx_http_ratelimit_subject_t  *subject;

    for (i = first; i < first + n; i++) {
        item = &q->items[i];
        subject = &q->subjects[i];
        shape = &subject->use->zone->shape;

        item->cost = charged - kept;
        item->verdict.stamp = ratelimit_stamp_above(shape, item->rule,
                                                    item->verdict.stamp, kept);

        if (subject->backend != NGX_HTTP_RATELIMIT_SHM) {
            subject->stamp = ratelimit_stamp_above(shape, item->rule,
                                                   subject->stamp, kept);
        }
    }

    if (charged > kept) {
        ngx_http_ratelimit_query_settle(q, first, n,
                                        NGX_HTTP_RATELIMIT_REFUND);
    }
}


static void
ngx_http_ratelimit_query_settle(ngx_http_ratelimit_query_t *q,
    ngx_uint_t first, ngx_uint_t n, ngx_http_ratelimit_settle_e how)
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

        store = part.subjects[0].use->zone->store;

        if (part.subjects[0].backend == NGX_HTTP_RATELIMIT_LOCAL
            && store->local == NULL)
        {
            store = &ngx_http_ratelimit_shm_store;
        }

        store->settle(&part, how);

        for ( /* void */ ; i < first; i++) {
            q->items[i].cost = 0;
        }
    }
}
