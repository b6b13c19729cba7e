
/*
 * ratelimit zone=NAME [parameters];
 * ratelimit rules=DOMAIN descriptor=KEY:VALUE,... [parameters];
 * ratelimit off;
 *
 * The zone may be declared further down, so what depends on it is resolved
 * when http {} has been read (ngx_http_ratelimit_conf_resolve.c).
 */


#include "conf/ngx_http_ratelimit_conf.h"


#define NGX_HTTP_RATELIMIT_MAX_SOFT    1000    /* per cent */
#define NGX_HTTP_RATELIMIT_MAX_STATUS  599


static ngx_int_t ngx_http_ratelimit_limit_check_word(ngx_conf_t *cf);
static char *ngx_http_ratelimit_limit_check_rules(
    ngx_http_ratelimit_limit_t *limit);
static const char *ngx_http_ratelimit_limit_count(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static const char *ngx_http_ratelimit_parse_status(ngx_str_t *text,
    ngx_uint_t *status);
static const char *ngx_http_ratelimit_limit_descriptor(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static ngx_int_t ngx_http_ratelimit_limit_part(ngx_conf_t *cf, u_char **text,
    u_char *last, u_char separator, ngx_str_t *part);
static const char *ngx_http_ratelimit_limit_delay(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static const char *ngx_http_ratelimit_limit_nodelay(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static const char *ngx_http_ratelimit_limit_cost(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);
static char *ngx_http_ratelimit_limit_off(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *rlcf);
static ngx_http_ratelimit_set_t *ngx_http_ratelimit_create_set(
    ngx_conf_t *cf);


static ngx_conf_enum_t  ngx_http_ratelimit_rejected[] = {
    { ngx_string("count"), 1 },
    { ngx_null_string, 0 }
};


static ngx_http_ratelimit_param_t  ngx_http_ratelimit_limit_params[] = {

    { ngx_string("zone="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_limit_t, zone), 0, 0, 0, NULL },

    { ngx_string("rules="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_limit_t, domain_name), 0, 0, 0, NULL },

    { ngx_string("descriptor="), ngx_http_ratelimit_limit_descriptor,
      offsetof(ngx_http_ratelimit_limit_t, entries), 0, 0, 0, NULL },

    { ngx_string("key="), ngx_http_ratelimit_param_expr,
      offsetof(ngx_http_ratelimit_limit_t, key), 0, 0, 0, NULL },

    { ngx_string("rate="), ngx_http_ratelimit_param_rate,
      offsetof(ngx_http_ratelimit_limit_t, rates), 0, 0, 1, NULL },

    { ngx_string("name="), ngx_http_ratelimit_param_name,
      offsetof(ngx_http_ratelimit_limit_t, use.name), 0, 0, 0, NULL },

    { ngx_string("soft="), ngx_http_ratelimit_param_percent,
      offsetof(ngx_http_ratelimit_limit_t, soft),
      1, NGX_HTTP_RATELIMIT_MAX_SOFT, 0, NULL },

    { ngx_string("elastic="), ngx_http_ratelimit_param_percent,
      offsetof(ngx_http_ratelimit_limit_t, elastic),
      1, NGX_HTTP_RATELIMIT_MAX_SOFT, 0, NULL },

    { ngx_string("burst="), ngx_http_ratelimit_param_number,
      offsetof(ngx_http_ratelimit_limit_t, burst),
      1, RATELIMIT_MAX_LIMIT - 1, 0, NULL },

    { ngx_string("delay="), ngx_http_ratelimit_limit_delay,
      0, 0, 0, 0, NULL },

    { ngx_string("nodelay"), ngx_http_ratelimit_limit_nodelay,
      0, 0, 0, 0, NULL },

    { ngx_string("cost="), ngx_http_ratelimit_limit_cost,
      offsetof(ngx_http_ratelimit_limit_t, cost),
      0, RATELIMIT_MAX_LIMIT, 0, NULL },

    { ngx_string("settle="), ngx_http_ratelimit_limit_cost,
      offsetof(ngx_http_ratelimit_limit_t, settle),
      0, RATELIMIT_MAX_LIMIT, 0, NULL },

    { ngx_string("if="), ngx_http_ratelimit_param_expr,
      offsetof(ngx_http_ratelimit_limit_t, filter), 0, 0, 0, NULL },

    { ngx_string("count="), ngx_http_ratelimit_limit_count,
      offsetof(ngx_http_ratelimit_limit_t, statuses), 0, 0, 0, NULL },

    { ngx_string("rejected="), ngx_http_ratelimit_param_enum,
      offsetof(ngx_http_ratelimit_limit_t, use.count_rejected), 0, 0, 0,
      &ngx_http_ratelimit_rejected },

    { ngx_string("after_auth"), ngx_http_ratelimit_param_flag,
      offsetof(ngx_http_ratelimit_limit_t, stage),
      0, NGX_HTTP_RATELIMIT_AFTER_AUTH, 0, NULL },

      ngx_http_ratelimit_null_param
};


char *
ngx_http_ratelimit(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_loc_conf_t  *rlcf = conf;

    ngx_str_t                   *value;
    ngx_http_ratelimit_limit_t  *limit;

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        return ngx_http_ratelimit_limit_off(cf, rlcf);
    }

    if (rlcf->set == NULL) {
        return "conflicts with \"ratelimit off\" of the same block";
    }

    if (rlcf->set == NGX_CONF_UNSET_PTR) {
        rlcf->set = ngx_http_ratelimit_create_set(cf);
        if (rlcf->set == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    limit = ngx_array_push(&rlcf->set->limits);
    if (limit == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(limit, sizeof(ngx_http_ratelimit_limit_t));

    limit->origin = *cf->conf_file;
    limit->stage = NGX_HTTP_RATELIMIT_BEFORE_AUTH;

    if (ngx_http_ratelimit_limit_check_word(cf) != NGX_OK
        || ngx_http_ratelimit_params(cf, 1, ngx_http_ratelimit_limit_params,
                                     limit)
           != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (limit->domain_name.len || limit->entries != NULL) {
        return ngx_http_ratelimit_limit_check_rules(limit);
    }

    if (limit->zone.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must have \"zone\" parameter", &cmd->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* the key and what is allowed are those of the rule file */

static char *
ngx_http_ratelimit_limit_check_rules(ngx_http_ratelimit_limit_t *limit)
{
    if (limit->domain_name.len == 0) {
        return "must have \"rules\" parameter beside \"descriptor\"";
    }

    if (limit->entries == NULL) {
        return "must have \"descriptor\" parameter beside \"rules\"";
    }

    if (limit->zone.len || limit->key.value != NULL || limit->use.name.len
        || limit->rates.list.nelts || limit->rates.variable != NULL)
    {
        return "must not have \"zone\", \"key\", \"rate\" or \"name\" "
               "parameters beside \"rules\"";
    }

    if (limit->soft || limit->elastic || limit->burst || limit->delay.len
        || limit->free)
    {
        return "must not have \"soft\", \"elastic\", \"burst\", \"delay\" or "
               "\"nodelay\" parameters beside \"rules\"";
    }

    return NGX_CONF_OK;
}


/* "ratelimit ip", and "ratelimit off" with more behind it */

static ngx_int_t
ngx_http_ratelimit_limit_check_word(ngx_conf_t *cf)
{
    ngx_str_t  *args;

    args = cf->args->elts;

    if (args[1].len == 0
        || ngx_strchr(args[1].data, '=') != NULL
        || ngx_http_ratelimit_is_url(&args[1])
        || ngx_http_ratelimit_find_param(ngx_http_ratelimit_limit_params,
                                         &args[1])
           != NULL)
    {
        return NGX_OK;
    }

    if (ngx_strcmp(args[1].data, "off") == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"%V\" directive: "
                           "must be the only one", &args[1], &args[0]);

    } else {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"%V\" directive: "
                           "must be \"zone=%V\" or \"off\"",
                           &args[1], &args[0], &args[1]);
    }

    return NGX_ERROR;
}


/* count=401,403,5xx */

static const char *
ngx_http_ratelimit_limit_count(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_array_t  **statuses = field;

    u_char      *p, *last;
    ngx_str_t    text;
    ngx_uint_t  *status;
    const char  *reason;

    *statuses = ngx_array_create(cf->pool, 4, sizeof(ngx_uint_t));
    if (*statuses == NULL) {
        return NGX_CONF_ERROR;
    }

    p = value->data;
    last = p + value->len;

    for ( ;; ) {
        text.data = p;

        while (p < last && *p != ',') {
            p++;
        }

        text.len = p - text.data;

        status = ngx_array_push(*statuses);
        if (status == NULL) {
            return NGX_CONF_ERROR;
        }

        reason = ngx_http_ratelimit_parse_status(&text, status);

        if (reason != NULL || p == last) {
            return reason;
        }

        p++;
    }
}


static const char *
ngx_http_ratelimit_parse_status(ngx_str_t *text, ngx_uint_t *status)
{
    ngx_int_t  n;

    if (text->len == 3 && ngx_strncmp(text->data + 1, "xx", 2) == 0
        && (text->data[0] == '4' || text->data[0] == '5'))
    {
        *status = text->data[0] - '0';
        return NULL;
    }

    n = ngx_atoi(text->data, text->len);

    if (text->len != 3 || n < NGX_HTTP_OK
        || n > NGX_HTTP_RATELIMIT_MAX_STATUS)
    {
        return "must be statuses from 200 to 599, 4xx or 5xx, "
               "separated by commas";
    }

    *status = n;

    return NULL;
}


/* descriptor=KEY:VALUE,KEY:VALUE; a backslash takes a byte as it is */

static const char *
ngx_http_ratelimit_limit_descriptor(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_array_t  **entries = field;

    u_char                      *p, *last;
    ngx_str_t                    text;
    const char                  *reason;
    ngx_http_ratelimit_entry_t  *entry;

    *entries = ngx_array_create(cf->pool, 2,
                                sizeof(ngx_http_ratelimit_entry_t));
    if (*entries == NULL) {
        return NGX_CONF_ERROR;
    }

    p = value->data;
    last = p + value->len;

    do {
        entry = ngx_array_push(*entries);
        if (entry == NULL) {
            return NGX_CONF_ERROR;
        }

        ngx_memzero(entry, sizeof(ngx_http_ratelimit_entry_t));

        if (ngx_http_ratelimit_limit_part(cf, &p, last, ':', &entry->key)
            != NGX_OK
            || ngx_http_ratelimit_limit_part(cf, &p, last, ',', &text)
               != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }

        if (entry->key.len == 0 || text.len == 0) {
            return "must be \"KEY:VALUE,KEY:VALUE...\"";
        }

        reason = ngx_http_ratelimit_param_expr(cf, param, &text,
                                               &entry->value);
        if (reason != NULL) {
            return reason;
        }

    } while (p <= last);

    return NULL;
}


/* what is before the separator, or the end; the text goes on behind it */

static ngx_int_t
ngx_http_ratelimit_limit_part(ngx_conf_t *cf, u_char **text, u_char *last,
    u_char separator, ngx_str_t *part)
{
    u_char  *p, *to;

    /* with a zero at its end, as an expression has */

    to = ngx_pnalloc(cf->pool, ngx_max(last - *text, 0) + 1);
    if (to == NULL) {
        return NGX_ERROR;
    }

    part->data = to;

    for (p = *text; p < last && *p != separator && *p != ','; p++) {
        if (*p == '\\' && p + 1 < last) {
            p++;
        }

        *to++ = *p;
    }

    *to = '\0';
    part->len = (p < last && *p != separator) ? 0 : to - part->data;
    *text = p + 1;

    return NGX_OK;
}


/* of delay= and nodelay the last one applies, as in limit_req */

static const char *
ngx_http_ratelimit_limit_delay(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_http_ratelimit_limit_t  *limit = field;

    limit->free = 0;

    return ngx_http_ratelimit_param_name(cf, param, value, &limit->delay);
}


static const char *
ngx_http_ratelimit_limit_nodelay(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    ngx_http_ratelimit_limit_t  *limit = field;

    limit->free = RATELIMIT_NODELAY;
    limit->delay.len = 0;

    return NULL;
}


/* a cost without variables is checked at once */

static const char *
ngx_http_ratelimit_limit_cost(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field)
{
    uint64_t     number;
    const char  *reason;

    if (ngx_strlchr(value->data, value->data + value->len, '$') == NULL) {
        reason = ngx_http_ratelimit_param_number(cf, param, value, &number);

        if (reason != NULL) {
            return reason;
        }
    }

    return ngx_http_ratelimit_param_expr(cf, param, value, field);
}


static char *
ngx_http_ratelimit_limit_off(ngx_conf_t *cf,
    ngx_http_ratelimit_loc_conf_t *rlcf)
{
    if (rlcf->set == NULL) {
        return "is duplicate";
    }

    if (rlcf->set != NGX_CONF_UNSET_PTR) {
        return "\"off\" conflicts with other \"ratelimit\" directives of "
               "the same block";
    }

    rlcf->set = NULL;

    return NGX_CONF_OK;
}


static ngx_http_ratelimit_set_t *
ngx_http_ratelimit_create_set(ngx_conf_t *cf)
{
    ngx_http_core_loc_conf_t         *clcf;
    ngx_http_ratelimit_set_t        **setp, *set;
    ngx_http_ratelimit_main_conf_t   *rmcf;

    set = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_set_t));
    if (set == NULL) {
        return NULL;
    }

    if (ngx_array_init(&set->limits, cf->pool, 2,
                       sizeof(ngx_http_ratelimit_limit_t))
        != NGX_OK)
    {
        return NULL;
    }

    if (cf->cmd_type == NGX_HTTP_LOC_CONF) {
        clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
        set->name = clcf->name;

    } else if (cf->cmd_type == NGX_HTTP_SRV_CONF) {
        set->server = ngx_http_conf_get_module_srv_conf(cf,
                                                        ngx_http_core_module);

    } else {
        ngx_str_set(&set->name, "http");
    }

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    setp = ngx_array_push(&rmcf->sets);
    if (setp == NULL) {
        return NULL;
    }

    *setp = set;

    return set;
}
