
/*
 * Limits of rule files: which of them apply to the descriptors of a request.
 */


#include "http/ngx_http_ratelimit_ctx.h"


static ngx_int_t ngx_http_ratelimit_match_limit(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_match_t *match);
static ngx_int_t ngx_http_ratelimit_match_entries(ngx_http_request_t *r,
    ngx_array_t *from, ratelimit_entry_t *entries);
static ngx_uint_t ngx_http_ratelimit_match_replaced(
    ngx_http_ratelimit_match_t *match, ngx_http_ratelimit_match_t *matches,
    ngx_uint_t n);
static ngx_int_t ngx_http_ratelimit_match_compare(
    ngx_http_ratelimit_match_t *match, ngx_http_ratelimit_match_t *matches,
    ngx_pool_t *pool);


ngx_int_t
ngx_http_ratelimit_match_limits(ngx_http_ratelimit_ctx_t *ctx,
    ngx_uint_t stage)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i;
    ngx_http_ratelimit_set_t    *set;
    ngx_http_ratelimit_limit_t  *limits;

    set = ctx->conf->set;
    limits = set->limits.elts;

    ctx->matches = ngx_pcalloc(ctx->request->pool,
                               set->nmatches
                               * sizeof(ngx_http_ratelimit_match_t));
    if (ctx->matches == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < set->limits.nelts; i++) {

        if (limits[i].domain == NULL || limits[i].stage != stage) {
            continue;
        }

        rc = ngx_http_ratelimit_match_limit(ctx, &limits[i],
                                            &ctx->matches[limits[i].match]);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    return ngx_http_ratelimit_match_all(ctx->matches, set->nmatches,
                                        ctx->request->pool);
}


static ngx_int_t
ngx_http_ratelimit_match_limit(ngx_http_ratelimit_ctx_t *ctx,
    ngx_http_ratelimit_limit_t *limit, ngx_http_ratelimit_match_t *match)
{
    ngx_int_t                        rc;
    ngx_uint_t                       n;
    ratelimit_entry_t               *entries;
    ngx_http_request_t              *r;
    ngx_http_ratelimit_main_conf_t  *rmcf;

    r = ctx->request;

    if (limit->filter.value != NULL) {
        rc = ngx_http_ratelimit_test_filter(r, limit);

        if (rc != NGX_OK) {
            return rc == NGX_DECLINED ? NGX_OK : rc;
        }
    }

    n = limit->entries->nelts;

    entries = ngx_palloc(r->pool, n * sizeof(ratelimit_entry_t));
    if (entries == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_http_ratelimit_match_entries(r, limit->entries, entries);

    if (rc != NGX_OK) {
        return rc == NGX_DECLINED ? NGX_OK : rc;
    }

    rmcf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);

    if (ngx_http_ratelimit_match(match, &rmcf->domains, limit->domain, entries,
                                 n, r->pool)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    match->rates.limit = limit;
    match->cost = 1;

    return limit->cost.value != NULL && match->use != NULL
           ? ngx_http_ratelimit_cost(r, limit, &match->cost) : NGX_OK;
}


/* NGX_DECLINED if a value is empty: the descriptor does not apply */

static ngx_int_t
ngx_http_ratelimit_match_entries(ngx_http_request_t *r, ngx_array_t *from,
    ratelimit_entry_t *entries)
{
    ngx_str_t                    value;
    ngx_uint_t                   i;
    ngx_http_ratelimit_entry_t  *entry;

    entry = from->elts;

    for (i = 0; i < from->nelts; i++) {

        if (ngx_http_ratelimit_eval(r, &entry[i].value, &value) != NGX_OK) {
            return NGX_ERROR;
        }

        if (value.len == 0) {
            return NGX_DECLINED;
        }

        entries[i].key.len = entry[i].key.len;
        entries[i].key.data = entry[i].key.data;
        entries[i].value.len = value.len;
        entries[i].value.data = value.data;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_match(ngx_http_ratelimit_match_t *match,
    ratelimit_domains_t *domains, const ratelimit_descriptor_t *domain,
    ratelimit_entry_t *entries, ngx_uint_t n, ngx_pool_t *pool)
{
    const ratelimit_descriptor_t     *found;
    ngx_http_ratelimit_descriptor_t  *limit;

    match->use = NULL;
    match->same = NULL;
    match->rates.descriptor = NULL;

    found = ratelimit_domain_match(domains, domain, entries, n);

    if (found == NULL) {
        return NGX_OK;
    }

    if (found->unlimited) {
        match->rates.descriptor = found;
        return NGX_OK;
    }

    limit = found->data;

    match->rates = limit->rates;
    match->use = &limit->use;

    match->key.data = ngx_pnalloc(pool, ratelimit_domain_key_size(entries, n));
    if (match->key.data == NULL) {
        return NGX_ERROR;
    }

    match->key.len = ratelimit_domain_write_key(match->key.data, entries, n)
                     - match->key.data;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_match_all(ngx_http_ratelimit_match_t *matches, ngx_uint_t n,
    ngx_pool_t *pool)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_match_t  *match;

    for (i = 0; i < n; i++) {
        matches[i].replaced = ngx_http_ratelimit_match_replaced(&matches[i],
                                                                matches, n);
    }

    for (i = 0; i < n; i++) {
        match = &matches[i];

        if (match->replaced) {
            match->use = NULL;
            match->rates.descriptor = NULL;
        }

        if (match->use != NULL
            && ngx_http_ratelimit_match_compare(match, matches, pool)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/*
 * Whether a limit that applies, or one that is replaced itself, says so.  What
 * is unlimited stays so; a call may have thousands of these.
 */

static ngx_uint_t
ngx_http_ratelimit_match_replaced(ngx_http_ratelimit_match_t *match,
    ngx_http_ratelimit_match_t *matches, ngx_uint_t n)
{
    size_t                         k;
    ngx_uint_t                     i;
    const ratelimit_text_t        *name;
    const ratelimit_descriptor_t  *d;

    if (match->use == NULL || match->rates.descriptor == NULL) {
        return 0;
    }

    name = &match->rates.descriptor->name;

    if (name->len == 0) {
        return 0;
    }

    for (i = 0; i < n; i++) {
        d = matches[i].rates.descriptor;

        if (d == NULL) {
            continue;
        }

        for (k = 0; k < d->nreplaces; k++) {
            if (d->replaces[k].len == name->len
                && ngx_memcmp(d->replaces[k].data, name->data, name->len) == 0)
            {
                return 1;
            }
        }
    }

    return 0;
}


/* with those before it: each key of a limit has a use of its own */

static ngx_int_t
ngx_http_ratelimit_match_compare(ngx_http_ratelimit_match_t *match,
    ngx_http_ratelimit_match_t *matches, ngx_pool_t *pool)
{
    ngx_http_ratelimit_use_t    *use;
    ngx_http_ratelimit_match_t  *other;

    use = match->use;

    for (other = matches; other < match; other++) {

        if (other->use == NULL || other->same != NULL
            || other->use->name.data != match->use->name.data)
        {
            continue;
        }

        if (other->rates.rules->period == match->rates.rules->period
            && ngx_http_ratelimit_is_same(&other->key, &match->key))
        {
            match->same = other;
            other->cost = ngx_min(other->cost + match->cost,
                                  RATELIMIT_MAX_LIMIT + 1);

            /* limits that a call brings along may differ */

            if (match->rates.rules->limit < other->rates.rules->limit
                || match->rates.rules->ceiling < other->rates.rules->ceiling)
            {
                other->rates = match->rates;
            }

            return NGX_OK;
        }

        use = NULL;
    }

    if (use != NULL) {
        return NGX_OK;
    }

    use = ngx_palloc(pool, sizeof(ngx_http_ratelimit_use_t));
    if (use == NULL) {
        return NGX_ERROR;
    }

    *use = *match->use;
    match->use = use;

    return NGX_OK;
}


ngx_uint_t
ngx_http_ratelimit_match_add(ngx_http_ratelimit_query_t *q, ngx_uint_t n,
    ngx_http_ratelimit_match_t *match)
{
    ngx_http_ratelimit_use_t  *use;

    if (match->use == NULL || match->same != NULL) {
        return n;
    }

    /* what is the limit's, and not the rule's */

    use = &match->rates.limit->use;

    n = ngx_http_ratelimit_query_add(q, n, match->use, match->rates.rules, 1,
                                     &match->key, match->cost, match);

    q->items[n - 1].count_rejected = use->count_rejected;
    q->items[n - 1].reserve = use->reserved;

    return n;
}
