
/*
 * Limits of rule files that need not allow a request that passes: one in shadow
 * mode never refuses, and those in quota mode refuse only together.
 *
 * All limits are asked at first, as one decision.  If only such limits refuse
 * it, these are dropped, uncharged, and the others are asked again.
 */


#include "http/ngx_http_ratelimit_ctx.h"


/* a query is strict if no limit has a mode, or none is to be dropped further */
#define NGX_HTTP_RATELIMIT_STRICT   0
#define NGX_HTTP_RATELIMIT_LENIENT  1


static ngx_uint_t ngx_http_ratelimit_lenient_pass(
    ngx_http_ratelimit_query_t *q);
static ngx_uint_t ngx_http_ratelimit_lenient_refuses(
    ngx_http_ratelimit_query_t *q);
static ngx_uint_t ngx_http_ratelimit_lenient_counts(
    ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_lenient_log(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t i);


static ngx_inline ngx_uint_t
ngx_http_ratelimit_is_shadow(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    const ratelimit_descriptor_t  *d;

    d = ngx_http_ratelimit_item_rules(q, i)->descriptor;

    return d != NULL && d->shadow;
}


static ngx_inline ngx_uint_t
ngx_http_ratelimit_is_quota(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    const ratelimit_descriptor_t  *d;

    d = ngx_http_ratelimit_item_rules(q, i)->descriptor;

    return d != NULL && d->quota;
}


ngx_int_t
ngx_http_ratelimit_decide_lenient(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    q->dropped = 0;
    q->lenient = NGX_HTTP_RATELIMIT_STRICT;

    for (i = 0; i < q->n; i++) {
        if (ngx_http_ratelimit_is_shadow(q, i)
            || ngx_http_ratelimit_is_quota(q, i))
        {
            q->lenient = NGX_HTTP_RATELIMIT_LENIENT;
        }
    }

    for (i = 0; q->lenient && i < q->n; i++) {
        q->subjects[i].cost = q->items[i].cost;

        /* a refusal that is not the last word must not count */

        q->items[i].count_rejected = 0;
    }

    return ngx_http_ratelimit_lenient_again(q,
                                            ngx_http_ratelimit_query_decide(q));
}


ngx_int_t
ngx_http_ratelimit_lenient_again(ngx_http_ratelimit_query_t *q, ngx_int_t rc)
{
    ngx_uint_t  i;

    while (rc == NGX_OK && !q->allowed
           && q->lenient == NGX_HTTP_RATELIMIT_LENIENT)
    {
        if (!ngx_http_ratelimit_lenient_pass(q)) {
            q->lenient = NGX_HTTP_RATELIMIT_STRICT;

            if (!ngx_http_ratelimit_lenient_counts(q)) {
                break;
            }

        } else if (q->n == 0) {
            q->allowed = 1;
            q->failed = 0;
            break;
        }

        for (i = 0; i < q->n; i++) {
            q->items[i].cost = q->subjects[i].cost;
        }

        rc = ngx_http_ratelimit_query_decide(q);
    }

    return rc;
}


/* drops limits that may be passed over; returns whether the rest may allow */

static ngx_uint_t
ngx_http_ratelimit_lenient_pass(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i, refuses;

    (void) ngx_http_ratelimit_query_describe(q);

    refuses = ngx_http_ratelimit_lenient_refuses(q);

    for (i = 0; i < q->n; /* void */ ) {

        if (!q->items[i].verdict.allowed
            && (!refuses || ngx_http_ratelimit_is_shadow(q, i)))
        {
            ngx_http_ratelimit_query_drop(q, i);

        } else {
            i++;
        }
    }

    return !refuses;
}


/*
 * An ordinary limit refuses, or all of those in quota mode do, the dropped ones
 * among them.
 */

static ngx_uint_t
ngx_http_ratelimit_lenient_refuses(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i, allows, allow, refuse;

    allow = 0;
    refuse = 0;

    for (i = 0; i < q->n + q->dropped; i++) {
        allows = q->items[i].verdict.allowed
                 || ngx_http_ratelimit_is_shadow(q, i);

        if (!ngx_http_ratelimit_is_quota(q, i)) {
            if (!allows) {
                return 1;
            }

        } else if (allows) {
            allow = 1;

        } else {
            refuse = 1;
        }
    }

    return refuse && !allow;
}


/* limits that count refused requests do so from now on; whether there are */

static ngx_uint_t
ngx_http_ratelimit_lenient_counts(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                   i, some;
    ngx_http_ratelimit_limit_t  *limit;

    some = 0;

    for (i = 0; i < q->n; i++) {
        limit = ngx_http_ratelimit_item_rules(q, i)->limit;

        q->items[i].count_rejected = limit->use.count_rejected;
        some |= limit->use.count_rejected;
    }

    return some;
}


void
ngx_http_ratelimit_lenient_done(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    for (i = q->n; i < q->n + q->dropped; i++) {
        if (ngx_http_ratelimit_is_shadow(q, i)) {
            ngx_http_ratelimit_set_status(ctx,
                                       NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN);
            ngx_http_ratelimit_lenient_log(ctx, q, i);
        }
    }

    if (ctx->conf->marks & NGX_HTTP_RATELIMIT_MARK_COUNTED) {
        ngx_http_ratelimit_lenient_count(q);
    }
}


void
ngx_http_ratelimit_lenient_count(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    for (i = q->n; i < q->n + q->dropped; i++) {
        ngx_http_ratelimit_count(q->subjects[i].use,
                                 ngx_http_ratelimit_is_shadow(q, i)
                                 ? NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN
                                 : NGX_HTTP_RATELIMIT_REJECTED);
    }
}


static void
ngx_http_ratelimit_lenient_log(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_uint_t                 excess;
    ngx_http_ratelimit_use_t  *use;

    use = q->subjects[i].use;
    excess = q->items[i].verdict.excess;

    if (q->pool->log->log_level < ctx->conf->limit_log_level
        || !ngx_http_ratelimit_may_log(ctx, use, ctx->conf->limit_log_level))
    {
        return;
    }

    ngx_log_error(ctx->conf->limit_log_level, q->pool->log, 0,
                  "limiting requests, dry run, excess: %ui.%03ui by zone "
                  "\"%V\"", excess / 1000, excess % 1000, &use->label);
}
