#!/usr/bin/perl

# The module builds with gcc and clang, against Debian's nginx, against a
# source tree, and as a part of nginx, under nginx's own flags, which turn
# every warning into an error; and with hiredis of the system, the one that
# "make deps" builds for TLS, or none.  What is built once stays in build/.
# "make test" ends with a line that says what ran.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Path qw(make_path remove_tree);
use File::Temp qw(tempdir);
use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Gateway;        # Gateway.pm runs what was built here, not what is tested
use RedisServer;

my $root = getcwd();
my $build = "$root/build";
my $so = 'ngx_http_ratelimit_module.so';
my $tls = 'ratelimit_redis main rediss://127.0.0.1;';

# of the make that runs the tests
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CC CFLAGS LDFLAGS
               RATELIMIT_HIREDIS RATELIMIT_YAML)};

$ENV{PATH} .= ':/usr/sbin:/sbin';
$ENV{LC_ALL} = 'C';


my $copy = copy_tree();

subtest 'gcc' => sub {
    system_hiredis("$copy/build/$so",
                   compiler('gcc', "make -C $copy", "$copy/build"));
};
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

    replace("$copy/src/redis/lua/decide.lua", qr/\z/, "local changed = op\n");
    $text = builds($make, 'a changed script');

    like($text, qr/^built/m, 'is built');
    ok(slurp($module) =~ /^local changed = op$/m, 'and is in the module');

    replace("$copy/src/core/ratelimit_parse.c", qr/\z/,
            "static int ratelimit_unused;\n");

    ($rc, $text) = command($make);

    isnt($rc, 0, 'a warning stops the build');
    like($text, qr/ratelimit_unused.*Werror/, 'and says why');
};

subtest 'a source tree' => sub {
    my $source = source();

    my $variables = "BUILD=build/source NGINX_SRC=$source";

    builds("make $variables", 'dynamically');
    loads('nginx', "$build/source/$so");

    my $text = builds("make install $variables DESTDIR=$build/root",
                      'what is installed');

    unlike($text, qr/^built/m, 'is what was built');

    ok(!-e "$source/objs" && !-e "$source/Makefile", 'and leaves it alone');
};

subtest 'a part of nginx' => sub {
    source();
    hiredis_source();

    builds('make static NGINX_OPTIONS= CFLAGS=', 'statically');
    warnings_are_errors("$build/static");
    loads("$build/static/objs/nginx");

    like(refuses("$build/static/objs/nginx", '', $tls),
         qr/: rediss:\/\/ needs an nginx that was built with "--with-http_ssl/,
         'without TLS, where nginx has none');
};

subtest 'without hiredis' => sub {
    my $text = builds('make BUILD=build/without RATELIMIT_HIREDIS=no',
                      'without Redis');
    my $module = "$build/without/$so";

    like($text, qr/^configuring.*^ +without Redis$/ms, 'told so')
        if $text =~ /^configuring/m;

    is(join('', grep { /\bredis[A-Z]/ } `nm -D $module`), '',
       'nothing of hiredis is needed');

    my $error = refuses('nginx', $module,
                        'ratelimit_redis main redis://127.0.0.1;');

    like($error, qr/"ratelimit_redis" directive needs a module that was built/,
         'the directive says so');

    $error = refuses('nginx', $module,
                     'ratelimit_zone $arg_a zone=x:1m rate=1r/s redis=main;');

    like($error, qr/unknown redis "main" in "ratelimit_zone" directive/,
         'and there is no Redis for a zone');

    limits($module, '');
};

subtest 'without libyaml' => sub {
    my $text = builds('make BUILD=build/without RATELIMIT_YAML=no',
                      'without rule files');
    my $module = "$build/without/$so";

    like($text, qr/^configuring.*^ +without rule files$/ms, 'told so')
        if $text =~ /^configuring/m;

    is(join('', grep { /\byaml_/ } `nm -D $module`), '',
       'nothing of libyaml is needed');

    my $error = refuses('nginx', $module, 'ratelimit_rules a.yaml zone=x:1m;');

    like($error, qr/"ratelimit_rules" directive needs a module that was built with libyaml/,
         'the directive says so');

    $error = refuses('nginx', $module, 'server { location / { ratelimit rules=a '
                              . 'descriptor=k:v; } }');

    like($error, qr/unknown domain "a" in "ratelimit" directive/,
         'and there is no domain for a limit');

    limits($module, '');
};

subtest 'hiredis of make deps' => sub {
    my $own = "$copy/build/hiredis";

    # as without a network

    make_path("$copy/bin");
    spew("$copy/bin/apt-get", "#!/bin/sh\nexit 1\n");
    chmod(0755, "$copy/bin/apt-get");
    remove_tree($own);

    my ($rc, $text) = command("PATH=$copy/bin:\$PATH make -C $copy deps");

    is($rc, 0, 'if it can not be built') or diag($text);
    is($text =~ /cannot build hiredis, so there will be no TLS/,
       has_old_hiredis(), 'told so, if that of the system has no TLS');

    hiredis_source();
    like(slurp("$build/hiredis/include/hiredis/hiredis.h"),
         qr/^#define HIREDIS_MAJOR 1$/m, 'of version 1');
    is_deeply([glob("$build/hiredis/lib/*.so*")], [], 'static');

    command("cp -a $build/hiredis $own");
    ($rc, $text) = command("PATH=$copy/bin:\$PATH make -C $copy deps");
    is($rc, 0, 'there is nothing more to do') or diag($text);

    copy_tree();
    $text = builds("make -C $copy CC=gcc", 'with it');
    like($text, qr/^configuring/m, 'which is noticed');

    my $module = "$copy/build/$so";

    exports($module);
    is(join('', grep { /hiredis/ } `ldd $module`), '', 'it is a part of it');

    ($rc, $text) = try('nginx', $module, $tls);
    is($rc, 0, 'TLS') or diag($text);

    my $redis = RedisServer->start;

    limits($module, "redis://127.0.0.1:$redis->{port}");
    is(scalar(my @keys = $redis->keys), 1, 'counted in Redis');

    remove_tree($own, "$copy/bin");
};

subtest 'symbols' => sub {
    my $prefix = exports("$copy/build/$so");

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

    ($rc, $text) = command('make BUILD=build/none '
                           . 'RATELIMIT_HIREDIS=/nonexistent');

    isnt($rc, 0, 'nor without the hiredis that was asked for');
    like($text, qr{no hiredis in\s+/nonexistent: .*include/hiredis/async.h},
         'told so');

    # a compiler that knows neither hiredis nor libyaml

    spew("$build/none/cc", <<'END');
#!/bin/sh
case "$*" in *-lhiredis*|*-lyaml*) exit 1 ;; esac
exec gcc "$@"
END
    chmod(0755, "$build/none/cc");

    ($rc, $text) = command("make BUILD=build/none CC=$build/none/cc "
                           . "RATELIMIT_HIREDIS= $build/none/objs/Makefile");

    is($rc, 0, 'without any hiredis there is a module');
    like($text, qr/without Redis.* no hiredis.*install libhiredis-dev/s,
         'told what to install');
    like($text, qr/without rule files.* no libyaml.*install libyaml-dev/s,
         'for rule files, too');

    remove_tree("$build/none");
};

subtest 'the last line of make test' => sub {
    my $dir = tempdir(CLEANUP => 1);
    my %code = (good => 'sleep 2; ok(1) for 1 .. 3; done_testing()',
                bad => 'ok(0); done_testing()',
                fast => 'ok(1); done_testing()');

    spew("$dir/$_.t", "use Test::More; $code{$_};\n") for keys %code;

    my ($prove) = `make -n test TESTS=x` =~ /\b(perl .*prove.* )x$/m;
    my ($rc, $text) = command("cd $dir && perl -I$root/t/lib -S prove "
                              . '-PSummary good.t fast.t');

    like($prove, qr{^perl -It/lib -S prove -PSummary }, 'is of make test');
    is($rc, 0, 'all is well');
    like($text, qr/^PASS: 2 files, 4 tests, \d+ s; /m, 'what ran');

    my ($line) = $text =~ /; longest: (.*)\n\z/;
    my %took = $line =~ /(\w+\.t) (\d+) s/g;

    is(join(' ', sort keys %took), 'fast.t good.t', 'by its time');
    like($line, $took{'good.t'} < $took{'fast.t'} ? qr/^fast/ : qr/^good/,
         'the longest is the first');
    cmp_ok($took{'good.t'}, '>=', 1, 'in seconds');

    ($rc, $text) = command("cd $dir && perl -I$root/t/lib -S prove "
                           . '-PSummary good.t bad.t');

    isnt($rc, 0, 'something fails');
    like($text, qr/^FAIL: 2 files, 4 tests, .*\n\z/m, 'what ran');
};

subtest 'make help' => sub {
    my ($rc, $text) = command('make help');

    is($rc, 0, 'works');
    like($text, qr/^$_ +\S/m, "lists $_")
        for qw(all deps install uninstall deb run test suite matrix
               unit style hup valgrind asan static clean);
};

done_testing();


sub compiler {
    my ($cc, $make, $dir) = @_;

    my $text = builds("$make CC=$cc", $cc);

    warnings_are_errors($dir);
    loads('nginx', "$dir/$so");

    like(slurp("$dir/objs/Makefile"), qr/^CC =\s+$cc$/m,
         'was the compiler');

    return $text;
}


# the copy has none of its own; what has no TLS says so

sub system_hiredis {
    my ($module, $text) = @_;

    my $old = has_old_hiredis();

    like(join('', `ldd $module`), qr/libhiredis\.so/, 'hiredis of the system');

    my ($rc, $said) = try('nginx', $module, $tls);
    my ($line) = $text =~ m{^ +(rediss:// needs hiredis 1.0 .*make deps.*)}m;

    is($rc, $old ? 1 : 0, 'TLS, if it can');
    is(defined $line, $old, 'make says in a line what to do');
    like($said, qr/: \Q$line\E in /, 'and nginx says the same') if $old;
}


sub has_old_hiredis {
    return slurp('/usr/include/hiredis/hiredis.h')
           =~ /^#define HIREDIS_MAJOR 0$/m;
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

    my ($rc, $text) = try($nginx, $module,
                          "include $root/docs/examples/quickstart.conf;");

    is($rc, 0, 'nginx loads it') or diag($text);
}


# what nginx -t says of a directive

sub refuses {
    my ($nginx, $module, $directive) = @_;

    my ($rc, $text) = try($nginx, $module, $directive);

    is($rc, 1, "nginx refuses $directive");

    return $text;
}


sub try {
    my ($nginx, $module, $directives) = @_;

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
    $directives
}
END

    my @result = command("$nginx -t -p $dir -e stderr -c nginx.conf");

    remove_tree($dir);

    return @result;
}


# two of five, counted in a Redis if there is one

sub limits {
    my ($module, $url) = @_;

    local $ENV{RATELIMIT_MODULE} = $module;
    local $ENV{TEST_NGINX_BINARY} = 'nginx';

    my $redis = $url ? "ratelimit_redis main $url timeout=5s"
                       . ' connect_timeout=5s;' : '';
    my $zone = 'ratelimit_zone $http_x_key zone=x:1m rate=2r/h fail=closed'
               . ($url ? ' redis=main;' : ';');

    my $gateway = Gateway->start(http => "$redis\n$zone\n"
                                 . Gateway->server('/' =>
                                                   'ratelimit zone=x;'));
    my $tally = $gateway->load(requests => [(['/', 'a']) x 5]);

    is_deeply($tally->{keys}{a}, { sent => 5, 200 => 2, 429 => 3 },
              'two of five are admitted');
    is($gateway->complaints, '', 'nothing to complain about');
}


# returns what the names of all symbols begin with

sub exports {
    my ($module) = @_;

    my $prefix = qr/^(?:ngx_http_)?ratelimit(?:_|$)/;
    my @exported = map { (split)[-1] } `nm -D --defined-only $module`;

    ok((grep { $_ eq 'ngx_http_ratelimit_module' } @exported), 'are there');

    my @bad = grep { !/$prefix|^ngx_module(?:s|_names|_order)$/ } @exported;

    is("@bad", '', 'all that are exported have the prefix');

    return $prefix;
}


sub source {
    my $source = "$build/nginx-source";

    my ($rc, $text) = command(".ci/nginx-source $source");

    is($rc, 0, "nginx's source") or diag($text);

    return $source;
}


sub hiredis_source {
    my ($rc, $text) = command(".ci/hiredis-source $build/hiredis");

    is($rc, 0, 'the source of hiredis') or diag($text);
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
