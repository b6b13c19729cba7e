
/*
 * What is asked about a request: the limits that apply to it, all in one
 * query, in one piece of memory that survives internal redirects.
 */


#include "http/ngx_http_ratelimit.h"


#define NGX_HTTP_RATELIMIT_LOGGED_COST  32    /* bytes of a bad one */


static size_t ngx_http_ratelimit_rows(ngx_uint_t n);
static void ngx_http_ratelimit_set_rows(ngx_http_ratelimit_ctx_t *ctx,
    u_char *rows, ngx_uint_t n);
static ngx_int_t ngx_http_ratelimit_make_room(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t n);
static void ngx_http_ratelimit_cleanup(void *data);
static ngx_int_t ngx_http_ratelimit_add_limit(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_find_plan(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_plan_t **plan);
static void ngx_http_ratelimit_add_items(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_plan_t *plan, ngx_str_t *key, ratelimit_hash_t *hash,
    uint64_t cost);
static ngx_uint_t ngx_http_ratelimit_spare(ngx_http_ratelimit_ctx_t *ctx);
static ngx_int_t ngx_http_ratelimit_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, uint64_t *cost);
static void ngx_http_ratelimit_log_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *value);


ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_create_ctx(ngx_http_request_t *r)
{
    ngx_uint_t                      n;
    ngx_http_ratelimit_ctx_t       *ctx;
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    n = rlcf->set->nrules_before + rlcf->set->nrules_after;

    ctx = ngx_palloc(r->pool, sizeof(ngx_http_ratelimit_ctx_t)
                              + ngx_http_ratelimit_rows(n));
    if (ctx == NULL) {
        return NULL;
    }

    ngx_memzero(ctx, offsetof(ngx_http_ratelimit_ctx_t, query));

    ctx->request = r;
    ctx->conf = rlcf;

    ngx_http_ratelimit_set_rows(ctx,
                                (u_char *) ctx
                                + sizeof(ngx_http_ratelimit_ctx_t), n);

    return ctx;
}


/* bytes for n items, their places, subjects and plans */

static size_t
ngx_http_ratelimit_rows(ngx_uint_t n)
{
    return n * (sizeof(ratelimit_item_t) + sizeof(ratelimit_place_t)
                + sizeof(ngx_http_ratelimit_subject_t)
                + sizeof(ngx_http_ratelimit_plan_t *));
}


static void
ngx_http_ratelimit_set_rows(ngx_http_ratelimit_ctx_t *ctx, u_char *rows,
    ngx_uint_t n)
{
    ctx->room = n;
    ctx->items = (ratelimit_item_t *) rows;

    rows += n * sizeof(ratelimit_item_t);
    ctx->places = (ratelimit_place_t *) rows;

    rows += n * sizeof(ratelimit_place_t);
    ctx->subjects = (ngx_http_ratelimit_subject_t *) rows;

    rows += n * sizeof(ngx_http_ratelimit_subject_t);
    ctx->plans = (ngx_http_ratelimit_plan_t **) rows;
}


/* a request may come to a location with more limits */

static ngx_int_t
ngx_http_ratelimit_make_room(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t n)
{
    u_char                         *rows;
    ratelimit_item_t               *items;
    ratelimit_place_t              *places;
    ngx_http_ratelimit_plan_t     **plans;
    ngx_http_ratelimit_subject_t   *subjects;

    n += ctx->n;

    if (n <= ctx->room) {
        return NGX_OK;
    }

    items = ctx->items;
    places = ctx->places;
    subjects = ctx->subjects;
    plans = ctx->plans;

    rows = ngx_palloc(ctx->request->pool, ngx_http_ratelimit_rows(n));
    if (rows == NULL) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_set_rows(ctx, rows, n);

    ngx_memcpy(ctx->items, items, ctx->n * sizeof(ratelimit_item_t));
    ngx_memcpy(ctx->places, places, ctx->n * sizeof(ratelimit_place_t));
    ngx_memcpy(ctx->subjects, subjects,
               ctx->n * sizeof(ngx_http_ratelimit_subject_t));
    ngx_memcpy(ctx->plans, plans,
               ctx->n * sizeof(ngx_http_ratelimit_plan_t *));

    return NGX_OK;
}


/*
 * From now on the request is known to be, or to have been, decided.  As
 * ngx_pool_cleanup_add() would do it, but with no memory of its own.
 */

void
ngx_http_ratelimit_keep_ctx(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_pool_t  *pool;

    if (ctx->cleanup.handler != NULL) {
        return;
    }

    pool = ctx->request->pool;

    ctx->cleanup.handler = ngx_http_ratelimit_cleanup;
    ctx->cleanup.data = ctx;
    ctx->cleanup.next = pool->cleanup;

    pool->cleanup = &ctx->cleanup;

    ngx_http_set_ctx(ctx->request, ctx, ngx_http_ratelimit_module);
}


ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t        *cln;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_ratelimit_module);

    if (ctx != NULL || !(r->internal || r->filter_finalize)) {
        return ctx;
    }

    /* redirects clear contexts, but not cleanups */

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_ratelimit_cleanup) {
            ctx = cln->data;
            ngx_http_set_ctx(r, ctx, ngx_http_ratelimit_module);
            break;
        }
    }

    return ctx;
}


static void
ngx_http_ratelimit_cleanup(void *data)
{
    ngx_http_ratelimit_ctx_t  *ctx = data;

    if (ctx->waiting) {
        ngx_http_ratelimit_store_cancel(&ctx->query);
    }

    /* who leaves the queue gives the token back */

    if (ctx->queued) {
        ngx_http_ratelimit_refund(ctx, 0, ctx->charged);
    }
}


void
ngx_http_ratelimit_refund(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t first,
    ngx_uint_t n)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_query_t  q;

    if (n == 0) {
        return;
    }

    q = ctx->query;
    q.items = &ctx->items[first];
    q.places = &ctx->places[first];
    q.subjects = &ctx->subjects[first];
    q.n = n;

    ngx_http_ratelimit_store_refund(&q);

    /* nothing is given back twice */

    for (i = 0; i < n; i++) {
        q.items[i].cost = 0;
    }
}


ngx_int_t
ngx_http_ratelimit_make_query(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t stage)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i, n, first;
    ngx_http_ratelimit_set_t    *set;
    ngx_http_ratelimit_limit_t  *limits;

    set = ctx->conf->set;
    limits = set->limits.elts;
    first = ctx->n;

    n = (stage == NGX_HTTP_RATELIMIT_AFTER_AUTH) ? set->nrules_after
                                                 : set->nrules_before;

    if (ngx_http_ratelimit_make_room(ctx, n) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < set->limits.nelts; i++) {

        if (limits[i].stage != stage) {
            continue;
        }

        rc = ngx_http_ratelimit_add_limit(ctx, &limits[i]);

        if (rc != NGX_OK) {
            ctx->n = first;
            return rc;
        }
    }

    ctx->query.items = &ctx->items[first];
    ctx->query.places = &ctx->places[first];
    ctx->query.subjects = &ctx->subjects[first];
    ctx->query.n = ctx->n - first;
    ctx->query.remote = ((set->remote & stage) != 0);
    ctx->query.failed = 0;
    ctx->query.log = ctx->request->connection->log;
    ctx->query.pool = ctx->request->pool;
    ctx->query.data = ctx;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_add_limit(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit)
{
    uint64_t                    cost;
    ngx_int_t                   rc;
    ngx_str_t                   value;
    ratelimit_hash_t            hash;
    ngx_http_ratelimit_plan_t  *plan;

    if (limit->filter.value != NULL) {
        if (ngx_http_ratelimit_eval(ctx->request, &limit->filter, &value)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (value.len == 0 || (value.len == 1 && value.data[0] == '0')) {
            return NGX_OK;
        }
    }

    if (ngx_http_ratelimit_eval(ctx->request, &limit->key, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value.len == 0) {
        return NGX_OK;
    }

    ratelimit_hash(&limit->use.secret, value.data, value.len, &hash);

    plan = &limit->plan;

    if (limit->rate.value != NULL) {
        rc = ngx_http_ratelimit_find_plan(ctx, limit, &plan);

        if (rc != NGX_OK) {
            return rc == NGX_DECLINED ? NGX_OK : rc;
        }
    }

    if (ngx_http_ratelimit_cost(ctx->request, limit, &cost) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_add_items(ctx, plan, &value, &hash, cost);

    return NGX_OK;
}


/* NGX_DECLINED if the limit does not apply */

static ngx_int_t
ngx_http_ratelimit_find_plan(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_plan_t **plan)
{
    ngx_str_t  text;

    if (ngx_http_ratelimit_eval(ctx->request, &limit->rate, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (text.len == 0) {
        return NGX_DECLINED;
    }

    *plan = ngx_http_ratelimit_get_plan(ctx->request, limit, &text);

    if (*plan == NULL) {
        return NGX_ERROR;
    }

    if ((*plan)->reason == NULL) {
        return NGX_OK;
    }

    ctx->failed = 1;

    return limit->use.zone->fail == NGX_HTTP_RATELIMIT_FAIL_CLOSED
           ? NGX_BUSY : NGX_DECLINED;
}


static void
ngx_http_ratelimit_add_items(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_plan_t *plan, ngx_str_t *key, ratelimit_hash_t *hash,
    uint64_t cost)
{
    ngx_uint_t                     i;
    ratelimit_item_t              *item;
    ratelimit_rule_t              *rule;
    ratelimit_place_t             *place;
    ngx_http_ratelimit_limit_t    *limit;
    ngx_http_ratelimit_subject_t  *subject;

    limit = plan->limit;
    rule = plan->rules;

    if (plan->elastic != NULL && ngx_http_ratelimit_spare(ctx)) {
        rule = plan->elastic;
    }

    item = &ctx->items[ctx->n];
    place = &ctx->places[ctx->n];
    subject = &ctx->subjects[ctx->n];

    for (i = 0; i < plan->nrules; i++) {
        item->rule = rule++;
        item->shape = &limit->use.zone->shape;
        item->cost = cost;
        item->insist = limit->insist;
        item++;

        place->table = limit->use.zone->table;
        place->hash = *hash;
        place++;

        subject->use = &limit->use;
        subject->key = *key;
        subject->backend = limit->use.zone->redis ? NGX_HTTP_RATELIMIT_REDIS
                                                  : NGX_HTTP_RATELIMIT_SHM;
        subject++;

        ctx->plans[ctx->n++] = plan;
    }
}


/* one answer for all limits of a request */

static ngx_uint_t
ngx_http_ratelimit_spare(ngx_http_ratelimit_ctx_t *ctx)
{
    if (!ctx->measured) {
        ctx->measured = 1;
        ctx->spare = ngx_http_ratelimit_elastic_spare(ctx->request);
    }

    return ctx->spare;
}


/* a cost beyond what any limit allows is as good as the largest one */

static ngx_int_t
ngx_http_ratelimit_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, uint64_t *cost)
{
    uint64_t    n;
    ngx_str_t   value;
    ngx_uint_t  i;

    *cost = 1;

    if (limit->cost.value == NULL) {
        return NGX_OK;
    }

    if (ngx_http_ratelimit_eval(r, &limit->cost, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    n = 0;

    for (i = 0; i < value.len; i++) {

        if (value.data[i] < '0' || value.data[i] > '9') {
            break;
        }

        n = ngx_min(n * 10 + (value.data[i] - '0'), RATELIMIT_MAX_LIMIT);
    }

    if (value.len == 0 || i < value.len) {
        ngx_http_ratelimit_log_cost(r, limit, &value);
        return NGX_OK;
    }

    *cost = n;

    return NGX_OK;
}


static void
ngx_http_ratelimit_log_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *value)
{
    size_t  len;
    u_char  text[NGX_HTTP_RATELIMIT_LOGGED_COST];

    len = ngx_http_ratelimit_printable(text, NGX_HTTP_RATELIMIT_LOGGED_COST,
                                       value);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "cost \"%V\" of zone \"%V\" is not a number: \"%*s\", "
                  "1 is counted",
                  &limit->cost.value->value, &limit->use.zone->name,
                  len, text);
}


/* for the log: a client may have chosen it */

size_t
ngx_http_ratelimit_printable(u_char *text, size_t size, ngx_str_t *value)
{
    size_t  i, len;

    len = ngx_min(value->len, size);

    for (i = 0; i < len; i++) {
        text[i] = value->data[i];

        if (text[i] < 0x20 || text[i] > 0x7e) {
            text[i] = '?';
        }
    }

    return len;
}
