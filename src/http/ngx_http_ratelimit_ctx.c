
/*
 * What is known of a request, in one piece of memory that survives internal
 * redirects.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static uint64_t ngx_http_ratelimit_from_now(ngx_http_ratelimit_ctx_t *ctx,
    uint64_t usec);


/* redirects clear contexts, but not cleanups */

ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_find_ctx(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = NULL;

    do {
        ctx = ngx_http_ratelimit_next_ctx(r, ctx);
    } while (ctx != NULL && ctx->request != r);

    if (ctx != NULL) {
        ngx_http_set_ctx(r, ctx, ngx_http_ratelimit_module);
    }

    return ctx;
}


ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_next_ctx(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_pool_cleanup_t  *cln;

    cln = (ctx != NULL) ? ctx->cleanup.next : r->pool->cleanup;

    while (cln != NULL && cln->handler != ngx_http_ratelimit_cleanup) {
        cln = cln->next;
    }

    return cln != NULL ? cln->data : NULL;
}


/* as with limit_req, the first request that meets limits is limited */

ngx_uint_t
ngx_http_ratelimit_is_spared(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = NULL;

    do {
        ctx = ngx_http_ratelimit_next_ctx(r, ctx);
    } while (ctx != NULL && (ctx->request == r || ctx->stages == 0));

    return ctx != NULL;
}


ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_client_ctx(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_get_ctx(r->main);

    if (ctx != NULL && ctx->status != NGX_HTTP_RATELIMIT_UNDECIDED) {
        return ctx;
    }

    ctx = NULL;

    do {
        ctx = ngx_http_ratelimit_next_ctx(r, ctx);
    } while (ctx != NULL && ctx->status == NGX_HTTP_RATELIMIT_UNDECIDED);

    return ctx;
}


void
ngx_http_ratelimit_cleanup(void *data)
{
    ngx_http_ratelimit_ctx_t    *ctx = data;
    ngx_http_ratelimit_query_t  *q;

    if (ctx->delayed && ctx->timer->timer_set) {
        ngx_del_timer(ctx->timer);
    }

    if (ctx->waiting) {
        q = &ctx->queries[ctx->nqueries - 1];
        ngx_http_ratelimit_query_cancel(q, ngx_http_ratelimit_may_queue(q));
    }

    /* the client has left while the request was waiting for a token */

    if (ctx->queued) {
        ngx_http_ratelimit_refund(ctx, 0);
    }
}


ngx_uint_t
ngx_http_ratelimit_may_queue(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    for (i = 0; i < q->n; i++) {
        if (q->items[i].rule->wait) {
            return 1;
        }
    }

    return 0;
}


void
ngx_http_ratelimit_refund(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t refused)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_query_t  *q;

    for (i = ctx->used; i < ctx->nqueries; i++) {
        q = &ctx->queries[i];

        if (!q->allowed) {
            continue;
        }

        if (!refused) {
            ngx_http_ratelimit_query_refund(q, 0, q->n);

        } else if (ngx_http_ratelimit_query_refuse(q)) {

            /* the client has to wait for this one, too */

            ctx->first = i;
        }
    }

    if (ctx->used == 0) {
        ctx->refunded = ctx->nqueries;
    }
}


void
ngx_http_ratelimit_describe(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_uint_t                   i, k;
    ratelimit_item_t             items[2], *tightest;
    ngx_http_ratelimit_query_t  *q;

    if (ctx->described) {
        return;
    }

    ctx->described = 1;
    tightest = NULL;

    for (i = ctx->first; i < ctx->nqueries; i++) {
        q = &ctx->queries[i];

        if (q->rc != NGX_OK || q->n == 0) {
            continue;
        }

        k = ngx_http_ratelimit_query_describe(q);

        if (tightest != NULL) {
            items[0] = *tightest;
            items[1] = q->items[k];

            if (ratelimit_tightest(items, 2) == 0) {
                continue;
            }
        }

        tightest = &q->items[k];

        if (tightest->rule->capacity == 0) {
            tightest->verdict.limit = 0;
            tightest->verdict.remaining = 0;
        }

        ctx->verdict = &tightest->verdict;
        ctx->tightest = &q->subjects[k];
        ctx->decided = q->decided;
    }
}


ngx_uint_t
ngx_http_ratelimit_next_sorted(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_uint_t                   k, next;
    ngx_http_ratelimit_rules_t  *rules;
    ngx_http_ratelimit_limit_t  *last, *best;

    last = (i < q->n) ? ngx_http_ratelimit_item_rules(q, i)->limit : NULL;
    best = NULL;
    next = q->n;

    for (k = 0; k < q->n; k += rules->nrules) {
        rules = ngx_http_ratelimit_item_rules(q, k);

        if ((last == NULL || rules->limit->order > last->order)
            && (best == NULL || rules->limit->order < best->order))
        {
            best = rules->limit;
            next = k;
        }
    }

    return next;
}


ngx_uint_t
ngx_http_ratelimit_has_figures(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_query_t  *q;

    if (ctx->status != NGX_HTTP_RATELIMIT_FAILED_OPEN
        && ctx->status != NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN)
    {
        return ctx->status >= NGX_HTTP_RATELIMIT_PASSED
               && ctx->status <= NGX_HTTP_RATELIMIT_REJECTED;
    }

    for (i = 0; i < ctx->nqueries; i++) {
        q = &ctx->queries[i];

        if (q->rc == NGX_OK && q->failed < q->n
            && (q->allowed
                || ctx->status == NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN))
        {
            return 1;
        }
    }

    return 0;
}


uint64_t
ngx_http_ratelimit_reset_after(ngx_http_ratelimit_ctx_t *ctx)
{
    return ngx_http_ratelimit_from_now(ctx, ctx->verdict->reset_after);
}


uint64_t
ngx_http_ratelimit_retry_seconds(ngx_http_ratelimit_ctx_t *ctx)
{
    uint64_t  seconds;

    seconds = ngx_http_ratelimit_seconds(
             ngx_http_ratelimit_from_now(ctx, ctx->verdict->retry_after));

    return ngx_max(seconds, 1);
}


/* a response may be sent long after the decision */

static uint64_t
ngx_http_ratelimit_from_now(ngx_http_ratelimit_ctx_t *ctx, uint64_t usec)
{
    uint64_t  passed;

    passed = (uint64_t) (ngx_current_msec - ctx->decided) * 1000;

    return usec > passed ? usec - passed : 0;
}
