
/*
 * Reads and writes JSON: what an object of known members needs.  An unknown
 * member is refused, so that nothing has to be passed over, and there is no
 * recursion.  Nothing is allocated.
 */


#ifndef _RATELIMIT_JSON_H_INCLUDED_
#define _RATELIMIT_JSON_H_INCLUDED_


#include "domain/ratelimit_domain.h"


/* bytes of a name, or of a number in quotes; none that counts is longer */
#define RATELIMIT_JSON_WORD  64

#define RATELIMIT_JSON_MEMBERS  4


typedef struct {
    unsigned char                  *p;
    unsigned char                  *end;
    const char                     *reason;   /* NULL: no error so far */
    unsigned                        fill;     /* texts are wanted */
} ratelimit_json_t;


/* both names of a member: as JSON has it, and as the message has it */

typedef struct {
    const char                     *camel;
    const char                     *snake;
} ratelimit_json_name_t;


/* an object that is being read */

typedef struct {
    const ratelimit_json_name_t    *names;    /* RATELIMIT_JSON_MEMBERS */
    unsigned                        seen;     /* members, a bit each */
    unsigned                        next;     /* not the first one */
} ratelimit_json_object_t;


/* the first one is kept; returns 0, as what fails does */
int ratelimit_json_error(ratelimit_json_t *in, const char *reason);

/* passes blanks over; returns 0 at the end */
int ratelimit_json_blank(ratelimit_json_t *in);

/* whether this is next: then it is passed over */
int ratelimit_json_take(ratelimit_json_t *in, unsigned char ch);

/*
 * An object: begin, then the number of each member that has a value; -1 after
 * the last one.  A list, behind its bracket: whether it has another element.
 */
int ratelimit_json_begin(ratelimit_json_t *in, ratelimit_json_object_t *object,
    const ratelimit_json_name_t *names);
int ratelimit_json_member(ratelimit_json_t *in,
    ratelimit_json_object_t *object);
int ratelimit_json_element(ratelimit_json_t *in, unsigned *next);

/* what is between the quotes, without escapes, in the same place */
void ratelimit_json_text(ratelimit_json_t *in, ratelimit_text_t *text);

/*
 * Begins at a quote.  Writes what there is room for, never beyond what it has
 * read; returns the whole length.
 */
size_t ratelimit_json_string(ratelimit_json_t *in, unsigned char *out,
    size_t room);

/* an integer, as a number or as a text */
void ratelimit_json_number(ratelimit_json_t *in, uint64_t most,
    uint64_t *number);
unsigned ratelimit_json_bool(ratelimit_json_t *in);

/* each returns the end; a byte of a text may take six, and there are quotes */
unsigned char *ratelimit_json_write(unsigned char *p, const char *text);
unsigned char *ratelimit_json_write_text(unsigned char *p,
    const ratelimit_text_t *text);


#endif /* _RATELIMIT_JSON_H_INCLUDED_ */
