
/*
 * URLs of Redis.  The reasons complete the sentence
 * invalid URL "X": REASON.
 */


#include <string.h>

#include "core/ratelimit_parse.h"
#include "redis/ratelimit_url.h"


#define ratelimit_url_starts(text, len, word)                                \
    ((len) >= sizeof(word) - 1 && memcmp(text, word, sizeof(word) - 1) == 0)


static const char *ratelimit_url_parse_socket(const char *p, const char *end,
    ratelimit_url_t *url);
static const char *ratelimit_url_parse_server(const char *p, const char *end,
    ratelimit_url_t *url);
static const char *ratelimit_url_parse_login(const char *p, const char *end,
    ratelimit_url_t *url);
static const char *ratelimit_url_parse_host(const char *p, const char *end,
    ratelimit_url_t *url);
static const char *ratelimit_url_parse_brackets(const char *p,
    const char *end, ratelimit_url_t *url);
static const char *ratelimit_url_parse_port(const char *p, const char *end,
    ratelimit_url_t *url);
static const char *ratelimit_url_parse_db(const char *p, const char *end,
    ratelimit_url_t *url);
static const char *ratelimit_url_find(const char *p, const char *end,
    char ch);
static const char *ratelimit_url_find_last(const char *p, const char *end,
    char ch);
static int ratelimit_url_is_password(const char *name, const char *end);
static int ratelimit_url_escapes(const ratelimit_url_part_t *part);
static int ratelimit_url_host_char(char ch);
static int ratelimit_url_hex(char ch);


const char *
ratelimit_url_parse(const char *text, size_t len, ratelimit_url_t *url)
{
    const char  *end;

    memset(url, 0, sizeof(ratelimit_url_t));

    end = text + len;

    if (ratelimit_url_starts(text, len, "unix:")) {
        return ratelimit_url_parse_socket(text + 5, end, url);
    }

    url->port = RATELIMIT_URL_PORT;

    if (ratelimit_url_starts(text, len, "redis://")) {
        return ratelimit_url_parse_server(text + 8, end, url);
    }

    if (ratelimit_url_starts(text, len, "rediss://")) {
        url->tls = 1;
        return ratelimit_url_parse_server(text + 9, end, url);
    }

    return "must begin with \"redis://\", \"rediss://\" or \"unix:/\"";
}


static const char *
ratelimit_url_parse_socket(const char *p, const char *end,
    ratelimit_url_t *url)
{
    const char  *question;

    if (p == end || *p != '/') {
        return "the path of the socket must begin with \"/\"";
    }

    question = ratelimit_url_find(p, end, '?');

    url->path.data = p;
    url->path.len = (size_t) (question - p);

    if (url->path.len > RATELIMIT_URL_MAX_PATH) {
        return "the path of the socket is too long";
    }

    for ( /* void */ ; p < question; p++) {
        if ((unsigned char) *p < ' ' || *p == '\177') {
            return "the path of the socket has a control character";
        }
    }

    if (question == end) {
        return NULL;
    }

    if (!ratelimit_url_starts(question, (size_t) (end - question), "?db=")) {
        return "only \"db=\" may follow the path of the socket";
    }

    return ratelimit_url_parse_db(question + 4, end, url);
}


static const char *
ratelimit_url_parse_server(const char *p, const char *end,
    ratelimit_url_t *url)
{
    const char  *slash, *at, *reason;

    slash = ratelimit_url_find(p, end, '/');

    if (ratelimit_url_find(slash, end, '@') != end) {
        return "a \"/\" before the \"@\" must be written as \"%2F\"";
    }

    at = ratelimit_url_find_last(p, slash, '@');

    if (at != slash) {
        reason = ratelimit_url_parse_login(p, at, url);
        if (reason != NULL) {
            return reason;
        }

        p = at + 1;
    }

    reason = ratelimit_url_parse_host(p, slash, url);

    if (reason != NULL || end - slash < 2) {
        return reason;
    }

    return ratelimit_url_parse_db(slash + 1, end, url);
}


static const char *
ratelimit_url_parse_login(const char *p, const char *end, ratelimit_url_t *url)
{
    const char  *colon;

    colon = ratelimit_url_find(p, end, ':');

    if (p == end) {
        return "there is nothing before the \"@\"";
    }

    if (colon != p) {
        url->user.data = p;
        url->user.len = (size_t) (colon - p);
    }

    if (colon != end) {
        url->password.data = colon + 1;
        url->password.len = (size_t) (end - colon - 1);

        if (url->password.len == 0) {
            return "the password is empty";
        }
    }

    if (!ratelimit_url_escapes(&url->user)
        || !ratelimit_url_escapes(&url->password))
    {
        return "a \"%\" before the \"@\" must have two hexadecimal digits "
               "after it";
    }

    return NULL;
}


static const char *
ratelimit_url_parse_host(const char *p, const char *end, ratelimit_url_t *url)
{
    const char  *colon;

    if (p < end && *p == '[') {
        return ratelimit_url_parse_brackets(p, end, url);
    }

    colon = ratelimit_url_find(p, end, ':');

    if (colon == p) {
        return "the host is missing";
    }

    url->host.data = p;
    url->host.len = (size_t) (colon - p);

    if (url->host.len > RATELIMIT_URL_MAX_HOST) {
        return "the host is too long";
    }

    for ( /* void */ ; p < colon; p++) {
        if (!ratelimit_url_host_char(*p)) {
            return "the host has a character that is not allowed";
        }
    }

    return ratelimit_url_parse_port(colon, end, url);
}


/* [::1]:6379 */

static const char *
ratelimit_url_parse_brackets(const char *p, const char *end,
    ratelimit_url_t *url)
{
    const char  *bracket;

    bracket = ratelimit_url_find(p, end, ']');

    if (bracket == end) {
        return "the \"]\" after the host is missing";
    }

    p++;

    url->ipv6 = 1;
    url->host.data = p;
    url->host.len = (size_t) (bracket - p);

    if (url->host.len < 2) {
        return "the host is missing";
    }

    if (url->host.len > RATELIMIT_URL_MAX_HOST) {
        return "the host is too long";
    }

    for ( /* void */ ; p < bracket; p++) {
        if (ratelimit_url_hex(*p) < 0 && *p != ':' && *p != '.') {
            return "the host is not an IPv6 address";
        }
    }

    return ratelimit_url_parse_port(bracket + 1, end, url);
}


static const char *
ratelimit_url_parse_port(const char *p, const char *end, ratelimit_url_t *url)
{
    uint64_t  port;

    if (p == end) {
        return NULL;
    }

    if (*p != ':'
        || ratelimit_parse_number(p + 1, (size_t) (end - p - 1), 65535, &port)
           != NULL
        || port == 0)
    {
        return "the port must be a number from 1 to 65535";
    }

    url->port = (unsigned) port;
    url->has_port = 1;

    return NULL;
}


static const char *
ratelimit_url_parse_db(const char *p, const char *end, ratelimit_url_t *url)
{
    uint64_t  db;

    if (ratelimit_parse_number(p, (size_t) (end - p), RATELIMIT_URL_MAX_DB,
                               &db)
        != NULL)
    {
        return "the database must be a number from 0 to 65535";
    }

    url->db = (unsigned) db;

    return NULL;
}


/*
 * All that is before the last "@" may be a password.  The "@" may have been
 * forgotten: then what follows a colon is shown only if it can be a port.  Nor
 * is the value of a "password=" shown, though there is no such parameter.
 */

void
ratelimit_url_secret(const char *text, size_t len,
    ratelimit_url_part_t *secret)
{
    size_t       i;
    uint64_t     port;
    const char  *p, *end, *at, *slash;

    end = text + len;
    p = ratelimit_url_find(text, end, '=');

    if (p < end && ratelimit_url_is_password(text, p)) {
        secret->data = p + 1;
        secret->len = (size_t) (end - secret->data);
        return;
    }

    p = text;

    for (i = 0; i + 3 <= len; i++) {
        if (memcmp(text + i, "://", 3) == 0) {
            p = text + i + 3;
            break;
        }
    }

    secret->data = p;
    secret->len = 0;

    if (ratelimit_url_starts(text, len, "unix:/")) {
        return;
    }

    at = ratelimit_url_find_last(p, end, '@');

    if (at != end) {
        secret->len = (size_t) (at - p);
        return;
    }

    if (p < end && *p == '[') {
        p = ratelimit_url_find(p, end, ']');
    }

    p = ratelimit_url_find(p, end, ':');

    if (p == end) {
        return;
    }

    p++;
    slash = ratelimit_url_find(p, end, '/');

    if (p - 1 == secret->data
        || ratelimit_parse_number(p, (size_t) (slash - p), 65535, &port)
           != NULL)
    {
        secret->data = p;
        secret->len = (size_t) (end - p);
    }
}


size_t
ratelimit_url_decode(const ratelimit_url_part_t *part, char *bytes)
{
    size_t  i, n;

    n = 0;

    for (i = 0; i < part->len; i++) {

        if (part->data[i] == '%') {
            bytes[n++] = (char) (ratelimit_url_hex(part->data[i + 1]) << 4
                                 | ratelimit_url_hex(part->data[i + 2]));
            i += 2;

        } else {
            bytes[n++] = part->data[i];
        }
    }

    return n;
}


/* these return the end if there is no such character */

static const char *
ratelimit_url_find(const char *p, const char *end, char ch)
{
    while (p < end && *p != ch) {
        p++;
    }

    return p;
}


static const char *
ratelimit_url_find_last(const char *p, const char *end, char ch)
{
    const char  *q;

    for (q = end; q > p; q--) {
        if (q[-1] == ch) {
            return q - 1;
        }
    }

    return end;
}


/* whether the name before a "=" was meant as such a parameter */

static int
ratelimit_url_is_password(const char *name, const char *end)
{
    int          found;
    const char  *p;

    found = 0;

    for (p = name; p < end; p++) {

        if (!ratelimit_url_host_char(*p)) {
            return 0;
        }

        if (end - p >= 4
            && (memcmp(p, "pass", 4) == 0 || memcmp(p, "auth", 4) == 0))
        {
            found = 1;
        }
    }

    return found;
}


static int
ratelimit_url_escapes(const ratelimit_url_part_t *part)
{
    size_t  i;

    for (i = 0; i < part->len; i++) {

        if (part->data[i] != '%') {
            continue;
        }

        if (part->len - i < 3
            || ratelimit_url_hex(part->data[i + 1]) < 0
            || ratelimit_url_hex(part->data[i + 2]) < 0)
        {
            return 0;
        }
    }

    return 1;
}


static int
ratelimit_url_host_char(char ch)
{
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')
           || (ch >= '0' && ch <= '9') || ch == '.' || ch == '-' || ch == '_';
}


static int
ratelimit_url_hex(char ch)
{
    if (ch >= '0' && ch <= '9') {
        return ch - '0';
    }

    if (ch >= 'a' && ch <= 'f') {
        return ch - 'a' + 10;
    }

    if (ch >= 'A' && ch <= 'F') {
        return ch - 'A' + 10;
    }

    return -1;
}
