package ScriptedRedis;

# A server in the place of Redis, which does what no Redis would: it replies to
# commands as a part says, which the test may change at any time.
#
#     my $scripted = ScriptedRedis->start(upstream => $redis, parts => {
#         garbage => sub { return "what?\r\n" },
#         cut => sub { my ($command, $reply) = @_;
#                      return substr($reply, 0, 9), ['close'] },
#         late => sub { return ['wait', 0.3], $_[1] },
#     });
#     $scripted->play('cut');
#     $scripted->seen;                 # ('EVALSHA', ...) since then
#
# A part is called with a command, [NAME, ARGUMENT...], with the bytes that the
# real Redis says to it if there is an upstream, and with the number of the
# connection; for a new one the command is ['CONNECT'].  It returns what is done
# on that connection: bytes to send, ['wait', SECONDS], ['hold'] until another
# part is played, ['close'], or ['reset'].  There are always the parts "honest",
# "silent", which never answers, "hold", which answers when the next part is
# played, and "refuse", which closes every connection at once.
#
# The real Redis hears nothing of commands on connections for which the sub of
# that part in "deaf" is true, given their number: deaf => { cut => sub { 1 } }.

use strict;
use warnings;

use parent 'Scripted';

use IO::Select;
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time);

use Ports qw(free_port);
use RedisClient;


sub start {
    my ($class, %option) = @_;

    my $self = bless {
        part => 'honest',
        host => '127.0.0.1',
        %option,
        parts => {
            honest => sub { return $_[1] },
            silent => sub { return },
            hold => sub { return ['hold'], $_[1] },
            refuse => sub { return ['close'] },
            %{$option{parts} || {}},
        },
        open => {},
        seen => [],
        commands => [],
    }, $class;

    $self->{listen} = IO::Socket::INET->new(Listen => 1024, ReuseAddr => 1,
                                            LocalAddr => $self->{host},
                                            LocalPort => $option{port}
                                                         || free_port())
        or die "listen: $!";
    $self->{port} = $self->{listen}->sockport;

    $self->launch;
    close delete $self->{listen};

    return $self;
}


sub play {
    my ($self, $part) = @_;

    $self->ask("play $part");
}


sub seen {
    my ($self) = @_;

    return split ' ', $self->ask('seen');
}


# how many scripts since then were about a key

sub asked {
    my ($self, $key) = @_;

    return $self->ask("asked $key");
}


# what is in the other process

sub told {
    my ($self, $line) = @_;

    return "@{$self->{seen}}" if $line eq 'seen';

    if (my ($key) = $line =~ /^asked (\S+)$/) {
        return scalar grep { /^EVAL.*\Q$key\E/is } @{$self->{commands}};
    }

    my ($part) = $line =~ /^play (\S+)$/ or die "what is \"$line\"?";

    die "there is no part \"$part\"" if !$self->{parts}{$part};

    $self->{part} = $part;
    $self->{seen} = [];
    $self->{commands} = [];

    for my $connection (values %{$self->{open}}) {
        delete $connection->{held};
        @{$connection->{todo}} = grep { !ref $_ || $_->[0] ne 'hold' }
                                 @{$connection->{todo}};
    }

    return 'yes';
}


sub serve {
    my ($self) = @_;

    while (1) {
        my @open = values %{$self->{open}};
        my $select = IO::Select->new($self->{control}, $self->{listen},
                                     map { $_->{socket} } @open);
        my ($next) = sort { $a <=> $b } map { $_->{until} || () } @open;

        for my $socket ($select->can_read($next ? max0($next - time) : undef)) {
            if ($socket == $self->{control}) {
                $self->obey;

            } elsif ($socket == $self->{listen}) {
                $self->accept;

            } else {
                $self->listen_to($self->{open}{fileno $socket});
            }
        }

        $self->act($_) for values %{$self->{open}};
    }
}


sub max0 { return $_[0] > 0 ? $_[0] : 0 }


sub accept {
    my ($self) = @_;

    my $socket = $self->{listen}->accept or return;
    my $connection = { socket => $socket, in => '', todo => [],
                       number => ++$self->{connections} };

    $socket->autoflush(1);
    $self->{open}{fileno $socket} = $connection;
    $self->command($connection, ['CONNECT'], '');
}


sub listen_to {
    my ($self, $connection) = @_;

    my $n = sysread $connection->{socket}, $connection->{in}, 65536,
                    length $connection->{in};

    return $self->drop($connection) if !$n;

    while (1) {
        my ($length, $command) = RedisClient::parse($connection->{in}, 0);

        last if !$length;

        substr $connection->{in}, 0, $length, '';

        my $reply = eval { $self->upstream($connection, $command) };

        return $self->drop($connection) if !defined $reply;

        $self->command($connection, $command, $reply);
    }
}


# if the real Redis is gone, so is the connection

sub upstream {
    my ($self, $connection, $command) = @_;

    my $deaf = $self->{deaf}{$self->{part}};

    return '' if !$self->{upstream} || ($deaf && $deaf->($connection->{number}));

    # one whose Redis was restarted meanwhile has an end to be read

    delete $connection->{client}
        if $connection->{client}
           && IO::Select->new($connection->{client}{socket})->can_read(0);

    my $client = $connection->{client} //= $self->{upstream}->client;

    $client->send($command);

    return $client->raw_reply;
}


sub command {
    my ($self, $connection, $command, $reply) = @_;

    push @{$self->{seen}}, uc $command->[0];
    push @{$self->{commands}}, "@$command";
    push @{$connection->{todo}},
         $self->{parts}{$self->{part}}->($command, $reply,
                                         $connection->{number});
}


# does what is due

sub act {
    my ($self, $connection) = @_;

    my $todo = $connection->{todo};

    return if $connection->{held};

    if ($connection->{until}) {
        return if time < $connection->{until};
        delete $connection->{until};
    }

    while (@$todo) {
        my $step = shift @$todo;

        if (!ref $step) {
            send_all($connection->{socket}, $step)
                or return $self->drop($connection);
            next;
        }

        my ($what, $seconds) = @$step;

        if ($what eq 'hold') {
            $connection->{held} = 1;
            return;
        }

        if ($what eq 'wait') {
            $connection->{until} = time + $seconds;
            return;
        }

        setsockopt($connection->{socket}, SOL_SOCKET, SO_LINGER,
                   pack 'ii', 1, 0)
            if $what eq 'reset';

        return $self->drop($connection);
    }
}


sub send_all {
    my ($socket, $bytes) = @_;

    while (length $bytes) {
        my $n = syswrite $socket, $bytes or return 0;

        substr $bytes, 0, $n, '';
    }

    return 1;
}


sub drop {
    my ($self, $connection) = @_;

    delete $self->{open}{fileno $connection->{socket}};
    close $connection->{socket};
}


1;
