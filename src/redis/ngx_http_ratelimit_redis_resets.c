
/*
 * Resets of keys.  A gateway remembers refusals, so it has to learn when
 * another one has reset a key: each reset has a number, and a gateway that is
 * about to refuse from memory asks Redis for the last one now and then.  When
 * it has changed, all that is remembered is asked again.  Any value is as good
 * as a number, and a reset replaces it.
 *
 * A refusal is believed if the number was known to be the same within the last
 * second, or within the second before Redis went down, as no key is reset then.
 */


#include "redis/ngx_http_ratelimit_redis.h"
#include "redis/ngx_http_ratelimit_redis_nodes.h"


/* milliseconds: when the number is asked for, and how long it is believed */
#define NGX_HTTP_RATELIMIT_REDIS_RESETS_ASK   400
#define NGX_HTTP_RATELIMIT_REDIS_RESETS_KNOW  900


static ngx_int_t ngx_http_ratelimit_redis_resets_send(
    ngx_http_ratelimit_redis_t *redis, uint64_t number,
    ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_redis_on_resets(
    ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);
static void ngx_http_ratelimit_redis_resets_finish(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type);
static void ngx_http_ratelimit_redis_resets_learn(
    ngx_http_ratelimit_redis_shared_t *shared,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text, ngx_msec_t sent);


uint32_t
ngx_http_ratelimit_redis_resets_count(ngx_http_ratelimit_redis_t *redis)
{
    return (uint32_t) redis->shared->reset_count;
}


ngx_uint_t
ngx_http_ratelimit_redis_resets_known(ngx_http_ratelimit_redis_t *redis)
{
    ngx_atomic_uint_t                   now, asked, known;
    ngx_http_ratelimit_redis_server_t  *server;
    ngx_http_ratelimit_redis_shared_t  *shared;

    shared = redis->shared;
    now = ngx_current_msec;
    asked = shared->resets_asked;
    known = shared->resets_known;

    if (now - known >= NGX_HTTP_RATELIMIT_REDIS_RESETS_ASK
        && (now - asked >= NGX_HTTP_RATELIMIT_REDIS_RESETS_ASK || asked == 0)
        && ngx_atomic_cmp_set(&shared->resets_asked, asked, now))
    {
        (void) ngx_http_ratelimit_redis_resets_send(redis, 0, NULL);
    }

    if (known == 0) {
        return 0;
    }

    server = ngx_http_ratelimit_redis_route(redis,
                                       ngx_http_ratelimit_redis_resets_slot());
    shared = server->owner.shared;

    if (ratelimit_breaker_is_open(&shared->breaker)) {
        now = shared->failing;
    }

    return (ngx_atomic_int_t) (now - known)
           < NGX_HTTP_RATELIMIT_REDIS_RESETS_KNOW;
}


/* no other reset has the number */

ngx_int_t
ngx_http_ratelimit_redis_resets_announce(ngx_http_ratelimit_query_t *q)
{
    return ngx_http_ratelimit_redis_resets_send(
                                q->subjects[0].use->zone->redis,
                                (uint64_t) ngx_time() << 31 | ngx_random(), q);
}


static ngx_int_t
ngx_http_ratelimit_redis_resets_send(ngx_http_ratelimit_redis_t *redis,
    uint64_t number, ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_redis_command_t  *command;

    command = ngx_http_ratelimit_redis_create_resets(redis, number);
    if (command == NULL) {
        return NGX_ERROR;
    }

    /* a request finds out whether it is up again, by a probe that writes */

    if (ratelimit_breaker_is_open(&command->server->owner.shared->breaker)) {
        ngx_http_ratelimit_redis_free_command(command);
        return NGX_ERROR;
    }

    command->op = q ? RATELIMIT_SCRIPT_RESET : RATELIMIT_SCRIPT_PEEK;
    command->message.handler = ngx_http_ratelimit_redis_on_resets;

    if (ngx_http_ratelimit_redis_send(command) != NGX_OK) {
        return NGX_ERROR;
    }

    if (q != NULL) {
        command->query = q;
        q->pending = command;
    }

    return NGX_OK;
}


static void
ngx_http_ratelimit_redis_on_resets(
    ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    ngx_msec_t                           sent;
    ratelimit_script_e                   op;
    ngx_http_ratelimit_query_t          *q;
    ngx_http_ratelimit_redis_shared_t   *shared;
    ngx_http_ratelimit_redis_command_t  *command;

    command = (ngx_http_ratelimit_redis_command_t *) message;

    if (message->expired) {
        ngx_http_ratelimit_redis_free_command(command);
        return;
    }

    if (ngx_http_ratelimit_redis_redirect(command, type, text) == NGX_OK
        || (type == NGX_HTTP_RATELIMIT_REDIS_UNREAD
            && ngx_http_ratelimit_redis_resend(command) == NGX_OK))
    {
        return;
    }

    q = command->query;
    op = command->op;

    if (type == NGX_HTTP_RATELIMIT_REDIS_STRING && op != RATELIMIT_SCRIPT_PEEK)
    {
        /* it is a reply to something else */

        ngx_http_ratelimit_redis_disconnect(message->connection);
        type = NGX_HTTP_RATELIMIT_REDIS_LOST;
    }

    sent = command->sent;
    shared = command->server->redis->shared;

    ngx_http_ratelimit_redis_resets_finish(command, type);

    if (op == RATELIMIT_SCRIPT_PEEK) {
        ngx_http_ratelimit_redis_resets_learn(shared, type, text, sent);
        return;
    }

    (void) ngx_atomic_fetch_add(&shared->reset_count, 1);

    if (q != NULL) {
        q->done(q, (type == NGX_HTTP_RATELIMIT_REDIS_OTHER) ? NGX_OK
                                                            : NGX_ERROR);
    }
}


/* the command is freed; a number that is read tells the breaker nothing */

static void
ngx_http_ratelimit_redis_resets_finish(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type)
{
    ngx_msec_t                          sent;
    ratelimit_breaker_e                 permit;
    ngx_http_ratelimit_redis_server_t  *server;

    sent = command->sent;
    permit = command->permit;
    server = command->server;

    ngx_http_ratelimit_redis_timeout_remove(command);
    ngx_http_ratelimit_redis_free_command(command);

    if (type == NGX_HTTP_RATELIMIT_REDIS_LOST
        || type == NGX_HTTP_RATELIMIT_REDIS_UNREAD)
    {
        ngx_http_ratelimit_redis_failure(server, permit, sent);
        return;
    }

    /* what failed before was no outage */

    server->owner.shared->failing = 0;

    if (type == NGX_HTTP_RATELIMIT_REDIS_ERROR) {
        ngx_http_ratelimit_redis_count(server->owner.shared, errors, 1);
    }
}


/* a number that may not be asked for is taken to be the same */

static void
ngx_http_ratelimit_redis_resets_learn(
    ngx_http_ratelimit_redis_shared_t *shared,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text, ngx_msec_t sent)
{
    ngx_atomic_uint_t  resets;

    switch (type) {

    case NGX_HTTP_RATELIMIT_REDIS_LOST:
    case NGX_HTTP_RATELIMIT_REDIS_UNREAD:
        return;

    case NGX_HTTP_RATELIMIT_REDIS_STRING:
        resets = ngx_crc32_short(text->data, text->len);
        break;

    case NGX_HTTP_RATELIMIT_REDIS_ERROR:
        resets = shared->resets;
        break;

    default: /* there was no reset yet */
        resets = 0;
        break;
    }

    if (resets != shared->resets) {
        shared->resets = resets;
        (void) ngx_atomic_fetch_add(&shared->reset_count, 1);
    }

    shared->resets_known = sent;
}
