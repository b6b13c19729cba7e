package GatewayClient;

# Many connections to one server, in one process: each has "depth" requests
# under way until all requests are sent.  None is sent twice: one whose
# connection ends without an answer to it is unanswered.
#
#     requests     [[PATH, KEY], ...], or what returns one of these pairs,
#                  or nothing when there are no more
#     connections  how many (32)
#     depth        requests under way on each of them (1)
#     tick         called again and again with the number of answers so far,
#                  each time when requests have been sent
#
# The tally has, for each key: sent, unanswered, and the number of answers of
# each status; beside them "workers", the number of answers of each, and
# "slowest", the seconds that an answer took.

use strict;
use warnings;

use Errno qw(EAGAIN ECONNRESET EINPROGRESS EPIPE EINTR);
use IO::Poll qw(POLLIN POLLOUT POLLHUP POLLERR);
use IO::Socket::INET;
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

use constant IDLE => 60;    # seconds without any answer are a hang


sub new {
    my ($class, %option) = @_;

    if (ref $option{requests} eq 'ARRAY') {
        my $list = $option{requests};
        my $next = 0;

        $option{requests} = sub { return $list->[$next++] };
    }

    my $self = bless {
        connections => 32,
        depth => 1,
        tick => sub { },
        idle => IDLE,
        %option,
        answers => 0,
        tally => {},
        workers => {},
        open => {},
        poll => IO::Poll->new,
    }, $class;

    $self->advance;

    return $self;
}


# the request that is to be sent next

sub advance {
    my ($self) = @_;

    $self->{next} = $self->{requests}->();
}


sub run {
    my ($self) = @_;

    local $SIG{PIPE} = 'IGNORE';

    my $last = time;
    my $seen = 0;

    while ($self->fill) {
        $self->{tick}->($self->{answers});

        my $n = $self->{poll}->poll(0.02);

        if ($n > 0) {
            $self->serve($_) for $self->{poll}->handles(POLLIN | POLLHUP
                                                        | POLLERR);
        }

        if ($self->{answers} != $seen) {
            $seen = $self->{answers};
            $last = time;
        }

        if (time - $last > $self->{idle}) {
            $self->{hang} = 1;
            last;
        }
    }

    $self->drop($_) for map { $_->{socket} } values %{$self->{open}};

    return {
        keys => $self->{tally},
        workers => $self->{workers},
        answers => $self->{answers},
        hang => $self->{hang} || 0,
        slowest => $self->{slowest} || 0,
    };
}


# opens connections and sends what is to be sent; false when all is done

sub fill {
    my ($self) = @_;

    while ($self->{next} && keys %{$self->{open}} < $self->{connections}) {
        $self->open_one;
    }

    my $busy = 0;

    for my $connection (values %{$self->{open}}) {
        $self->send_some($connection);
        $busy ||= @{$connection->{pending}};
    }

    return $busy || $self->{next};
}


sub open_one {
    my ($self) = @_;

    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
                                       PeerPort => $self->{port})
        or die "connect: $!";

    $socket->blocking(0);
    setsockopt($socket, IPPROTO_TCP, TCP_NODELAY, 1);

    $self->{open}{fileno $socket} = {
        socket => $socket, pending => [], in => '',
    };

    $self->{poll}->mask($socket => POLLIN);
}


# a few small requests always fit into the socket's buffer

sub send_some {
    my ($self, $connection) = @_;

    my $pending = $connection->{pending};

    return if @$pending > $self->{depth} / 2;

    my $text = '';

    while ($self->{next} && @$pending < $self->{depth}) {
        my ($path, $key) = @{$self->{next}};

        $self->advance;
        $self->{tally}{$key}{sent}++;

        push @$pending, [$key, time];
        $text .= "GET $path HTTP/1.1\r\nHost: a\r\nX-Key: $key\r\n\r\n";
    }

    return if $text eq '';

    my $n = syswrite $connection->{socket}, $text;

    die "short write" if defined $n && $n != length $text;

    # if it is closed already, reading will tell
}


sub serve {
    my ($self, $socket) = @_;

    my $connection = $self->{open}{fileno $socket};
    my $n = sysread $socket, $connection->{in}, 65536,
                    length $connection->{in};

    return if !defined $n && ($!{EAGAIN} || $!{EINTR});

    my $more = $self->parse($connection);

    $self->drop($socket) if !$n || !$more;
}


# returns 0 if the server wants to close the connection

sub parse {
    my ($self, $connection) = @_;

    my $in = \$connection->{in};
    my $more = 1;

    while ($$in =~ /\A(HTTP\/1\.1 (\d+) .*?\r\n\r\n)/s) {
        my ($head, $status) = ($1, $2);
        my ($length) = $head =~ /^Content-Length: (\d+)/mi;
        my $size = length($head) + ($length || 0);

        last if length $$in < $size;

        substr($$in, 0, $size, '');

        my ($key, $sent) = @{shift @{$connection->{pending}}
                             // die "an answer to nothing: $head"};
        my $took = time - $sent;

        $self->{slowest} = $took if $took > ($self->{slowest} || 0);
        $self->{answers}++;
        $self->{tally}{$key}{$status}++;
        $self->{workers}{$1}++ if $head =~ /^X-Worker: (\d+)/m;

        $more = 0 if $head =~ /^Connection: close/mi;
    }

    return $more;
}


sub drop {
    my ($self, $socket) = @_;

    my $connection = delete $self->{open}{fileno $socket};

    $self->{tally}{$_->[0]}{unanswered}++ for @{$connection->{pending}};
    $self->{poll}->remove($socket);

    close $socket;
}


# what several runs got, by key and status

sub add_up {
    my (@tallies) = @_;

    my %sum;

    for my $tally (@tallies) {
        for my $key (keys %{$tally->{keys}}) {
            $sum{$key}{$_} += $tally->{keys}{$key}{$_}
                for keys %{$tally->{keys}{$key}};
        }
    }

    return \%sum;
}


1;
