
/*
 * The way of most requests, which is the short one: all their limits are in
 * shared memory, are by a variable each, and have rates that never change.
 */


#include "http/ngx_http_ratelimit_ctx.h"


/* where the next row is to be written */

typedef struct {
    ratelimit_item_t               *item;
    ratelimit_place_t              *place;
    ngx_http_ratelimit_subject_t   *subject;
    ngx_http_ratelimit_rules_t     **plan;
} ngx_http_ratelimit_rows_t;


static ratelimit_inline ngx_int_t ngx_http_ratelimit_direct_run(
    ngx_http_request_t *r, ngx_http_ratelimit_loc_conf_t *rlcf,
    ngx_uint_t room);
static ratelimit_inline ngx_uint_t ngx_http_ratelimit_direct_pass(
    ratelimit_item_t *items, ngx_uint_t n);
static ratelimit_inline ngx_uint_t ngx_http_ratelimit_direct_query(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_set_t *set,
    ngx_uint_t room);
static ratelimit_inline void ngx_http_ratelimit_direct_rows(
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rows_t *rows,
    ngx_uint_t room);


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
            || limits[i].rules.elastic != NULL)
        {
            return 0;
        }
    }

    return 1;
}


ngx_int_t
ngx_http_ratelimit_direct(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf)
{
    ngx_uint_t  room;

    room = rlcf->set->nrules;

    /* compiled by itself: a lone rule needs no loops */

    return room == 1 ? ngx_http_ratelimit_direct_run(r, rlcf, 1)
                     : ngx_http_ratelimit_direct_run(r, rlcf, room);
}


/* what is not simply let pass is done as on the long way */

static ratelimit_inline ngx_int_t
ngx_http_ratelimit_direct_run(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf, ngx_uint_t room)
{
    ngx_uint_t                 n;
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_ratelimit_new_ctx(r, rlcf, room);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->stages = NGX_HTTP_RATELIMIT_BEFORE_AUTH;

    n = ngx_http_ratelimit_direct_query(ctx, rlcf->set, room);

    if (n == 0) {
        return NGX_DECLINED;
    }

    n = (room == 1) ? 1 : n;

    ngx_http_ratelimit_keep_new_ctx(ctx, r);

    ctx->n = n;
    ctx->query.n = n;
    ctx->rc = ngx_http_ratelimit_shm_decide(&ctx->query, n);

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ctx->query.log, 0,
                   "ratelimit: %ui rules, rc:%i allowed:%ui",
                   n, ctx->rc, ctx->query.allowed);

    if (ctx->rc != NGX_OK || !ctx->query.allowed
        || !ngx_http_ratelimit_direct_pass(ctx->items, n))
    {
        return ngx_http_ratelimit_act(ctx);
    }

    ctx->last = n;
    ctx->charged = n;
    ctx->status = NGX_HTTP_RATELIMIT_PASSED;

    if (rlcf->dry_run) {
        ctx->dry = 1;
    }

    return NGX_DECLINED;
}


/* neither above a limit nor slowed down */

static ratelimit_inline ngx_uint_t
ngx_http_ratelimit_direct_pass(ratelimit_item_t *items, ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        if (items[i].verdict.soft | items[i].verdict.delay) {
            return 0;
        }
    }

    return 1;
}


/*
 * Returns how many rows there are.  Nobody will want to know the keys, and
 * nobody but this store the query.
 */

static ratelimit_inline ngx_uint_t
ngx_http_ratelimit_direct_query(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_set_t *set, ngx_uint_t room)
{
    ngx_uint_t                   i;
    ngx_http_variable_value_t   *vv;
    ngx_http_ratelimit_rows_t    rows;
    ngx_http_ratelimit_limit_t  *limit;
    ngx_http_ratelimit_query_t  *q;

    rows.item = ctx->items;
    rows.place = ctx->places;
    rows.subject = ctx->subjects;
    rows.plan = ctx->plans;

    q = &ctx->query;

    q->items = rows.item;
    q->places = rows.place;
    q->subjects = rows.subject;
    q->remote = 0;
    q->log = ctx->request->connection->log;

    limit = set->limits.elts;

    for (i = (room == 1) ? 1 : set->limits.nelts; i; i--, limit++) {
        vv = ngx_http_ratelimit_variable(ctx->request, limit->key.index);

        if (vv == NULL || vv->not_found || vv->len == 0) {
            continue;
        }

        ratelimit_key_hash(&limit->use.hasher, vv->data, vv->len,
                           &rows.place->hash);

        ngx_http_ratelimit_direct_rows(limit, &rows, room);
    }

    return rows.plan - ctx->plans;
}


/* one for each rule, the first of them has the hash */

static ratelimit_inline void
ngx_http_ratelimit_direct_rows(ngx_http_ratelimit_limit_t *limit,
    ngx_http_ratelimit_rows_t *rows, ngx_uint_t room)
{
    ratelimit_hash_t            hash;
    ratelimit_rule_t           *rule, *last;
    ngx_http_ratelimit_zone_t  *zone;

    zone = limit->use.zone;
    hash = rows->place->hash;

    rule = limit->rules.rules;
    last = rule + limit->rules.nrules;

    do {
        rows->item->rule = rule++;
        rows->item->cost = 1;
        rows->item->insist = limit->insist;
        rows->item++;

        rows->place->table = zone->table;
        rows->place->hash = hash;
        rows->place++;

        rows->subject->use = &limit->use;
        rows->subject->backend = NGX_HTTP_RATELIMIT_SHM;
        rows->subject++;

        *rows->plan++ = &limit->rules;

    } while (room > 1 && rule < last);
}
