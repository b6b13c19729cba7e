
/*
 * Text: what several formats need.
 */


#ifndef _RATELIMIT_TEXT_H_INCLUDED_
#define _RATELIMIT_TEXT_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


/* digits of the longest number */
#define RATELIMIT_NUMBER_LEN  20

/* writes digits; printf() takes ten times as long */
unsigned char *ratelimit_write_number(unsigned char *p, uint64_t number);

/* whether it is UTF-8, without surrogates and longer forms than needed */
int ratelimit_is_utf8(const unsigned char *p, size_t len);


#endif /* _RATELIMIT_TEXT_H_INCLUDED_ */
