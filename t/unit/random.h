
/*
 * Random numbers that can be had again: the seed is printed, and taken from
 * the command line or from the environment's SEED.
 */


#ifndef _RANDOM_H_INCLUDED_
#define _RANDOM_H_INCLUDED_


#include <stdint.h>
#include <stdlib.h>

#include "tap.h"


/* a thread has numbers of its own */
static __thread uint64_t  random_state;


static void __attribute__((unused))
random_start(int argc, char **argv)
{
    const char  *text;

    text = (argc > 1) ? argv[1] : getenv("SEED");

    random_state = (text != NULL) ? strtoull(text, NULL, 0) : 20;

    tap_note("SEED=%llu", (unsigned long long) random_state);
}


/* splitmix64 */

static uint64_t
random_next(void)
{
    uint64_t  z;

    random_state += 0x9e3779b97f4a7c15ULL;

    z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;

    return z ^ (z >> 31);
}


/* from 0 to n - 1 */

static uint64_t __attribute__((unused))
random_below(uint64_t n)
{
    return random_next() % n;
}


static uint64_t __attribute__((unused))
random_between(uint64_t least, uint64_t most)
{
    return least + random_next() % (most - least + 1);
}


static int __attribute__((unused))
random_percent(unsigned percent)
{
    return (random_below(100) < percent);
}


/* of at most so many bits; small ones and edges are as likely as large ones */

static uint64_t __attribute__((unused))
random_bits(unsigned bits)
{
    uint64_t  most;

    most = UINT64_MAX >> (64 - random_between(1, bits));

    switch (random_below(4)) {

    case 0:
        return most;

    case 1:
        return most / 2 + 1;

    default:
        return random_next() & most;
    }
}


#endif /* _RANDOM_H_INCLUDED_ */
