
/*
 * Text to numbers, and back: "900r/15m".
 */


#ifndef _RATELIMIT_PARSE_H_INCLUDED_
#define _RATELIMIT_PARSE_H_INCLUDED_


#include "core/ratelimit.h"


typedef struct {
    uint64_t                        limit;
    uint64_t                        period;   /* microseconds */
} ratelimit_rate_t;


/* both return NULL, or the reason why the text is refused */

const char *ratelimit_parse_rate(const char *text, size_t len,
    ratelimit_rate_t *rate);

/* a decimal number from 0 to max, without sign or blanks */
const char *ratelimit_parse_number(const char *text, size_t len, uint64_t max,
    uint64_t *number);


/*
 * A text of at most so many bytes that is parsed to this rate, whose period is
 * a number of seconds; returns its length.
 */
#define RATELIMIT_RATE_LEN  48

size_t ratelimit_format_rate(uint64_t limit, uint64_t period, char *text);


#endif /* _RATELIMIT_PARSE_H_INCLUDED_ */
