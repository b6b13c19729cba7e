#!/usr/bin/perl

# The module builds with gcc and clang, against Debian's nginx, against a
# source tree, and as a part of nginx, under nginx's own flags, which turn
# every warning into an error.  What is built once stays in build/.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Path qw(make_path remove_tree);
use Test::More;
use Time::HiRes qw(time);

my $root = getcwd();
my $build = "$root/build";
my $so = 'ngx_http_ratelimit_module.so';

# of the make that runs the tests
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CC CFLAGS LDFLAGS)};

$ENV{PATH} .= ':/usr/sbin:/sbin';
$ENV{LC_ALL} = 'C';


my $copy = copy_tree();

subtest 'gcc' => sub { compiler('gcc', "make -C $copy", "$copy/build") };
subtest 'clang' => sub { compiler('clang', 'make BUILD=build/clang',
                                  "$build/clang") };

subtest 'only what changed is built' => sub {
    my $make = "make -C $copy CC=gcc";
    my $module = "$copy/build/$so";
    my $before = (stat $module)[9];

    my ($rc, $text) = command($make);

    is($rc, 0, 'a second make');
    unlike($text, qr/built|configuring/, 'says that nothing was built');
    is((stat $module)[9], $before, 'and leaves the module alone');

    replace("$copy/src/core/ratelimit_parse.c", qr/\z/, "\n");

    my $start = time;

    $text = builds($make, 'a changed source');

    like($text, qr/^built/m, 'is built');
    unlike($text, qr/^configuring/m, 'and nothing is configured again');
    cmp_ok(time - $start, '<', 20, 'in seconds');

    replace("$copy/src/core/ratelimit_parse.c", qr/\z/,
            "static int ratelimit_unused;\n");

    ($rc, $text) = command($make);

    isnt($rc, 0, 'a warning stops the build');
    like($text, qr/ratelimit_unused.*Werror/, 'and says why');
};

subtest 'a source tree' => sub {
    my $source = source();

    builds("make BUILD=build/source NGINX_SRC=$source", 'dynamically');
    loads('nginx', "$build/source/$so");

    ok(!-e "$source/objs" && !-e "$source/Makefile", 'and leaves it alone');
};

subtest 'a part of nginx' => sub {
    source();

    builds('make static NGINX_OPTIONS= CFLAGS=', 'statically');
    warnings_are_errors("$build/static");
    loads("$build/static/objs/nginx");
};

subtest 'symbols' => sub {
    my $prefix = qr/^(?:ngx_http_)?ratelimit(?:_|$)/;
    my @exported = map { (split)[-1] }
                   `nm -D --defined-only $copy/build/$so`;

    ok((grep { $_ eq 'ngx_http_ratelimit_module' } @exported), 'are there');

    my @bad = grep { !/$prefix|^ngx_module(?:s|_names|_order)$/ } @exported;

    is("@bad", '', 'all that are exported have the prefix');

    my @functions = map { /^\S+ [tT] ([a-z]\w*)/ ? $1 : () }
                    `nm $copy/build/objs/addon/*/*.o`;

    cmp_ok(scalar @functions, '>', 50, 'there are functions');
    is(join(' ', grep { !/$prefix/ } @functions), '',
       'all have the prefix, static ones too');
};

subtest 'what is missing is named' => sub {
    my ($rc, $text) = command('make BUILD=build/none NGINX_SRC=/nonexistent');

    isnt($rc, 0, 'without a source of nginx there is no module');
    like($text, qr{no source of nginx in /nonexistent.*make deps}, 'told so');

    ($rc, $text) = command('make BUILD=build/none CC=nonexistent-cc');

    isnt($rc, 0, 'nor without a compiler');
    like($text, qr/"nonexistent-cc" is missing.*make deps/, 'told so');

    ($rc, $text) = command(q{sh -c 'ngx_ptr_size=4; . ./config'});

    isnt($rc, 0, 'nor on a platform of 32 bits');
    like($text, qr/requires a 64-bit platform/, 'told so');

    remove_tree("$build/none");
};

subtest 'make help' => sub {
    my ($rc, $text) = command('make help');

    is($rc, 0, 'works');
    like($text, qr/^$_ +\S/m, "lists $_")
        for qw(all deps run test unit style hup valgrind asan static clean);
};

done_testing();


sub compiler {
    my ($cc, $make, $dir) = @_;

    builds("$make CC=$cc", $cc);
    warnings_are_errors($dir);
    loads('nginx', "$dir/$so");

    like(slurp("$dir/objs/Makefile"), qr/^CC =\s+$cc$/m,
         'was the compiler');
}


sub builds {
    my ($command, $name) = @_;

    my ($rc, $text) = command($command);

    is($rc, 0, "$name: $command") or diag($text);
    unlike($text, qr/warning:/, 'without a warning');

    return $text;
}


sub warnings_are_errors {
    my ($dir) = @_;

    like(slurp("$dir/objs/Makefile"), qr/^CFLAGS = .*-Wall .*-Werror\b/m,
         "nginx's own flags");
}


# nginx knows the directives, with the module or by itself

sub loads {
    my ($nginx, $module) = @_;

    my $dir = "$build/load";
    my $load = $module ? "load_module $module;" : '';
    my $paths = join ' ', map { "${_}_temp_path $_;" }
                          qw(client_body proxy fastcgi uwsgi scgi);

    make_path($dir);
    spew("$dir/nginx.conf", <<"END");
$load
pid nginx.pid;
events { }
http {
    access_log off;
    $paths
    include $root/docs/examples/quickstart.conf;
}
END

    my ($rc, $text) = command("$nginx -t -p $dir -e stderr -c nginx.conf");

    is($rc, 0, 'nginx loads it') or diag($text);

    remove_tree($dir);
}


sub source {
    my $source = "$build/nginx-source";

    my ($rc, $text) = command(".ci/nginx-source $source");

    is($rc, 0, "nginx's source") or diag($text);

    return $source;
}


# times are kept, so that only what changed since the last copy is built

sub copy_tree {
    my $copy = "$build/copy";

    make_path($copy);
    remove_tree("$copy/src");

    my ($rc, $text) = command('cp -a .ci config* Makefile src '
                              . "ngx_http_ratelimit_module.c $copy/");

    is($rc, 0, 'copied') or diag($text);

    return $copy;
}


sub replace {
    my ($path, $re, $new) = @_;

    my $text = slurp($path);

    $text =~ s/$re/$new/;
    spew($path, $text);
}


sub command {
    my ($command) = @_;

    my $text = `($command) 2>&1 < /dev/null`;

    return ($? >> 8 || $?, $text);
}


sub spew {
    my ($path, $text) = @_;

    open(my $fh, '>', $path) or die "$path: $!";
    print $fh $text;
    close($fh) or die "$path: $!";
}


sub slurp {
    my ($path) = @_;

    open(my $fh, '<', $path) or return '';
    local $/;

    return scalar(<$fh>) // '';
}
