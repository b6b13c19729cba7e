
/*
 * The name of a limit as its clients read it, made once: a string of
 * structured fields (RFC 8941), and a string of JSON.
 */


#include "conf/ngx_http_ratelimit_conf.h"


static ngx_int_t ngx_http_ratelimit_make_label(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *label);
static ngx_int_t ngx_http_ratelimit_make_json(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *json);


ngx_int_t
ngx_http_ratelimit_make_labels(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit)
{
    ngx_str_t  *name;

    name = limit->use.name.len ? &limit->use.name : &limit->use.zone->name;

    if (ngx_http_ratelimit_make_label(cf, name, &limit->label) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_make_json(cf, name, &limit->json) != NGX_OK) {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* a string has printable ASCII only, so anything else is percent-encoded */

static ngx_int_t
ngx_http_ratelimit_make_label(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *label)
{
    u_char      *p, ch;
    ngx_uint_t   i;

    p = ngx_pnalloc(cf->pool, sizeof("\"\"") - 1 + name->len * 3);
    if (p == NULL) {
        return NGX_ERROR;
    }

    label->data = p;
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
    label->len = p - label->data;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_make_policy(ngx_pool_t *pool,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_plan_t *plan)
{
    u_char            *p;
    size_t             len;
    ngx_uint_t         i;
    ratelimit_rule_t  *rule;

    len = limit->label.len + sizeof(", ;q=;w=") - 1 + 2 * NGX_INT64_LEN;

    p = ngx_pnalloc(pool, plan->nrules * len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    plan->policy.data = p;
    rule = plan->rules;

    for (i = 0; i < plan->nrules; i++) {
        p = ngx_sprintf(p, "%s%V;q=%uL;w=%uL", i ? ", " : "", &limit->label,
                        rule[i].limit, rule[i].period / RATELIMIT_SECOND);
    }

    plan->policy.len = p - plan->policy.data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_make_json(ngx_conf_t *cf, ngx_str_t *name, ngx_str_t *json)
{
    u_char  *p;
    size_t   len;

    len = name->len + ngx_escape_json(NULL, name->data, name->len);

    p = ngx_pnalloc(cf->pool, sizeof("\"\"") - 1 + len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    json->data = p;

    *p++ = '"';
    p = (u_char *) ngx_escape_json(p, name->data, name->len);
    *p++ = '"';

    json->len = p - json->data;

    return NGX_OK;
}
