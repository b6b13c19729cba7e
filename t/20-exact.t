#!/usr/bin/perl

# Exactly as many of parallel requests are admitted as the limit says, by every
# algorithm, over any number of workers; and what one limit refuses costs the
# others nothing.

use strict;
use warnings;

use List::Util qw(shuffle);
use Test::More;

use lib 't/lib';
use Gateway;

use constant LIMIT => 3000;
use constant SENT => 4500;

# far from the end of a window that the wall clock opens
my ($hour) = grep { $_ - time % $_ > 300 } 3600, 3660, 4020;
$hour = $hour / 60 . 'm';

# what the zone and the limit say, for LIMIT requests at once
my %algorithm = (
    fixed_window => ["algorithm=fixed_window rate=3000r/$hour"],
    sliding_window => ['rate=3000r/1h'],
    sliding_window_1 => ['buckets=1 rate=3000r/366d'],
    sliding_window_60 => ['buckets=60 rate=3000r/1h'],
    sliding_log => ['algorithm=sliding_log rate=3000r/1h'],
    token_bucket => ['algorithm=token_bucket capacity=3000 rate=1r/d'],
    leaky_bucket => ['algorithm=leaky_bucket rate=1r/d',
                     'burst=2999 nodelay'],
);

for my $workers (1, 2, 4) {
    subtest "$workers workers" => sub { all_exact($workers) };
}

done_testing();


sub all_exact {
    my ($workers) = @_;

    my $gateway = Gateway->start(workers => $workers, http => config());

    for my $name (sort keys %algorithm) {
        subtest $name => sub { exact($gateway, $workers, $name) };
    }

    subtest 'two limits' => sub { two_limits($gateway, 'ab', 'a') };
    subtest 'the other way round' => sub { two_limits($gateway, 'ba', 'a') };
    subtest 'two rates' => sub { two_rates($gateway) };
    subtest 'two keys of one zone' => sub { two_keys($gateway) };
    subtest 'two zones' => sub { two_zones($gateway) };
    subtest 'two names' => sub { two_names($gateway) };

    is($gateway->complaints, '', 'nothing to complain about');
}


sub config {
    my $zones = <<'END';
ratelimit_zone $http_x_key zone=a:1m rate=2000r/1h;
ratelimit_zone $http_x_key zone=b:1m rate=500r/366d buckets=1;
ratelimit_zone $http_x_key zone=rates:1m rate=2000r/2h rate=500r/1h;
END
    my %location = (
        '/ab' => 'ratelimit zone=a; ratelimit zone=b;',
        '/ba' => 'ratelimit zone=b; ratelimit zone=a;',
        '/a' => 'ratelimit zone=a;',
        '/rates' => 'ratelimit zone=rates;',
        '/2h' => 'ratelimit zone=rates rate=2000r/2h;',
        '/keys' => 'ratelimit zone=a;
                    ratelimit zone=a key=all rate=700r/1h name=all;',
        '/named' => 'ratelimit zone=a rate=100r/1h name=named;',
        '/same' => 'ratelimit zone=a rate=100r/1h name=named;',
    );

    for my $name (sort keys %algorithm) {
        my ($zone, $limit) = @{$algorithm{$name}};

        $zones .= "ratelimit_zone \$http_x_key zone=$name:1m $zone;\n";
        $location{"/$name"} = "ratelimit zone=$name " . ($limit || '') . ';';
    }

    return $zones . Gateway->server(%location);
}


# one key of which all want too much, one that stays just below the limit

sub exact {
    my ($gateway, $workers, $name) = @_;

    my $tally = $gateway->load(depth => 8, connections => 64, requests => [
        shuffle((["/$name", 'hot']) x SENT, (["/$name", 'cool']) x LIMIT)
    ]);

    is_deeply($tally->{keys}{hot},
              { sent => SENT, 200 => LIMIT, 429 => SENT - LIMIT },
              LIMIT . ' of ' . SENT);
    is_deeply($tally->{keys}{cool}, { sent => LIMIT, 200 => LIMIT }, 'all');
    is(keys %{$tally->{workers}}, $workers, 'by all workers');

    $tally = $gateway->load(requests => [(["/$name", 'cool']) x 100]);

    is_deeply($tally->{keys}{cool}, { sent => 100, 429 => 100 }, 'no more');
}


# b refuses 1500 of 2000, which leaves 1500 of a; then a refuses, and leaves b
# as it is

sub two_limits {
    my ($gateway, $both, $alone) = @_;

    my $key = "two limits, $both";

    is(admitted($gateway, "/$both", $key, 2000), 500, 'the smaller one holds');
    is(admitted($gateway, "/$alone", $key, 2500), 1500,
       'its refusals cost the larger one nothing');

    $key .= ' again';

    is(admitted($gateway, "/$alone", $key, 1900), 1900, 'the larger one');
    is(admitted($gateway, "/$both", $key, 1000), 100, 'now holds first');
}


sub two_rates {
    my ($gateway) = @_;

    is(admitted($gateway, '/rates', 'k', 2500), 500, 'the smaller one holds');
    is(admitted($gateway, '/2h', 'k', 2500), 2000,
       'another set of rates counts apart');
}


sub two_keys {
    my ($gateway) = @_;

    my $tally = $gateway->load(depth => 8, requests => [
        shuffle(map { ['/keys', "one of " . $_ % 4] } 1 .. 4000)
    ]);

    my $all = 0;
    $all += $_->{200} || 0 for values %{$tally->{keys}};

    is($all, 700, 'the common limit holds');

    for my $i (0 .. 3) {
        my $used = $tally->{keys}{"one of $i"}{200} || 0;

        is(admitted($gateway, '/a', "one of $i", 2200), 2000 - $used,
           "and its refusals cost nothing, $used");
    }
}


# the same key at the same time, each zone by itself

sub two_zones {
    my ($gateway) = @_;

    my $tally = $gateway->load(depth => 8, connections => 64, requests => [
        shuffle((['/fixed_window', 'shared']) x 4000,
                (['/token_bucket', 'shared']) x 4000)
    ]);

    is($tally->{keys}{shared}{200}, 2 * LIMIT, 'each has its own counter');
}


sub two_names {
    my ($gateway) = @_;

    my $tally = $gateway->load(depth => 4, requests => [
        shuffle((['/named', 'name']) x 300, (['/same', 'name']) x 300)
    ]);

    is($tally->{keys}{name}{200}, 100, 'one name is one counter');
    is(admitted($gateway, '/a', 'name', 2100), 2000, 'that is no other');
}


sub admitted {
    my ($gateway, $path, $key, $n) = @_;

    my $tally = $gateway->load(depth => 8, requests => [([$path, $key]) x $n]);
    my $count = $tally->{keys}{$key};

    is(($count->{200} || 0) + ($count->{429} || 0), $n, 'all were answered');

    return $count->{200} || 0;
}
