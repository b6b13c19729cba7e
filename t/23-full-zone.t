#!/usr/bin/perl

# A flood of new keys into a zone that is full: no request is refused for it, a
# key that is being refused stays so, and it is logged, but not more than once
# a second.

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


# offenders come again all the time, other clients once or twice

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
    is($new->{200}, $new->{sent}, 'and no other key is');

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

    # a second of the module may begin inside of one of the wall clock

    is_deeply([grep { $seconds{$_} > 2 } keys %seconds], [], 'evenly');
}


# A zone has room for hardly any state: either nginx refuses to start with it,
# or it serves; here for one request that needs many of them.

sub largest {
    my $served = 0;

    for my $size (qw(64k 512k 1m 2m)) {
        my $gateway = eval { crowded($size) };

        if (!$gateway) {
            like($@, qr/zone "z" is too small/, "$size: is too small");
            is($served, 0, "$size: as all that are smaller");
            next;
        }

        my $tally = $gateway->load(requests => [
            map { ['/', "new $_"] } 1 .. 2000
        ]);

        is($tally->{hang}, 0, "$size: no hang");
        is(sum($tally, 'new')->{200}, 2000, "$size: all were admitted");
        is($gateway->complaints, '', 'nothing to complain about');

        $served++;
    }

    cmp_ok($served, '>', 1, 'some sizes serve');
}


sub crowded {
    my ($size) = @_;

    my $rates = join ' ', map { "rate=1900r/${_}d" } 1 .. 8;

    return Gateway->start(
        workers => WORKERS,
        http => "ratelimit_zone \$http_x_key zone=z:$size "
                . "algorithm=sliding_log $rates;\n"
                . Gateway->server('/' => 'ratelimit zone=z;'),
    );
}
