#!/usr/bin/perl

# A folder of src/ is a layer, and includes go one way.  What counts is what a
# file reaches, through whatever headers, or by a prototype of its own: http
# knows neither tables nor Redis.

use strict;
use warnings;

use Test::More;

my @sources = ('ngx_http_ratelimit_module.c', glob('src/*/*.[ch]'));

BAIL_OUT('run me from the root of the repository') if !-f 'config';

# the layers that the files of a layer may reach

my %MAY = (
    core => [qw(core)],
    table => [qw(core table)],
    store => [qw(core table store)],
    redis => [qw(core table store redis)],
    elastic => [qw(core store elastic)],
    domain => [qw(domain)],
    conf => [qw(core table store redis elastic domain conf)],
    http => [qw(core store elastic domain conf http)],
    api => [qw(core store elastic domain conf http api)],
    service => [qw(core store elastic domain conf http service)],
    module => [qw(core store elastic domain conf http api service)],
);

# from the bottom up

my @ORDER = qw(core table store redis elastic domain conf http api service
               module);

# pure C: no header of nginx, whatever the folder, and through whatever others

my $PURE = qr{^src/(?:core/|table/|\w+/ratelimit_)};

my $c99 = qr/^<(?:assert|ctype|errno|inttypes|limits|stdarg|stdbool|stddef
                 |stdint|stdio|stdlib|string|time)\.h>$/x;
my $nginx = qr/^<(?:ngx_\w+|nginx)\.h>$/;
my $system = qr/^<(?:sys\/)?[a-z]+\.h>$/;

# headers that one file alone may include

my %ONLY = (
    '<yaml.h>' => 'src/domain/ratelimit_domain_load.h',
    '<pthread.h>' => 'src/table/ratelimit_lock.c',
    '<hiredis/async.h>' => 'src/redis/ngx_http_ratelimit_redis_connection.h',
    '<hiredis/hiredis.h>' => 'src/redis/ngx_http_ratelimit_redis_connection.h',
    '<hiredis/sds.h>' => 'src/redis/ngx_http_ratelimit_redis_tls.c',
);


# the files that may reach hiredis, through whatever headers

my $HIREDIS = qr/_redis_(?:connection|message|tls)\.[ch]$/;


subtest 'the checks can fail' => sub {
    my %tree = (
        'src/core/ratelimit_a.h' => "#include <stdint.h>\n",
        'src/table/ratelimit_b.h' => "#include \"core/ratelimit_a.h\"\n",
        'src/store/ngx_http_ratelimit_c.h' =>
            "#include <ngx_config.h>\n#include \"table/ratelimit_b.h\"\n",
        'src/http/ngx_http_ratelimit_d.c' =>
            "#include \"store/ngx_http_ratelimit_c.h\"\n",
        'src/core/ratelimit_e.c' => "#include \"table/ratelimit_b.h\"\n",
        'src/core/ratelimit_f.c' => "#include <ngx_core.h>\n",
        'src/core/ratelimit_g.c' => "#include <sys/mman.h>\n",
        'src/table/ratelimit_h.c' => "#include <pthread.h>\n",
        'src/http/ngx_http_ratelimit_i.c' =>
            "#include \"core/ratelimit_a.h\"\n"
            . "#include \"store/ngx_http_ratelimit_c.h\"\n",
        'src/redis/ngx_http_ratelimit_redis_connection.h' =>
            "#include <ngx_config.h>\n#include <hiredis/async.h>\n",
        'src/redis/ngx_http_ratelimit_redis_store.c' =>
            "#include \"redis/ngx_http_ratelimit_redis_connection.h\"\n",
        'src/redis/ratelimit_j.c' =>
            "#include \"store/ngx_http_ratelimit_c.h\"\n",
    );

    local $MAY{http} = [qw(core store http)];

    my %bad = (
        'src/http/ngx_http_ratelimit_d.c' => qr/reaches the layer table/,
        'src/core/ratelimit_e.c' => qr/reaches the layer table/,
        'src/core/ratelimit_f.c' => qr/<ngx_core.h> is not for/,
        'src/core/ratelimit_g.c' => qr/<sys\/mman.h> is not for/,
        'src/table/ratelimit_h.c' => qr/<pthread.h> is for/,
        'src/http/ngx_http_ratelimit_i.c' => qr/before <ngx_config.h>/,
        'src/redis/ngx_http_ratelimit_redis_store.c' => qr/reaches <hiredis/,
        'src/redis/ratelimit_j.c' => qr/reaches <ngx_config.h>/,
    );

    for my $file (sort keys %tree) {
        my $findings = join "\n", findings($file, \%tree);

        if ($bad{$file}) {
            like($findings, $bad{$file}, $file);

        } else {
            is($findings, '', $file);
        }
    }
};


subtest 'includes' => sub {
    my %tree = map { $_ => slurp($_) } @sources;

    for my $source (@sources) {
        my @findings = findings($source, \%tree);

        ok(!@findings, $source) or diag(map { "$source: $_\n" } @findings);
    }
};


# A file calls no function of a layer that it may not reach, unless that layer
# is below its own, and a header that it may reach declares the function: that
# of the store does so for what the module and the API call of Redis.

subtest 'a call of another layer, the check can fail' => sub {
    my %tree = (
        'src/store/ngx_http_ratelimit_a.h' => "void ngx_hook(void);\n"
                                              . "void ngx_up(int *n);\n",
        'src/store/ngx_http_ratelimit_b.c' =>
            "void\nngx_b(void)\n{\n    n = ngx_up(&n);\n}\n",
        'src/redis/ngx_http_ratelimit_redis.c' =>
            "void\nngx_hook(void)\n{\n    ngx_b();\n}\n\n\n"
            . "void\nngx_up(int *n)\n{\n}\n\n\n"
            . "void\nngx_inner(void)\n{\n}\n",
        'src/http/ngx_http_ratelimit_c.c' =>
            "void ngx_inner(void);\n\n\n"
            . "void\nngx_c(void)\n{\n    ngx_hook();\n    ngx_inner();\n}\n",
    );

    is_deeply([strangers(\%tree)],
              ['src/http/ngx_http_ratelimit_c.c calls ngx_inner of redis',
               'src/store/ngx_http_ratelimit_b.c calls ngx_up of redis'],
              'a prototype of its own, and a layer above');
};


subtest 'calls of other layers' => sub {
    is_deeply([strangers({ map { $_ => slurp($_) } @sources })], [],
              'no file calls what it may not reach');
};


subtest 'no header includes itself' => sub {
    my %circle = ('src/core/a.h' => "#include \"core/b.h\"\n",
                  'src/core/b.h' => "#include \"core/a.h\"\n");

    is_deeply([circles(\%circle)], [sort keys %circle], 'the check can fail');
    is_deeply([circles({ map { $_ => slurp($_) } @sources })], [], 'none does');
};


# where a zone counts is a question for the store, which conf sets

my $ASKS_REDIS = qr/(?<!\brmcf)(?:->|\.)redis\b/;

subtest 'the Redis of a zone is not asked for outside the store' => sub {
    like('if (ctx->zone->redis == NULL', $ASKS_REDIS, 'the check can fail');
    unlike('redis = rmcf->redis.elts;', $ASKS_REDIS, 'all Redis are no zone\'s');

    unlike(slurp($_), $ASKS_REDIS, $_)
        for grep { !m{^src/(?:store|redis|conf)/} } @sources;
};


# the client of Redis: the order of its files is in its header

subtest 'calls go one way, the check can fail' => sub {
    my %tree = (
        'src/redis/ngx_http_ratelimit_redis_top.c' =>
            "ngx_int_t\nngx_top(void)\n{\n    return ngx_low();\n}\n",
        'src/redis/ngx_http_ratelimit_redis_low.c' =>
            "ngx_int_t\nngx_low(void)\n{\n    return 0;\n}\n\n\n"
            . "/* ngx_top() calls this */\n\nstatic void\nngx_own(void)\n{\n"
            . "    ngx_http_log_error(\"ngx_top\");\n}\n",
    );
    my @order = map { "src/redis/ngx_http_ratelimit_redis_$_.c" } qw(top low);

    is_deeply([upward(\%tree, @order)], [], 'down');
    is_deeply([upward(\%tree, reverse @order)],
              ["$order[0] calls ngx_low of $order[1]"], 'up');

    $tree{$order[1]} .= "\n\nvoid\nngx_hook(void)\n{\n    hook = ngx_top;\n}\n";
    is_deeply([upward(\%tree, @order)],
              ["$order[1] calls ngx_top of $order[0]"], 'up, by a pointer');
};


subtest 'calls of the client of Redis go one way' => sub {
    my $header = slurp('src/redis/ngx_http_ratelimit_redis.h');
    my ($comment) = $header =~ m{/\*(.*?)\*/}s;
    my @order = map { "src/redis/$_" }
                $comment =~ /^ \*   (ngx_\w+\.c) /mg;

    is_deeply([sort @order], [glob('src/redis/ngx_*.c')],
              'the header names all files');
    is_deeply([upward({ map { $_ => slurp($_) } @order }, @order)], [],
              'no file calls one above it');
};


# so that a name in a log of the debugger, or on the map, is of one function

subtest 'names of functions' => sub {
    is_deeply([twice({ 'src/http/a.c' => "static int\nngx_a(void)\n{\n}\n",
                       'src/redis/b.c' => "int\nngx_a(int n)\n{\n}\n" })],
              ['ngx_a of src/http/a.c is in src/redis/b.c, too'],
              'the check can fail');
    is_deeply([twice({ map { $_ => slurp($_) } @sources })], [],
              'each is in one file');
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


sub findings {
    my ($file, $tree) = @_;

    my $layer = layer($file);
    my %may = map { $_ => 1 } @{$MAY{$layer} || []};
    my (%seen, @order, @findings);

    reach($file, $tree, \%seen, \@order);

    for my $header (grep { m{^src/} } @order) {
        push @findings, "reaches the layer " . layer($header) . " by $header"
            if !$may{layer($header)};
    }

    push @findings, map { "reaches $_" } grep { /^<hiredis/ } @order
        if $file !~ $HIREDIS;

    push @findings, map { "reaches $_" } grep { $_ =~ $nginx } @order
        if $file =~ $PURE;

    for my $include (includes($tree->{$file})) {
        next if $include =~ /^"/;

        if ($ONLY{$include}) {
            push @findings, "$include is for $ONLY{$include}"
                if $ONLY{$include} ne $file;

        } elsif ($file =~ m{^src/core/} ? $include !~ $c99
                 : $file =~ $PURE ? $include !~ $system || $include =~ $nginx
                 : $include !~ $system && $include !~ $nginx)
        {
            push @findings, "$include is not for $file";
        }
    }

    # nginx's headers choose what those of the system offer, if they come first

    my ($first) = grep { /^</ } @order;

    push @findings, ($first // 'nothing') . ' before <ngx_config.h>'
        if $file !~ $PURE && ($first // '') ne '<ngx_config.h>';

    return @findings;
}


# files that call functions of layers that they may not reach

sub strangers {
    my ($tree) = @_;

    my %rank = map { my $n = $_; $ORDER[$n] => $n } 0 .. $#ORDER;
    my (%code, %home, %declared, @findings);

    for my $file (sort keys %$tree) {
        $code{$file} = bare($tree->{$file});

        # a prototype is no call

        my ($layer, $header) = (layer($file), $file =~ /\.h$/);

        while ($code{$file} =~ s/^(?!static\b)\w[^;{}=]*?(\w+)\([^;{}]*\);//m) {
            push @{$declared{$1}}, $layer if $header;
        }

        next if $header || $layer eq 'module';

        $home{$_} = $layer for definitions($code{$file});
    }

    for my $file (sort keys %code) {
        my $layer = layer($file);
        my %may = map { $_ => 1 } @{$MAY{$layer}};
        my %named = map { $_ => 1 } $code{$file} =~ /\w+/g;

        push @findings, "$file calls $_ of $home{$_}"
            for grep {
                $named{$_} && !$may{$home{$_}}
                && !($rank{$home{$_}} < $rank{$layer}
                     && grep { $may{$_} } @{$declared{$_}})
            } sort keys %home;
    }

    return @findings;
}


# headers that include themselves, through whatever others

sub circles {
    my ($tree) = @_;

    return grep {
        my %seen;

        reach($_, $tree, \%seen, []);
        $seen{$_};
    } sort keys %$tree;
}


# functions and variables of files above that a file names, from top to bottom

sub upward {
    my ($tree, @order) = @_;

    my (%above, @findings);

    for my $file (@order) {
        my $code = bare($tree->{$file});

        push @findings, map { "$file calls $_ of $above{$_}" }
            grep { $code =~ /\b$_\b/ } sort keys %above;

        $above{$_} = $file for definitions($code);
    }

    return @findings;
}


# functions of one name in two files, static ones too

sub twice {
    my ($tree) = @_;

    my (%home, @findings);

    for my $file (sort keys %$tree) {
        for my $name (bare($tree->{$file}) =~ /^(\w+)\([^;{}]*\)\n\{/mg) {
            $home{$name} //= $file;
            push @findings, "$name of $home{$name} is in $file, too"
                if $home{$name} ne $file;
        }
    }

    return @findings;
}


# without comments and strings

sub bare {
    my ($text) = @_;

    return $text =~ s{/\*.*?\*/}{}gsr =~ s{"(?:[^"\\]|\\.)*"}{""}gr;
}


# what is not static: the name begins a line, or is a variable's

sub definitions {
    my ($code) = @_;

    return ($code =~ /^(?!static\b)[^\n(){};#]*\n(\w+)\(/mg,
            $code =~ /^(?!static\b|extern\b)\w[\w ]+  (\w+) = \{/mg);
}


# all that a file includes, in the order in which the compiler reads it

sub reach {
    my ($file, $tree, $seen, $order) = @_;

    for my $include (includes($tree->{$file} // '')) {
        my $path = $include =~ /^"(.*)"$/ ? "src/$1" : $include;

        next if $seen->{$path}++;

        reach($path, $tree, $seen, $order) if $path =~ m{^src/};
        push @$order, $path;
    }
}


sub includes {
    my ($text) = @_;

    return $text =~ /^\s*#\s*include\s+(\S+)/mg;
}


sub layer {
    my ($file) = @_;

    return $file =~ m{^src/(\w+)/} ? $1 : 'module';
}


sub slurp {
    my ($path) = @_;

    open(my $fh, '<', $path) or return '';
    local $/;

    return scalar <$fh>;
}
