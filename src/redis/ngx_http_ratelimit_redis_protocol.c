
/*
 * The protocol: one command for all limits of a query, and its reply.
 *
 *   EVALSHA sha n key... op argument...
 *
 * A counter's key is PREFIX{VERSION:KEY}:ZONE:NAME:TAG, where the version is
 * that of the states, and the tag is the period in seconds, the letter of the
 * algorithm and the number of sub-windows.  As the parts behind the key never
 * contain a colon of their own, no two counters have one key; and in a cluster
 * all counters of a client are in one slot, whatever bytes its key begins with.
 */


#include "redis/ngx_http_ratelimit_redis.h"

#include <ngx_sha1.h>


#define NGX_HTTP_RATELIMIT_SHA1_LEN     20
#define NGX_HTTP_RATELIMIT_SHA1_HEX     (2 * NGX_HTTP_RATELIMIT_SHA1_LEN)

/* "$" length CRLF, and the CRLF behind it */
#define NGX_HTTP_RATELIMIT_REDIS_FRAME  (NGX_SIZE_T_LEN + 5)

/* gateways that write other states must have another version */
#define NGX_HTTP_RATELIMIT_REDIS_OPEN   "{2:"

/* bytes of a tag, at most */
#define NGX_HTTP_RATELIMIT_REDIS_TAG    (NGX_INT64_LEN + NGX_INT32_LEN + 1)


typedef struct {
    size_t                          len;
    const char                     *text;
    u_char                          sha[NGX_HTTP_RATELIMIT_SHA1_HEX];
} ngx_http_ratelimit_redis_script_t;


static ngx_http_ratelimit_redis_script_t *ngx_http_ratelimit_redis_script(
    unsigned algorithms);
static ngx_uint_t ngx_http_ratelimit_redis_concerns(ratelimit_item_t *item,
    ratelimit_script_e op);
static size_t ngx_http_ratelimit_redis_measure(
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_query_t *q);
static u_char *ngx_http_ratelimit_redis_write_args(u_char *p,
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_query_t *q);
static u_char *ngx_http_ratelimit_redis_write_key(u_char *p,
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_subject_t *subject,
    ratelimit_item_t *item);
static u_char *ngx_http_ratelimit_redis_write_tag(u_char *p,
    ratelimit_item_t *item);
static u_char *ngx_http_ratelimit_redis_write_len(u_char *p, u_char mark,
    size_t len);
static u_char *ngx_http_ratelimit_redis_write_number(u_char *p,
    uint64_t number);
static ngx_int_t ngx_http_ratelimit_redis_parse_error(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *text);
static ngx_uint_t ngx_http_ratelimit_redis_speaks_of_server(ngx_str_t *text);
static ngx_int_t ngx_http_ratelimit_redis_parse_verdicts(
    ngx_http_ratelimit_query_t *q, ngx_str_t *text);
static u_char *ngx_http_ratelimit_redis_escape(u_char *p, ngx_str_t *text);


/* as ratelimit_scripts[]; the worker computes a SHA1 when it first needs it */

static ngx_http_ratelimit_redis_script_t
    ngx_http_ratelimit_redis_scripts[RATELIMIT_SCRIPTS];


ngx_http_ratelimit_redis_command_t *
ngx_http_ratelimit_redis_create_command(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_query_t *q, ratelimit_script_e op)
{
    u_char                              *p;
    size_t                               len;
    ngx_http_ratelimit_redis_script_t   *script;
    ngx_http_ratelimit_redis_command_t  *command, measured;

    ngx_memzero(&measured, sizeof(ngx_http_ratelimit_redis_command_t));

    measured.server = redis->server;
    measured.op = op;

    len = ngx_http_ratelimit_redis_measure(&measured, q);

    if (measured.n == 0) {
        return NULL;
    }

    command = ngx_alloc(sizeof(ngx_http_ratelimit_redis_command_t) + len,
                        q->pool->log);
    if (command == NULL) {
        return NULL;
    }

    *command = measured;
    script = ngx_http_ratelimit_redis_script(command->algorithms);

    p = ngx_http_ratelimit_redis_write_len(command->data, '*',
                                           4 + 2 * command->n);
    p = ngx_cpymem(p, "$7" CRLF "EVALSHA" CRLF "$40" CRLF,
                   sizeof("$7" CRLF "EVALSHA" CRLF "$40" CRLF) - 1);
    p = ngx_cpymem(p, script->sha, NGX_HTTP_RATELIMIT_SHA1_HEX);

    command->args = p;
    command->last = ngx_http_ratelimit_redis_write_args(p, command, q);

    ngx_http_ratelimit_redis_set_evalsha(command);

    return command;
}


/* SET PREFIXprobe 1 PX 1000 */

ngx_http_ratelimit_redis_command_t *
ngx_http_ratelimit_redis_create_probe(
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_str_t                           *prefix;
    ngx_http_ratelimit_redis_command_t  *command;

    prefix = &server->redis->prefix;

    command = ngx_alloc(sizeof(ngx_http_ratelimit_redis_command_t)
                        + NGX_HTTP_RATELIMIT_REDIS_FRAME + prefix->len
                        + sizeof("*5" CRLF "$3" CRLF "SET" CRLF "probe" CRLF
                                 "$1" CRLF "1" CRLF "$2" CRLF "PX" CRLF
                                 "$4" CRLF "1000" CRLF),
                        ngx_cycle->log);
    if (command == NULL) {
        return NULL;
    }

    ngx_memzero(command, sizeof(ngx_http_ratelimit_redis_command_t));

    command->server = server;
    command->probe = 1;

    command->last = ngx_sprintf(command->data,
                                "*5" CRLF "$3" CRLF "SET" CRLF
                                "$%uz" CRLF "%Vprobe" CRLF
                                "$1" CRLF "1" CRLF "$2" CRLF "PX" CRLF
                                "$4" CRLF "1000" CRLF,
                                prefix->len + sizeof("probe") - 1, prefix);

    ngx_http_ratelimit_redis_set_evalsha(command);

    return command;
}


void
ngx_http_ratelimit_redis_free_command(
    ngx_http_ratelimit_redis_command_t *command)
{
    if (command->eval != NULL) {
        ngx_free(command->eval);
    }

    ngx_free(command);
}


void
ngx_http_ratelimit_redis_set_evalsha(
    ngx_http_ratelimit_redis_command_t *command)
{
    if (command->eval != NULL) {
        ngx_free(command->eval);
        command->eval = NULL;
    }

    command->message.data = command->data;
    command->message.len = command->last - command->data;
}


ngx_int_t
ngx_http_ratelimit_redis_set_eval(ngx_http_ratelimit_redis_command_t *command)
{
    u_char                             *p;
    size_t                              size, args;
    ngx_http_ratelimit_redis_script_t  *script;

    script = ngx_http_ratelimit_redis_script(command->algorithms);

    args = command->last - command->args;
    size = sizeof("*" CRLF "$4" CRLF "EVAL" CRLF) + NGX_INT_T_LEN
           + NGX_HTTP_RATELIMIT_REDIS_FRAME + script->len + args;

    command->eval = ngx_alloc(size, ngx_cycle->log);
    if (command->eval == NULL) {
        return NGX_ERROR;
    }

    p = ngx_http_ratelimit_redis_write_len(command->eval, '*',
                                           4 + 2 * command->n);
    p = ngx_cpymem(p, "$4" CRLF "EVAL" CRLF,
                   sizeof("$4" CRLF "EVAL" CRLF) - 1);
    p = ngx_http_ratelimit_redis_write_len(p, '$', script->len);
    p = ngx_cpymem(p, script->text, script->len);
    p = ngx_cpymem(p, command->args, args);

    command->message.data = command->eval;
    command->message.len = p - command->eval;

    return NGX_OK;
}


static ngx_http_ratelimit_redis_script_t *
ngx_http_ratelimit_redis_script(unsigned algorithms)
{
    u_char                              sha[NGX_HTTP_RATELIMIT_SHA1_LEN];
    unsigned                            i;
    ngx_sha1_t                          sha1;
    ngx_http_ratelimit_redis_script_t  *script;

    i = ratelimit_script_select(algorithms);
    script = &ngx_http_ratelimit_redis_scripts[i];

    if (script->text != NULL) {
        return script;
    }

    script->len = ratelimit_scripts[i].len;
    script->text = ratelimit_scripts[i].text;

    ngx_sha1_init(&sha1);
    ngx_sha1_update(&sha1, script->text, script->len);
    ngx_sha1_final(sha, &sha1);

    ngx_hex_dump(script->sha, sha, NGX_HTTP_RATELIMIT_SHA1_LEN);

    return script;
}


/* whether the operation concerns a limit */

static ngx_uint_t
ngx_http_ratelimit_redis_concerns(ratelimit_item_t *item,
    ratelimit_script_e op)
{
    switch (op) {

    case RATELIMIT_SCRIPT_REFUND:
        return item->cost != 0;

    case RATELIMIT_SCRIPT_COMMIT:
        return item->reserve && item->cost != 0
               && ratelimit_algorithms[item->shape->algorithm]->commit != NULL;

    default:
        return 1;
    }
}


/* counts the limits, too; returns the number of bytes, at most */

static size_t
ngx_http_ratelimit_redis_measure(ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_query_t *q)
{
    size_t                         len;
    ngx_uint_t                     i;
    ngx_http_ratelimit_subject_t  *subject;

    len = sizeof("*" CRLF "$7" CRLF "EVALSHA" CRLF "$40" CRLF)
          + NGX_INT_T_LEN + NGX_HTTP_RATELIMIT_SHA1_HEX
          + sizeof(CRLF "$1" CRLF "c" CRLF)
          + NGX_HTTP_RATELIMIT_REDIS_FRAME + NGX_INT_T_LEN;

    for (i = 0; i < q->n; i++) {

        if (!ngx_http_ratelimit_redis_concerns(&q->items[i], command->op)) {
            continue;
        }

        subject = &q->subjects[i];

        len += NGX_HTTP_RATELIMIT_REDIS_FRAME
               + command->server->redis->prefix.len
               + sizeof(NGX_HTTP_RATELIMIT_REDIS_OPEN) - 1
               + subject->key.len + subject->use->suffix.len
               + NGX_HTTP_RATELIMIT_REDIS_TAG
               + NGX_HTTP_RATELIMIT_REDIS_FRAME + RATELIMIT_SCRIPT_ARGUMENT;

        command->n++;
        command->algorithms |= 1 << subject->use->zone->shape.algorithm;
    }

    return len;
}


/* begins with the end of the line of the script */

static u_char *
ngx_http_ratelimit_redis_write_args(u_char *p,
    ngx_http_ratelimit_redis_command_t *command, ngx_http_ratelimit_query_t *q)
{
    u_char            *last, digits[NGX_INT64_LEN];
    ngx_uint_t         i;
    ratelimit_item_t  *item;

    last = ngx_http_ratelimit_redis_write_number(digits, command->n);

    *p++ = CR; *p++ = LF;
    p = ngx_http_ratelimit_redis_write_len(p, '$', last - digits);
    p = ngx_cpymem(p, digits, last - digits);
    *p++ = CR; *p++ = LF;

    for (i = 0; i < q->n; i++) {
        item = &q->items[i];

        if (ngx_http_ratelimit_redis_concerns(item, command->op)) {
            p = ngx_http_ratelimit_redis_write_key(p, command->server->redis,
                                                   &q->subjects[i], item);
        }
    }

    p = ngx_http_ratelimit_redis_write_len(p, '$', 1);
    *p++ = (u_char) command->op;
    *p++ = CR; *p++ = LF;

    for (i = 0; i < q->n; i++) {
        item = &q->items[i];

        if (!ngx_http_ratelimit_redis_concerns(item, command->op)) {
            continue;
        }

        p = ngx_http_ratelimit_redis_write_len(p, '$',
                                               RATELIMIT_SCRIPT_ARGUMENT);
        ratelimit_script_argument(item, p);

        p += RATELIMIT_SCRIPT_ARGUMENT;
        *p++ = CR; *p++ = LF;
    }

    return p;
}


static u_char *
ngx_http_ratelimit_redis_write_key(u_char *p, ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_subject_t *subject, ratelimit_item_t *item)
{
    u_char  *last, tag[NGX_HTTP_RATELIMIT_REDIS_TAG];

    last = ngx_http_ratelimit_redis_write_tag(tag, item);

    p = ngx_http_ratelimit_redis_write_len(p, '$',
                    redis->prefix.len
                    + sizeof(NGX_HTTP_RATELIMIT_REDIS_OPEN) - 1
                    + subject->key.len + subject->use->suffix.len
                    + (last - tag));

    p = ngx_cpymem(p, redis->prefix.data, redis->prefix.len);
    p = ngx_cpymem(p, NGX_HTTP_RATELIMIT_REDIS_OPEN,
                   sizeof(NGX_HTTP_RATELIMIT_REDIS_OPEN) - 1);
    p = ngx_cpymem(p, subject->key.data, subject->key.len);
    p = ngx_cpymem(p, subject->use->suffix.data, subject->use->suffix.len);
    p = ngx_cpymem(p, tag, last - tag);
    *p++ = CR; *p++ = LF;

    return p;
}


static u_char *
ngx_http_ratelimit_redis_write_tag(u_char *p, ratelimit_item_t *item)
{
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[item->shape->algorithm];

    p = ngx_http_ratelimit_redis_write_number(p, item->rule->period
                                                 / RATELIMIT_SECOND);
    *p++ = (u_char) algorithm->letter;

    if (algorithm->takes & RATELIMIT_TAKES_BUCKETS) {
        p = ngx_http_ratelimit_redis_write_number(p, item->shape->buckets);
    }

    return p;
}


/* the number of arguments or bytes that follow */

static u_char *
ngx_http_ratelimit_redis_write_len(u_char *p, u_char mark, size_t len)
{
    *p++ = mark;
    p = ngx_http_ratelimit_redis_write_number(p, len);
    *p++ = CR; *p++ = LF;

    return p;
}


/* ngx_sprintf() takes ten times as long, and there are many numbers here */

static u_char *
ngx_http_ratelimit_redis_write_number(u_char *p, uint64_t number)
{
    u_char  *d, digits[NGX_INT64_LEN];

    d = digits + NGX_INT64_LEN;

    do {
        *--d = (u_char) ('0' + number % 10);
        number /= 10;
    } while (number);

    return ngx_cpymem(p, d, digits + NGX_INT64_LEN - d);
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

    if (command->query == NULL
        && !(command->probe && type == NGX_HTTP_RATELIMIT_REDIS_STRING))
    {
        return NGX_OK;
    }

    if (type == NGX_HTTP_RATELIMIT_REDIS_STRING && command->query != NULL
        && ngx_http_ratelimit_redis_parse_verdicts(command->query, text)
           == NGX_OK)
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

static ngx_uint_t
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
        "unknown command", "permissions to run", "can't run this command",
        "max number of clients"
    };

    last = ngx_strlchr(text->data, text->data + text->len, ',');

    if (last == NULL) {
        last = text->data + text->len;
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

    return 0;
}


static ngx_int_t
ngx_http_ratelimit_redis_parse_verdicts(ngx_http_ratelimit_query_t *q,
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


/* }:ZONE:NAME: */

ngx_int_t
ngx_http_ratelimit_redis_key_suffix(ngx_conf_t *cf,
    ngx_http_ratelimit_use_t *use)
{
    u_char  *p;

    p = ngx_pnalloc(cf->pool, sizeof("}:::") - 1
                              + 3 * (use->zone->name.len + use->name.len));
    if (p == NULL) {
        return NGX_ERROR;
    }

    use->suffix.data = p;

    *p++ = '}';
    *p++ = ':';
    p = ngx_http_ratelimit_redis_escape(p, &use->zone->name);
    *p++ = ':';
    p = ngx_http_ratelimit_redis_escape(p, &use->name);
    *p++ = ':';

    use->suffix.len = p - use->suffix.data;

    return NGX_OK;
}


static u_char *
ngx_http_ratelimit_redis_escape(u_char *p, ngx_str_t *text)
{
    u_char      c;
    ngx_uint_t  i;

    for (i = 0; i < text->len; i++) {
        c = text->data[i];

        if (c == ':' || c == '%' || c == '{' || c == '}') {
            p = ngx_sprintf(p, "%%%02Xd", (int) c);

        } else {
            *p++ = c;
        }
    }

    return p;
}
