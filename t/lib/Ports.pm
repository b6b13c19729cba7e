package Ports;

# A port for a server of a test.

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;

our @EXPORT_OK = qw(free_port);


# below those that the kernel gives to clients: a server that is started again
# finds its port free

sub free_port {
    for (1 .. 100) {
        my $port = 10_000 + int rand 20_000;

        return $port if IO::Socket::INET->new(Listen => 1, ReuseAddr => 1,
                                              LocalPort => $port);
    }

    die "no free port: $!";
}


1;
