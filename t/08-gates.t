#!/usr/bin/perl

# What is repeatable of t/bench must not get worse: the instructions of the
# phase handler against limit_req's (callgrind), and wrong decisions on traces
# of a known seed.

use strict;
use warnings;

use Test::More;

use constant TSV => 'build/bench/gates.tsv';

# ours divided by limit_req's, at most: what was promised, not the figures of
# the day.  What is not here is only printed.

my %HANDLER = (
    'one limit, fixed_window' => [0.75],
    'one limit, token_bucket' => [0.8],
    'one limit, leaky_bucket' => [0.8],
    'one limit, sliding_window buckets=1' => [0.75],
    'one limit, sliding_window' => [0.75],
    'one limit, fixed_window 100000r' => [0.75],
    'one limit, buckets=1 100000r' => [0.75],
    'one limit, sliding_window 100000r' => [0.75],
    'two rates of one zone, buckets=1' => [0.58],
    'two rates of one zone' => [0.58],
    'two zones, one key' => [0.85],
    'a refusal, buckets=1' => [0.75],
    'a refusal' => [0.75],
    'new keys, zone full, buckets=1' => [0.78],
    'new keys, zone full' => [0.78],
    'new keys, room left, buckets=1' => [0.78],
    'new keys, room left' => [0.78],
    'three fields against three add_header' => [1],
);

# instructions that statistics add to a handler

my %STATISTICS = (
    'statistics, sliding_window' => 15,
    'statistics, two_rates' => 15,
    'statistics, two_zones' => 15,
    'statistics, three_zones' => 15,
    'statistics, one_of_two' => 15,
    'statistics, refused' => 15,
    'statistics, refused_first' => 15,
    'statistics, refused_second' => 15,
    'statistics, refused_two_rates' => 15,
    'statistics, soft' => 15,
    'statistics, soft_two_rates' => 15,
    'statistics, delayed' => 15,
    'statistics, dry_run' => 15,
    'statistics, dry_two' => 15,
    'statistics, dry_refused' => 15,
    'statistics, dry_refused_first' => 15,
    'statistics, bypassed' => 15,
    'statistics, bypassed_two' => 15,

    # two handlers: one limit has passed before authentication; or what both
    # would do is done at once

    'statistics, bypassed_later' => 30,
    'statistics, bypassed_both' => 30,

    # with the list of refused keys: one that is in it, and new ones

    'statistics, top_one' => 65,
    'statistics, top_many' => 260,
);

# of a scrape, and how many more of them there are where a zone is full of keys

my %SCRAPE = ('a scrape of 100 zones, keys and none' => [3_000_000, 1000]);

# percent of decisions that are wrong, at most: trace, algorithm.  On the mixed
# trace of the default 0.01 is to be reached, the rest is today's rounded up.

my %WRONG = (
    'mixed, sliding_window' => [0.39, 0.01],
    'mixed, sliding_window buckets=1' => [1.30],
    'mixed, sliding_window buckets=60' => [0.15],
    'mixed, sliding_log' => [0],
    'light, sliding_window' => [0.023],
    'steady, sliding_window' => [0],
    'edge, sliding_window' => [2.0],
    'edge, sliding_log' => [0],
    'greedy, sliding_log' => [0],
);

# the most that is admitted in any period, N = 100

my %MOST = (
    'edge, fixed_window' => 200,
    'edge, sliding_window buckets=1' => 199,
    'edge, sliding_window' => 110,
    'edge, sliding_window buckets=60' => 101,
    'sub-edge, sliding_window' => 110,
    'bursty, sliding_window' => 110,
    'greedy, sliding_window buckets=60' => 101,
    'edge, sliding_log' => 100,
    'bursty, sliding_log' => 100,
);

BAIL_OUT('run me from the root of the repository') if !-f 'config';
BAIL_OUT('valgrind is missing') if system('valgrind --version > /dev/null');

subtest 'instructions of the handler' => \&instructions;
subtest 'wrong decisions' => \&wrong;

done_testing();


sub instructions {
    unlink TSV;
    note(`t/bench/handler --quick --tsv @{[TSV]}`);

    my %seen;

    open my $in, '<', TSV or return fail('t/bench/handler measures');

    while (<$in>) {
        my ($name, $ours, $theirs, $ratio) = split /\t/;

        if ($HANDLER{$name}) {
            $seen{$name} = 1;
            at_most($name, $ratio, @{$HANDLER{$name}});

        } elsif ($STATISTICS{$name}) {
            $seen{$name} = 1;
            at_most($name, $ours - $theirs, $STATISTICS{$name});

        } elsif ($SCRAPE{$name}) {
            $seen{$name} = 1;
            at_most($name, $ours, $SCRAPE{$name}[0]);
            at_most('more for keys', $ours - $theirs, $SCRAPE{$name}[1]);
        }
    }

    is_deeply([sort keys %seen],
              [sort(keys %HANDLER, keys %STATISTICS, keys %SCRAPE)],
              'all were measured');
}


sub wrong {
    my $built = system('t/bench/build', 'accuracy');

    is($built, 0, 'builds');

    my (%wrong, %most);

    for (split /\n/, `build/bench/accuracy 20`) {
        my ($trace, $name, $requests, $admitted, $refused, $most) = split /\t/;

        next if !defined $most;

        $wrong{"$trace, $name"} = 100 * ($admitted + $refused) / $requests;
        $most{"$trace, $name"} = $most;
    }

    is($?, 0, 'runs');

    for my $case (sort keys %WRONG) {
        at_most("$case, % wrong", $wrong{$case}, @{$WRONG{$case}});
    }

    for my $case (sort keys %MOST) {
        at_most("$case, most in any period", $most{$case}, $MOST{$case});
    }
}


sub at_most {
    my ($name, $value, $most, $goal) = @_;

    return fail("$name: not measured") if !defined $value;

    ok($value <= $most, sprintf '%s: %.4g of at most %s%s', $name, $value,
       $most, defined $goal ? ", to be $goal" : '');
}
