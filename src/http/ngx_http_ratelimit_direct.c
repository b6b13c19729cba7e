
/*
 * The way of most requests, which is the short one: all their limits are in
 * shared memory, are by a variable each, and have rates that never change.
 */


#include "http/ngx_http_ratelimit.h"


static ngx_inline void ngx_http_ratelimit_direct_query(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_set_t *set);


ngx_uint_t
ngx_http_ratelimit_direct_set(ngx_http_ratelimit_set_t *set)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_limit_t  *limits;

    limits = set->limits.elts;

    for (i = 0; i < set->limits.nelts; i++) {

        if (limits[i].stage != NGX_HTTP_RATELIMIT_BEFORE_AUTH
            || limits[i].use.zone->redis != NULL
            || limits[i].key.index == NGX_ERROR
            || limits[i].filter.value != NULL
            || limits[i].cost.value != NULL
            || limits[i].rate.value != NULL
            || limits[i].plan.elastic != NULL)
        {
            return 0;
        }
    }

    return 1;
}


/* what is not simply let pass is done as on the long way */

ngx_int_t
ngx_http_ratelimit_direct(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf)
{
    ngx_uint_t                 i;
    ratelimit_item_t          *item;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_new_ctx(r, rlcf);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_ratelimit_direct_query(ctx, rlcf->set);

    if (ctx->n == 0) {
        return NGX_DECLINED;
    }

    ctx->stages = NGX_HTTP_RATELIMIT_BEFORE_AUTH;

    ngx_http_ratelimit_keep_ctx(ctx);

    ctx->rc = ngx_http_ratelimit_shm_check(&ctx->query);

    if (ctx->rc != NGX_OK || !ctx->query.allowed) {
        return ngx_http_ratelimit_act(ctx);
    }

    item = ctx->items;

    for (i = ctx->n; i; i--, item++) {
        if (item->verdict.soft || item->verdict.delay) {
            return ngx_http_ratelimit_act(ctx);
        }
    }

    ctx->last = ctx->n;
    ctx->charged = ctx->n;
    ctx->status = NGX_HTTP_RATELIMIT_PASSED;

    return NGX_DECLINED;
}


static ngx_inline void
ngx_http_ratelimit_direct_query(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_set_t *set)
{
    ngx_uint_t                   i;
    ngx_str_t                    key;
    ngx_http_request_t          *r;
    ngx_http_variable_value_t   *vv;
    ngx_http_ratelimit_limit_t  *limit;
    ngx_http_ratelimit_query_t  *q;

    r = ctx->request;
    limit = set->limits.elts;

    for (i = set->limits.nelts; i; i--, limit++) {
        vv = ngx_http_get_flushed_variable(r, limit->key.index);

        if (vv != NULL && !vv->not_found && vv->len) {
            key.len = vv->len;
            key.data = vv->data;

            ngx_http_ratelimit_add_rows(ctx, &limit->plan, limit->plan.rules,
                                        &key, 1);
        }
    }

    q = &ctx->query;

    q->items = ctx->items;
    q->places = ctx->places;
    q->subjects = ctx->subjects;
    q->n = ctx->n;
    q->remote = 0;
    q->failed = 0;
    q->log = r->connection->log;
    q->pool = r->pool;
}
