#!/usr/bin/perl

# What a key costs Redis, its name and its expiry included: used_memory over
# many keys of 16 bytes that were all charged by the scripts.

use strict;
use warnings;

use File::Path qw(make_path);
use Test::More;

use lib 't/lib';
use RedisServer;

my $out = 'build/lua';
my $cc = $ENV{CC} || 'gcc';
my $keys = 100_000;

# algorithm, buckets, limit, in how many requests; bytes of a key at most

my @budgets = (
    [fixed_window => 1, 1000, 2, 165],
    [token_bucket => 1, 1000, 2, 165],
    [leaky_bucket => 1, 1000, 2, 165],
    [sliding_window => 1, 1000, 2, 165],
    [sliding_window => 1, 100_000, 2, 165],
    [sliding_window => 60, 1000, 2, 320],
    [sliding_log => 1, 500, 2, 3500],
);

BAIL_OUT('the program does not build') if !build();

for my $budget (@budgets) {
    my ($algorithm, $buckets, $limit, $requests, $most) = @$budget;
    my $name = "$algorithm, buckets=$buckets, limit=$limit";

    my $redis = RedisServer->start;
    my $text = `$out/fill $redis->{path} $keys $algorithm $buckets $limit \\
                $requests 2>&1`;

    my ($refused, $bytes) = $text =~ /^(\d+) ([\d.]+)$/;

    is($refused, 0, "$name: all are admitted") or diag($text);
    is($redis->call('DBSIZE'), $keys, 'all are there');
    is(persistent($redis), 0, 'all will go');

    cmp_ok($bytes // 0, '>', 100, 'they need memory');
    cmp_ok($bytes // 0, '<=', $most, "$bytes of $most bytes");
}

done_testing();


sub persistent {
    my ($redis) = @_;

    my ($have, $expire) = $redis->call('INFO', 'keyspace')
        =~ /keys=(\d+),expires=(\d+)/;

    return $have - $expire;
}


sub build {
    my @core = (glob('src/core/*.c'), 'src/store/ratelimit_script.c');

    make_path("$out/store");

    my $command = "src/store/lua/embed > $out/store/ratelimit_lua.h"
        . " && $cc -std=gnu99 -g -O1 -Wall -Wextra -Werror -Isrc -It/lua"
        . " -It/unit -I$out -o $out/fill t/lua/fill.c @core -lhiredis 2>&1";

    my $text = `$command`;

    return 1 if $? == 0;

    diag($text);

    return 0;
}
