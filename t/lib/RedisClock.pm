package RedisClock;

# A Redis whose clock is ahead by as much as the test says.  (libfaketime does
# not get along with the allocator of Redis.)
#
#     my $clock = RedisClock->new;
#     my $redis = $clock->start_redis;
#     $clock->set(7200);

use strict;
use warnings;

use File::Temp qw(tempdir);

use RedisServer;


sub new {
    my ($class) = @_;

    my $self = bless { dir => tempdir(CLEANUP => 1), ahead => 0 }, $class;

    $self->build;
    $self->set(0);

    return $self;
}


sub start_redis {
    my ($self, @options) = @_;

    local $ENV{LD_PRELOAD} = "$self->{dir}/clock.so";
    local $ENV{CLOCK_AHEAD} = "$self->{dir}/ahead";

    return RedisServer->start(@options);
}


sub build {
    my ($self) = @_;

    my $cc = $ENV{CC} || 'gcc';
    my $dir = $self->{dir};

    open my $file, '>', "$dir/clock.c" or die $!;
    print $file <<'END';
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
    long   ahead = 0;
    FILE  *file = fopen(getenv("CLOCK_AHEAD"), "r");

    if (file != NULL) {
        (void) !fscanf(file, "%ld", &ahead);
        fclose(file);
    }

    if (syscall(SYS_gettimeofday, tv, tz) != 0) {
        return -1;
    }

    tv->tv_sec += ahead;

    return 0;
}
END
    close $file or die $!;

    system("$cc -shared -fPIC -o $dir/clock.so $dir/clock.c") == 0
        or die 'no library for a clock';
}


sub set {
    my ($self, $ahead) = @_;

    my $file = "$self->{dir}/ahead";

    $self->{ahead} = $ahead;

    open my $out, '>', "$file.new" or die $!;
    print $out "$ahead\n";
    close $out or die $!;
    rename "$file.new", $file or die $!;
}


sub forward {
    my ($self, $seconds) = @_;

    $self->set($self->{ahead} + $seconds);
}


1;
