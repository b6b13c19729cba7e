
/*
 * The location of the service: methods, bodies, and the frame of a message.
 */


#include "service/ngx_http_ratelimit_service.h"


#define NGX_HTTP_RATELIMIT_MAX_MESSAGE  65536    /* bytes */

#define NGX_HTTP_RATELIMIT_TOO_LONG     "the message is longer than 65536 bytes"


static ngx_int_t ngx_http_ratelimit_service_header_filter(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_service_handler(ngx_http_request_t *r);
static void ngx_http_ratelimit_service_set_deadline(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call);
static ngx_int_t ngx_http_ratelimit_service_parse_timeout(ngx_str_t *text,
    ngx_msec_t *timeout);
static void ngx_http_ratelimit_service_body(ngx_http_request_t *r);
static ngx_int_t ngx_http_ratelimit_service_run(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call);
static ngx_uint_t ngx_http_ratelimit_service_is(ngx_http_request_t *r,
    ngx_str_t *method);
static ngx_int_t ngx_http_ratelimit_service_grpc(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call);
static const char *ngx_http_ratelimit_service_unframe(ngx_str_t *message,
    ngx_http_ratelimit_grpc_e *status);
static ngx_int_t ngx_http_ratelimit_service_health(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call);
static ngx_uint_t ngx_http_ratelimit_service_is_up(ngx_http_request_t *r);
static void ngx_http_ratelimit_service_ask(ngx_http_request_t *r,
    ngx_http_ratelimit_domain_t *domain);
static ngx_int_t ngx_http_ratelimit_service_read(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call);
static u_char *ngx_http_ratelimit_service_copy(u_char *p, ngx_buf_t *b);


static ngx_str_t  ngx_http_ratelimit_service_method =
    ngx_string("/envoy.service.ratelimit.v3.RateLimitService"
               "/ShouldRateLimit");
static ngx_str_t  ngx_http_ratelimit_health_method =
    ngx_string("/grpc.health.v1.Health/Check");


static ngx_http_output_header_filter_pt
    ngx_http_ratelimit_service_next_filter;


char *
ngx_http_ratelimit_set_service(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t        *clcf;
    ngx_http_ratelimit_service_t    *service;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler == ngx_http_ratelimit_service_handler) {
        return "is duplicate";
    }

    clcf->handler = ngx_http_ratelimit_service_handler;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    service = ngx_array_push(&rmcf->services);
    if (service == NULL) {
        return NGX_CONF_ERROR;
    }

    service->server = ngx_http_conf_get_module_srv_conf(cf,
                                                        ngx_http_core_module);
    service->origin = *cf->conf_file;

    return NGX_CONF_OK;
}


void
ngx_http_ratelimit_service_init(ngx_http_ratelimit_main_conf_t *rmcf)
{
    if (rmcf->services.nelts) {
        ngx_http_ratelimit_service_next_filter = ngx_http_top_header_filter;
        ngx_http_top_header_filter = ngx_http_ratelimit_service_header_filter;
    }
}


/* nginx has its own status for a body beyond "client_max_body_size" */

static ngx_int_t
ngx_http_ratelimit_service_header_filter(ngx_http_request_t *r)
{
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_str_t  status = ngx_string("8");    /* RESOURCE_EXHAUSTED */
    static ngx_str_t  message =
                 ngx_string("the message is longer than client_max_body_size");

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (r->headers_out.status == NGX_HTTP_REQUEST_ENTITY_TOO_LARGE
        && clcf->handler == ngx_http_ratelimit_service_handler
        && ngx_http_ratelimit_is_grpc(r))
    {
        if (ngx_http_ratelimit_begin_grpc(r, &status, &message) != NGX_OK) {
            return NGX_ERROR;
        }

        /* without the page of that status */

        r->header_only = 1;
    }

    return ngx_http_ratelimit_service_next_filter(r);
}


static ngx_int_t
ngx_http_ratelimit_service_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_http_ratelimit_call_t  call;

    /* a call that was counted is answered, whatever conditions it has */

    r->disable_not_modified = 1;

    if (r->headers_in.content_length_n
        > NGX_HTTP_RATELIMIT_MAX_MESSAGE + NGX_HTTP_RATELIMIT_FRAME)
    {
        call.grpc = ngx_http_ratelimit_is_grpc(r);

        return ngx_http_ratelimit_service_fail(r, &call,
                                        NGX_HTTP_RATELIMIT_GRPC_EXHAUSTED,
                                        NGX_HTTP_RATELIMIT_TOO_LONG);
    }

    r->request_body_in_single_buf = 1;

    rc = ngx_http_read_client_request_body(r, ngx_http_ratelimit_service_body);

    return rc >= NGX_HTTP_SPECIAL_RESPONSE ? rc : NGX_DONE;
}


static void
ngx_http_ratelimit_service_body(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    ngx_http_ratelimit_call_t  *call;

    call = ngx_pcalloc(r->pool, sizeof(ngx_http_ratelimit_call_t));
    if (call == NULL) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    call->grpc = ngx_http_ratelimit_is_grpc(r);

    rc = ngx_http_ratelimit_service_run(r, call);

    if (rc != NGX_AGAIN) {
        ngx_http_finalize_request(r, rc);
    }
}


static ngx_int_t
ngx_http_ratelimit_service_run(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call)
{
    ngx_int_t  rc;

    rc = ngx_http_ratelimit_service_read(r, call);

    if (rc == NGX_DECLINED) {
        return ngx_http_ratelimit_service_fail(r, call,
                                        NGX_HTTP_RATELIMIT_GRPC_EXHAUSTED,
                                        NGX_HTTP_RATELIMIT_TOO_LONG);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (call->grpc) {
        return ngx_http_ratelimit_service_grpc(r, call);
    }

    if (call->message.len > NGX_HTTP_RATELIMIT_MAX_MESSAGE) {
        return ngx_http_ratelimit_service_fail(r, call,
                                        NGX_HTTP_RATELIMIT_GRPC_EXHAUSTED,
                                        NGX_HTTP_RATELIMIT_TOO_LONG);
    }

    return ngx_http_ratelimit_service_call(r, call);
}


static ngx_int_t
ngx_http_ratelimit_service_grpc(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call)
{
    const char                 *reason;
    ngx_uint_t                  health;
    ngx_http_ratelimit_grpc_e   status;

    health = ngx_http_ratelimit_service_is(r,
                                           &ngx_http_ratelimit_health_method);

    if (!health
        && !ngx_http_ratelimit_service_is(r,
                                         &ngx_http_ratelimit_service_method))
    {
        return ngx_http_ratelimit_service_fail(r, call,
                                    NGX_HTTP_RATELIMIT_GRPC_UNIMPLEMENTED,
                                    "there is no such method");
    }

    reason = ngx_http_ratelimit_service_unframe(&call->message, &status);

    if (reason != NULL) {
        return ngx_http_ratelimit_service_fail(r, call, status, reason);
    }

    if (health) {
        return ngx_http_ratelimit_service_health(r, call);
    }

    ngx_http_ratelimit_service_set_deadline(r, call);

    return ngx_http_ratelimit_service_call(r, call);
}


static ngx_uint_t
ngx_http_ratelimit_service_is(ngx_http_request_t *r, ngx_str_t *method)
{
    return r->uri.len == method->len
           && ngx_memcmp(r->uri.data, method->data, method->len) == 0;
}


/* one message: a flag, four bytes of length, and the message */

static const char *
ngx_http_ratelimit_service_unframe(ngx_str_t *message,
    ngx_http_ratelimit_grpc_e *status)
{
    u_char    *p;
    uint32_t   len;

    *status = NGX_HTTP_RATELIMIT_GRPC_INVALID;

    if (message->len < NGX_HTTP_RATELIMIT_FRAME) {
        return "there is no message";
    }

    p = message->data;
    len = (uint32_t) p[1] << 24 | (uint32_t) p[2] << 16 | (uint32_t) p[3] << 8
          | p[4];

    message->data += NGX_HTTP_RATELIMIT_FRAME;
    message->len -= NGX_HTTP_RATELIMIT_FRAME;

    if (len > NGX_HTTP_RATELIMIT_MAX_MESSAGE) {
        *status = NGX_HTTP_RATELIMIT_GRPC_EXHAUSTED;
        return NGX_HTTP_RATELIMIT_TOO_LONG;
    }

    if (message->len < len) {
        return "the message is cut short";
    }

    *status = NGX_HTTP_RATELIMIT_GRPC_UNIMPLEMENTED;

    if (p[0] != 0) {
        return "the message is compressed";
    }

    return message->len > len ? "there is more than one message" : NULL;
}


/* grpc-timeout, from the beginning of the request on */

static void
ngx_http_ratelimit_service_set_deadline(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call)
{
    ngx_uint_t        i;
    ngx_msec_t        timeout, elapsed;
    ngx_time_t       *tp;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *header;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        header = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (header[i].key.len != sizeof("grpc-timeout") - 1
                || ngx_strncasecmp(header[i].key.data,
                                   (u_char *) "grpc-timeout",
                                   sizeof("grpc-timeout") - 1)
                   != 0
                || ngx_http_ratelimit_service_parse_timeout(&header[i].value,
                                                            &timeout)
                   != NGX_OK)
            {
                continue;
            }

            tp = ngx_timeofday();
            elapsed = (ngx_msec_t) ((tp->sec - r->start_sec) * 1000
                                    + (tp->msec - r->start_msec));

            call->timed = 1;
            call->timeout = timeout > elapsed ? timeout - elapsed : 0;
        }
    }
}


/* at most eight digits and a unit; what is shorter than 1 ms is 1 ms */

static ngx_int_t
ngx_http_ratelimit_service_parse_timeout(ngx_str_t *text, ngx_msec_t *timeout)
{
    ngx_int_t  n;

    if (text->len < 2 || text->len > 9) {
        return NGX_ERROR;
    }

    n = ngx_atoi(text->data, text->len - 1);

    if (n == NGX_ERROR) {
        return NGX_ERROR;
    }

    switch (text->data[text->len - 1]) {

    case 'H':
        *timeout = (ngx_msec_t) n * 3600000;
        return NGX_OK;

    case 'M':
        *timeout = (ngx_msec_t) n * 60000;
        return NGX_OK;

    case 'S':
        *timeout = (ngx_msec_t) n * 1000;
        return NGX_OK;

    case 'm':
        *timeout = (ngx_msec_t) n;
        return NGX_OK;

    case 'u':
        *timeout = (ngx_msec_t) (n + 999) / 1000;
        return NGX_OK;

    case 'n':
        *timeout = (ngx_msec_t) (n + 999999) / 1000000;
        return NGX_OK;

    default:
        return NGX_ERROR;
    }
}


static ngx_int_t
ngx_http_ratelimit_service_health(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call)
{
    const char        *reason;
    ratelimit_text_t   service;

    reason = ratelimit_health_decode_proto(&service, call->message.data,
                                           call->message.len);

    if (reason != NULL) {
        return ngx_http_ratelimit_service_fail(r, call,
                                        NGX_HTTP_RATELIMIT_GRPC_INVALID,
                                        reason);
    }

    if (service.len
        && (service.len != sizeof("ratelimit") - 1
            || ngx_memcmp(service.data, "ratelimit", service.len) != 0))
    {
        return ngx_http_ratelimit_service_fail(r, call,
                                        NGX_HTTP_RATELIMIT_GRPC_NOT_FOUND,
                                        "there is no such service");
    }

    return ngx_http_ratelimit_service_send_health(r,
                                         ngx_http_ratelimit_service_is_up(r));
}


/* not without rules, or while a store is down that calls are refused without */

static ngx_uint_t
ngx_http_ratelimit_service_is_up(ngx_http_request_t *r)
{
    ngx_uint_t                       up;
    ratelimit_descriptor_t          *d;
    ngx_http_ratelimit_domain_t     *domain;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    up = (rmcf->domains.first != NULL);

    for (d = rmcf->domains.first; d; d = d->next) {
        domain = d->data;

        if (d->parent == NULL
            && domain->zone->fail == NGX_HTTP_RATELIMIT_FAIL_CLOSED)
        {
            ngx_http_ratelimit_service_ask(r, domain);
            up &= ngx_http_ratelimit_store_is_up(domain->zone);
        }
    }

    return up;
}


/*
 * Without calls a store is not known to be down or up again, and while it is
 * down a balancer sends none.  The key is another one each time, so that all
 * nodes of a cluster are asked one after another; the reply is of no interest.
 */

static void
ngx_http_ratelimit_service_ask(ngx_http_request_t *r,
    ngx_http_ratelimit_domain_t *domain)
{
    void                        *rows;
    u_char                       text[NGX_INT64_LEN];
    ngx_str_t                    key;
    ratelimit_rule_t             rule;
    ngx_http_ratelimit_query_t   q;

    rows = ngx_palloc(r->pool, ngx_http_ratelimit_row_size);

    if (rows == NULL
        || ngx_http_ratelimit_domain_rule(&domain->override, 1,
                                          RATELIMIT_UNIT_SECOND, &rule)
           != NULL)
    {
        return;
    }

    ngx_http_ratelimit_store_rule(&domain->override, &rule);

    key.data = text;
    key.len = ngx_sprintf(text, "%L", (int64_t) ngx_random()) - text;

    ngx_memzero(&q, sizeof(ngx_http_ratelimit_query_t));
    ngx_http_ratelimit_query_init(&q, rows, 1, r->pool);

    q.n = ngx_http_ratelimit_query_add(&q, 0, &domain->override, &rule, 1,
                                       &key, 0, NULL);

    if (ngx_http_ratelimit_query_peek(&q) == NGX_AGAIN) {
        ngx_http_ratelimit_query_abort(&q);
    }
}


/*
 * In one piece; NGX_DECLINED if it is too long.  Of JSON it is a copy, as texts
 * are decoded where they are: a mirror and the log get what the client sent.
 */

static ngx_int_t
ngx_http_ratelimit_service_read(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call)
{
    off_t         size;
    u_char       *p;
    ngx_buf_t    *b;
    ngx_str_t    *message;
    ngx_chain_t  *cl;

    message = &call->message;
    ngx_str_null(message);

    if (r->request_body == NULL || r->request_body->bufs == NULL) {
        return NGX_OK;
    }

    size = 0;

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        size += ngx_buf_size(cl->buf);
    }

    if (size > NGX_HTTP_RATELIMIT_MAX_MESSAGE + NGX_HTTP_RATELIMIT_FRAME) {
        return NGX_DECLINED;
    }

    cl = r->request_body->bufs;
    b = cl->buf;

    message->len = (size_t) size;

    if (call->grpc && cl->next == NULL && !b->in_file) {
        message->data = b->pos;
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, message->len + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    message->data = p;

    for ( /* void */ ; cl; cl = cl->next) {
        p = ngx_http_ratelimit_service_copy(p, cl->buf);

        if (p == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static u_char *
ngx_http_ratelimit_service_copy(u_char *p, ngx_buf_t *b)
{
    size_t  size;

    size = (size_t) ngx_buf_size(b);

    /* the end of a body may be a buffer without memory */

    if (size == 0) {
        return p;
    }

    if (!b->in_file) {
        return ngx_cpymem(p, b->pos, size);
    }

    if (ngx_read_file(b->file, p, size, b->file_pos) != (ssize_t) size) {
        return NULL;
    }

    return p + size;
}
