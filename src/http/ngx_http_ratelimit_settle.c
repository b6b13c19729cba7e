
/*
 * What a request costs is charged when it is admitted, and settled when more is
 * known.
 *
 * count=   as soon as the client has a status, the charge counts, or is
 *          refunded if the status is not one of these
 * settle=  when the client has the response, the difference to what it really
 *          cost is charged or refunded
 */


#include "http/ngx_http_ratelimit_ctx.h"


static ngx_int_t ngx_http_ratelimit_settle_header_filter(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_pass_header(ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_settle_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_uint_t ngx_http_ratelimit_settles_early(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx);
static ngx_http_ratelimit_known_e ngx_http_ratelimit_costs_known(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_post_action_handler(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_log_handler(ngx_http_request_t *r);
static void ngx_http_ratelimit_settle(ngx_http_request_t *r, ngx_uint_t status,
    ngx_uint_t ended);
static void ngx_http_ratelimit_settle_ctx(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t status);
static void ngx_http_ratelimit_settle_query(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t status);
static void ngx_http_ratelimit_settle_waiting(ngx_http_ratelimit_query_t *q,
    ngx_uint_t status);
static ngx_uint_t ngx_http_ratelimit_counts(ngx_http_ratelimit_limit_t *limit,
    ngx_uint_t status);
static ngx_uint_t ngx_http_ratelimit_get_status(ngx_http_request_t *r);
static void ngx_http_ratelimit_settle_costs(ngx_http_request_t *r,
    ngx_uint_t ended);
static void ngx_http_ratelimit_settle_query_costs(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q);


static ngx_http_output_header_filter_pt  ngx_http_ratelimit_settle_next_filter;
static ngx_http_output_body_filter_pt
    ngx_http_ratelimit_settle_next_body_filter;


/* nothing of this is there unless a limit needs it */

ngx_int_t
ngx_http_ratelimit_settle_init(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf)
{
    if (!rmcf->statuses && !rmcf->settles) {
        return NGX_OK;
    }

    ngx_http_ratelimit_settle_next_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_ratelimit_settle_header_filter;

    if (rmcf->settles) {
        ngx_http_ratelimit_settle_next_body_filter = ngx_http_top_body_filter;
        ngx_http_top_body_filter = ngx_http_ratelimit_settle_body_filter;

        if (ngx_http_ratelimit_add_first(cf, NGX_HTTP_REWRITE_PHASE,
                                     ngx_http_ratelimit_post_action_handler)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_ratelimit_add_first(cf, NGX_HTTP_LOG_PHASE,
                                        ngx_http_ratelimit_log_handler);
}


/*
 * A response without a body ends with its header: what the upstream's says is
 * settled before the client has it.  For the status that is too early: other
 * filters may change it, or defer the header.  So that is settled when all of
 * them are done, and what they have written is sent after it.  HTTP/2 sends it
 * before, so that costs are not left to that.
 */

static ngx_int_t
ngx_http_ratelimit_settle_header_filter(ngx_http_request_t *r)
{
    ngx_int_t  rc;

    if (r == r->main
        && (r->method == NGX_HTTP_HEAD
            || r->headers_out.status == NGX_HTTP_NO_CONTENT
            || r->headers_out.status == NGX_HTTP_NOT_MODIFIED
            || r->headers_out.content_length_n == 0)
        && ngx_http_ratelimit_costs_known(r) == NGX_HTTP_RATELIMIT_KNOWN_HEADER)
    {
        ngx_http_ratelimit_settle_costs(r, 0);
    }

    if (r != r->main) {
        return ngx_http_ratelimit_settle_next_filter(r);
    }

    rc = ngx_http_ratelimit_pass_header(r);

    if (!r->header_sent) {
        return rc;
    }

    ngx_http_ratelimit_settle(r, r->headers_out.status, 0);

    if (r->header_only
        && ngx_http_ratelimit_costs_known(r) >= NGX_HTTP_RATELIMIT_KNOWN_STATUS)
    {
        ngx_http_ratelimit_settle_costs(r, 0);
    }

    if (rc == NGX_AGAIN && r->out != NULL
        && !r->connection->write->delayed)
    {
        rc = ngx_http_write_filter(r, NULL);
    }

    return rc;
}


/* for HTTP/1 and HTTP/3 a delayed connection is one that does not send yet */

static ngx_int_t
ngx_http_ratelimit_pass_header(ngx_http_request_t *r)
{
    ngx_int_t     rc;
    ngx_uint_t    delayed;
    ngx_event_t  *wev;

    if (r->stream != NULL) {
        return ngx_http_ratelimit_settle_next_filter(r);
    }

    wev = r->connection->write;
    delayed = wev->delayed;

    wev->delayed = 1;
    rc = ngx_http_ratelimit_settle_next_filter(r);
    wev->delayed = delayed;

    return rc;
}


/*
 * The response ends before the request does, which may wait for a mirror or for
 * the rest of the request's body.
 */

static ngx_int_t
ngx_http_ratelimit_settle_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_int_t                  rc;
    ngx_chain_t               *cl;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = (r == r->main) ? ngx_http_ratelimit_next_ctx(r, NULL) : NULL;

    if (ctx == NULL) {
        return ngx_http_ratelimit_settle_next_body_filter(r, in);
    }

    for (cl = in; cl != NULL; cl = cl->next) {
        ctx->last |= cl->buf->last_buf;
        ctx->passed += ngx_buf_size(cl->buf);
    }

    /* so that the next request of a client that waits knows of it */

    if (r->header_sent && ngx_http_ratelimit_settles_early(r, ctx)) {
        ngx_http_ratelimit_settle(r, r->headers_out.status, 0);
        ngx_http_ratelimit_settle_costs(r, 0);
    }

    rc = ngx_http_ratelimit_settle_next_body_filter(r, in);

    if (ctx->last && rc != NGX_ERROR && r->header_sent && r->postponed == NULL
        && !r->buffered && !r->connection->buffered)
    {
        ngx_http_ratelimit_settle(r, r->headers_out.status, 0);
        ngx_http_ratelimit_settle_costs(r, 0);
    }

    return rc;
}


/*
 * Whether no cost depends on what is sent to the client.  A response that has a
 * length has ended for the client before nginx says so.
 */

static ngx_uint_t
ngx_http_ratelimit_settles_early(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx)
{
    off_t  length;

    if (ctx->last) {
        return ngx_http_ratelimit_costs_known(r)
               >= NGX_HTTP_RATELIMIT_KNOWN_TRAILER;
    }

    length = r->headers_out.content_length_n;

    return length >= 0 && ctx->passed >= length
           && ngx_http_ratelimit_costs_known(r)
              >= NGX_HTTP_RATELIMIT_KNOWN_STATUS;
}


/* the latest of all limits */

static ngx_http_ratelimit_known_e
ngx_http_ratelimit_costs_known(ngx_http_request_t *r)
{
    ngx_uint_t                   i, k;
    ngx_http_ratelimit_ctx_t    *ctx;
    ngx_http_ratelimit_limit_t  *limit;
    ngx_http_ratelimit_known_e   known;

    known = NGX_HTTP_RATELIMIT_KNOWN_HEADER;

    for (ctx = ngx_http_ratelimit_next_ctx(r, NULL);
         ctx != NULL;
         ctx = ngx_http_ratelimit_next_ctx(r, ctx))
    {
        for (i = 0; i < ctx->nqueries; i++) {
            for (k = 0; k < ctx->queries[i].n; k++) {
                limit = ngx_http_ratelimit_item_rules(&ctx->queries[i],
                                                      k)->limit;

                if (limit->settle.value != NULL) {
                    known = ngx_min(known, limit->known);
                }
            }
        }
    }

    return known;
}


/* variables of the upstream become those of the action */

static ngx_int_t
ngx_http_ratelimit_post_action_handler(ngx_http_request_t *r)
{
    if (r->post_action && r == r->main) {
        ngx_http_ratelimit_settle(r, ngx_http_ratelimit_get_status(r), 0);
        ngx_http_ratelimit_settle_costs(r, 0);
    }

    return NGX_DECLINED;
}


/* there was no response, or it is settled already */

static ngx_int_t
ngx_http_ratelimit_log_handler(ngx_http_request_t *r)
{
    if (r == r->main) {
        ngx_http_ratelimit_settle(r, ngx_http_ratelimit_get_status(r), 1);
        ngx_http_ratelimit_settle_costs(r, 1);
    }

    return NGX_OK;
}


/* the limits of subrequests go by the status that the client gets, too */

static void
ngx_http_ratelimit_settle(ngx_http_request_t *r, ngx_uint_t status,
    ngx_uint_t ended)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_next_ctx(r, NULL);

    while (ctx != NULL) {

        if (ended || !ctx->waiting) {
            ngx_http_ratelimit_settle_ctx(ctx, status);
        }

        ctx = ngx_http_ratelimit_next_ctx(r, ctx);
    }
}


static void
ngx_http_ratelimit_settle_ctx(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t status)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_query_t  *q;

    for (i = ctx->settled; i < ctx->nqueries; i++) {
        q = &ctx->queries[i];

        if (q->allowed) {
            ngx_http_ratelimit_settle_query(ctx, q, status);

        } else if (q->rc == NGX_AGAIN && ctx->waiting) {
            ngx_http_ratelimit_settle_waiting(q, status);
            ctx->waiting = 0;
        }
    }

    if (ctx->settled < ctx->nqueries) {
        ctx->settled = ctx->nqueries;
        ctx->response = status;
    }
}


static void
ngx_http_ratelimit_settle_query(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t status)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_rules_t  *rates;

    for (i = 0; i < q->n; i += rates->nrules) {
        rates = ngx_http_ratelimit_item_rules(q, i);

        if (rates->limit->statuses == NULL) {
            continue;
        }

        /* the tightest limit is found by costs, which are cleared here */

        ngx_http_ratelimit_describe(ctx);

        if (!ngx_http_ratelimit_counts(rates->limit, status)) {
            ngx_http_ratelimit_query_refund(q, i, rates->nrules);

        } else if (rates->limit->settle.value == NULL) {
            ngx_http_ratelimit_query_commit(q, i, rates->nrules);
        }
    }
}


/* the request ends before the store has decided: the same, once it has */

static void
ngx_http_ratelimit_settle_waiting(ngx_http_ratelimit_query_t *q,
    ngx_uint_t status)
{
    ngx_uint_t                  i, queue;
    ngx_http_ratelimit_rules_t  *rates;

    queue = ngx_http_ratelimit_may_queue(q);

    for (i = 0; i < q->n; i++) {
        rates = ngx_http_ratelimit_item_rules(q, i);

        if (!queue && ngx_http_ratelimit_counts(rates->limit, status)) {
            q->items[i].cost = 0;
        }
    }

    ngx_http_ratelimit_query_cancel(q, 1);
}


static ngx_uint_t
ngx_http_ratelimit_counts(ngx_http_ratelimit_limit_t *limit,
    ngx_uint_t status)
{
    ngx_uint_t  i, *counted;

    if (limit->statuses == NULL) {
        return 1;
    }

    counted = limit->statuses->elts;

    for (i = 0; i < limit->statuses->nelts; i++) {
        if (counted[i] == status || counted[i] == status / 100) {
            return 1;
        }
    }

    return 0;
}


/* as $status, except for that of a "post_action", which no client sees */

static ngx_uint_t
ngx_http_ratelimit_get_status(ngx_http_request_t *r)
{
    if (r->post_action) {
        return NGX_HTTP_CLIENT_CLOSED_REQUEST;
    }

    if (r->err_status) {
        return r->err_status;
    }

    if (r->headers_out.status) {
        return r->headers_out.status;
    }

    return r->http_version == NGX_HTTP_VERSION_9 ? 9 : 0;
}


/* a subrequest in the background may go on after the response */

static void
ngx_http_ratelimit_settle_costs(ngx_http_request_t *r, ngx_uint_t ended)
{
    ngx_uint_t                 i;
    ngx_http_ratelimit_ctx_t  *ctx;

    for (ctx = ngx_http_ratelimit_next_ctx(r, NULL);
         ctx != NULL;
         ctx = ngx_http_ratelimit_next_ctx(r, ctx))
    {
        if (ctx->ended
            || (!ended && ctx->request != r && !ctx->request->done))
        {
            continue;
        }

        ctx->ended = 1;

        /* a request that has left the queue for a token will be refunded */

        if (ctx->queued) {
            continue;
        }

        for (i = ctx->refunded; i < ctx->nqueries; i++) {
            if (ctx->queries[i].allowed) {
                ngx_http_ratelimit_settle_query_costs(ctx, &ctx->queries[i]);
            }
        }
    }
}


static void
ngx_http_ratelimit_settle_query_costs(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    uint64_t                     cost;
    ngx_uint_t                   i;
    ngx_http_ratelimit_limit_t  *limit;
    ngx_http_ratelimit_rules_t  *rules;

    for (i = 0; i < q->n; i += rules->nrules) {
        rules = ngx_http_ratelimit_item_rules(q, i);
        limit = rules->limit;

        if (limit->settle.value == NULL
            || !ngx_http_ratelimit_counts(limit, ctx->response))
        {
            continue;
        }

        ngx_http_ratelimit_describe(ctx);

        if (ngx_http_ratelimit_final_cost(ctx->request, limit, &cost)
            == NGX_OK)
        {
            ngx_http_ratelimit_query_adjust(q, i, rules->nrules, cost);

        } else {
            ngx_http_ratelimit_query_commit(q, i, rules->nrules);
        }
    }
}
