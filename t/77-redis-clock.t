#!/usr/bin/perl

# Time is Redis' time: gateways whose clocks differ have the same limits.  If
# this fails, a machine whose clock is fast admits requests that others refuse.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use FakeClock;
use Gateway;
use RedisServer;

my %zone = (
    fixed => ['algorithm=fixed_window rate=3r/366d'],
    sliding => ['rate=3r/d'],
    log => ['algorithm=sliding_log rate=3r/d'],
    token => ['algorithm=token_bucket rate=3r/d'],
    leaky => ['algorithm=leaky_bucket rate=3r/d', 'burst=2 nodelay'],
);

my $redis = RedisServer->start;
my $clock = FakeClock->new;
my $config = config();
my $fast = Gateway->start($clock->options, workers => 2, http => $config);
my $right = Gateway->start(http => $config);

for my $name (sort keys %zone) {
    is(statuses($fast, "/$name?k=a", 4), '200 200 200 429', "$name: used up");
    is(statuses($right, "/$name?k=a", 1), '429', "$name: for all");
    is(statuses($right, "/$name?k=b", 2), '200 200', "$name: another key");
}

# what nginx knows of refusals is out of date then

$clock->forward(400 * 86_400);

for my $name (sort keys %zone) {
    is(statuses($fast, "/$name?k=a", 2), '429 429', "$name: for Redis");
    is(statuses($fast, "/$name?k=b", 2), '200 429', "$name: nothing passed");
    is(statuses($right, "/$name?k=b", 1), '429', "$name: for all");
}

is($_->complaints, '', 'nothing to complain about') for $fast, $right;

done_testing();


sub config {
    my ($http, %location) = <<'END' =~ s/REDIS/$redis->{port}/r;
ratelimit_redis main redis://127.0.0.1:REDIS timeout=5s connect_timeout=5s;
END

    for my $name (sort keys %zone) {
        my ($zone, $limit) = (@{$zone{$name}}, '');

        $http .= "ratelimit_zone \$arg_k zone=$name:1m $zone redis=main"
                 . " fail=closed;\n";
        $location{"/$name"} = "ratelimit zone=$name $limit;";
    }

    return $http . Gateway->server(%location);
}


sub statuses {
    my ($gateway, $uri, $n) = @_;

    return join ' ', map { $_->{status} }
           Clients->new($gateway->{port})->series((["GET $uri"]) x $n);
}
