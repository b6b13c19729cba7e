
/*
 * A key of a zone: where it stands, and its reset.  Its limits are asked one
 * after another, as a store may take its time.
 */


#include "api/ngx_http_ratelimit_api.h"


/* rules that are asked at once, each twice: at no cost, and at that of one */
#define NGX_HTTP_RATELIMIT_API_RULES  32


/* a rule that the key may have a counter for */

typedef struct {
    ratelimit_rule_t                rule;
    ngx_uint_t                      plan;     /* the rate is not this limit's,
                                                 but one that it may have */
    ngx_uint_t                      period;   /* of it only the period */
} ngx_http_ratelimit_api_rule_t;


typedef struct {
    ngx_http_request_t             *request;
    ngx_http_ratelimit_zone_t      *zone;
    ngx_str_t                       text;     /* the key as it was given */
    ngx_str_t                       key;      /* as the limit has it */
    ngx_str_t                       name;     /* of the only limit that is
                                                 meant; NULL: all are */
    ratelimit_rate_t                rates[NGX_HTTP_RATELIMIT_MAX_RATES];
    ngx_uint_t                      nrates;

    ngx_uint_t                      tally;    /* of the zone, the next one */
    ngx_uint_t                      found;    /* limits that have such keys */
    ngx_uint_t                      misfits;  /* and that have others */
    ngx_http_ratelimit_limit_t     *limit;    /* by which rules are made */
    ngx_http_ratelimit_limit_t      calls;    /* of limits that calls bring
                                                 along, as they have none */
    ngx_array_t                     rules;    /* ..._api_rule_t of the limit */
    ngx_uint_t                      first;    /* of those that are asked */
    ngx_uint_t                      reset;
    ngx_uint_t                      waiting;
    void                           *rows;
    ngx_http_ratelimit_query_t      query;
    ngx_http_ratelimit_text_t       json;
} ngx_http_ratelimit_api_key_t;


static ngx_int_t ngx_http_ratelimit_api_key_args(
    ngx_http_ratelimit_api_key_t *ctx, const char **reason);
static ngx_int_t ngx_http_ratelimit_api_key_run(
    ngx_http_ratelimit_api_key_t *ctx);
static ngx_int_t ngx_http_ratelimit_api_key_next(
    ngx_http_ratelimit_api_key_t *ctx);
static ngx_int_t ngx_http_ratelimit_api_key_rules(
    ngx_http_ratelimit_api_key_t *ctx, ngx_http_ratelimit_tally_t *tally);
static ngx_int_t ngx_http_ratelimit_api_key_plan(
    ngx_http_ratelimit_api_key_t *ctx);
static ngx_int_t ngx_http_ratelimit_api_key_seen_rates(
    ngx_http_ratelimit_api_key_t *ctx);
static ngx_uint_t ngx_http_ratelimit_api_key_has(
    ngx_http_ratelimit_api_key_t *ctx, uint64_t period);
static ngx_int_t ngx_http_ratelimit_api_key_seen(
    ngx_http_ratelimit_api_key_t *ctx, uint64_t limit, uint64_t period);
static ngx_int_t ngx_http_ratelimit_api_key_ask(
    ngx_http_ratelimit_api_key_t *ctx, ngx_http_ratelimit_use_t *use);
static void ngx_http_ratelimit_api_key_done(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);
static void ngx_http_ratelimit_api_key_write(
    ngx_http_ratelimit_api_key_t *ctx);
static void ngx_http_ratelimit_api_key_rule(ngx_http_ratelimit_text_t *json,
    ngx_http_ratelimit_api_rule_t *rule, ratelimit_verdict_t *none,
    ratelimit_verdict_t *one);
static ngx_int_t ngx_http_ratelimit_api_key_finish(
    ngx_http_ratelimit_api_key_t *ctx, ngx_int_t rc);
static void ngx_http_ratelimit_api_key_log(ngx_http_ratelimit_api_key_t *ctx);
static void ngx_http_ratelimit_api_key_cleanup(void *data);


ngx_int_t
ngx_http_ratelimit_api_key(ngx_http_request_t *r,
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *text)
{
    ngx_int_t                      rc;
    const char                    *reason;
    ngx_pool_cleanup_t            *cln;
    ngx_http_ratelimit_api_key_t  *ctx;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_ratelimit_api_key_t));
    if (cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_ratelimit_api_key_t));

    cln->handler = ngx_http_ratelimit_api_key_cleanup;

    ctx->request = r;
    ctx->zone = zone;
    ctx->text = *text;
    ctx->reset = (r->method == NGX_HTTP_DELETE);
    ctx->rows = ngx_palloc(r->pool, 2 * NGX_HTTP_RATELIMIT_API_RULES
                                    * ngx_http_ratelimit_row_size);

    if (ctx->rows == NULL
        || ngx_array_init(&ctx->rules, r->pool, 4,
                          sizeof(ngx_http_ratelimit_api_rule_t))
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_ratelimit_api_key_args(ctx, &reason);

    if (rc != NGX_OK) {
        return rc == NGX_ERROR
               ? NGX_HTTP_INTERNAL_SERVER_ERROR
               : ngx_http_ratelimit_api_error(r, NGX_HTTP_BAD_REQUEST, reason);
    }

    ngx_http_ratelimit_text_init(&ctx->json, r->pool);
    ngx_http_ratelimit_json_open(&ctx->json, '{');
    ngx_http_ratelimit_json_name(&ctx->json, "zone");
    ngx_http_ratelimit_json_string(&ctx->json, &zone->name);
    ngx_http_ratelimit_json_name(&ctx->json, "key");
    ngx_http_ratelimit_json_string(&ctx->json, &ctx->text);
    ngx_http_ratelimit_json_name(&ctx->json, "limits");
    ngx_http_ratelimit_json_open(&ctx->json, '[');

    rc = ngx_http_ratelimit_api_key_run(ctx);

    if (rc == NGX_AGAIN) {
        r->main->count++;
        return NGX_DONE;
    }

    return ngx_http_ratelimit_api_key_finish(ctx, rc);
}


/* ?key= for a key that a path can't have, ?name=, ?rate= */

static ngx_int_t
ngx_http_ratelimit_api_key_args(ngx_http_ratelimit_api_key_t *ctx,
    const char **reason)
{
    ngx_int_t   rc, given;
    ngx_str_t   rate;
    ngx_str_t  *text;

    *reason = "an argument is not percent-encoded";
    text = &ctx->text;

    if (text->len == 0) {
        rc = ngx_http_ratelimit_api_arg(ctx->request, "key", text);

        if (rc != NGX_OK && rc != NGX_DONE) {
            return rc;
        }
    }

    if (text->len == 0) {
        *reason = "a key is missing behind \"keys/\"";
        return NGX_DECLINED;
    }

    rc = ngx_http_ratelimit_api_arg(ctx->request, "name", &ctx->name);

    if (rc != NGX_OK && rc != NGX_DONE) {
        return rc;
    }

    given = ngx_http_ratelimit_api_arg(ctx->request, "rate", &rate);

    if (given != NGX_OK) {
        return given == NGX_DONE ? NGX_OK : given;
    }

    *reason = ngx_http_ratelimit_parse_rates(&rate, ctx->rates, &ctx->nrates);

    return *reason == NULL ? NGX_OK : NGX_DECLINED;
}


/* goes on with the next limits, as long as no store has to be waited for */

static ngx_int_t
ngx_http_ratelimit_api_key_run(ngx_http_ratelimit_api_key_t *ctx)
{
    ngx_int_t                    rc;
    ngx_http_ratelimit_tally_t  *tally;

    for ( ;; ) {
        if (ctx->first == ctx->rules.nelts) {
            rc = ngx_http_ratelimit_api_key_next(ctx);

            if (rc != NGX_OK) {
                return rc == NGX_DONE ? NGX_OK : rc;
            }

            if (ctx->rules.nelts == 0) {
                ngx_http_ratelimit_api_key_write(ctx);
                continue;
            }
        }

        tally = ctx->zone->tallies.elts;

        rc = ngx_http_ratelimit_api_key_ask(ctx, tally[ctx->tally - 1].use);

        if (rc == NGX_AGAIN) {
            ctx->waiting = 1;
            return NGX_AGAIN;
        }

        if (rc != NGX_OK) {
            return NGX_BUSY;
        }

        ngx_http_ratelimit_api_key_write(ctx);
    }
}


/* finds a limit, and its rules; NGX_DONE if there is no further one */

static ngx_int_t
ngx_http_ratelimit_api_key_next(ngx_http_ratelimit_api_key_t *ctx)
{
    ngx_int_t                    rc;
    ngx_http_ratelimit_use_t    *use;
    ngx_http_ratelimit_tally_t  *tally;

    tally = ctx->zone->tallies.elts;

    while (ctx->tally < ctx->zone->tallies.nelts) {
        use = tally[ctx->tally].use;
        ctx->tally++;

        if (ctx->name.data != NULL
            && (ctx->name.len != use->name.len
                || ngx_memcmp(ctx->name.data, use->name.data, use->name.len)
                   != 0))
        {
            continue;
        }

        rc = ngx_http_ratelimit_api_parse_key(ctx->request, &ctx->text,
                                              &tally[ctx->tally - 1],
                                              &ctx->key);
        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        if (rc == NGX_DECLINED) {
            ctx->misfits++;
            continue;
        }

        ctx->found++;

        return ngx_http_ratelimit_api_key_rules(ctx, &tally[ctx->tally - 1]);
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_ratelimit_api_key_rules(ngx_http_ratelimit_api_key_t *ctx,
    ngx_http_ratelimit_tally_t *tally)
{
    ngx_uint_t                       i;
    ratelimit_rule_t               **rules;
    ngx_http_ratelimit_api_rule_t   *rule;

    ctx->rules.nelts = 0;
    ctx->first = 0;

    rules = tally->rules.elts;

    for (i = 0; i < tally->rules.nelts; i++) {
        rule = ngx_array_push(&ctx->rules);
        if (rule == NULL) {
            return NGX_ERROR;
        }

        rule->rule = *rules[i];
        rule->plan = 0;
        rule->period = 0;
    }

    if (tally->variables.nelts == 0) {
        return NGX_OK;
    }

    ctx->calls.use = *tally->use;
    ctx->limit = tally->use->limit ? tally->use->limit : &ctx->calls;

    if (ctx->nrates && ngx_http_ratelimit_api_key_plan(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    return (ctx->nrates && !ctx->reset)
           ? NGX_OK : ngx_http_ratelimit_api_key_seen_rates(ctx);
}


/* the rates that the client has given */

static ngx_int_t
ngx_http_ratelimit_api_key_plan(ngx_http_ratelimit_api_key_t *ctx)
{
    ngx_uint_t                      i;
    ngx_http_ratelimit_api_rule_t  *rule;

    for (i = 0; i < ctx->nrates; i++) {
        rule = ngx_array_push(&ctx->rules);
        if (rule == NULL) {
            return NGX_ERROR;
        }

        rule->plan = 0;
        rule->period = 0;

        /* too large a rate, which the limit can't have */

        if (ngx_http_ratelimit_make_rule(ctx->limit, &ctx->rates[i],
                                         &rule->rule)
            != NULL)
        {
            ctx->rules.nelts--;
        }
    }

    return NGX_OK;
}


/*
 * The rates that the store may have counters of.  Those that only other
 * machines have met are periods alone, which show nothing of what drips.
 */

static ngx_int_t
ngx_http_ratelimit_api_key_seen_rates(ngx_http_ratelimit_api_key_t *ctx)
{
    ngx_uint_t        i;
    ratelimit_rule_t  met;

    for (i = 0;
         ngx_http_ratelimit_store_get_rule(ctx->zone, i, &met) == NGX_OK;
         i++)
    {
        if (met.limit == 0) {

            if ((ngx_http_ratelimit_traits(ctx->zone)->drips && !ctx->reset)
                || ngx_http_ratelimit_api_key_has(ctx, met.period))
            {
                continue;
            }

            met.limit = 1;
        }

        if (ngx_http_ratelimit_api_key_seen(ctx, met.limit, met.period)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_ratelimit_api_key_has(ngx_http_ratelimit_api_key_t *ctx,
    uint64_t period)
{
    ngx_uint_t                      i;
    ngx_http_ratelimit_api_rule_t  *rule;

    rule = ctx->rules.elts;

    for (i = 0; i < ctx->rules.nelts; i++) {
        if (rule[i].rule.period == period) {
            return 1;
        }
    }

    return 0;
}


/*
 * Where the limit makes no difference to the counter it is taken to be as large
 * as can be, so that the figures show what was used.
 */

static ngx_int_t
ngx_http_ratelimit_api_key_seen(ngx_http_ratelimit_api_key_t *ctx,
    uint64_t limit, uint64_t period)
{
    ratelimit_rate_t                rate;
    ngx_http_ratelimit_api_rule_t  *rule;

    rule = ngx_array_push(&ctx->rules);
    if (rule == NULL) {
        return NGX_ERROR;
    }

    rate.limit = limit;
    rate.period = period;

    rule->plan = 1;
    rule->period = !ngx_http_ratelimit_traits(ctx->zone)->drips;

    if (rule->period) {
        rate.limit = ngx_min((RATELIMIT_MAX_PRODUCT / 2 - 1) / period,
                             RATELIMIT_MAX_LIMIT / 2);
        rate.limit = ngx_min(rate.limit, ctx->limit->use.bound->ceiling / 2);
    }

    if (ngx_http_ratelimit_make_rule(ctx->limit, &rate, &rule->rule) != NULL) {
        ctx->rules.nelts--;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_api_key_ask(ngx_http_ratelimit_api_key_t *ctx,
    ngx_http_ratelimit_use_t *use)
{
    ngx_uint_t                      i, n;
    ngx_http_ratelimit_query_t     *q;
    ngx_http_ratelimit_api_rule_t  *rule;

    q = &ctx->query;
    rule = ctx->rules.elts;

    n = ngx_min(ctx->rules.nelts - ctx->first, NGX_HTTP_RATELIMIT_API_RULES);

    ngx_memzero(q, sizeof(ngx_http_ratelimit_query_t));
    ngx_http_ratelimit_query_init(q, ctx->rows,
                                  2 * NGX_HTTP_RATELIMIT_API_RULES,
                                  ctx->request->pool);

    for (i = 0; i < n; i++) {
        q->n = ngx_http_ratelimit_query_add(q, q->n, use,
                                            &rule[ctx->first + i].rule, 1,
                                            &ctx->key, 0, ctx);

        if (!ctx->reset) {
            q->n = ngx_http_ratelimit_query_add(q, q->n, use,
                                                &rule[ctx->first + i].rule, 1,
                                                &ctx->key, 1, ctx);
        }
    }

    q->done = ngx_http_ratelimit_api_key_done;
    q->data = ctx;

    return ctx->reset ? ngx_http_ratelimit_query_reset(q)
                      : ngx_http_ratelimit_query_peek(q);
}


static void
ngx_http_ratelimit_api_key_done(ngx_http_ratelimit_query_t *q, ngx_int_t rc)
{
    ngx_connection_t              *c;
    ngx_http_request_t            *r;
    ngx_http_ratelimit_api_key_t  *ctx;

    ctx = q->data;
    r = ctx->request;
    c = r->connection;

    ctx->waiting = 0;

    if (rc == NGX_OK) {
        ngx_http_ratelimit_api_key_write(ctx);
        rc = ngx_http_ratelimit_api_key_run(ctx);

    } else {
        rc = NGX_BUSY;
    }

    if (rc == NGX_AGAIN) {
        return;
    }

    ngx_http_finalize_request(r, ngx_http_ratelimit_api_key_finish(ctx, rc));
    ngx_http_run_posted_requests(c);
}


/* the rules that were asked; a limit begins with the first of its rules */

static void
ngx_http_ratelimit_api_key_write(ngx_http_ratelimit_api_key_t *ctx)
{
    ngx_uint_t                      i, last;
    ngx_http_ratelimit_text_t      *json;
    ngx_http_ratelimit_query_t     *q;
    ngx_http_ratelimit_tally_t     *tally;
    ngx_http_ratelimit_api_rule_t  *rule;

    q = &ctx->query;
    json = &ctx->json;
    rule = ctx->rules.elts;
    tally = ctx->zone->tallies.elts;

    last = ngx_min(ctx->rules.nelts,
                   ctx->first + NGX_HTTP_RATELIMIT_API_RULES);

    if (ctx->reset) {
        ctx->first = last;
        return;
    }

    if (ctx->first == 0) {
        ngx_http_ratelimit_json_open(json, '{');
        ngx_http_ratelimit_json_name(json, "name");
        ngx_http_ratelimit_json_string(json,
                                       &tally[ctx->tally - 1].use->name);
        ngx_http_ratelimit_json_name(json, "rates");
        ngx_http_ratelimit_json_open(json, '[');
    }

    for (i = 0; ctx->first < last; i += 2, ctx->first++) {
        ngx_http_ratelimit_api_key_rule(json, &rule[ctx->first],
                                        &q->items[i].verdict,
                                        &q->items[i + 1].verdict);
    }

    if (ctx->first == ctx->rules.nelts) {
        ngx_http_ratelimit_json_close(json, ']');
        ngx_http_ratelimit_json_close(json, '}');
    }
}


/* the verdicts are those of requests at no cost, and at that of one */

static void
ngx_http_ratelimit_api_key_rule(ngx_http_ratelimit_text_t *json,
    ngx_http_ratelimit_api_rule_t *rule, ratelimit_verdict_t *none,
    ratelimit_verdict_t *one)
{
    char       rate[RATELIMIT_RATE_LEN];
    ngx_str_t  text;

    /* there is no such counter */

    if (rule->plan && none->reset_after == 0) {
        return;
    }

    text.data = (u_char *) rate;
    text.len = ratelimit_format_rate(rule->rule.limit, rule->rule.period,
                                     rate);

    ngx_http_ratelimit_json_open(json, '{');

    if (rule->period) {
        text.data = (u_char *) ngx_strchr(rate, '/') + 1;
        text.len -= text.data - (u_char *) rate;

        ngx_http_ratelimit_json_name(json, "period");
        ngx_http_ratelimit_json_string(json, &text);
        ngx_http_ratelimit_json_name(json, "used");
        ngx_http_ratelimit_json_number(json, none->limit - none->remaining);

    } else {
        ngx_http_ratelimit_json_name(json, "rate");
        ngx_http_ratelimit_json_string(json, &text);
        ngx_http_ratelimit_json_name(json, "limit");
        ngx_http_ratelimit_json_number(json, none->limit);
        ngx_http_ratelimit_json_name(json, "remaining");
        ngx_http_ratelimit_json_number(json, none->remaining);
    }

    ngx_http_ratelimit_json_name(json, "reset");
    ngx_http_ratelimit_json_number(json,
                             ngx_http_ratelimit_seconds(none->reset_after));

    if (!rule->period) {
        ngx_http_ratelimit_json_name(json, "retry_after");
        ngx_http_ratelimit_json_number(json, one->allowed ? 0
                             : ngx_http_ratelimit_seconds(one->retry_after));
    }

    ngx_http_ratelimit_json_close(json, '}');
}


/* NGX_BUSY: a store does not answer */

static ngx_int_t
ngx_http_ratelimit_api_key_finish(ngx_http_ratelimit_api_key_t *ctx,
    ngx_int_t rc)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    if (rc == NGX_BUSY) {
        return ngx_http_ratelimit_api_error(r, NGX_HTTP_SERVICE_UNAVAILABLE,
                                            "the store does not answer");
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->found == 0) {
        return ctx->misfits
               ? ngx_http_ratelimit_api_error(r, NGX_HTTP_BAD_REQUEST,
                                              "the key must be an address")
               : ngx_http_ratelimit_api_error(r, NGX_HTTP_NOT_FOUND,
                                              "there is no such limit");
    }

    if (ctx->reset) {
        ngx_http_ratelimit_api_key_log(ctx);
        return ngx_http_ratelimit_api_send(r, NGX_HTTP_NO_CONTENT, NULL, NULL);
    }

    ngx_http_ratelimit_json_close(&ctx->json, ']');
    ngx_http_ratelimit_json_close(&ctx->json, '}');

    return ngx_http_ratelimit_api_send_json(r, NGX_HTTP_OK, &ctx->json);
}


/* the request's own log would add its path, which has the key */

static void
ngx_http_ratelimit_api_key_log(ngx_http_ratelimit_api_key_t *ctx)
{
    ratelimit_hash_t             hash;
    ngx_http_ratelimit_tally_t  *tally;

    tally = ctx->zone->tallies.elts;

    ratelimit_hash(&tally[0].use->hasher.secret, ctx->text.data,
                   ctx->text.len, &hash);

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "ratelimit: a key of zone \"%V\" is reset by client %V, "
                  "hash of the key: %016xL",
                  &ctx->zone->name, &ctx->request->connection->addr_text,
                  hash.lo);
}


static void
ngx_http_ratelimit_api_key_cleanup(void *data)
{
    ngx_http_ratelimit_api_key_t  *ctx = data;

    if (ctx->waiting) {
        ngx_http_ratelimit_query_abort(&ctx->query);
    }
}
