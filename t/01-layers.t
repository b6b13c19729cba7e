#!/usr/bin/perl

# Includes go one way: the module includes http, http the store's interface,
# all of them the core, and the core nothing but C.  And the file "config",
# which nginx builds the module by, names every source there is.

use strict;
use warnings;

use Test::More;

my @sources = ('ngx_http_ratelimit_module.c', glob('src/*/*.[ch]'));

BAIL_OUT('run me from the root of the repository') if !-f 'config';

# what a file of a layer may include

my $c99 = qr/^<(?:assert|ctype|errno|inttypes|limits|stdarg|stdbool|stddef
                 |stdint|stdio|stdlib|string|time)\.h>$/x;
my $nginx = qr/^<(?:ngx_\w+|nginx)\.h>$/;
my $system = qr/^<(?:sys\/)?[a-z]+\.h>$/;

my @layers = (
    [qr{^src/core/}                         => $c99, qr{^"core/}],
    [qr{^src/store/ratelimit_}              => $system, qr{^"core/},
                                               qr{^"store/ratelimit_}],
    [qr{^src/store/ngx_http_ratelimit_}     => $system, $nginx, qr{^"core/},
                                               qr{^"store/}],
    [qr{^src/http/\w+_redis_url\.[ch]$}      => $nginx, qr{^"http/},
                                  qr{^"store/ngx_http_ratelimit_redis\.h"$},
                                  qr{^"store/ratelimit_url\.h"$}],
    [qr{^src/http/}                         => $nginx, qr{^"core/}, qr{^"http/},
                                  qr{^"store/ngx_http_ratelimit_store\.h"$}],
    [qr{^ngx_http_ratelimit_module\.c$}     => $nginx, qr{^"http/},
                                  qr{^"store/ngx_http_ratelimit_store\.h"$}],
);

# of headers that belong to one file
my %only_in = (
    '<pthread.h>' => 'src/store/ratelimit_lock.c',
    '<hiredis/async.h>' => 'src/store/ngx_http_ratelimit_redis_conn.h',
    '<hiredis/hiredis.h>' => 'src/store/ngx_http_ratelimit_redis_conn.h',
);


subtest 'the checks can fail' => sub {
    my $store = '"store/ngx_http_ratelimit_store.h"';

    my @forbidden = (
        ['src/core/ratelimit_x.c', '<ngx_core.h>'],
        ['src/core/ratelimit_x.c', '<sys/mman.h>'],
        ['src/core/ratelimit_x.c', '"store/ratelimit_table.h"'],
        ['src/core/ratelimit_x.c', '"ratelimit.h"'],
        ['src/store/ratelimit_x.c', '<ngx_core.h>'],
        ['src/store/ratelimit_x.c', $store],
        ['src/store/ratelimit_table.c', '<pthread.h>'],
        ['src/store/ngx_http_ratelimit_x.c', '"http/ngx_http_ratelimit.h"'],
        ['src/http/ngx_http_ratelimit_x.c', '"store/ratelimit_table.h"'],
        ['src/http/ngx_http_ratelimit_x.c',
         '"store/ngx_http_ratelimit_redis.h"'],
        ['src/http/ngx_http_ratelimit_x.c', '<hiredis/hiredis.h>'],
        ['src/store/ngx_http_ratelimit_redis.c', '<hiredis/async.h>'],
        ['ngx_http_ratelimit_module.c', '"store/ratelimit_table.h"'],
        ['src/other/ratelimit_x.c', '<stdint.h>'],
    );

    my @allowed = (
        ['src/core/ratelimit_x.c', '<stdint.h>'],
        ['src/core/ratelimit_x.c', '"core/ratelimit.h"'],
        ['src/store/ratelimit_lock.c', '<pthread.h>'],
        ['src/store/ngx_http_ratelimit_x.c', '<ngx_core.h>'],
        ['src/store/ngx_http_ratelimit_redis_conn.h', '<hiredis/async.h>'],
        ['src/http/ngx_http_ratelimit_x.c', $store],
        ['ngx_http_ratelimit_module.c', $store],
    );

    ok(!allowed(@$_), "@$_ is refused") for @forbidden;
    ok(allowed(@$_), "@$_ is fine") for @allowed;

    my $list = '    $ngx_addon_dir/src/core/a.c \\' . "\n";

    is_deeply([listed($list x 2)], [('src/core/a.c') x 2], 'a list is read');
    is_deeply([lists(qq(RATELIMIT_X_SRCS=" \\\n$list    "\n))],
              [['RATELIMIT_X_SRCS', $list]], 'by its name');
};


subtest 'includes' => sub {
    for my $source (@sources) {
        my @bad = grep { !allowed($source, $_) } includes(slurp($source));

        ok(!@bad, $source) or diag(map { "$source includes $_\n" } @bad);
    }
};


# nginx's headers choose what those of the system offer, if they come first

subtest 'order of includes' => sub {
    for my $source (grep { m{(?:^|/)ngx_} } @sources) {
        my ($first) = includes(slurp($source));

        like($first // '', qr/^(?:<ngx_config\.h>|".*")$/, $source);
    }
};


subtest 'config' => sub {
    my @listed = listed(slurp('config'));

    is_deeply([sort @listed], [sort @sources],
              'lists the files that there are')
        or explain_lists(\@listed, \@sources);

    for my $list (lists(slurp('config'))) {
        my ($name, $text) = @$list;
        my @files = grep { m{^src/} } listed($text);

        is_deeply(\@files, [sort @files], "in order, $name");
        is(join(' ', grep { layer($_) ne layer($files[0]) } @files), '',
           'of one layer');
    }
};


subtest 'objects' => sub {
    my %seen;

    # nginx puts objects of one add-on folder into one folder
    for my $source (grep { /\.c$/ } @sources) {
        my ($name) = $source =~ m{([^/]+)$};

        ok(!$seen{$name}++, "the name of $source is its own");
    }
};


done_testing();


sub allowed {
    my ($file, $include) = @_;

    return $only_in{$include} eq $file if $only_in{$include};

    for my $layer (@layers) {
        my ($files, @may) = @$layer;

        next if $file !~ $files;

        return scalar grep { $include =~ $_ } @may;
    }

    return 0;
}


sub includes {
    my ($text) = @_;

    return $text =~ /^\s*#\s*include\s+(\S+)/mg;
}


sub listed {
    my ($text) = @_;

    return $text =~ m{^ +\$ngx_addon_dir/(\S+\.[ch]) \\$}mg;
}


sub lists {
    my ($text) = @_;

    my @lists;

    push @lists, [$1, $2]
        while $text =~ /^(RATELIMIT_\w+_(?:DEPS|SRCS))=" \\\n(.*?)^ +"/msg;

    return @lists;
}


sub layer {
    my ($file) = @_;

    return $file =~ m{^src/(\w+)/} ? $1 : '';
}


sub explain_lists {
    my ($listed, $sources) = @_;

    my %listed = map { $_ => 1 } @$listed;
    my %sources = map { $_ => 1 } @$sources;

    diag("not in config: $_") for grep { !$listed{$_} } @$sources;
    diag("not there: $_") for grep { !$sources{$_} } @$listed;
}


sub slurp {
    my ($path) = @_;

    open(my $fh, '<', $path) or return '';
    local $/;

    return scalar <$fh>;
}
