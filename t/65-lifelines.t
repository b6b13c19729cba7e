#!/usr/bin/perl

# A worker that finds all numbers for processes taken, because a thousand old
# workers live on, lets requests pass and tries again.  If this fails, it does
# not limit anything for the rest of its life.

use strict;
use warnings;

use File::Temp qw(tempdir);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;

my $dir = tempdir(CLEANUP => 1);

chmod 0755, $dir;
BAIL_OUT('the library does not build') if !build();

take(1);

my $gateway = Gateway->start(
    workers => 1,
    env => { LD_PRELOAD => "$dir/taken.so", TAKEN => "$dir/taken" },
    main => 'env LD_PRELOAD; env TAKEN;',
    http => <<'END');
ratelimit_zone $arg_k zone=one:1m rate=1r/d;
ratelimit_zone $arg_k zone=plan:1m rate=$arg_r;
add_header X-Status $ratelimit_status always;

server {
    listen 127.0.0.1:PORT;
    location /one { ratelimit zone=one; empty_gif; }
    location /plan { ratelimit zone=plan; empty_gif; }
}
END

my $clients = Clients->new($gateway->{port});

is(status('/one?k=a'), 'FAILED_OPEN', 'a request passes') for 1 .. 3;
is(status('/plan?k=a&r=1r/d'), 'FAILED_OPEN', 'one with a plan, too')
    for 1 .. 3;

take(0);

Gateway::await(sub { status('/one?k=b') ne 'FAILED_OPEN' }, 'limits');

is(status('/one?k=c'), 'PASSED', 'once there is a number requests count');
is(status('/one?k=c'), 'REJECTED', 'and are refused');
is(status('/plan?k=c&r=1r/d'), 'PASSED', 'those with a plan count');
is(status('/plan?k=c&r=1r/d'), 'REJECTED', 'and are refused, too');

my $log = Gateway::slurp("$gateway->{dir}/logs/error.log");
my $lines = () = $log =~ /ratelimit can be used by at most 1024 processes/g;

is($lines, 1, 'the log says so, once');

done_testing();


sub status {
    my ($uri) = @_;

    return $clients->ask("GET $uri")->{field}{'x-status'} // '';
}


# all mutexes are taken as long as the file is there

sub take {
    my ($taken) = @_;

    return unlink "$dir/taken" if !$taken;

    open my $out, '>', "$dir/taken" or die $!;
    close $out or die $!;
}


sub build {
    open my $out, '>', "$dir/taken.c" or die $!;

    print $out <<'END';
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

int
pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    int  (*real)(pthread_mutex_t *);

    if (access(getenv("TAKEN"), F_OK) == 0) {
        return EBUSY;
    }

    real = dlsym(RTLD_NEXT, "pthread_mutex_trylock");

    return real(mutex);
}
END

    close $out or die $!;

    my $cc = $ENV{CC} || 'gcc';

    return system($cc, '-shared', '-fPIC', '-O1', '-o', "$dir/taken.so",
                  "$dir/taken.c", '-ldl') == 0;
}
