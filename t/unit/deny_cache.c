
/*
 * The deny cache: a denial is found for its own key, limit, cost and generation
 * only, and for as long as it says; a full group loses the right denial; and
 * processes that are killed leave neither a lock nor half a denial.
 */


/* no sanitizer */

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "deny.h"


#define DENY_PROCESSES  4
#define DENY_KILLS      400


static void deny_test_memory(void);
static void deny_test_find(void);
static void deny_test_limit(void);
static void deny_test_forget(void);
static void deny_test_full(void);
static void deny_test_generation(void);
static pid_t deny_fork(ratelimit_deny_cache_t *cache, deny_tally_t *tally,
    int number);
static void deny_test_kills(void);
static void deny_test_dead_holder(void);
static unsigned deny_half_written(const ratelimit_deny_cache_t *cache);
static void deny_test_each_instruction(void);


static void
deny_test_memory(void)
{
    char                   *memory;
    ratelimit_deny_cache_t  cache;

    memory = deny_memory(4096);

    tap_ok(!ratelimit_deny_cache_init(&cache, memory, DENY_GROUP_SIZE - 1,
                                      deny_lifelines, 1),
           "memory of less than a group is too small");

    tap_ok(!ratelimit_deny_cache_init(&cache, memory + 8, DENY_GROUP_SIZE,
                                      deny_lifelines, 1),
           "as is a group that is not aligned");

    tap_ok(ratelimit_deny_cache_init(&cache, memory + 8, 4088, deny_lifelines,
                                     1)
           && cache.ngroups == 15
           && (uintptr_t) cache.groups % 64 == 0, "groups are aligned");

    tap_ok(!deny_has(&cache, 0, 0, 0) && !deny_has(&cache, 0, 0, DENY_NOW),
           "memory of zeros is an empty cache");
}


static void
deny_test_find(void)
{
    uint64_t                until;
    ratelimit_denial_t      denial;
    ratelimit_deny_cache_t  cache;

    deny_open(&cache, 16);

    until = DENY_NOW + 50;
    deny_add(&cache, 5, 1, until);

    tap_ok(ratelimit_deny_cache_find(&cache, 5, 1, DENY_NOW, &denial)
           && deny_sound(&denial, 5, 1) && denial.until == until,
           "a denial is found as it was added");
    tap_ok(deny_has(&cache, 5, 1, until - 1), "until its time");
    tap_ok(!deny_has(&cache, 5, 1, until), "and not longer");

    denial.until = 1;
    tap_ok(!ratelimit_deny_cache_find(&cache, 5, 1, until, &denial)
           && denial.until == 1,
           "one that has ended is not shown");
    tap_ok(!deny_has(&cache, 5, 2, DENY_NOW), "not for another limit or cost");
    tap_ok(!deny_has(&cache, 5 + 16, 1, DENY_NOW),
           "not for another key of the group");

    deny_add(&cache, 5, 1, until + 10);
    tap_ok(deny_has(&cache, 5, 1, until), "a newer denial takes its place");

    deny_add(&cache, 5, 1, until - 10);
    tap_ok(!deny_has(&cache, 5, 1, until - 10), "also if it ends before");
}


/* each number of the rule that tells whether a request is refused */

static void
deny_test_limit(void)
{
    size_t            i, k;
    uint64_t          names[7];
    unsigned          same;
    ratelimit_hash_t  secret;
    ratelimit_rule_t  rule;

    secret.lo = 1;
    secret.hi = 2;

    for (i = 0; i < 7; i++) {
        memset(&rule, 0, sizeof(ratelimit_rule_t));

        rule.limit = 10 + (i == 1);
        rule.period = RATELIMIT_SECOND + (i == 2);
        rule.capacity = 10 + (i == 3);
        rule.ceiling = 10 + (i == 4);
        rule.wait = (i == 5);

        names[i] = ratelimit_deny_cache_limit(&secret, &rule, 1 + (i == 6));
    }

    same = 0;

    for (i = 0; i < 7; i++) {
        for (k = 0; k < i; k++) {
            same += (names[i] == names[k]);
        }
    }

    tap_ok(same == 0, "each rule and each cost has a name of its own");
    tap_ok(ratelimit_deny_cache_limit(&secret, &rule, 2) == names[6],
           "which is the same each time");
}


static void
deny_test_forget(void)
{
    uint64_t                i;
    unsigned                wrong;
    ratelimit_deny_cache_t  cache;

    deny_open(&cache, 16);
    wrong = 0;

    for (i = 1; i <= 4; i++) {
        deny_add(&cache, 5, i, DENY_NOW + 50);
    }

    deny_add(&cache, 5 + 16, 1, DENY_NOW + 50);
    ratelimit_deny_cache_forget(&cache, 5, deny_me);

    for (i = 1; i <= 4; i++) {
        wrong += deny_has(&cache, 5, i, DENY_NOW);
    }

    tap_ok(wrong == 0, "a key is forgotten with all its limits and costs");
    tap_ok(deny_has(&cache, 5 + 16, 1, DENY_NOW),
           "another key of the group is not");

    deny_add(&cache, 5, 1, DENY_NOW + 50);
    ratelimit_deny_cache_refunded(&cache, 5, DENY_NOW, deny_me);

    tap_ok(!deny_has(&cache, 5, 1, DENY_NOW), "a refund is a reason");
    tap_ok(ratelimit_deny_cache_is_refunded(&cache, 5, DENY_NOW)
           && !ratelimit_deny_cache_is_refunded(&cache, 5, DENY_NOW + 1)
           && !ratelimit_deny_cache_is_refunded(&cache, 5 + 16, DENY_NOW),
           "it is known when the last one was, and of which key");

    ratelimit_deny_cache_refunded(&cache, 5, ((uint64_t) 1 << 48) + 7, deny_me);

    tap_ok(ratelimit_deny_cache_is_refunded(&cache, 5, (uint64_t) 1 << 48)
           && !ratelimit_deny_cache_is_refunded(&cache, 5,
                                                ((uint64_t) 1 << 48) + 8),
           "also after nine years");
}


static void
deny_test_full(void)
{
    uint64_t                i;
    unsigned                kept;
    ratelimit_deny_cache_t  cache;

    deny_open(&cache, 1);

    for (i = 0; i < DENY_GROUP; i++) {
        deny_add(&cache, i, 1, DENY_NOW + 50 + (i + 3) % DENY_GROUP);
    }

    for (i = 0, kept = 0; i < DENY_GROUP; i++) {
        kept += deny_has(&cache, i, 1, DENY_NOW);
    }

    tap_ok(kept == DENY_GROUP, "a group holds %d denials", DENY_GROUP);

    /* the third one ends first, the next one after it */

    deny_add(&cache, 100, 1, DENY_NOW + 1);
    tap_ok(!deny_has(&cache, 2, 1, DENY_NOW)
           && deny_has(&cache, 100, 1, DENY_NOW),
           "one more replaces the denial that ends first");

    deny_add(&cache, 101, 1, DENY_NOW + 60);
    tap_ok(!deny_has(&cache, 100, 1, DENY_NOW)
           && deny_has(&cache, 3, 1, DENY_NOW), "even if it is the newest");

    for (i = 0; i < 1000; i++) {
        deny_add(&cache, 1000 + i, 1, DENY_NOW + 2);
    }

    tap_ok(deny_has(&cache, 101, 1, DENY_NOW)
           && deny_has(&cache, 0, 1, DENY_NOW),
           "a flood of short refusals replaces no longer one");
}


static void
deny_test_generation(void)
{
    uint64_t                i;
    ratelimit_deny_cache_t  older, newer;

    deny_open(&older, 1);

    newer = older;
    newer.generation++;

    deny_add(&older, 5, 1, DENY_NOW + 50);
    tap_ok(!deny_has(&newer, 5, 1, DENY_NOW), "a reload forgets");

    deny_add(&newer, 5, 1, DENY_NOW + 20);
    tap_ok(deny_has(&newer, 5, 1, DENY_NOW)
           && !deny_has(&newer, 5, 1, DENY_NOW + 20),
           "a denial of the new configuration has its own time");

    for (i = 0; i < DENY_GROUP - 1; i++) {
        deny_add(&newer, 10 + i, 1, DENY_NOW + 20);
    }

    tap_ok(deny_has(&newer, 5, 1, DENY_NOW),
           "denials of the older configuration are replaced first");
}


static pid_t
deny_fork(ratelimit_deny_cache_t *cache, deny_tally_t *tally, int number)
{
    pid_t  pid;

    pid = fork();

    if (pid == 0) {
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);   /* ends with its parent */
        deny_me = ratelimit_lifelines_claim(deny_lifelines);
        random_state += (uint64_t) number * 1000003;
        deny_work(cache, tally);
        _exit(0);
    }

    if (pid == -1) {
        perror("fork");
        exit(2);
    }

    return pid;
}


static void
deny_test_kills(void)
{
    int                     i, k;
    pid_t                   pid[DENY_PROCESSES];
    uint64_t                before;
    unsigned                lost;
    deny_tally_t           *tally;
    struct timespec         pause;
    ratelimit_deny_cache_t  cache;

    deny_open(&cache, 8);
    tally = deny_memory(sizeof(deny_tally_t));

    for (i = 0; i < DENY_PROCESSES; i++) {
        pid[i] = deny_fork(&cache, tally, i);
    }

    pause.tv_sec = 0;

    for (k = 0; k < DENY_KILLS; k++) {
        i = k % DENY_PROCESSES;

        before = __atomic_load_n(&tally->done, __ATOMIC_RELAXED);
        pause.tv_nsec = 1000 * (k % 97);

        while (__atomic_load_n(&tally->done, __ATOMIC_RELAXED) == before) {
            (void) nanosleep(&pause, NULL);
        }

        (void) kill(pid[i], SIGKILL);
        (void) waitpid(pid[i], NULL, 0);

        pid[i] = deny_fork(&cache, tally, DENY_PROCESSES + k);
    }

    __atomic_store_n(&tally->stop, 1, __ATOMIC_RELAXED);

    for (i = 0; i < DENY_PROCESSES; i++) {
        (void) waitpid(pid[i], NULL, 0);
    }

    tap_ok(tally->found > 0 && tally->wrong == 0,
           "%d processes killed: no denial is half written", DENY_KILLS);

    for (i = 0, lost = 0; i < DENY_KEYS; i++) {
        ratelimit_deny_cache_forget(&cache, i, deny_me);
        deny_add(&cache, i, 0, UINT64_MAX);
        lost += !deny_has(&cache, i, 0, DENY_NOW);
    }

    tap_ok(lost == 0, "all groups can be used");
}


/* the lock is the first word of a group */

static void
deny_test_dead_holder(void)
{
    pid_t                   pid;
    ratelimit_lock_t       *lock;
    ratelimit_deny_cache_t  cache;

    deny_open(&cache, 1);
    lock = (ratelimit_lock_t *) cache.groups;

    deny_add(&cache, 1, 1, DENY_NOW + 50);

    pid = fork();

    if (pid == 0) {
        ratelimit_lock(lock, ratelimit_lifelines_claim(deny_lifelines),
                       deny_lifelines);
        raise(SIGKILL);
    }

    (void) waitpid(pid, NULL, 0);

    tap_ok((uint32_t) *lock != 0, "a process died with the lock");
    tap_ok(!deny_has(&cache, 1, 1, DENY_NOW),
           "nothing is found meanwhile, without waiting");

    deny_add(&cache, 2, 1, DENY_NOW + 50);

    tap_ok(deny_has(&cache, 1, 1, DENY_NOW)
           && deny_has(&cache, 2, 1, DENY_NOW),
           "the next process that adds a denial takes the lock over");
}


/* what a process that is killed now leaves behind the lock of a group */

static unsigned
deny_half_written(const ratelimit_deny_cache_t *cache)
{
    unsigned                   i, wrong;
    const ratelimit_denial_t  *denial;

    denial = (const ratelimit_denial_t *)
                 ((const char *) cache->groups + DENY_GROUP_SIZE
                  - DENY_GROUP * sizeof(ratelimit_denial_t));
    wrong = 0;

    for (i = 0; i < DENY_GROUP; i++) {
        wrong += (denial[i].until != 0
                  && !deny_sound(&denial[i], denial[i].key, denial[i].limit));
    }

    return wrong;
}


static void
deny_test_each_instruction(void)
{
    int                     status;
    pid_t                   pid;
    unsigned                steps, wrong;
    ratelimit_deny_cache_t  cache;

    deny_open(&cache, 1);

    for (steps = 0; steps < DENY_GROUP; steps++) {
        deny_add(&cache, steps, 1, DENY_NOW + 50 + steps);
    }

    pid = fork();

    if (pid == 0) {
        (void) ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        deny_add(&cache, 100, 2, DENY_NOW + 60);
        _exit(0);
    }

    wrong = 0;
    steps = 0;

    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        wrong += deny_half_written(&cache);

        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0) {
            break;
        }

        steps++;
    }

    tap_ok(wrong == 0 && steps > 100 && WIFEXITED(status)
           && deny_has(&cache, 100, 2, DENY_NOW)
           && !deny_has(&cache, 0, 1, DENY_NOW),
           "no denial is half written at any of %u instructions", steps);
}


int
main(int argc, char **argv)
{
    (void) alarm(600);   /* a hang is a failure */

    random_start(argc, argv);

    deny_lifelines = ratelimit_lifelines_create(
                                     deny_memory(ratelimit_lifelines_size()));
    deny_me = ratelimit_lifelines_claim(deny_lifelines);

    deny_test_memory();
    deny_test_find();
    deny_test_limit();
    deny_test_forget();
    deny_test_full();
    deny_test_generation();
    deny_test_dead_holder();
    deny_test_each_instruction();
    deny_test_kills();

    return tap_done();
}
