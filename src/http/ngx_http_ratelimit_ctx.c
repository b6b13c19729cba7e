
/*
 * What is known of a request, in one piece of memory that survives internal
 * redirects.
 */


#include "http/ngx_http_ratelimit_ctx.h"


ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_create_ctx(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf)
{
    return ngx_http_ratelimit_new_ctx(r, rlcf, rlcf->set->nrules);
}


ngx_int_t
ngx_http_ratelimit_grow_ctx(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t n)
{
    u_char                         *rows;
    ratelimit_item_t               *items;
    ratelimit_place_t              *places;
    ngx_http_ratelimit_rules_t    **plans;
    ngx_http_ratelimit_subject_t   *subjects;

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
               ctx->n * sizeof(ngx_http_ratelimit_rules_t *));

    return NGX_OK;
}


/* redirects clear contexts, but not cleanups */

ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_find_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t  *cln;

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_ratelimit_cleanup) {
            ngx_http_set_ctx(r, cln->data, ngx_http_ratelimit_module);
            return cln->data;
        }
    }

    return NULL;
}


void
ngx_http_ratelimit_cleanup(void *data)
{
    ngx_http_ratelimit_ctx_t  *ctx = data;

    if (ctx->waiting) {
        ngx_http_ratelimit_store_cancel(&ctx->query, 0);
    }

    /* who leaves the queue gives the token back */

    if (ctx->queued) {
        ngx_http_ratelimit_refund(ctx, ctx->spared,
                                  ctx->charged - ctx->spared);
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


/*
 * Most requests are let pass without a word: what their verdicts say beyond
 * that is worked out only if somebody wants to know it.
 */

void
ngx_http_ratelimit_explain(ngx_http_ratelimit_ctx_t *ctx)
{
    if (ctx->explained) {
        return;
    }

    ctx->explained = 1;

    ratelimit_table_explain(ctx->items, ctx->places, ctx->last);

    ctx->tightest = ctx->first + ratelimit_tightest(&ctx->items[ctx->first],
                                                    ctx->last - ctx->first);
}
