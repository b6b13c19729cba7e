
/*
 * What is said to Redis and what it answers, as bytes: the scripts, which are
 * put together out of src/redis/lua/, their arguments and their replies.
 */


#ifndef _RATELIMIT_SCRIPT_H_INCLUDED_
#define _RATELIMIT_SCRIPT_H_INCLUDED_


#include "core/ratelimit.h"


/* bytes of one limit in a call and in a reply */
#define RATELIMIT_SCRIPT_ARGUMENT  72
#define RATELIMIT_SCRIPT_VERDICT   56


/*
 * What a call is to do with all of its limits, its first argument.
 *
 * check   one decision: charges all if all allow, otherwise those that insist
 * refund  gives back what was charged with these stamps
 * insist  the request was refused elsewhere: charges those that insist
 */

typedef enum {
    RATELIMIT_SCRIPT_CHECK = 'c',
    RATELIMIT_SCRIPT_REFUND = 'r',
    RATELIMIT_SCRIPT_INSIST = 'i'
} ratelimit_script_e;


/*
 * The script for limits of these algorithms, a bit for each by its number; one
 * that knows more algorithms than a call needs would cost Redis more.  Writes
 * it to text if that is not NULL; returns its length.
 */
size_t ratelimit_script_text(unsigned algorithms, char *text);

/*
 * One limit as an argument: shape, rule, cost, insist, and the stamp of the
 * verdict for a refund.
 */
void ratelimit_script_argument(const ratelimit_item_t *item,
    unsigned char *argument);

/*
 * The verdict of one limit in a reply.  Returns 0 if no script would say so:
 * a reply is not to be trusted.
 */
int ratelimit_script_verdict(ratelimit_item_t *item,
    const unsigned char *reply);


/*
 * A check that was answered becomes a refund of what it has charged: of each
 * limit that is not kept before.  Returns 0 if nothing was charged.
 */
void ratelimit_script_keep(unsigned char *argument);
int ratelimit_script_turn(unsigned char *argument,
    const unsigned char *reply);


#endif /* _RATELIMIT_SCRIPT_H_INCLUDED_ */
