#!/usr/bin/perl

# The Dockerfile of docs/operations.md, as far as there is no Docker: its
# commands are run in a root of the Debian release that the official image is
# based on, with Debian's nginx in place of nginx.org's, and its source in place
# of the one that is downloaded.  For "make matrix".

use strict;
use warnings;

use Test::More;

BAIL_OUT('this is no root of its own') if !-d '/out';

my $page = do {
    open my $file, '<', 'docs/operations.md' or die $!;
    local $/;
    <$file>;
};

my ($text) = $page =~ /^```dockerfile\n(.*?)^```$/ms;
my $from = 0;

ok(defined $text, 'there is a Dockerfile') or BAIL_OUT('none');

my ($version) = `nginx -v 2>&1` =~ m{nginx/(\S+)};

$ENV{NGINX_VERSION} = $version;

for (split /\n/, $text =~ s/\\\n\s*//gr) {
    next if !/\S/;

    if (/^FROM nginx:[\d.]+(?: AS build)?$/) {
        $from++;

    } elsif (/^RUN (.*)$/) {
        run($1);

    } elsif ($_ eq 'COPY . /module') {
        run('cp -a /src /module');

    } elsif (/^COPY --from=build (\S+) (\S+)$/) {
        run("install -d $2 && cp $1 $2");

    } else {
        fail("unknown: $_");
    }
}

is($from, 2, 'the last image has no compiler');
ok(scalar `nginx -T 2>&1` =~ /^load_module modules.ngx_http_ratelimit_module/m,
   'nginx loads it');

done_testing();


sub run {
    my ($command) = @_;

    my $download = 'curl -fsS https://nginx.org/download/';

    $command =~ s{^\Q$download\E(nginx-\S+)\.tar\.gz \| tar -xz -C /tmp$}
                 {.ci/nginx-source /tmp/$1};

    my $said = `($command) 2>&1 < /dev/null`;

    is($?, 0, $command) or diag($said);
}
