
/*
 * Any text as a URL of Redis: what is accepted is within its bounds, and
 * nothing of its password may be shown.
 */


#include <string.h>

#include "redis/ratelimit_url.h"

#include "fuzz.h"


static void fuzz_part(const ratelimit_url_part_t *part, const char *text,
    size_t len);
static void fuzz_decode(const ratelimit_url_part_t *part);
static void fuzz_secret(const ratelimit_url_t *url, const char *text,
    size_t len);


/* nothing, or a part of the text */

static void
fuzz_part(const ratelimit_url_part_t *part, const char *text, size_t len)
{
    if (part->data == NULL) {
        fuzz_check(part->len == 0);
        return;
    }

    fuzz_check(part->len > 0);
    fuzz_check(part->data >= text);
    fuzz_check(part->data + part->len <= text + len);
}


/* each "%XX" is one byte, all others are what they were */

static void
fuzz_decode(const ratelimit_url_part_t *part)
{
    char    *bytes;
    size_t   i, n, escapes;

    bytes = malloc(part->len ? part->len : 1);
    fuzz_check(bytes != NULL);

    n = ratelimit_url_decode(part, bytes);

    for (i = 0, escapes = 0; i < part->len; i++) {
        escapes += part->data[i] == '%';
    }

    fuzz_check(n + 2 * escapes == part->len);
    fuzz_check(escapes || n == 0 || memcmp(bytes, part->data, n) == 0);

    free(bytes);
}


static void
fuzz_secret(const ratelimit_url_t *url, const char *text, size_t len)
{
    ratelimit_url_part_t  secret;

    ratelimit_url_secret(text, len, &secret);

    fuzz_check(secret.data >= text);
    fuzz_check(secret.data + secret.len <= text + len);

    if (url != NULL && url->password.len) {
        fuzz_check(secret.data <= url->password.data);
        fuzz_check(secret.data + secret.len
                   >= url->password.data + url->password.len);
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char       *text, *reason;
    ratelimit_url_t   url;

    text = (const char *) data;

    reason = ratelimit_url_parse(text, size, &url);

    if (reason != NULL) {
        fuzz_check(reason[0] != '\0');
        fuzz_secret(NULL, text, size);
        return 0;
    }

    fuzz_part(&url.user, text, size);
    fuzz_part(&url.password, text, size);
    fuzz_part(&url.host, text, size);
    fuzz_part(&url.path, text, size);

    fuzz_check((url.host.len == 0) != (url.path.len == 0));
    fuzz_check(url.host.len <= RATELIMIT_URL_MAX_HOST);
    fuzz_check(url.path.len <= RATELIMIT_URL_MAX_PATH);
    fuzz_check(url.db <= RATELIMIT_URL_MAX_DB);
    fuzz_check((url.host.len != 0) == (url.port >= 1 && url.port <= 65535));
    fuzz_check(url.path.len == 0 || (url.user.len == 0
                                     && url.password.len == 0 && !url.tls));

    fuzz_decode(&url.user);
    fuzz_decode(&url.password);
    fuzz_secret(&url, text, size);

    return 0;
}
