#!/usr/bin/perl

# What a key costs Redis, its name and its expiry included: used_memory over
# many keys of 16 bytes that were all charged by the scripts; and that a log is
# not looked at as a whole.

use strict;
use warnings;

use File::Path qw(make_path);
use List::Util qw(min);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

my $out = 'build/lua';
my $cc = $ENV{CC} || 'gcc';
my $keys = 125_000;     # as docs/redis.md has it

# algorithm, buckets, limit, in how many requests; bytes of a key at most

my @budgets = (
    [fixed_window => 1, 1000, 1, 165],
    [token_bucket => 1, 1000, 1, 165],
    [leaky_bucket => 1, 1000, 1, 165],
    [sliding_window => 1, 1000, 1, 165],
    [sliding_window => 1, 100_000, 1, 165],
    [sliding_window => 60, 1000, 1, 320],
    [sliding_log => 1, 500, 2, 3500],
);

BAIL_OUT('the program does not build') if !build();

for my $budget (@budgets) {
    my ($algorithm, $buckets, $limit, $requests, $most) = @$budget;
    my $name = "$algorithm, buckets=$buckets, limit=$limit";

    my $redis = RedisServer->start;
    my $before = used_memory($redis);
    my $text = `$out/fill $redis->{path} $keys $algorithm $buckets $limit \\
                $requests 2>&1`;

    is($text, "0\n", "$name: all are admitted");
    is($redis->call('DBSIZE'), $keys, 'all are there');
    is(persistent($redis), 0, 'all will go');

    my $bytes = sprintf('%.1f', (used_memory($redis) - $before) / $keys);

    cmp_ok($bytes, '>', 100, 'they need memory');
    cmp_ok($bytes, '<=', $most, "$bytes of $most bytes");
}

subtest 'a longer log takes no longer' => \&longer_log;

done_testing();


# time of Redis for a decision, with a hundred requests in a log, and with so
# many that even to look at each of them would take a multiple; the best of some
# times, as a busy machine interrupts Redis

sub longer_log {
    my $redis = RedisServer->start;
    my %size = (short => 100, long => 50_000);
    my $zones = join '', map { <<"END" } keys %size;
ratelimit_zone \$arg_k zone=$_:8m rate=60000r/d algorithm=sliding_log redis=main
               fail=open;
END
    my $gateway = Gateway->start(http => <<"END" . $zones . Gateway->server(
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=15s;
END
        map { ("/$_" => "ratelimit zone=$_ cost=\$arg_c;") } keys %size));
    my $clients = Clients->new($gateway->{port});
    my %time;

    for my $name (keys %size) {
        is($clients->ask("GET /$name?k=a&c=$size{$name}")->{status}, 200,
           "$name: $size{$name} requests at once");

        my ($passed, @times) = 0;

        for (1 .. 20) {
            $redis->forget_calls;
            $passed += grep { $_->{status} == 200 }
                       $clients->series((["GET /$name?k=a&c=1"]) x 25);
            push @times, $redis->call('INFO', 'commandstats')
                         =~ /^cmdstat_evalsha:.*usec_per_call=([\d.]+)/m;
        }

        is($passed, 500, "$name: further ones pass");
        $time{$name} = min(@times);
    }

    cmp_ok($time{long}, '<', 4 * $time{short},
           "$time{long} and $time{short} microseconds");
}


sub used_memory {
    my ($redis) = @_;

    return $redis->call('INFO', 'memory') =~ /^used_memory:(\d+)/m && $1;
}


sub persistent {
    my ($redis) = @_;

    my ($have, $expire) = $redis->call('INFO', 'keyspace')
        =~ /keys=(\d+),expires=(\d+)/;

    return $have - $expire;
}


sub build {
    my @core = (glob('src/core/*.c'), 'src/redis/ratelimit_script.c');

    make_path("$out/redis");

    my $command = "src/redis/lua/embed > $out/redis/ratelimit_lua.h"
        . " && $cc -std=gnu99 -g -O1 -Wall -Wextra -Werror -Isrc -It/lua"
        . " -It/unit -I$out -o $out/fill t/lua/fill.c @core -lhiredis 2>&1";

    my $text = `$command`;

    return 1 if $? == 0;

    diag($text);

    return 0;
}
