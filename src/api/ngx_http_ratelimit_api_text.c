
/*
 * Text and JSON in buffers.
 */


#include "api/ngx_http_ratelimit_api_text.h"


#define NGX_HTTP_RATELIMIT_TEXT_SIZE  8192


static u_char *ngx_http_ratelimit_text_room(ngx_http_ratelimit_text_t *text,
    size_t len);
static void ngx_http_ratelimit_text_encoded(ngx_http_ratelimit_text_t *text,
    ngx_str_t *bytes);
static void ngx_http_ratelimit_json_value(ngx_http_ratelimit_text_t *text);
static void ngx_http_ratelimit_json_escape(ngx_http_ratelimit_text_t *text,
    ngx_str_t *value);


void
ngx_http_ratelimit_text_init(ngx_http_ratelimit_text_t *text, ngx_pool_t *pool)
{
    ngx_memzero(text, sizeof(ngx_http_ratelimit_text_t));

    text->pool = pool;
    text->next = &text->chain;
}


/* a place for so many bytes, which the caller writes at once; or NULL */

static u_char *
ngx_http_ratelimit_text_room(ngx_http_ratelimit_text_t *text, size_t len)
{
    ngx_chain_t  *link;

    if (text->buf != NULL && (size_t) (text->buf->end - text->buf->last) >= len)
    {
        return text->buf->last;
    }

    if (text->failed) {
        return NULL;
    }

    if (text->buf != NULL) {
        text->size += text->buf->last - text->buf->pos;
    }

    link = ngx_alloc_chain_link(text->pool);

    text->buf = (link != NULL)
                ? ngx_create_temp_buf(text->pool,
                              ngx_max(len, NGX_HTTP_RATELIMIT_TEXT_SIZE))
                : NULL;

    if (text->buf == NULL) {
        text->failed = 1;
        return NULL;
    }

    link->buf = text->buf;
    link->next = NULL;

    *text->next = link;
    text->next = &link->next;

    return text->buf->last;
}


off_t
ngx_http_ratelimit_text_size(ngx_http_ratelimit_text_t *text)
{
    return text->size + (text->buf != NULL ? text->buf->last - text->buf->pos
                                           : 0);
}


ngx_chain_t *
ngx_http_ratelimit_text_finish(ngx_http_ratelimit_text_t *text,
    ngx_uint_t last)
{
    if (text->failed || text->buf == NULL) {
        return NULL;
    }

    text->buf->last_buf = last;
    text->buf->last_in_chain = 1;

    return text->chain;
}


void
ngx_http_ratelimit_text_add(ngx_http_ratelimit_text_t *text, const void *data,
    size_t len)
{
    u_char  *p;

    p = ngx_http_ratelimit_text_room(text, len);

    if (p != NULL) {
        text->buf->last = ngx_cpymem(p, data, len);
    }
}


void
ngx_http_ratelimit_text_number(ngx_http_ratelimit_text_t *text,
    uint64_t number)
{
    u_char  *p;

    p = ngx_http_ratelimit_text_room(text, RATELIMIT_NUMBER_LEN);

    if (p != NULL) {
        text->buf->last = ratelimit_write_number(p, number);
    }
}


void
ngx_http_ratelimit_text_seconds(ngx_http_ratelimit_text_t *text, uint64_t usec)
{
    u_char  *p, fraction[sizeof(".000000") - 1];

    ngx_http_ratelimit_text_number(text, usec / 1000000);

    if (usec % 1000000) {
        p = ngx_sprintf(fraction, ".%06uL", usec % 1000000);
        ngx_http_ratelimit_text_add(text, fraction, p - fraction);
    }
}


/* so that "%E9" is always a byte, and never four characters */

ngx_uint_t
ngx_http_ratelimit_text_is_plain(ngx_str_t *value)
{
    size_t  i;

    for (i = 0; i + 2 < value->len; i++) {
        if (value->data[i] == '%' && ngx_hextoi(&value->data[i + 1], 2) >= 0) {
            return 0;
        }
    }

    return ratelimit_is_utf8(value->data, value->len);
}


/* those that need it as %XX */

static void
ngx_http_ratelimit_text_encoded(ngx_http_ratelimit_text_t *text,
    ngx_str_t *bytes)
{
    u_char  *p;

    p = ngx_http_ratelimit_text_room(text, 3 * bytes->len);

    if (p != NULL) {
        text->buf->last = (u_char *) ngx_escape_uri(p, bytes->data, bytes->len,
                                                 NGX_ESCAPE_URI_COMPONENT);
    }
}


void
ngx_http_ratelimit_json_open(ngx_http_ratelimit_text_t *text, u_char bracket)
{
    ngx_http_ratelimit_json_value(text);
    ngx_http_ratelimit_text_add(text, &bracket, 1);
    text->comma = 0;
}


void
ngx_http_ratelimit_json_close(ngx_http_ratelimit_text_t *text, u_char bracket)
{
    ngx_http_ratelimit_text_add(text, &bracket, 1);
    text->comma = 1;
}


/* a value follows, or a name */

static void
ngx_http_ratelimit_json_value(ngx_http_ratelimit_text_t *text)
{
    if (text->comma) {
        ngx_http_ratelimit_text_add(text, ",", 1);
    }

    text->comma = 1;
}


void
ngx_http_ratelimit_json_name(ngx_http_ratelimit_text_t *text, const char *name)
{
    ngx_http_ratelimit_json_value(text);
    ngx_http_ratelimit_text_add(text, "\"", 1);
    ngx_http_ratelimit_text_add(text, name, ngx_strlen(name));
    ngx_http_ratelimit_text_add(text, "\":", 2);
    text->comma = 0;
}


void
ngx_http_ratelimit_json_string(ngx_http_ratelimit_text_t *text,
    ngx_str_t *value)
{
    ngx_http_ratelimit_json_value(text);
    ngx_http_ratelimit_text_add(text, "\"", 1);

    if (ngx_http_ratelimit_text_is_plain(value)) {
        ngx_http_ratelimit_json_escape(text, value);

    } else {
        ngx_http_ratelimit_text_encoded(text, value);
    }

    ngx_http_ratelimit_text_add(text, "\"", 1);
}


static void
ngx_http_ratelimit_json_escape(ngx_http_ratelimit_text_t *text,
    ngx_str_t *value)
{
    u_char  *p;
    size_t   escaped;

    escaped = ngx_escape_json(NULL, value->data, value->len);

    p = ngx_http_ratelimit_text_room(text, value->len + escaped);

    if (p != NULL) {
        text->buf->last = (u_char *) ngx_escape_json(p, value->data,
                                                     value->len);
    }
}


void
ngx_http_ratelimit_json_literal(ngx_http_ratelimit_text_t *text,
    const char *value)
{
    ngx_http_ratelimit_json_value(text);
    ngx_http_ratelimit_text_add(text, value, ngx_strlen(value));
}


void
ngx_http_ratelimit_json_number(ngx_http_ratelimit_text_t *text, uint64_t value)
{
    ngx_http_ratelimit_json_value(text);
    ngx_http_ratelimit_text_number(text, value);
}


void
ngx_http_ratelimit_json_seconds(ngx_http_ratelimit_text_t *text, uint64_t usec)
{
    ngx_http_ratelimit_json_value(text);
    ngx_http_ratelimit_text_seconds(text, usec);
}
