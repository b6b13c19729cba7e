
/*
 * A request is refused: a line in the log, in limit_req's words, and a body of
 * application/problem+json, or a status of gRPC.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static ratelimit_inline void ngx_http_ratelimit_reject_count(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_status_e status);
static ngx_int_t ngx_http_ratelimit_send_refusal(
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_log_refusal(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q);
static ngx_uint_t ngx_http_ratelimit_has_error_page(ngx_http_request_t *r,
    ngx_uint_t status);
static void ngx_http_ratelimit_begin_response(ngx_http_request_t *r,
    off_t length, ngx_str_t *type);
static ngx_int_t ngx_http_ratelimit_send_problem(
    ngx_http_ratelimit_ctx_t *ctx);
static ngx_buf_t *ngx_http_ratelimit_make_problem(
    ngx_http_ratelimit_ctx_t *ctx);
static u_char *ngx_http_ratelimit_write_violated(
    ngx_http_ratelimit_query_t *q, u_char *start, u_char *p);
static ngx_uint_t ngx_http_ratelimit_is_violated(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i);
static ngx_uint_t ngx_http_ratelimit_is_written(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i);


#define NGX_HTTP_RATELIMIT_TITLE                                              \
    "Request cannot be satisfied as assigned quota has been exceeded"


ngx_str_t  ngx_http_ratelimit_grpc_type =
    ngx_string("application/grpc");
ngx_str_t  ngx_http_ratelimit_grpc_status =
    ngx_string("grpc-status");
static ngx_str_t  ngx_http_ratelimit_grpc_exhausted =
    ngx_string("8");    /* RESOURCE_EXHAUSTED */
static ngx_str_t  ngx_http_ratelimit_grpc_message =
    ngx_string("grpc-message");
static ngx_str_t  ngx_http_ratelimit_grpc_text =
    ngx_string(NGX_HTTP_RATELIMIT_TITLE);

static ngx_str_t  ngx_http_ratelimit_problem_type =
    ngx_string("application/problem+json");

static const u_char  ngx_http_ratelimit_problem_head[] =
    "{\"type\":\"https://iana.org/assignments/http-problem-types"
    "#quota-exceeded\","
    "\"title\":\"" NGX_HTTP_RATELIMIT_TITLE "\","
    "\"status\":";

static const u_char  ngx_http_ratelimit_problem_policies[] =
    ",\"violated-policies\":[";

static const u_char  ngx_http_ratelimit_problem_tail[] = "]}" CRLF;


ngx_int_t
ngx_http_ratelimit_reject(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_loc_conf_t  *rlcf;

    rlcf = ctx->conf;

    if (q->pool->log->log_level >= rlcf->limit_log_level) {
        ngx_http_ratelimit_log_refusal(ctx, q);
    }

    if (rlcf->marks == NGX_HTTP_RATELIMIT_MARK_COUNTED) {
        ngx_http_ratelimit_reject_count(ctx, q, NGX_HTTP_RATELIMIT_REJECTED);

    } else if (rlcf->marks) {

        if (rlcf->marks & NGX_HTTP_RATELIMIT_MARK_COUNTED) {
            ngx_http_ratelimit_reject_count(ctx, q,
                                          NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN);
        }

        ngx_http_ratelimit_set_status(ctx, NGX_HTTP_RATELIMIT_REJECTED_DRY_RUN);
        return NGX_DECLINED;
    }

    ctx->status = NGX_HTTP_RATELIMIT_REJECTED;

    /* a gRPC call is answered in its own way, also if there are no bodies */

    if (rlcf->body == NGX_HTTP_RATELIMIT_BODY_OFF
        && (ctx->request->headers_in.content_type == NULL
            || !ngx_http_ratelimit_is_grpc(ctx->request)))
    {
        return rlcf->status;
    }

    return ngx_http_ratelimit_send_refusal(ctx, q);
}


/* usually there is one limit, or one of two refuses */

static ratelimit_inline void
ngx_http_ratelimit_reject_count(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q, ngx_http_ratelimit_status_e status)
{
    ngx_http_ratelimit_use_t      *use;
    ngx_http_ratelimit_subject_t  *subject;

    subject = q->subjects;
    use = subject->use;

    if (q->n == use->ring_pair) {

        if (q->items[0].verdict.allowed) {
            use = subject[1].use;
            ngx_http_ratelimit_count_in(use->ring_cell, status);
            ngx_http_ratelimit_top_note(q, 1, use);
            return;
        }

        if (q->items[1].verdict.allowed) {
            ngx_http_ratelimit_count_in(use->ring_cell, status);
            ngx_http_ratelimit_top_note(q, 0, use);
            return;
        }

    } else if (q->n == ngx_http_ratelimit_item_rules(q, 0)->nrules) {
        ngx_http_ratelimit_count_in(use->cell, status);
        ngx_http_ratelimit_top_note(q, 0, use);
        return;
    }

    ngx_http_ratelimit_count_refusal(ctx, q);
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_send_refusal(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t           status;
    ngx_http_request_t  *r;

    r = ctx->request;
    status = ctx->conf->status;

    /* statuses of nginx's own are not sent to clients */

    if (r != r->main
        || status == NGX_HTTP_CLOSE
        || (status >= NGX_HTTP_NGINX_CODES
            && status < NGX_HTTP_INTERNAL_SERVER_ERROR)
        || ngx_http_ratelimit_has_error_page(r, status))
    {
        return status;
    }

    if (ngx_http_ratelimit_is_grpc(r)) {
        ngx_http_finalize_request(r,
                                  ngx_http_ratelimit_send_grpc(r,
                                          &ngx_http_ratelimit_grpc_exhausted,
                                          &ngx_http_ratelimit_grpc_text));
        return NGX_DONE;
    }

    ngx_http_finalize_request(r, ngx_http_ratelimit_send_problem(ctx));

    return NGX_DONE;
}


static ratelimit_noinline void
ngx_http_ratelimit_log_refusal(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  excess;

    ngx_http_ratelimit_describe(ctx);

    if (!ngx_http_ratelimit_may_log(ctx, ctx->tightest->use,
                                    ctx->conf->limit_log_level))
    {
        return;
    }

    excess = ctx->verdict->excess;

    ngx_log_error(ctx->conf->limit_log_level, q->pool->log, 0,
                  "limiting requests%s, excess: %ui.%03ui by zone \"%V\"",
                  ctx->conf->dry_run ? ", dry run" : "",
                  excess / 1000, excess % 1000, &ctx->tightest->use->label);
}


/* as ngx_http_special_response_handler() would find it */

static ngx_uint_t
ngx_http_ratelimit_has_error_page(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_uint_t                 i;
    ngx_http_err_page_t       *page;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (clcf->error_pages == NULL || r->error_page || r->uri_changes == 0) {
        return 0;
    }

    page = clcf->error_pages->elts;

    for (i = 0; i < clcf->error_pages->nelts; i++) {
        if (page[i].status == (ngx_int_t) status) {
            return 1;
        }
    }

    return 0;
}


/* "application/grpc", as gRPC's own, or "application/grpc+proto" and so on */

ngx_uint_t
ngx_http_ratelimit_is_grpc(ngx_http_request_t *r)
{
    size_t      len;
    ngx_str_t  *type;

    if (r->headers_in.content_type == NULL) {
        return 0;
    }

    type = &r->headers_in.content_type->value;
    len = ngx_http_ratelimit_grpc_type.len;

    if (type->len < len
        || (ngx_memcmp(type->data, ngx_http_ratelimit_grpc_type.data, len) != 0
            && ngx_strncasecmp(type->data, ngx_http_ratelimit_grpc_type.data,
                               len)
               != 0))
    {
        return 0;
    }

    return type->len == len || type->data[len] == '+' || type->data[len] == ';'
           || type->data[len] == ' ';
}


/* in the form that has trailers only, sent as fields */

ngx_int_t
ngx_http_ratelimit_send_grpc(ngx_http_request_t *r, ngx_str_t *status,
    ngx_str_t *message)
{
    ngx_int_t  rc;

    if (ngx_http_ratelimit_begin_grpc(r, status, message) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_send_special(r, NGX_HTTP_LAST);
}


ngx_int_t
ngx_http_ratelimit_begin_grpc(ngx_http_request_t *r, ngx_str_t *status,
    ngx_str_t *message)
{
    if (ngx_http_ratelimit_push_field(r, &ngx_http_ratelimit_grpc_status,
                                      status)
        != NGX_OK
        || ngx_http_ratelimit_push_field(r, &ngx_http_ratelimit_grpc_message,
                                         message)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    r->headers_out.status = NGX_HTTP_OK;
    r->err_status = 0;

    /* HTTP/1 needs a length, or the client would wait for a body */

    r->header_only = (r->http_version >= NGX_HTTP_VERSION_20);

    ngx_http_ratelimit_begin_response(r, r->header_only ? -1 : 0,
                                      &ngx_http_ratelimit_grpc_type);

    return NGX_OK;
}


/* no "100 Continue" for a body that is discarded */

static void
ngx_http_ratelimit_begin_response(ngx_http_request_t *r, off_t length,
    ngx_str_t *type)
{
    r->expect_tested = 1;

    if (ngx_http_discard_request_body(r) != NGX_OK) {
        r->keepalive = 0;
    }

    ngx_http_clear_content_length(r);
    ngx_http_clear_accept_ranges(r);
    ngx_http_clear_last_modified(r);
    ngx_http_clear_etag(r);

    r->headers_out.content_length_n = length;
    r->headers_out.content_type = *type;
    r->headers_out.content_type_len = type->len;
    r->headers_out.content_type_lowcase = NULL;
}


static ratelimit_noinline ngx_int_t
ngx_http_ratelimit_send_problem(ngx_http_ratelimit_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_buf_t           *b;
    ngx_chain_t          out;
    ngx_http_request_t  *r;

    r = ctx->request;

    b = ngx_http_ratelimit_make_problem(ctx);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->err_status = ctx->conf->status;

    ngx_http_ratelimit_begin_response(r, b->last - b->pos,
                                      &ngx_http_ratelimit_problem_type);

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


static ngx_buf_t *
ngx_http_ratelimit_make_problem(ngx_http_ratelimit_ctx_t *ctx)
{
    size_t                       len;
    u_char                      *start;
    ngx_buf_t                   *b;
    ngx_uint_t                   i, k;
    ngx_http_ratelimit_query_t  *q;
    ngx_http_ratelimit_rules_t  *rates;

    len = sizeof(ngx_http_ratelimit_problem_head) + NGX_INT_T_LEN
          + sizeof(ngx_http_ratelimit_problem_policies)
          + sizeof(ngx_http_ratelimit_problem_tail);

    for (k = ctx->first; k < ctx->nqueries; k++) {
        q = &ctx->queries[k];

        for (i = 0; i < q->n; i += rates->nrules) {
            rates = ngx_http_ratelimit_item_rules(q, i);
            len += sizeof(",") - 1 + rates->quoted_name.len;
        }
    }

    b = ngx_create_temp_buf(ctx->request->pool, len);
    if (b == NULL) {
        return NULL;
    }

    b->last = ngx_sprintf(b->last, "%s%ui%s", ngx_http_ratelimit_problem_head,
                          ctx->conf->status,
                          ngx_http_ratelimit_problem_policies);

    start = b->last;

    for (k = ctx->first; k < ctx->nqueries; k++) {
        b->last = ngx_http_ratelimit_write_violated(&ctx->queries[k], start,
                                                    b->last);
    }

    b->last = ngx_cpymem(b->last, ngx_http_ratelimit_problem_tail,
                         sizeof(ngx_http_ratelimit_problem_tail) - 1);

    b->last_buf = 1;
    b->last_in_chain = 1;

    return b;
}


/* the names of violated limits of a decision, each once */

static u_char *
ngx_http_ratelimit_write_violated(ngx_http_ratelimit_query_t *q, u_char *start,
    u_char *p)
{
    ngx_str_t   *name;
    ngx_uint_t   i;

    for (i = ngx_http_ratelimit_first_limit(q);
         i < q->n;
         i = ngx_http_ratelimit_next_limit(q, i))
    {
        name = &ngx_http_ratelimit_item_rules(q, i)->quoted_name;

        if (!ngx_http_ratelimit_is_violated(q, i)
            || (p != start && ngx_http_ratelimit_is_written(q, i)))
        {
            continue;
        }

        if (p != start) {
            *p++ = ',';
        }

        p = ngx_cpymem(p, name->data, name->len);
    }

    return p;
}


/* a limit, whose first item this is */

static ngx_uint_t
ngx_http_ratelimit_is_violated(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_uint_t  last;

    last = i + ngx_http_ratelimit_item_rules(q, i)->nrules;

    while (i < last) {
        if (!q->items[i++].verdict.allowed) {
            return 1;
        }
    }

    return 0;
}


/* whether a violated limit before it has the same name */

static ngx_uint_t
ngx_http_ratelimit_is_written(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ngx_str_t   *name, *other;
    ngx_uint_t   k;

    name = &ngx_http_ratelimit_item_rules(q, i)->quoted_name;

    for (k = ngx_http_ratelimit_first_limit(q);
         k != i;
         k = ngx_http_ratelimit_next_limit(q, k))
    {
        other = &ngx_http_ratelimit_item_rules(q, k)->quoted_name;

        if (ngx_http_ratelimit_is_same(other, name)
            && ngx_http_ratelimit_is_violated(q, k))
        {
            return 1;
        }
    }

    return 0;
}
