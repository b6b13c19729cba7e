#!/usr/bin/perl

# A flood of new keys into a zone that is full: nobody is refused for it, who
# is being refused stays so, and the log tells, but not more than once a
# second.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Gateway;

use constant WORKERS => 4;
use constant FLOOD => 40000;
use constant OFFENDERS => 5;
use constant LIMIT => 3;

my %zone = (
    fixed_window => 'algorithm=fixed_window rate=3r/d',
    sliding_window_1 => 'buckets=1 rate=3r/d',
    token_bucket => 'algorithm=token_bucket capacity=3 rate=1r/d',
    sliding_window => 'rate=3r/d',
    sliding_log => 'algorithm=sliding_log rate=3r/d',
);

subtest $_ => sub { flood($_) } for sort keys %zone;
subtest 'the largest states' => \&largest;

done_testing();


# offenders come again all the time, everybody else once or twice

sub flood {
    my ($name) = @_;

    my $gateway = Gateway->start(
        workers => WORKERS,
        http => "ratelimit_zone \$http_x_key zone=z:64k $zone{$name};\n"
                . Gateway->server('/' => 'ratelimit zone=z;'),
    );

    my $tally = $gateway->load(
        requests => [map { (['/', "bad $_"]) x (LIMIT + 1) } 1 .. OFFENDERS],
    );

    is(sum($tally, 'bad')->{200}, LIMIT * OFFENDERS, 'offenders');

    my $start = time;
    my $n = 0;

    $tally = $gateway->load(depth => 4, requests => sub {
        return if $n++ == FLOOD;
        return ['/', 'bad ' . (1 + rand OFFENDERS) =~ s/\..*//r]
            if $n % 20 == 0;
        return ['/', 'new ' . int($n / (1 + ($n / 1000) % 2))];
    });

    my $spent = time - $start;
    my $bad = sum($tally, 'bad');
    my $new = sum($tally, 'new');

    is($bad->{429}, $bad->{sent}, 'are refused through all of the flood');
    is($new->{200}, $new->{sent}, 'and nobody else is');

    told($gateway, $spent);

    is($gateway->complaints, '', 'nothing to complain about');
}


sub sum {
    my ($tally, $kind) = @_;

    my %sum;

    for my $key (grep { /^$kind/ } keys %{$tally->{keys}}) {
        $sum{$_} += $tally->{keys}{$key}{$_} for keys %{$tally->{keys}{$key}};
    }

    return \%sum;
}


sub told {
    my ($gateway, $spent) = @_;

    my @lines = grep { /\[warn\].*zone "z" is full: [1-9]\d* counters/ }
                split /^/, $gateway->log;
    my %seconds;

    $seconds{substr $_, 0, 19}++ for @lines;

    cmp_ok(scalar @lines, '>', 0, 'the log tells');
    cmp_ok(scalar @lines, '<=', $spent + 2, 'once a second at most');
    is_deeply([grep { $seconds{$_} > 1 } keys %seconds], [],
              'and never twice in one');
}


# a zone has room for hardly any state, or for fewer than one request needs

sub largest {
    for my $n (1, 3, 6, 8) {
        my $rates = join ' ', map { "rate=1900r/${_}d" } 1 .. $n;
        my $gateway = Gateway->start(
            workers => WORKERS,
            http => 'ratelimit_zone $http_x_key zone=z:64k '
                    . "algorithm=sliding_log $rates;\n"
                    . Gateway->server('/' => 'ratelimit zone=z;'),
        );

        my $tally = $gateway->load(idle => 5, requests => [
            map { ['/', "new $_"] } 1 .. 2000
        ]);

        is($tally->{hang}, 0, "$n rates: no hang");
        is(sum($tally, 'new')->{200}, 2000, "$n rates: all were admitted");
        is($gateway->complaints, '', 'nothing to complain about');
    }
}
