
/*
 * ratelimit_rules FILE... zone=NAME:SIZE [parameters];
 *
 * Files are loaded where the directive stands, so that what is wrong with one
 * stops nginx there.  Their limits become limits of the zone when http {} has
 * been read.
 */


#include "conf/ngx_http_ratelimit_conf.h"


#if (NGX_HTTP_RATELIMIT_YAML)

static ngx_int_t ngx_http_ratelimit_domain_load_files(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *pattern);
static ngx_int_t ngx_http_ratelimit_domain_load_file(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *name);
static ngx_int_t ngx_http_ratelimit_domain_read(ngx_conf_t *cf,
    ngx_str_t *name, ngx_str_t *text);
static void ngx_http_ratelimit_domain_warn(void *data,
    const ratelimit_text_t *file, const ratelimit_domain_error_t *warning);
static void *ngx_http_ratelimit_domain_alloc(void *pool, size_t size);

#endif

static ngx_int_t ngx_http_ratelimit_domain_allow_calls(ngx_conf_t *cf,
    ratelimit_descriptor_t *d);
static uint64_t ngx_http_ratelimit_domain_most(ratelimit_descriptor_t *d);
static ngx_int_t ngx_http_ratelimit_resolve_descriptor(ngx_conf_t *cf,
    ratelimit_descriptor_t *d, ngx_http_ratelimit_domain_t *domain);
static ngx_int_t ngx_http_ratelimit_check_names(ngx_conf_t *cf,
    ratelimit_domains_t *domains);
static int ngx_libc_cdecl ngx_http_ratelimit_compare_paths(const void *one,
    const void *two);
static void ngx_http_ratelimit_domain_error(ngx_conf_t *cf,
    const ratelimit_descriptor_t *d, const char *reason);


#if (NGX_HTTP_RATELIMIT_YAML)

char *
ngx_http_ratelimit_set_rules(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_ratelimit_main_conf_t  *rmcf = conf;

    ngx_str_t                  *args;
    ngx_uint_t                  i, first;
    ngx_http_ratelimit_zone_t  *zone;

    args = cf->args->elts;

    for (first = 1; first < cf->args->nelts; first++) {
        if (ngx_http_ratelimit_is_zone_param(&args[first])) {
            break;
        }
    }

    if (first == 1) {
        return "must have a file before its parameters";
    }

    zone = ngx_http_ratelimit_zone_create(cf, first, NULL);
    if (zone == NULL) {
        return NGX_CONF_ERROR;
    }

    if (rmcf->domains.alloc == NULL) {
        ratelimit_domains_init(&rmcf->domains, ngx_http_ratelimit_domain_alloc,
                               cf->pool);
    }

    for (i = 1; i < first; i++) {
        if (ngx_http_ratelimit_domain_load_files(cf, zone, &args[i])
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* as "include" finds them */

static ngx_int_t
ngx_http_ratelimit_domain_load_files(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *pattern)
{
    ngx_int_t   rc;
    ngx_str_t   name, file;
    ngx_glob_t  gl;
    ngx_uint_t  n;

    if (ngx_conf_full_name(cf->cycle, pattern, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    if (strpbrk((char *) pattern->data, "*?[") == NULL) {
        return ngx_http_ratelimit_domain_load_file(cf, zone, pattern);
    }

    ngx_memzero(&gl, sizeof(ngx_glob_t));

    gl.pattern = pattern->data;
    gl.log = cf->log;
    gl.test = 1;

    if (ngx_open_glob(&gl) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_glob_n " \"%s\" failed", pattern->data);
        return NGX_ERROR;
    }

    rc = NGX_OK;

    for (n = 0; rc == NGX_OK && ngx_read_glob(&gl, &name) == NGX_OK; n++) {

        /* with the zero at its end */

        file.len = name.len++;
        file.data = ngx_pstrdup(cf->pool, &name);

        rc = (file.data != NULL)
             ? ngx_http_ratelimit_domain_load_file(cf, zone, &file)
             : NGX_ERROR;
    }

    ngx_close_glob(&gl);

    if (n == 0) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "no file matches \"%V\" in \"ratelimit_rules\" "
                           "directive", pattern);
    }

    return rc;
}


static ngx_int_t
ngx_http_ratelimit_domain_load_file(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, ngx_str_t *name)
{
    ngx_str_t                        text;
    ratelimit_text_t                *file;
    ratelimit_domain_error_t         error;
    ngx_http_ratelimit_domain_t     *domain;
    const ratelimit_descriptor_t    *d;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    file = ngx_palloc(cf->pool, sizeof(ratelimit_text_t));
    domain = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_domain_t));

    if (file == NULL || domain == NULL
        || ngx_http_ratelimit_domain_read(cf, name, &text) != NGX_OK)
    {
        return NGX_ERROR;
    }

    file->len = name->len;
    file->data = name->data;

    d = ratelimit_domain_load(&rmcf->domains, file, text.data, text.len,
                              &error, ngx_http_ratelimit_domain_warn, cf);

    ngx_free(text.data);

    if (d == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid file \"%V\" in \"ratelimit_rules\" "
                           "directive, line %uz, column %uz: %s",
                           name, error.line, error.column, error.reason);
        return NGX_ERROR;
    }

    domain->zone = zone;
    domain->origin = *cf->conf_file;

    ((ratelimit_descriptor_t *) d)->data = domain;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_domain_read(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *text)
{
    ssize_t          n;
    ngx_fd_t         fd;
    ngx_file_info_t  fi;

    fd = ngx_open_file(name->data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" failed", name);
        return NGX_ERROR;
    }

    text->data = NULL;

    if (ngx_fd_info(fd, &fi) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_fd_info_n " \"%V\" failed", name);
        goto done;
    }

    text->len = (size_t) ngx_file_size(&fi);
    text->data = ngx_alloc(text->len + 1, cf->log);

    if (text->data == NULL) {
        goto done;
    }

    n = ngx_read_fd(fd, text->data, text->len);

    if (n != (ssize_t) text->len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, n == -1 ? ngx_errno : 0,
                           ngx_read_fd_n " \"%V\" %s", name,
                           n == -1 ? "failed" : "returned too few bytes");
        ngx_free(text->data);
        text->data = NULL;
    }

done:

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, cf->log, ngx_errno,
                      ngx_close_file_n " \"%V\" failed", name);
    }

    return text->data != NULL ? NGX_OK : NGX_ERROR;
}


static void
ngx_http_ratelimit_domain_warn(void *data, const ratelimit_text_t *file,
    const ratelimit_domain_error_t *warning)
{
    ngx_conf_t  *cf = data;

    ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                       "file \"%*s\" in \"ratelimit_rules\" directive, "
                       "line %uz, column %uz: %s",
                       file->len, file->data, warning->line, warning->column,
                       warning->reason);
}


static void *
ngx_http_ratelimit_domain_alloc(void *pool, size_t size)
{
    return ngx_pcalloc(pool, size);
}

#else

char *
ngx_http_ratelimit_set_rules(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    return "needs a module that was built with libyaml";
}

#endif


ngx_int_t
ngx_http_ratelimit_resolve_domain(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit)
{
    ratelimit_text_t                 name;
    ngx_http_ratelimit_domain_t     *domain;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);

    name.len = limit->domain_name.len;
    name.data = limit->domain_name.data;

    limit->domain = ratelimit_domain_find(&rmcf->domains, &name);

    if (limit->domain == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown domain \"%V\" in \"ratelimit\" directive: "
                           "no file of \"ratelimit_rules\" has it",
                           &limit->domain_name);
        return NGX_ERROR;
    }

    domain = limit->domain->data;
    limit->use.zone = domain->zone;

    return NGX_OK;
}


void
ngx_http_ratelimit_domain_use(ngx_http_ratelimit_limit_t *limit)
{
    ngx_http_ratelimit_domain_t  *domain;

    domain = limit->domain->data;

    if (!domain->used || limit->use.refusals_hold < domain->refusals_hold) {
        domain->refusals_hold = limit->use.refusals_hold;
    }

    domain->used = 1;
    domain->reserved |= limit->use.reserved;
    domain->settles |= limit->use.settles;
    domain->max_rules = ngx_max(domain->max_rules, limit->use.max_rules);
}


ngx_int_t
ngx_http_ratelimit_resolve_domains(ngx_conf_t *cf)
{
    ratelimit_descriptor_t          *d;
    ngx_http_ratelimit_domain_t     *domain;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    rmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    domain = NULL;

    if (ngx_http_ratelimit_check_names(cf, &rmcf->domains) != NGX_OK) {
        return NGX_ERROR;
    }

    for (d = rmcf->domains.first; d; d = d->next) {

        if (d->parent == NULL) {
            domain = d->data;
            cf->conf_file = &domain->origin;

            if (rmcf->services.nelts
                && ngx_http_ratelimit_domain_allow_calls(cf, d) != NGX_OK)
            {
                return NGX_ERROR;
            }

        } else if (d->limited && !d->unlimited && domain->used
                   && ngx_http_ratelimit_resolve_descriptor(cf, d, domain)
                      != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/*
 * A call may name any descriptor, give hits back, and bring limits of its own
 * along.
 */

static ngx_int_t
ngx_http_ratelimit_domain_allow_calls(ngx_conf_t *cf, ratelimit_descriptor_t *d)
{
    ngx_http_ratelimit_use_t     *use;
    ngx_http_ratelimit_zone_t    *zone;
    ngx_http_ratelimit_domain_t  *domain;

    static ngx_str_t  variable = ngx_string("override");

    domain = d->data;
    zone = domain->zone;

    /* descriptors of a call may be in different parts of a store */

    domain->used = 1;
    domain->refusals_hold = zone->parted ? NGX_HTTP_RATELIMIT_HOLD_NOT
                                         : NGX_HTTP_RATELIMIT_HOLD_BRIEFLY;
    domain->max_rules = ngx_max(domain->max_rules,
                                NGX_HTTP_RATELIMIT_MAX_MATCHES);

    use = &domain->override;

    use->zone = zone;
    use->variable = &variable;
    use->max_rules = domain->max_rules;
    use->refusals_hold = domain->refusals_hold;
    use->name.len = d->path.len + sizeof(":override") - 1;
    use->name.data = ngx_pnalloc(cf->pool, use->name.len);
    use->bound = ngx_pcalloc(cf->pool, sizeof(ratelimit_rule_t));

    if (use->name.data == NULL || use->bound == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(use->name.data, "%*s:override", d->path.len, d->path.data);

    if (ngx_http_ratelimit_make_label(cf->pool, use) != NGX_OK) {
        return NGX_ERROR;
    }

    use->bound->limit = RATELIMIT_MAX_LIMIT;
    use->bound->period = RATELIMIT_SECOND;
    use->bound->ceiling = ngx_http_ratelimit_traits(zone)->sized
                          ? ngx_http_ratelimit_domain_most(d)
                          : RATELIMIT_MAX_LIMIT;

    return ngx_http_ratelimit_store_use(cf, use);
}


/* the largest limit of a domain */

static uint64_t
ngx_http_ratelimit_domain_most(ratelimit_descriptor_t *d)
{
    uint64_t  most;

    most = 1;

    for (d = d->next; d && d->parent; d = d->next) {
        most = ngx_max(most, d->requests);
    }

    return most;
}


static ngx_int_t
ngx_http_ratelimit_resolve_descriptor(ngx_conf_t *cf,
    ratelimit_descriptor_t *d, ngx_http_ratelimit_domain_t *domain)
{
    ngx_str_t                         name;
    const char                       *reason;
    ngx_http_ratelimit_descriptor_t  *limit;

    limit = ngx_pcalloc(cf->pool, sizeof(ngx_http_ratelimit_descriptor_t));
    if (limit == NULL) {
        return NGX_ERROR;
    }

    d->data = limit;

    limit->use.name.len = d->path.len;
    limit->use.name.data = d->path.data;
    limit->use.zone = domain->zone;
    limit->use.rules = &limit->rule;
    limit->use.nrules = 1;
    limit->use.max_rules = domain->max_rules;
    limit->use.reserved = domain->reserved;
    limit->use.refusals_hold = domain->refusals_hold;
    limit->use.settles = domain->settles;

    limit->rates.rules = &limit->rule;
    limit->rates.nrules = 1;
    limit->rates.descriptor = d;

    reason = ngx_http_ratelimit_domain_rule(&limit->use, d->requests, d->unit,
                                            &limit->rule);

    if (reason != NULL) {
        ngx_http_ratelimit_domain_error(cf, d, ngx_http_ratelimit_reason(cf,
                              "%s for algorithm \"%s\", \"fixed_window\" "
                              "takes any", reason,
                              ngx_http_ratelimit_traits(domain->zone)->name));
        return NGX_ERROR;
    }

    name.len = d->name.len ? d->name.len : d->path.len;
    name.data = d->name.len ? d->name.data : d->path.data;

    if (ngx_http_ratelimit_make_label(cf->pool, &limit->use) != NGX_OK
        || ngx_http_ratelimit_make_quoted_name(cf->pool, &name,
                                               &limit->rates.quoted_name)
           != NGX_OK
        || ngx_http_ratelimit_make_policy(cf->pool, &limit->rates) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_store_use(cf, &limit->use);
}


const char *
ngx_http_ratelimit_domain_rule(ngx_http_ratelimit_use_t *use,
    uint32_t requests, ratelimit_unit_e unit, ratelimit_rule_t *rule)
{
    const char                  *reason;
    ratelimit_rate_t             rate;
    ngx_http_ratelimit_limit_t   limit;

    ngx_memzero(&limit, sizeof(ngx_http_ratelimit_limit_t));

    limit.use.zone = use->zone;
    limit.use.bound = use->bound;

    rate.limit = ngx_max(requests, 1);
    rate.period = ratelimit_unit_seconds(unit) * RATELIMIT_SECOND;

    reason = ngx_http_ratelimit_make_rule(&limit, &rate, rule);

    if (requests == 0) {
        rule->capacity = 0;
        rule->ceiling = 0;
    }

    return reason;
}


/* counters are known by the path: that of two limits must not be the same */

static ngx_int_t
ngx_http_ratelimit_check_names(ngx_conf_t *cf, ratelimit_domains_t *domains)
{
    ngx_uint_t                i, n;
    ratelimit_descriptor_t   *d, **all;

    all = ngx_palloc(cf->temp_pool,
                     (domains->n + 1) * sizeof(ratelimit_descriptor_t *));
    if (all == NULL) {
        return NGX_ERROR;
    }

    n = 0;

    for (d = domains->first; d; d = d->next) {
        if (d->parent && d->limited) {
            all[n++] = d;
        }
    }

    ngx_qsort(all, n, sizeof(ratelimit_descriptor_t *),
              ngx_http_ratelimit_compare_paths);

    for (i = 1; i < n; i++) {
        if (ngx_http_ratelimit_compare_paths(&all[i - 1], &all[i]) == 0) {
            ngx_http_ratelimit_domain_error(cf, all[i],
                                            "another one has the same path");
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static int ngx_libc_cdecl
ngx_http_ratelimit_compare_paths(const void *one, const void *two)
{
    const ratelimit_descriptor_t  *a, *b;

    a = *(ratelimit_descriptor_t **) one;
    b = *(ratelimit_descriptor_t **) two;

    return ngx_memn2cmp(a->path.data, b->path.data, a->path.len, b->path.len);
}


static void
ngx_http_ratelimit_domain_error(ngx_conf_t *cf,
    const ratelimit_descriptor_t *d, const char *reason)
{
    const ratelimit_descriptor_t  *domain;
    ngx_http_ratelimit_domain_t   *conf;

    for (domain = d; domain->parent; domain = domain->parent) { /* void */ }

    conf = domain->data;
    cf->conf_file = &conf->origin;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid file \"%*s\" in \"ratelimit_rules\" "
                       "directive, line %uz: limit \"%*s\": %s",
                       d->file->len, d->file->data, d->line,
                       d->path.len, d->path.data, reason);
}
