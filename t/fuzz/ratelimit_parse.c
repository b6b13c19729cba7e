
/*
 * Any text as a rate, and as a number: what is accepted is within its bounds
 * and means the same when it is written again.
 */


#include <inttypes.h>
#include <string.h>

#include "core/ratelimit_parse.h"

#include "fuzz.h"


#define FUZZ_UNSET  0x5555555555555555ULL
#define FUZZ_MAX    (((uint64_t) 1 << 53) - 1)


static int fuzz_begins(const char *text, size_t len, uint64_t number);
static void fuzz_rate(const char *text, size_t len);
static void fuzz_number(const char *text, size_t len, uint64_t max);


/* the digits at the beginning are this number, zeros before it aside */

static int
fuzz_begins(const char *text, size_t len, uint64_t number)
{
    char    copy[32];
    size_t  i, n;

    n = (size_t) snprintf(copy, sizeof(copy), "%" PRIu64, number);

    for (i = 0; i < len && text[i] == '0'; i++) { /* void */ }

    if (number == 0) {
        return (i > 0 && i == len);
    }

    return (len - i >= n
            && memcmp(text + i, copy, n) == 0
            && (len - i == n || text[i + n] < '0' || text[i + n] > '9'));
}


static void
fuzz_rate(const char *text, size_t len)
{
    int               n;
    char              copy[64];
    const char       *reason;
    ratelimit_rate_t  rate, again;

    rate.limit = FUZZ_UNSET;
    rate.period = FUZZ_UNSET;

    reason = ratelimit_parse_rate(text, len, &rate);

    if (reason != NULL) {
        fuzz_check(reason[0] != '\0');
        fuzz_check(rate.limit == FUZZ_UNSET && rate.period == FUZZ_UNSET);
        return;
    }

    fuzz_check(fuzz_begins(text, len, rate.limit));
    fuzz_check(rate.limit >= 1 && rate.limit <= RATELIMIT_MAX_LIMIT);
    fuzz_check(rate.period >= RATELIMIT_SECOND);
    fuzz_check(rate.period <= RATELIMIT_MAX_PERIOD);
    fuzz_check(rate.period % RATELIMIT_SECOND == 0);
    fuzz_check(rate.limit <= (RATELIMIT_MAX_PRODUCT - 1) / rate.period);

    n = snprintf(copy, sizeof(copy), "%" PRIu64 "r/%" PRIu64 "s", rate.limit,
                 (uint64_t) (rate.period / RATELIMIT_SECOND));

    fuzz_check(ratelimit_parse_rate(copy, (size_t) n, &again) == NULL);
    fuzz_check(again.limit == rate.limit && again.period == rate.period);
}


static void
fuzz_number(const char *text, size_t len, uint64_t max)
{
    size_t       i;
    uint64_t     number, again;
    const char  *reason;

    number = FUZZ_UNSET;

    reason = ratelimit_parse_number(text, len, max, &number);

    if (reason != NULL) {
        fuzz_check(reason[0] != '\0');
        fuzz_check(number == FUZZ_UNSET);
        return;
    }

    fuzz_check(len > 0);
    fuzz_check(number <= max);

    for (i = 0; i < len; i++) {
        fuzz_check(text[i] >= '0' && text[i] <= '9');
    }

    fuzz_check(fuzz_begins(text, len, number));

    /* the number itself is the least bound */

    fuzz_check(ratelimit_parse_number(text, len, number, &again) == NULL);

    if (number > 0) {
        fuzz_check(ratelimit_parse_number(text, len, number - 1, &again)
                   != NULL);
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t     max;
    const char  *text;

    text = (const char *) data;

    fuzz_rate(text, size);

    fuzz_number(text, size, RATELIMIT_MAX_LIMIT);
    fuzz_number(text, size, RATELIMIT_MAX_BUCKETS);
    fuzz_number(text, size, FUZZ_MAX);

    /* or the first bytes are the bound */

    if (size >= sizeof(uint64_t)) {
        memcpy(&max, data, sizeof(uint64_t));
        fuzz_number(text + sizeof(uint64_t), size - sizeof(uint64_t),
                    max & FUZZ_MAX);
    }

    return 0;
}
