
/*
 * The store in Redis: what is sent for a query, and what follows from a reply,
 * or from none.
 */


#include "redis/ngx_http_ratelimit_redis_nodes.h"


/* further questions about a refusal that may not be true any more */
#define NGX_HTTP_RATELIMIT_REDIS_AGAIN  3


static ngx_int_t ngx_http_ratelimit_redis_decide(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_redis_settle(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_settle_e how);
static ngx_int_t ngx_http_ratelimit_redis_reset(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_redis_send_query(
    ngx_http_ratelimit_query_t *q, ratelimit_script_e op);
static void ngx_http_ratelimit_redis_release_or_retry(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc,
    ngx_str_t *text);
static ngx_uint_t ngx_http_ratelimit_redis_has_written(
    ngx_http_ratelimit_query_t *q, ratelimit_script_e op);
static void ngx_http_ratelimit_redis_log_error(
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_on_message(
    ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);
static void ngx_http_ratelimit_redis_handle_reply(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);
static ngx_uint_t ngx_http_ratelimit_redis_is_doubtful(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc);
static void ngx_http_ratelimit_redis_out_of_step(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *text);
static void ngx_http_ratelimit_redis_finish(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc,
    ngx_str_t *text);
static void ngx_http_ratelimit_redis_done(
    ngx_http_ratelimit_redis_server_t *server, ngx_http_ratelimit_query_t *q,
    ratelimit_script_e op, ngx_int_t rc, uint64_t asked);


const ngx_http_ratelimit_store_t  ngx_http_ratelimit_redis_store = {
    ngx_http_ratelimit_redis_deny_cache_find,
    ngx_http_ratelimit_redis_decide,
    ngx_http_ratelimit_redis_cancel,
    ngx_http_ratelimit_redis_settle,
    ngx_http_ratelimit_redis_refused,
    ngx_http_ratelimit_redis_peek,
    ngx_http_ratelimit_redis_reset,
    ngx_http_ratelimit_redis_key_suffix,
    ngx_http_ratelimit_redis_part,
    NULL,                                  /* attempt */
    NULL,                                  /* local */
    ngx_http_ratelimit_redis_is_up
};


static ngx_int_t
ngx_http_ratelimit_redis_decide(ngx_http_ratelimit_query_t *q)
{
    return ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_DECIDE);
}


void
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
ngx_http_ratelimit_redis_settle(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_settle_e how)
{
    ngx_http_ratelimit_redis_mirror_settle(q, how);

    switch (how) {

    case NGX_HTTP_RATELIMIT_REFUND:
        ngx_http_ratelimit_redis_send_refund(q);
        ngx_http_ratelimit_redis_deny_cache_refunded(q);
        break;

    case NGX_HTTP_RATELIMIT_COMMIT:
        (void) ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_COMMIT);
        break;

    case NGX_HTTP_RATELIMIT_DEBIT:
        ngx_http_ratelimit_redis_deny_cache_forget(q);
        (void) ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_DEBIT);
        break;
    }
}


void
ngx_http_ratelimit_redis_send_refund(ngx_http_ratelimit_query_t *q)
{
    (void) ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_REFUND);
}


/*
 * Redis sees each request where refused ones count.  Otherwise it is asked for
 * the time to wait, once a second for each key, and not too often altogether:
 * a client that is refused elsewhere may make up keys.
 */

ngx_int_t
ngx_http_ratelimit_redis_refused(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i, count_rejected;

    count_rejected = 0;

    for (i = 0; i < q->n; i++) {
        count_rejected |= q->items[i].count_rejected;
    }

    q->allowed = 0;

    if (count_rejected) {
        ngx_http_ratelimit_redis_mirror_charge(q);

    } else if (!q->look && !ngx_http_ratelimit_redis_deny_cache_look_due(q)) {
        return NGX_DECLINED;
    }

    return ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_REFUSED);
}


ngx_int_t
ngx_http_ratelimit_redis_peek(ngx_http_ratelimit_query_t *q)
{
    return ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_PEEK);
}


static ngx_int_t
ngx_http_ratelimit_redis_reset(ngx_http_ratelimit_query_t *q)
{
    if (q->subjects[0].use->zone->mirror
        && ngx_http_ratelimit_shm_store.reset(q) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_redis_send_query(q, RATELIMIT_SCRIPT_RESET);
}


ngx_uint_t
ngx_http_ratelimit_redis_is_up(ngx_http_ratelimit_zone_t *zone)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = zone->redis;

    return redis->nodes != NULL
           ? !ngx_http_ratelimit_redis_nodes_down(redis->nodes)
           : !ratelimit_breaker_is_open(&redis->shared->breaker);
}


/*
 * Without requests only a look finds out that a server is up again.  In a
 * cluster the probe needs a tag of one of the node's hash slots: one in about
 * as many as there are nodes.
 */

void
ngx_http_ratelimit_redis_try(ngx_http_ratelimit_redis_t *redis, ngx_uint_t n)
{
    u_char                            text[sizeof("{65535}")];
    uint16_t                          slot;
    ngx_str_t                         tag;
    ngx_uint_t                        i;
    ngx_http_ratelimit_redis_node_t  *node;

    slot = 0;
    ngx_str_null(&tag);

    if (redis->nodes != NULL) {
        node = n ? ngx_http_ratelimit_redis_nodes_get(redis->nodes, n - 1)
                 : NULL;
        if (node == NULL) {
            return;
        }

        n = node - redis->nodes->directory->nodes + 1;
    }

    for (i = 0; redis->cluster && i < 65536; i++) {
        tag.data = text;
        tag.len = ngx_sprintf(text, "{%ui}", i) - text;

        slot = (uint16_t) ratelimit_cluster_slot(text + 1, tag.len - 2, "", 0);

        if (redis->nodes->directory->map[slot] == n) {
            break;
        }
    }

    ngx_http_ratelimit_redis_send_probe(
                               ngx_http_ratelimit_redis_route(redis, slot),
                               slot, &tag, ngx_http_ratelimit_redis_on_message);
}


/* NGX_AGAIN if the query waits for the reply */

static ngx_int_t
ngx_http_ratelimit_redis_send_query(ngx_http_ratelimit_query_t *q,
    ratelimit_script_e op)
{
    ngx_http_ratelimit_redis_t          *redis;
    ngx_http_ratelimit_redis_server_t   *server;
    ngx_http_ratelimit_redis_command_t  *command;

    redis = q->subjects[0].use->zone->redis;

    command = ngx_http_ratelimit_redis_create_command(redis, q, op);
    if (command == NULL) {
        return NGX_ERROR;
    }

    server = command->server;
    q->reset_count = ngx_http_ratelimit_redis_resets_count(redis);

    command->message.handler = ngx_http_ratelimit_redis_on_message;

    /* before the end of the response, after which the client asks again */

    command->message.urgent = (op == RATELIMIT_SCRIPT_DEBIT
                               || op == RATELIMIT_SCRIPT_REFUND);

    if (ngx_http_ratelimit_redis_send(command) != NGX_OK) {

        if (op == RATELIMIT_SCRIPT_DECIDE) {
            ngx_http_ratelimit_redis_count(server->owner.shared, fallbacks, 1);
        }

        return NGX_ERROR;
    }

    if (ratelimit_script_settles(op)) {
        return NGX_OK;
    }

    command->query = q;
    q->pending = command;

    return NGX_AGAIN;
}


ngx_int_t
ngx_http_ratelimit_redis_send_rows(ngx_http_ratelimit_redis_command_t *command)
{
    command->message.handler = ngx_http_ratelimit_redis_on_message;

    return ngx_http_ratelimit_redis_send(command);
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

    if (!ngx_http_ratelimit_redis_is_reply(command, type, text)) {
        ngx_http_ratelimit_redis_out_of_step(command, text);
        return;
    }

    command->lost = (type == NGX_HTTP_RATELIMIT_REDIS_LOST
                     || (type == NGX_HTTP_RATELIMIT_REDIS_UNREAD
                         && command->op == RATELIMIT_SCRIPT_VOID));

    if (ngx_http_ratelimit_redis_undo(command, type, text) == NGX_OK) {
        ngx_http_ratelimit_redis_send_undo(command);
        return;
    }

    rc = ngx_http_ratelimit_redis_redirect(command, type, text);

    if (rc == NGX_OK) {
        return;
    }

    if (message->expired) {
        ngx_http_ratelimit_redis_release(command);
        return;
    }

    if (rc == NGX_ERROR || rc == NGX_ABORT) {

        /* if nodes do not agree, no server has failed */

        ngx_http_ratelimit_redis_finish(command,
                                   (rc == NGX_ABORT) ? NGX_DECLINED : rc, text);
        return;
    }

    ngx_http_ratelimit_redis_handle_reply(command, type, text);
}


static void
ngx_http_ratelimit_redis_handle_reply(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    ngx_int_t  rc;

    rc = ngx_http_ratelimit_redis_parse_reply(command, type, text);

    if (rc == NGX_AGAIN) {
        rc = ngx_http_ratelimit_redis_set_eval(command);

        if (rc == NGX_OK) {
            rc = ngx_http_ratelimit_redis_resend(command);
        }

        if (rc == NGX_OK) {
            return;
        }

    } else if (type == NGX_HTTP_RATELIMIT_REDIS_UNREAD) {

        if (ngx_http_ratelimit_redis_resend(command) == NGX_OK) {
            return;
        }

    } else if (ngx_http_ratelimit_redis_is_doubtful(command, rc)) {
        command->again++;

        if (ngx_http_ratelimit_redis_resend(command) == NGX_OK) {
            return;
        }

    } else if (rc == NGX_ABORT) {
        ngx_http_ratelimit_redis_disconnect(command->message.connection);

    } else if (rc == NGX_ERROR && type == NGX_HTTP_RATELIMIT_REDIS_ERROR) {
        ngx_http_ratelimit_redis_server_next_address(command->server);
    }

    ngx_http_ratelimit_redis_finish(command, rc, text);
}


/*
 * A refusal by what requests have reserved is asked for again, if there is
 * time: a refund that was sent first, on another connection, may have come
 * second, but Redis has it before this reply.  The next answer may have the
 * same fault, by another refund, and what is remembered has to be true.
 */

static ngx_uint_t
ngx_http_ratelimit_redis_is_doubtful(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc)
{
    ngx_uint_t                   i, n, times;
    ngx_http_ratelimit_use_t    *use;
    ngx_http_ratelimit_query_t  *q;

    q = command->query;

    if (rc != NGX_OK || q == NULL || q->allowed
        || command->op != RATELIMIT_SCRIPT_DECIDE
        || (ngx_msec_int_t) (command->deadline - ngx_current_msec)
           < (ngx_msec_int_t) (ngx_current_msec - command->written))
    {
        return 0;
    }

    times = 0;

    for (i = 0; i < q->n; i++) {
        use = q->subjects[i].use;

        if (q->items[i].count_rejected) {
            return 0;
        }

        if (!q->items[i].verdict.allowed && (use->reserved || use->settles)) {
            n = (use->refusals_hold == NGX_HTTP_RATELIMIT_HOLD_NOT)
                ? 1 : NGX_HTTP_RATELIMIT_REDIS_AGAIN;
            times = ngx_max(times, n);
        }
    }

    return command->again < times;
}


/* it is not known which commands the next replies on this connection are for */

static void
ngx_http_ratelimit_redis_out_of_step(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *text)
{
    ngx_http_ratelimit_redis_disconnect(command->message.connection);

    if (command->message.expired) {
        command->lost = 1;
        ngx_http_ratelimit_redis_release(command);
        return;
    }

    ngx_http_ratelimit_redis_finish(command, NGX_ABORT, text);
}


static void
ngx_http_ratelimit_redis_finish(ngx_http_ratelimit_redis_command_t *command,
    ngx_int_t rc, ngx_str_t *text)
{
    uint64_t                            asked;
    ngx_msec_t                          sent;
    ratelimit_script_e                  op;
    ratelimit_breaker_e                 permit;
    ngx_http_ratelimit_query_t         *q;
    ngx_http_ratelimit_redis_server_t  *server;

    q = command->query;
    op = command->op;
    sent = command->sent;
    server = command->server;
    permit = command->permit;
    asked = command->message.began;

    ngx_http_ratelimit_redis_timeout_remove(command);

    if (command->on_reply) {
        command->on_reply(command, rc, text);
    }

    if (rc == NGX_ABORT || (rc == NGX_ERROR && op == RATELIMIT_SCRIPT_VOID)) {
        command->lost = 1;
    }

    /* what is decided here, as the reply is lost, is reported */

    if (q != NULL && command->lost && op == RATELIMIT_SCRIPT_ASK) {
        ngx_http_ratelimit_redis_undo_cancelled(command, q);
    }

    ngx_http_ratelimit_redis_release_or_retry(command, rc, text);

    if (rc == NGX_OK) {

        if (permit == RATELIMIT_BREAKER_PROBE
            || ngx_http_ratelimit_redis_has_written(q, op))
        {
            ngx_http_ratelimit_redis_success(server, permit);
        }

    } else {
        ngx_http_ratelimit_redis_count(server->owner.shared, errors, 1);

        if (rc == NGX_DECLINED) {
            ngx_http_ratelimit_redis_log_error(server);

        } else {
            ngx_http_ratelimit_redis_failure(server, permit, sent);
        }

        rc = NGX_ERROR;
    }

    ngx_http_ratelimit_redis_done(server, q, op, rc, asked);
}


/*
 * An error of the server says that it has executed nothing, but for rights, and
 * so does that of nodes which do not agree.
 */

static void
ngx_http_ratelimit_redis_release_or_retry(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc, ngx_str_t *text)
{
    if (text != NULL && !command->lost
        && ratelimit_script_settles(command->op)
        && ((rc == NGX_ERROR && !ngx_http_ratelimit_redis_speaks_of_user(text))
            || (rc == NGX_DECLINED
                && ngx_http_ratelimit_redis_speaks_of_slot(text))))
    {
        ngx_http_ratelimit_redis_postpone(command);
        return;
    }

    ngx_http_ratelimit_redis_release(command);
}


/*
 * Whether a reply shows that the server writes.  One that is out of memory, or
 * a replica, goes on answering what needs no writing, between its failures.
 */

static ngx_uint_t
ngx_http_ratelimit_redis_has_written(ngx_http_ratelimit_query_t *q,
    ratelimit_script_e op)
{
    ngx_uint_t  i;

    if (op == RATELIMIT_SCRIPT_EXCHANGE) {
        return 1;
    }

    if (q == NULL || !q->allowed
        || (op != RATELIMIT_SCRIPT_DECIDE && op != RATELIMIT_SCRIPT_ASK))
    {
        return 0;
    }

    for (i = 0; i < q->n; i++) {
        if (q->items[i].cost) {
            return 1;
        }
    }

    return 0;
}


/* only this command has failed, not the server; one line a second */

static void
ngx_http_ratelimit_redis_log_error(ngx_http_ratelimit_redis_server_t *server)
{
    ngx_atomic_uint_t                   last, now;
    ngx_http_ratelimit_redis_shared_t  *shared;

    shared = server->owner.shared;

    now = ngx_time();
    last = shared->logged;

    if (last != now && ngx_atomic_cmp_set(&shared->logged, last, now)) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "ratelimit: redis \"%V\" could not execute a command: "
                      "%*s", &server->owner.label, server->reason_len,
                      server->reason);
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
    ngx_msec_t                          sent;
    ratelimit_script_e                  op;
    ratelimit_breaker_e                 permit;
    ngx_http_ratelimit_query_t         *q;
    ngx_http_ratelimit_redis_server_t  *server;

    q = command->query;
    op = command->op;
    sent = command->sent;
    server = command->server;
    permit = command->permit;

    command->query = NULL;

    if (q != NULL && op == RATELIMIT_SCRIPT_DECIDE) {
        ngx_http_ratelimit_redis_undo_expired(command, q);

    } else if (q != NULL && op == RATELIMIT_SCRIPT_ASK) {

        /* what is decided here is reported */

        ngx_http_ratelimit_redis_undo_cancelled(command, q);
    }

    if (command->on_reply) {
        command->on_reply(command, NGX_ERROR, NULL);
        command->on_reply = NULL;
    }

    ngx_http_ratelimit_redis_count(server->owner.shared, timeouts, 1);

    if (server->nconnections) {
        ngx_http_ratelimit_redis_set_reason(server, NULL,
                                            "no reply within %Mms",
                                            server->redis->timeout);
    }

    ngx_http_ratelimit_redis_connection_expire(&command->message);
    ngx_http_ratelimit_redis_failure(server, permit, sent);

    ngx_http_ratelimit_redis_done(server, q, op, NGX_ERROR, 0);
}


/*
 * Redis has decided at some time since it was asked, by the clock of
 * ngx_http_ratelimit_redis_usec().  The request may be gone after this.
 */

static void
ngx_http_ratelimit_redis_done(ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_query_t *q, ratelimit_script_e op, ngx_int_t rc,
    uint64_t asked)
{
    if (q == NULL) {
        return;
    }

    if (op == RATELIMIT_SCRIPT_PEEK || op == RATELIMIT_SCRIPT_RESET) {

        if (op == RATELIMIT_SCRIPT_RESET && rc == NGX_OK) {

            if (ngx_http_ratelimit_redis_resets_announce(q) == NGX_OK) {
                return;
            }

            rc = NGX_ERROR;
        }

    } else if (rc == NGX_ERROR) {
        ngx_http_ratelimit_redis_count(server->owner.shared, fallbacks, 1);

    } else {
        if (op == RATELIMIT_SCRIPT_DECIDE) {
            ngx_http_ratelimit_redis_mirror_charge(q);
        }

        if (op != RATELIMIT_SCRIPT_REFUSED || !q->allowed) {
            ngx_http_ratelimit_redis_deny_cache_add(q, asked);
        }
    }

    q->done(q, rc);
}
