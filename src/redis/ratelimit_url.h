
/*
 * Where a Redis is: redis://[user:password@]host[:port][/db], rediss:// for
 * TLS, or unix:/path[?db=N].
 */


#ifndef _RATELIMIT_URL_H_INCLUDED_
#define _RATELIMIT_URL_H_INCLUDED_


#include <stddef.h>


#define RATELIMIT_URL_PORT      6379
#define RATELIMIT_URL_MAX_DB    65535
#define RATELIMIT_URL_MAX_HOST  253
#define RATELIMIT_URL_MAX_PATH  107


/* a piece of the text, not terminated; data is NULL if there is none */

typedef struct {
    const char                     *data;
    size_t                          len;
} ratelimit_url_part_t;


typedef struct {
    ratelimit_url_part_t            user;     /* escaped */
    ratelimit_url_part_t            password; /* escaped */
    ratelimit_url_part_t            host;     /* without brackets */
    ratelimit_url_part_t            path;     /* of a socket, then no host */
    unsigned                        port;
    unsigned                        db;
    unsigned                        has_port:1;  /* otherwise the default */
    unsigned                        tls:1;
    unsigned                        ipv6:1;   /* was in brackets, its digits
                                                 are not checked */
} ratelimit_url_t;


/* returns NULL, or the reason why the text is refused, without any of it */
const char *ratelimit_url_parse(const char *text, size_t len,
    ratelimit_url_t *url);

/*
 * What must not be shown of a text, whether it can be parsed or not; its
 * length is 0 if all may be.
 */
void ratelimit_url_secret(const char *text, size_t len,
    ratelimit_url_part_t *secret);

/* %XX to bytes; there must be room for part->len, returns how many they are */
size_t ratelimit_url_decode(const ratelimit_url_part_t *part, char *bytes);


#endif /* _RATELIMIT_URL_H_INCLUDED_ */
