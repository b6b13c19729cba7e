
/*
 * Text to numbers.  The reasons complete the sentence
 * invalid rate "X": REASON.
 */


#include "core/ratelimit_parse.h"
#include "core/ratelimit_text.h"


static const char *ratelimit_parse_digits(const char *p, const char *end,
    uint64_t *number);
static uint64_t ratelimit_parse_unit(char unit);
static int ratelimit_parse_letter(char ch);
static const char *ratelimit_parse_period(const char *p, const char *end,
    uint64_t *period);


/* skips digits; a number that does not fit becomes UINT64_MAX */

static const char *
ratelimit_parse_digits(const char *p, const char *end, uint64_t *number)
{
    uint64_t  value, digit;

    value = 0;

    while (p < end && *p >= '0' && *p <= '9') {
        digit = (uint64_t) (*p - '0');

        if (value > (UINT64_MAX - digit) / 10) {
            value = UINT64_MAX;

        } else {
            value = value * 10 + digit;
        }

        p++;
    }

    *number = value;

    return p;
}


const char *
ratelimit_parse_number(const char *text, size_t len, uint64_t max,
    uint64_t *number)
{
    uint64_t     value;
    const char  *end;

    end = text + len;

    if (len == 0 || ratelimit_parse_digits(text, end, &value) != end) {
        return "is not a number";
    }

    if (value > max) {
        return "is too large";
    }

    *number = value;

    return NULL;
}


const char *
ratelimit_parse_rate(const char *text, size_t len, ratelimit_rate_t *rate)
{
    uint64_t     limit, period;
    const char  *p, *end, *reason;

    end = text + len;

    p = ratelimit_parse_digits(text, end, &limit);

    if (p == text) {
        return "the number of requests is missing";
    }

    if (limit == 0) {
        return "must allow at least one request";
    }

    if (limit > RATELIMIT_MAX_LIMIT) {
        return "the number of requests is too large";
    }

    if (end - p < 2 || p[0] != 'r' || p[1] != '/') {
        return "must be NUMBERr/PERIOD";
    }

    reason = ratelimit_parse_period(p + 2, end, &period);

    if (reason != NULL) {
        return reason;
    }

    if (limit > (RATELIMIT_MAX_PRODUCT - 1) / period) {
        return "requests times period is too large";
    }

    rate->limit = limit;
    rate->period = period;

    return NULL;
}


/* all of the text must be a period: "s", "15m" */

static const char *
ratelimit_parse_period(const char *p, const char *end, uint64_t *period)
{
    uint64_t     count, unit;
    const char  *start;

    start = p;

    p = ratelimit_parse_digits(start, end, &count);

    if (p == start) {
        count = 1;
    }

    if (count == 0) {
        return "the period is zero";
    }

    unit = (p < end) ? ratelimit_parse_unit(*p) : 0;

    /* neither "w" nor "min" */

    if (unit == 0 || (p + 1 < end && ratelimit_parse_letter(p[1]))) {
        return "the unit of the period must be s, m, h or d";
    }

    if (p + 1 < end) {
        return "unexpected characters after the period";
    }

    if (count > RATELIMIT_MAX_PERIOD / unit) {
        return "the period is longer than 366 days";
    }

    *period = count * unit;

    return NULL;
}


static uint64_t
ratelimit_parse_unit(char unit)
{
    switch (unit) {

    case 's':
        return RATELIMIT_SECOND;

    case 'm':
        return 60 * RATELIMIT_SECOND;

    case 'h':
        return 3600 * RATELIMIT_SECOND;

    case 'd':
        return 86400 * RATELIMIT_SECOND;

    default:
        return 0;
    }
}


static int
ratelimit_parse_letter(char ch)
{
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z');
}


size_t
ratelimit_format_rate(uint64_t limit, uint64_t period, char *text)
{
    const char     *unit;
    unsigned char  *p;

    for (unit = "dhms"; period % ratelimit_parse_unit(*unit); unit++) {
        if (*unit == 's') {
            break;
        }
    }

    period /= ratelimit_parse_unit(*unit);

    p = ratelimit_write_number((unsigned char *) text, limit);
    *p++ = 'r';
    *p++ = '/';

    if (period != 1) {
        p = ratelimit_write_number(p, period);
    }

    *p++ = (unsigned char) *unit;

    return (size_t) (p - (unsigned char *) text);
}
