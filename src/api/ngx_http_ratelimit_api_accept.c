
/*
 * What the client accepts.
 */


#include "api/ngx_http_ratelimit_api.h"


/* how closely a range of types fits: the last is the type itself */

typedef enum {
    NGX_HTTP_RATELIMIT_RANGE_NONE = 0,
    NGX_HTTP_RATELIMIT_RANGE_ALL,
    NGX_HTTP_RATELIMIT_RANGE_PART,
    NGX_HTTP_RATELIMIT_RANGE_TYPE
} ngx_http_ratelimit_range_e;


/* what is said of a type: the closest range counts, and its best quality */

typedef struct {
    ngx_str_t                       name;
    ngx_http_ratelimit_range_e      range;
    ngx_uint_t                      quality;  /* thousandths */
} ngx_http_ratelimit_type_t;


static void ngx_http_ratelimit_api_rank(ngx_http_request_t *r,
    ngx_http_ratelimit_type_t *type, const char *name);
static void ngx_http_ratelimit_api_rank_list(ngx_http_ratelimit_type_t *type,
    ngx_str_t *value);
static ngx_http_ratelimit_range_e ngx_http_ratelimit_api_range(
    ngx_str_t *name, ngx_str_t *range);
static ngx_str_t ngx_http_ratelimit_api_next_word(u_char **pos, u_char *last,
    u_char separator);
static ngx_uint_t ngx_http_ratelimit_api_quality(ngx_str_t *parameter,
    ngx_uint_t quality);


/* the type itself must be named: a program that accepts anything gets JSON */

ngx_uint_t
ngx_http_ratelimit_api_prefers(ngx_http_request_t *r, const char *name,
    const char *to)
{
    ngx_http_ratelimit_type_t  type, other;

    ngx_http_ratelimit_api_rank(r, &type, name);
    ngx_http_ratelimit_api_rank(r, &other, to);

    return type.range == NGX_HTTP_RATELIMIT_RANGE_TYPE
           && type.quality > 0
           && type.quality >= other.quality;
}


static void
ngx_http_ratelimit_api_rank(ngx_http_request_t *r,
    ngx_http_ratelimit_type_t *type, const char *name)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *field;

    type->name.data = (u_char *) name;
    type->name.len = ngx_strlen(name);
    type->range = NGX_HTTP_RATELIMIT_RANGE_NONE;
    type->quality = 0;

    for (part = &r->headers_in.headers.part; part != NULL; part = part->next) {
        field = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (field[i].key.len == sizeof("Accept") - 1
                && ngx_strncasecmp(field[i].key.data, (u_char *) "Accept",
                                   sizeof("Accept") - 1)
                   == 0)
            {
                ngx_http_ratelimit_api_rank_list(type, &field[i].value);
            }
        }
    }
}


/* a list of ranges, each with parameters: "a/b;q=0.5, c/d" */

static void
ngx_http_ratelimit_api_rank_list(ngx_http_ratelimit_type_t *type,
    ngx_str_t *value)
{
    u_char                      *p, *pos, *last, *end;
    ngx_str_t                    element, word;
    ngx_uint_t                   quality;
    ngx_http_ratelimit_range_e   range;

    p = value->data;
    last = p + value->len;

    while (p < last) {
        element = ngx_http_ratelimit_api_next_word(&p, last, ',');

        pos = element.data;
        end = pos + element.len;
        word = ngx_http_ratelimit_api_next_word(&pos, end, ';');
        range = ngx_http_ratelimit_api_range(&type->name, &word);

        if (range == NGX_HTTP_RATELIMIT_RANGE_NONE || range < type->range) {
            continue;
        }

        quality = 1000;

        while (pos < end) {
            word = ngx_http_ratelimit_api_next_word(&pos, end, ';');
            quality = ngx_http_ratelimit_api_quality(&word, quality);
        }

        type->quality = (range > type->range)
                        ? quality : ngx_max(quality, type->quality);
        type->range = range;
    }
}


static ngx_http_ratelimit_range_e
ngx_http_ratelimit_api_range(ngx_str_t *name, ngx_str_t *range)
{
    size_t  len;

    if (range->len == 3 && ngx_strncmp(range->data, "*/*", 3) == 0) {
        return NGX_HTTP_RATELIMIT_RANGE_ALL;
    }

    if (range->len == name->len
        && ngx_strncasecmp(range->data, name->data, name->len) == 0)
    {
        return NGX_HTTP_RATELIMIT_RANGE_TYPE;
    }

    len = (u_char *) ngx_strchr(name->data, '/') + 1 - name->data;

    return range->len == len + 1
           && ngx_strncasecmp(range->data, name->data, len) == 0
           && range->data[len] == '*'
           ? NGX_HTTP_RATELIMIT_RANGE_PART : NGX_HTTP_RATELIMIT_RANGE_NONE;
}


/* up to the separator, without blanks around it */

static ngx_str_t
ngx_http_ratelimit_api_next_word(u_char **pos, u_char *last, u_char separator)
{
    u_char     *p;
    ngx_str_t   word;

    p = *pos;

    while (p < last && (*p == ' ' || *p == '\t')) {
        p++;
    }

    word.data = p;

    while (p < last && *p != separator) {
        p++;
    }

    *pos = (p < last) ? p + 1 : p;

    while (p > word.data && (p[-1] == ' ' || p[-1] == '\t')) {
        p--;
    }

    word.len = p - word.data;

    return word;
}


/* "q=0", "q=0.25"; with anything else it is what it was */

static ngx_uint_t
ngx_http_ratelimit_api_quality(ngx_str_t *parameter, ngx_uint_t quality)
{
    ngx_int_t  n;

    if (parameter->len < sizeof("q=0") - 1
        || (parameter->data[0] != 'q' && parameter->data[0] != 'Q')
        || parameter->data[1] != '=')
    {
        return quality;
    }

    n = ngx_atofp(parameter->data + 2, parameter->len - 2, 3);

    return n == NGX_ERROR ? quality : (ngx_uint_t) ngx_min(n, 1000);
}
