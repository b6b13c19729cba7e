
/*
 * Whether there is any use in asking Redis, and what the log is told of it: one
 * line when it is given up, one when it is back.
 */


#include "redis/ngx_http_ratelimit_redis.h"


void
ngx_http_ratelimit_redis_success(ngx_http_ratelimit_redis_t *redis)
{
    if (!ratelimit_breaker_success(&redis->shared->breaker)) {
        return;
    }

    ngx_atomic_fetch_add(&redis->shared->changes, 1);

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "ratelimit: redis \"%V\" is back", &redis->name);
}


/* connections to a server that is given up are of no use */

void
ngx_http_ratelimit_redis_failure(ngx_http_ratelimit_redis_t *redis,
    ratelimit_breaker_e told)
{
    if (!ratelimit_breaker_failure(&redis->shared->breaker, told,
                                   ngx_current_msec, (uint32_t) ngx_random()))
    {
        if (told == RATELIMIT_BREAKER_PROBE) {
            ngx_http_ratelimit_redis_give_up(redis);
        }

        return;
    }

    ngx_atomic_fetch_add(&redis->shared->changes, 1);

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "ratelimit: redis \"%V\" is not asked for a while: %*s",
                  &redis->name, redis->reason_len, redis->reason);

    ngx_http_ratelimit_redis_give_up(redis);
}


/*
 * Of what it says itself only what can be printed is taken, and nothing behind
 * a comma: there Redis repeats what it was sent, a password or somebody's key.
 */

void
ngx_http_ratelimit_redis_reason(ngx_http_ratelimit_redis_t *redis,
    const char *what, const char *text, size_t len)
{
    u_char  *p, *last;

    p = redis->reason;
    last = redis->reason + NGX_HTTP_RATELIMIT_REDIS_REASON;

    p = ngx_slprintf(p, last, "%s", what);

    if (text != NULL) {
        p = ngx_slprintf(p, last, " \"");

        for ( /* void */ ; len && *text != ',' && p < last - 1; len--) {
            *p++ = (*text < 0x20 || *text > 0x7e) ? '?' : *text;
            text++;
        }

        p = ngx_slprintf(p, last, "\"");
    }

    redis->reason_len = p - redis->reason;
}
