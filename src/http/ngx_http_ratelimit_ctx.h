
/*
 * What is known of a request, and what the files of this folder do for one
 * another.
 */


#ifndef _NGX_HTTP_RATELIMIT_CTX_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_CTX_H_INCLUDED_


#include "conf/ngx_http_ratelimit_conf.h"


/* of two decisions about one request the later one here is told */

typedef enum {
    NGX_HTTP_RATELIMIT_UNDECIDED = 0,
    NGX_HTTP_RATELIMIT_PASSED,
    NGX_HTTP_RATELIMIT_SOFT,
    NGX_HTTP_RATELIMIT_ELASTIC,
    NGX_HTTP_RATELIMIT_DELAYED,
    NGX_HTTP_RATELIMIT_DELAYED_DRY_RUN,
    NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN,
    NGX_HTTP_RATELIMIT_REJECTED,
    NGX_HTTP_RATELIMIT_BYPASSED,
    NGX_HTTP_RATELIMIT_FAILED_OPEN,
    NGX_HTTP_RATELIMIT_FAILED_CLOSED
} ngx_http_ratelimit_status_e;


typedef struct ngx_http_ratelimit_ctx_s  ngx_http_ratelimit_ctx_t;


/*
 * Found again after internal redirects.  Items of all stages stand in one row;
 * the query has those of the stage at hand.
 */

struct ngx_http_ratelimit_ctx_s {
    ngx_http_request_t             *request;
    ngx_http_ratelimit_loc_conf_t  *conf;     /* where it was decided */
    ngx_http_ratelimit_loc_conf_t  *access;   /* where it was last seen before
                                                 authentication */
    ngx_uint_t                      n;        /* items */
    ngx_uint_t                      charged;  /* those before it, but for those
                                                 that were spared */
    ngx_uint_t                      first;    /* these have a say */
    ngx_uint_t                      last;
    ngx_uint_t                      tightest; /* the one that speaks for them,
                                                 see ..._explain() */
    ngx_pool_cleanup_t              cleanup;
    ngx_http_ratelimit_status_e     status;
    unsigned                        spared:16;  /* items in front */
    unsigned                        stages:2;   /* asked so far */
    unsigned                        waiting:1;  /* for the store */
    unsigned                        answered:1; /* by the store, just now */
    unsigned                        queued:1;   /* for a token */
    unsigned                        dry:1;      /* charged by a dry run */
    unsigned                        failed:1;   /* a limit can't be asked */
    unsigned                        measured:1; /* whether there is */
    unsigned                        spare:1;    /* capacity to spare */
    unsigned                        explained:1;

    /* all above are zeros at first */

    ngx_http_ratelimit_query_t      query;
    ngx_int_t                       rc;       /* of the store */
    ratelimit_item_t               *items;
    ratelimit_place_t              *places;
    ngx_http_ratelimit_subject_t   *subjects;
    ngx_http_ratelimit_rules_t     **plans;    /* in the order of items */
    ngx_uint_t                      room;     /* for so many */
};


/* ngx_http_ratelimit_ctx.c */

ngx_http_ratelimit_ctx_t *ngx_http_ratelimit_create_ctx(
    ngx_http_request_t *r, ngx_http_ratelimit_loc_conf_t *rlcf);
ngx_http_ratelimit_ctx_t *ngx_http_ratelimit_find_ctx(ngx_http_request_t *r);
void ngx_http_ratelimit_cleanup(void *data);

/* makes room for so many items */
ngx_int_t ngx_http_ratelimit_grow_ctx(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t n);

/* gives back what some of the items were charged */
void ngx_http_ratelimit_refund(ngx_http_ratelimit_ctx_t *ctx, ngx_uint_t first,
    ngx_uint_t n);

/* makes verdicts complete, and finds the tightest; to be done when asked */
void ngx_http_ratelimit_explain(ngx_http_ratelimit_ctx_t *ctx);


/* ngx_http_ratelimit_query.c */

/*
 * The query has no items if no limit of the stage applies.  NGX_BUSY if one
 * can't be asked and fails closed.
 */
ngx_int_t ngx_http_ratelimit_make_query(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t stage);


/* ngx_http_ratelimit_handler.c */

ngx_int_t ngx_http_ratelimit_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_ratelimit_after_auth_handler(ngx_http_request_t *r);

/* does what the store has answered */
ngx_int_t ngx_http_ratelimit_act(ngx_http_ratelimit_ctx_t *ctx);


/* ngx_http_ratelimit_direct.c */

ngx_int_t ngx_http_ratelimit_direct(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf);


/* ngx_http_ratelimit_wait.c */

/* both return what nginx is to be told */
ngx_int_t ngx_http_ratelimit_delay(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t item);
ngx_int_t ngx_http_ratelimit_suspend(ngx_http_request_t *r,
    ngx_http_event_handler_pt handler);

void ngx_http_ratelimit_resume(ngx_http_request_t *r);


/* ngx_http_ratelimit_outcome.c */

ngx_int_t ngx_http_ratelimit_log_handler(ngx_http_request_t *r);


/* ngx_http_ratelimit_answer.c */

ngx_int_t ngx_http_ratelimit_refuse(ngx_http_ratelimit_ctx_t *ctx);
void ngx_http_ratelimit_log_delay(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t item);


/* ngx_http_ratelimit_headers.c */

void ngx_http_ratelimit_header_filter_init(void);


/* ngx_http_ratelimit_variables.c */

ngx_int_t ngx_http_ratelimit_add_variables(ngx_conf_t *cf);


/* bytes for n items, their places, subjects and plans */

static ngx_inline size_t
ngx_http_ratelimit_rows(ngx_uint_t n)
{
    return n * (sizeof(ratelimit_item_t) + sizeof(ratelimit_place_t)
                + sizeof(ngx_http_ratelimit_subject_t)
                + sizeof(ngx_http_ratelimit_rules_t *));
}


static ngx_inline void
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
    ctx->plans = (ngx_http_ratelimit_rules_t **) rows;
}


/* with room for n items */

static ngx_inline ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_new_ctx(ngx_http_request_t *r,
    ngx_http_ratelimit_loc_conf_t *rlcf, ngx_uint_t n)
{
    ngx_http_ratelimit_ctx_t  *ctx;

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


/* a row for each rule of a plan */

static ngx_inline void
ngx_http_ratelimit_add_rows(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_rules_t *plan, ratelimit_rule_t *rule, ngx_str_t *key,
    uint64_t cost)
{
    ngx_uint_t                     i;
    ratelimit_hash_t              *hash;
    ratelimit_item_t              *item;
    ratelimit_place_t             *place;
    ngx_http_ratelimit_zone_t     *zone;
    ngx_http_ratelimit_limit_t    *limit;
    ngx_http_ratelimit_subject_t  *subject;

    limit = plan->limit;
    zone = limit->use.zone;

    item = &ctx->items[ctx->n];
    place = &ctx->places[ctx->n];
    subject = &ctx->subjects[ctx->n];

    hash = &place->hash;
    ratelimit_key_hash(&limit->use.hasher, key->data, key->len, hash);

    for (i = plan->nrules; i; i--) {
        item->rule = rule++;
        item->shape = &zone->shape;
        item->cost = cost;
        item->insist = limit->insist;
        item->verdict.brief = 0;
        item->verdict.stamp = 0;
        item++;

        place->table = zone->table;
        place->hash = *hash;
        place++;

        subject->use = &limit->use;
        subject->key = *key;
        subject->backend = zone->redis ? NGX_HTTP_RATELIMIT_REDIS
                                       : NGX_HTTP_RATELIMIT_SHM;
        subject->reserved = (limit->outcomes != NULL);
        subject->stamp = 0;
        subject++;

        ctx->plans[ctx->n++] = plan;
    }
}


/* NULL unless a context was kept */

static ngx_inline ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_get_ctx(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_ratelimit_module);

    if (ctx != NULL || !(r->internal || r->filter_finalize)) {
        return ctx;
    }

    return ngx_http_ratelimit_find_ctx(r);
}


/*
 * From now on the request is known to be, or to have been, decided.  As
 * ngx_pool_cleanup_add() would do it, but with no memory of its own.
 */

static ngx_inline void
ngx_http_ratelimit_keep_new_ctx(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_request_t *r)
{
    ctx->cleanup.handler = ngx_http_ratelimit_cleanup;
    ctx->cleanup.data = ctx;
    ctx->cleanup.next = r->pool->cleanup;

    r->pool->cleanup = &ctx->cleanup;

    ngx_http_set_ctx(r, ctx, ngx_http_ratelimit_module);
}


static ngx_inline void
ngx_http_ratelimit_keep_ctx(ngx_http_ratelimit_ctx_t *ctx)
{
    if (ctx->cleanup.handler == NULL) {
        ngx_http_ratelimit_keep_new_ctx(ctx, ctx->request);
    }
}


/* the later one is told, see the order of statuses */

static ngx_inline void
ngx_http_ratelimit_set_status(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_status_e status)
{
    if (status > ctx->status) {
        ctx->status = status;
    }
}


/* all items of the query, by a dry run or in earnest */

static ngx_inline void
ngx_http_ratelimit_set_charged(ngx_http_ratelimit_ctx_t *ctx)
{
    if (ctx->charged == 0) {
        ctx->spared = ctx->n - ctx->query.n;
    }

    ctx->charged = ctx->n;
    ctx->dry = ctx->conf->dry_run;
}


/* whether limits were asked, and at least one of them has answered */

static ngx_inline ngx_uint_t
ngx_http_ratelimit_decided(ngx_http_ratelimit_ctx_t *ctx)
{
    return (ctx->status >= NGX_HTTP_RATELIMIT_PASSED
            && ctx->status <= NGX_HTTP_RATELIMIT_REJECTED)
           || (ctx->status == NGX_HTTP_RATELIMIT_FAILED_OPEN && ctx->charged);
}


static ngx_inline uint64_t
ngx_http_ratelimit_retry_seconds(ngx_http_ratelimit_ctx_t *ctx)
{
    uint64_t  seconds;

    seconds = ngx_http_ratelimit_seconds(
                          ctx->items[ctx->tightest].verdict.retry_after);

    return ngx_max(seconds, 1);
}


#endif /* _NGX_HTTP_RATELIMIT_CTX_H_INCLUDED_ */
