#!/usr/bin/perl

# "make deb" makes a package of the module that lintian has nothing against, and
# Debian's nginx runs with what is in it: its module by its own file for
# modules-enabled, with TLS to Redis, and without a library that the package
# does not name.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;

use lib 't/lib';
use Clients;
use Configuration qw(write_file);
use Gateway;

my $root = getcwd();
my $name = 'libnginx-mod-http-ratelimit';
my $unpacked = tempdir(CLEANUP => 1);

# of the make that runs the tests
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CC CFLAGS LDFLAGS
               RATELIMIT_HIREDIS)};

$ENV{LC_ALL} = 'C';

my $text = `.ci/hiredis-source build/hiredis 2>&1 && make deb 2>&1 < /dev/null`;

is($?, 0, 'make deb') or diag($text);
ok(!-e 'debian', 'the sources have no packaging');

my ($deb) = glob "build/${name}_*.deb";

ok(defined $deb, 'there is a package') or BAIL_OUT('no package');

is(join('', grep { /^[EW]:/ } `lintian --tag-display-limit 0 $deb 2>&1`), '',
   'neither an error nor a warning of lintian');

my $depends = `dpkg-deb -f $deb Depends`;

like($depends, qr/\bnginx-abi-[\d.-]+/, 'for one version of nginx');
like($depends, qr/\blibyaml-0-2\b/, 'and with libraries');
unlike($depends, qr/hiredis/, 'but hiredis, which is a part of it');

is(system("dpkg-deb -x $deb $unpacked"), 0, 'unpacked');
chmod 0755, $unpacked;

my $doc = "$unpacked/usr/share/doc/$name";

ok(-s "$doc/$_", $_) for qw(README.Debian README.md docs/operations.md
                            docs/examples/quickstart.conf);
is(readlink "$doc/examples", 'docs/examples', 'examples');

my @links = Gateway::slurp("$doc/README.md") =~ /\]\(([^()#:]+)(?:#[^()]*)?\)/g;

is(join(' ', grep { !-e "$doc/$_" } @links), '',
   scalar(@links) . ' links of README.md lead somewhere');

my $conf = "$unpacked/usr/share/nginx/modules-available/mod-http-ratelimit.conf";

is(Gateway::slurp($conf),
   "load_module modules/ngx_http_ratelimit_module.so;\n", 'a line to load it');

subtest 'Debian\'s nginx runs it' => sub {
    local $ENV{RATELIMIT_MODULE} = "$unpacked/usr/lib/nginx/modules/"
                                   . 'ngx_http_ratelimit_module.so';
    local $ENV{TEST_NGINX_BINARY} = 'nginx';

    my $gateway = Gateway->start(http =>
        "ratelimit_redis main rediss://127.0.0.1:1;\n"
        . "ratelimit_zone k zone=z:1m rate=2r/h redis=main;\n"
        . Gateway->server('/' => 'ratelimit zone=z;'));

    is(join(' ', map { $_->{status} }
                 Clients->new($gateway->{port})->series((['GET /']) x 3)),
       '200 200 429', 'two of three');
    is($gateway->complaints, '', 'nothing to complain about');
};

# what is written before anything is built

subtest 'of a release, whose changes have a date' => sub {
    my $copy = tempdir(CLEANUP => 1);
    my $changes = Gateway::slurp('CHANGES');
    my ($version) = $changes =~ /^Changes with \S+ (\S+)/m;

    system('cp', '-a', qw(.ci config ngx_http_ratelimit_module.c src LICENSE
                          README.md docs), $copy);
    $changes =~ s/^(Changes with \S+ \S+ +).*/${1}18 Nov 2026/m;
    write_file("$copy/CHANGES", $changes);
    write_file("$copy/dpkg-buildpackage", "#!/bin/sh\nexit 1\n");
    chmod 0755, "$copy/dpkg-buildpackage";

    local $ENV{PATH} = "$copy:$ENV{PATH}";

    my $said = `$copy/.ci/deb $copy/out 2>&1`;

    isnt($?, 0, 'nothing is built');
    like(Gateway::slurp("$copy/out/deb/$name-$version/debian/changelog"),
         qr/\A\Q$name ($version)\E /, 'the version') or diag($said);
};

done_testing();
