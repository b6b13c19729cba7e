
/*
 * The scripts that Redis runs, their arguments and their replies, as bytes.
 */


#ifndef _RATELIMIT_SCRIPT_H_INCLUDED_
#define _RATELIMIT_SCRIPT_H_INCLUDED_


#include "core/ratelimit.h"


/* bytes of one limit in a call and in a reply */
#define RATELIMIT_SCRIPT_ARGUMENT  72
#define RATELIMIT_SCRIPT_VERDICT   56

/* bytes of the last argument of a call, with which the reply begins */
#define RATELIMIT_SCRIPT_ECHO      2


/*
 * What a call does with all of its limits, its first argument.
 *
 * decide   charges all if all allow, otherwise those that count refusals
 * commit   the reservations that have these stamps count
 * refund   takes back the charges or reservations that have these stamps
 * debit    charges all, whatever their limits say
 * refused  the request was refused elsewhere: charges those that count that
 * peek     charges none
 * reset    forgets what was charged
 *
 * and with write-back, ratelimit_exchange.h:
 *
 * exchange  counts what a machine has admitted by itself
 * ask       decides, though the machine has not reported all of that yet
 * void      takes back what a question has charged or will charge
 */

typedef enum {
    RATELIMIT_SCRIPT_DECIDE = 'c',
    RATELIMIT_SCRIPT_COMMIT = 's',
    RATELIMIT_SCRIPT_REFUND = 'r',
    RATELIMIT_SCRIPT_DEBIT = 'b',
    RATELIMIT_SCRIPT_REFUSED = 'i',
    RATELIMIT_SCRIPT_PEEK = 'p',
    RATELIMIT_SCRIPT_RESET = 'd',
    RATELIMIT_SCRIPT_EXCHANGE = 'x',
    RATELIMIT_SCRIPT_ASK = 'a',
    RATELIMIT_SCRIPT_VOID = 'v'
} ratelimit_script_e;

/* whether it settles a decision that was made before, which has no verdict */
#define ratelimit_script_settles(op)                                          \
    ((op) == RATELIMIT_SCRIPT_COMMIT || (op) == RATELIMIT_SCRIPT_REFUND       \
     || (op) == RATELIMIT_SCRIPT_DEBIT || (op) == RATELIMIT_SCRIPT_VOID)


/*
 * The scripts, complete texts that the build makes of src/redis/lua/: for calls
 * whose limits are of one algorithm, by its number, and one for all other
 * calls, which costs Redis more.
 */

#define RATELIMIT_SCRIPT_MIXED  RATELIMIT_ALGORITHMS
#define RATELIMIT_SCRIPTS       (RATELIMIT_ALGORITHMS + 1)

typedef struct {
    const char                     *text;
    size_t                          len;
} ratelimit_script_t;

extern const ratelimit_script_t  ratelimit_scripts[RATELIMIT_SCRIPTS];

/* the same for write-back */
extern const ratelimit_script_t  ratelimit_sync_scripts[RATELIMIT_SCRIPTS];

/* the number of the script for these algorithms, a bit for each */
unsigned ratelimit_script_select(unsigned algorithms);


/*
 * One limit as an argument: shape, rule, cost, count_rejected, and the stamp of
 * the verdict for a refund.
 */
void ratelimit_script_argument(const ratelimit_item_t *item,
    unsigned char *argument);

/*
 * The verdict of one limit in a reply.  Returns 0 if no script would return it:
 * a reply is not to be trusted.
 */
int ratelimit_script_verdict(ratelimit_item_t *item,
    const unsigned char *reply);


/*
 * The argument of a decision becomes that of a refund, with the stamp of the
 * verdict in the reply.  Returns 0 if nothing was charged.
 */
int ratelimit_script_to_refund(unsigned char *argument,
    const unsigned char *reply);

/* a refund with this argument will take back nothing */
void ratelimit_script_no_refund(unsigned char *argument);


#endif /* _RATELIMIT_SCRIPT_H_INCLUDED_ */
