
/*
 * A lock whose holder lives but does not run, as one that was stopped or that
 * writes its core: the others wait, and say so.
 */


#include "fleet.h"


static void lock_hold(fleet_t *f, int number, void *data);
static void lock_stalled(uint32_t pid);
static void lock_wait_for_stopped(void);


static ratelimit_lock_t  *lock_shared;
static unsigned           lock_reports;
static uint32_t           lock_holder;


static void
lock_hold(fleet_t *f, int number, void *data)
{
    (void) number;
    (void) data;

    ratelimit_lock(lock_shared, f->me, f->lifelines);
    raise(SIGSTOP);
}


/* the holder is killed once it is known */

static void
lock_stalled(uint32_t pid)
{
    lock_reports++;
    lock_holder = pid;

    kill((pid_t) pid, SIGKILL);
}


static void
lock_wait_for_stopped(void)
{
    int      status;
    pid_t    pid;
    fleet_t  f;

    memset(&f, 0, sizeof(fleet_t));

    f.lifelines = ratelimit_lifelines_create(
                                   fleet_memory(ratelimit_lifelines_size()));
    f.me = ratelimit_lifelines_claim(f.lifelines);

    lock_shared = fleet_memory(4096);
    ratelimit_lock_stalled = lock_stalled;

    pid = fleet_fork(&f, lock_hold, 0, NULL);

    if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status)) {
        tap_ok(0, "a process stops");
        return;
    }

    ratelimit_lock(lock_shared, f.me, f.lifelines);

    tap_ok(lock_reports == 1 && lock_holder == (uint32_t) pid,
           "a wait of a second is reported %u times, with the holder",
           lock_reports);

    ratelimit_unlock(lock_shared);

    (void) waitpid(pid, &status, 0);
}


int
main(void)
{
    (void) alarm(600);   /* a hang is a failure */

    lock_wait_for_stopped();

    return tap_done();
}
