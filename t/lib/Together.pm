package Together;

# Several things at the same time, each in a process of its own.
#
#     my @results = Together::run($while, sub { ... }, sub { ... });
#
# A result is what a sub returns, one reference.  "while" is called again and
# again, every few milliseconds, until all are there.

use strict;
use warnings;

use IO::Select;
use POSIX qw(_exit);
use Storable qw(freeze thaw);


sub run {
    my ($while, @subs) = @_;

    my @processes = map { start($_) } @subs;
    my %open = map { (fileno $_->{out} => $_) } @processes;

    while (%open) {
        my $select = IO::Select->new(map { $_->{out} } values %open);

        for my $out ($select->can_read(0.02)) {
            my $process = $open{fileno $out};
            my $n = sysread $out, $process->{text}, 65536,
                            length $process->{text};

            delete $open{fileno $out} if !$n;
        }

        $while->() if $while;
    }

    waitpid $_->{pid}, 0 for @processes;

    return map { result($_) } @processes;
}


sub start {
    my ($sub) = @_;

    pipe my $out, my $in or die "pipe: $!";

    my $pid = fork() // die "fork: $!";

    if ($pid == 0) {
        close $out;

        my $result = eval { $sub->() };

        print $in $result ? freeze([$result]) : freeze(["$@"]);
        close $in;
        _exit(0);
    }

    close $in;

    return { pid => $pid, out => $out, text => '' };
}


sub result {
    my ($process) = @_;

    my ($result) = @{thaw($process->{text}) || ['a process that was killed']};

    die $result if !ref $result;

    return $result;
}


1;
