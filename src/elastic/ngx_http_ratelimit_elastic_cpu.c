
/*
 * Processor time, read from the files of the kernel: of the machine, or of the
 * cgroup of the process if that has a quota, in version 2 or 1 of cgroups.
 */


#include "elastic/ngx_http_ratelimit_elastic.h"


#define NGX_HTTP_RATELIMIT_CGROUP1_CPU      "/sys/fs/cgroup/cpu"
#define NGX_HTTP_RATELIMIT_CGROUP1_CPUACCT  "/sys/fs/cgroup/cpuacct"
#define NGX_HTTP_RATELIMIT_CGROUP2          "/sys/fs/cgroup"

/* sources; that of a cgroup is combined with the length of its path */
#define NGX_HTTP_RATELIMIT_SOURCE_MACHINE   1
#define NGX_HTTP_RATELIMIT_SOURCE_CGROUP1   2
#define NGX_HTTP_RATELIMIT_SOURCE_CGROUP2   3


/* the beginning of a file */

typedef struct {
    size_t                          len;
    char                            data[4096];
} ngx_http_ratelimit_procfs_t;


/* of a cgroup, below the mount point of its hierarchy */

typedef struct {
    size_t                          len;
    const char                     *data;
} ngx_http_ratelimit_cgroup_t;


typedef ngx_uint_t (*ngx_http_ratelimit_cgroup_pt)(
    ngx_http_ratelimit_cgroup_t *cgroup, ratelimit_cpu_t *cpu);


static ngx_uint_t ngx_http_ratelimit_cgroup_find(
    ngx_http_ratelimit_procfs_t *file, const char *controller,
    ngx_http_ratelimit_cgroup_pt read, ratelimit_cpu_t *cpu);
static ngx_uint_t ngx_http_ratelimit_cgroup1_read(
    ngx_http_ratelimit_cgroup_t *cgroup, ratelimit_cpu_t *cpu);
static ngx_uint_t ngx_http_ratelimit_cgroup1_number(const char *mount,
    ngx_http_ratelimit_cgroup_t *cgroup, const char *name, uint64_t *number);
static ngx_uint_t ngx_http_ratelimit_cgroup2_read(
    ngx_http_ratelimit_cgroup_t *cgroup, ratelimit_cpu_t *cpu);
static ngx_uint_t ngx_http_ratelimit_procfs_read(const char *mount,
    ngx_http_ratelimit_cgroup_t *cgroup, const char *name,
    ngx_http_ratelimit_procfs_t *file);


ngx_uint_t
ngx_http_ratelimit_elastic_read_cpu(ratelimit_cpu_t *cpu)
{
    ngx_uint_t                   depth;
    ngx_http_ratelimit_procfs_t  file;

    if (ngx_http_ratelimit_procfs_read("/proc", NULL, "self/cgroup", &file)) {

        depth = ngx_http_ratelimit_cgroup_find(&file, "",
                                               ngx_http_ratelimit_cgroup2_read,
                                               cpu);
        if (depth) {
            return depth << 2 | NGX_HTTP_RATELIMIT_SOURCE_CGROUP2;
        }

        depth = ngx_http_ratelimit_cgroup_find(&file, "cpu",
                                               ngx_http_ratelimit_cgroup1_read,
                                               cpu);
        if (depth) {
            return depth << 2 | NGX_HTTP_RATELIMIT_SOURCE_CGROUP1;
        }
    }

    if (!ngx_http_ratelimit_procfs_read("/proc", NULL, "stat", &file)
        || !ratelimit_procfs_stat(file.data, file.len, cpu))
    {
        return 0;
    }

    return NGX_HTTP_RATELIMIT_SOURCE_MACHINE;
}


/*
 * The nearest cgroup with a quota, from that of the process up.  Inside of a
 * container the path may be the one outside of it: then only the root of the
 * hierarchy can be read, and it is the container's.
 */

static ngx_uint_t
ngx_http_ratelimit_cgroup_find(ngx_http_ratelimit_procfs_t *file,
    const char *controller, ngx_http_ratelimit_cgroup_pt read,
    ratelimit_cpu_t *cpu)
{
    ngx_http_ratelimit_cgroup_t  cgroup;

    if (!ratelimit_procfs_cgroup(file->data, file->len, controller,
                                 &cgroup.data, &cgroup.len))
    {
        return 0;
    }

    for ( ;; ) {

        if (read(&cgroup, cpu)) {

            /* a quota may be more than the machine has */

            cpu->quota = ngx_min(cpu->quota, ngx_ncpu * cpu->period);

            return cgroup.len + 1;
        }

        if (cgroup.len == 0) {
            return 0;
        }

        do {
            cgroup.len--;
        } while (cgroup.data[cgroup.len] != '/');
    }
}


static ngx_uint_t
ngx_http_ratelimit_cgroup2_read(ngx_http_ratelimit_cgroup_t *cgroup,
    ratelimit_cpu_t *cpu)
{
    ngx_http_ratelimit_procfs_t  file;

    if (!ngx_http_ratelimit_procfs_read(NGX_HTTP_RATELIMIT_CGROUP2, cgroup,
                                        "cpu.max", &file)
        || !ratelimit_procfs_cpu_max(file.data, file.len, &cpu->quota,
                                     &cpu->period)
        || cpu->quota == 0)
    {
        return 0;
    }

    if (!ngx_http_ratelimit_procfs_read(NGX_HTTP_RATELIMIT_CGROUP2, cgroup,
                                        "cpu.stat", &file)
        || !ratelimit_procfs_usage(file.data, file.len, &cpu->used))
    {
        return 0;
    }

    cpu->passed = (uint64_t) ngx_current_msec * 1000;

    return 1;
}


static ngx_uint_t
ngx_http_ratelimit_cgroup1_read(ngx_http_ratelimit_cgroup_t *cgroup,
    ratelimit_cpu_t *cpu)
{
    if (!ngx_http_ratelimit_cgroup1_number(NGX_HTTP_RATELIMIT_CGROUP1_CPU,
                                           cgroup, "cpu.cfs_quota_us",
                                           &cpu->quota)
        || !ngx_http_ratelimit_cgroup1_number(NGX_HTTP_RATELIMIT_CGROUP1_CPU,
                                              cgroup, "cpu.cfs_period_us",
                                              &cpu->period)
        || !ngx_http_ratelimit_cgroup1_number(
                                           NGX_HTTP_RATELIMIT_CGROUP1_CPUACCT,
                                           cgroup, "cpuacct.usage",
                                           &cpu->used))
    {
        return 0;
    }

    /* nanoseconds */

    cpu->passed = (uint64_t) ngx_current_msec * 1000000;

    return 1;
}


static ngx_uint_t
ngx_http_ratelimit_cgroup1_number(const char *mount,
    ngx_http_ratelimit_cgroup_t *cgroup, const char *name, uint64_t *number)
{
    ngx_http_ratelimit_procfs_t  file;

    return ngx_http_ratelimit_procfs_read(mount, cgroup, name, &file)
           && ratelimit_procfs_number(file.data, file.len, number);
}


static ngx_uint_t
ngx_http_ratelimit_procfs_read(const char *mount,
    ngx_http_ratelimit_cgroup_t *cgroup, const char *name,
    ngx_http_ratelimit_procfs_t *file)
{
    u_char    *p, path[NGX_MAX_PATH];
    ssize_t    n;
    ngx_fd_t   fd;

    if (cgroup != NULL) {
        p = ngx_snprintf(path, NGX_MAX_PATH, "%s%*s/%s%Z", mount, cgroup->len,
                         cgroup->data, name);

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

    n = ngx_read_fd(fd, file->data, sizeof(file->data));

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                      ngx_close_file_n " \"%s\" failed", path);
    }

    if (n <= 0) {
        return 0;
    }

    file->len = n;

    return 1;
}
