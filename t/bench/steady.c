
/*
 * To be preloaded: the same run twice has the same hashes and the same times,
 * so that instruction counts can be had again to the last one.  Nothing is
 * random, and time goes on by one step whenever it is asked for.
 */


#define _GNU_SOURCE

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>


#define STEADY_STEP   1000             /* us */
#define STEADY_START  1700000000       /* s, at the beginning of no window */


typedef int (*steady_open_pt)(const char *path, int flags, ...);


static int steady_open(const char *name, const char *path, int flags,
    mode_t mode);


static uint64_t  steady_time = 100 * 1000000ULL;


int
gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    (void) zone;

    steady_time += STEADY_STEP;

    tv->tv_sec = STEADY_START + steady_time / 1000000;
    tv->tv_usec = steady_time % 1000000;

    return 0;
}


int
clock_gettime(clockid_t id, struct timespec *ts)
{
    ts->tv_sec = (id == CLOCK_REALTIME) ? STEADY_START : 0;
    ts->tv_sec += steady_time / 1000000;
    ts->tv_nsec = steady_time % 1000000 * 1000;

    return 0;
}


static int
steady_open(const char *name, const char *path, int flags, mode_t mode)
{
    steady_open_pt  real;

    real = (steady_open_pt) (intptr_t) dlsym(RTLD_NEXT, name);

    if (strcmp(path, "/dev/urandom") == 0) {
        path = "/dev/zero";
    }

    return real(path, flags, mode);
}


int
open(const char *path, int flags, ...)
{
    mode_t   mode;
    va_list  args;

    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);

    return steady_open("open", path, flags, mode);
}


int
open64(const char *path, int flags, ...)
{
    mode_t   mode;
    va_list  args;

    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);

    return steady_open("open64", path, flags, mode);
}
