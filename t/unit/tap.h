
/*
 * Prints the results of a test program in TAP, which prove(1) reads.
 */


#ifndef _TAP_H_INCLUDED_
#define _TAP_H_INCLUDED_


#include <stdarg.h>
#include <stdio.h>


static unsigned  tap_tests;
static unsigned  tap_failures;


/* one result, named like printf(3); returns ok */

static int __attribute__((format(printf, 2, 3), unused))
tap_ok(int ok, const char *fmt, ...)
{
    va_list  args;

    tap_tests++;

    if (!ok) {
        tap_failures++;
    }

    printf("%sok %u - ", ok ? "" : "not ", tap_tests);

    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);

    printf("\n");
    fflush(stdout);

    return ok;
}


/* a remark */

static void __attribute__((format(printf, 1, 2), unused))
tap_note(const char *fmt, ...)
{
    va_list  args;

    printf("# ");

    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);

    printf("\n");
    fflush(stdout);
}


/* the plan; returns the exit code of the program */

static int __attribute__((unused))
tap_done(void)
{
    printf("1..%u\n", tap_tests);
    fflush(stdout);

    return (tap_tests == 0 || tap_failures != 0);
}


#endif /* _TAP_H_INCLUDED_ */
