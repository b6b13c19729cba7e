
/*
 * What the client accepts.
 */


#include "api/ngx_http_ratelimit_api.h"


static ngx_uint_t ngx_http_ratelimit_api_lists(ngx_str_t *value,
    ngx_str_t *type);
static ngx_str_t ngx_http_ratelimit_api_next_word(u_char **pos, u_char *last,
    u_char separator);
static ngx_uint_t ngx_http_ratelimit_api_is_zero(ngx_str_t *parameter);


/* the type itself must be named: a program that accepts anything gets JSON */

ngx_uint_t
ngx_http_ratelimit_api_accepts(ngx_http_request_t *r, const char *type)
{
    ngx_str_t         name;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *field;

    name.data = (u_char *) type;
    name.len = ngx_strlen(type);

    for (part = &r->headers_in.headers.part; part != NULL; part = part->next) {
        field = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (field[i].key.len == sizeof("Accept") - 1
                && ngx_strncasecmp(field[i].key.data, (u_char *) "Accept",
                                   sizeof("Accept") - 1)
                   == 0
                && ngx_http_ratelimit_api_lists(&field[i].value, &name))
            {
                return 1;
            }
        }
    }

    return 0;
}


/* a list of types, each with parameters: "a/b;q=0.5, c/d" */

static ngx_uint_t
ngx_http_ratelimit_api_lists(ngx_str_t *value, ngx_str_t *type)
{
    u_char      *p, *pos, *last;
    ngx_str_t    element, word;
    ngx_uint_t   wanted;

    p = value->data;
    last = p + value->len;

    while (p < last) {
        element = ngx_http_ratelimit_api_next_word(&p, last, ',');

        pos = element.data;
        word = ngx_http_ratelimit_api_next_word(&pos,
                                                element.data + element.len,
                                                ';');

        wanted = (word.len == type->len
                  && ngx_strncasecmp(word.data, type->data, type->len) == 0);

        while (wanted && pos < element.data + element.len) {
            word = ngx_http_ratelimit_api_next_word(&pos,
                                                    element.data + element.len,
                                                    ';');

            wanted = !ngx_http_ratelimit_api_is_zero(&word);
        }

        if (wanted) {
            return 1;
        }
    }

    return 0;
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


/* "q=0", "q=0.000": not acceptable */

static ngx_uint_t
ngx_http_ratelimit_api_is_zero(ngx_str_t *parameter)
{
    size_t  i;

    if (parameter->len < sizeof("q=0") - 1
        || (parameter->data[0] != 'q' && parameter->data[0] != 'Q')
        || parameter->data[1] != '=')
    {
        return 0;
    }

    for (i = 2; i < parameter->len; i++) {

        if (parameter->data[i] != '0' && parameter->data[i] != '.') {
            return 0;
        }
    }

    return 1;
}
