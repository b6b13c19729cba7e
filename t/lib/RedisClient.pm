package RedisClient;

# Speaks to a Redis as a test needs it, in RESP 2 and without any library.
#
#     my $client = RedisClient->new(port => 6379);   # or host, path
#     my $value = $client->call('GET', 'key');          # dies of an error
#     my @replies = $client->pipe(['GET', 'a'], ['GET', 'b']);
#
# A reply is a string or number, undef, or a reference to a list of replies; an
# error is an object that looks like its text.

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

use constant PATIENCE => 60;    # seconds


sub new {
    my ($class, %option) = @_;

    my $socket = $option{path}
        ? IO::Socket::UNIX->new(Peer => $option{path})
        : IO::Socket::INET->new(PeerAddr => $option{host} // '127.0.0.1',
                                PeerPort => $option{port});

    die "no connection to Redis: $!" if !$socket;

    setsockopt($socket, IPPROTO_TCP, TCP_NODELAY, 1) if !$option{path};

    return bless { patience => PATIENCE, %option, socket => $socket,
                   in => '' }, $class;
}


sub call {
    my ($self, @command) = @_;

    my ($reply) = $self->pipe([@command]);

    die "Redis to @command: $reply\n" if is_error($reply);

    return $reply;
}


sub pipe {
    my ($self, @commands) = @_;

    $self->send(@commands);

    return map { $self->reply } @commands;
}


# replies are taken later, or never

sub send {
    my ($self, @commands) = @_;

    my $text = join '', map { text(@$_) } @commands;

    local $SIG{PIPE} = 'IGNORE';

    while (length $text) {
        my $n = syswrite($self->{socket}, $text) // die "write to Redis: $!\n";

        substr $text, 0, $n, '';
    }
}


sub text {
    my (@words) = @_;

    return join '', '*' . @words . "\r\n",
                    map { '$' . length($_) . "\r\n$_\r\n" } @words;
}


sub reply {
    my ($self) = @_;

    my $text = $self->raw_reply;

    return (parse($text, 0))[1];
}


# the bytes of the next reply

sub raw_reply {
    my ($self) = @_;

    my $end = time + $self->{patience};

    while (1) {
        my ($length) = parse($self->{in}, 0);

        return substr $self->{in}, 0, $length, '' if $length;

        IO::Select->new($self->{socket})->can_read($end - time)
            or die "waited in vain for Redis\n";

        sysread($self->{socket}, $self->{in}, 65536, length $self->{in})
            or die "Redis closes the connection\n";
    }
}


# where the reply at a position ends, and what it is; nothing if it has no end

sub parse {
    my ($text, $from) = (\$_[0], $_[1]);

    my $end = index $$text, "\r\n", $from;

    return if $end < 0;

    my $type = substr $$text, $from, 1;
    my $value = substr $$text, $from + 1, $end - $from - 1;

    $end += 2;

    return ($end, $value) if $type eq '+' || $type eq ':';
    return ($end, bless \$value, 'RedisClient::Error') if $type eq '-';

    die "not a reply of Redis: $$text\n" if "$type$value" !~ /^[\$*]-?\d+$/;

    return ($end, undef) if $value == -1;

    if ($type eq '$') {
        return if length $$text < $end + $value + 2;
        return ($end + $value + 2, substr $$text, $end, $value);
    }

    my @list;

    for (1 .. $value) {
        ($end, my $element) = parse($$text, $end) or return;
        push @list, $element;
    }

    return ($end, \@list);
}


sub is_error { return ref $_[0] eq 'RedisClient::Error' }


package RedisClient::Error;

use overload '""' => sub { ${$_[0]} }, fallback => 1;


1;
