#!/usr/bin/perl

# The tests that drive nginx by Test::Nginx, those of exact counts, kills and
# reloads, and one of each other part, on the nginx of the next Debian release:
# it is built from its source together with the module, by a line of
# docs/operations.md.  The rest of the suite would double the time of "make
# test": "make matrix" runs it there, too, as bare-13.

use strict;
use warnings;

use Cwd qw(getcwd);
use Test::More;

use lib 't/lib';
use Programs qw(command relay);

use constant RELEASE => 'trixie';
use constant VERSION => qr{nginx/1\.26\.};

my $root = getcwd();
my $source = "$root/build/nginx-" . RELEASE;
my $build = "$root/build/" . RELEASE;
my $module = "$build/ngx_http_ratelimit_module.so";
my $nginx = "$build/objs/nginx";

# of the make that runs the tests
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CC CFLAGS LDFLAGS
               RATELIMIT_HIREDIS HARNESS_OPTIONS)};

# the makefile looks for this name to find them, and this one is none of them
my $library = join '::', qw(Test Nginx Socket);
my @suite = grep { slurp($_) =~ /^use \Q$library\E/m } sort(glob('t/*.t'));

BAIL_OUT('there is no test of nginx') if !@suite;
BAIL_OUT('there is no source of nginx')
    if !command(".ci/nginx-source $source " . RELEASE);
BAIL_OUT('it does not build')
    if !command("make BUILD=$build NGINX_SRC=$source all binary");

like(`$nginx -v 2>&1`, VERSION, 'is newer');

$ENV{TEST_NGINX_BINARY} = $nginx;
$ENV{TEST_NGINX_LOAD_MODULES} = $module;
$ENV{RATELIMIT_MODULE} = $module;

for my $test (@suite) {
    subtest $test => sub { relay({}, 'perl', $test) };
}

# what else is used of nginx: its configuration, filters, trailers, its event
# loop, its TLS, its shared memory over kills and reloads, its resolver

ok(command('prove -j2', map { "t/$_.t" } @$_), "@$_")
    for [qw(10-api 26-rules-bad-input 32-service-grpc)],
        [qw(22-reload 20-exact 21-kill)],
        [qw(54-count 62-grpc 67-settle)],
        [qw(72-redis 90-redis-tls 92-redis-cluster)];

done_testing();


sub slurp {
    my ($path) = @_;

    open(my $fh, '<', $path) or die "$path: $!";
    local $/;

    return scalar <$fh>;
}
