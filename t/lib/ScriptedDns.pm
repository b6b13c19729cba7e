package ScriptedDns;

# A name server on a loopback address that knows what the test tells it.
#
#     my $dns = ScriptedDns->start;      # "resolver 127.0.0.1:$dns->{port};"
#     $dns->tell('redis.test', '127.0.0.1');
#     $dns->tell('redis.test', '127.0.0.2');
#     $dns->tell('redis.test');           # there is no such name any more
#     $dns->silence;                      # no answers at all, until told
#     $dns->asked('redis.test');          # how often

use strict;
use warnings;

use parent 'Scripted';

use IO::Select;
use IO::Socket::INET;
use Socket qw(inet_aton);


sub start {
    my ($class) = @_;

    my $self = bless { names => {}, asked => {}, silent => 0 }, $class;

    $self->{socket} = IO::Socket::INET->new(Proto => 'udp',
                                            LocalAddr => '127.0.0.1')
        or die "no port for a name server: $!";
    $self->{port} = $self->{socket}->sockport;

    $self->launch;
    close delete $self->{socket};

    return $self;
}


sub tell {
    my ($self, $name, @addresses) = @_;

    $self->ask("tell $name @addresses");
}


sub silence {
    my ($self) = @_;

    $self->ask('silence');
}


sub asked {
    my ($self, $name) = @_;

    return $self->ask("asked $name");
}


# what is in the other process

sub told {
    my ($self, $line) = @_;

    my ($what, $name, @addresses) = split ' ', $line;

    return $self->{asked}{$name} || 0 if $what eq 'asked';

    $self->{silent} = $what eq 'silence';
    $self->{names}{$name} = \@addresses if defined $name;

    return 'yes';
}


sub serve {
    my ($self) = @_;

    my $select = IO::Select->new($self->{control}, $self->{socket});

    while (1) {
        for my $socket ($select->can_read) {
            if ($socket == $self->{control}) {
                $self->obey;

            } else {
                $self->answer;
            }
        }
    }
}


# One question: its name in labels, then its type and class.  Only addresses of
# IPv4 are known; another type of a known name has no answers.  They are valid
# for no time.

sub answer {
    my ($self) = @_;

    my $peer = recv($self->{socket}, my $query, 512, 0) // return;
    my ($id, undef, $count) = unpack 'n3', $query;

    return if length $query < 17 || $count != 1;

    my ($question) = substr($query, 12) =~ /\A((?:[^\0].*?)?\0.{4})/s;
    my $name = '';

    for (my $i = 0; my $n = ord substr $question, $i, 1; $i += 1 + $n) {
        $name .= '.' if $name ne '';
        $name .= lc substr $question, $i + 1, $n;
    }

    $self->{asked}{$name}++;

    return if $self->{silent};

    my $type = unpack 'n', substr $question, -4;
    my @all = @{$self->{names}{$name} || []};
    my @answers = $type == 1 ? @all : ();

    send $self->{socket},
         pack('n6', $id, @all ? 0x8180 : 0x8183, 1, scalar @answers, 0, 0)
         . $question
         . join('', map { pack 'nnnNn a4', 0xc00c, 1, 1, 0, 4, inet_aton($_) }
                    @answers),
         0, $peer;
}


1;
