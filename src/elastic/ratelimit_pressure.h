
/*
 * How much of the processors is in use, as the files of the kernel say, and
 * whether that is pressure.  Usage and marks are in thousandths.
 */


#ifndef _RATELIMIT_PRESSURE_H_INCLUDED_
#define _RATELIMIT_PRESSURE_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


#define RATELIMIT_PRESSURE_WHOLE    1000
#define RATELIMIT_PRESSURE_UNKNOWN  UINT32_MAX

/* pressure ends this far below the mark, or at half of the mark if nearer */
#define RATELIMIT_PRESSURE_GAP      50


/*
 * Processor time up to a moment.  Of the time that passes, quota / period may
 * be used: all of it by the machine, where time passes once per processor.
 */

typedef struct {
    uint64_t                        used;
    uint64_t                        passed;   /* in the same unit */
    uint64_t                        quota;
    uint64_t                        period;
} ratelimit_cpu_t;


/* ratelimit_procfs.c: these return 1, or 0 and set nothing: malformed text */

/* "cpu  USER NICE SYSTEM IDLE ...", the first line of /proc/stat */
int ratelimit_procfs_stat(const char *text, size_t len,
    ratelimit_cpu_t *cpu);

/* "QUOTA PERIOD" of cpu.max, the quota is 0 if there is none */
int ratelimit_procfs_cpu_max(const char *text, size_t len, uint64_t *quota,
    uint64_t *period);

/* "usage_usec NUMBER", one of the lines of cpu.stat */
int ratelimit_procfs_usage(const char *text, size_t len, uint64_t *usage);

/* a line that is a number, at least 1: cpu.cfs_quota_us is -1 if none is set */
int ratelimit_procfs_number(const char *text, size_t len, uint64_t *number);

/*
 * The path of the process in /proc/self/cgroup, for a controller of version 1,
 * or "" for version 2.  It begins with "/", and is "" if that is all.
 */
int ratelimit_procfs_cgroup(const char *text, size_t len,
    const char *controller, const char **path, size_t *path_len);


/* ratelimit_pressure.c */

/* at most RATELIMIT_PRESSURE_WHOLE; UNKNOWN if the whole is 0 */
uint32_t ratelimit_pressure_usage(uint64_t used, uint64_t whole);

/* the usage between two moments; UNKNOWN if no time passed */
uint32_t ratelimit_pressure_cpu_usage(const ratelimit_cpu_t *before,
    const ratelimit_cpu_t *now);

/*
 * Whether there is pressure, given whether there was: it begins at the mark
 * and ends a gap below it, so that a usage near the mark does not flap.
 */
int ratelimit_pressure_at(uint32_t usage, uint32_t mark, int pressed);


#endif /* _RATELIMIT_PRESSURE_H_INCLUDED_ */
