package Summary;

# The last line of "prove -It/lib -PSummary": what ran, and what took longest.

use strict;
use warnings;

use parent -norequire, 'TAP::Harness';

use TAP::Harness ();

use constant SHOWN => 3;


# called by prove

sub load {
    my ($class, $plugin) = @_;

    $plugin->{app_prove}->harness($class);

    return 1;
}


sub summary {
    my ($self, $results, @rest) = @_;

    $self->SUPER::summary($results, @rest);
    $self->formatter->_output(line($results) . "\n");
}


sub line {
    my ($results) = @_;

    my %parser;

    @parser{$results->descriptions} = $results->parsers;

    my %took = map { $_ => $parser{$_}->end_time - $parser{$_}->start_time }
                   keys %parser;
    my @longest = sort { $took{$b} <=> $took{$a} || $a cmp $b } keys %took;

    splice @longest, SHOWN if @longest > SHOWN;

    return sprintf '%s: %d files, %d tests, %d s; longest: %s',
                   $results->get_status,
                   scalar keys %parser, scalar $results->total,
                   $results->elapsed->real,
                   join ', ', map { sprintf '%s %d s', $_, $took{$_} } @longest;
}


1;
