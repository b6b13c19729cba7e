#!/usr/bin/perl

# Write-back by the clock of Redis, which is days ahead of that of the gateways,
# and is set: what was charged counts in the window in which it was charged, and
# in no other, and no client is locked out.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep);

use lib 't/lib';
use Clients;
use Gateway;
use RedisClock;

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
my @gateways = map { Gateway->start(workers => 2, http => config()) } 1, 2;
my @clients = map { Clients->new($_->{port}) } @gateways;

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

done_testing();


sub config {
    my ($http, %location) = <<"END";
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=10s
                     connect_timeout=10s;
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


sub reported {
    for my $clients (@clients) {
        Gateway::await(sub {
            return $clients->ask('GET /api/redis')->{body}
                   =~ /"sync_pending": ?0\b/;
        }, 'reports');
    }
}
