
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


typedef struct {
    unsigned char                  *p;
    unsigned char                  *end;
    const char                     *reason;   /* NULL: no error so far */
    unsigned                        fill;     /* texts are wanted */
    void                           *call;     /* of the reader's functions */
} ratelimit_json_t;


/* reads a value into a field */

typedef void (*ratelimit_json_read_pt)(ratelimit_json_t *in, void *field);


/* a member, by its names in JSON and in the message, and where it is read to */

typedef struct {
    const char                     *camel;
    const char                     *snake;
    ratelimit_json_read_pt          read;
    size_t                          offset;
} ratelimit_json_member_t;


/* the first one is kept; returns 0, as what fails does */
int ratelimit_json_error(ratelimit_json_t *in, const char *reason);

/* passes blanks over; returns 0 at the end */
int ratelimit_json_blank(ratelimit_json_t *in);

/* members are listed up to one without a name; one that is null is not read */
void ratelimit_json_object(ratelimit_json_t *in,
    const ratelimit_json_member_t *members, void *object);

/* reads each element; error is for what is no list */
void ratelimit_json_list(ratelimit_json_t *in, const char *error,
    ratelimit_json_read_pt read, void *field);

/* ratelimit_text_t: what is between the quotes, without escapes, in place */
void ratelimit_json_text(ratelimit_json_t *in, void *field);

/*
 * Begins at a quote.  Writes what there is room for, never beyond what it has
 * read; returns the whole length.
 */
size_t ratelimit_json_string(ratelimit_json_t *in, unsigned char *out,
    size_t room);

/* an integer, as a number or as a text */
void ratelimit_json_number(ratelimit_json_t *in, uint64_t most,
    uint64_t *number);
void ratelimit_json_uint32(ratelimit_json_t *in, void *field);

unsigned ratelimit_json_bool(ratelimit_json_t *in);

/* each returns the end; a byte of a text may take six, and there are quotes */
unsigned char *ratelimit_json_write(unsigned char *p, const char *text);
unsigned char *ratelimit_json_write_text(unsigned char *p,
    const ratelimit_text_t *text);


#endif /* _RATELIMIT_JSON_H_INCLUDED_ */
