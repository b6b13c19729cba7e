#!/usr/bin/perl

# Another hiredis and another server: what was tested with the hiredis that has
# TLS is tested with that of the system, where it matters most, as connections
# are cut and workers end; and what was tested with Redis, with Valkey.  What is
# fetched and built stays in build/.

use strict;
use warnings;

use Cwd qw(getcwd);
use Test::More;

use lib 't/lib';
use Programs qw(command);
use Together;

my $build = getcwd() . '/build';
my $system = "$build/system/ngx_http_ratelimit_module.so";
my $valkey = "$build/valkey/valkey-server";

# of the make that runs the tests, and of its prove
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CC CFLAGS LDFLAGS
               RATELIMIT_HIREDIS HARNESS_OPTIONS)};

$ENV{LC_ALL} = 'C';

ok(command('make BUILD=build/system RATELIMIT_HIREDIS='),
   'the module is built with the hiredis of the system');
like(scalar `ldd $system`, qr/libhiredis\.so/, 'which is not a part of it');

ok(command(".ci/valkey $build/valkey"), 'there is a Valkey');
like(scalar `$valkey --version`, qr/\bv=8\./, 'of version 8');

# at the same time, as most of theirs is spent on waiting

my %of_system = (RATELIMIT_MODULE => $system, TEST_NGINX_BINARY => 'nginx');
my %of_valkey = (RATELIMIT_REDIS_SERVER => $valkey);

report(@$_) for map { @{$_->{results}} } Together::run(undef,
    sub { results(\%of_system, 't/74-redis-failure.t') },
    sub { results(\%of_system, 't/75-redis-lifecycle.t') },
    sub { results(\%of_valkey, 't/91-redis-sentinel.t', 't/90-redis-tls.t',
                  't/72-redis.t', 't/97-redis-trouble.t') },
    sub { results(\%of_valkey, 't/92-redis-cluster.t', 't/93-redis-reshard.t',
                  't/73-redis-exact.t', 't/78-redis-same.t',
                  't/94-redis-sync.t', 't/96-redis-sync-topologies.t') });

done_testing();


# of tests, one after the other: the name, whether it passed, what it said

sub results {
    my ($env, @tests) = @_;

    local @ENV{keys %$env} = values %$env;

    return { results => [map {
        my $said = `$^X $_ 2>&1`;

        [$_, $? == 0, $said]
    } @tests] };
}


# what went wrong goes with its result

sub report {
    my ($test, $passed, $said) = @_;

    return if ok($passed, $test);

    my @wrong = grep { /^ *not ok|^ *# (?!Subtest)|^[^ #o1]/ } split /\n/, $said;

    diag(join "\n", "of $test:", @wrong);
}
