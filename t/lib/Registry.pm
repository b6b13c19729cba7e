package Registry;

# The algorithms of src/core/ratelimit.h, in their order.

use strict;
use warnings;

use Exporter qw(import);

our @EXPORT_OK = qw(algorithms);


sub algorithms {
    my $path = 'src/core/ratelimit.h';

    open(my $fh, '<', $path) or die "$path: $!";
    local $/;

    return <$fh> =~ /^ +X\([A-Z_]+, ([a-z_]+)\)/mg;
}


1;
