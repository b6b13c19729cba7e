package Bytes;

# What a key takes of a zone, by filling it.  Ours is t/unit/table.c, where at
# most 1 of 10,000 keys may be displaced early; limit_req forgets the oldest
# ones when there is no room.

use strict;
use warnings;

use Load;
use Page;
use Server;

use constant ZONE => 16 * 1024 * 1024;
use constant KEYS => 200_000;   # more than there is room for
use constant WIDE => 65535;     # limits above need larger counters

# at most: 64 + 5 for each request of a log

my %BOUND = (
    fixed_window => 24,
    token_bucket => 24,
    leaky_bucket => 24,
    'sliding_window buckets=1' => 24,
    'sliding_window buckets=10' => 72,
    'sliding_window buckets=60' => 200,
    'sliding_log of 10' => 114,
    'sliding_log of 500' => 2564,
);


# rows of the table, from the lines that t/unit/table.c prints

sub rows {
    my (@lines) = @_;

    my $peer = sprintf '%.1f', limit_req();
    my @rows;

    for my $line (@lines) {
        my ($not, $text) = $line =~ /^(not )?ok \d+ - (.* displaced early)$/
            or next;

        my ($name, $buckets, $limit, $keys, undef, $bytes, $early)
            = $text =~ /^\w+|\d+(?:\.\d+)?/g;

        my $what = $name eq 'sliding_window' ? "$name buckets=$buckets"
                 : $name eq 'sliding_log' ? "$name of $limit" : $name;

        next if $limit > WIDE;

        push @rows, ["$what, bytes per key (" . Page::commas($keys)
                     . " keys, $early displaced early)", $bytes, $peer,
                     $not ? 9**9 : $bytes, $BOUND{$what}, 'most'];
    }

    die "no bytes\n" if !@rows;

    return @rows;
}


# A key that is still there is refused.  The newest is asked for first: the
# first one that is gone displaces one that has been counted.

sub limit_req {
    my $zone = ZONE;
    my $nginx = Server->nginx(http => <<"END");
    limit_req_zone \$http_x_k zone=keys:$zone rate=1r/m;

    server {
        listen 127.0.0.1:PORT;
        location = /limit_req { limit_req zone=keys; empty_gif; }
    }
END

    my %job = (port => $nginx->{port}, path => '/limit_req', keys => KEYS,
               requests => KEYS, connections => 1, depth => 32);

    Load::run(%job, order => 'up');

    my ($line) = Load::run(%job, order => 'down');
    my $held = (split /\t/, $line)[2];

    die "limit_req displaces nothing\n" if $held == 0 || $held == KEYS;

    return ZONE / $held;
}


1;
