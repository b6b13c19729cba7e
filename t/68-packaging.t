#!/usr/bin/perl

# What others build packages with: rpm reads the spec, make reads the file for
# the packages of nginx.org, both have the version of the module, and what they
# take from an archive of the sources is in it.

use strict;
use warnings;

use Test::More;

use constant SPEC => 'docs/packaging/nginx-mod-ratelimit.spec';
use constant MODULE => 'docs/packaging/Makefile.module-ratelimit';
use constant CHANGES => 'docs/packaging/nginx-module-ratelimit.xml';

$ENV{LC_ALL} = 'C';

# of the make that runs the tests
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES)};

my ($version) = slurp('src/api/ngx_http_ratelimit_api.h')
                =~ /VERSION  "([^"]+)"/;

subtest 'CHANGES' => sub {
    like(slurp('CHANGES'),
         qr/\A\nChanges with ngx_http_ratelimit_module \Q$version\E /,
         'begins with the version of the module');
};

subtest 'rpm' => sub {

    # of nginx-mod-devel, which is Fedora's

    my $macros = join ' ', map { "--define '$_'" }
                 'nginx_moddir /usr/lib64/nginx/modules',
                 'nginx_modconfdir /usr/share/nginx/modules',
                 'nginx_modconfigure ./configure',
                 'nginx_modbuild make modules', '_vpath_builddir build';
    my $text = `rpmspec -P $macros @{[SPEC]} 2>&1`;

    is($?, 0, 'reads the spec') or diag($text);
    like($text, qr/^Version: +\Q$version\E$/m, 'the version');
    my $section = qr/^%(?:description|prep|build|install|post|files|license
                     |doc|changelog)$/x;

    is(join(' ', grep { !/$section/ } $text =~ /%\{?\w+/g), '',
       'all macros are known');

    my ($script) = $text =~ /^%prep\n(.*?)^%post$/ms;

    is(system('bash', '-n', '-c', $script =~ s/^%\w+$//mgr), 0,
       'its commands are bash');

    my ($license) = $text =~ /^%license (.*)$/m;
    my ($doc) = $text =~ /^%doc (.*)$/m;

    ok(-e, "$_ is in the sources") for split ' ', "$license $doc";
};

subtest 'make' => sub {
    my $file = 'module-ratelimit: ; @echo '
               . join ' ', '$(MODULES)', map { "'\$(MODULE_${_}_ratelimit)'" }
                           qw(VERSION VERSION_PREFIX SOURCES CONFARGS);

    my $text = make("printf '%s\n' 'include @{[MODULE]}' \"\$RULE\"", $file);
    my $name = "ngx_http_ratelimit_module-$version";

    is($?, 0, 'reads the file') or diag($text);
    is($text, "ratelimit $version 1.31.3+ $name.tar.gz "
              . "--add-dynamic-module=/src/$name\n", 'what is told');

    $text = make("printf '%s\n' 'include @{[MODULE]}' \"\$RULE\"",
                 'module-ratelimit: ; @sh -c "$$MODULE_POST_ratelimit"');

    is($?, 0, 'the banner') or diag($text);
    like($text, qr{^    load_module modules/ngx_http_ratelimit_module\.so;$}m,
         'says how to load it');
};

# as the rules of pkg-oss read them

subtest 'changes of the package' => sub {
    my $text = slurp(CHANGES);
    my %of = $text =~ /\b(\w+)="([^"]*)"/g;

    is(system('python3', '-c', 'import sys, xml.dom.minidom as m; '
              . 'm.parse(sys.argv[1])', CHANGES), 0, 'well-formed');
    is("$of{apply} $of{ver} $of{rev}",
       "nginx-module-ratelimit $version 1", 'the package');
    like("$of{date} $of{time}", qr/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+]0000$/,
         'when');
    like(slurp(MODULE), qr{\bnginx-module-ratelimit\.xml\b}, 'is told of');
    ok(-s 'LICENSE', 'and so is the license');
};

done_testing();


sub make {
    my ($makefile, $rule) = @_;

    local $ENV{RULE} = $rule;

    return scalar `$makefile | make -s -f - MODSRC_PREFIX=/src/ \\
                   MODULE_TARGET_PREFIX=1.31.3+ module-ratelimit 2>&1`;
}


sub slurp {
    my ($path) = @_;

    open my $file, '<', $path or die "$path: $!";
    local $/;

    return scalar <$file>;
}
