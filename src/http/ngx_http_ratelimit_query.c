
/*
 * What is asked about a request: the limits that apply to it, all in one
 * query, in one piece of memory that survives internal redirects.
 */


#include "http/ngx_http_ratelimit.h"


#define NGX_HTTP_RATELIMIT_LOGGED_COST  32    /* bytes of a bad one */


static void ngx_http_ratelimit_cleanup(void *data);
static ngx_int_t ngx_http_ratelimit_add_limit(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit);
static ngx_int_t ngx_http_ratelimit_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, uint64_t *cost);
static void ngx_http_ratelimit_log_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, ngx_str_t *value);


ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_create_ctx(ngx_http_request_t *r, ngx_uint_t nrules)
{
    u_char                    *p;
    ngx_pool_cleanup_t        *cln;
    ngx_http_ratelimit_ctx_t  *ctx;

    cln = ngx_pool_cleanup_add(r->pool,
                               sizeof(ngx_http_ratelimit_ctx_t)
                               + nrules
                                 * (sizeof(ratelimit_item_t)
                                    + sizeof(ratelimit_place_t)
                                    + sizeof(ngx_http_ratelimit_limit_t *)));
    if (cln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_ratelimit_ctx_t));

    p = (u_char *) ctx + sizeof(ngx_http_ratelimit_ctx_t);
    ctx->query.items = (ratelimit_item_t *) p;

    p += nrules * sizeof(ratelimit_item_t);
    ctx->query.places = (ratelimit_place_t *) p;

    p += nrules * sizeof(ratelimit_place_t);
    ctx->limits = (ngx_http_ratelimit_limit_t **) p;

    ctx->cleanup = cln;
    ctx->request = r;
    ctx->conf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);

    return ctx;
}


/* from now on the request is known to be, or to have been, decided */

void
ngx_http_ratelimit_keep_ctx(ngx_http_ratelimit_ctx_t *ctx)
{
    ctx->cleanup->handler = ngx_http_ratelimit_cleanup;

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
        ctx->limits[0]->use.zone->store->cancel(&ctx->query);
    }
}


ngx_int_t
ngx_http_ratelimit_make_query(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_set_t    *set;
    ngx_http_ratelimit_limit_t  *limits;

    set = ctx->conf->set;
    limits = set->limits.elts;

    for (i = 0; i < set->limits.nelts; i++) {
        if (ngx_http_ratelimit_add_limit(ctx, &limits[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    ctx->query.log = ctx->request->connection->log;
    ctx->query.data = ctx;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_add_limit(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit)
{
    uint64_t                     cost;
    ngx_str_t                    value;
    ngx_uint_t                   i, n;
    ratelimit_hash_t             hash;
    ngx_http_ratelimit_query_t  *q;

    q = &ctx->query;

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

    if (ngx_http_ratelimit_cost(ctx->request, limit, &cost) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < limit->use.nrules; i++) {
        n = q->n++;

        q->items[n].rule = &limit->use.rules[i];
        q->items[n].shape = &limit->use.zone->shape;
        q->items[n].cost = cost;
        q->places[n].table = limit->use.zone->table;
        q->places[n].hash = hash;
        ctx->limits[n] = limit;
    }

    return NGX_OK;
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
    size_t      len;
    u_char      text[NGX_HTTP_RATELIMIT_LOGGED_COST];
    ngx_uint_t  i;

    len = ngx_min(value->len, NGX_HTTP_RATELIMIT_LOGGED_COST);

    /* a client may have chosen it */

    for (i = 0; i < len; i++) {
        text[i] = value->data[i];

        if (text[i] < 0x20 || text[i] > 0x7e) {
            text[i] = '?';
        }
    }

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "cost \"%V\" of zone \"%V\" is not a number: \"%*s\", "
                  "1 is counted",
                  &limit->cost.value->value, &limit->use.zone->name,
                  len, text);
}
