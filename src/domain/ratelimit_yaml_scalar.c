
/*
 * Scalars of YAML 1.1: words, integers, and what looks like a number or a date.
 */


#include <stddef.h>
#include <string.h>

#include "domain/ratelimit_yaml_scalar.h"


static int ratelimit_yaml_is_word(const char *text,
    const char *const *words);
static int ratelimit_yaml_is_integer(const char *text,
    ratelimit_scalar_t *scalar);
static unsigned ratelimit_yaml_base(const char **digits);
static int ratelimit_yaml_is_float(const char *text);
static int ratelimit_yaml_is_time(const char *text);
static const char *ratelimit_yaml_digits(const char *p, size_t least,
    size_t most, unsigned *number);


ratelimit_scalar_t
ratelimit_yaml_scalar(const char *text)
{
    ratelimit_scalar_t  scalar;

    static const char *const  yes[] = {
        "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE",
        "on", "On", "ON", NULL
    };
    static const char *const  no[] = {
        "n", "N", "no", "No", "NO", "false", "False", "FALSE",
        "off", "Off", "OFF", NULL
    };
    static const char *const  null[] = {
        "", "~", "null", "Null", "NULL", NULL
    };

    scalar.type = RATELIMIT_SCALAR_STRING;
    scalar.number = 0;

    if (ratelimit_yaml_is_word(text, yes)) {
        scalar.type = RATELIMIT_SCALAR_BOOLEAN;
        scalar.number = 1;

    } else if (ratelimit_yaml_is_word(text, no)) {
        scalar.type = RATELIMIT_SCALAR_BOOLEAN;

    } else if (ratelimit_yaml_is_word(text, null)) {
        scalar.type = RATELIMIT_SCALAR_NULL;

    } else if (ratelimit_yaml_is_time(text)) {
        scalar.type = RATELIMIT_SCALAR_TIME;

    } else if (!ratelimit_yaml_is_integer(text, &scalar)
               && ratelimit_yaml_is_float(text))
    {
        scalar.type = RATELIMIT_SCALAR_FLOAT;
    }

    return scalar;
}


static int
ratelimit_yaml_is_word(const char *text, const char *const *words)
{
    for ( /* void */ ; *words; words++) {
        if (strcmp(text, *words) == 0) {
            return 1;
        }
    }

    return 0;
}


/* 12, -3, 1_000, 0x1F, 0b11, 017 and 0o17; one of 64 bits may be too long */

static int
ratelimit_yaml_is_integer(const char *text, ratelimit_scalar_t *scalar)
{
    int          negative, digits;
    unsigned     base, digit;
    uint64_t     number;
    const char  *p;

    p = text;
    negative = (*p == '-');

    if (*p == '-' || *p == '+') {
        p++;
    }

    if (*p < '0' || *p > '9') {
        return 0;
    }

    base = ratelimit_yaml_base(&p);
    number = 0;
    digits = 0;

    for ( /* void */ ; *p; p++) {

        if (*p == '_') {
            continue;
        }

        digit = (*p >= '0' && *p <= '9') ? (unsigned) (*p - '0')
                : ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'f')
                  ? (unsigned) ((*p | 0x20) - 'a' + 10) : 16;

        if (digit >= base || number > (UINT64_MAX - digit) / base) {
            return 0;
        }

        number = number * base + digit;
        digits = 1;
    }

    if (!digits || (negative && number > (uint64_t) INT64_MAX + 1)) {
        return 0;
    }

    scalar->type = (number > (uint64_t) INT64_MAX && !negative)
                   ? RATELIMIT_SCALAR_LONG : RATELIMIT_SCALAR_INTEGER;
    scalar->number = negative ? (int64_t) (0 - number) : (int64_t) number;

    return 1;
}


/* a single zero is a digit of its own */

static unsigned
ratelimit_yaml_base(const char **digits)
{
    const char  *p;

    p = *digits;

    if (p[0] != '0' || p[1] == '\0') {
        return 10;
    }

    switch (p[1]) {

    case 'x':
    case 'X':
        *digits = p + 2;
        return 16;

    case 'b':
    case 'B':
        *digits = p + 2;
        return 2;

    case 'o':
    case 'O':
        *digits = p + 2;
        return 8;

    default:
        return 8;
    }
}


/* 1.5, .5, 1e3, -.inf, .nan; also an integer that is none, such as 08 */

static int
ratelimit_yaml_is_float(const char *text)
{
    int          digits;
    const char  *p;

    p = text;

    if (*p == '-' || *p == '+') {
        p++;
    }

    if (strcmp(p, ".inf") == 0 || strcmp(p, ".Inf") == 0
        || strcmp(p, ".INF") == 0 || strcmp(text, ".nan") == 0
        || strcmp(text, ".NaN") == 0 || strcmp(text, ".NAN") == 0)
    {
        return 1;
    }

    for (digits = 0; (*p >= '0' && *p <= '9') || (digits && *p == '_'); p++) {
        digits = 1;
    }

    if (*p == '.') {
        for (p++; (*p >= '0' && *p <= '9') || (digits && *p == '_'); p++) {
            digits = 1;
        }
    }

    if (digits && (*p == 'e' || *p == 'E')) {
        p += (p[1] == '-' || p[1] == '+') ? 2 : 1;

        for (digits = 0; *p >= '0' && *p <= '9'; p++) {
            digits = 1;
        }
    }

    return digits && *p == '\0';
}


/* 2026-01-31, with or without a time */

static int
ratelimit_yaml_is_time(const char *text)
{
    unsigned     month, day, number;
    const char  *p;

    p = ratelimit_yaml_digits(text, 4, 4, &number);

    if (p == NULL || *p != '-') {
        return 0;
    }

    p = ratelimit_yaml_digits(p + 1, 1, 2, &month);

    if (p == NULL || *p != '-') {
        return 0;
    }

    p = ratelimit_yaml_digits(p + 1, 1, 2, &day);

    if (p == NULL || month < 1 || month > 12 || day < 1 || day > 31) {
        return 0;
    }

    if (*p == '\0') {
        return 1;
    }

    if (*p != 'T' && *p != 't' && *p != ' ') {
        return 0;
    }

    p = ratelimit_yaml_digits(p + 1, 1, 2, &number);

    return p != NULL && *p == ':';
}


static const char *
ratelimit_yaml_digits(const char *p, size_t least, size_t most,
    unsigned *number)
{
    size_t  n;

    *number = 0;

    for (n = 0; n < most && p[n] >= '0' && p[n] <= '9'; n++) {
        *number = *number * 10 + (unsigned) (p[n] - '0');
    }

    return n < least ? NULL : p + n;
}
