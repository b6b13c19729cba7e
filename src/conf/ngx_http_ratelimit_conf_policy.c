
/*
 * What clients are shown of a limit, made once: its name as a string of
 * structured fields (RFC 8941) and of JSON, and its policy.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static ngx_int_t ngx_http_ratelimit_make_sf_name(ngx_conf_t *cf,
    ngx_str_t *name, ngx_str_t *sf_name);
static ngx_int_t ngx_http_ratelimit_make_json_name(ngx_conf_t *cf,
    ngx_str_t *name, ngx_str_t *json_name);


ngx_int_t
ngx_http_ratelimit_make_names(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_str_t  *name;

    name = limit->use.name.len ? &limit->use.name : &limit->use.zone->name;

    if (ngx_http_ratelimit_make_sf_name(cf, name, &limit->sf_name) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_make_json_name(cf, name, &limit->json_name);
}


/* such a string has printable ASCII only, other bytes are percent-encoded */

static ngx_int_t
ngx_http_ratelimit_make_sf_name(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *sf_name)
{
    u_char      *p, ch;
    ngx_uint_t   i;

    p = ngx_pnalloc(cf->pool, sizeof("\"\"") - 1 + name->len * 3);
    if (p == NULL) {
        return NGX_ERROR;
    }

    sf_name->data = p;
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
    sf_name->len = p - sf_name->data;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_make_policy(ngx_pool_t *pool,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_rules_t *rules)
{
    u_char            *p;
    size_t             len;
    ngx_uint_t         i;
    ratelimit_rule_t  *rule;

    len = limit->sf_name.len + sizeof(", ;q=;w=") - 1 + 2 * NGX_INT64_LEN;

    p = ngx_pnalloc(pool, rules->nrules * len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    rules->policy.data = p;
    rule = rules->rules;

    for (i = 0; i < rules->nrules; i++) {
        p = ngx_sprintf(p, "%s%V;q=%uL;w=%uL", i ? ", " : "", &limit->sf_name,
                        rule[i].limit, rule[i].period / RATELIMIT_SECOND);
    }

    rules->policy.len = p - rules->policy.data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_make_json_name(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *json_name)
{
    u_char  *p;
    size_t   len;

    len = name->len + ngx_escape_json(NULL, name->data, name->len);

    p = ngx_pnalloc(cf->pool, sizeof("\"\"") - 1 + len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    json_name->data = p;

    *p++ = '"';
    p = (u_char *) ngx_escape_json(p, name->data, name->len);
    *p++ = '"';

    json_name->len = p - json_name->data;

    return NGX_OK;
}
