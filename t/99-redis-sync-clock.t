#!/usr/bin/perl

# Write-back by the clock of Redis, which is days ahead of that of the gateways,
# and is set, and by those of a cluster, which differ: what was charged counts in
# the window in which it was charged, and in no other, and no client is locked
# out.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep);

use lib 't/lib';
use Clients;
use Gateway;
use RedisClock;
use RedisCluster;

use constant DAY => 86_400;

# from now to the middle of a window
use constant MIDDLE => 6 * 3600 - time % (12 * 3600);

# 60 requests at once
my %zone = (
    fixed => ['algorithm=fixed_window rate=60r/12h'],
    sliding => ['rate=60r/12h'],
    one => ['buckets=1 rate=60r/12h'],
    log => ['algorithm=sliding_log rate=60r/12h'],
    token => ['algorithm=token_bucket rate=60r/12h'],
    leaky => ['algorithm=leaky_bucket rate=60r/12h', 'burst=59 nodelay'],
);

my $clock = RedisClock->new;

$clock->set(MIDDLE + 5 * DAY);

my $redis = $clock->start_redis;
my (@gateways, @clients);

start("redis://127.0.0.1:$redis->{port}");

admit('a', 40, 40);
$clock->set(MIDDLE + 7 * DAY);
admit('a', 80, 60, 'what was reported is past');

admit('b', 30, 30);
$clock->set(MIDDLE + 20 * DAY);
sleep 0.5;
admit('b', 80, 60, 'what is reported late is past');

admit('c', 30, 30);
reported();
$clock->set(MIDDLE + 20 * DAY - 400);
admit('c', 80, 30, 'a clock that is set back');

admit('d', 30, 30);
reported();
$clock->set(MIDDLE + 19 * DAY);
admit('d', 80, 30, 'by a day');
admit('e', 80, 60, 'and a new key');

is($_->complaints, '', 'nothing to complain about') for @gateways;

my @clocks = map { RedisClock->new } 1 .. 3;

$clocks[0]->set(MIDDLE);
$clocks[1]->set(MIDDLE + 5 * DAY);
$clocks[2]->set(MIDDLE + 3600);

my $cluster = RedisCluster->start(replicas => 0, clocks => \@clocks);
my @keys = map { key_of($_) } @{$cluster->{servers}};

start($cluster->urls . ' cluster');

admit_in_turn(30, 30);
reported();
admit_in_turn(60, 30, 'the rest, by the clock of each node');

is($_->complaints, '', 'nothing to complain about') for @gateways;

done_testing();


sub start {
    my ($urls) = @_;

    @gateways = map { Gateway->start(workers => 2, http => config($urls)) }
                1, 2;
    @clients = map { Clients->new($_->{port}) } @gateways;
}


sub config {
    my ($urls) = @_;

    my ($http, %location) = <<"END";
ratelimit_redis main $urls timeout=10s connect_timeout=10s;
END

    for my $name (sort keys %zone) {
        my ($zone, $limit) = (@{$zone{$name}}, '');

        $http .= "ratelimit_zone \$arg_k zone=$name:1m $zone redis=main"
                 . " fail=closed sync=100ms;\n";
        $location{"/$name"} = "ratelimit zone=$name $limit;";
    }

    return $http . Gateway->server(%location, '/api/' => 'ratelimit_api;');
}


# requests to the gateways in turn

sub admit {
    my ($key, $n, $expected, $what) = @_;

    $what //= 'before';

    for my $name (sort keys %zone) {
        my $admitted = grep {
            $clients[$_ % 2]->ask("GET /$name?k=$key")->{status} == 200
        } 1 .. $n;

        cmp_ok($admitted, '>=', $expected, "$what: $name, none under");
        cmp_ok($admitted, '<=', $expected * 1.05, 'at most 5 % over');
    }
}


# the same for keys of all nodes in turn

sub admit_in_turn {
    my ($n, $expected, $what) = @_;

    $what //= 'before';

    for my $name (sort keys %zone) {
        my %admitted;

        for my $i (1 .. $n) {
            $admitted{$_} += $clients[$i % 2]->ask("GET /$name?k=$_")->{status}
                             == 200 for @keys;
        }

        for my $key (@keys) {
            cmp_ok($admitted{$key}, '>=', $expected, "$what: $name, none under");
            cmp_ok($admitted{$key}, '<=', $expected * 1.05, 'at most 5 % over');
        }
    }
}


# a key that a node of the cluster has

sub key_of {
    my ($server) = @_;

    for my $i (1 .. 1000) {
        return "key-$i" if $cluster->primary_of("{2:key-$i}") == $server;
    }

    die 'no key';
}


sub reported {
    for my $clients (@clients) {
        Gateway::await(sub {
            return $clients->ask('GET /api/redis')->{body}
                   =~ /"sync_pending": ?0\b/;
        }, 'reports');
    }
}
