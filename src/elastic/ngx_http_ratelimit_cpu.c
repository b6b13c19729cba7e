
/*
 * What the kernel says of the processors: the machine's, or those that the
 * quota of the process' cgroup leaves, in version 2 or 1 of cgroups.
 */


#include "elastic/ngx_http_ratelimit_elastic.h"


#define NGX_HTTP_RATELIMIT_CPU_V1       "/sys/fs/cgroup/cpu"
#define NGX_HTTP_RATELIMIT_CPUACCT_V1   "/sys/fs/cgroup/cpuacct"
#define NGX_HTTP_RATELIMIT_CPU_V2       "/sys/fs/cgroup"

/* sources; a cgroup's has its depth in the hierarchy, too */
#define NGX_HTTP_RATELIMIT_CPU_MACHINE  1
#define NGX_HTTP_RATELIMIT_CPU_CGROUP1  2
#define NGX_HTTP_RATELIMIT_CPU_CGROUP2  3


/* what a file says, as far as there is room */

typedef struct {
    size_t                          len;
    char                            data[4096];
} ngx_http_ratelimit_text_t;


typedef struct {
    const char                     *data;
    size_t                          len;
} ngx_http_ratelimit_level_t;


typedef ngx_uint_t (*ngx_http_ratelimit_cpu_pt)(
    ngx_http_ratelimit_level_t *level, ratelimit_cpu_t *cpu);


static ngx_uint_t ngx_http_ratelimit_cpu_climb(
    ngx_http_ratelimit_text_t *groups, const char *controller,
    ngx_http_ratelimit_cpu_pt read, ratelimit_cpu_t *cpu);
static ngx_uint_t ngx_http_ratelimit_cpu_cgroup1(
    ngx_http_ratelimit_level_t *level, ratelimit_cpu_t *cpu);
static ngx_uint_t ngx_http_ratelimit_cpu_cgroup2(
    ngx_http_ratelimit_level_t *level, ratelimit_cpu_t *cpu);
static ngx_uint_t ngx_http_ratelimit_cpu_file(const char *mount,
    ngx_http_ratelimit_level_t *level, const char *name,
    ngx_http_ratelimit_text_t *text);


ngx_uint_t
ngx_http_ratelimit_cpu_read(ratelimit_cpu_t *cpu)
{
    ngx_uint_t                 depth;
    ngx_http_ratelimit_text_t  text;

    if (ngx_http_ratelimit_cpu_file("/proc", NULL, "self/cgroup", &text)) {

        depth = ngx_http_ratelimit_cpu_climb(&text, "",
                                             ngx_http_ratelimit_cpu_cgroup2,
                                             cpu);
        if (depth) {
            return depth << 2 | NGX_HTTP_RATELIMIT_CPU_CGROUP2;
        }

        depth = ngx_http_ratelimit_cpu_climb(&text, "cpu",
                                             ngx_http_ratelimit_cpu_cgroup1,
                                             cpu);
        if (depth) {
            return depth << 2 | NGX_HTTP_RATELIMIT_CPU_CGROUP1;
        }
    }

    if (!ngx_http_ratelimit_cpu_file("/proc", NULL, "stat", &text)
        || !ratelimit_pressure_stat(text.data, text.len, cpu))
    {
        return 0;
    }

    return NGX_HTTP_RATELIMIT_CPU_MACHINE;
}


/*
 * The nearest cgroup with a quota, from that of the process up.  Inside of a
 * container the path may be the one outside of it: then only the root of the
 * hierarchy is there to be read, and is the container's.
 */

static ngx_uint_t
ngx_http_ratelimit_cpu_climb(ngx_http_ratelimit_text_t *groups,
    const char *controller, ngx_http_ratelimit_cpu_pt read,
    ratelimit_cpu_t *cpu)
{
    ngx_http_ratelimit_level_t  level;

    if (!ratelimit_pressure_cgroup(groups->data, groups->len, controller,
                                   &level.data, &level.len))
    {
        return 0;
    }

    for ( ;; ) {

        if (read(&level, cpu)) {

            /* a quota may be more than the machine has */

            cpu->quota = ngx_min(cpu->quota, ngx_ncpu * cpu->period);

            return level.len + 1;
        }

        if (level.len == 0) {
            return 0;
        }

        do {
            level.len--;
        } while (level.data[level.len] != '/');
    }
}


static ngx_uint_t
ngx_http_ratelimit_cpu_cgroup2(ngx_http_ratelimit_level_t *level,
    ratelimit_cpu_t *cpu)
{
    ngx_http_ratelimit_text_t  text;

    if (!ngx_http_ratelimit_cpu_file(NGX_HTTP_RATELIMIT_CPU_V2, level,
                                     "cpu.max", &text)
        || !ratelimit_pressure_cpu_max(text.data, text.len, &cpu->quota,
                                       &cpu->period)
        || cpu->quota == 0)
    {
        return 0;
    }

    if (!ngx_http_ratelimit_cpu_file(NGX_HTTP_RATELIMIT_CPU_V2, level,
                                     "cpu.stat", &text)
        || !ratelimit_pressure_usage(text.data, text.len, &cpu->used))
    {
        return 0;
    }

    cpu->passed = (uint64_t) ngx_current_msec * 1000;

    return 1;
}


static ngx_uint_t
ngx_http_ratelimit_cpu_cgroup1(ngx_http_ratelimit_level_t *level,
    ratelimit_cpu_t *cpu)
{
    ngx_http_ratelimit_text_t  text;

    if (!ngx_http_ratelimit_cpu_file(NGX_HTTP_RATELIMIT_CPU_V1, level,
                                     "cpu.cfs_quota_us", &text)
        || !ratelimit_pressure_number(text.data, text.len, &cpu->quota))
    {
        return 0;
    }

    if (!ngx_http_ratelimit_cpu_file(NGX_HTTP_RATELIMIT_CPU_V1, level,
                                     "cpu.cfs_period_us", &text)
        || !ratelimit_pressure_number(text.data, text.len, &cpu->period))
    {
        return 0;
    }

    if (!ngx_http_ratelimit_cpu_file(NGX_HTTP_RATELIMIT_CPUACCT_V1, level,
                                     "cpuacct.usage", &text)
        || !ratelimit_pressure_number(text.data, text.len, &cpu->used))
    {
        return 0;
    }

    /* nanoseconds */

    cpu->passed = (uint64_t) ngx_current_msec * 1000000;

    return 1;
}


static ngx_uint_t
ngx_http_ratelimit_cpu_file(const char *mount,
    ngx_http_ratelimit_level_t *level, const char *name,
    ngx_http_ratelimit_text_t *text)
{
    u_char   *p, path[NGX_MAX_PATH];
    ssize_t   n;
    ngx_fd_t  fd;

    if (level != NULL) {
        p = ngx_snprintf(path, NGX_MAX_PATH, "%s%*s/%s%Z", mount, level->len,
                         level->data, name);

    } else {
        p = ngx_snprintf(path, NGX_MAX_PATH, "%s/%s%Z", mount, name);
    }

    if (p == path + NGX_MAX_PATH) {
        return 0;
    }

    fd = ngx_open_file(path, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        return 0;
    }

    n = ngx_read_fd(fd, text->data, sizeof(text->data));

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                      ngx_close_file_n " \"%s\" failed", path);
    }

    if (n <= 0) {
        return 0;
    }

    text->len = n;

    return 1;
}
