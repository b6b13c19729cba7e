#!/usr/bin/perl

# Another hiredis and another server: what was tested with those of Debian is
# tested with a newer hiredis, where it matters most, as connections are cut
# and workers end, and with Valkey.  What is fetched and built stays in build/.

use strict;
use warnings;

use Cwd qw(getcwd);
use Test::More;

use lib 't/lib';
use Programs qw(command);

my $build = getcwd() . '/build';

# of the make that runs the tests, and of its prove
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CC CFLAGS LDFLAGS
               RATELIMIT_HIREDIS HARNESS_OPTIONS)};

$ENV{LC_ALL} = 'C';

subtest 'a newer hiredis' => sub {
    ok(command(".ci/hiredis-source $build/hiredis"), 'is there');
    ok(command("make BUILD=build/newer RATELIMIT_HIREDIS=$build/hiredis"),
       'the module is built with it');

    my $module = "$build/newer/ngx_http_ratelimit_module.so";

    local $ENV{RATELIMIT_MODULE} = $module;
    local $ENV{TEST_NGINX_BINARY} = 'nginx';

    like(scalar `nm $module`, qr/ redisAsyncConnectWithOptions$/m,
         'which is a part of it');
    passes('t/74-redis-failure.t', 't/75-redis-lifecycle.t');
};

subtest 'Valkey' => sub {
    ok(command(".ci/valkey $build/valkey"), 'is there');

    local $ENV{RATELIMIT_REDIS_SERVER} = "$build/valkey/valkey-server";

    like(scalar `$ENV{RATELIMIT_REDIS_SERVER} --version`, qr/\bv=8\./,
         'version 8');
    passes('t/72-redis.t', 't/73-redis-exact.t', 't/78-redis-same.t');
};

done_testing();


# two at a time: most of theirs is spent on waiting

sub passes {
    my (@tests) = @_;

    ok(command('prove -j2', @tests), "@tests");
}
