
/*
 * What a driver needs: the entry that libFuzzer, or replay.c, calls, and a
 * way to stop at what must not be.
 */


#ifndef _FUZZ_H_INCLUDED_
#define _FUZZ_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>


#define fuzz_check(truth)                                                    \
    do {                                                                     \
        if (!(truth)) {                                                      \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__,     \
                    #truth);                                                 \
            abort();                                                         \
        }                                                                    \
    } while (0)


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


#endif /* _FUZZ_H_INCLUDED_ */
