
/*
 * What Redis admits is counted in shared memory, too, by zones that go on
 * there when it fails: so a failure gives nobody his limits anew.
 */


#include "store/ngx_http_ratelimit_redis.h"


static ngx_uint_t ngx_http_ratelimit_twin(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_query_t *twin);


/* these limits stand first; returns how many they are */

static ngx_uint_t
ngx_http_ratelimit_twin(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_query_t *twin)
{
    ngx_uint_t  n;

    for (n = 0; n < q->n; n++) {
        if (q->subjects[n].use->zone->fail != NGX_HTTP_RATELIMIT_FAIL_LOCAL) {
            break;
        }
    }

    if (n == 0) {
        return 0;
    }

    *twin = *q;

    twin->n = n;
    twin->items = ngx_palloc(q->pool, n * sizeof(ratelimit_item_t));
    if (twin->items == NULL) {
        return 0;
    }

    ngx_memcpy(twin->items, q->items, n * sizeof(ratelimit_item_t));

    return n;
}


void
ngx_http_ratelimit_twin_charge(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                  i, n;
    ngx_http_ratelimit_query_t  twin;

    n = ngx_http_ratelimit_twin(q, &twin);

    if (n == 0) {
        return;
    }

    for (i = 0; i < n; i++) {
        twin.items[i].insist = 1;
    }

    if (ngx_http_ratelimit_shm_store.check(&twin) != NGX_OK) {
        return;
    }

    for (i = 0; i < n; i++) {
        q->subjects[i].stamp = twin.items[i].verdict.stamp;
    }
}


void
ngx_http_ratelimit_twin_refund(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                  i, n;
    ngx_http_ratelimit_query_t  twin;

    n = ngx_http_ratelimit_twin(q, &twin);

    if (n == 0) {
        return;
    }

    for (i = 0; i < n; i++) {
        twin.items[i].verdict.stamp = q->subjects[i].stamp;
    }

    ngx_http_ratelimit_shm_store.refund(&twin);
}
