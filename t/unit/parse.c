
/*
 * Rates and numbers: what is read, and for what reason a text is refused.
 */


#include <stdlib.h>
#include <string.h>

#include "core/ratelimit_parse.h"

#include "tap.h"


#define PARSE_DAY    (86400 * RATELIMIT_SECOND)

#define parse_text(s)  s, sizeof(s) - 1


typedef struct {
    const char                     *text;
    size_t                          len;
    uint64_t                        limit;
    uint64_t                        period;
} parse_good_t;


typedef struct {
    const char                     *text;
    size_t                          len;
    const char                     *reason;
} parse_bad_t;


static char *parse_copy(const char *text, size_t len);
static const char *parse_rate(const char *text, size_t len,
    ratelimit_rate_t *rate);
static void parse_test_good(void);
static void parse_test_bad(void);
static void parse_test_numbers(void);
static void parse_test_truncated(void);
static void parse_test_garbage(void);
static void parse_test_written(void);


static const parse_good_t  parse_good[] = {
    { parse_text("15r/s"), 15, RATELIMIT_SECOND },
    { parse_text("200r/m"), 200, 60 * RATELIMIT_SECOND },
    { parse_text("900r/15m"), 900, 900 * RATELIMIT_SECOND },
    { parse_text("500r/1h"), 500, 3600 * RATELIMIT_SECOND },
    { parse_text("500r/h"), 500, 3600 * RATELIMIT_SECOND },
    { parse_text("20r/d"), 20, PARSE_DAY },
    { parse_text("1r/1s"), 1, RATELIMIT_SECOND },
    { parse_text("1r/90s"), 1, 90 * RATELIMIT_SECOND },
    { parse_text("1r/366d"), 1, 366 * PARSE_DAY },
    { parse_text("1r/8784h"), 1, 366 * PARSE_DAY },
    { parse_text("1r/31622400s"), 1, 366 * PARSE_DAY },
    { parse_text("4294967295r/s"), 4294967295ULL, RATELIMIT_SECOND },

    /* the product is just below 2^62 */
    { parse_text("145836r/366d"), 145836, 366 * PARSE_DAY },
};


static const parse_bad_t  parse_bad[] = {
    { parse_text(""), "the number of requests is missing" },
    { parse_text("r/s"), "the number of requests is missing" },
    { parse_text("-1r/s"), "the number of requests is missing" },
    { parse_text("+1r/s"), "the number of requests is missing" },
    { parse_text(" 1r/s"), "the number of requests is missing" },
    { parse_text("x"), "the number of requests is missing" },
    { parse_text("\0" "1r/s"), "the number of requests is missing" },

    { parse_text("0r/s"), "must allow at least one request" },
    { parse_text("000r/s"), "must allow at least one request" },

    { parse_text("4294967296r/s"), "the number of requests is too large" },
    { parse_text("18446744073709551615r/s"),
      "the number of requests is too large" },
    { parse_text("18446744073709551616r/s"),
      "the number of requests is too large" },
    { parse_text("18446744073709551617r/s"),
      "the number of requests is too large" },
    { parse_text("99999999999999999999999999999999r/s"),
      "the number of requests is too large" },

    { parse_text("10"), "must be NUMBERr/PERIOD" },
    { parse_text("10r"), "must be NUMBERr/PERIOD" },
    { parse_text("10/s"), "must be NUMBERr/PERIOD" },
    { parse_text("10 r/s"), "must be NUMBERr/PERIOD" },
    { parse_text("10rs"), "must be NUMBERr/PERIOD" },
    { parse_text("10R/s"), "must be NUMBERr/PERIOD" },
    { parse_text("1.5r/s"), "must be NUMBERr/PERIOD" },
    { parse_text("0x10r/s"), "must allow at least one request" },
    { parse_text("10\0r/s"), "must be NUMBERr/PERIOD" },

    { parse_text("10r/"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/15"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/x"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/w"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/S"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/ s"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/-1s"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/1.5m"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/\0s"), "the unit of the period must be s, m, h or d" },

    { parse_text("10r/0s"), "the period is zero" },
    { parse_text("10r/000d"), "the period is zero" },

    { parse_text("10r/sx"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/ms"), "the unit of the period must be s, m, h or d" },
    { parse_text("10r/s "), "unexpected characters after the period" },
    { parse_text("10r/15m5s"), "unexpected characters after the period" },
    { parse_text("10r/s;"), "unexpected characters after the period" },
    { parse_text("10r/s\0"), "unexpected characters after the period" },

    { parse_text("1r/367d"), "the period is longer than 366 days" },
    { parse_text("1r/31622401s"), "the period is longer than 366 days" },
    { parse_text("1r/18446744073709551617s"),
      "the period is longer than 366 days" },
    { parse_text("1r/213503983d"), "the period is longer than 366 days" },

    { parse_text("4294967295r/366d"), "requests times period is too large" },
    { parse_text("145837r/366d"), "requests times period is too large" },
};


/* text of exactly this length, so that nothing behind it can be read */

static char *
parse_copy(const char *text, size_t len)
{
    char  *copy;

    copy = malloc(len ? len : 1);
    if (copy == NULL) {
        abort();
    }

    memcpy(copy, text, len);

    return copy;
}


static const char *
parse_rate(const char *text, size_t len, ratelimit_rate_t *rate)
{
    char        *copy;
    const char  *reason;

    copy = parse_copy(text, len);

    rate->limit = 77;
    rate->period = 77;

    reason = ratelimit_parse_rate(copy, len, rate);

    free(copy);

    return reason;
}


static void
parse_test_good(void)
{
    size_t               i;
    const char          *reason;
    ratelimit_rate_t     rate;
    const parse_good_t  *good;

    for (i = 0; i < sizeof(parse_good) / sizeof(parse_good[0]); i++) {
        good = &parse_good[i];

        reason = parse_rate(good->text, good->len, &rate);

        tap_ok(reason == NULL && rate.limit == good->limit
               && rate.period == good->period,
               "\"%s\" is a rate", good->text);
    }
}


static void
parse_test_bad(void)
{
    size_t              i;
    const char         *reason;
    ratelimit_rate_t    rate;
    const parse_bad_t  *bad;

    for (i = 0; i < sizeof(parse_bad) / sizeof(parse_bad[0]); i++) {
        bad = &parse_bad[i];

        reason = parse_rate(bad->text, bad->len, &rate);

        tap_ok(reason != NULL && strcmp(reason, bad->reason) == 0
               && rate.limit == 77 && rate.period == 77,
               "\"%s\" of %u bytes: %s", bad->text, (unsigned) bad->len,
               reason ? reason : "is taken for a rate");
    }
}


static void
parse_test_numbers(void)
{
    char        *copy;
    size_t       i;
    uint64_t     number;
    const char  *reason;

    static const struct {
        const char  *text;
        size_t       len;
        uint64_t     max;
        uint64_t     number;
        const char  *reason;
    } tests[] = {
        { parse_text("0"), 10, 0, NULL },
        { parse_text("10"), 10, 10, NULL },
        { parse_text("007"), 10, 7, NULL },
        { parse_text("9007199254740991"), 9007199254740991ULL,
          9007199254740991ULL, NULL },
        { parse_text("0"), 0, 0, NULL },
        { parse_text("11"), 10, 0, "is too large" },
        { parse_text("1"), 0, 0, "is too large" },
        { parse_text("18446744073709551616"), 10, 0, "is too large" },
        { parse_text("99999999999999999999999999"), 10, 0, "is too large" },
        { parse_text(""), 10, 0, "is not a number" },
        { parse_text("-1"), 10, 0, "is not a number" },
        { parse_text("+1"), 10, 0, "is not a number" },
        { parse_text(" 1"), 10, 0, "is not a number" },
        { parse_text("1 "), 10, 0, "is not a number" },
        { parse_text("1x"), 10, 0, "is not a number" },
        { parse_text("x1"), 10, 0, "is not a number" },
        { parse_text("1.0"), 10, 0, "is not a number" },
        { parse_text("1\0"), 10, 0, "is not a number" },
        { parse_text("\0" "1"), 10, 0, "is not a number" },
        { parse_text("0x1"), 10, 0, "is not a number" },
        { parse_text("/"), 10, 0, "is not a number" },
        { parse_text(":"), 10, 0, "is not a number" },
    };

    for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        copy = parse_copy(tests[i].text, tests[i].len);
        number = 77;

        reason = ratelimit_parse_number(copy, tests[i].len, tests[i].max,
                                        &number);

        if (tests[i].reason == NULL) {
            tap_ok(reason == NULL && number == tests[i].number,
                   "\"%s\" is a number", tests[i].text);

        } else {
            tap_ok(reason != NULL && strcmp(reason, tests[i].reason) == 0
                   && number == 77,
                   "\"%s\" of %u bytes %s", tests[i].text,
                   (unsigned) tests[i].len, reason ? reason : "is taken");
        }

        free(copy);
    }
}


/* "900r/15m" cut anywhere is no rate */

static void
parse_test_truncated(void)
{
    size_t            len;
    unsigned          taken;
    ratelimit_rate_t  rate;

    taken = 0;

    for (len = 0; len < sizeof("900r/15m") - 1; len++) {
        taken += (parse_rate("900r/15m", len, &rate) == NULL);
    }

    tap_ok(taken == 0, "a truncated rate is refused");
}


/* random bytes, most of them near to a rate */

static void
parse_test_garbage(void)
{
    char              text[24];
    size_t            len, j;
    unsigned          i, odd, taken;
    ratelimit_rate_t  rate;

    static const char  near[] = "0123456789rrr///smhdsmhd -+.x\0\xff";

    odd = 0;
    taken = 0;
    srand(1);

    for (i = 0; i < 200000; i++) {
        len = rand() % sizeof(text);

        for (j = 0; j < len; j++) {
            text[j] = (i % 4) ? near[rand() % (sizeof(near) - 1)] : rand();
        }

        if (parse_rate(text, len, &rate) != NULL) {
            odd += (rate.limit != 77 || rate.period != 77);
            continue;
        }

        taken++;

        odd += (rate.limit == 0 || rate.limit > RATELIMIT_MAX_LIMIT
                || rate.period < RATELIMIT_SECOND
                || rate.period > RATELIMIT_MAX_PERIOD
                || (unsigned __int128) rate.limit * rate.period
                   >= RATELIMIT_MAX_PRODUCT);
    }

    tap_ok(odd == 0, "garbage gives no odd rate");
    tap_ok(taken > 0, "some of the garbage is a rate, %u", taken);
}


/* what is written is read */

static void
parse_test_written(void)
{
    int               len;
    char              text[64];
    unsigned          i, limit, count, wrong;
    ratelimit_rate_t  rate;

    static const uint64_t  seconds[] = { 1, 60, 3600, 86400 };

    wrong = 0;

    for (i = 0; i < 20000; i++) {
        limit = 1 + rand() % 100000;
        count = 1 + rand() % 366;

        len = snprintf(text, sizeof(text), "%ur/%u%c", limit, count,
                       "smhd"[i % 4]);

        wrong += (parse_rate(text, len, &rate) != NULL
                  || rate.limit != limit
                  || rate.period != count * seconds[i % 4]
                                    * RATELIMIT_SECOND);
    }

    tap_ok(wrong == 0, "every rate that is written is read");
}


int
main(void)
{
    parse_test_good();
    parse_test_bad();
    parse_test_numbers();
    parse_test_truncated();
    parse_test_garbage();
    parse_test_written();

    return tap_done();
}
