
/*
 * What a scalar of a YAML file is that has no quotes: by YAML 1.1 "on" is a
 * truth, 1.5 a number, and 2026-01-31 a date.
 */


#ifndef _RATELIMIT_YAML_SCALAR_H_INCLUDED_
#define _RATELIMIT_YAML_SCALAR_H_INCLUDED_


#include <stdint.h>


/* a rule file must not have the last four: three of them need quotes */

typedef enum {
    RATELIMIT_SCALAR_STRING = 0,
    RATELIMIT_SCALAR_INTEGER,
    RATELIMIT_SCALAR_BOOLEAN,
    RATELIMIT_SCALAR_NULL,
    RATELIMIT_SCALAR_LONG,                /* does not fit 63 bits and a sign */
    RATELIMIT_SCALAR_FLOAT,
    RATELIMIT_SCALAR_TIME,
    RATELIMIT_SCALAR_MISFIT               /* not what its tag says */
} ratelimit_scalar_e;


typedef struct {
    ratelimit_scalar_e              type;
    int64_t                         number;   /* of a boolean: 0 or 1 */
} ratelimit_scalar_t;


ratelimit_scalar_t ratelimit_yaml_scalar(const char *text);


#endif /* _RATELIMIT_YAML_SCALAR_H_INCLUDED_ */
