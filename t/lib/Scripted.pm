package Scripted;

# A server in a process of its own, which plays a part that the test can
# change at any time.  What inherits from it has "serve", the loop of that
# process, which calls "obey" when the test has said something, and "told",
# which is given that line and returns the answer.

use strict;
use warnings;

use IO::Handle;
use IO::Select;
use POSIX qw(_exit);
use Socket qw(AF_UNIX SOCK_STREAM PF_UNSPEC);

use constant PATIENCE => 60;    # seconds


sub launch {
    my ($self) = @_;

    socketpair my $ours, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC
        or die "socketpair: $!";
    $_->autoflush(1) for $ours, $theirs;

    $self->{owner} = $$;
    $self->{pid} = fork() // die "fork: $!";

    if ($self->{pid} == 0) {
        $SIG{$_} = 'DEFAULT' for qw(HUP INT TERM);
        $SIG{PIPE} = 'IGNORE';
        close $ours;
        $self->{control} = $theirs;

        eval { $self->serve; 1 } or print STDERR "# $@";
        _exit(0);
    }

    close $theirs;
    $self->{control} = $ours;

    return $self;
}


# the test's side: says something, and returns what the server says to it

sub ask {
    my ($self, $line) = @_;

    my $control = $self->{control};

    print $control "$line\n";

    IO::Select->new($control)->can_read(PATIENCE)
        or die 'a scripted server does not listen';

    my $answer = <$control> // die 'a scripted server has ended';
    chomp $answer;

    return $answer;
}


# the server's side; it ends with the test

sub obey {
    my ($self) = @_;

    my $control = $self->{control};
    my $line = <$control> // _exit(0);

    chomp $line;
    print $control $self->told($line), "\n";
}


sub stop {
    my ($self) = @_;

    my $pid = delete $self->{pid} or return;

    kill 'KILL', $pid;
    waitpid $pid, 0;
}


sub DESTROY {
    my ($self) = @_;

    return if ($self->{owner} // 0) != $$;

    local ($?, $@);

    $self->stop;
}


1;
