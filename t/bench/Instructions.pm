package Instructions;

# How many instructions nginx executes for a request, counted by callgrind in
# one process with one connection: the same on every run, but for a few.
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
use constant REQUESTS => 1000;
use constant WARM => 1000;      # requests, so that what is lazy has happened


sub measure {
    my (%job) = @_;

    my $dir = File::Temp->newdir;
    my $file = "$dir/profile";
    my $nginx = Server->nginx(
        http => $job{http}, modules => $job{modules},
        under => ['valgrind', '--tool=callgrind', "--callgrind-out-file=$file",
                  '--dump-before=ngx_http_internal_redirect']);

    my $marks = 0;
    my %found;

    for my $path (@{$job{path}}) {
        load($nginx, $path, WARM);
        load($nginx, '/mark', 1);
        load($nginx, $path, REQUESTS);
        load($nginx, '/mark', 1);

        $marks += 2;
        $found{$path} = total("$file.$marks") / REQUESTS;
    }

    return %found;
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
