#!/usr/bin/perl

# Workers are killed at any instruction, a hundred of them, under load.  No
# request is admitted beyond the limit, no charge is lost, and nothing stays
# locked.

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
use constant LIMIT => 1500;

# So many limits that a worker spends much of its time inside of decisions, and
# so long ones that all of this happens in one window.
my @zones = qw(a b c);
my @many = 10 .. 59;
my $rates = join ' ', map { "rate=1500r/${_}h" } @many;

# a state in one word, and two in blocks
my %zone = (
    token_bucket => 'algorithm=token_bucket capacity=1500 '
                    . join(' ', map { "rate=1r/${_}d" } @many),
    sliding_window => "buckets=60 $rates",
    sliding_log => "algorithm=sliding_log $rates",
);

for my $name (sort keys %zone) {
    subtest $name => sub { killed($name, '32m') };
    subtest "$name and reloads" => sub { killed($name, '32m', '48m') };
}

done_testing();


# at random until all are killed, then enough of all keys; if there are several
# sizes, nginx reloads with one after the other meanwhile

sub killed {
    my ($name, @sizes) = @_;

    my $gateway = Gateway->start(workers => WORKERS,
                                 http => config($name, $sizes[0]));
    my $kills = 0;
    my @rest = shuffle((0 .. KEYS - 1) x (LIMIT + 100));

    my $tally = $gateway->load(
        connections => 32,
        depth => 4,
        requests => sub {
            my $key = $kills < KILLS ? int rand KEYS : pop @rest;

            return defined $key ? ['/', "key $key"] : undef;
        },
        tick => sub {
            my ($answers) = @_;

            return if $kills == KILLS || $answers < $kills * 80;

            my @workers = $gateway->busy_workers or return;

            $kills += kill 'KILL', $workers[rand @workers];

            return if @sizes == 1 || $kills % 10;

            $gateway->hup(config($name, $sizes[$kills / 10 % @sizes]));
        },
    );

    is($tally->{hang}, 0, 'no hang');
    is($kills, KILLS, KILLS . ' workers were killed');
    cmp_ok(keys %{$tally->{workers}}, '>', KILLS / 2, 'and replaced');

    held($tally->{keys}{"key $_"}, "key $_") for 0 .. KEYS - 1;

    Gateway::await(sub { $gateway->settled }, 'workers');

    still_fast($gateway);

    # a worker that a busy machine does not run keeps others waiting

    is($gateway->complaints(qr/exited on signal 9|waits for process/), '',
       'nothing to complain about');
}


sub config {
    my ($name, $size) = @_;

    my @lines = map { "ratelimit_zone \$http_x_key "
                      . "zone=$_:$size $zone{$name};\n" } @zones;
    my @limits = map { "ratelimit zone=$_;" } @zones;

    return join '', @lines, Gateway->server('/' => "@limits");
}


sub held {
    my ($count, $key) = @_;

    my $admitted = $count->{200} || 0;
    my $unanswered = $count->{unanswered} || 0;

    cmp_ok($admitted, '<=', LIMIT, "$key: none beyond the limit");
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
        map({ ['/', "new $_"] } 1 .. 500),
    ]);

    my %status;

    for my $key (keys %{$tally->{keys}}) {
        my ($kind) = split ' ', $key;

        $status{$kind}{$_} += $tally->{keys}{$key}{$_}
            for keys %{$tally->{keys}{$key}};
    }

    is_deeply($status{new}, { sent => 500, 200 => 500 },
              'new keys are served');
    is_deeply($status{key}, { sent => 100 * KEYS, 429 => 100 * KEYS },
              'old ones are refused');
    is(keys %{$tally->{workers}}, WORKERS, 'by all workers');
    cmp_ok(time - $start, '<', 20, 'in time');
}
