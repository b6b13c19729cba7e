
/*
 * Commands as bytes: one for all limits of a query, and the names of counters.
 *
 *   EVALSHA sha n key... op argument... echo
 *
 * The echo is a number of the command, and the reply begins with it: a reply of
 * another command, from a server that is out of step, is not taken for it.
 *
 * With write-back there are the keys of their records, too, KEY:m, and n is
 * twice as much.
 *
 * A counter's key is PREFIX{VERSION:KEY}:ZONE:NAME:TAG, where the version is
 * that of the states, and the tag is the period in seconds, the letter of the
 * algorithm and the number of sub-windows.  As the parts behind the key never
 * contain a colon of their own, no two counters have one key; and in a cluster
 * all counters of a client are in one slot, whatever bytes its key begins with.
 */


#include "redis/ngx_http_ratelimit_redis_nodes.h"
#include "core/ratelimit_text.h"

#include <ngx_sha1.h>


#define NGX_HTTP_RATELIMIT_SHA1_LEN     20
#define NGX_HTTP_RATELIMIT_SHA1_HEX     (2 * NGX_HTTP_RATELIMIT_SHA1_LEN)

/* "$" length CRLF, and the CRLF behind it */
#define NGX_HTTP_RATELIMIT_REDIS_FRAME  (NGX_SIZE_T_LEN + 5)

/* bytes of a command without its limits, at most */
#define NGX_HTTP_RATELIMIT_REDIS_HEAD                                         \
    (sizeof("*" CRLF "$7" CRLF "EVALSHA" CRLF "$40" CRLF)                     \
     + NGX_INT_T_LEN + NGX_HTTP_RATELIMIT_SHA1_HEX                            \
     + sizeof(CRLF "$1" CRLF "c" CRLF)                                        \
     + NGX_HTTP_RATELIMIT_REDIS_FRAME + NGX_INT_T_LEN                         \
     + NGX_HTTP_RATELIMIT_REDIS_FRAME + RATELIMIT_SCRIPT_ECHO)

#define NGX_HTTP_RATELIMIT_REDIS_PROBE                                        \
    "return redis.call('SET', KEYS[1], 1, 'PX', 1000)"

/* gateways that write other states must have another version */
#define NGX_HTTP_RATELIMIT_REDIS_OPEN   "{2:"

/* behind the key of a counter: that of its record */
#define NGX_HTTP_RATELIMIT_REDIS_MARK   ":m"

/* bytes of a tag, at most */
#define NGX_HTTP_RATELIMIT_REDIS_TAG    (NGX_INT64_LEN + NGX_INT32_LEN + 1)


typedef struct {
    size_t                          len;
    const char                     *text;
    u_char                          sha[NGX_HTTP_RATELIMIT_SHA1_HEX];
} ngx_http_ratelimit_redis_script_t;


static u_char *ngx_http_ratelimit_redis_write_script(
    ngx_http_ratelimit_redis_command_t *command);
static ngx_http_ratelimit_redis_script_t *ngx_http_ratelimit_redis_script(
    unsigned algorithms, unsigned sync);
static u_char *ngx_http_ratelimit_redis_write_rows(u_char *p,
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_row_t *rows);
static u_char *ngx_http_ratelimit_redis_write_keys(u_char *p, ngx_uint_t n);
static u_char *ngx_http_ratelimit_redis_write_op(u_char *p,
    ngx_http_ratelimit_redis_command_t *command);
static u_char *ngx_http_ratelimit_redis_write_echo(u_char *p);
static u_char *ngx_http_ratelimit_redis_write_text(u_char *p, ngx_str_t *text,
    const char *mark);
static ngx_uint_t ngx_http_ratelimit_redis_slot_of(
    ngx_http_ratelimit_redis_t *redis, u_char *name, size_t len);
static ngx_uint_t ngx_http_ratelimit_redis_slot(
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *key);
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
static u_char *ngx_http_ratelimit_redis_escape(u_char *p, ngx_str_t *text);


/* as ratelimit_scripts[]; the worker computes a SHA1 when it first needs it */

static ngx_http_ratelimit_redis_script_t
    ngx_http_ratelimit_redis_scripts[RATELIMIT_SCRIPTS];
static ngx_http_ratelimit_redis_script_t
    ngx_http_ratelimit_redis_sync_scripts[RATELIMIT_SCRIPTS];


ngx_http_ratelimit_redis_command_t *
ngx_http_ratelimit_redis_create_command(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_query_t *q, ratelimit_script_e op)
{
    u_char                              *p;
    size_t                               len;
    ngx_http_ratelimit_redis_command_t  *command, measured;

    ngx_memzero(&measured, sizeof(ngx_http_ratelimit_redis_command_t));

    measured.op = op;
    measured.slot = (uint16_t) q->subjects[0].part;
    measured.server = ngx_http_ratelimit_redis_route(redis, measured.slot);

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

    p = ngx_http_ratelimit_redis_write_script(command);
    command->last = ngx_http_ratelimit_redis_write_args(p, command, q);

    ngx_http_ratelimit_redis_set_evalsha(command);

    return command;
}


ngx_http_ratelimit_redis_command_t *
ngx_http_ratelimit_redis_create_rows(ngx_http_ratelimit_redis_t *redis,
    ratelimit_script_e op, ngx_http_ratelimit_redis_row_t *rows, ngx_uint_t n)
{
    u_char                              *p;
    size_t                               len;
    ngx_uint_t                           i;
    ngx_http_ratelimit_redis_command_t  *command;

    len = NGX_HTTP_RATELIMIT_REDIS_HEAD;

    for (i = 0; i < n; i++) {
        len += 2 * (NGX_HTTP_RATELIMIT_REDIS_FRAME + rows[i].name.len)
               + sizeof(NGX_HTTP_RATELIMIT_REDIS_MARK) - 1
               + NGX_HTTP_RATELIMIT_REDIS_FRAME + RATELIMIT_SCRIPT_ARGUMENT
               + rows[i].tail_len;
    }

    command = ngx_alloc(sizeof(ngx_http_ratelimit_redis_command_t) + len,
                        ngx_cycle->log);
    if (command == NULL) {
        return NULL;
    }

    ngx_memzero(command, sizeof(ngx_http_ratelimit_redis_command_t));

    command->slot = (uint16_t) ngx_http_ratelimit_redis_slot_of(redis,
                                                           rows[0].name.data,
                                                           rows[0].name.len);
    command->server = ngx_http_ratelimit_redis_route(redis, command->slot);
    command->op = op;
    command->n = n;
    command->sync = 1;

    for (i = 0; i < n; i++) {
        command->algorithms |= 1 << rows[i].item->shape->algorithm;
    }

    p = ngx_http_ratelimit_redis_write_script(command);
    command->last = ngx_http_ratelimit_redis_write_rows(p, command, rows);

    ngx_http_ratelimit_redis_set_evalsha(command);

    return command;
}


ngx_uint_t
ngx_http_ratelimit_redis_row_stops(ngx_http_ratelimit_redis_t *redis,
    u_char *name, size_t len)
{
    ngx_uint_t  slot;

    slot = ngx_http_ratelimit_redis_slot_of(redis, name, len);

    return ngx_http_ratelimit_redis_stops(ngx_http_ratelimit_redis_route(redis,
                                                                       slot));
}


/* of a counter of this name */

static ngx_uint_t
ngx_http_ratelimit_redis_slot_of(ngx_http_ratelimit_redis_t *redis,
    u_char *name, size_t len)
{
    ngx_str_t  key;

    key.data = name + redis->prefix.len
               + sizeof(NGX_HTTP_RATELIMIT_REDIS_OPEN) - 1;
    key.len = name + len - key.data;

    return ngx_http_ratelimit_redis_slot(redis, &key);
}


/* returns where the arguments begin, with the end of the script's line */

static u_char *
ngx_http_ratelimit_redis_write_script(
    ngx_http_ratelimit_redis_command_t *command)
{
    u_char                             *p;
    ngx_http_ratelimit_redis_script_t  *script;

    script = ngx_http_ratelimit_redis_script(command->algorithms,
                                             command->sync);

    p = ngx_http_ratelimit_redis_write_len(command->data, '*',
                                  5 + (command->sync ? 3 : 2) * command->n);
    p = ngx_cpymem(p, "$7" CRLF "EVALSHA" CRLF "$40" CRLF,
                   sizeof("$7" CRLF "EVALSHA" CRLF "$40" CRLF) - 1);
    p = ngx_cpymem(p, script->sha, NGX_HTTP_RATELIMIT_SHA1_HEX);

    command->args = p;

    return p;
}


/* GET PREFIX{resets}, or SET PREFIX{resets} NUMBER */

ngx_http_ratelimit_redis_command_t *
ngx_http_ratelimit_redis_create_resets(ngx_http_ratelimit_redis_t *redis,
    uint64_t number)
{
    u_char                              *p, digits[NGX_INT64_LEN];
    size_t                               len;
    ngx_http_ratelimit_redis_command_t  *command;

    len = redis->prefix.len + sizeof("{resets}") - 1;

    command = ngx_alloc(sizeof(ngx_http_ratelimit_redis_command_t)
                        + sizeof("*3" CRLF "$3" CRLF "SET" CRLF)
                        + NGX_HTTP_RATELIMIT_REDIS_FRAME + len
                        + NGX_HTTP_RATELIMIT_REDIS_FRAME + NGX_INT64_LEN,
                        ngx_cycle->log);
    if (command == NULL) {
        return NULL;
    }

    ngx_memzero(command, sizeof(ngx_http_ratelimit_redis_command_t));

    command->slot = ngx_http_ratelimit_redis_resets_slot();
    command->server = ngx_http_ratelimit_redis_route(redis, command->slot);

    command->args = command->data;

    p = ngx_sprintf(command->data,
                    "*%d" CRLF "$3" CRLF "%s" CRLF "$%uz" CRLF "%V{resets}"
                    CRLF, number ? 3 : 2, number ? "SET" : "GET", len,
                    &redis->prefix);

    if (number) {
        len = ngx_sprintf(digits, "%uL", number) - digits;
        p = ngx_sprintf(p, "$%uz" CRLF "%*s" CRLF, len, len, digits);
    }

    command->last = p;

    ngx_http_ratelimit_redis_set_evalsha(command);

    return command;
}


uint16_t
ngx_http_ratelimit_redis_resets_slot(void)
{
    return (uint16_t) ratelimit_cluster_slot("resets", sizeof("resets") - 1,
                                             "", 0);
}


/*
 * A script, as the commands are, that writes PREFIXprobe, in a cluster with the
 * tag of the command's keys.
 */

ngx_http_ratelimit_redis_command_t *
ngx_http_ratelimit_redis_create_probe(
    ngx_http_ratelimit_redis_server_t *server, uint16_t slot, ngx_str_t *tag)
{
    ngx_str_t                           *prefix;
    ngx_http_ratelimit_redis_command_t  *probe;

    prefix = &server->redis->prefix;

    probe = ngx_alloc(sizeof(ngx_http_ratelimit_redis_command_t)
                      + sizeof("*4" CRLF "$4" CRLF "EVAL" CRLF)
                      + NGX_HTTP_RATELIMIT_REDIS_FRAME
                      + sizeof(NGX_HTTP_RATELIMIT_REDIS_PROBE)
                      + sizeof("$1" CRLF "1" CRLF "probe" CRLF)
                      + NGX_HTTP_RATELIMIT_REDIS_FRAME + prefix->len + tag->len,
                      ngx_cycle->log);
    if (probe == NULL) {
        return NULL;
    }

    ngx_memzero(probe, sizeof(ngx_http_ratelimit_redis_command_t));

    probe->server = server;
    probe->slot = slot;
    probe->probe = 1;

    probe->last = ngx_sprintf(probe->data,
                              "*4" CRLF "$4" CRLF "EVAL" CRLF
                              "$%uz" CRLF NGX_HTTP_RATELIMIT_REDIS_PROBE CRLF
                              "$1" CRLF "1" CRLF "$%uz" CRLF "%V%Vprobe" CRLF,
                              sizeof(NGX_HTTP_RATELIMIT_REDIS_PROBE) - 1,
                              prefix->len + tag->len + sizeof("probe") - 1,
                              prefix, tag);

    ngx_http_ratelimit_redis_set_evalsha(probe);

    return probe;
}


void
ngx_http_ratelimit_redis_find_tag(ngx_http_ratelimit_redis_command_t *command,
    ngx_str_t *tag)
{
    u_char  *p, *end;

    ngx_str_null(tag);

    if (!command->server->redis->cluster) {
        return;
    }

    /* the prefix has no braces, nor has what stands before it */

    p = ngx_strlchr(command->args, command->last, '{');
    end = p ? ngx_strlchr(p, command->last, '}') : NULL;

    if (end != NULL) {
        tag->data = p;
        tag->len = end + 1 - p;
    }
}


static ngx_uint_t
ngx_http_ratelimit_redis_slot(ngx_http_ratelimit_redis_t *redis,
    ngx_str_t *key)
{
    if (!redis->cluster) {
        return 0;
    }

    return ratelimit_cluster_slot(&NGX_HTTP_RATELIMIT_REDIS_OPEN[1],
                                  sizeof(NGX_HTTP_RATELIMIT_REDIS_OPEN) - 2,
                                  key->data, key->len);
}


uint32_t
ngx_http_ratelimit_redis_part(ngx_http_ratelimit_subject_t *subject)
{
    return (uint32_t) ngx_http_ratelimit_redis_slot(subject->use->zone->redis,
                                                    &subject->key);
}


void
ngx_http_ratelimit_redis_free_command(
    ngx_http_ratelimit_redis_command_t *command)
{
    if (command->eval != NULL) {
        ngx_free(command->eval);
    }

    if (command->question) {
        ngx_queue_remove(&command->open);
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

    script = ngx_http_ratelimit_redis_script(command->algorithms,
                                             command->sync);

    args = command->last - command->args;
    size = sizeof("*" CRLF "$4" CRLF "EVAL" CRLF) + NGX_INT_T_LEN
           + NGX_HTTP_RATELIMIT_REDIS_FRAME + script->len + args;

    command->eval = ngx_alloc(size, ngx_cycle->log);
    if (command->eval == NULL) {
        return NGX_ERROR;
    }

    p = ngx_http_ratelimit_redis_write_len(command->eval, '*',
                                  5 + (command->sync ? 3 : 2) * command->n);
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
ngx_http_ratelimit_redis_script(unsigned algorithms, unsigned sync)
{
    u_char                              sha[NGX_HTTP_RATELIMIT_SHA1_LEN];
    unsigned                            i;
    ngx_sha1_t                          sha1;
    const ratelimit_script_t           *source;
    ngx_http_ratelimit_redis_script_t  *script;

    i = ratelimit_script_select(algorithms);
    script = sync ? &ngx_http_ratelimit_redis_sync_scripts[i]
                  : &ngx_http_ratelimit_redis_scripts[i];

    if (script->text != NULL) {
        return script;
    }

    source = sync ? &ratelimit_sync_scripts[i] : &ratelimit_scripts[i];

    script->len = source->len;
    script->text = source->text;

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
    case RATELIMIT_SCRIPT_DEBIT:
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

    len = NGX_HTTP_RATELIMIT_REDIS_HEAD;

    for (i = 0; i < q->n; i++) {

        if (!ngx_http_ratelimit_redis_concerns(&q->items[i], command->op)) {
            continue;
        }

        subject = &q->subjects[i];

        len += NGX_HTTP_RATELIMIT_REDIS_FRAME
               + ngx_http_ratelimit_redis_name_len(command->server->redis,
                                                   subject)
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
    ngx_uint_t         i;
    ratelimit_item_t  *item;

    p = ngx_http_ratelimit_redis_write_keys(p, command->n);

    for (i = 0; i < q->n; i++) {
        item = &q->items[i];

        if (ngx_http_ratelimit_redis_concerns(item, command->op)) {
            p = ngx_http_ratelimit_redis_write_key(p, command->server->redis,
                                                   &q->subjects[i], item);
        }
    }

    p = ngx_http_ratelimit_redis_write_op(p, command);

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

    return ngx_http_ratelimit_redis_write_echo(p);
}


static u_char *
ngx_http_ratelimit_redis_write_rows(u_char *p,
    ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_row_t *rows)
{
    ngx_uint_t  i;

    p = ngx_http_ratelimit_redis_write_keys(p, 2 * command->n);

    for (i = 0; i < command->n; i++) {
        p = ngx_http_ratelimit_redis_write_text(p, &rows[i].name, "");
    }

    for (i = 0; i < command->n; i++) {
        p = ngx_http_ratelimit_redis_write_text(p, &rows[i].name,
                                               NGX_HTTP_RATELIMIT_REDIS_MARK);
    }

    p = ngx_http_ratelimit_redis_write_op(p, command);

    for (i = 0; i < command->n; i++) {
        p = ngx_http_ratelimit_redis_write_len(p, '$',
                                               RATELIMIT_SCRIPT_ARGUMENT
                                               + rows[i].tail_len);
        ratelimit_script_argument(rows[i].item, p);

        p += RATELIMIT_SCRIPT_ARGUMENT;
        p = ngx_cpymem(p, rows[i].tail, rows[i].tail_len);
        *p++ = CR; *p++ = LF;
    }

    return ngx_http_ratelimit_redis_write_echo(p);
}


/* the number of keys, behind the end of the script's line */

static u_char *
ngx_http_ratelimit_redis_write_keys(u_char *p, ngx_uint_t n)
{
    u_char  *last, digits[NGX_INT64_LEN];

    last = ratelimit_write_number(digits, n);

    *p++ = CR; *p++ = LF;
    p = ngx_http_ratelimit_redis_write_len(p, '$', last - digits);
    p = ngx_cpymem(p, digits, last - digits);
    *p++ = CR; *p++ = LF;

    return p;
}


static u_char *
ngx_http_ratelimit_redis_write_op(u_char *p,
    ngx_http_ratelimit_redis_command_t *command)
{
    p = ngx_http_ratelimit_redis_write_len(p, '$', 1);
    *p++ = (u_char) command->op;
    *p++ = CR; *p++ = LF;

    command->arguments = p;

    return p;
}


/* a connection never waits for as many replies as there are numbers */

static u_char *
ngx_http_ratelimit_redis_write_echo(u_char *p)
{
    static uint16_t  number;

    number++;

    p = ngx_http_ratelimit_redis_write_len(p, '$', RATELIMIT_SCRIPT_ECHO);
    p = ngx_cpymem(p, &number, RATELIMIT_SCRIPT_ECHO);
    *p++ = CR; *p++ = LF;

    return p;
}


static u_char *
ngx_http_ratelimit_redis_write_text(u_char *p, ngx_str_t *text,
    const char *mark)
{
    size_t  len;

    len = ngx_strlen(mark);

    p = ngx_http_ratelimit_redis_write_len(p, '$', text->len + len);
    p = ngx_cpymem(p, text->data, text->len);
    p = ngx_cpymem(p, mark, len);
    *p++ = CR; *p++ = LF;

    return p;
}


static u_char *
ngx_http_ratelimit_redis_write_key(u_char *p, ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_subject_t *subject, ratelimit_item_t *item)
{
    u_char  *last, tag[NGX_HTTP_RATELIMIT_REDIS_TAG];

    last = ngx_http_ratelimit_redis_write_tag(tag, item);

    p = ngx_http_ratelimit_redis_write_len(p, '$',
                    ngx_http_ratelimit_redis_name_len(redis, subject)
                    - NGX_HTTP_RATELIMIT_REDIS_TAG + (last - tag));
    p = ngx_http_ratelimit_redis_write_name(p, redis, subject, item);
    *p++ = CR; *p++ = LF;

    return p;
}


size_t
ngx_http_ratelimit_redis_name_len(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_subject_t *subject)
{
    return redis->prefix.len + sizeof(NGX_HTTP_RATELIMIT_REDIS_OPEN) - 1
           + subject->key.len + subject->use->suffix.len
           + NGX_HTTP_RATELIMIT_REDIS_TAG;
}


u_char *
ngx_http_ratelimit_redis_write_name(u_char *p,
    ngx_http_ratelimit_redis_t *redis, ngx_http_ratelimit_subject_t *subject,
    ratelimit_item_t *item)
{
    p = ngx_cpymem(p, redis->prefix.data, redis->prefix.len);
    p = ngx_cpymem(p, NGX_HTTP_RATELIMIT_REDIS_OPEN,
                   sizeof(NGX_HTTP_RATELIMIT_REDIS_OPEN) - 1);
    p = ngx_cpymem(p, subject->key.data, subject->key.len);
    p = ngx_cpymem(p, subject->use->suffix.data, subject->use->suffix.len);

    return ngx_http_ratelimit_redis_write_tag(p, item);
}


static u_char *
ngx_http_ratelimit_redis_write_tag(u_char *p, ratelimit_item_t *item)
{
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[item->shape->algorithm];

    p = ratelimit_write_number(p, item->rule->period / RATELIMIT_SECOND);
    *p++ = (u_char) algorithm->letter;

    if (algorithm->takes & RATELIMIT_TAKES_BUCKETS) {
        p = ratelimit_write_number(p, item->shape->buckets);
    }

    return p;
}


/* the number of arguments or bytes that follow */

static u_char *
ngx_http_ratelimit_redis_write_len(u_char *p, u_char mark, size_t len)
{
    *p++ = mark;
    p = ratelimit_write_number(p, len);
    *p++ = CR; *p++ = LF;

    return p;
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
