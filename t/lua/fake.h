
/*
 * The scripts with a clock that the caller sets: its two times are the last
 * arguments.  Nothing expires; when it would is kept beside each key.
 *
 * MUTATE="text=>other" in the environment changes the scripts, which must not
 * go unnoticed.
 */


#ifndef _FAKE_H_INCLUDED_
#define _FAKE_H_INCLUDED_


#include "store/ratelimit_lua.h"
#include "redis.h"


/* numbers of Lua end here; what is near is as good as for ever */
#define FAKE_MAX  (((uint64_t) 1 << 53) - 1)
#define FAKE_FAR  (((uint64_t) 1 << 53) - ((uint64_t) 1 << 47))


static const char  fake_clock[] =
    "local now, wall = tonumber(ARGV[#ARGV - 1]), tonumber(ARGV[#ARGV])\n";

static const char  fake_write[] =
    "local function save(key, state, expires)\n"
    "    if state then\n"
    "        call('SET', key, state)\n"
    "    end\n"
    "    if expires then\n"
    "        call('SET', 'expires:' .. key, string.format('%.0f', expires))\n"
    "    end\n"
    "end\n";


/* the pieces that lie between the clock and the last one, and who needs them */

static const struct {
    unsigned                        algorithms;
    const char                     *text;
} fake_pieces[] = {
    { 1 << RATELIMIT_SLIDING_WINDOW | 1 << RATELIMIT_TOKEN_BUCKET
      | 1 << RATELIMIT_LEAKY_BUCKET, ratelimit_lua_math },
    { 1 << RATELIMIT_FIXED_WINDOW | 1 << RATELIMIT_SLIDING_WINDOW
      | 1 << RATELIMIT_SLIDING_LOG, ratelimit_lua_window },
    { 1 << RATELIMIT_TOKEN_BUCKET | 1 << RATELIMIT_LEAKY_BUCKET,
      ratelimit_lua_bucket },
    { 1 << RATELIMIT_FIXED_WINDOW, ratelimit_lua_fixed_window },
    { 1 << RATELIMIT_SLIDING_WINDOW, ratelimit_lua_sliding_window },
    { 1 << RATELIMIT_SLIDING_LOG, ratelimit_lua_sliding_log },
    { 1 << RATELIMIT_TOKEN_BUCKET, ratelimit_lua_token_bucket },
    { 1 << RATELIMIT_LEAKY_BUCKET, ratelimit_lua_leaky_bucket }
};


static void
fake_mutate(char *text)
{
    char        *from, *to, *place;
    size_t       rest;
    const char  *mutation;

    mutation = getenv("MUTATE");
    if (mutation == NULL) {
        return;
    }

    from = strdup(mutation);
    to = strstr(from, "=>");
    place = NULL;

    if (to != NULL) {
        *to = '\0';
        to += 2;
        place = strstr(text, from);
    }

    if (place == NULL) {
        fprintf(stderr, "there is nothing to mutate: \"%s\"\n", mutation);
        exit(3);
    }

    rest = strlen(place + strlen(from)) + 1;
    memmove(place + strlen(to), place + strlen(from), rest);
    memcpy(place, to, strlen(to));

    free(from);
}


/* loads these algorithms with a last piece */

static void
fake_load(unsigned algorithms, const char *last, char *sha)
{
    char    *text;
    size_t   i, n;

    text = calloc(1, 1 << 17);
    if (text == NULL) {
        abort();
    }

    strcat(text, ratelimit_lua_prelude);
    strcat(text, fake_clock);
    strcat(text, fake_write);

    n = sizeof(fake_pieces) / sizeof(fake_pieces[0]);

    for (i = 0; i < n; i++) {
        if (fake_pieces[i].algorithms & algorithms) {
            strcat(text, fake_pieces[i].text);
        }
    }

    strcat(text, last);

    fake_mutate(text);
    redis_load(text, strlen(text), sha);

    free(text);
}


static uint64_t __attribute__((unused))
fake_near(uint64_t number)
{
    return (number < FAKE_FAR) ? number : FAKE_FAR;
}


/* NULL, or the name of the first field that differs */

static __attribute__((unused)) const char *
fake_differs(const ratelimit_verdict_t *lua, const ratelimit_verdict_t *c)
{
    return lua->allowed != c->allowed ? "allowed"
           : lua->soft != c->soft ? "soft"
           : lua->rebase != c->rebase ? "rebase"
           : lua->limit != c->limit ? "limit"
           : lua->remaining != c->remaining ? "remaining"
           : lua->excess != c->excess ? "excess"
           : fake_near(lua->retry_after) != fake_near(c->retry_after)
           ? "retry_after"
           : fake_near(lua->reset_after) != fake_near(c->reset_after)
           ? "reset_after"
           : fake_near(lua->delay) != fake_near(c->delay) ? "delay"
           : fake_near(lua->stamp) != fake_near(c->stamp) ? "stamp"
           : NULL;
}


#endif /* _FAKE_H_INCLUDED_ */
