#!/usr/bin/perl

# How busy processors are, as the kernel's files tell it: files that this test
# writes, so that each share is known, and each kind of cgroup is there.

use strict;
use warnings;

use File::Path qw(make_path remove_tree);
use File::Temp qw(tempdir);
use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Gateway;

use constant HZ => 100_000;    # so fine that no share is rounded

my $dir = tempdir(CLEANUP => 1);
my $root = "$dir/root";
my $reads = "$dir/reads";
my $probes = 0;

# what the files say: shares, and where and how the cgroup is
my %share = (machine => 0, cgroup => 0);
my ($group, $unit, $quota);
my ($last, %used);

chmod 0755, $dir;

my $shim = compile();

subtest 'the machine' => \&machine;
subtest 'the worker that measures' => \&successor;
subtest 'nothing to be read' => \&nothing;
subtest 'cgroups, version 2' => \&version_2;
subtest 'cgroups, version 1' => \&version_1;

done_testing();


sub machine {
    my $gateway = gateway();

    becomes($gateway, 'ELASTIC', 'a calm machine');

    $share{machine} = 0.82;
    becomes($gateway, 'REJECTED', 'a busy one');

    $share{machine} = 0.77;
    measured(2);
    is(spare($gateway), 'REJECTED', 'a little below the mark is not enough');

    $share{machine} = 0.73;
    becomes($gateway, 'ELASTIC', 'further below it is');

    my @reads = map { [split] } split /\n/, Gateway::slurp($reads);
    my %readers = map { $_->[0] => 1 } @reads;
    my $seconds = $reads[-1][1] - $reads[0][1];

    is(keys %readers, 1, 'one worker measures');
    cmp_ok(@reads, '<=', 3 + $seconds, 'once a second');
    cmp_ok(@reads, '>', 2, 'again and again');

    my @lines = $gateway->log =~ /ratelimit pressure of "cpu" (\w+)/g;

    is("@lines", 'begins ends', 'the log has a line for each change');

    fine($gateway);
}


# another worker goes on, if one is killed or told to quit

sub successor {
    my $gateway = gateway();

    becomes($gateway, 'ELASTIC', 'a calm machine');

    my ($victim, $start) = (reader(), time);

    kill 'KILL', $victim;

    Gateway::await(sub { feed(); reader() != $victim }, 'another one');
    cmp_ok(time - $start, '<', 10, 'soon another worker measures');

    becomes($gateway, 'ELASTIC', 'and other workers know it');

    $share{machine} = 1;
    becomes($gateway, 'REJECTED', 'as often as there is something to tell');

    $share{machine} = 0;

    my %before = map { $_ => 1 } $gateway->all_workers;

    $gateway->reload($gateway->{http});

    Gateway::await(sub { feed(); !$before{reader()} }, 'a new one');
    becomes($gateway, 'ELASTIC', 'after a reload a new worker does');

    is($gateway->complaints(qr/exited on signal 9/), '',
       'nothing to complain about');
}


sub nothing {
    my $gateway = gateway('none');

    Gateway::await(sub { complaints_of($gateway) }, 'a complaint');

    is(spare($gateway), 'REJECTED', 'limits are not elastic');

    # the worker tries again with each tick

    my $tries = tries();

    Gateway::await(sub { tries() > $tries + 3 }, 'further tries');
    is(complaints_of($gateway), 1, 'the log says so once');

    restart();
    becomes($gateway, 'ELASTIC', 'the file is there again');

    remove_tree($root);
    Gateway::await(sub { spare($gateway) eq 'REJECTED' }, 'stale shares');
    pass('what was known long ago is not spent');
    is(complaints_of($gateway), 2, 'and the log says so again');

    fine($gateway);
}


# the quota is that of the cgroup above

sub version_2 {
    my $gateway = gateway(0);

    cgroup(2, '/slice/nginx', '/slice', 50_000);
    put('/sys/fs/cgroup/slice/nginx/cpu.max', "max 100000\n");

    @share{'machine', 'cgroup'} = (1, 0.1);
    becomes($gateway, 'ELASTIC', 'a tenth of the quota, all of the machine');

    @share{'machine', 'cgroup'} = (0, 0.9);
    becomes($gateway, 'REJECTED', 'most of the quota, none of the machine');

    ($quota, $share{cgroup}) = (100_000, 0.45);
    becomes($gateway, 'ELASTIC', 'as much, but the quota has doubled');

    @share{'machine', 'cgroup'} = (1, 0.1);
    $quota = 'max';
    becomes($gateway, 'REJECTED', 'no quota any more: the machine counts');

    fine($gateway);
}


# as in a container: there is only the root of the hierarchy

sub version_1 {
    my $gateway = gateway(0);

    cgroup(1, '/docker/0123', '', 200_000);

    @share{'machine', 'cgroup'} = (1, 0.1);
    becomes($gateway, 'ELASTIC', 'a tenth of the quota, all of the machine');

    @share{'machine', 'cgroup'} = (0, 0.9);
    becomes($gateway, 'REJECTED', 'most of the quota, none of the machine');

    $quota = -1;
    becomes($gateway, 'ELASTIC', 'no quota any more: the machine counts');

    fine($gateway);
}


# the share of the machine at first, or "none" without any file

sub gateway {
    my ($machine) = @_;

    %share = (machine => 0, cgroup => 0);
    undef $group;
    unlink $reads;
    remove_tree($root);

    restart() if !defined $machine || $machine ne 'none';

    return Gateway->start(
        workers => 2,
        env => { LD_PRELOAD => $shim, FAKE_ROOT => $root, FAKE_READS => $reads },
        main => 'user root;' x ($> == 0),
        http => "ratelimit_elastic cpu=80%;\n"
                . "ratelimit_zone \$arg_key zone=limit:1m rate=1r/h;\n"
                . "add_header X-Status \$ratelimit_status always;\n"
                . Gateway->server('/' => 'ratelimit zone=limit elastic=100%;'),
    );
}


# what becomes of the second request of a client

sub spare {
    my ($gateway) = @_;

    my ($path, $status) = ('/?key=' . ++$probes);

    feed();

    for (1, 2) {
        my $socket = $gateway->connect or die "connect: $!";

        print $socket "GET $path HTTP/1.0\r\n\r\n";
        local $/;
        ($status) = (<$socket> // '') =~ /^X-Status: (\w+)/m;
    }

    return $status;
}


sub becomes {
    my ($gateway, $expected, $name) = @_;

    Gateway::await(sub { spare($gateway) eq $expected }, $name);
    pass($name);
}


# so many shares have been measured since: the first one is of before, too

sub measured {
    my ($n) = @_;

    my $before = tries();

    Gateway::await(sub { feed(); tries() >= $before + $n }, 'a measurement');
}


sub reader { return Gateway::slurp($reads) =~ /^(\d+) \d+\n\z/m ? $1 : 0 }


sub tries { return scalar(() = Gateway::slurp($reads) =~ /\n/g) }


sub complaints_of {
    my ($gateway) = @_;

    return scalar(() = $gateway->log =~ /ratelimit can't read the load of /g);
}


sub fine {
    my ($gateway) = @_;

    is($gateway->complaints, '', 'nothing to complain about');
}


# files

sub restart {
    ($last, %used) = (time, machine => 0, all => 0, cgroup => 1);
    feed();
}


# time goes on

sub feed {
    return if !$last || !-d $root && $used{all};

    my $passed = time - $last;

    $last += $passed;
    $used{all} += $passed * HZ;
    $used{machine} += $passed * HZ * $share{machine};

    put('/proc/stat', sprintf("cpu  %d 0 0 %d 0 0 0 0 0 0\ncpu0 1 2 3 4\n",
                              $used{machine}, $used{all} - $used{machine}));

    return if !$group;

    $used{cgroup} += $passed * $unit * $share{cgroup}
                     * ($quota =~ /^\d/ ? $quota / 100_000 : 1);

    cgroup_files();
}


sub cgroup {
    my ($version, $path, $where, $size) = @_;

    $quota = $size;
    $group = [$version, $where];
    $unit = $version == 2 ? 1_000_000 : 1_000_000_000;

    put('/proc/self/cgroup',
        $version == 2 ? "0::$path\n"
                      : "7:cpuset:/\n3:cpu,cpuacct:$path\n0::/other\n");
    feed();
}


sub cgroup_files {
    my ($version, $where) = @$group;

    my $usage = int $used{cgroup};

    if ($version == 2) {
        put("/sys/fs/cgroup$where/cpu.max", "$quota 100000\n");
        put("/sys/fs/cgroup$where/cpu.stat",
            "usage_usec $usage\nuser_usec 1\nsystem_usec 2\n");
        return;
    }

    put("/sys/fs/cgroup/cpu$where/cpu.cfs_quota_us", "$quota\n");
    put("/sys/fs/cgroup/cpu$where/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpuacct$where/cpuacct.usage", "$usage\n");
}


# all at once: nginx may be reading it

sub put {
    my ($file, $text) = @_;

    my ($folder) = "$root$file" =~ m{(.*)/};

    make_path($folder) if !-d $folder;

    open my $handle, '>', "$dir/new" or die "$dir/new: $!";
    print $handle $text;
    close $handle or die "$dir/new: $!";
    rename "$dir/new", "$root$file" or die "$root$file: $!";
}


# a library that shows nginx these files instead of the kernel's

sub compile {
    my ($source, $library) = ("$dir/shim.c", "$dir/shim.so");

    open my $file, '>', $source or die "$source: $!";
    print $file <<'C';
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char root[256], reads[256];

__attribute__((constructor)) static void
start(void)
{
    snprintf(root, sizeof(root), "%s", getenv("FAKE_ROOT"));
    snprintf(reads, sizeof(reads), "%s", getenv("FAKE_READS"));
}

static void
note(int (*real)(const char *, int, ...))
{
    int fd;
    char line[64];
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    fd = real(reads, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd != -1) {
        if (write(fd, line, snprintf(line, sizeof(line), "%d %ld\n",
                                     (int) getpid(), (long) now.tv_sec))
            < 0)
        {
            abort();
        }
        close(fd);
    }
}

static int
opened(const char *name, const char *path, int flags, int mode)
{
    char fake[512];
    int (*real)(const char *, int, ...);

    *(void **) &real = dlsym(RTLD_NEXT, name);

    if (strcmp(path, "/proc/self/cgroup") == 0) {
        note(real);
    }

    if (strcmp(path, "/proc/stat") == 0
        || strcmp(path, "/proc/self/cgroup") == 0
        || strncmp(path, "/sys/fs/cgroup/", 15) == 0)
    {
        snprintf(fake, sizeof(fake), "%s%s", root, path);
        path = fake;
    }

    return real(path, flags, mode);
}

#define OPEN(name)                                                            \
int                                                                           \
name(const char *path, int flags, ...)                                        \
{                                                                             \
    int mode;                                                                 \
    va_list args;                                                             \
                                                                              \
    va_start(args, flags);                                                    \
    mode = (flags & O_CREAT) ? va_arg(args, int) : 0;                         \
    va_end(args);                                                             \
                                                                              \
    return opened(#name, path, flags, mode);                                  \
}

OPEN(open)
OPEN(open64)
C
    close $file or die "$source: $!";

    my $cc = $ENV{CC} || 'gcc';

    system("$cc -shared -fPIC -o '$library' '$source' -ldl") == 0
        or die 'the library does not compile';

    return $library;
}
