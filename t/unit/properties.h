
/*
 * Properties: each is tried many times by random worlds, and makes one line
 * of the result.
 */


#ifndef _PROPERTIES_H_INCLUDED_
#define _PROPERTIES_H_INCLUDED_


#include "world.h"


typedef struct {
    const char                     *name;
    unsigned                        tried;
    unsigned                        failed;
} property_t;


/* the first failures of a property are told */

static void __attribute__((unused))
property_check(property_t *p, const world_t *w, int ok, const char *what)
{
    p->tried++;

    if (ok) {
        return;
    }

    p->failed++;

    if (p->failed > 3) {
        return;
    }

    tap_note("%s: %s: %s; limit=%llu period=%lluus capacity=%llu ceiling=%llu "
             "free=%lld wait=%lluus buckets=%u now=%lluus",
             w->algorithm->name, p->name, what,
             (unsigned long long) w->rule.limit,
             (unsigned long long) w->rule.period,
             (unsigned long long) w->rule.capacity,
             (unsigned long long) w->rule.ceiling,
             (long long) w->rule.free,
             (unsigned long long) w->rule.wait, w->shape.buckets,
             (unsigned long long) w->clock.now);
}


/* a property that was never tried has failed */

static void __attribute__((unused))
property_report(property_t *p, unsigned n, const char *algorithm)
{
    unsigned  i;

    for (i = 0; i < n; i++) {
        tap_ok(p[i].tried && p[i].failed == 0, "%s: %s (%u tried)", algorithm,
               p[i].name, p[i].tried);

        p[i].tried = 0;
        p[i].failed = 0;
    }
}


#endif /* _PROPERTIES_H_INCLUDED_ */
