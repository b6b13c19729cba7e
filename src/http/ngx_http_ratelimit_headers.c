
/*
 * The fields of the response.  They are made when they are sent, all in one
 * piece of memory.
 */


#include "http/ngx_http_ratelimit_ctx.h"


typedef struct {
    ngx_str_t                      *name;
    ngx_str_t                       value;
} ngx_http_ratelimit_field_t;


/* fields on their way out */

typedef struct {
    ngx_http_ratelimit_field_t      fields[NGX_HTTP_RATELIMIT_MAX_FIELDS];
    ngx_uint_t                      n;
    ngx_uint_t                      x;        /* those of "x" are among them */
    u_char                         *p;        /* room for values */
} ngx_http_ratelimit_fields_t;


static ngx_int_t ngx_http_ratelimit_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_make_fields(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_fields_t *fs);
static void ngx_http_ratelimit_x_fields(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_fields_t *fs);
static size_t ngx_http_ratelimit_policies_len(ngx_http_ratelimit_ctx_t *ctx);
static u_char *ngx_http_ratelimit_write_policies(
    ngx_http_ratelimit_ctx_t *ctx, u_char *p);
static void ngx_http_ratelimit_ietf_fields(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_fields_t *fs);
static void ngx_http_ratelimit_retry_fields(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_fields_t *fs);
static ngx_str_t *ngx_http_ratelimit_add_field(ngx_http_ratelimit_fields_t *fs,
    ngx_str_t *name);
static void ngx_http_ratelimit_add_number(ngx_http_ratelimit_fields_t *fs,
    ngx_str_t *name, uint64_t number);
static void ngx_http_ratelimit_drop_fields(ngx_http_request_t *r,
    ngx_http_ratelimit_fields_t *fs);
static ngx_uint_t ngx_http_ratelimit_is_field(ngx_http_ratelimit_fields_t *fs,
    ngx_str_t *name);
static ngx_uint_t ngx_http_ratelimit_is_name(ngx_str_t *one, ngx_str_t *two);
static ngx_int_t ngx_http_ratelimit_push_fields(ngx_http_request_t *r,
    ngx_http_ratelimit_fields_t *fs);


static ngx_str_t  ngx_http_ratelimit_x_limit =
    ngx_string("X-RateLimit-Limit");
static ngx_str_t  ngx_http_ratelimit_x_remaining =
    ngx_string("X-RateLimit-Remaining");
static ngx_str_t  ngx_http_ratelimit_x_reset =
    ngx_string("X-RateLimit-Reset");
static ngx_str_t  ngx_http_ratelimit_x_retry_after =
    ngx_string("X-RateLimit-Retry-After");
static ngx_str_t  ngx_http_ratelimit_ietf_policy =
    ngx_string("RateLimit-Policy");
static ngx_str_t  ngx_http_ratelimit_ietf_limit =
    ngx_string("RateLimit");
static ngx_str_t  ngx_http_ratelimit_retry_after =
    ngx_string("Retry-After");


static ngx_http_output_header_filter_pt  ngx_http_ratelimit_next_header_filter;


void
ngx_http_ratelimit_header_filter_init(void)
{
    ngx_http_ratelimit_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_ratelimit_header_filter;
}


static ngx_int_t
ngx_http_ratelimit_header_filter(ngx_http_request_t *r)
{
    ngx_http_ratelimit_ctx_t     *ctx;
    ngx_http_ratelimit_fields_t   fs;

    if (r != r->main) {
        return ngx_http_ratelimit_next_header_filter(r);
    }

    ctx = ngx_http_ratelimit_get_ctx(r);

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "ratelimit: header filter, ctx:%p", ctx);

    if (ctx == NULL
        || !ngx_http_ratelimit_has_figures(ctx)
        || ctx->conf->headers == NGX_HTTP_RATELIMIT_HEADERS_OFF)
    {
        return ngx_http_ratelimit_next_header_filter(r);
    }

    ngx_http_ratelimit_describe(ctx);

    if (ngx_http_ratelimit_make_fields(r, ctx, &fs) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_drop_fields(r, &fs);

    if (ngx_http_ratelimit_push_fields(r, &fs) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_next_header_filter(r);
}


ngx_int_t
ngx_http_ratelimit_get_fields(ngx_http_ratelimit_ctx_t *ctx,
    ratelimit_entry_t *fields)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_fields_t  fs;

    if (!ngx_http_ratelimit_has_figures(ctx)
        || ctx->conf->headers == NGX_HTTP_RATELIMIT_HEADERS_OFF)
    {
        return 0;
    }

    ngx_http_ratelimit_describe(ctx);

    if (ngx_http_ratelimit_make_fields(ctx->request, ctx, &fs) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < fs.n; i++) {
        fields[i].key.len = fs.fields[i].name->len;
        fields[i].key.data = fs.fields[i].name->data;
        fields[i].value.len = fs.fields[i].value.len;
        fields[i].value.data = fs.fields[i].value.data;
    }

    return fs.n;
}


static ngx_int_t
ngx_http_ratelimit_make_fields(ngx_http_request_t *r,
    ngx_http_ratelimit_ctx_t *ctx, ngx_http_ratelimit_fields_t *fs)
{
    size_t                      len;
    ngx_uint_t                  ietf;
    ngx_http_ratelimit_rules_t  *rates;

    ietf = ctx->conf->headers & NGX_HTTP_RATELIMIT_HEADERS_IETF;
    len = 5 * NGX_INT64_LEN;

    if (ietf) {
        rates = ctx->tightest->data;

        len += rates->quoted_name.len
               + sizeof(";r=;t=;ngx-limit=;ngx-remaining=;ngx-reset=") - 1
               + 5 * NGX_INT64_LEN + ngx_http_ratelimit_policies_len(ctx);
    }

    fs->n = 0;
    fs->p = ngx_pnalloc(r->pool, len);
    if (fs->p == NULL) {
        return NGX_ERROR;
    }

    fs->x = ctx->conf->headers & NGX_HTTP_RATELIMIT_HEADERS_X;

    if (fs->x) {
        ngx_http_ratelimit_x_fields(ctx, fs);
    }

    if (ietf) {
        ngx_http_ratelimit_ietf_fields(ctx, fs);
    }

    if (ctx->status == NGX_HTTP_RATELIMIT_REJECTED) {
        ngx_http_ratelimit_retry_fields(ctx, fs);
    }

    return NGX_OK;
}


static void
ngx_http_ratelimit_x_fields(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_fields_t *fs)
{
    uint64_t              reset;
    ngx_time_t           *tp;
    ratelimit_verdict_t  *verdict;

    verdict = ctx->verdict;
    reset = ngx_http_ratelimit_reset_after(ctx);

    if (ctx->conf->headers & NGX_HTTP_RATELIMIT_HEADERS_EPOCH) {
        tp = ngx_timeofday();
        reset += (uint64_t) tp->sec * RATELIMIT_SECOND
                 + (uint64_t) tp->msec * 1000;
    }

    ngx_http_ratelimit_add_number(fs, &ngx_http_ratelimit_x_limit,
                                  verdict->limit);
    ngx_http_ratelimit_add_number(fs, &ngx_http_ratelimit_x_remaining,
                                  verdict->remaining);
    ngx_http_ratelimit_add_number(fs, &ngx_http_ratelimit_x_reset,
                                  ngx_http_ratelimit_seconds(reset));
}


static size_t
ngx_http_ratelimit_policies_len(ngx_http_ratelimit_ctx_t *ctx)
{
    size_t                       len;
    ngx_uint_t                   i, k;
    ngx_http_ratelimit_rules_t  *rates;
    ngx_http_ratelimit_query_t  *q;

    len = 0;

    for (i = 0; i < ctx->nqueries; i++) {
        q = &ctx->queries[i];

        for (k = 0; k < q->n; k += rates->nrules) {
            rates = ngx_http_ratelimit_item_rules(q, k);
            len += rates->policy.len + sizeof(", ") - 1;
        }
    }

    return len;
}


static u_char *
ngx_http_ratelimit_write_policies(ngx_http_ratelimit_ctx_t *ctx, u_char *p)
{
    u_char                      *start;
    ngx_uint_t                   i, k;
    ngx_http_ratelimit_rules_t  *rates;
    ngx_http_ratelimit_query_t  *q;

    start = p;

    for (i = 0; i < ctx->nqueries; i++) {
        q = &ctx->queries[i];

        for (k = ngx_http_ratelimit_first_limit(q);
             k < q->n;
             k = ngx_http_ratelimit_next_limit(q, k))
        {
            rates = ngx_http_ratelimit_item_rules(q, k);

            if (p != start) {
                *p++ = ',';
                *p++ = ' ';
            }

            p = ngx_cpymem(p, rates->policy.data, rates->policy.len);
        }
    }

    return p;
}


static void
ngx_http_ratelimit_ietf_fields(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_fields_t *fs)
{
    uint64_t                    reset;
    ngx_str_t                  *value;
    ngx_http_ratelimit_rules_t  *rates;

    value = ngx_http_ratelimit_add_field(fs, &ngx_http_ratelimit_ietf_policy);

    fs->p = ngx_http_ratelimit_write_policies(ctx, fs->p);
    value->len = fs->p - value->data;

    value = ngx_http_ratelimit_add_field(fs, &ngx_http_ratelimit_ietf_limit);

    rates = ctx->tightest->data;

    reset = ngx_http_ratelimit_seconds(ngx_http_ratelimit_reset_after(ctx));

    /* t must not promise more than Retry-After does */

    fs->p = ngx_sprintf(fs->p, "%V;r=%uL;t=%uL", &rates->quoted_name,
                        ctx->verdict->remaining,
                        ctx->status == NGX_HTTP_RATELIMIT_REJECTED
                        ? ngx_http_ratelimit_retry_seconds(ctx) : reset);

    /*
     * A client that knows an older draft, as npm's ratelimit-header-parser,
     * reads this field before those of "x", but knows other names.
     */

    if (fs->x) {
        fs->p = ngx_sprintf(fs->p,
                            ";ngx-limit=%uL;ngx-remaining=%uL;ngx-reset=%uL",
                            ctx->verdict->limit, ctx->verdict->remaining,
                            reset);
    }

    value->len = fs->p - value->data;
}


static void
ngx_http_ratelimit_retry_fields(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_fields_t *fs)
{
    uint64_t  seconds;

    seconds = ngx_http_ratelimit_retry_seconds(ctx);

    ngx_http_ratelimit_add_number(fs, &ngx_http_ratelimit_retry_after,
                                  seconds);

    if (fs->x) {
        ngx_http_ratelimit_add_number(fs, &ngx_http_ratelimit_x_retry_after,
                                      seconds);
    }
}


/* the caller writes the value at fs->p and sets its length */

static ngx_str_t *
ngx_http_ratelimit_add_field(ngx_http_ratelimit_fields_t *fs, ngx_str_t *name)
{
    ngx_http_ratelimit_field_t  *field;

    field = &fs->fields[fs->n++];

    field->name = name;
    field->value.data = fs->p;

    return &field->value;
}


static void
ngx_http_ratelimit_add_number(ngx_http_ratelimit_fields_t *fs, ngx_str_t *name,
    uint64_t number)
{
    ngx_str_t  *value;

    value = ngx_http_ratelimit_add_field(fs, name);

    fs->p = ngx_sprintf(fs->p, "%uL", number);
    value->len = fs->p - value->data;
}


/* fields of an upstream that has limits of its own must not contradict ours */

static void
ngx_http_ratelimit_drop_fields(ngx_http_request_t *r,
    ngx_http_ratelimit_fields_t *fs)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *header;

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        header = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (ngx_http_ratelimit_is_field(fs, &header[i].key)) {
                header[i].hash = 0;
            }
        }
    }
}


/* Retry-After of an upstream is over for an admitted request, too */

static ngx_uint_t
ngx_http_ratelimit_is_field(ngx_http_ratelimit_fields_t *fs, ngx_str_t *name)
{
    u_char      ch;
    ngx_uint_t  i;

    ch = name->len ? ngx_tolower(name->data[0]) : 0;

    if (ch != 'x' && ch != 'r') {
        return 0;
    }

    for (i = 0; i < fs->n; i++) {
        if (ngx_http_ratelimit_is_name(name, fs->fields[i].name)) {
            return 1;
        }
    }

    return fs->x && ngx_http_ratelimit_is_name(name,
                                          &ngx_http_ratelimit_x_retry_after);
}


static ngx_uint_t
ngx_http_ratelimit_is_name(ngx_str_t *one, ngx_str_t *two)
{
    return one->len == two->len
           && ngx_strncasecmp(one->data, two->data, one->len) == 0;
}


static ngx_int_t
ngx_http_ratelimit_push_fields(ngx_http_request_t *r,
    ngx_http_ratelimit_fields_t *fs)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_field_t  *field;

    for (i = 0; i < fs->n; i++) {
        field = &fs->fields[i];

        if (ngx_http_ratelimit_push_field(r, field->name, &field->value)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
