
/*
 * Statistics: each limit of a decision counts the request once, by what it says
 * itself.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static ngx_http_ratelimit_status_e ngx_http_ratelimit_verdict_status(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, uint64_t *delay);
static ngx_http_ratelimit_status_e ngx_http_ratelimit_refusal_status(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, ngx_uint_t last);


ngx_int_t
ngx_http_ratelimit_count_pass(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    uint64_t                      delay;
    ngx_uint_t                    i;
    ngx_http_ratelimit_use_t     *use;
    ngx_http_ratelimit_status_e   status;

    for (i = 0; i < q->n; i += ngx_http_ratelimit_item_rules(q, i)->nrules) {
        use = q->subjects[i].use;
        status = ngx_http_ratelimit_verdict_status(ctx, q, i, &delay);

        ngx_http_ratelimit_count(use, status);

        if (status == NGX_HTTP_RATELIMIT_DELAYED) {
            ngx_http_ratelimit_count_delay(use->cell, delay);
        }
    }

    return NGX_DECLINED;
}


/* the most remarkable one of the limit's rates */

static ngx_http_ratelimit_status_e
ngx_http_ratelimit_verdict_status(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t i, uint64_t *delay)
{
    ngx_uint_t                    last;
    ratelimit_verdict_t          *verdict;
    ngx_http_ratelimit_status_e   status, above;

    if (q->subjects[i].backend == NGX_HTTP_RATELIMIT_UNASKED) {
        return NGX_HTTP_RATELIMIT_FAILED_OPEN;
    }

    status = NGX_HTTP_RATELIMIT_PASSED;
    last = i + ngx_http_ratelimit_item_rules(q, i)->nrules;
    *delay = 0;

    for ( /* void */ ; i < last; i++) {
        verdict = &q->items[i].verdict;

        if (verdict->soft) {
            above = ngx_http_ratelimit_overshoot(ctx, q, i);
            status = ngx_max(status, above);
        }

        *delay = ngx_max(*delay, verdict->delay);
    }

    if (*delay) {
        return ctx->conf->dry_run ? NGX_HTTP_RATELIMIT_DELAYED_DRY_RUN
                                  : NGX_HTTP_RATELIMIT_DELAYED;
    }

    return status;
}


void
ngx_http_ratelimit_count_refusal(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                    i, last;
    ngx_http_ratelimit_use_t     *use;
    ngx_http_ratelimit_status_e   status;

    for (i = 0; i < q->n; i = last) {
        use = q->subjects[i].use;
        last = i + ngx_http_ratelimit_item_rules(q, i)->nrules;
        status = ngx_http_ratelimit_refusal_status(ctx, q, i, last);

        ngx_http_ratelimit_count(use, status);

        if (status == NGX_HTTP_RATELIMIT_REJECTED
            || status == NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN)
        {
            ngx_http_ratelimit_top_note(q, i, use);
        }
    }
}


/*
 * A limit that has not been asked, as another one has refused before, has
 * nothing against the request.
 */

static ngx_http_ratelimit_status_e
ngx_http_ratelimit_refusal_status(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t i, ngx_uint_t last)
{
    ngx_uint_t  dry;

    dry = ctx->conf->dry_run;

    if (q->subjects[i].backend == NGX_HTTP_RATELIMIT_UNASKED) {

        if (q->rc == NGX_BUSY && !dry
            && q->subjects[i].use->zone->fail == NGX_HTTP_RATELIMIT_FAIL_CLOSED)
        {
            return NGX_HTTP_RATELIMIT_FAILED_CLOSED;
        }

        return (q->rc != NGX_OK || q->failed) ? NGX_HTTP_RATELIMIT_FAILED_OPEN
                                              : NGX_HTTP_RATELIMIT_PASSED;
    }

    for ( /* void */ ; i < last; i++) {
        if (!q->items[i].verdict.allowed) {
            return dry ? NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN
                       : NGX_HTTP_RATELIMIT_REJECTED;
        }
    }

    return NGX_HTTP_RATELIMIT_PASSED;
}


void
ngx_http_ratelimit_count_unasked(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    if (!(ctx->conf->marks & NGX_HTTP_RATELIMIT_MARK_COUNTED)) {
        return;
    }

    for (i = 0; i < q->n; i += ngx_http_ratelimit_item_rules(q, i)->nrules) {
        ngx_http_ratelimit_count(q->subjects[i].use,
                                 NGX_HTTP_RATELIMIT_PASSED);
    }
}


/*
 * There is no ring of these stages, though both may have one.  Which limits of
 * rule files would apply is not looked up.
 */

void
ngx_http_ratelimit_count_bypass(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t stages)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_use_t    *before, *after;
    ngx_http_ratelimit_limit_t  *limit;

    before = ctx->conf->set->rings[NGX_HTTP_RATELIMIT_BEFORE_AUTH];
    after = ctx->conf->set->rings[NGX_HTTP_RATELIMIT_AFTER_AUTH];

    if (before != NULL && after != NULL) {
        ngx_http_ratelimit_count_in(before->ring_cell,
                                    NGX_HTTP_RATELIMIT_BYPASSED);
        ngx_http_ratelimit_count_in(after->ring_cell,
                                    NGX_HTTP_RATELIMIT_BYPASSED);
        return;
    }

    limit = ctx->conf->set->limits.elts;

    for (i = 0; i < ctx->conf->set->limits.nelts; i++) {
        if ((limit[i].stage & stages) && limit[i].domain == NULL) {
            ngx_http_ratelimit_count(&limit[i].use,
                                     NGX_HTTP_RATELIMIT_BYPASSED);
        }
    }
}
