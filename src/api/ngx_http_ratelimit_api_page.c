
/*
 * The page for people.  Its sources are in src/api/page; "embed" there makes
 * one document of them when the module is built.
 */


#include "api/ngx_http_ratelimit_api.h"
#include "api/ratelimit_page.h"


static ngx_keyval_t  ngx_http_ratelimit_page_fields[] = {
    { ngx_string("Content-Security-Policy"),
      ngx_string(ratelimit_page_policy) },
    { ngx_string("Referrer-Policy"), ngx_string("no-referrer") },
    { ngx_string("Vary"), ngx_string("Accept") },
    { ngx_null_string, ngx_null_string }
};


/* a browser says that it accepts HTML */

ngx_uint_t
ngx_http_ratelimit_api_wants_page(ngx_http_request_t *r)
{
    return ngx_http_ratelimit_api_prefers(r, "text/html", "application/json");
}


ngx_int_t
ngx_http_ratelimit_api_page(ngx_http_request_t *r)
{
    ngx_keyval_t               *field;
    ngx_http_ratelimit_text_t   text;

    for (field = ngx_http_ratelimit_page_fields; field->key.len; field++) {

        if (ngx_http_ratelimit_push_field(r, &field->key, &field->value)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    ngx_str_set(&r->headers_out.charset, "utf-8");

    ngx_http_ratelimit_text_init(&text, r->pool);
    ngx_http_ratelimit_text_add(&text, ratelimit_page,
                                sizeof(ratelimit_page) - 1);

    return ngx_http_ratelimit_api_send(r, NGX_HTTP_OK, "text/html", &text);
}
