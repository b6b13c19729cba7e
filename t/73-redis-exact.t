#!/usr/bin/perl

# Two gateways with two workers each, and one Redis: of parallel requests of
# one key exactly as many are admitted as the limit says, by every algorithm,
# whatever becomes of scripts and workers meanwhile; and what one limit refuses
# costs the others nothing.

use strict;
use warnings;

use List::Util qw(shuffle sum0);
use Test::More;

use lib 't/lib';
use Gateway;
use RedisServer;
use Together;

use constant LIMIT => 1000;
use constant SENT => 700;       # to each of the gateways

# what the zone and the limit say, for LIMIT requests at once
my %algorithm = (
    fixed_window => ['algorithm=fixed_window rate=1000r/366d'],
    sliding_window => ['rate=1000r/1h'],
    sliding_window_1 => ['buckets=1 rate=1000r/366d'],
    sliding_window_60 => ['buckets=60 rate=1000r/1h'],
    sliding_log => ['algorithm=sliding_log rate=1000r/1h'],
    token_bucket => ['algorithm=token_bucket capacity=1000 rate=1r/d'],
    leaky_bucket => ['algorithm=leaky_bucket rate=1r/d',
                     'burst=999 nodelay'],
);

my $redis = RedisServer->start;
my $config = config();
my @gateways = map { Gateway->start(workers => 2, http => $config) } 1 .. 2;

for my $name (sort keys %algorithm) {
    subtest $name => sub { exact($name) };
}

for my $name (sort keys %algorithm) {
    subtest "$name and SCRIPT FLUSH" => sub { exact_flushed($name) };
}

subtest 'two limits' => \&two_limits;
subtest 'two rates' => \&two_rates;
subtest 'a common limit' => \&common;
subtest 'one in shared memory' => \&one_near;
subtest 'costs' => \&costs;
subtest 'reloads' => \&reloads;

for my $gateway (@gateways) {
    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/\[(?:error|warn)\] .*redis/, 'nor an error');
}

done_testing();


sub config {
    my $zones = <<'END' =~ s/REDIS/$redis->{port}/r;
ratelimit_redis main redis://127.0.0.1:REDIS timeout=10s connect_timeout=10s
                connections=2;
ratelimit_zone $http_x_key zone=a:1m rate=800r/1h redis=main;
ratelimit_zone $http_x_key zone=b:1m rate=200r/366d buckets=1 redis=main;
ratelimit_zone $http_x_key zone=rates:1m rate=800r/2h rate=200r/1h redis=main;
ratelimit_zone $http_x_key zone=near:1m rate=200r/1h;
END
    my %location = (
        '/ab' => 'ratelimit zone=a; ratelimit zone=b;',
        '/a' => 'ratelimit zone=a;',
        '/b' => 'ratelimit zone=b;',
        '/rates' => 'ratelimit zone=rates;',
        '/common' => 'ratelimit zone=a;
                      ratelimit zone=a key=all rate=300r/1h name=all;',
        '/near' => 'ratelimit zone=near; ratelimit zone=a name=near;',
        '/only' => 'ratelimit zone=near;',
        '/after' => 'ratelimit zone=a name=near;',
        '/three' => 'ratelimit zone=a name=cost cost=3;',
    );

    for my $name (sort keys %algorithm) {
        my ($zone, $limit) = @{$algorithm{$name}};

        $zones .= "ratelimit_zone \$http_x_key zone=$name:1m $zone"
                  . " redis=main;\n";
        $location{"/$name"} = "ratelimit zone=$name " . ($limit || '') . ';';
    }

    return $zones . Gateway->server(%location);
}


# the same load on all gateways at once: what became of each key

sub all_at_once {
    my ($while, @requests) = @_;

    my @tallies = Together::run($while, map { my $gateway = $_; sub {
        return $gateway->load(depth => 4, connections => 48,
                              requests => [shuffle(@requests)]);
    } } @gateways);

    for my $tally (@tallies) {
        is($tally->{hang}, 0, 'no hang');
        is(keys %{$tally->{workers}}, 2, 'by all workers');
    }

    return GatewayClient::add_up(@tallies);
}


sub admitted {
    my ($path, $key, $n) = @_;

    my $count = all_at_once(undef, ([$path, $key]) x $n)->{$key};

    is(sum0(@$count{grep { /^(?:200|429)$/ } keys %$count}), 2 * $n,
       'all were answered');

    return $count->{200} || 0;
}


# one key of which all want too much, one that stays just below the limit

sub exact {
    my ($name) = @_;

    is_exact(all_at_once(undef, load_of($name, 'hot', 'cool')), 'hot', 'cool');
    is(admitted("/$name", 'cool', 50), 0, 'no more');
}


sub load_of {
    my ($name, $hot, $cool) = @_;

    return ((["/$name", $hot]) x SENT, (["/$name", $cool]) x (LIMIT / 2));
}


sub is_exact {
    my ($keys, $hot, $cool) = @_;

    is_deeply($keys->{$hot}, { sent => 2 * SENT, 200 => LIMIT,
                               429 => 2 * SENT - LIMIT },
              LIMIT . ' of ' . 2 * SENT);
    is_deeply($keys->{$cool}, { sent => LIMIT, 200 => LIMIT }, 'all');
}


# Redis forgets its scripts again and again

sub exact_flushed {
    my ($name) = @_;

    my $before = $redis->calls('eval') + $redis->calls('script|load');
    my $keys = all_at_once(sub { $redis->call('SCRIPT', 'FLUSH') },
                           load_of($name, 'hot again', 'cool again'));

    is_exact($keys, 'hot again', 'cool again');
    cmp_ok($redis->calls('eval') + $redis->calls('script|load'), '>', $before,
           'scripts were told again');
}


# b refuses most, which leaves the rest of a; then a refuses, and leaves b

sub two_limits {
    is(admitted('/ab', 'two', 400), 200, 'the smaller one holds');
    is(admitted('/a', 'two', 400), 600,
       'its refusals cost the larger one nothing');

    is(admitted('/a', 'two again', 350), 700, 'the larger one');
    is(admitted('/ab', 'two again', 150), 100, 'now holds first');
    is(admitted('/b', 'two again', 150), 100, 'and costs the smaller nothing');
}


sub two_rates {
    is(admitted('/rates', 'k', 300), 200, 'the smaller one holds');
}


# two keys of one zone in one decision

sub common {
    my $keys = all_at_once(undef, map { ['/common', 'one of ' . $_ % 4] }
                                  1 .. 400);

    is(sum0(map { $_->{200} || 0 } values %$keys), 300,
       'the common limit holds');

    for my $i (0 .. 3) {
        my $used = $keys->{"one of $i"}{200} || 0;

        is(admitted('/a', "one of $i", 425), 800 - $used,
           "and its refusals cost nothing, $used");
    }
}


# each gateway has 200 of its own

sub one_near {
    is(admitted('/near', 'near', 300), 400, 'shared memory refuses');
    is(admitted('/after', 'near', 300), 400, 'which costs Redis nothing');
    is(admitted('/near', 'near', 100), 0, 'none are left');

    is(admitted('/after', 'far', 350), 700, 'some are left in Redis');
    is(admitted('/near', 'far', 300), 100, 'then Redis refuses');
    is(admitted('/only', 'far', 300), 300,
       'the charge in shared memory is refunded');
}


sub costs {
    is(admitted('/three', 'k', 300), 266, 'as many as fit');
}


# not one too many or too few, while workers come and go

sub reloads {
    my @all = map { my $gateway = $_; sub {
        my $n = 0;
        my $done = 0;

        my $tally = $gateway->load(
            connections => 32,
            requests => sub {
                return if $done >= 4 && $n > 1200;
                return ['/sliding_window', 'reload ' . ++$n % 2];
            },
            tick => sub {
                my ($answers) = @_;

                return if $done >= 4 || $answers < 100;
                return if $done && !$gateway->reloaded;

                $done++;
                $gateway->hup($config);
            },
        );

        Gateway::await(sub { $gateway->settled }, 'old workers to go');

        return $tally;
    } } @gateways;

    my $keys = GatewayClient::add_up(Together::run(undef, @all));

    for my $key ('reload 0', 'reload 1') {
        my $count = $keys->{$key};

        # what is sent as a connection is closed may get no answer
        is($count->{200}, LIMIT, "exactly, $key");
        is($count->{200} + $count->{429} + ($count->{unanswered} || 0),
           $count->{sent}, 'all others were answered');
    }

    is(admitted('/sliding_window', 'reload 0', 50), 0, 'no more afterwards');
}
