
/*
 * What is known of a request, and what the files of this folder do for one
 * another.
 */


#ifndef _NGX_HTTP_RATELIMIT_CTX_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_CTX_H_INCLUDED_


#include "conf/ngx_http_ratelimit_conf.h"
#include "core/ratelimit_math.h"
#include "store/ngx_http_ratelimit_statistics.h"
#include "store/ngx_http_ratelimit_top.h"


/* limits before and after authentication are decided once each */
#define NGX_HTTP_RATELIMIT_STAGES  2


/* what a rule file says of a descriptor, of a request or of a call */

typedef struct ngx_http_ratelimit_match_s  ngx_http_ratelimit_match_t;

struct ngx_http_ratelimit_match_s {
    ngx_http_ratelimit_rules_t      rates;    /* the data of its row; without a
                                                 descriptor no rule applies */
    ngx_http_ratelimit_use_t       *use;      /* NULL: there is no limit, or
                                                 another one replaces it */
    ngx_uint_t                      replaced;
    ngx_http_ratelimit_match_t     *same;     /* that has the row of its
                                                 counter, or NULL */
    ngx_str_t                       key;
    uint64_t                        cost;
    ngx_uint_t                      row;      /* the caller's */
};


/* of a request or a subrequest; found again after internal redirects */

typedef struct {
    ngx_http_request_t             *request;
    ngx_pool_cleanup_t              cleanup;
    ngx_http_ratelimit_loc_conf_t  *conf;     /* of the latest decision */
    ngx_uint_t                      stages;   /* decided so far */
    ngx_uint_t                      nqueries; /* of these stages */
    ngx_uint_t                      first;    /* query that figures are of: all
                                                 that follow, too */
    ngx_http_variable_value_t      *early;    /* that limits before
                                                 authentication have made, by
                                                 the index of the variable */
    off_t                           passed;   /* bytes of the response's body
                                                 that were passed on */
    ngx_http_ratelimit_status_e     status;
    unsigned                        fresh:1;    /* there are rows behind the
                                                   context for the limits before
                                                   authentication of the
                                                   location */
    unsigned                        in_access:1;  /* the request may be refused
                                                   by limits or access rules */
    unsigned                        refused:1;  /* it was, by any module */
    unsigned                        used:2;     /* queries in front, which have
                                                   led to content, and stay
                                                   charged */
    unsigned                        waiting:1;  /* for a store */
    unsigned                        resumed:1;  /* the store has decided */
    unsigned                        delayed:1;  /* there is a timer */
    unsigned                        queued:1;   /* for a token */
    unsigned                        dry:1;      /* charged by a dry run */
    unsigned                        failed:1;   /* a limit was not asked */
    unsigned                        measured:1; /* whether there is */
    unsigned                        spare:1;    /* capacity to spare */
    unsigned                        refunded:2; /* queries in front */
    unsigned                        settled:2;  /* queries in front, by the */
    unsigned                        response:10;  /* status of the response */
    unsigned                        last:1;     /* all of it was passed on */
    unsigned                        ended:1;    /* settle= has been evaluated */
    unsigned                        described:1;

    /* all above are zeros at first */

    ratelimit_verdict_t            *verdict;  /* of the tightest limit, see */
    ngx_http_ratelimit_subject_t   *tightest; /* ..._describe() */
    ngx_msec_t                      decided;  /* when */

    ngx_http_ratelimit_match_t     *matches;  /* of limits with rules= */
    ngx_http_core_loc_conf_t       *location; /* if checked */
    ngx_event_t                    *timer;    /* if delayed */

    ngx_http_ratelimit_query_t      queries[NGX_HTTP_RATELIMIT_STAGES];
} ngx_http_ratelimit_ctx_t;


/* ngx_http_ratelimit_ctx.c */

ngx_http_ratelimit_ctx_t *ngx_http_ratelimit_find_ctx(ngx_http_request_t *r);

/* all of a client's request and its subrequests; NULL begins, and ends */
ngx_http_ratelimit_ctx_t *ngx_http_ratelimit_next_ctx(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx);

/* whether limits have run for the client's request, but not for this one */
ngx_uint_t ngx_http_ratelimit_is_spared(ngx_http_request_t *r);

/* that of the client's request; if it is undecided, of a subrequest */
ngx_http_ratelimit_ctx_t *ngx_http_ratelimit_client_ctx(ngx_http_request_t *r);

void ngx_http_ratelimit_cleanup(void *data);

/* whether the store may decide that the request waits for a token */
ngx_uint_t ngx_http_ratelimit_may_queue(ngx_http_ratelimit_query_t *q);

/*
 * Refunds what the request was charged and has not used; if it is refused,
 * except by limits that count refused requests.
 */
void ngx_http_ratelimit_refund(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t refused);

/*
 * Works out the figures of the decisions, and which limit is the tightest.  To
 * be called before these are used.
 */
void ngx_http_ratelimit_describe(ngx_http_ratelimit_ctx_t *ctx);

/* the limit that follows in the order of the directives, if that differs */
ngx_uint_t ngx_http_ratelimit_next_sorted(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);

/* whether there are figures: at least one limit was asked */
ngx_uint_t ngx_http_ratelimit_has_figures(ngx_http_ratelimit_ctx_t *ctx);

/*
 * From now on, after ..._describe(): until the limit is whole again, in usec,
 * and until the client may come again, in whole seconds, at least one.
 */
uint64_t ngx_http_ratelimit_reset_after(ngx_http_ratelimit_ctx_t *ctx);
uint64_t ngx_http_ratelimit_retry_seconds(ngx_http_ratelimit_ctx_t *ctx);


/* ngx_http_ratelimit_limit.c: the first two return NGX_DECLINED if the limit
   does not apply */

/* if= */
ngx_int_t ngx_http_ratelimit_test_filter(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit);

/* rate=; NGX_BUSY if it is malformed and the zone fails closed */
ngx_int_t ngx_http_ratelimit_find_rules(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rules_t **rates);

/* cost= */
ngx_int_t ngx_http_ratelimit_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, uint64_t *cost);

/* settle=; NGX_DECLINED if it does not say how much */
ngx_int_t ngx_http_ratelimit_final_cost(ngx_http_request_t *r,
    ngx_http_ratelimit_limit_t *limit, uint64_t *cost);

/*
 * Values of variables: as they are, to be noted which were made since, and to
 * have these forgotten.  The bytes of one that is in use stay where they are.
 */
ngx_http_variable_value_t *ngx_http_ratelimit_copy_values(
    ngx_http_request_t *r);
void ngx_http_ratelimit_note_values(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_variable_value_t *before);
void ngx_http_ratelimit_forget_values(ngx_http_request_t *r);

/* whether there is capacity to spare, for elastic= */
ngx_uint_t ngx_http_ratelimit_spare(ngx_http_ratelimit_ctx_t *ctx);


/* ngx_http_ratelimit_match.c: limits of rule files */

/* what the rule files say of a location's limits, before these are added */
ngx_int_t ngx_http_ratelimit_match_limits(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t stage);

/* sets all of a match but its limit and cost */
ngx_int_t ngx_http_ratelimit_match(ngx_http_ratelimit_match_t *match,
    ratelimit_domains_t *domains, const ratelimit_descriptor_t *domain,
    ratelimit_entry_t *entries, ngx_uint_t n, ngx_pool_t *pool);

/*
 * When all matches of a decision are known: limits that others replace do not
 * apply, and a counter has one row, at all costs together.
 */
ngx_int_t ngx_http_ratelimit_match_all(ngx_http_ratelimit_match_t *matches,
    ngx_uint_t n, ngx_pool_t *pool);

/* returns how many rows there are then, as ..._query_add() does */
ngx_uint_t ngx_http_ratelimit_match_add(ngx_http_ratelimit_query_t *q,
    ngx_uint_t n, ngx_http_ratelimit_match_t *match);


/* ngx_http_ratelimit_lenient.c: limits that need not allow what passes */

/*
 * As ..._query_decide(), for limits in shadow mode and quota mode, too: what
 * they refuse they are dropped for, and the others are asked again.
 */
ngx_int_t ngx_http_ratelimit_decide_lenient(ngx_http_ratelimit_query_t *q);

/* goes on with a result that was waited for; NGX_AGAIN: it is waited again */
ngx_int_t ngx_http_ratelimit_lenient_again(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);

/* a line in the log, the status and statistics of limits that were dropped */
void ngx_http_ratelimit_lenient_done(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);

/* statistics alone */
void ngx_http_ratelimit_lenient_count(ngx_http_ratelimit_query_t *q);


/* ngx_http_ratelimit_error_page.c */

/* runs first in preaccess */
ngx_int_t ngx_http_ratelimit_preaccess_handler(ngx_http_request_t *r);

/* runs last in precontent */
ngx_int_t ngx_http_ratelimit_content_handler(ngx_http_request_t *r);

/* whether a subrequest belongs to the error page of a refusal */
ngx_uint_t ngx_http_ratelimit_is_part_of_refusal(ngx_http_request_t *r);

/* whether authentication has let the request pass, and its parents */
ngx_uint_t ngx_http_ratelimit_is_after_auth(ngx_http_request_t *r);


/* ngx_http_ratelimit_handler.c */

ngx_int_t ngx_http_ratelimit_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_ratelimit_after_auth_handler(ngx_http_request_t *r);

/* has a handler run first in a phase */
ngx_int_t ngx_http_ratelimit_add_first(ngx_conf_t *cf, ngx_http_phases phase,
    ngx_http_handler_pt handler);

/* of an item that passes above the limit: soft or elastic */
ngx_http_ratelimit_status_e ngx_http_ratelimit_overshoot(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);


/* ngx_http_ratelimit_count.c: once for each decision, if these are counted */

/* the request passes: NGX_DECLINED */
ngx_int_t ngx_http_ratelimit_count_pass(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);

/* it is refused, or a store has failed */
void ngx_http_ratelimit_count_refusal(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);

/* no limit is asked, as the rate of another one is malformed */
void ngx_http_ratelimit_count_unasked(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);

/* the limits of these stages, but for those with rules=, are bypassed */
void ngx_http_ratelimit_count_bypass(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t stages);


/* ngx_http_ratelimit_log.c */

/* whether a refusal or delay may be logged; if not, it is counted */
ngx_uint_t ngx_http_ratelimit_may_log(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_use_t *use, ngx_uint_t level);
void ngx_http_ratelimit_log_exit_process(
    ngx_http_ratelimit_main_conf_t *rmcf);


/* ngx_http_ratelimit_delay.c: both return what the phase handler returns */

ngx_int_t ngx_http_ratelimit_delay(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_uint_t i);
ngx_int_t ngx_http_ratelimit_suspend(ngx_http_request_t *r);

/* goes on with the request, unless nginx has gone on without it */
void ngx_http_ratelimit_resume(ngx_http_request_t *r);
ngx_uint_t ngx_http_ratelimit_is_suspended(ngx_http_request_t *r);


/* ngx_http_ratelimit_reject.c */

extern ngx_str_t  ngx_http_ratelimit_grpc_type;
extern ngx_str_t  ngx_http_ratelimit_grpc_status;

ngx_uint_t ngx_http_ratelimit_is_grpc(ngx_http_request_t *r);

/* a response that is nothing but a status of gRPC; or what is to be sent */
ngx_int_t ngx_http_ratelimit_send_grpc(ngx_http_request_t *r,
    ngx_str_t *status, ngx_str_t *message);
ngx_int_t ngx_http_ratelimit_begin_grpc(ngx_http_request_t *r,
    ngx_str_t *status, ngx_str_t *message);

ngx_int_t ngx_http_ratelimit_reject(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);


/* ngx_http_ratelimit_headers.c */

void ngx_http_ratelimit_header_filter_init(void);

#define NGX_HTTP_RATELIMIT_MAX_FIELDS  7

/* the same fields, at most so many, as keys and values; returns how many */
ngx_int_t ngx_http_ratelimit_get_fields(ngx_http_ratelimit_ctx_t *ctx,
    ratelimit_entry_t *fields);


/* ngx_http_ratelimit_settle.c: count= and settle= */

ngx_int_t ngx_http_ratelimit_settle_init(ngx_conf_t *cf,
    ngx_http_ratelimit_main_conf_t *rmcf);


/* ngx_http_ratelimit_variables.c */

/* names, by ngx_http_ratelimit_backend_e */
extern ngx_str_t  ngx_http_ratelimit_backends[];

ngx_int_t ngx_http_ratelimit_add_variables(ngx_conf_t *cf);

#if (NGX_HAVE_INET6)

/* makes an IPv6 address $ratelimit_client; returns its length */
size_t ngx_http_ratelimit_cut_inet6(u_char *address, ngx_uint_t bits);

#endif


/* the rates that item i of a query is one of */

static ngx_inline ngx_http_ratelimit_rules_t *
ngx_http_ratelimit_item_rules(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    return q->subjects[i].data;
}


/* the first items of limits, in the order of the directives; q->n ends */

static ngx_inline ngx_uint_t
ngx_http_ratelimit_first_limit(ngx_http_ratelimit_query_t *q)
{
    return q->n && ngx_http_ratelimit_item_rules(q, 0)->limit->sorted
           ? ngx_http_ratelimit_next_sorted(q, q->n) : 0;
}


static ngx_inline ngx_uint_t
ngx_http_ratelimit_next_limit(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_http_ratelimit_rules_t  *rules;

    rules = ngx_http_ratelimit_item_rules(q, i);

    return rules->limit->sorted ? ngx_http_ratelimit_next_sorted(q, i)
                                : i + rules->nrules;
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


/* there is room for so many rules of the first query behind the context */

static ratelimit_inline ngx_http_ratelimit_ctx_t *
ngx_http_ratelimit_create_ctx(ngx_http_request_t *r, ngx_uint_t room)
{
    ngx_http_ratelimit_ctx_t  *ctx;

    ctx = ngx_palloc(r->pool, sizeof(ngx_http_ratelimit_ctx_t)
                              + room * ngx_http_ratelimit_row_size);
    if (ctx == NULL) {
        return NULL;
    }

    ngx_memzero(ctx, offsetof(ngx_http_ratelimit_ctx_t, verdict));

    ctx->request = r;

    return ctx;
}


/* as ngx_pool_cleanup_add() would do it, but with no memory of its own */

static ratelimit_inline void
ngx_http_ratelimit_attach_ctx(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_http_request_t  *r;

    if (ctx->cleanup.handler != NULL) {
        return;
    }

    r = ctx->request;

    ctx->cleanup.handler = ngx_http_ratelimit_cleanup;
    ctx->cleanup.data = ctx;
    ctx->cleanup.next = r->pool->cleanup;

    r->pool->cleanup = &ctx->cleanup;

    ngx_http_set_ctx(r, ctx, ngx_http_ratelimit_module);
}


static ngx_inline void
ngx_http_ratelimit_set_status(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_status_e status)
{
    if (ratelimit_likely(status > ctx->status)) {
        ctx->status = status;
    }
}


/* to the header of the response */

static ngx_inline ngx_int_t
ngx_http_ratelimit_push_field(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif
    h->key = *name;
    h->value = *value;

    return NGX_OK;
}


#endif /* _NGX_HTTP_RATELIMIT_CTX_H_INCLUDED_ */
