
/*
 * Any text as a rate, and as a number: what is accepted is within its bounds
 * and means the same when it is written anew.
 */


#include <inttypes.h>
#include <string.h>

#include "core/ratelimit_parse.h"

#include "fuzz.h"


#define FUZZ_UNSET  0x5555555555555555ULL


static void fuzz_rate(const char *text, size_t len);
static void fuzz_number(const char *text, size_t len, uint64_t max);


static void
fuzz_rate(const char *text, size_t len)
{
    int               n;
    char              anew[64];
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

    fuzz_check(rate.limit >= 1 && rate.limit <= RATELIMIT_MAX_LIMIT);
    fuzz_check(rate.period >= RATELIMIT_SECOND);
    fuzz_check(rate.period <= RATELIMIT_MAX_PERIOD);
    fuzz_check(rate.period % RATELIMIT_SECOND == 0);
    fuzz_check(rate.limit <= (RATELIMIT_MAX_PRODUCT - 1) / rate.period);

    n = snprintf(anew, sizeof(anew), "%" PRIu64 "r/%" PRIu64 "s", rate.limit,
                 (uint64_t) (rate.period / RATELIMIT_SECOND));

    fuzz_check(ratelimit_parse_rate(anew, (size_t) n, &again) == NULL);
    fuzz_check(again.limit == rate.limit && again.period == rate.period);
}


static void
fuzz_number(const char *text, size_t len, uint64_t max)
{
    int          n;
    char         anew[32];
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

    n = snprintf(anew, sizeof(anew), "%" PRIu64, number);

    fuzz_check(ratelimit_parse_number(anew, (size_t) n, max, &again) == NULL);
    fuzz_check(again == number);

    /* a larger bound changes nothing, the number itself is one */

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
    fuzz_number(text, size, UINT64_MAX);

    /* or the first bytes are the bound */

    if (size >= sizeof(uint64_t)) {
        memcpy(&max, data, sizeof(uint64_t));
        fuzz_number(text + sizeof(uint64_t), size - sizeof(uint64_t), max);
    }

    return 0;
}
