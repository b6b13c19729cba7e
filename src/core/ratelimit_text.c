
/*
 * Text: numbers, and UTF-8.
 */


#include <string.h>

#include "core/ratelimit_text.h"


unsigned char *
ratelimit_write_number(unsigned char *p, uint64_t number)
{
    size_t         i;
    unsigned char  digits[RATELIMIT_NUMBER_LEN];

    i = RATELIMIT_NUMBER_LEN;

    do {
        digits[--i] = (unsigned char) ('0' + number % 10);
        number /= 10;
    } while (number);

    memcpy(p, digits + i, RATELIMIT_NUMBER_LEN - i);

    return p + RATELIMIT_NUMBER_LEN - i;
}


int
ratelimit_is_utf8(const unsigned char *p, size_t len)
{
    size_t                n;
    uint32_t              code, least;
    const unsigned char  *end;

    end = p + len;

    while (p < end) {

        if (*p < 0x80) {
            p++;
            continue;
        }

        if (*p < 0xc2 || *p > 0xf4) {
            return 0;
        }

        n = (*p < 0xe0) ? 1 : (*p < 0xf0) ? 2 : 3;
        least = (n == 1) ? 0x80 : (n == 2) ? 0x800 : 0x10000;
        code = *p++ & (0x3f >> n);

        for ( /* void */ ; n; n--, p++) {

            if (p == end || (*p & 0xc0) != 0x80) {
                return 0;
            }

            code = code << 6 | (*p & 0x3f);
        }

        if (code < least || code > 0x10ffff
            || (code >= 0xd800 && code <= 0xdfff))
        {
            return 0;
        }
    }

    return 1;
}
