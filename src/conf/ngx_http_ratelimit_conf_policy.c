
/*
 * What is shown of a limit, made once: for clients its name as a string, both
 * of structured fields (RFC 8941) and of JSON, and its policy; for the log its
 * label.
 */


#include "conf/ngx_http_ratelimit_conf.h"


/*
 * Bytes that are not printable ASCII are percent-encoded, so that the string is
 * the same one in fields and in JSON.
 */

ngx_int_t
ngx_http_ratelimit_make_quoted_name(ngx_pool_t *pool, ngx_str_t *name,
    ngx_str_t *quoted)
{
    u_char      *p, ch;
    ngx_uint_t   i;

    p = ngx_pnalloc(pool, sizeof("\"\"") - 1 + name->len * 3);
    if (p == NULL) {
        return NGX_ERROR;
    }

    quoted->data = p;
    *p++ = '"';

    for (i = 0; i < name->len; i++) {
        ch = name->data[i];

        if (ch < 0x20 || ch > 0x7e) {
            p = ngx_sprintf(p, "%%%02Xd", (u_int) ch);
            continue;
        }

        if (ch == '"' || ch == '\\') {
            *p++ = '\\';
        }

        *p++ = ch;
    }

    *p++ = '"';
    quoted->len = p - quoted->data;

    return NGX_OK;
}


/* q is what may be used at once, w the time in which it is whole again */

ngx_int_t
ngx_http_ratelimit_make_policy(ngx_pool_t *pool,
    ngx_http_ratelimit_rules_t *rules)
{
    u_char            *p;
    size_t             len;
    uint64_t           window;
    ngx_uint_t         i;
    ratelimit_rule_t  *rule;

    len = rules->quoted_name.len + sizeof(", ;q=;w=") - 1 + 2 * NGX_INT64_LEN;

    p = ngx_pnalloc(pool, rules->nrules * len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    rules->policy.data = p;
    rule = rules->rules;

    for (i = 0; i < rules->nrules; i++) {
        window = (rule[i].capacity == rule[i].limit || rule[i].capacity == 0)
                 ? rule[i].period
                 : rule[i].capacity * rule[i].period / rule[i].limit;

        p = ngx_sprintf(p, "%s%V;q=%uL;w=%uL", i ? ", " : "",
                        &rules->quoted_name, rule[i].capacity,
                        ngx_http_ratelimit_seconds(window));
    }

    rules->policy.len = p - rules->policy.data;

    return NGX_OK;
}


/* ZONE:NAME, or ZONE if the limit has no name of its own */

ngx_int_t
ngx_http_ratelimit_make_label(ngx_pool_t *pool, ngx_http_ratelimit_use_t *use)
{
    ngx_str_t  *label;

    label = &use->label;
    *label = use->zone->name;

    if (use->name.len == 0) {
        return NGX_OK;
    }

    label->len = use->zone->name.len + 1 + use->name.len;
    label->data = ngx_pnalloc(pool, label->len);
    if (label->data == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(label->data, "%V:%V", &use->zone->name, &use->name);

    return NGX_OK;
}
