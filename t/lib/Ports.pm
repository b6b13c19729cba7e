package Ports;

# A port for a server of a test.

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;

our @EXPORT_OK = qw(free_port);

my @taken;    # sockets of UDP


# Below those that the kernel gives to clients: a server that is started again
# finds its port free.  As long as this process lives, no other test is given
# the port, though no server may have it yet, or at the moment: for that the
# same port of UDP is taken.

sub free_port {
    for (1 .. 100) {
        my $port = 10_000 + int rand 20_000;
        my $taken = IO::Socket::INET->new(Proto => 'udp', LocalPort => $port)
            or next;

        if (IO::Socket::INET->new(Listen => 1, ReuseAddr => 1,
                                  LocalPort => $port))
        {
            push @taken, $taken;
            return $port;
        }
    }

    die "no free port: $!";
}


1;
