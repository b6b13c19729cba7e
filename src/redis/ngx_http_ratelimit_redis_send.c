
/*
 * A command's way to a server: the breaker permits it, a probe goes before it,
 * and refunds wait until the server is up.  A cluster may redirect it.
 */


#include "redis/ngx_http_ratelimit_redis_nodes.h"


/* how often a command that was not executed is sent again, at most */
#define NGX_HTTP_RATELIMIT_REDIS_SENDINGS  5


static ngx_int_t ngx_http_ratelimit_redis_probe(
    ngx_http_ratelimit_redis_command_t *command);
static ngx_int_t ngx_http_ratelimit_redis_transmit_probe(
    ngx_http_ratelimit_redis_server_t *server, uint16_t slot, ngx_str_t *tag,
    ngx_http_ratelimit_redis_reply_pt handler);
static ngx_int_t ngx_http_ratelimit_redis_transmit(
    ngx_http_ratelimit_redis_command_t *command, ratelimit_breaker_e permit);
static void ngx_http_ratelimit_redis_start(
    ngx_http_ratelimit_redis_command_t *command, ratelimit_breaker_e permit);
static ngx_int_t ngx_http_ratelimit_redis_resend_to(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_server_t *server, ngx_uint_t asking);
static void ngx_http_ratelimit_redis_send_later(
    ngx_http_ratelimit_redis_command_t *command);
static ngx_int_t ngx_http_ratelimit_redis_retry(
    ngx_http_ratelimit_redis_command_t *command);
static ngx_uint_t ngx_http_ratelimit_redis_is_late(
    ngx_http_ratelimit_redis_command_t *command);
static ngx_int_t ngx_http_ratelimit_redis_follow(
    ngx_http_ratelimit_redis_command_t *command,
    ratelimit_redirect_t *redirect);
static void ngx_http_ratelimit_redis_find_address(
    ngx_http_ratelimit_redis_server_t *server, ngx_uint_t ask);
static void ngx_http_ratelimit_redis_ask_later(
    ngx_http_ratelimit_redis_command_t *command);
static ngx_uint_t ngx_http_ratelimit_redis_begins(ngx_str_t *text,
    const char *prefix);


ngx_int_t
ngx_http_ratelimit_redis_send(ngx_http_ratelimit_redis_command_t *command)
{
    ratelimit_breaker_e  permit;

    permit = ngx_http_ratelimit_redis_permit(command->server);

    if (permit == RATELIMIT_BREAKER_STOP) {

        if (!ratelimit_script_settles(command->op)) {
            ngx_http_ratelimit_redis_free_command(command);
            return NGX_ERROR;
        }

        ngx_http_ratelimit_redis_postpone(command);

        return NGX_OK;
    }

    if (permit == RATELIMIT_BREAKER_PROBE
        && ngx_http_ratelimit_redis_probe(command) != NGX_OK)
    {
        ngx_http_ratelimit_redis_free_command(command);
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_redis_transmit(command, RATELIMIT_BREAKER_GO);
}


/* a probe writes; the command that follows it may need to read alone */

static ngx_int_t
ngx_http_ratelimit_redis_probe(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_str_t  tag;

    ngx_http_ratelimit_redis_find_tag(command, &tag);

    return ngx_http_ratelimit_redis_transmit_probe(command->server,
                                                   command->slot, &tag,
                                                   command->message.handler);
}


static ngx_int_t
ngx_http_ratelimit_redis_transmit_probe(
    ngx_http_ratelimit_redis_server_t *server, uint16_t slot, ngx_str_t *tag,
    ngx_http_ratelimit_redis_reply_pt handler)
{
    ngx_http_ratelimit_redis_command_t  *probe;

    probe = ngx_http_ratelimit_redis_create_probe(server, slot, tag);
    if (probe == NULL) {
        return NGX_ERROR;
    }

    probe->message.handler = handler;

    return ngx_http_ratelimit_redis_transmit(probe, RATELIMIT_BREAKER_PROBE);
}


void
ngx_http_ratelimit_redis_send_probe(ngx_http_ratelimit_redis_server_t *server,
    uint16_t slot, ngx_str_t *tag, ngx_http_ratelimit_redis_reply_pt handler)
{
    if (ngx_http_ratelimit_redis_permit(server) == RATELIMIT_BREAKER_PROBE) {
        (void) ngx_http_ratelimit_redis_transmit_probe(server, slot, tag,
                                                       handler);
    }
}


static ngx_int_t
ngx_http_ratelimit_redis_transmit(ngx_http_ratelimit_redis_command_t *command,
    ratelimit_breaker_e permit)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

    ngx_http_ratelimit_redis_start(command, permit);

    if (ngx_http_ratelimit_redis_server_send(server, &command->message)
        != NGX_OK)
    {
        command->lost = (command->op == RATELIMIT_SCRIPT_VOID);
        ngx_http_ratelimit_redis_release(command);
        ngx_http_ratelimit_redis_failure(server, permit, ngx_current_msec);
        return NGX_ERROR;
    }

    ngx_http_ratelimit_redis_timeout_add(command);

    ngx_http_ratelimit_redis_count(server->owner.shared, commands, 1);

    return NGX_OK;
}


/* its time begins */

static void
ngx_http_ratelimit_redis_start(ngx_http_ratelimit_redis_command_t *command,
    ratelimit_breaker_e permit)
{
    command->permit = permit;
    command->sent = ngx_current_msec;
    command->written = ngx_current_msec;
    command->deadline = ngx_current_msec + command->server->redis->timeout;
}


void
ngx_http_ratelimit_redis_release(ngx_http_ratelimit_redis_command_t *command)
{
    if (ngx_http_ratelimit_redis_void(command) != NGX_OK) {
        ngx_http_ratelimit_redis_free_command(command);
        return;
    }

    command->query = NULL;
    command->on_reply = NULL;

    ngx_http_ratelimit_redis_postpone(command);
}


/* a command without a query, for which there is time; it may be freed */

static void
ngx_http_ratelimit_redis_send_later(
    ngx_http_ratelimit_redis_command_t *command)
{
    if (!command->message.expired) {
        ngx_http_ratelimit_redis_timeout_remove(command);
        ngx_http_ratelimit_redis_success(command->server, command->permit);
    }

    ngx_http_ratelimit_redis_postpone(command);
}


void
ngx_http_ratelimit_redis_postpone(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

    if (command->postponed == 0) {
        command->postponed = ngx_current_msec;
    }

    if (server->npostponed == NGX_HTTP_RATELIMIT_REDIS_POSTPONED
        || ngx_http_ratelimit_redis_is_late(command))
    {
        ngx_http_ratelimit_redis_free_command(command);
        return;
    }

    command->message.expired = 0;
    command->message.asking = 0;
    command->sendings = 0;

    ngx_queue_insert_tail(&server->postponed, &command->queue);
    server->npostponed++;

    if (!server->retry.timer_set) {
        ngx_add_timer(&server->retry, NGX_HTTP_RATELIMIT_REDIS_RETRY);
    }
}


void
ngx_http_ratelimit_redis_retry_handler(ngx_event_t *ev)
{
    ngx_queue_t                         *q;
    ngx_uint_t                           n;
    ngx_http_ratelimit_redis_server_t   *server;
    ngx_http_ratelimit_redis_command_t  *command;

    server = ngx_http_ratelimit_timer_data(ev);

    /* what can't be sent may be postponed once more */

    for (n = server->npostponed; n; n--) {
        q = ngx_queue_head(&server->postponed);
        command = ngx_queue_data(q, ngx_http_ratelimit_redis_command_t, queue);

        if (ngx_http_ratelimit_redis_retry(command) == NGX_AGAIN) {
            break;
        }
    }

    if (server->npostponed && !ev->timer_set) {
        ngx_add_timer(ev, NGX_HTTP_RATELIMIT_REDIS_RETRY);
    }
}


/* NGX_AGAIN if the server is still down, and it is not too late */

static ngx_int_t
ngx_http_ratelimit_redis_retry(ngx_http_ratelimit_redis_command_t *command)
{
    ratelimit_breaker_e                 permit;
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

    command->server = ngx_http_ratelimit_redis_route(server->redis,
                                                     command->slot);
    permit = ngx_http_ratelimit_redis_permit(command->server);

    if (permit == RATELIMIT_BREAKER_PROBE
        && ngx_http_ratelimit_redis_probe(command) != NGX_OK)
    {
        permit = RATELIMIT_BREAKER_STOP;
    }

    if (permit == RATELIMIT_BREAKER_STOP
        && !ngx_http_ratelimit_redis_is_late(command))
    {
        command->server = server;
        return NGX_AGAIN;
    }

    ngx_queue_remove(&command->queue);
    server->npostponed--;

    if (permit == RATELIMIT_BREAKER_STOP) {
        ngx_http_ratelimit_redis_free_command(command);
        return NGX_OK;
    }

    (void) ngx_http_ratelimit_redis_transmit(command, RATELIMIT_BREAKER_GO);

    return NGX_OK;
}


/*
 * However often a server that can't execute it was tried meanwhile.  A question
 * stays in the record of its counter, so it is never too late to make it void.
 */

static ngx_uint_t
ngx_http_ratelimit_redis_is_late(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_msec_t  age;

    if (command->op == RATELIMIT_SCRIPT_VOID && !ngx_exiting) {
        return 0;
    }

    age = ngx_exiting ? NGX_HTTP_RATELIMIT_REDIS_EXIT
                      : NGX_HTTP_RATELIMIT_REDIS_LISTEN;

    return ngx_current_msec - command->postponed >= age;
}


void
ngx_http_ratelimit_redis_send_undo(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

    if (!command->message.expired) {
        ngx_http_ratelimit_redis_timeout_remove(command);
        ngx_http_ratelimit_redis_success(server, command->permit);
    }

    command->message.expired = 0;

    ngx_http_ratelimit_redis_start(command, RATELIMIT_BREAKER_GO);

    if (ngx_http_ratelimit_redis_connection_send(command->message.connection,
                                                 &command->message)
        != NGX_OK)
    {
        ngx_http_ratelimit_redis_free_command(command);
        return;
    }

    ngx_http_ratelimit_redis_timeout_add(command);

    ngx_http_ratelimit_redis_count(server->owner.shared, commands, 1);
}


ngx_int_t
ngx_http_ratelimit_redis_resend(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

    if (!command->probe) {
        server = ngx_http_ratelimit_redis_route(server->redis, command->slot);
    }

    return ngx_http_ratelimit_redis_resend_to(command, server, 0);
}


static ngx_int_t
ngx_http_ratelimit_redis_resend_to(ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_server_t *server, ngx_uint_t asking)
{
    if (command->sendings == NGX_HTTP_RATELIMIT_REDIS_SENDINGS) {
        return NGX_ABORT;
    }

    command->sendings++;
    command->message.asking = asking;

    if (command->server != server) {
        ngx_http_ratelimit_redis_timeout_remove(command);
        command->server = server;
        ngx_http_ratelimit_redis_timeout_add(command);

        if (ratelimit_breaker_is_open(&server->owner.shared->breaker)) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_ratelimit_redis_server_send(server, &command->message)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_redis_count(server->owner.shared, commands, 1);

    return NGX_OK;
}


/*
 * A node of a cluster says that it has not executed a command, and what to do:
 * to ask another node (MOVED, ASK), or the same one a bit later (TRYAGAIN).  A
 * command that settles a decision is not lost by the time that this takes.
 */

ngx_int_t
ngx_http_ratelimit_redis_redirect(ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    ratelimit_redirect_t         redirect;
    ngx_http_ratelimit_redis_t  *redis;

    redis = command->server->redis;

    if (!redis->cluster || command->probe
        || type != NGX_HTTP_RATELIMIT_REDIS_ERROR)
    {
        return NGX_DECLINED;
    }

    if (ngx_http_ratelimit_redis_begins(text, "TRYAGAIN ")) {

        if (ratelimit_script_settles(command->op)) {
            ngx_http_ratelimit_redis_send_later(command);
            return NGX_OK;
        }

        if (command->message.expired) {
            return NGX_DECLINED;
        }

        ngx_http_ratelimit_redis_ask_later(command);
        return NGX_OK;
    }

    if (ngx_http_ratelimit_redis_begins(text, "CLUSTERDOWN ")) {
        ngx_http_ratelimit_redis_discover(redis->discovery);

        if (!ratelimit_script_settles(command->op)
            || ngx_http_ratelimit_redis_speaks_of_server(text))
        {
            return NGX_DECLINED;
        }

        ngx_http_ratelimit_redis_send_later(command);
        return NGX_OK;
    }

    if (!ratelimit_cluster_redirect((char *) text->data, text->len, &redirect)
        || (command->message.expired && !ratelimit_script_settles(command->op)))
    {
        return NGX_DECLINED;
    }

    return ngx_http_ratelimit_redis_follow(command, &redirect);
}


ngx_uint_t
ngx_http_ratelimit_redis_speaks_of_slot(ngx_str_t *text)
{
    ratelimit_redirect_t  redirect;

    return ngx_http_ratelimit_redis_begins(text, "CLUSTERDOWN ")
           || ratelimit_cluster_redirect((char *) text->data, text->len,
                                         &redirect);
}


/* a hash slot that has moved is known to all workers at once */

static ngx_int_t
ngx_http_ratelimit_redis_follow(ngx_http_ratelimit_redis_command_t *command,
    ratelimit_redirect_t *redirect)
{
    ngx_str_t                           host, address;
    ngx_uint_t                          number;
    ngx_http_ratelimit_redis_t         *redis;
    ngx_http_ratelimit_redis_server_t  *server;

    redis = command->server->redis;

    host.data = (u_char *) redirect->host;
    host.len = redirect->len;

    if (host.len == 0) {
        host = command->server->endpoint.host;
    }

    ngx_str_null(&address);

    number = ngx_http_ratelimit_redis_nodes_add(redis->nodes, &host,
                                                (in_port_t) redirect->port,
                                                &address);

    server = number ? ngx_http_ratelimit_redis_node_server(redis->nodes, number)
                    : NULL;

    if (server != NULL && server->naddrs == 0 && !command->message.expired) {

        ngx_http_ratelimit_redis_find_address(server, redirect->ask);
        ngx_http_ratelimit_redis_ask_later(command);
        return NGX_OK;
    }

    if (server != NULL && !redirect->ask) {
        redis->nodes->directory->map[redirect->slot] = (uint16_t) number;
        ngx_http_ratelimit_redis_discover(redis->discovery);
    }

    if (command->message.expired) {
        ngx_http_ratelimit_redis_send_later(command);
        return NGX_OK;
    }

    if (server == NULL) {
        return NGX_DECLINED;
    }

    ngx_http_ratelimit_redis_success(command->server, command->permit);

    ngx_http_ratelimit_redis_set_reason(command->server, NULL,
                                        "too many redirections");

    return ngx_http_ratelimit_redis_resend_to(command, server, redirect->ask);
}


/*
 * A resolver knows where it is, or the map, but that is not the address of a
 * node which has no hash slots yet.
 */

static void
ngx_http_ratelimit_redis_find_address(ngx_http_ratelimit_redis_server_t *server,
    ngx_uint_t ask)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = server->redis;

    if (ask && !server->named && !server->unknown) {
        server->unknown = 1;

        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "ratelimit: redis \"%V\" asks \"%V\" about some keys, "
                      "which needs a resolver until the cluster announces its "
                      "address", &redis->name, &server->endpoint.host);
    }

    ngx_http_ratelimit_redis_resolve(server);
    ngx_http_ratelimit_redis_discover(redis->discovery);
}


/*
 * the command is sent again after a pause, any number of times before its
 * deadline
 */

static void
ngx_http_ratelimit_redis_ask_later(ngx_http_ratelimit_redis_command_t *command)
{
    command->sendings = 0;

    ngx_http_ratelimit_redis_nodes_pause(command->server->redis->nodes,
                                         command->server, &command->message);
}


static ngx_uint_t
ngx_http_ratelimit_redis_begins(ngx_str_t *text, const char *prefix)
{
    return text->len >= ngx_strlen(prefix)
           && ngx_strncmp(text->data, prefix, ngx_strlen(prefix)) == 0;
}
