
/*
 * The store in Redis: what is asked, whether there is any use in asking, and
 * what an answer means.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static ngx_int_t ngx_http_ratelimit_redis_check(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_redis_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t give_back);
static void ngx_http_ratelimit_redis_refund(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_redis_settle(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_redis_ask(
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_query_t *q,
    ratelimit_script_e op);
static ngx_int_t ngx_http_ratelimit_redis_submit(
    ngx_http_ratelimit_redis_command_t *command);
static void ngx_http_ratelimit_redis_give_back(
    ngx_http_ratelimit_redis_command_t *command);
static void ngx_http_ratelimit_redis_retry(
    ngx_http_ratelimit_redis_command_t *command);

static ngx_int_t ngx_http_ratelimit_redis_understand(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);
static ngx_int_t ngx_http_ratelimit_redis_verdicts(
    ngx_http_ratelimit_query_t *q, ngx_str_t *text);


const ngx_http_ratelimit_store_t  ngx_http_ratelimit_redis_store = {
    ngx_http_ratelimit_redis_deny_cache_find,
    ngx_http_ratelimit_redis_check,
    ngx_http_ratelimit_redis_cancel,
    ngx_http_ratelimit_redis_refund,
    ngx_http_ratelimit_redis_settle,
    ngx_http_ratelimit_redis_use
};


static ngx_int_t
ngx_http_ratelimit_redis_check(ngx_http_ratelimit_query_t *q)
{
    ngx_int_t                    rc;
    ngx_http_ratelimit_redis_t  *redis;

    redis = q->subjects[0].use->zone->redis;

    /* another Redis may have been asked before: its time is taken off ours */

    rc = (ngx_current_msec - q->started < redis->timeout)
         ? ngx_http_ratelimit_redis_ask(redis, q, RATELIMIT_SCRIPT_CHECK)
         : NGX_ERROR;

    if (rc != NGX_OK) {
        ngx_atomic_fetch_add(&redis->shared->fallbacks, 1);
        return NGX_ERROR;
    }

    return NGX_AGAIN;
}


static void
ngx_http_ratelimit_redis_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t give_back)
{
    ngx_http_ratelimit_redis_command_t  *command;

    command = q->pending;
    command->query = NULL;

    if (give_back) {
        ngx_http_ratelimit_redis_keep(command, q);
    }
}


static void
ngx_http_ratelimit_redis_refund(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_twin_refund(q);
    ngx_http_ratelimit_redis_deny_cache_forget(q);

    (void) ngx_http_ratelimit_redis_ask(q->subjects[0].use->zone->redis, q,
                                        RATELIMIT_SCRIPT_REFUND);
}


static void
ngx_http_ratelimit_redis_settle(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_twin_charge(q);

    (void) ngx_http_ratelimit_redis_ask(q->subjects[0].use->zone->redis, q,
                                        RATELIMIT_SCRIPT_INSIST);
}


static ngx_int_t
ngx_http_ratelimit_redis_ask(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_query_t *q, ratelimit_script_e op)
{
    ngx_http_ratelimit_redis_command_t  *command;

    command = ngx_http_ratelimit_redis_create_command(redis, q, op);
    if (command == NULL) {
        return NGX_ERROR;
    }

    command->deadline = redis->timeout
                        + ((op == RATELIMIT_SCRIPT_CHECK) ? q->started
                                                          : ngx_current_msec);

    if (ngx_http_ratelimit_redis_submit(command) != NGX_OK) {
        return NGX_ERROR;
    }

    if (op == RATELIMIT_SCRIPT_CHECK) {
        command->query = q;
        q->pending = command;
    }

    return NGX_OK;
}


/* the command is gone if that fails */

static ngx_int_t
ngx_http_ratelimit_redis_submit(ngx_http_ratelimit_redis_command_t *command)
{
    ratelimit_breaker_e          told;
    ngx_http_ratelimit_redis_t  *redis;

    redis = command->redis;

    told = ratelimit_breaker_ask(&redis->shared->breaker, ngx_current_msec,
                                 2 * redis->timeout);

    if (told == RATELIMIT_BREAKER_STOP) {
        ngx_free(command);
        return NGX_ERROR;
    }

    command->told = told;
    command->sent = ngx_current_msec;

    if (ngx_http_ratelimit_redis_send(command) != NGX_OK) {
        ngx_free(command);
        ngx_http_ratelimit_redis_failure(redis, told);
        return NGX_ERROR;
    }

    ngx_http_ratelimit_redis_await(command);

    ngx_atomic_fetch_add(&redis->shared->commands, 1);

    return NGX_OK;
}


void
ngx_http_ratelimit_redis_reply(ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    ngx_int_t                    rc;
    ngx_msec_t                   age;
    ratelimit_breaker_e          told;
    ngx_http_ratelimit_query_t  *q;
    ngx_http_ratelimit_redis_t  *redis;

    if (command->unwanted && type == NGX_HTTP_RATELIMIT_REDIS_STRING
        && ngx_http_ratelimit_redis_turn(command, text) == NGX_OK)
    {
        ngx_http_ratelimit_redis_give_back(command);
        return;
    }

    if (command->expired) {
        ngx_free(command);
        return;
    }

    rc = ngx_http_ratelimit_redis_understand(command, type, text);

    if (rc == NGX_AGAIN) {
        ngx_http_ratelimit_redis_retry(command);
        return;
    }

    q = ngx_http_ratelimit_redis_leave(command);
    redis = command->redis;
    told = command->told;
    age = ngx_current_msec - command->sent;

    ngx_free(command);

    if (rc == NGX_OK) {
        ngx_http_ratelimit_redis_success(redis);

    } else {
        ngx_atomic_fetch_add(&redis->shared->errors, 1);
        ngx_http_ratelimit_redis_failure(redis, told);
    }

    ngx_http_ratelimit_redis_finish(redis, q, rc, age);
}


/* it was charged for somebody who has gone meanwhile */

static void
ngx_http_ratelimit_redis_give_back(ngx_http_ratelimit_redis_command_t *command)
{
    if (!command->expired) {
        (void) ngx_http_ratelimit_redis_leave(command);
        ngx_http_ratelimit_redis_success(command->redis);
    }

    command->expired = 0;
    command->loaded = 0;
    command->unwanted = 0;
    command->deadline = ngx_current_msec + command->redis->timeout;

    (void) ngx_http_ratelimit_redis_submit(command);
}


/* NGX_AGAIN if Redis does not know the script: nothing was done then */

static ngx_int_t
ngx_http_ratelimit_redis_understand(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    if (type == NGX_HTTP_RATELIMIT_REDIS_LOST) {
        return NGX_ERROR;
    }

    if (type == NGX_HTTP_RATELIMIT_REDIS_ERROR) {

        if (!command->loaded && text->len >= sizeof("NOSCRIPT") - 1
            && ngx_strncmp(text->data, "NOSCRIPT", sizeof("NOSCRIPT") - 1) == 0)
        {
            return (command->op == RATELIMIT_SCRIPT_CHECK
                    && command->query == NULL) ? NGX_OK : NGX_AGAIN;
        }

        ngx_http_ratelimit_redis_reason(command->redis, "it answers",
                                        (char *) text->data, text->len);
        return NGX_ERROR;
    }

    if (command->op != RATELIMIT_SCRIPT_CHECK || command->query == NULL) {
        return NGX_OK;
    }

    if (type == NGX_HTTP_RATELIMIT_REDIS_STRING
        && ngx_http_ratelimit_redis_verdicts(command->query, text) == NGX_OK)
    {
        return NGX_OK;
    }

    ngx_http_ratelimit_redis_reason(command->redis, "its answer makes no sense",
                                    NULL, 0);
    return NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_redis_verdicts(ngx_http_ratelimit_query_t *q,
    ngx_str_t *text)
{
    ngx_uint_t  i;

    if (text->len != q->n * RATELIMIT_SCRIPT_VERDICT) {
        return NGX_ERROR;
    }

    q->allowed = 1;

    for (i = 0; i < q->n; i++) {

        if (!ratelimit_script_verdict(&q->items[i], text->data
                                      + i * RATELIMIT_SCRIPT_VERDICT))
        {
            return NGX_ERROR;
        }

        q->allowed &= q->items[i].verdict.allowed;
    }

    return NGX_OK;
}


/* within the time that it had: a script is sent to who does not know it */

static void
ngx_http_ratelimit_redis_retry(ngx_http_ratelimit_redis_command_t *command)
{
    command->loaded = 1;

    if (ngx_http_ratelimit_redis_send(command) == NGX_OK) {
        ngx_atomic_fetch_add(&command->redis->shared->commands, 1);
        return;
    }

    ngx_http_ratelimit_redis_reply(command, NGX_HTTP_RATELIMIT_REDIS_LOST,
                                   NULL);
}


void
ngx_http_ratelimit_redis_finish(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_query_t *q, ngx_int_t rc, ngx_msec_t age)
{
    if (q == NULL) {
        return;
    }

    if (rc == NGX_ERROR) {
        ngx_atomic_fetch_add(&redis->shared->fallbacks, 1);

    } else {
        ngx_http_ratelimit_twin_charge(q);

        if (!q->allowed) {
            ngx_http_ratelimit_redis_deny_cache_add(q, age);
        }
    }

    q->done(q, rc);
}
