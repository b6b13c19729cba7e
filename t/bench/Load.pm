package Load;

# Runs t/bench/load.c.
#
#     my %found = Load::measure(port => $port, path => ['/a', '/b'],
#                               pid => [$pid], rounds => 30, keys => 10_000);
#
# Of each path: rate (requests a second), refused (in all rounds), cpu (of each
# pid, nanoseconds a request) and added (of each pid, more than for the first
# path in the same round): medians of the rounds.

use strict;
use warnings;

use constant LOAD => 'build/bench/load';


sub measure {
    my (%job) = @_;

    my @paths = @{$job{path}};
    my %rounds;

    for my $line (run(%job)) {
        my ($path, $rate, $refused, @cpu) = split /\t/, $line;

        push @{$rounds{$path}},
            { rate => $rate, refused => $refused, cpu => \@cpu };
    }

    return map {
        ($_ => summary(scalar @{$job{pid} || []}, $rounds{$_},
                       $rounds{$paths[0]}))
    } @paths;
}


# every key once, in order

sub fill {
    my (%job) = @_;

    run(%job, order => 'up', requests => $job{keys}, depth => 16);
}


sub run {
    my (%job) = @_;

    my @arguments = map {
        my $name = $_;

        map { "$name=$_" } ref $job{$name} ? @{$job{$name}} : $job{$name};
    } sort keys %job;

    open my $out, '-|', LOAD, @arguments or die LOAD . ": $!\n";

    chomp(my @lines = <$out>);
    close $out or die LOAD . " @arguments: failed\n";

    return @lines;
}


sub summary {
    my ($pids, $rounds, $base) = @_;

    my $refused = 0;
    $refused += $_->{refused} for @$rounds;

    return {
        refused => $refused,
        rate => median(map { $_->{rate} } @$rounds),
        cpu => [map { my $i = $_; median(map { $_->{cpu}[$i] } @$rounds) }
                    0 .. $pids - 1],
        added => [map { added($_, $rounds, $base) } 0 .. $pids - 1],
    };
}


sub added {
    my ($pid, $rounds, $base) = @_;

    return median(map { $rounds->[$_]{cpu}[$pid] - $base->[$_]{cpu}[$pid] }
                      0 .. $#$rounds);
}


sub median {
    my @sorted = sort { $a <=> $b } @_;

    return ($sorted[$#sorted / 2] + $sorted[@sorted / 2]) / 2;
}


1;
