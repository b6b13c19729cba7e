
/*
 * The scripts with a clock that the caller sets: its two times are the last
 * arguments.  Nothing expires; the time in milliseconds at which a KEY would is
 * written to expires:KEY.
 *
 * MUTATE="text=>other" in the environment changes the scripts, which a test
 * must notice.
 */


#ifndef _FAKE_H_INCLUDED_
#define _FAKE_H_INCLUDED_


#include "redis.h"


/* the largest number of Lua, and one from which on differences do not matter */
#define FAKE_MAX  (((uint64_t) 1 << 53) - 1)
#define FAKE_FAR  (((uint64_t) 1 << 53) - ((uint64_t) 1 << 47))


/* the lines of clock.lua, and those in their place */

static const char  fake_real_clock[] =
    "local time = call('TIME')\n"
    "local now = time[1] * 1000000 + time[2]\n"
    "local wall = now\n";

static const char  fake_clock[] =
    "local now, wall = tonumber(ARGV[#ARGV - 1]), tonumber(ARGV[#ARGV])\n"
    "local function call(...)\n"
    "    local name, key, value, _, expires = ...\n"
    "    if name == 'PEXPIREAT' then\n"
    "        expires = value\n"
    "    end\n"
    "    if expires then\n"
    "        redis.call('SET', 'expires:' .. key, expires)\n"
    "    end\n"
    "    if name == 'SET' then\n"
    "        return redis.call('SET', key, value)\n"
    "    end\n"
    "    return name == 'PEXPIREAT' or redis.call(...)\n"
    "end\n";


/* replaces a text wherever it is found, which must be at least once */

static char *
fake_replace(const char *text, const char *from, const char *to)
{
    char        *result;
    size_t       n;
    const char  *place;

    n = 0;

    for (place = strstr(text, from); place != NULL;
         place = strstr(place + 1, from))
    {
        n++;
    }

    if (n == 0) {
        fprintf(stderr, "there is nothing to replace: \"%s\"\n", from);
        exit(3);
    }

    result = calloc(1, strlen(text) + n * strlen(to) + 1);
    if (result == NULL) {
        abort();
    }

    for (;;) {
        place = strstr(text, from);

        if (place == NULL) {
            return strcat(result, text);
        }

        strncat(result, text, place - text);
        strcat(result, to);
        text = place + strlen(from);
    }
}


static unsigned  fake_mutated;


static const char *
fake_mutate(const char *text)
{
    char        *from, *to;
    const char  *mutation;

    mutation = getenv("MUTATE");
    if (mutation == NULL) {
        return text;
    }

    from = strdup(mutation);
    to = strstr(from, "=>");

    if (to == NULL) {
        fprintf(stderr, "not a mutation: \"%s\"\n", mutation);
        exit(3);
    }

    *to = '\0';

    if (strstr(text, from) == NULL) {
        return text;
    }

    fake_mutated = 1;

    return fake_replace(text, from, to + 2);
}


/* a script that was to be changed has been loaded */

static void __attribute__((unused))
fake_check(void)
{
    if (getenv("MUTATE") && !fake_mutated) {
        fprintf(stderr, "there is nothing to mutate\n");
        exit(3);
    }
}


/* a script, with one more replacement unless that is NULL */

static void
fake_load(const ratelimit_script_t *script, const char *from, const char *to,
    char *sha)
{
    const char  *text;

    text = fake_replace(script->text, fake_real_clock, fake_clock);

    if (from != NULL) {
        text = fake_replace(text, from, to);
    }

    redis_load(fake_mutate(text), sha);
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
