
/*
 * URLs of Redis: what is read, for what reason a text is refused, and that
 * nothing shows a password.
 */


#include <stdlib.h>
#include <string.h>

#include "redis/ratelimit_url.h"

#include "random.h"
#include "tap.h"


#define url_text(s)  s, sizeof(s) - 1


typedef struct {
    const char                     *text;
    const char                     *user;     /* all decoded */
    const char                     *password;
    const char                     *host;
    const char                     *path;
    unsigned                        port;
    unsigned                        db;
    unsigned                        tls;
} url_good_t;


typedef struct {
    const char                     *text;
    size_t                          len;
    const char                     *reason;
} url_bad_t;


typedef struct {
    const char                     *text;
    const char                     *shown;
} url_shown_t;


static char *url_copy(const char *text, size_t len);
static int url_part(const ratelimit_url_part_t *part, const char *text);
static int url_shows(const char *text, size_t len, char *shown);
static void url_test_good(void);
static void url_test_bad(void);
static void url_test_long(void);
static void url_test_shown(void);
static void url_test_decode(void);
static void url_test_truncated(void);
static void url_test_garbage(void);


static const url_good_t  url_good[] = {
    { "redis://127.0.0.1", NULL, NULL, "127.0.0.1", NULL, 6379, 0, 0 },
    { "redis://127.0.0.1:6380", NULL, NULL, "127.0.0.1", NULL, 6380, 0, 0 },
    { "redis://h:1", NULL, NULL, "h", NULL, 1, 0, 0 },
    { "redis://h:65535/65535", NULL, NULL, "h", NULL, 65535, 65535, 0 },
    { "redis://h/", NULL, NULL, "h", NULL, 6379, 0, 0 },
    { "redis://h/0", NULL, NULL, "h", NULL, 6379, 0, 0 },
    { "redis://h/15", NULL, NULL, "h", NULL, 6379, 15, 0 },
    { "redis://Redis-1.example_x.com:7000/3", NULL, NULL,
      "Redis-1.example_x.com", NULL, 7000, 3, 0 },
    { "redis://alice:secret@h:7000/3", "alice", "secret", "h", NULL, 7000, 3,
      0 },
    { "redis://:secret@h", NULL, "secret", "h", NULL, 6379, 0, 0 },
    { "redis://alice@h", "alice", NULL, "h", NULL, 6379, 0, 0 },
    { "redis://a%3Ab:%40%2f%25%20x@h", "a:b", "@/% x", "h", NULL, 6379, 0, 0 },
    { "redis://alice:a:b@c@h:7", "alice", "a:b@c", "h", NULL, 7, 0, 0 },
    { "redis://:p w#?&;$@h", NULL, "p w#?&;$", "h", NULL, 6379, 0, 0 },
    { "redis://:[::1]@[::2]:7", NULL, "[::1]", "::2", NULL, 7, 0, 0 },
    { "redis://[::1]", NULL, NULL, "::1", NULL, 6379, 0, 0 },
    { "redis://[2001:db8::7]:6380/1", NULL, NULL, "2001:db8::7", NULL, 6380, 1,
      0 },
    { "redis://u:p@[::ffff:1.2.3.4]/1", "u", "p", "::ffff:1.2.3.4", NULL, 6379,
      1, 0 },
    { "rediss://u:p@h:6380/1", "u", "p", "h", NULL, 6380, 1, 1 },
    { "rediss://h", NULL, NULL, "h", NULL, 6379, 0, 1 },
    { "unix:/run/redis.sock", NULL, NULL, NULL, "/run/redis.sock", 0, 0, 0 },
    { "unix:/r", NULL, NULL, NULL, "/r", 0, 0, 0 },
    { "unix:/run/a b@c:d.sock?db=7", NULL, NULL, NULL, "/run/a b@c:d.sock", 0,
      7, 0 },
    { "unix:/r?db=65535", NULL, NULL, NULL, "/r", 0, 65535, 0 },
};


#define URL_BEGIN  "must begin with \"redis://\", \"rediss://\" or \"unix:/\""
#define URL_PORT   "the port must be a number from 1 to 65535"
#define URL_DB     "the database must be a number from 0 to 65535"
#define URL_HOST   "the host has a character that is not allowed"
#define URL_NONE   "the host is missing"
#define URL_HEX    "a \"%\" before the \"@\" must have two hexadecimal " \
                   "digits after it"
#define URL_SLASH  "a \"/\" before the \"@\" must be written as \"%2F\""
#define URL_PATH   "the path of the socket must begin with \"/\""
#define URL_QUERY  "only \"db=\" may follow the path of the socket"


static const url_bad_t  url_bad[] = {
    { url_text(""), URL_BEGIN },
    { url_text("redis"), URL_BEGIN },
    { url_text("redis:"), URL_BEGIN },
    { url_text("redis:/"), URL_BEGIN },
    { url_text("redis:/h"), URL_BEGIN },
    { url_text("redisx://h"), URL_BEGIN },
    { url_text("Redis://h"), URL_BEGIN },
    { url_text("http://h"), URL_BEGIN },
    { url_text("://h"), URL_BEGIN },
    { url_text("//h"), URL_BEGIN },
    { url_text("h"), URL_BEGIN },
    { url_text("127.0.0.1:6379"), URL_BEGIN },
    { url_text("timeout=5ms"), URL_BEGIN },
    { url_text(" redis://h"), URL_BEGIN },
    { url_text("unix"), URL_BEGIN },
    { url_text("\0redis://h"), URL_BEGIN },

    { url_text("redis://"), URL_NONE },
    { url_text("redis:///"), URL_NONE },
    { url_text("redis:///0"), URL_NONE },
    { url_text("redis://:6379"), URL_NONE },
    { url_text("redis://u:p@"), URL_NONE },
    { url_text("redis://u:p@:6379"), URL_NONE },
    { url_text("redis://[]"), URL_NONE },
    { url_text("redis://[:]"), URL_NONE },
    { url_text("rediss://"), URL_NONE },

    { url_text("redis://a b"), URL_HOST },
    { url_text("redis://h;"), URL_HOST },
    { url_text("redis://h,g"), URL_HOST },
    { url_text("redis://h?db=1"), URL_HOST },
    { url_text("redis://h#1"), URL_HOST },
    { url_text("redis://h%41"), URL_HOST },
    { url_text("redis://$h"), URL_HOST },
    { url_text("redis://h\0"), URL_HOST },
    { url_text("redis://h\n"), URL_HOST },
    { url_text("redis://h\xc3\xa4"), URL_HOST },
    { url_text("redis://h]"), URL_HOST },

    { url_text("redis://[::1"), "the \"]\" after the host is missing" },
    { url_text("redis://[::g]"), "the host is not an IPv6 address" },
    { url_text("redis://[::1%25eth0]"), "the host is not an IPv6 address" },
    { url_text("redis://[[::1]]"), "the host is not an IPv6 address" },
    { url_text("redis://[::1]6379"), URL_PORT },
    { url_text("redis://[::1]:"), URL_PORT },
    { url_text("redis://::1"), URL_NONE },
    { url_text("redis://1::1"), URL_PORT },

    { url_text("redis://h:"), URL_PORT },
    { url_text("redis://h:/0"), URL_PORT },
    { url_text("redis://h:0"), URL_PORT },
    { url_text("redis://h:65536"), URL_PORT },
    { url_text("redis://h:-1"), URL_PORT },
    { url_text("redis://h:+1"), URL_PORT },
    { url_text("redis://h:6379x"), URL_PORT },
    { url_text("redis://h:6379?db=1"), URL_PORT },
    { url_text("redis://h: 6379"), URL_PORT },
    { url_text("redis://h:6379\0"), URL_PORT },
    { url_text("redis://h:99999999999999999999"), URL_PORT },
    { url_text("redis://alice:secret"), URL_PORT },

    { url_text("redis://h/x"), URL_DB },
    { url_text("redis://h/-1"), URL_DB },
    { url_text("redis://h/65536"), URL_DB },
    { url_text("redis://h/99999999999999999999"), URL_DB },
    { url_text("redis://h/0/"), URL_DB },
    { url_text("redis://h//"), URL_DB },
    { url_text("redis://h/0?x=1"), URL_DB },
    { url_text("redis://h/?db=1"), URL_DB },
    { url_text("redis://h/1\0"), URL_DB },

    { url_text("redis://@h"), "there is nothing before the \"@\"" },
    { url_text("redis://:@h"), "the password is empty" },
    { url_text("redis://u:@h"), "the password is empty" },
    { url_text("redis://u:p%@h"), URL_HEX },
    { url_text("redis://u:p%4@h"), URL_HEX },
    { url_text("redis://u:%zz@h"), URL_HEX },
    { url_text("redis://u:%4g@h"), URL_HEX },
    { url_text("redis://u:%g4@h"), URL_HEX },
    { url_text("redis://%:p@h"), URL_HEX },
    { url_text("redis://u%2:p@h"), URL_HEX },
    { url_text("redis://u:p/w@h"), URL_SLASH },
    { url_text("redis://u/x:pw@h"), URL_SLASH },
    { url_text("redis:///@h"), URL_SLASH },
    { url_text("redis://h/u@1"), URL_SLASH },

    { url_text("unix:"), URL_PATH },
    { url_text("unix:run/redis.sock"), URL_PATH },
    { url_text("unix:?db=1"), URL_PATH },
    { url_text("unix:/r?"), URL_QUERY },
    { url_text("unix:/r?d"), URL_QUERY },
    { url_text("unix:/r?db"), URL_QUERY },
    { url_text("unix:/r?DB=1"), URL_QUERY },
    { url_text("unix:/r?x=1&db=1"), URL_QUERY },
    { url_text("unix:/r?db="), URL_DB },
    { url_text("unix:/r?db=x"), URL_DB },
    { url_text("unix:/r?db=65536"), URL_DB },
    { url_text("unix:/r?db=1&x"), URL_DB },
    { url_text("unix:/r?db=1?db=2"), URL_DB },
    { url_text("unix:/r\n"), "the path of the socket has a control "
                             "character" },
    { url_text("unix:/r\0?db=1"), "the path of the socket has a control "
                                  "character" },
    { url_text("unix:/\177"), "the path of the socket has a control "
                              "character" },
};


static const url_shown_t  url_shown[] = {
    { "redis://h", "redis://h" },
    { "redis://h:6379/3", "redis://h:6379/3" },
    { "redis://[::1]:6379/3", "redis://[::1]:6379/3" },
    { "unix:/run/a:b@c?db=1", "unix:/run/a:b@c?db=1" },
    { "redis://alice:secret@h:6379/3", "redis://***@h:6379/3" },
    { "rediss://:secret@h", "rediss://***@h" },
    { "redis://alice:se@cret@h", "redis://***@h" },
    { "redis://alice:se/cret@h", "redis://***@h" },
    { "redis://alice:se://cret@h", "redis://***@h" },
    { "redis:/alice:secret@h", "***@h" },
    { "alice:secret@h", "***@h" },
    { "alice:secret", "alice:***" },
    { "redis:secret", "redis:***" },
    { "redis:/alice:secret", "redis:***" },
    { "redis://alice:secret", "redis://alice:***" },
    { "redis://:secret", "redis://:***" },
    { "redis://:12345", "redis://:***" },
    { "redis://alice:secret/0", "redis://alice:***" },
    { "redis://alice:1234567", "redis://alice:***" },
    { "redis://[::1]:secret", "redis://[::1]:***" },
    { "redis://[::1:secret", "redis://[::1:secret" },
    { "http://alice:secret@h/x", "http://***@h/x" },
    { "unix:alice:secret@h", "***@h" },
    { "password=secret", "password=***" },
    { "requirepass=se=cret@h", "requirepass=***" },
    { "auth=alice:secret", "auth=***" },
    { "password=", "password=" },
    { "password", "password" },
    { "alice:pass=secret@h", "***@h" },
    { "timeout=5ms", "timeout=5ms" },
    { "", "" },
};


/* text of exactly this length, so that nothing behind it can be read */

static char *
url_copy(const char *text, size_t len)
{
    char  *copy;

    copy = malloc(len ? len : 1);
    if (copy == NULL) {
        abort();
    }

    memcpy(copy, text, len);

    return copy;
}


static int
url_part(const ratelimit_url_part_t *part, const char *text)
{
    char    decoded[256];
    size_t  len;

    if (text == NULL) {
        return part->data == NULL && part->len == 0;
    }

    len = ratelimit_url_decode(part, decoded);

    return len == strlen(text) && memcmp(decoded, text, len) == 0;
}


/* what may be shown; returns 0 if the secret is not a part of the text */

static int
url_shows(const char *text, size_t len, char *shown)
{
    size_t                before, after;
    ratelimit_url_part_t  secret;

    ratelimit_url_secret(text, len, &secret);

    if (secret.data < text || secret.data + secret.len > text + len) {
        return 0;
    }

    before = secret.data - text;
    after = len - before - secret.len;

    memcpy(shown, text, before);

    if (secret.len) {
        memcpy(shown + before, "***", 3);
        before += 3;
    }

    memcpy(shown + before, secret.data + secret.len, after);
    shown[before + after] = '\0';

    return 1;
}


static void
url_test_good(void)
{
    char              *copy;
    size_t             i, len;
    const char        *reason;
    ratelimit_url_t    url;
    const url_good_t  *good;

    for (i = 0; i < sizeof(url_good) / sizeof(url_good_t); i++) {
        good = &url_good[i];

        len = strlen(good->text);
        copy = url_copy(good->text, len);

        reason = ratelimit_url_parse(copy, len, &url);

        tap_ok(reason == NULL
               && url_part(&url.user, good->user)
               && url_part(&url.password, good->password)
               && url_part(&url.host, good->host)
               && url_part(&url.path, good->path)
               && url.port == good->port
               && url.db == good->db
               && url.tls == good->tls
               && url.ipv6 == (strchr(good->host ? good->host : "", ':')
                               != NULL),
               "\"%s\" is a URL%s%s", good->text, reason ? ": " : "",
               reason ? reason : "");

        free(copy);
    }
}


static void
url_test_bad(void)
{
    char             *copy;
    size_t            i;
    const char       *reason;
    ratelimit_url_t   url;
    const url_bad_t  *bad;

    for (i = 0; i < sizeof(url_bad) / sizeof(url_bad_t); i++) {
        bad = &url_bad[i];

        copy = url_copy(bad->text, bad->len);

        reason = ratelimit_url_parse(copy, bad->len, &url);

        tap_ok(reason != NULL && strcmp(reason, bad->reason) == 0,
               "URL %u of %u bytes: %s", (unsigned) i, (unsigned) bad->len,
               reason ? reason : "is taken");

        free(copy);
    }
}


static void
url_test_long(void)
{
    char             text[512];
    size_t           len;
    ratelimit_url_t  url;

    memset(text, 'x', sizeof(text));

    memcpy(text, "redis://", 8);
    len = 8 + RATELIMIT_URL_MAX_HOST;

    tap_ok(ratelimit_url_parse(text, len, &url) == NULL
           && url.host.len == RATELIMIT_URL_MAX_HOST
           && ratelimit_url_parse(text, len + 1, &url) != NULL,
           "a host may have %u bytes", RATELIMIT_URL_MAX_HOST);

    text[8] = '[';
    memset(text + 9, '1', RATELIMIT_URL_MAX_HOST + 1);
    text[len + 1] = ']';

    tap_ok(ratelimit_url_parse(text, len + 2, &url) == NULL, "in brackets");

    text[len + 1] = '1';
    text[len + 2] = ']';

    tap_ok(ratelimit_url_parse(text, len + 3, &url) != NULL, "no more");

    memcpy(text, "unix:/", 6);
    memset(text + 6, 'x', sizeof(text) - 6);
    len = 5 + RATELIMIT_URL_MAX_PATH;

    tap_ok(ratelimit_url_parse(text, len, &url) == NULL
           && url.path.len == RATELIMIT_URL_MAX_PATH
           && ratelimit_url_parse(text, len + 1, &url) != NULL,
           "a path may have %u bytes", RATELIMIT_URL_MAX_PATH);
}


static void
url_test_shown(void)
{
    int     part;
    char    shown[256], *copy;
    size_t  i, len;

    for (i = 0; i < sizeof(url_shown) / sizeof(url_shown_t); i++) {
        len = strlen(url_shown[i].text);
        copy = url_copy(url_shown[i].text, len);

        part = url_shows(copy, len, shown);

        tap_ok(part && strcmp(shown, url_shown[i].shown) == 0,
               "\"%s\" is shown as \"%s\"", url_shown[i].text, shown);

        free(copy);
    }
}


/* every byte, escaped in both cases */

static void
url_test_decode(void)
{
    char                  text[4], byte[3];
    unsigned              i, wrong;
    ratelimit_url_part_t  part;

    wrong = 0;

    part.data = text;
    part.len = 3;

    for (i = 0; i < 256; i++) {
        snprintf(text, sizeof(text), "%%%02x", i);
        wrong += ratelimit_url_decode(&part, byte) != 1
                 || (unsigned char) byte[0] != i;

        snprintf(text, sizeof(text), "%%%02X", i);
        wrong += ratelimit_url_decode(&part, byte) != 1
                 || (unsigned char) byte[0] != i;
    }

    tap_ok(wrong == 0, "every byte can be escaped");
}


/* a URL cut anywhere shows no part of its password of three bytes or more */

static void
url_test_truncated(void)
{
    char         shown[256], *copy;
    size_t       len;
    unsigned     wrong;
    const char  *text;

    text = "redis://alice:hunter2hunter2@h:6379/3";
    wrong = 0;

    for (len = 0; len <= strlen(text); len++) {
        copy = url_copy(text, len);

        wrong += !url_shows(copy, len, shown) || strstr(shown, "hun") != NULL;

        free(copy);
    }

    tap_ok(wrong == 0, "a truncated URL shows no password");
}


/* random bytes, most of them near to a URL */

static void
url_test_garbage(void)
{
    char              text[40], decoded[40], shown[64], *copy;
    size_t            len, j;
    unsigned          i, odd, taken;
    ratelimit_url_t   url;

    static const char  near[] = "@@::://///[]?%%0123456789abcdef=db.\0\xff";

    odd = 0;
    taken = 0;

    for (i = 0; i < 300000; i++) {
        len = random_below(sizeof(text));

        for (j = 0; j < len; j++) {
            text[j] = (i % 8) ? near[random_below(sizeof(near) - 1)]
                              : (char) random_next();
        }

        if (len >= 9 && (i % 16)) {
            memcpy(text, (i & 1) ? "redis://" : "unix:/xx", 8);
        }

        copy = url_copy(text, len);

        odd += !url_shows(copy, len, shown);

        if (ratelimit_url_parse(copy, len, &url) == NULL) {
            taken++;

            odd += url.db > RATELIMIT_URL_MAX_DB || url.port > 65535
                   || (url.path.len == 0) == (url.host.len == 0)
                   || ratelimit_url_decode(&url.user, decoded) > url.user.len
                   || ratelimit_url_decode(&url.password, decoded)
                      > url.password.len;
        }

        free(copy);
    }

    tap_ok(odd == 0, "garbage gives no odd URL");
    tap_ok(taken > 1000, "some of the garbage is a URL, %u", taken);
}


int
main(int argc, char **argv)
{
    random_start(argc, argv);

    url_test_good();
    url_test_bad();
    url_test_long();
    url_test_shown();
    url_test_decode();
    url_test_truncated();
    url_test_garbage();

    return tap_done();
}
