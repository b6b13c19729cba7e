
/*
 * A call: its descriptors become a query, the store decides, and the decision
 * becomes an answer.
 */


#include "service/ngx_http_ratelimit_service.h"


static ngx_int_t ngx_http_ratelimit_service_decode(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, const char **reason);
static ngx_int_t ngx_http_ratelimit_service_match(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, const char **reason);
static const char *ngx_http_ratelimit_service_override(ngx_http_request_t *r,
    const ratelimit_descriptor_t *domain, ratelimit_call_descriptor_t *d,
    ngx_http_ratelimit_match_t *match);
static uint64_t ngx_http_ratelimit_service_cost(ratelimit_call_t *call,
    ratelimit_call_descriptor_t *d);
static ngx_int_t ngx_http_ratelimit_service_show_all(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call);
static ngx_int_t ngx_http_ratelimit_service_decide(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, ngx_uint_t n);
static ngx_int_t ngx_http_ratelimit_service_wait(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call);
static void ngx_http_ratelimit_service_done(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);
static void ngx_http_ratelimit_service_expire(ngx_event_t *ev);
static void ngx_http_ratelimit_service_finish(ngx_http_request_t *r,
    ngx_int_t rc);
static void ngx_http_ratelimit_service_stop(ngx_http_ratelimit_call_t *call);
static void ngx_http_ratelimit_service_cleanup(void *data);
static ngx_int_t ngx_http_ratelimit_service_answer(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call);
static void ngx_http_ratelimit_service_count(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_service_refund(
    ngx_http_ratelimit_call_t *call, ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_service_uncharge(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_service_status(ngx_http_ratelimit_call_t *call,
    ngx_uint_t i, ratelimit_answer_status_t *status);
static uint64_t ngx_http_ratelimit_service_reset(ratelimit_item_t *item);


ngx_int_t
ngx_http_ratelimit_service_call(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call)
{
    ngx_int_t                        n;
    const char                      *reason;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    reason = NULL;

    if (ngx_http_ratelimit_service_decode(r, call, &reason) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (reason == NULL && call->call.domain.len == 0) {
        reason = "the domain must not be empty";
    }

    if (reason == NULL && call->call.ndescriptors == 0) {
        reason = "the list of descriptors must not be empty";
    }

    /* without rules the caller knows what is to be done */

    if (reason == NULL && rmcf->domains.first == NULL) {
        return ngx_http_ratelimit_service_fail(r, call,
                                        NGX_HTTP_RATELIMIT_GRPC_UNAVAILABLE,
                                        "there is no rule file");
    }

    n = 0;

    if (reason == NULL) {
        n = ngx_http_ratelimit_service_match(r, call, &reason);
    }

    if (n == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (reason != NULL) {
        return ngx_http_ratelimit_service_fail(r, call,
                                               NGX_HTTP_RATELIMIT_GRPC_INVALID,
                                               reason);
    }

    if (call->timed && call->timeout == 0) {
        return ngx_http_ratelimit_service_fail(r, call,
                                        NGX_HTTP_RATELIMIT_GRPC_DEADLINE,
                                        "the deadline has passed");
    }

    return ngx_http_ratelimit_service_decide(r, call, n);
}


static ngx_int_t
ngx_http_ratelimit_service_decode(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, const char **reason)
{
    ngx_str_t                 *message;
    ratelimit_call_t          *c;
    ratelimit_call_decode_pt   decode;

    c = &call->call;
    message = &call->message;
    decode = call->grpc ? ratelimit_call_decode_proto
                        : ratelimit_call_decode_json;

    *reason = decode(c, message->data, message->len);

    if (*reason != NULL) {
        ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                       "ratelimit: call refused at byte %uz: %s",
                       c->position, *reason);
        return NGX_OK;
    }

    c->descriptors = ngx_palloc(r->pool, c->ndescriptors
                                         * sizeof(ratelimit_call_descriptor_t)
                                         + c->nentries
                                           * sizeof(ratelimit_entry_t)
                                         + 1);
    if (c->descriptors == NULL) {
        return NGX_ERROR;
    }

    c->entries = (ratelimit_entry_t *) (c->descriptors + c->ndescriptors);

    *reason = decode(c, message->data, message->len);

    return NGX_OK;
}


/* returns how many limits apply, at most */

static ngx_int_t
ngx_http_ratelimit_service_match(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, const char **reason)
{
    ngx_uint_t                       i, n;
    ratelimit_call_t                *c;
    ngx_http_ratelimit_match_t      *match;
    ratelimit_call_descriptor_t     *d;
    const ratelimit_descriptor_t    *domain;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    /* one for all: nothing of it is configured */

    static ngx_http_ratelimit_limit_t  limit;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    c = &call->call;
    n = 0;

    call->matches = ngx_pcalloc(r->pool, c->ndescriptors
                                         * sizeof(ngx_http_ratelimit_match_t));
    if (call->matches == NULL) {
        return NGX_ERROR;
    }

    domain = ratelimit_domain_find(&rmcf->domains, &c->domain);

    for (i = 0; domain != NULL && i < c->ndescriptors; i++) {
        match = &call->matches[i];
        d = &c->descriptors[i];

        if (d->has_limit) {
            *reason = ngx_http_ratelimit_service_override(r, domain, d, match);

            if (*reason != NULL) {
                return 0;
            }

        } else if (ngx_http_ratelimit_match(match, &rmcf->domains, domain,
                                            d->entries, d->nentries, r->pool)
                   != NGX_OK)
        {
            return NGX_ERROR;
        }

        match->rates.limit = &limit;
        match->cost = ngx_http_ratelimit_service_cost(c, d);

        if (match->use != NULL && ++n > NGX_HTTP_RATELIMIT_MAX_MATCHES) {
            *reason = "more than 64 descriptors have a limit";
            return 0;
        }
    }

    if (ngx_http_ratelimit_match_all(call->matches, c->ndescriptors, r->pool)
        != NGX_OK
        || (n > 1 && ngx_http_ratelimit_service_show_all(r, call) != NGX_OK))
    {
        return NGX_ERROR;
    }

    return n;
}


/* a limit that the call brings along; the files are not looked at */

static const char *
ngx_http_ratelimit_service_override(ngx_http_request_t *r,
    const ratelimit_descriptor_t *domain, ratelimit_call_descriptor_t *d,
    ngx_http_ratelimit_match_t *match)
{
    const char                   *reason;
    ratelimit_rule_t             *rule;
    ngx_http_ratelimit_use_t     *use;
    ngx_http_ratelimit_domain_t  *conf;

    conf = domain->data;
    use = &conf->override;

    /* there is no week here */

    if (d->unit < RATELIMIT_UNIT_SECOND || d->unit > RATELIMIT_UNIT_YEAR) {
        return "the limit of a descriptor has no valid unit";
    }

    rule = ngx_palloc(r->pool, sizeof(ratelimit_rule_t));
    match->key.data = ngx_pnalloc(r->pool,
                                  ratelimit_domain_key_size(d->entries,
                                                            d->nentries));

    if (rule == NULL || match->key.data == NULL) {
        return "there is no memory";
    }

    reason = ngx_http_ratelimit_domain_rule(use, d->requests,
                                            (ratelimit_unit_e) d->unit, rule);
    if (reason != NULL) {
        return reason;
    }

    ngx_http_ratelimit_store_rule(use, rule);

    match->use = use;
    match->key.len = ratelimit_domain_write_key(match->key.data, d->entries,
                                                d->nentries)
                     - match->key.data;

    match->rates.rules = rule;
    match->rates.nrules = 1;

    if (ngx_http_ratelimit_make_quoted_name(r->pool, &use->name,
                                            &match->rates.quoted_name)
        != NGX_OK
        || ngx_http_ratelimit_make_policy(r->pool, &match->rates) != NGX_OK)
    {
        return "there is no memory";
    }

    return NULL;
}


/* what is refunded is looked at first */

static uint64_t
ngx_http_ratelimit_service_cost(ratelimit_call_t *call,
    ratelimit_call_descriptor_t *d)
{
    if (!d->has_hits) {
        d->hits = ngx_max(call->hits, 1);
    }

    d->hits = ngx_min(d->hits, RATELIMIT_MAX_LIMIT + 1);

    return d->negative ? 0 : d->hits;
}


/* each limit has a status, also beside one that is known to refuse */

static ngx_int_t
ngx_http_ratelimit_service_show_all(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_use_t    *use;
    ngx_http_ratelimit_match_t  *match;

    for (i = 0; i < call->call.ndescriptors; i++) {
        match = &call->matches[i];

        if (match->use == NULL || match->same != NULL) {
            continue;
        }

        use = ngx_palloc(r->pool, sizeof(ngx_http_ratelimit_use_t));
        if (use == NULL) {
            return NGX_ERROR;
        }

        *use = *match->use;
        use->shown = 1;
        match->use = use;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_service_decide(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, ngx_uint_t n)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i;
    ngx_http_ratelimit_ctx_t    *ctx;
    ngx_http_ratelimit_query_t  *q;

    ctx = ngx_http_ratelimit_create_ctx(r, n);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->conf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);
    ctx->nqueries = 1;
    call->ctx = ctx;

    q = &ctx->queries[0];
    ngx_http_ratelimit_query_init(q, ctx + 1, n, r->pool);

    q->n = 0;
    q->rc = NGX_OK;
    q->allowed = 1;
    q->failed = 0;
    q->dropped = 0;

    for (i = 0; i < call->call.ndescriptors; i++) {
        q->n = ngx_http_ratelimit_match_add(q, q->n, &call->matches[i]);
    }

    if (q->n == 0) {
        return ngx_http_ratelimit_service_answer(r, call);
    }

    rc = ngx_http_ratelimit_decide_lenient(q);

    return rc == NGX_AGAIN ? ngx_http_ratelimit_service_wait(r, call)
                           : ngx_http_ratelimit_service_answer(r, call);
}


static ngx_int_t
ngx_http_ratelimit_service_wait(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call)
{
    ngx_pool_cleanup_t          *cln;
    ngx_http_ratelimit_query_t  *q;

    q = &call->ctx->queries[0];

    q->done = ngx_http_ratelimit_service_done;
    q->data = call;

    cln = ngx_pool_cleanup_add(r->pool, 0);

    if (cln == NULL) {
        ngx_http_ratelimit_query_cancel(q, 1);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    cln->handler = ngx_http_ratelimit_service_cleanup;
    cln->data = call;

    call->waiting = 1;

    if (call->timed) {
        call->timer.handler = ngx_http_ratelimit_service_expire;
        call->timer.data = call;
        call->timer.log = r->connection->log;

        ngx_add_timer(&call->timer, call->timeout);
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    return NGX_AGAIN;
}


static void
ngx_http_ratelimit_service_done(ngx_http_ratelimit_query_t *q, ngx_int_t rc)
{
    ngx_http_request_t         *r;
    ngx_http_ratelimit_call_t  *call;

    call = q->data;
    r = call->ctx->request;

    if (ngx_http_ratelimit_lenient_again(q, rc) == NGX_AGAIN) {
        return;
    }

    call->waiting = 0;

    ngx_http_ratelimit_service_stop(call);
    ngx_http_ratelimit_service_finish(r,
                                  ngx_http_ratelimit_service_answer(r, call));
}


/* what is charged nevertheless is refunded */

static void
ngx_http_ratelimit_service_expire(ngx_event_t *ev)
{
    ngx_http_request_t         *r;
    ngx_http_ratelimit_call_t  *call;

    call = ev->data;
    r = call->ctx->request;

    call->waiting = 0;

    ngx_http_ratelimit_query_cancel(&call->ctx->queries[0], 1);

    ngx_http_ratelimit_service_finish(r,
                 ngx_http_ratelimit_service_fail(r, call,
                                            NGX_HTTP_RATELIMIT_GRPC_DEADLINE,
                                            "the deadline has passed"));
}


static void
ngx_http_ratelimit_service_finish(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_connection_t  *c;

    c = r->connection;

    ngx_http_set_log_request(c->log, r);
    ngx_http_finalize_request(r, rc);
    ngx_http_run_posted_requests(c);
}


static void
ngx_http_ratelimit_service_stop(ngx_http_ratelimit_call_t *call)
{
    if (call->timer.timer_set) {
        ngx_del_timer(&call->timer);
    }
}


/* the client has left: without an answer nothing is charged */

static void
ngx_http_ratelimit_service_cleanup(void *data)
{
    ngx_http_ratelimit_call_t  *call = data;

    ngx_http_ratelimit_service_stop(call);

    if (call->waiting) {
        call->waiting = 0;
        ngx_http_ratelimit_query_cancel(&call->ctx->queries[0], 1);
    }
}


static ngx_int_t
ngx_http_ratelimit_service_answer(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call)
{
    ngx_int_t                    n;
    ngx_uint_t                   i;
    ratelimit_entry_t            fields[NGX_HTTP_RATELIMIT_MAX_FIELDS];
    ratelimit_answer_t           answer;
    ngx_http_ratelimit_ctx_t    *ctx;
    ngx_http_ratelimit_query_t  *q;

    ctx = call->ctx;
    q = &ctx->queries[0];

    q->decided = ngx_current_msec;

    ngx_http_ratelimit_service_count(ctx, q);

    if (q->rc != NGX_OK) {
        return ngx_http_ratelimit_service_fail(r, call,
                                        NGX_HTTP_RATELIMIT_GRPC_UNAVAILABLE,
                                        "the counters can not be reached");
    }

    for (i = 0; i < q->n + q->dropped; i++) {
        ((ngx_http_ratelimit_match_t *) q->subjects[i].data)->row = i;
    }

    if (q->n) {
        ngx_http_ratelimit_describe(ctx);
    }

    if (q->allowed) {
        ngx_http_ratelimit_service_refund(call, q);

    } else {
        ngx_http_ratelimit_service_uncharge(q);
    }

    n = ngx_http_ratelimit_get_fields(ctx, fields);

    if (n == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    answer.code = (q->allowed || ctx->conf->dry_run)
                  ? RATELIMIT_ANSWER_OK : RATELIMIT_ANSWER_OVER_LIMIT;
    answer.fields = fields;
    answer.nfields = n;
    answer.nstatuses = call->call.ndescriptors;
    answer.statuses = ngx_pcalloc(r->pool, answer.nstatuses
                                         * sizeof(ratelimit_answer_status_t));
    if (answer.statuses == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    for (i = 0; i < answer.nstatuses; i++) {
        ngx_http_ratelimit_service_status(call, i, &answer.statuses[i]);
    }

    return ngx_http_ratelimit_service_send(r, call, &answer);
}


static void
ngx_http_ratelimit_service_count(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    if (q->rc != NGX_OK) {
        ctx->status = NGX_HTTP_RATELIMIT_FAILED_CLOSED;

    } else if (!q->allowed) {
        ctx->status = ctx->conf->dry_run ? NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN
                                         : NGX_HTTP_RATELIMIT_REJECTED;

    } else if (q->failed) {
        ctx->status = NGX_HTTP_RATELIMIT_FAILED_OPEN;

    } else if (q->n) {
        ctx->status = NGX_HTTP_RATELIMIT_PASSED;
    }

    if (!(ctx->conf->marks & NGX_HTTP_RATELIMIT_MARK_COUNTED)) {
        return;
    }

    ngx_http_ratelimit_lenient_count(q);

    if (q->rc != NGX_OK || !q->allowed) {
        ngx_http_ratelimit_count_refusal(ctx, q);

    } else {
        (void) ngx_http_ratelimit_count_pass(ctx, q);
    }
}


/* negative hits were only looked at */

static void
ngx_http_ratelimit_service_refund(ngx_http_ratelimit_call_t *call,
    ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                    i;
    ngx_http_ratelimit_match_t   *match;
    ratelimit_call_descriptor_t  *d;

    for (i = 0; i < call->call.ndescriptors; i++) {
        match = &call->matches[i];
        d = &call->call.descriptors[i];

        if (match->use == NULL || !d->negative || d->hits == 0) {
            continue;
        }

        match = match->same != NULL ? match->same : match;

        if (match->row < q->n) {
            ngx_http_ratelimit_query_refund_latest(q, match->row, d->hits);
        }
    }
}


/* a limit that allows says what it would leave, but another one refuses */

static void
ngx_http_ratelimit_service_uncharge(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                   i;
    ratelimit_item_t            *item;
    ngx_http_ratelimit_match_t  *match;

    for (i = 0; i < q->n; i++) {
        item = &q->items[i];
        match = q->subjects[i].data;

        if (item->verdict.allowed
            && item->verdict.remaining <= item->verdict.limit)
        {
            (void) ratelimit_verdict_refund(item->shape, &item->verdict,
                                            match->cost);
        }
    }
}


static void
ngx_http_ratelimit_service_status(ngx_http_ratelimit_call_t *call,
    ngx_uint_t i, ratelimit_answer_status_t *status)
{
    ratelimit_item_t              *item;
    ngx_http_ratelimit_match_t    *match;
    ratelimit_call_descriptor_t   *d;
    const ratelimit_descriptor_t  *rule;

    match = &call->matches[i];
    rule = match->rates.descriptor;
    d = &call->call.descriptors[i];

    status->code = RATELIMIT_ANSWER_OK;

    if (match->use == NULL) {
        status->remaining = rule != NULL ? UINT32_MAX : 0;
        return;
    }

    if (match->same != NULL) {
        match = match->same;
    }

    item = &call->ctx->queries[0].items[match->row];

    if (!item->verdict.allowed && (rule == NULL || !rule->shadow)) {
        status->code = RATELIMIT_ANSWER_OVER_LIMIT;
    }

    /* a limit that could not be asked: what is left of it is not known */

    if (item->verdict.remaining == UINT64_MAX) {
        return;
    }

    status->limited = 1;
    status->requests = rule != NULL ? rule->requests : d->requests;
    status->unit = rule != NULL ? rule->unit : (ratelimit_unit_e) d->unit;
    status->remaining = (uint32_t) ngx_min(item->verdict.remaining,
                                           item->rule->capacity);
    status->reset = ngx_http_ratelimit_seconds(
                                     ngx_http_ratelimit_service_reset(item));

    if (rule != NULL) {
        status->name = rule->name;
    }
}


/*
 * Until the limit is whole again, or a refused call has room; of windows
 * that are aligned to the clock, until the next one begins.
 */

static uint64_t
ngx_http_ratelimit_service_reset(ratelimit_item_t *item)
{
    uint64_t     wall;
    ngx_time_t  *tp;

    if (!ratelimit_algorithms[item->shape->algorithm]->aligned) {
        return ngx_max(item->verdict.reset_after, item->verdict.retry_after);
    }

    if (item->verdict.reset_after) {
        return item->verdict.reset_after;
    }

    tp = ngx_timeofday();
    wall = (uint64_t) tp->sec * RATELIMIT_SECOND + tp->msec * 1000;

    return item->rule->period - wall % item->rule->period;
}
