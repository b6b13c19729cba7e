package Instructions;

# How many instructions nginx executes for a request, counted by callgrind in
# one process with one connection: the same on every run, but for a few.  Median
# of rounds, for a client that comes late makes nginx wait once more.
#
#     my %found = Instructions::measure(path => ['/a', '/b'], http => $config,
#                                       modules => [$path]);
#
# The configuration has to contain MARK.  nginx as Debian packs it has symbols
# only of what modules may call: an internal redirect is one of these, and
# happens there only.  Then callgrind writes what it has counted, and goes on
# from zero.

use strict;
use warnings;

use Load;
use Server;

use constant MARK => 'location = /mark { error_page 418 = /none; return 418; }';
use constant REQUESTS => 500;
use constant ROUNDS => 5;       # the first is not counted: some things are lazy


sub measure {
    my (%job) = @_;

    my $dir = File::Temp->newdir;
    my $file = "$dir/profile";
    my $nginx = Server->nginx(
        http => $job{http}, modules => $job{modules},
        under => ['valgrind', '--tool=callgrind', "--callgrind-out-file=$file",
                  '--dump-before=ngx_http_internal_redirect']);

    my $marks = 0;
    my %rounds;

    for my $path ((@{$job{path}}) x ROUNDS) {
        load($nginx, '/mark', 1);
        load($nginx, $path, REQUESTS);
        load($nginx, '/mark', 1);

        $marks += 2;
        push @{$rounds{$path}}, total("$file.$marks") / REQUESTS;
    }

    return map {
        my (undef, @counted) = @{$rounds{$_}};

        ($_ => Load::median(@counted));
    } keys %rounds;
}


sub load {
    my ($nginx, $path, $requests) = @_;

    Load::run(port => $nginx->{port}, path => $path, connections => 1,
              order => 'up', keys => REQUESTS, requests => $requests);
}


sub total {
    my ($file) = @_;

    my ($total) = Server::slurp($file) =~ /^(?:totals|summary): (\d+)/m;

    return $total // die "$file: no total\n";
}


1;
