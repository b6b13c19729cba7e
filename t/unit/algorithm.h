
/*
 * Algorithms by their names, for programs that take one as an argument.
 */


#ifndef _ALGORITHM_H_INCLUDED_
#define _ALGORITHM_H_INCLUDED_


#include <string.h>

#include "core/ratelimit.h"


/* RATELIMIT_ALGORITHMS if there is none of this name */

static inline ratelimit_algorithm_e
algorithm_find(const char *name)
{
    unsigned  i;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        if (strcmp(ratelimit_algorithms[i]->name, name) == 0) {
            break;
        }
    }

    return (ratelimit_algorithm_e) i;
}


#endif /* _ALGORITHM_H_INCLUDED_ */
