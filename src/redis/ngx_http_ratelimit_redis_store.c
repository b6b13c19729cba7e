
/*
 * The store in Redis: what is sent for a query, and what follows from a reply,
 * or from none.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static ngx_int_t ngx_http_ratelimit_redis_decide(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_redis_cancel(ngx_http_ratelimit_query_t *q,
    ngx_uint_t undo);
static void ngx_http_ratelimit_redis_refund(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_redis_commit(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_redis_look(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_redis_send_query(
    ngx_http_ratelimit_query_t *q, ratelimit_script_e op);
static ngx_int_t ngx_http_ratelimit_redis_send_command(
    ngx_http_ratelimit_redis_command_t *command);
static ngx_int_t ngx_http_ratelimit_redis_transmit(
    ngx_http_ratelimit_redis_command_t *command, ratelimit_breaker_e permit);
static void ngx_http_ratelimit_redis_postpone(
    ngx_http_ratelimit_redis_command_t *command);
static void ngx_http_ratelimit_redis_on_message(
    ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);
static void ngx_http_ratelimit_redis_send_undo(
    ngx_http_ratelimit_redis_command_t *command);
static ngx_int_t ngx_http_ratelimit_redis_resend(
    ngx_http_ratelimit_redis_command_t *command);
static void ngx_http_ratelimit_redis_log_error(
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_finish(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc);
static void ngx_http_ratelimit_redis_done(ngx_http_ratelimit_query_t *q,
    ratelimit_script_e op, ngx_int_t rc, ngx_msec_t age);


const ngx_http_ratelimit_store_t  ngx_http_ratelimit_redis_store = {
    ngx_http_ratelimit_redis_deny_cache_find,
    ngx_http_ratelimit_redis_decide,
    ngx_http_ratelimit_redis_cancel,
    ngx_http_ratelimit_redis_refund,
    ngx_http_ratelimit_redis_commit,
    ngx_http_ratelimit_redis_look,
    ngx_http_ratelimit_redis_key_suffix
};


static ngx_int_t
ngx_http_ratelimit_redis_decide(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = q->subjects[0].use->zone->redis;

    if (ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_DECIDE)
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
ngx_http_ratelimit_redis_commit(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_redis_mirror_commit(q);

    (void) ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_COMMIT);
}


/*
 * Redis sees each request where refused ones count.  Otherwise it is asked for
 * the time to wait, once a second for each key, and not too often altogether:
 * a client that is refused elsewhere may make up keys.
 */

static ngx_int_t
ngx_http_ratelimit_redis_look(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i, count_rejected;

    count_rejected = 0;

    for (i = 0; i < q->n; i++) {
        count_rejected |= q->items[i].count_rejected;
    }

    q->allowed = 0;

    if (count_rejected) {
        ngx_http_ratelimit_redis_mirror_charge(q);

    } else if (!ngx_http_ratelimit_redis_deny_cache_look_due(q)) {
        return NGX_DECLINED;
    }

    return (ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_INSIST)
            == NGX_OK) ? NGX_AGAIN : NGX_ERROR;
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
    command->deadline = ngx_current_msec + redis->timeout;

    if (ngx_http_ratelimit_redis_send_command(command) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!ratelimit_script_settles(op)) {
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
    ratelimit_breaker_e                  permit;
    ngx_http_ratelimit_redis_server_t   *server;
    ngx_http_ratelimit_redis_command_t  *probe;

    server = command->server;
    permit = ngx_http_ratelimit_redis_permit(server);

    if (permit == RATELIMIT_BREAKER_STOP) {

        if (!ratelimit_script_settles(command->op)) {
            ngx_http_ratelimit_redis_free_command(command);
            return NGX_ERROR;
        }

        ngx_http_ratelimit_redis_postpone(command);

        return NGX_OK;
    }

    if (permit == RATELIMIT_BREAKER_PROBE) {

        /* what the command itself needs may be less than to write */

        probe = ngx_http_ratelimit_redis_create_probe(server);

        if (probe == NULL) {
            ngx_http_ratelimit_redis_free_command(command);
            return NGX_ERROR;
        }

        probe->message.handler = ngx_http_ratelimit_redis_on_message;
        probe->deadline = ngx_current_msec + server->redis->timeout;

        if (ngx_http_ratelimit_redis_transmit(probe, permit) != NGX_OK) {
            ngx_http_ratelimit_redis_free_command(command);
            return NGX_ERROR;
        }
    }

    return ngx_http_ratelimit_redis_transmit(command, RATELIMIT_BREAKER_GO);
}


static ngx_int_t
ngx_http_ratelimit_redis_transmit(ngx_http_ratelimit_redis_command_t *command,
    ratelimit_breaker_e permit)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

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


/* refunds wait until the server is up */

static void
ngx_http_ratelimit_redis_postpone(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

    if (server->npostponed == NGX_HTTP_RATELIMIT_REDIS_POSTPONED) {
        ngx_http_ratelimit_redis_free_command(command);
        return;
    }

    command->sent = ngx_current_msec;

    ngx_queue_insert_tail(&server->postponed, &command->queue);
    server->npostponed++;

    if (!server->retry.timer_set) {
        ngx_add_timer(&server->retry, NGX_HTTP_RATELIMIT_REDIS_RETRY);
    }
}


void
ngx_http_ratelimit_redis_retry_handler(ngx_event_t *ev)
{
    ngx_msec_t                           age;
    ngx_queue_t                         *q;
    ngx_connection_t                    *dummy;
    ngx_http_ratelimit_redis_server_t   *server;
    ngx_http_ratelimit_redis_command_t  *command;

    dummy = ev->data;
    server = dummy->data;

    age = ngx_exiting ? NGX_HTTP_RATELIMIT_REDIS_EXIT
                      : NGX_HTTP_RATELIMIT_REDIS_LISTEN;

    while (!ngx_queue_empty(&server->postponed)) {
        q = ngx_queue_head(&server->postponed);
        command = ngx_queue_data(q, ngx_http_ratelimit_redis_command_t, queue);

        if (ngx_current_msec - command->sent < age
            && ratelimit_breaker_is_open(server->breaker))
        {
            ngx_add_timer(ev, NGX_HTTP_RATELIMIT_REDIS_RETRY);
            return;
        }

        ngx_queue_remove(q);
        server->npostponed--;

        if (ratelimit_breaker_is_open(server->breaker)) {
            ngx_http_ratelimit_redis_free_command(command);
            continue;
        }

        command->deadline = ngx_current_msec + server->redis->timeout;
        (void) ngx_http_ratelimit_redis_transmit(command, RATELIMIT_BREAKER_GO);
    }
}


/* the command is freed, unless it is sent again */

static void
ngx_http_ratelimit_redis_on_message(
    ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    ngx_int_t                            rc;
    ngx_http_ratelimit_redis_server_t   *server;
    ngx_http_ratelimit_redis_command_t  *command;

    command = (ngx_http_ratelimit_redis_command_t *) message;
    server = command->server;

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
        rc = ngx_http_ratelimit_redis_set_eval(command);

        if (rc == NGX_OK) {
            rc = ngx_http_ratelimit_redis_resend(command);
        }

        if (rc == NGX_OK) {
            return;
        }

    } else if (type == NGX_HTTP_RATELIMIT_REDIS_UNREAD && !command->resent) {
        command->resent = 1;

        if (ngx_http_ratelimit_redis_resend(command) == NGX_OK) {
            return;
        }

    } else if (rc == NGX_ABORT) {
        ngx_http_ratelimit_redis_disconnect(message->connection);

    } else if (rc == NGX_ERROR && type == NGX_HTTP_RATELIMIT_REDIS_ERROR) {
        ngx_http_ratelimit_redis_server_next_address(server);
    }

    ngx_http_ratelimit_redis_finish(command, rc);
}


/*
 * The command, which is a refund now, has a timeout of its own.  It is sent to
 * where the reply came from, whatever is known of the server otherwise.
 */

static void
ngx_http_ratelimit_redis_send_undo(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

    if (!command->message.expired) {
        ngx_http_ratelimit_redis_timeout_remove(command);
        ngx_http_ratelimit_redis_success(server, command->permit);
    }

    command->message.expired = 0;
    command->permit = RATELIMIT_BREAKER_GO;
    command->sent = ngx_current_msec;
    command->written = ngx_current_msec;
    command->deadline = ngx_current_msec + server->redis->timeout;

    if (ngx_http_ratelimit_redis_connection_send(command->message.connection,
                                                 &command->message)
        != NGX_OK)
    {
        ngx_http_ratelimit_redis_free_command(command);
        return;
    }

    ngx_http_ratelimit_redis_timeout_add(command);

    ngx_atomic_fetch_add(&server->redis->shared->commands, 1);
}


/* before the same deadline */

static ngx_int_t
ngx_http_ratelimit_redis_resend(ngx_http_ratelimit_redis_command_t *command)
{
    if (ngx_http_ratelimit_redis_server_send(command->server,
                                             &command->message)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_atomic_fetch_add(&command->server->redis->shared->commands, 1);

    return NGX_OK;
}


static void
ngx_http_ratelimit_redis_finish(ngx_http_ratelimit_redis_command_t *command,
    ngx_int_t rc)
{
    ngx_msec_t                          age;
    ratelimit_script_e                  op;
    ratelimit_breaker_e                 permit;
    ngx_http_ratelimit_query_t         *q;
    ngx_http_ratelimit_redis_server_t  *server;

    q = command->query;
    op = command->op;
    server = command->server;
    permit = command->permit;
    age = ngx_current_msec - command->sent;

    ngx_http_ratelimit_redis_timeout_remove(command);
    ngx_http_ratelimit_redis_free_command(command);

    if (rc == NGX_OK) {
        ngx_http_ratelimit_redis_success(server, permit);

    } else {
        ngx_atomic_fetch_add(&server->redis->shared->errors, 1);

        if (rc == NGX_DECLINED) {
            ngx_http_ratelimit_redis_log_error(server);

        } else {
            ngx_http_ratelimit_redis_failure(server, permit);
        }

        rc = NGX_ERROR;
    }

    ngx_http_ratelimit_redis_done(q, op, rc, age);
}


/* the server is well, but not this command; one line a second */

static void
ngx_http_ratelimit_redis_log_error(ngx_http_ratelimit_redis_server_t *server)
{
    ngx_atomic_uint_t            last, now;
    ngx_http_ratelimit_redis_t  *redis;

    redis = server->redis;

    now = ngx_time();
    last = redis->shared->logged;

    if (last != now && ngx_atomic_cmp_set(&redis->shared->logged, last, now)) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "ratelimit: redis \"%V\" could not execute a command: "
                      "%*s", &redis->name, server->reason_len, server->reason);
    }
}


/*
 * A late reply is ignored, except for charges that have to be undone.  If the
 * connection is closed here, the command is freed with it.
 */

void
ngx_http_ratelimit_redis_on_timeout(
    ngx_http_ratelimit_redis_command_t *command)
{
    ratelimit_script_e                  op;
    ratelimit_breaker_e                 permit;
    ngx_http_ratelimit_query_t         *q;
    ngx_http_ratelimit_redis_t         *redis;
    ngx_http_ratelimit_redis_server_t  *server;

    q = command->query;
    op = command->op;
    server = command->server;
    permit = command->permit;
    redis = server->redis;

    command->query = NULL;

    if (q != NULL && op == RATELIMIT_SCRIPT_DECIDE) {
        ngx_http_ratelimit_redis_undo_expired(command, q);
    }

    ngx_atomic_fetch_add(&redis->shared->timeouts, 1);

    ngx_http_ratelimit_redis_set_reason(server, NULL, "no reply within %Mms",
                                        redis->timeout);
    ngx_http_ratelimit_redis_connection_expire(&command->message);
    ngx_http_ratelimit_redis_failure(server, permit);

    ngx_http_ratelimit_redis_done(q, op, NGX_ERROR, redis->timeout);
}


/*
 * Redis has decided at some time since the command was sent, at most "age"
 * milliseconds ago.  The request may be gone after this.
 */

static void
ngx_http_ratelimit_redis_done(ngx_http_ratelimit_query_t *q,
    ratelimit_script_e op, ngx_int_t rc, ngx_msec_t age)
{
    ngx_http_ratelimit_redis_t  *redis;

    if (q == NULL) {
        return;
    }

    if (rc == NGX_ERROR) {
        redis = q->subjects[0].use->zone->redis;
        ngx_atomic_fetch_add(&redis->shared->fallbacks, 1);

    } else {
        if (op == RATELIMIT_SCRIPT_DECIDE) {
            ngx_http_ratelimit_redis_mirror_charge(q);
        }

        if (!q->allowed) {
            ngx_http_ratelimit_redis_deny_cache_add(q, age);
        }
    }

    q->done(q, rc);
}
