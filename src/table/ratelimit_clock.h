
/*
 * The wall clock as all processes see it.
 *
 * A process reads the wall clock and the monotonic one in milliseconds, each
 * rounded down by itself: so their difference varies by one, and by more if the
 * process had to wait in between.  A window that is aligned by another
 * difference than the one before it would begin too early or leave a gap, in
 * which a window of a millisecond opens.  So all processes use one difference,
 * in memory that they share, as long as the wall clock is not set.
 */


#ifndef _RATELIMIT_CLOCK_H_INCLUDED_
#define _RATELIMIT_CLOCK_H_INCLUDED_


#include <stdint.h>


/*
 * The wall clock that belongs to a monotonic time, both in milliseconds; the
 * difference in shared memory is 0 at first.
 */
uint64_t ratelimit_clock_wall(uint64_t *shared, uint64_t now, uint64_t wall);


#endif /* _RATELIMIT_CLOCK_H_INCLUDED_ */
