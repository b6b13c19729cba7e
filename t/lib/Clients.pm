package Clients;

# Clients of a Gateway, and the backend behind it, in one process: requests of
# any method with any fields, one after another or all at once, clients that
# leave, and a backend that answers when the test says so.
#
#     my $clients = Clients->new($gateway->{port});
#     my $answer = $clients->ask('GET /', 'X-User: a');
#     my @answers = $clients->series((['GET /', 'X-User: a']) x 900);
#     my @all = map { $clients->send('GET /') } 1 .. 100;
#     Clients::await_answers(97, @all);
#
# An answer has status, field (by the name in lower case), body, and at, the
# time when it was there.

use strict;
use warnings;

use Errno qw(EAGAIN EINTR);
use IO::Select;
use IO::Socket::INET;
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

use constant PATIENCE => 60;    # seconds for anything that must happen
use constant DEPTH => 50;       # requests under way on a connection


sub new {
    my ($class, $port, $host) = (@_, 'localhost');

    return bless { port => $port, host => $host }, $class;
}


sub ask {
    my ($self, @request) = @_;

    my $client = $self->send(@request);

    await_answers(1, $client);

    return $client->{answers}[0];
}


# on one connection, each as soon as nginx is done with those before it

sub series {
    my ($self, @requests) = @_;

    my @answers;

    while (@requests) {
        my @some = splice @requests, 0, DEPTH;
        my $client = $self->connect;

        $client->{expected} = @some;
        put($client, join '', map { $self->text(@$_) } @some);
        await_answers(1, $client);

        push @answers, @{$client->{answers}};
    }

    return @answers;
}


# a client that has sent its request

sub send {
    my ($self, @request) = @_;

    my $client = $self->connect;

    put($client, $self->text(@request));

    return $client;
}


sub leave {
    my ($client) = @_;

    close delete $client->{socket};
}


sub connect {
    my ($self) = @_;

    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
                                       PeerPort => $self->{port})
        or die "connect: $!";

    setsockopt($socket, IPPROTO_TCP, TCP_NODELAY, 1);

    return { socket => $socket, in => '', expected => 1, answers => [] };
}


sub text {
    my ($self, $line, @fields) = @_;

    return join("\r\n", "$line HTTP/1.1", "Host: $self->{host}", @fields)
           . "\r\n\r\n";
}


sub put {
    my ($client, $text) = @_;

    local $SIG{PIPE} = 'IGNORE';

    my $n = syswrite $client->{socket}, $text;

    die 'short write' if !defined $n || $n != length $text;
}


# until so many of these clients have all of their answers

sub await_answers {
    my ($n, @clients) = @_;

    my $end = time + PATIENCE;

    while (1) {
        my $done = grep { done($_) } @clients;

        return $done if $done >= $n;
        die "waited in vain for $n answers, there are $done" if time > $end;

        my %by = map { (fileno $_->{socket} => $_) }
                 grep { !done($_) } @clients;
        my $select = IO::Select->new(map { $_->{socket} } values %by);

        get($by{fileno $_}) for $select->can_read(0.1);
    }
}


sub done {
    my ($client) = @_;

    return @{$client->{answers}} >= $client->{expected};
}


sub get {
    my ($client) = @_;

    my $n = sysread $client->{socket}, $client->{in}, 65536,
                    length $client->{in};

    return if !defined $n && ($!{EAGAIN} || $!{EINTR});

    parse($client);

    die "a connection ends without its answer: $client->{in}"
        if !$n && !done($client);
}


sub parse {
    my ($client) = @_;

    while ($client->{in} =~ /\A(HTTP\/1\.1 (\d+) .*?\r\n\r\n)/s) {
        my ($head, $status) = ($1, $2);
        my %field = map { (lc $_->[0] => $_->[1]) }
                    map { [/^([^:]+): (.*?)\r$/] } grep { /^[^:]+: / }
                    split /\n/, $head;
        my $size = length($head) + ($field{'content-length'} || 0);

        last if length $client->{in} < $size;

        my $text = substr $client->{in}, 0, $size, '';

        push @{$client->{answers}}, {
            status => $status,
            field => \%field,
            body => substr($text, length $head),
            at => time,
        };
    }
}


# how many answers there are of each status

sub tally {
    my (@answers) = @_;

    my %tally;
    $tally{$_->{status}}++ for @answers;

    return \%tally;
}


# a backend is a listening socket; an errand is a request that has come to it

sub backend {
    return IO::Socket::INET->new(Listen => 1024, LocalAddr => '127.0.0.1')
           || die "listen: $!";
}


sub errand {
    my ($backend) = @_;

    IO::Select->new($backend)->can_read(PATIENCE)
        or die 'waited in vain for a request to the backend';

    my $socket = $backend->accept or die "accept: $!";
    my $text = '';

    until ($text =~ /\r\n\r\n/) {
        sysread $socket, $text, 65536, length $text
            or die "no request: $!";
    }

    return { socket => $socket, text => $text };
}


# whether there is no further request

sub quiet {
    my ($backend) = @_;

    return !IO::Select->new($backend)->can_read(0);
}


sub reply {
    my ($errand, $status, @fields) = @_;

    put($errand, join("\r\n", "HTTP/1.1 $status Status", 'Content-Length: 0',
                      'Connection: close', @fields) . "\r\n\r\n");
    close $errand->{socket};
}


1;
