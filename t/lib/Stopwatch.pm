package Stopwatch;

# Seconds that do not pass while the machine keeps processes waiting, so that a
# bound means the module, on a busy machine, too.  Beside the test a process
# sleeps and computes a little by turns; all that it is late is left out.
#
#     my $watch = Stopwatch->start;
#     heal();
#     cmp_ok($watch->seconds, '<', 5, 'soon');

use strict;
use warnings;

use File::Temp ();
use POSIX qw(_exit);
use Time::HiRes qw(clock sleep time);

use constant NAP => 0.01;       # seconds
use constant WORK => 0.001;


sub start {
    my ($class) = @_;

    my $file = File::Temp->new;
    my $self = bless { owner => $$, begin => time }, $class;

    open $self->{file}, '<', $file->filename or die "$file: $!";
    put($file, 0, time);
    $self->{pid} = fork() // die "fork: $!";

    return $self if $self->{pid};

    wait_and_work($file, $self->{owner});
    _exit(0);
}


sub wait_and_work {
    my ($file, $parent) = @_;

    my $late = 0;

    while (getppid() == $parent) {
        my ($begin, $used) = (time, clock());

        put($file, $late, $begin);
        sleep NAP;
        1 while clock() - $used < WORK;
        $late += time - $begin - NAP - WORK;
    }
}


# how late it was, and when it has begun the round that is under way

sub put {
    my ($file, @numbers) = @_;

    sysseek $file, 0, 0;
    syswrite $file, pack('d2', @numbers);
}


sub seconds {
    my ($self) = @_;

    return time - $self->{begin} - $self->late;
}


# the seconds that were left out

sub late {
    my ($self) = @_;

    sysseek $self->{file}, 0, 0;
    sysread $self->{file}, my $numbers, 16;

    my ($late, $begin) = unpack 'd2', $numbers;
    my $round = time - $begin - NAP - WORK;

    return $round > 0 ? $late + $round : $late;
}


sub DESTROY {
    my ($self) = @_;

    return if $$ != $self->{owner} || !$self->{pid};

    local ($?, $!);

    kill 'KILL', $self->{pid};
    waitpid $self->{pid}, 0;
}


1;
