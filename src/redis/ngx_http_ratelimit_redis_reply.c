
/*
 * What a reply says: the verdicts of all limits, or an error, which speaks of
 * the command or of the server.
 */


#include "redis/ngx_http_ratelimit_redis.h"
#include "redis/ratelimit_exchange.h"


static ngx_int_t ngx_http_ratelimit_redis_parse_error(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *text);
static ngx_int_t ngx_http_ratelimit_redis_parse_verdicts(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *text);


/* cuts the echo of a script off its reply */

ngx_uint_t
ngx_http_ratelimit_redis_is_reply(ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    u_char  *echo;

    if (command->arguments == NULL
        || (type != NGX_HTTP_RATELIMIT_REDIS_STRING
            && type != NGX_HTTP_RATELIMIT_REDIS_OTHER))
    {
        return 1;
    }

    echo = command->last - RATELIMIT_SCRIPT_ECHO - (sizeof(CRLF) - 1);

    if (type == NGX_HTTP_RATELIMIT_REDIS_STRING
        && text->len >= RATELIMIT_SCRIPT_ECHO
        && ngx_memcmp(text->data, echo, RATELIMIT_SCRIPT_ECHO) == 0)
    {
        text->data += RATELIMIT_SCRIPT_ECHO;
        text->len -= RATELIMIT_SCRIPT_ECHO;

        return 1;
    }

    ngx_http_ratelimit_redis_set_reason(command->server, NULL,
                                        "malformed reply");
    return 0;
}


ngx_int_t
ngx_http_ratelimit_redis_parse_reply(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    if (type == NGX_HTTP_RATELIMIT_REDIS_LOST
        || type == NGX_HTTP_RATELIMIT_REDIS_UNREAD)
    {
        return NGX_ERROR;
    }

    if (type == NGX_HTTP_RATELIMIT_REDIS_ERROR) {
        return ngx_http_ratelimit_redis_parse_error(command, text);
    }

    if ((command->query == NULL || command->op == RATELIMIT_SCRIPT_RESET)
        && !(command->probe && type == NGX_HTTP_RATELIMIT_REDIS_STRING))
    {
        return NGX_OK;
    }

    if (type == NGX_HTTP_RATELIMIT_REDIS_STRING && command->query != NULL
        && ngx_http_ratelimit_redis_parse_verdicts(command, text) == NGX_OK)
    {
        return NGX_OK;
    }

    ngx_http_ratelimit_redis_set_reason(command->server, NULL,
                                        "malformed reply");
    return NGX_ABORT;
}


static ngx_int_t
ngx_http_ratelimit_redis_parse_error(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *text)
{
    if (command->eval == NULL && text->len >= sizeof("NOSCRIPT") - 1
        && ngx_strncmp(text->data, "NOSCRIPT", sizeof("NOSCRIPT") - 1) == 0)
    {
        /* without a query, a decision need not be made any more */

        return (!ratelimit_script_settles(command->op)
                && command->op != RATELIMIT_SCRIPT_EXCHANGE
                && command->query == NULL) ? NGX_OK : NGX_AGAIN;
    }

    ngx_http_ratelimit_redis_set_reason(command->server, text, "error reply");

    if (ngx_http_ratelimit_redis_speaks_of_server(text)) {
        return NGX_ERROR;
    }

    return command->probe ? NGX_OK : NGX_DECLINED;
}


/*
 * An error is known by its first word, in Redis 6 by one behind the place in
 * the script that it comes from.  What follows a comma may be a client's key.
 */

ngx_uint_t
ngx_http_ratelimit_redis_speaks_of_server(ngx_str_t *text)
{
    size_t       len;
    u_char      *p, *last;
    ngx_uint_t   i;

    static const char *const  words[] = {
        "OOM ", "READONLY ", "LOADING ", "NOAUTH ", "WRONGPASS ", "BUSY ",
        "MISCONF ", "CLUSTERDOWN ", "MASTERDOWN ", "NOREPLICAS "
    };

    static const char *const  phrases[] = {
        "unknown command", "max number of clients"
    };

    last = ngx_strlchr(text->data, text->data + text->len, ',');

    if (last == NULL) {
        last = text->data + text->len;
    }

    /* other hash slots may be served */

    if (text->len >= sizeof("CLUSTERDOWN Hash slot") - 1
        && ngx_strncmp(text->data, "CLUSTERDOWN Hash slot",
                       sizeof("CLUSTERDOWN Hash slot") - 1)
           == 0)
    {
        return 0;
    }

    for (p = text->data; p < last; p++) {

        for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
            len = ngx_strlen(words[i]);

            if ((size_t) (last - p) >= len
                && ngx_strncmp(p, words[i], len) == 0
                && (p == text->data || p[-1] == '-'))
            {
                return 1;
            }
        }

        for (i = 0; i < sizeof(phrases) / sizeof(phrases[0]); i++) {
            len = ngx_strlen(phrases[i]);

            if ((size_t) (last - p) >= len
                && ngx_strncmp(p, phrases[i], len) == 0)
            {
                return 1;
            }
        }
    }

    return ngx_http_ratelimit_redis_speaks_of_user(text);
}


ngx_uint_t
ngx_http_ratelimit_redis_speaks_of_user(ngx_str_t *text)
{
    size_t   len;
    u_char  *comma;

    comma = ngx_strlchr(text->data, text->data + text->len, ',');
    len = comma ? (size_t) (comma - text->data) : text->len;

    return ngx_strnstr(text->data, "permissions to run", len) != NULL
           || ngx_strnstr(text->data, "can't run this command", len) != NULL;
}


static ngx_int_t
ngx_http_ratelimit_redis_parse_verdicts(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *text)
{
    u_char                      *p;
    ngx_uint_t                   i;
    ngx_http_ratelimit_query_t  *q;

    q = command->query;
    p = ngx_http_ratelimit_redis_verdicts(command, text);

    if (p == NULL) {
        return NGX_ERROR;
    }

    q->allowed = 1;

    for (i = 0; i < q->n; i++) {

        if (!ratelimit_script_verdict(&q->items[i],
                                      p + i * RATELIMIT_SCRIPT_VERDICT))
        {
            return NGX_ERROR;
        }

        q->allowed &= q->items[i].verdict.allowed;
    }

    return NGX_OK;
}


u_char *
ngx_http_ratelimit_redis_verdicts(ngx_http_ratelimit_redis_command_t *command,
    ngx_str_t *reply)
{
    size_t  len;

    len = command->n * RATELIMIT_SCRIPT_VERDICT;

    if (!command->sync) {
        return reply->len == len ? reply->data : NULL;
    }

    len += RATELIMIT_EXCHANGE_TIME + command->n * RATELIMIT_EXCHANGE_GRANT;

    return reply->len >= len ? reply->data + RATELIMIT_EXCHANGE_TIME : NULL;
}
