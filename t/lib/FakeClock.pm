package FakeClock;

# The hours of a test pass in no time: all clocks of a Gateway go fast by as
# much as the test says.  Needs libfaketime, to which the monotonic clock is
# the wall clock; it begins in 1970, so that no machine is up for half a
# century.
#
#     my $clock = FakeClock->new;
#     my $gateway = Gateway->start($clock->options, http => $config);
#     $clock->forward(3600);

use strict;
use warnings;

use File::Temp qw(tempdir);


sub new {
    my ($class) = @_;

    my $self = bless {
        dir => tempdir(CLEANUP => 1),
        fast => 86_400 - time,
    }, $class;

    chmod 0755, $self->{dir};
    $self->forward(0);

    return $self;
}


sub options {
    my ($self) = @_;

    my $library = `faketime -m -f +0 printenv LD_PRELOAD`;

    chomp $library;
    die 'faketime is needed' if $library eq '';

    my %env = (
        LD_PRELOAD => $library,
        FAKETIME_NO_CACHE => 1,
        FAKETIME_TIMESTAMP_FILE => "$self->{dir}/fast",
    );

    return (env => \%env, main => join ' ', map { "env $_;" } sort keys %env);
}


# what nginx takes for the time

sub now {
    my ($self) = @_;

    return time + $self->{fast};
}


sub forward {
    my ($self, $seconds) = @_;

    $self->{fast} += $seconds;

    my $file = "$self->{dir}/fast";

    open my $out, '>', "$file.new" or die $!;
    printf $out "%+d\n", $self->{fast};
    close $out or die $!;
    rename "$file.new", $file or die $!;
}


1;
