
/*
 * The body of a response while it is written: a chain of buffers that grows.
 * After a failure to allocate memory nothing more is written, and "failed" is
 * set.
 */


#ifndef _NGX_HTTP_RATELIMIT_API_TEXT_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_API_TEXT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ratelimit_text.h"


typedef struct {
    ngx_pool_t                     *pool;
    ngx_chain_t                    *chain;
    ngx_chain_t                   **next;     /* where the chain goes on */
    ngx_buf_t                      *buf;      /* the last one */
    off_t                           size;     /* of all buffers before it */
    unsigned                        comma:1;  /* JSON: a value was written */
    unsigned                        failed:1;
} ngx_http_ratelimit_text_t;


void ngx_http_ratelimit_text_init(ngx_http_ratelimit_text_t *text,
    ngx_pool_t *pool);

/*
 * The text, which is not empty, as buffers, the last ones of a response or of
 * what a subrequest adds to one; NULL if it has failed.
 */
ngx_chain_t *ngx_http_ratelimit_text_finish(ngx_http_ratelimit_text_t *text,
    ngx_uint_t last);
off_t ngx_http_ratelimit_text_size(ngx_http_ratelimit_text_t *text);

void ngx_http_ratelimit_text_add(ngx_http_ratelimit_text_t *text,
    const void *data, size_t len);
void ngx_http_ratelimit_text_number(ngx_http_ratelimit_text_t *text,
    uint64_t number);

/* microseconds as seconds */
void ngx_http_ratelimit_text_seconds(ngx_http_ratelimit_text_t *text,
    uint64_t usec);


/*
 * Whether the value is shown as it is.  Bytes that are not UTF-8 are
 * percent-encoded, and text that looks as if it were.
 */
ngx_uint_t ngx_http_ratelimit_text_is_plain(ngx_str_t *value);


/*
 * JSON.  Commas are written where they are needed.  A string that is not plain
 * is percent-encoded.
 */
void ngx_http_ratelimit_json_open(ngx_http_ratelimit_text_t *text,
    u_char bracket);
void ngx_http_ratelimit_json_close(ngx_http_ratelimit_text_t *text,
    u_char bracket);
void ngx_http_ratelimit_json_name(ngx_http_ratelimit_text_t *text,
    const char *name);
void ngx_http_ratelimit_json_string(ngx_http_ratelimit_text_t *text,
    ngx_str_t *value);
void ngx_http_ratelimit_json_literal(ngx_http_ratelimit_text_t *text,
    const char *value);
void ngx_http_ratelimit_json_number(ngx_http_ratelimit_text_t *text,
    uint64_t value);
void ngx_http_ratelimit_json_seconds(ngx_http_ratelimit_text_t *text,
    uint64_t usec);


#endif /* _NGX_HTTP_RATELIMIT_API_TEXT_H_INCLUDED_ */
