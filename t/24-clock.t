#!/usr/bin/perl

# The wall clock is set forward and back while nginx runs: no client is refused
# longer, none gets its limit twice.  Only fixed_window looks at it at all, when
# a window opens.

use strict;
use warnings;

use File::Temp qw(tempdir);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Gateway;

use constant HOUR => 3600;
use constant DAY => 86400;

# seconds by which the clock is wrong, again and again
my @steps = (1, 2 * HOUR, -2 * HOUR, 0, 40 * DAY, -40 * DAY, 400 * DAY, 0);

my %hour = (
    fixed_window => ['algorithm=fixed_window rate=5r/h'],
    sliding_window => ['rate=5r/h'],
    sliding_window_1 => ['buckets=1 rate=5r/h'],
    sliding_log => ['algorithm=sliding_log rate=5r/h'],
    token_bucket => ['algorithm=token_bucket capacity=5 rate=1r/h'],
    leaky_bucket => ['algorithm=leaky_bucket rate=1r/h', 'burst=4 nodelay'],
);

# the same, whole again after two seconds at the latest
my %short = map {
    my ($zone, @limit) = @{$hour{$_}};

    $zone =~ s{5r/h}{5r/2s};
    $zone =~ s{1r/h}{5r/2s};

    ($_ => [$zone, @limit]);
} keys %hour;

my $dir = tempdir(CLEANUP => 1);
my $offset = "$dir/offset";

chmod 0755, $dir;
set_clock(0);

my $gateway = Gateway->start(workers => 2, env => fake_clock(),
                             main => keep_env(), http => config());

subtest 'the clock of this test' => \&the_clock;
subtest "$_: no limit twice" => sub { no_limit_twice($_) } for sort keys %hour;
subtest 'no longer refusal' => \&no_longer_refusal;
subtest 'fixed_window is aligned to it' => \&aligned;

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub config {
    my $zones = '';
    my %location;

    for my $name (sort keys %hour) {
        for my $set ([hour => $hour{$name}], [short => $short{$name}]) {
            my ($prefix, $parameters) = @$set;
            my ($zone, $limit) = @$parameters;

            $zones .= 'ratelimit_zone $http_x_key '
                      . "zone=$prefix.$name:64k $zone;\n";
            $location{"/$prefix/$name"} =
                "ratelimit zone=$prefix.$name " . ($limit || '') . ';';
        }
    }

    return $zones . Gateway->server(%location);
}


# libfaketime, of which nginx sees the wall clock only

sub fake_clock {
    my $library = `faketime -m -f +0 printenv LD_PRELOAD`;

    chomp $library;
    die 'faketime is needed' if $library eq '';

    return {
        LD_PRELOAD => $library,
        DONT_FAKE_MONOTONIC => 1,
        FAKETIME_NO_CACHE => 1,
        FAKETIME_TIMESTAMP_FILE => $offset,
    };
}


sub keep_env {
    return join ' ', map { "env $_;" } sort keys %{fake_clock()};
}


sub set_clock {
    my ($seconds) = @_;

    open my $file, '>', "$offset.new" or die $!;
    printf $file "%+d\n", $seconds;
    close $file;
    rename "$offset.new", $offset or die $!;
}


sub get {
    my ($path, $key) = @_;

    my $socket = $gateway->connect or die "connect: $!";

    print $socket "GET $path HTTP/1.0\r\nX-Key: $key\r\n\r\n";

    my $answer = do { local $/; <$socket> };
    my %answer = map { /^([\w-]+): (.*?)\r?$/ ? (lc $1, $2) : () }
                 split /\n/, $answer;

    ($answer{status}) = $answer =~ m{^HTTP/1\.1 (\d+)};

    return \%answer;
}


sub admitted {
    my ($path, $key, $n) = @_;

    return scalar grep { get($path, $key)->{status} == 200 } 1 .. $n;
}


sub the_clock {
    my $before = get('/hour/fixed_window', 'clock')->{date};

    set_clock(40 * DAY);

    isnt(get('/hour/fixed_window', 'clock')->{date}, $before, 'can be set');

    set_clock(0);

    like(get('/hour/fixed_window', 'clock')->{date},
         qr/^\Q@{[substr $before, 0, 16]}\E/, 'and set back');
}


# two before, three after the first step, and then no more

sub no_limit_twice {
    my ($name) = @_;

    my $path = "/hour/$name";
    my $left = 3;
    my $others = 0;

    # a sub-window counts as long as any of it may be inside of the hour
    my $longest = $name =~ /^sliding_window/ ? 2 * HOUR : HOUR;

    # of two windows, the older one has lost one of five after a fifth of it
    my $shortest = $name eq 'sliding_window_1' ? HOUR / 5 - 1 : HOUR / 2 - 120;

    # the window must not end by itself meanwhile
    my $start = set_before_end(HOUR / 2);

    is(admitted($path, 'k', 2), 2, 'before');

    for my $step (@steps) {
        set_clock($start + $step);

        is(admitted($path, 'k', 4), $left, "$step seconds");

        $left = 0;

        my $answer = get($path, 'k');

        is($answer->{status}, 429, 'refused');
        cmp_ok($answer->{'retry-after'}, '<=', $longest, 'not too long');
        cmp_ok($answer->{'retry-after'}, '>', $shortest, 'long enough');

        is(admitted($path, 'other ' . $others++, 6), 5,
           'another key has a limit');
    }

    set_clock($start + 3 * DAY);
    $gateway->reload(config());

    is(admitted($path, 'k', 3), 0, 'also after a reload');

    set_clock(0);
}


# so that an hour of the wall clock ends in so many seconds

sub set_before_end {
    my ($seconds) = @_;

    my $step = HOUR - $seconds - time % HOUR;

    set_clock($step);

    return $step;
}


# a client that is refused when the clock is set is admitted in due time

sub no_longer_refusal {
    for my $step (-2 * HOUR, 2 * HOUR, -40 * DAY, 40 * DAY) {
        my @keys = map { ["/short/$_", "$step"] } sort keys %short;
        my $start = time;

        get(@$_) for map { ($_) x 6 } @keys;

        set_clock($step);

        for my $key (@keys) {
            ok(Gateway::await(sub { get(@$key)->{status} == 200 }),
               "@$key seconds");
        }

        cmp_ok(time - $start, '<', 30, 'in time');

        set_clock(0);
    }
}


# a window that opens after the step ends when the new time says so

sub aligned {
    for my $left (600, 1800, 3000) {
        set_before_end($left);

        my $reset = get('/hour/fixed_window', "left $left")
                    ->{'x-ratelimit-reset'};

        cmp_ok($reset, '<=', $left + 1, "$left seconds");
        cmp_ok($reset, '>', $left - 60, 'or hardly less');
    }

    set_clock(0);
}
