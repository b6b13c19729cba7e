
/*
 * Answers of the service, by gRPC or as JSON.
 */


#include "service/ngx_http_ratelimit_service.h"


static ngx_int_t ngx_http_ratelimit_service_send_grpc(ngx_http_request_t *r,
    ngx_buf_t *b);
static ngx_int_t ngx_http_ratelimit_service_send_json(ngx_http_request_t *r,
    ngx_uint_t status, ngx_buf_t *b);
static ngx_int_t ngx_http_ratelimit_service_output(ngx_http_request_t *r,
    ngx_buf_t *b);
static u_char *ngx_http_ratelimit_service_frame(u_char *p, size_t len);
static ngx_uint_t ngx_http_ratelimit_service_http_status(
    ngx_http_ratelimit_grpc_e status);


static ngx_str_t  ngx_http_ratelimit_json_type =
    ngx_string("application/json");
static ngx_str_t  ngx_http_ratelimit_grpc_zero =
    ngx_string("0");


ngx_int_t
ngx_http_ratelimit_service_send(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, ratelimit_answer_t *answer)
{
    size_t      len;
    ngx_buf_t  *b;

    len = call->grpc ? ratelimit_answer_proto_size(answer)
                     : ratelimit_answer_json_size(answer);

    b = ngx_create_temp_buf(r->pool, NGX_HTTP_RATELIMIT_FRAME + len);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (call->grpc) {
        b->last = ngx_http_ratelimit_service_frame(b->last, len);
        b->last = ratelimit_answer_write_proto(b->last, answer);

        return ngx_http_ratelimit_service_send_grpc(r, b);
    }

    b->last = ratelimit_answer_write_json(b->last, answer);

    return ngx_http_ratelimit_service_send_json(r,
                                answer->code == RATELIMIT_ANSWER_OVER_LIMIT
                                ? NGX_HTTP_TOO_MANY_REQUESTS : NGX_HTTP_OK, b);
}


/* HealthCheckResponse: SERVING is 1, NOT_SERVING 2 */

ngx_int_t
ngx_http_ratelimit_service_send_health(ngx_http_request_t *r,
    ngx_uint_t serving)
{
    ngx_buf_t  *b;

    b = ngx_create_temp_buf(r->pool, NGX_HTTP_RATELIMIT_FRAME + 2);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = ngx_http_ratelimit_service_frame(b->last, 2);
    *b->last++ = 0x08;
    *b->last++ = serving ? 1 : 2;

    return ngx_http_ratelimit_service_send_grpc(r, b);
}


ngx_int_t
ngx_http_ratelimit_service_fail(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, ngx_http_ratelimit_grpc_e status,
    const char *reason)
{
    size_t      len;
    ngx_buf_t  *b;
    ngx_str_t   message, code;

    static ngx_str_t  name = ngx_string("grpc-accept-encoding");
    static ngx_str_t  identity = ngx_string("identity");

    message.data = (u_char *) reason;
    message.len = ngx_strlen(reason);

    if (call->grpc) {
        code.data = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
        if (code.data == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        code.len = ngx_sprintf(code.data, "%ui", (ngx_uint_t) status)
                   - code.data;

        if (status == NGX_HTTP_RATELIMIT_GRPC_UNIMPLEMENTED
            && ngx_http_ratelimit_push_field(r, &name, &identity) != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return ngx_http_ratelimit_send_grpc(r, &code, &message);
    }

    len = sizeof("{\"error\":\"\"}\n") - 1 + message.len
          + ngx_escape_json(NULL, message.data, message.len);

    b = ngx_create_temp_buf(r->pool, len);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = ngx_cpymem(b->last, "{\"error\":\"", sizeof("{\"error\":\"") - 1);
    b->last = (u_char *) ngx_escape_json(b->last, message.data, message.len);
    b->last = ngx_cpymem(b->last, "\"}\n", sizeof("\"}\n") - 1);

    return ngx_http_ratelimit_service_send_json(r,
                            ngx_http_ratelimit_service_http_status(status), b);
}


static ngx_uint_t
ngx_http_ratelimit_service_http_status(ngx_http_ratelimit_grpc_e status)
{
    switch (status) {

    case NGX_HTTP_RATELIMIT_GRPC_INVALID:
        return NGX_HTTP_BAD_REQUEST;

    case NGX_HTTP_RATELIMIT_GRPC_EXHAUSTED:
        return NGX_HTTP_REQUEST_ENTITY_TOO_LARGE;

    default:
        return NGX_HTTP_SERVICE_UNAVAILABLE;
    }
}


static u_char *
ngx_http_ratelimit_service_frame(u_char *p, size_t len)
{
    *p++ = 0;
    *p++ = (u_char) (len >> 24);
    *p++ = (u_char) (len >> 16);
    *p++ = (u_char) (len >> 8);
    *p++ = (u_char) len;

    return p;
}


/* the status of gRPC follows as a trailer */

static ngx_int_t
ngx_http_ratelimit_service_send_grpc(ngx_http_request_t *r, ngx_buf_t *b)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.trailers);
    if (h == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    h->hash = 1;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif
    h->key = ngx_http_ratelimit_grpc_status;
    h->value = ngx_http_ratelimit_grpc_zero;

    r->expect_trailers = 1;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = -1;
    r->headers_out.content_type = ngx_http_ratelimit_grpc_type;
    r->headers_out.content_type_len = ngx_http_ratelimit_grpc_type.len;

    return ngx_http_ratelimit_service_output(r, b);
}


static ngx_int_t
ngx_http_ratelimit_service_send_json(ngx_http_request_t *r, ngx_uint_t status,
    ngx_buf_t *b)
{
    ngx_int_t  rc;

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    r->headers_out.status = status;
    r->headers_out.content_length_n = b->last - b->pos;
    r->headers_out.content_type = ngx_http_ratelimit_json_type;
    r->headers_out.content_type_len = ngx_http_ratelimit_json_type.len;

    return ngx_http_ratelimit_service_output(r, b);
}


static ngx_int_t
ngx_http_ratelimit_service_output(ngx_http_request_t *r, ngx_buf_t *b)
{
    ngx_int_t    rc;
    ngx_chain_t  out;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b->last_buf = (r == r->main);
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}
