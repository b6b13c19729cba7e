#!/usr/bin/perl

# Workers are killed at any instruction, a hundred of them, under load.  Nobody
# is admitted beyond the limit, no charge is lost, and nothing stays locked.

use strict;
use warnings;

use List::Util qw(shuffle);
use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Gateway;

use constant WORKERS => 4;
use constant KILLS => 100;
use constant KEYS => 8;
use constant LIMIT => 1000;

# Many rates, so that a worker is inside of a decision for much of its time.
# All requests of this test are of one window each.
my $rates = join ' ', map { "rate=1000r/${_}h" } 10 .. 25;

# a state in one word, and two in blocks
my %zone = (
    token_bucket => 'algorithm=token_bucket capacity=1000 '
                    . join(' ', map { "rate=1r/${_}d" } 10 .. 25),
    sliding_window => "buckets=60 $rates",
    sliding_log => "algorithm=sliding_log $rates",
);

for my $name (sort keys %zone) {
    subtest $name => sub { killed($name) };
}

done_testing();


sub killed {
    my ($name) = @_;

    my $gateway = Gateway->start(
        workers => WORKERS,
        http => "ratelimit_zone \$http_x_key zone=z:16m $zone{$name};\n"
                . Gateway->server('/' => 'ratelimit zone=z;'),
    );

    my $kills = 0;
    my $next = 0;

    my $tally = $gateway->load(
        connections => 32,
        depth => 4,
        requests => [shuffle(map { [ '/', 'key ' . $_ % KEYS ] }
                             1 .. KEYS * LIMIT * 3)],
        tick => sub {
            my ($answers) = @_;

            return if $kills == KILLS || $answers < $next;

            my @workers = $gateway->current_workers or return;

            $kills += kill 'KILL', $workers[rand @workers];
            $next = $answers + 150;
        },
    );

    is($tally->{hang}, 0, 'no hang');
    is($kills, KILLS, KILLS . ' workers were killed');
    cmp_ok(keys %{$tally->{workers}}, '>', KILLS / 2, 'and replaced');

    held($tally->{keys}{"key $_"}, "key $_") for 0 .. KEYS - 1;

    Gateway::await(sub { $gateway->current_workers == WORKERS }, 'workers');

    still_fast($gateway);

    is($gateway->complaints(qr/exited on signal 9/), '',
       'nothing to complain about');
}


sub held {
    my ($count, $key) = @_;

    my $admitted = $count->{200} || 0;
    my $unanswered = $count->{unanswered} || 0;

    cmp_ok($admitted, '<=', LIMIT, "$key: nobody beyond the limit");
    cmp_ok($admitted + $unanswered, '>=', LIMIT,
           "$key: no charge without a request ($unanswered unanswered)");
    cmp_ok($count->{429} || 0, '>', 0, "$key: the limit was reached");
}


# Old keys stay refused, and so many new ones are admitted, that every lock is
# taken; a lock that a dead worker holds would make them wait.

sub still_fast {
    my ($gateway) = @_;

    my $start = time;
    my $tally = $gateway->load(connections => 64, requests => [
        map({ ['/', "key $_"] } (0 .. KEYS - 1) x 100),
        map({ ['/', "new $_"] } 1 .. 2000),
    ]);

    my %status;

    for my $key (keys %{$tally->{keys}}) {
        my ($kind) = split ' ', $key;

        $status{$kind}{$_} += $tally->{keys}{$key}{$_}
            for keys %{$tally->{keys}{$key}};
    }

    is_deeply($status{new}, { sent => 2000, 200 => 2000 },
              'new keys are served');
    is_deeply($status{key}, { sent => 100 * KEYS, 429 => 100 * KEYS },
              'old ones are refused');
    is(keys %{$tally->{workers}}, WORKERS, 'by all workers');
    cmp_ok(time - $start, '<', 10, 'in time');
}
