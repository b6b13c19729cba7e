
/*
 * The store in Redis: what is sent for a query, and what follows from a reply,
 * or from none.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static ngx_int_t ngx_http_ratelimit_redis_decide(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_redis_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t undo);
static void ngx_http_ratelimit_redis_refund(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_redis_settle(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_redis_send_query(
    ngx_http_ratelimit_query_t *q, ratelimit_script_e op);
static ngx_int_t ngx_http_ratelimit_redis_send_command(
    ngx_http_ratelimit_redis_command_t *command);
static void ngx_http_ratelimit_redis_on_message(
    ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);
static void ngx_http_ratelimit_redis_send_undo(
    ngx_http_ratelimit_redis_command_t *command);
static void ngx_http_ratelimit_redis_retry(
    ngx_http_ratelimit_redis_command_t *command);
static void ngx_http_ratelimit_redis_finish(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc);
static void ngx_http_ratelimit_redis_done(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc, ngx_msec_t age);


const ngx_http_ratelimit_store_t  ngx_http_ratelimit_redis_store = {
    ngx_http_ratelimit_redis_deny_cache_find,
    ngx_http_ratelimit_redis_decide,
    ngx_http_ratelimit_redis_cancel,
    ngx_http_ratelimit_redis_refund,
    ngx_http_ratelimit_redis_settle,
    ngx_http_ratelimit_redis_key_suffix
};


static ngx_int_t
ngx_http_ratelimit_redis_decide(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = q->subjects[0].use->zone->redis;

    /* the timeout is that of the decision: another Redis may have used it up */

    if (ngx_current_msec - q->started < redis->timeout
        && ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_DECIDE)
           == NGX_OK)
    {
        return NGX_AGAIN;
    }

    ngx_atomic_fetch_add(&redis->shared->fallbacks, 1);

    return NGX_ERROR;
}


static void
ngx_http_ratelimit_redis_cancel(ngx_http_ratelimit_query_t *q, ngx_uint_t undo)
{
    ngx_http_ratelimit_redis_command_t  *command;

    command = q->pending;
    command->query = NULL;

    if (undo) {
        ngx_http_ratelimit_redis_undo_cancelled(command, q);
    }
}


static void
ngx_http_ratelimit_redis_refund(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_redis_mirror_refund(q);
    ngx_http_ratelimit_redis_deny_cache_forget(q);

    (void) ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_REFUND);
}


static void
ngx_http_ratelimit_redis_settle(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_redis_mirror_charge(q);

    (void) ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_INSIST);
}


static ngx_int_t
ngx_http_ratelimit_redis_send_query(ngx_http_ratelimit_query_t *q,
    ratelimit_script_e op)
{
    ngx_http_ratelimit_redis_t          *redis;
    ngx_http_ratelimit_redis_command_t  *command;

    redis = q->subjects[0].use->zone->redis;

    command = ngx_http_ratelimit_redis_create_command(redis, q, op);
    if (command == NULL) {
        return NGX_ERROR;
    }

    command->message.handler = ngx_http_ratelimit_redis_on_message;
    command->deadline = redis->timeout
                        + ((op == RATELIMIT_SCRIPT_DECIDE) ? q->started
                                                           : ngx_current_msec);

    if (ngx_http_ratelimit_redis_send_command(command) != NGX_OK) {
        return NGX_ERROR;
    }

    if (op == RATELIMIT_SCRIPT_DECIDE) {
        command->query = q;
        q->pending = command;
    }

    return NGX_OK;
}


/* frees the command if that fails */

static ngx_int_t
ngx_http_ratelimit_redis_send_command(
    ngx_http_ratelimit_redis_command_t *command)
{
    ratelimit_breaker_e                 permit;
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;
    permit = ngx_http_ratelimit_redis_permit(server);

    if (permit == RATELIMIT_BREAKER_STOP) {
        ngx_http_ratelimit_redis_free_command(command);
        return NGX_ERROR;
    }

    command->permit = permit;
    command->sent = ngx_current_msec;
    command->written = ngx_current_msec;

    if (ngx_http_ratelimit_redis_server_send(server, &command->message)
        != NGX_OK)
    {
        ngx_http_ratelimit_redis_free_command(command);
        ngx_http_ratelimit_redis_failure(server, permit);
        return NGX_ERROR;
    }

    ngx_http_ratelimit_redis_timeout_add(command);

    ngx_atomic_fetch_add(&server->redis->shared->commands, 1);

    return NGX_OK;
}


/* the command is freed, unless it is sent again */

static void
ngx_http_ratelimit_redis_on_message(
    ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    ngx_int_t                            rc;
    ngx_http_ratelimit_redis_command_t  *command;

    command = (ngx_http_ratelimit_redis_command_t *) message;

    if (ngx_http_ratelimit_redis_undo(command, type, text) == NGX_OK) {
        ngx_http_ratelimit_redis_send_undo(command);
        return;
    }

    if (message->expired) {
        ngx_http_ratelimit_redis_free_command(command);
        return;
    }

    rc = ngx_http_ratelimit_redis_parse_reply(command, type, text);

    if (rc == NGX_AGAIN) {
        ngx_http_ratelimit_redis_retry(command);
        return;
    }

    ngx_http_ratelimit_redis_finish(command, rc);
}


/* the command, which is a refund now, has a timeout of its own */

static void
ngx_http_ratelimit_redis_send_undo(ngx_http_ratelimit_redis_command_t *command)
{
    if (!command->message.expired) {
        ngx_http_ratelimit_redis_timeout_remove(command);
        ngx_http_ratelimit_redis_success(command->server);
    }

    command->message.expired = 0;
    command->deadline = ngx_current_msec + command->server->redis->timeout;

    (void) ngx_http_ratelimit_redis_send_command(command);
}


/* with the whole script, before the same deadline */

static void
ngx_http_ratelimit_redis_retry(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

    if (ngx_http_ratelimit_redis_set_eval(command) == NGX_OK
        && ngx_http_ratelimit_redis_server_send(server, &command->message)
           == NGX_OK)
    {
        ngx_atomic_fetch_add(&server->redis->shared->commands, 1);
        return;
    }

    ngx_http_ratelimit_redis_finish(command, NGX_ERROR);
}


static void
ngx_http_ratelimit_redis_finish(ngx_http_ratelimit_redis_command_t *command,
    ngx_int_t rc)
{
    ngx_msec_t                          age;
    ratelimit_breaker_e                 permit;
    ngx_http_ratelimit_query_t         *q;
    ngx_http_ratelimit_redis_server_t  *server;

    q = command->query;
    server = command->server;
    permit = command->permit;
    age = ngx_current_msec - command->sent;

    ngx_http_ratelimit_redis_timeout_remove(command);
    ngx_http_ratelimit_redis_free_command(command);

    if (rc == NGX_OK) {
        ngx_http_ratelimit_redis_success(server);

    } else {
        ngx_atomic_fetch_add(&server->redis->shared->errors, 1);
        ngx_http_ratelimit_redis_failure(server, permit);
    }

    ngx_http_ratelimit_redis_done(q, rc, age);
}


/*
 * A late reply is ignored, except for charges that have to be undone.  If the
 * connection is closed here, the command is freed with it.
 */

void
ngx_http_ratelimit_redis_on_timeout(
    ngx_http_ratelimit_redis_command_t *command)
{
    ngx_uint_t                          hurried;
    ratelimit_breaker_e                 permit;
    ngx_http_ratelimit_query_t         *q;
    ngx_http_ratelimit_redis_t         *redis;
    ngx_http_ratelimit_redis_server_t  *server;

    q = command->query;
    server = command->server;
    permit = command->permit;
    redis = server->redis;

    command->query = NULL;

    if (q != NULL) {
        ngx_http_ratelimit_redis_undo_expired(command, q);
    }

    /* another Redis took most of the time: this one is not to be blamed */

    hurried = (command->deadline - command->written < redis->timeout / 2);

    ngx_atomic_fetch_add(&redis->shared->timeouts, 1);

    ngx_http_ratelimit_redis_set_reason(server, NULL, "no reply within %Mms",
                                        redis->timeout);
    ngx_http_ratelimit_redis_connection_expire(&command->message);

    if (!hurried) {
        ngx_http_ratelimit_redis_failure(server, permit);
    }

    ngx_http_ratelimit_redis_done(q, NGX_ERROR, redis->timeout);
}


/*
 * Redis has decided at some time since the command was sent, at most "age"
 * milliseconds ago.  The request may be gone after this.
 */

static void
ngx_http_ratelimit_redis_done(ngx_http_ratelimit_query_t *q, ngx_int_t rc,
    ngx_msec_t age)
{
    ngx_http_ratelimit_redis_t  *redis;

    if (q == NULL) {
        return;
    }

    if (rc == NGX_ERROR) {
        redis = q->subjects[0].use->zone->redis;
        ngx_atomic_fetch_add(&redis->shared->fallbacks, 1);

    } else {
        ngx_http_ratelimit_redis_mirror_charge(q);

        if (!q->allowed) {
            ngx_http_ratelimit_redis_deny_cache_add(q, age);
        }
    }

    q->done(q, rc);
}
