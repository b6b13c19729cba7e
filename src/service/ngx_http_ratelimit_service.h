
/*
 * "ratelimit_service": a location that answers other services, by gRPC or by
 * JSON.
 */


#ifndef _NGX_HTTP_RATELIMIT_SERVICE_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_SERVICE_H_INCLUDED_


#include "http/ngx_http_ratelimit_ctx.h"
#include "service/ratelimit_call.h"


/* bytes of the frame around a message of gRPC */
#define NGX_HTTP_RATELIMIT_FRAME  5


/* statuses of gRPC */

typedef enum {
    NGX_HTTP_RATELIMIT_GRPC_OK = 0,
    NGX_HTTP_RATELIMIT_GRPC_INVALID = 3,
    NGX_HTTP_RATELIMIT_GRPC_DEADLINE = 4,
    NGX_HTTP_RATELIMIT_GRPC_NOT_FOUND = 5,
    NGX_HTTP_RATELIMIT_GRPC_EXHAUSTED = 8,
    NGX_HTTP_RATELIMIT_GRPC_UNIMPLEMENTED = 12,
    NGX_HTTP_RATELIMIT_GRPC_INTERNAL = 13,
    NGX_HTTP_RATELIMIT_GRPC_UNAVAILABLE = 14
} ngx_http_ratelimit_grpc_e;


/* what is known of a call while it is decided */

typedef struct {
    ngx_http_ratelimit_ctx_t       *ctx;      /* of the decision; it is not
                                                 that of the request, which may
                                                 have limits of its own */
    ngx_http_ratelimit_match_t     *matches;  /* of all descriptors */
    ratelimit_call_t                call;
    ngx_str_t                       message;
    ngx_event_t                     timer;    /* if waiting and timed */
    ngx_msec_t                      timeout;
    unsigned                        grpc:1;
    unsigned                        timed:1;  /* there is a timeout */
    unsigned                        waiting:1;  /* for a store */
} ngx_http_ratelimit_call_t;


/* ngx_http_ratelimit_service.c */

char *ngx_http_ratelimit_set_service(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
void ngx_http_ratelimit_service_init(ngx_http_ratelimit_main_conf_t *rmcf);


/* ngx_http_ratelimit_service_call.c */

/*
 * Decodes and decides.  Returns what finalizes the request, or NGX_AGAIN: then
 * it is finalized later.
 */
ngx_int_t ngx_http_ratelimit_service_call(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call);


/* ngx_http_ratelimit_service_send.c: each returns what finalizes the request */

ngx_int_t ngx_http_ratelimit_service_send(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, ratelimit_answer_t *answer);
ngx_int_t ngx_http_ratelimit_service_send_health(ngx_http_request_t *r,
    ngx_uint_t serving);

/* the reason is a text without quotes */
ngx_int_t ngx_http_ratelimit_service_fail(ngx_http_request_t *r,
    ngx_http_ratelimit_call_t *call, ngx_http_ratelimit_grpc_e status,
    const char *reason);


#endif /* _NGX_HTTP_RATELIMIT_SERVICE_H_INCLUDED_ */
