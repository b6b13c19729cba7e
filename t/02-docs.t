#!/usr/bin/perl

# What README.md and docs/ say is so: every example is accepted by nginx, every
# directive, parameter, variable, status, resource of the API and metric is
# documented, with the version it came in, and every documented one exists, log
# lines are those of the source, links lead somewhere.
#
# An example that is a part of a configuration is completed by the blocks
# around it, and by zones and an upstream that it uses and does not declare.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;

use lib 't/lib';
use Certificates;
use Registry qw(algorithms);

BAIL_OUT('run me from the root of the repository') if !-f 'config';

my $root = getcwd();
my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';
my $module = $ENV{RATELIMIT_MODULE}
             || "$root/build/ngx_http_ratelimit_module.so";

$ENV{PATH} .= ':/usr/sbin:/sbin';
$ENV{LC_ALL} = 'C';

my @pages = ('README.md', sort(glob('docs/*.md docs/*/*.md')));
my @examples = sort(glob('docs/examples/*.conf'));

# to be shown and trusted
my $made = Certificates->new;

my %text = map { $_ => slurp($_) } @pages;
my %source = source();
my $sections = sections($text{'docs/directives.md'});
my $versions = join '|', map { quotemeta }
               slurp('CHANGES') =~ /^Changes with \S+ (\S+)/mg;

BAIL_OUT("$module is missing: make") if !-f $module;


subtest 'the checks can fail' => \&self_test;

subtest 'the source is read' => sub {
    cmp_ok(scalar keys %{$source{commands}}, '>=', 10, 'directives');
    cmp_ok(scalar keys %{$source{variables}}, '>=', 8, 'variables');
    cmp_ok(scalar @{$source{algorithms}}, '>=', 5, 'algorithms');
    is_deeply([sort @{$source{algorithms}}], [sort(algorithms())],
              'algorithms of the registry');
    cmp_ok(scalar @{$source{statuses}}, '>=', 10, 'statuses');
    cmp_ok(scalar @{$source{params}{ratelimit_zone}}, '>=', 6, 'of a zone');
    cmp_ok(scalar @{$source{params}{ratelimit}}, '>=', 14, 'of a limit');
    cmp_ok(scalar @{$source{params}{ratelimit_redis}}, '>=', 5, 'of a Redis');
    cmp_ok(scalar @{$source{params}{ratelimit_elastic}}, '>=', 3,
           'of signals');
    cmp_ok(scalar @{$source{fails}}, '==', 3, 'failures');
    cmp_ok(scalar @{$source{resources}}, '>=', 5, 'resources');
    cmp_ok(scalar @{$source{arguments}}, '>=', 3, 'their arguments');
    cmp_ok(scalar @{$source{fields}}, '>=', 30, 'fields of JSON');
    cmp_ok(scalar @{$source{metrics}}, '>=', 20, 'metrics');
};

subtest 'examples' => sub {
    for my $page (@pages) {
        for my $block (blocks($text{$page}, 'nginx')) {
            my ($line, $code) = @$block;

            # its blocks make one file, step by step, which its own test runs
            clean("$page:$line", check_conf($code))
                if $page !~ /getting-started/;
            clean("$page:$line, addresses", check_addresses($code));
        }

        # before a change, and after it
        for my $block (blocks($text{$page}, 'diff')) {
            my ($line, $code) = @$block;

            clean("$page:$line, $_", check_conf(side($code, $_), 'http'))
                for '-', '+';
        }
    }

    for my $file (@examples) {
        clean($file, check_conf(slurp($file), 'http'));
        clean("$file, addresses", check_addresses(slurp($file)));
    }
};

subtest 'directives' => sub {
    clean('docs/directives.md', check_sections($sections));
    clean("$_, Default", check_default($sections->{$_}{default}))
        for sort keys %$sections;
    clean('docs/directives.md, table',
          check_table($text{'docs/directives.md'}));
};

subtest 'the API' => sub {
    clean('docs/api.md', check_api($text{'docs/api.md'}));
};

subtest 'words' => sub {
    # names of the source are those of the map

    clean($_, check_words($text{$_})) for grep { !/design\.md$/ } @pages;
    clean($_, check_words(slurp($_))) for @examples;
};

subtest 'variables and statuses' => sub {
    clean('docs/directives.md', check_variables($text{'docs/directives.md'}));
};

subtest 'algorithms' => sub {
    clean('docs/algorithms.md', check_algorithms($text{'docs/algorithms.md'}));
    clean('docs/redis-counters.md',
          check_letters($text{'docs/redis-counters.md'}));
};

subtest 'bytes per key' => sub {
    clean('docs/algorithms.md', check_bytes($text{'docs/algorithms.md'}));
};

subtest 'log lines' => sub {
    my $n = 0;

    for my $page (@pages) {
        for my $line (log_lines($text{$page})) {
            clean("$page: $line", check_log_line($line));
            $n++;
        }
    }

    cmp_ok($n, '>=', 6, 'there are some');
};

subtest 'breaker' => sub {
    clean('docs/redis.md', check_breaker($text{'docs/redis.md'}));
};

subtest 'reasons' => sub {
    clean('docs/redis.md and docs/redis-servers.md',
          check_reasons($text{'docs/redis.md'}
                        . $text{'docs/redis-servers.md'}));
};

subtest 'links' => sub {
    clean($_, check_links($_, $text{$_})) for @pages;
    clean("$_, contents", check_contents($_, $text{$_})) for @pages;

    for my $page (grep { $_ ne 'README.md' } @pages) {
        my ($name) = $page =~ m{^docs/(.*)};

        ok(index($text{'README.md'}, "](docs/$name)") >= 0
           || index($text{'docs/operations.md'}, "]($name)") >= 0,
           "$page is found from README.md, or from docs/operations.md");
    }
};

subtest 'speed' => sub {
    clean('README.md', check_speed($text{'README.md'}));
};

subtest 'the map' => sub {
    my $map = $text{'docs/design.md'};

    clean('docs/design.md', check_names($map), check_files($map));
};

subtest 'make' => sub {
    clean($_, check_targets($text{$_})) for @pages;
    clean("$_, names", check_installed($text{$_})) for @pages;
};

subtest 'text' => sub {
    clean($_, check_text($text{$_})) for @pages;
};

done_testing();


# each check is shown an error that it must find

sub self_test {
    my $fails = sub {
        my ($name, $findings, $reason) = @_;

        like(join("\n", @$findings), $reason || qr/./, $name);
    };

    my $fine = sub { is_deeply($_[1], [], $_[0]) };

    my $limit = "location / {\n    ratelimit  zone=ip  PARAMETER;\n}\n";
    my $server = "server {\n    listen  127.0.0.1:8080;\n}\n";

    is(side("-a  b;\n+c  d\n+   e;\n f;\n", '+'), "c  d\n   e;\nf;\n",
       'what a change adds');
    $fine->('a location', [check_conf($limit =~ s/PARAMETER/soft=5%/r)]);
    $fails->('parameter', [check_conf($limit =~ s/PARAMETER/so=5%/r)],
             qr/invalid parameter "so=5%"/);
    $fails->('directive', [check_conf("ratelimit_no  on;\n")],
             qr/unknown directive "ratelimit_no"/);
    $fails->('variable', [check_conf("set  \$a  \$ratelimit_no;\n")],
             qr/unknown "ratelimit_no" variable/);
    $fails->('a warning', [check_conf($server x 2)],
             qr/\[warn\].*conflicting server name/);

    $fails->('address', [check_addresses('server  10.' . '0.0.1;')]);
    $fails->('listen', [check_addresses("listen  80;\n")]);

    my %some = %$sections;
    delete $some{ratelimit_body};
    $fails->('directive without section', [check_sections(\%some)]);

    %some = (%$sections, ratelimit_no => $sections->{ratelimit_body});
    $fails->('section without directive', [check_sections(\%some)]);

    for ([qw(ratelimit syntax soft=), 'parameter'],
         [qw(ratelimit_zone syntax buckets=), 'parameter of a zone'],
         [qw(ratelimit_zone syntax fixed_window), 'algorithm'],
         [qw(ratelimit_zone syntax open), 'failure'],
         [qw(ratelimit_elastic syntax cpu=), 'signal'],
         [qw(ratelimit_headers syntax ietf), 'word'],
         [qw(ratelimit_log_level syntax notice), 'level'],
         [qw(ratelimit context server), 'context'],
         [qw(ratelimit body `cost`), 'description'],
         [qw(ratelimit since 0), 'version'])
    {
        my ($name, $part, $word, $what) = @$_;
        my %section = %{$sections->{$name}};

        $section{$part} =~ s/\Q$word\E//g;
        $fails->("$what without documentation",
                 [check_sections({%$sections, $name => \%section})]);
    }

    for my $version ('(0.1.0)', '') {
        my %section = %{$sections->{ratelimit}};

        $section{body} =~ s/(`soft`\S+) \(0\.1\.0\)/$1 $version/;
        is(scalar(check_sections({%$sections, ratelimit => \%section})),
           $version ? 0 : 1, "version of a parameter: '$version'");
    }

    for (['ratelimit', 'weight=number'], ['ratelimit', 'before_auth'],
         ['ratelimit_zone', 'shut'], ['ratelimit_elastic', 'memory=percent%'],
         ['ratelimit_body', 'html'])
    {
        my ($name, $word) = @$_;
        my %section = %{$sections->{$name}};

        $section{syntax} =~ s/;/ [$word];/;
        $fails->("documentation without $word",
                 [check_sections({%$sections, $name => \%section})],
                 qr/does not exist/);
    }

    $fails->('default', [check_default('ratelimit_status 42;')]);
    $fine->('no default', [check_default("\x{2014}")]);

    my $directives = $text{'docs/directives.md'};

    for (['missing', qr/^\| \[ratelimit_body.*\n/m, ''],
         ['unknown', qr/\| \[ratelimit_body\]/, '| [ratelimit_no]'],
         ['wrong default', qr/\| `429` \|/, '| `503` |'],
         ['wrong version', qr/^(\| \[ratelimit_body.*)0\.1\.0/m, '| 0.2.0'])
    {
        my ($name, $is, $would) = @$_;

        $fails->("$name in the table",
                 [check_table($directives =~ s/$is/$would/r)]);
    }

    my $api = $text{'docs/api.md'};

    for (['resource', qr/`GET \/redis`/, '`GET /valkey`'],
         ['method', qr/`DELETE \/zones\/ZONE`/, '`POST /zones/ZONE`'],
         ['argument', qr/`\?rate=/, '`?plan='],
         ['field', qr/`bytes_used`, /, ''],
         ['field of an example', qr/"refused": /, '"rejected": '],
         ['metric', qr/^\| `nginx_ratelimit_redis_denied_total`.*\n/m, ''],
         ['unknown metric', qr/`nginx_ratelimit_redis_up`/,
          '`nginx_ratelimit_redis_down`'])
    {
        my ($name, $is, $would) = @$_;

        like($api, $is, "there is a $name");
        $fails->("$name of the API", [check_api($api =~ s/$is/$would/r)]);
    }

    $fails->('unknown word', [check_words('see `ratelimit_no`')]);
    $fine->('known words', [check_words('`ratelimit_zone` $ratelimit_zone')]);
    $fails->('unknown variable', [check_words('$ratelimit_no')]);

    $fails->('variable without documentation',
             [check_variables($directives =~ s/^- `\$ratelimit_reset`//mr)]);
    $fails->('variable without version', [check_variables(
             $directives =~ s/(`\$ratelimit_reset`) \(0\.1\.0\)/$1/r)]);
    $fails->('status without documentation',
             [check_variables($directives =~ s/`SOFT`/x/gr)]);
    $fails->('unknown status',
             [check_variables($directives =~ s/`SOFT`/`RUBBER`/r)]);

    $fails->('algorithm without documentation', [check_algorithms(
             $text{'docs/algorithms.md'} =~ s/^## sliding_log$//mr)]);
    $fails->('letter', [check_letters(
             $text{'docs/redis-counters.md'} =~ s/`t` for a/`u` for a/r)]);

    $fails->('bytes', [check_bytes(
             $text{'docs/algorithms.md'} =~ s/60\swith\s10/59 with 10/r)],
             qr/60 bytes with 10/);
    $fails->('keys in 1 MB', [check_bytes(
             $text{'docs/algorithms.md'} =~ s/43690/44000/r)], qr/24 bytes/);

    $fails->('log line', [check_log_line('limiting request by zone "ip"')]);
    $fails->('word of a log line', [check_log_line(
             'limiting requests, wet run, excess: 1.000 by zone "ip"')]);
    $fine->('log lines', [map { check_log_line($_) }
             'limiting requests, excess: 1.000 by zone "ip"',
             'ratelimit pressure of "cpu" ends: 1.0% in use',
             'rate "$a" of zone "b" is invalid: "c d": has no rate']);

    my $down = 'ratelimit: redis "main" is marked down: ';

    $fine->('reasons', [map { check_log_line("$down$_") }
            'no reply within 50ms', 'error reply "OOM command not allowed"',
            'Connection refused']);
    $fails->('reason', [check_log_line($down . 'no reply')]);
    is_deeply([log_lines("```text\nratelimit: a,\n    b\nc\n```\n")],
              ['ratelimit: a, b'], 'a log line of two lines');

    my $redis = $text{'docs/redis.md'} . $text{'docs/redis-servers.md'};

    $fails->('failures', [check_breaker($redis =~ s/5 failures/6 failures/r)]);
    $fails->('pauses', [check_breaker($redis =~ s/100 milli/200 milli/r)]);
    $fails->('longest pause', [check_breaker($redis =~ s/up to \K2 sec/8 sec/r)]);
    $fails->('unknown reason',
             [check_reasons($redis =~ s/`no reply within 50ms`/`late`/r)]);
    $fails->('reason without documentation',
             [check_reasons($redis =~ s/^\| `no reply within.*\n//mr)]);

    $fails->('keys of clients', [check_conf(
             "ratelimit_zone  \$http_key  zone=a:1m  rate=1r/s  redis=b;\n")]);
    $fails->('folder of logs', [check_conf("access_log  logs/a.log;\n")]);
    $fine->('logs', [check_conf("access_log  /var/log/nginx/a.log;\n")]);

    $fails->('link', [check_links('README.md', '[x](docs/no.md)')]);
    $fails->('picture', [check_links('README.md', '<img src="docs/no.png">')]);
    $fails->('link of a picture',
             [check_links('README.md', '<a href="docs/no.png">')]);
    $fails->('anchor',
             [check_links('README.md', '[x](docs/directives.md#no)')]);
    $fails->('anchor of the page', [check_links('README.md', '[x](#no)')]);
    $fails->('contents', [check_contents('x', "# a\n[b](#b)\n## b\n## c\n")],
             qr/#c/);
    $fine->('links', [check_links('README.md', '[x](docs/directives.md'
                                  . '#embedded-variables) [y](LICENSE)')]);

    my $speed = '**Speed**: a limit adds 9.0 of what `limit_req` adds with '
                . '10,000 clients, 9.0 with a million; of HAProxy 9.0 and 9.0.';

    is(scalar(check_speed($speed)), 4, 'speed');
    $fails->('no speed', [check_speed('It is fast.')]);

    $fails->('target', [check_targets('`make nothing`')]);
    $fails->('setting', [check_targets("make NGINX_SCR=DIR\n")]);
    $fine->('settings', [check_targets("make install DESTDIR=x PORT=1\n")]);
    $fails->('package', [check_installed('apt purge libnginx-mod-ratelimit')]);
    $fails->('module', [check_installed('cp ngx_http_ratelimit.so /')]);
    $fails->('folder of modules', [check_installed(
             'load_module /lib/ngx_http_ratelimit_module.so;')], qr/folder/);
    $fails->('trailing blank', [check_text("a \n")], qr/blank/);
    $fails->('no heading', [check_text("a\n# b\n")], qr/heading/);
    $fails->('long line', [check_text(('a ' x 45) . "b\n")],
             qr/longer/);

    is_deeply([check_names('`handler` `ngx_http_ratelimit_gone` `gone.c` '
                           . '`query_add` `src/core/`')],
              ['ngx_http_ratelimit_gone is not in the source',
               'there is no gone.c'], 'names that are not in the tree');
    is_deeply([check_files($text{'docs/design.md'} =~ s{`http/log\.c`}{}gr)],
              ['http/log.c is not named'], 'a file that is not on the map');
}


sub clean {
    my ($name, @findings) = @_;

    ok(!@findings, $name) or diag(join "\n", @findings);
}


# what the source has

sub source {
    my %found;

    my $main = slurp('ngx_http_ratelimit_module.c');
    my $http = join '', map { slurp($_) }
               sort(glob('src/{conf,elastic,http,api}/*.c'));
    my $core = join '', map { slurp($_) } sort(glob('src/core/*.c'));
    my $store = join '', map { slurp($_) } sort(glob('src/{store,redis}/*.c'));

    my ($commands) = $main =~ /^static ngx_command_t .*?\{\n(.*?)^\};/ms;

    while ($commands =~ /\{ ngx_string\("(\w+)"\),\s*([^,]+),(.*?)\}/sg) {
        my ($name, $flags, $rest) = ($1, $2, $3);

        $found{commands}{$name} = [
            $flags =~ /HTTP_MAIN_CONF/ ? 'http' : (),
            $flags =~ /HTTP_SRV_CONF/ ? 'server' : (),
            $flags =~ /HTTP_LOC_CONF/ ? 'location' : (),
        ];

        $found{params}{$name} = strings($http, $1) if $rest =~ /&(\w+) $/;
        $found{params}{$name} = [qw(on off)] if $flags =~ /CONF_FLAG/;
    }

    $found{params}{ratelimit_headers} =
        strings($http, 'ngx_http_ratelimit_header_words');
    $found{params}{ratelimit_zone} =
        strings($http, 'ngx_http_ratelimit_zone_params');
    $found{params}{ratelimit} =
        [@{strings($http, 'ngx_http_ratelimit_limit_params')}, 'off'];

    $found{params}{ratelimit_redis} =
        strings($http, 'ngx_http_ratelimit_redis_params');
    push @{$found{params}{ratelimit_log_level}},
         @{strings($http, 'ngx_http_ratelimit_log_level_params')};
    $found{params}{ratelimit_api} =
        strings($http, 'ngx_http_ratelimit_api_params');
    $found{params}{ratelimit_elastic} =
        strings($http, 'ngx_http_ratelimit_elastic_params');

    $found{fails} = strings($http, 'ngx_http_ratelimit_fails');

    source_api(\%found);

    $found{algorithms} =
        [$core =~ /^const ratelimit_algorithm_t  \w+ = \{\s*"(\w+)"/mg];
    $found{letters} =
        {$core =~ /^const\sratelimit_algorithm_t\s+\w+\s=\s\{\s*"(\w+)",
                   \s*'(.)',/mgx};
    $found{statuses} = [
        slurp('src/store/ngx_http_ratelimit_statistics.h')
            =~ /^    X\((\w+), \w+\)/mg
    ];
    $found{variables} = {map { $_ => 1 }
                         @{strings($http, 'ngx_http_ratelimit_vars')}};
    $found{messages} = [messages($http . $store)];
    $found{reasons} = [
        grep { length } map { reason(s/%M/50/r) } grep { !/^%s$|^ / }
        $store =~ /(?:_set_reason|on_error|on_unreachable)\([^"()]*"([^"]+)"/g,
        $store =~ /\? "([a-z ]+)" : context->errstr/g,
        $store =~ /ngx_slprintf\(p, last,\s+"((?:[^"\\]|\\.)+)"/g,
        $store =~ /\breason = "([^"]+)"/g,
        $store =~ /^ +[?:] "([^"]*TLS handshake[^"]*)"/mg,
    ];
    $found{breaker} = {slurp('src/redis/ratelimit_breaker.h')
                       =~ /^#define RATELIMIT_BREAKER_(\w+) +(\d+)$/mg};

    return %found;
}


# names in paths, arguments and JSON of the API, and its metrics

sub source_api {
    my ($found) = @_;

    my $path = slurp('src/api/ngx_http_ratelimit_api_path.c');
    my $code = join '', map { slurp($_) } sort(glob('src/api/*.c'));

    $found->{resources} = unique($path =~ /_api_is\(&part, "(\w+)"\)/g);
    $found->{arguments} = unique($code =~ /_api_arg\([^"()]+, "(\w+)",/g);

    my (@fields, @metrics);

    while ($code =~ /\{ (NULL|"\w+"), "(\w+)",\s+\w+_(GAUGE|COUNTER)\w*,/g) {
        my ($field, $name, $kind) = ($1, $2, $3);

        push @fields, $field =~ /"(\w+)"/;
        push @metrics, $kind eq 'COUNTER' ? "${name}_total" : $name;
    }

    while ($code =~ /^ +ngx_http_ratelimit_redis_counter\((\w+),/mg) {
        push @fields, $1;
        push @metrics, "redis_${1}_total";
    }

    while ($code =~ /_metrics_family\(metrics,([^;]*);/g) {
        my ($name, $type) = $1 =~ /"(\w+)",\s+(?:[^",]+)?"(\w+)"/ or next;

        push @metrics, $type eq 'counter' ? "${name}_total" : $name;
    }

    $found->{metrics} = unique(map { "nginx_ratelimit_$_" } @metrics);
    $found->{fields} = unique(@fields,
                              $code =~ /_json_name\(\w+, "(\w+)"\)/g);
}


sub unique {
    my %seen;

    return [grep { !$seen{$_}++ } @_];
}


# without what is not the same each time, or a hint

sub reason {
    my ($text) = @_;

    return $text =~ s/%Z$//r =~ s/:? ?(?:\\?"|\(|%[sV]|\.\.\.).*//r;
}


# the strings of a table

sub strings {
    my ($code, $table) = @_;

    my ($body) = $code =~ /^[\w ]+  \Q$table\E\[\] = \{\n(.*?)^\};/ms;

    return [defined $body
            ? $body =~ /ngx_(?:string|http_ratelimit_var)\("([^"]+)"/g : ()];
}


# what is logged, as patterns

sub messages {
    my ($code) = @_;

    $code =~ s/"\s*\n\s*"//g;

    my $string = qr/"((?:[^"\\]|\\.)*)"/;
    my @patterns;

    while ($code =~ /ngx_(?:conf_)?log_error\([^"]*$string([^;]*);/g) {
        my ($format, $arguments) = ($1, $2);

        push @patterns, pattern($format, $arguments =~ /$string/g);
    }

    return @patterns;
}


sub pattern {
    my ($format, @words) = @_;

    # one of the strings that are given to choose from, if there are any
    my $word = @words ? '(?:' . join('|', map { quotemeta } @words) . ')'
                      : '[^"]+';
    my %pattern = ('%s' => $word, '%*s' => '[^"]*', '%V' => '[^"]+',
                   '%%' => '%', '%r' => '.+');

    # what is not in quotation marks may have some

    return join '', map {
        !/^%/ ? quotemeta(s/\\"/"/gr) : $pattern{$_} || '-?\d+'
    } split /(%%|%\*s|%\d*(?:u[a-zA-Z]|[a-zA-Z]))/, $format =~ s/ %\*s$/ %r/r;
}


# what the pages have

# [first line, text] of each block of a language

sub blocks {
    my ($text, $language) = @_;

    my @blocks;

    while ($text =~ /^```\Q$language\E\n(.*?)^```$/msg) {
        my $code = $1;

        push @blocks, [1 + (substr($text, 0, $-[1]) =~ tr/\n//), $code];
    }

    return @blocks;
}


# what a change takes away, or what it adds

sub side {
    my ($code, $sign) = @_;

    return join '', $code =~ /^[ \Q$sign\E](.*\n)/mg;
}


# syntax, default, context and text of each directive

sub sections {
    my ($text) = @_;

    my %found;

    while ($text =~ /^[#]{2} [ ] (\w+) \n+ ```text\n
                     Syntax:  (.*?) ^Default: (.*?) ^Context: (.*?)
                     ^Since: (.*?) ^```$ (.*?) (?=^[#]{2} [ ] | \z)/msxg)
    {
        my ($name, @parts) = ($1, $2, $3, $4, $5, $6);

        @{$found{$name}}{qw(syntax default context since body)} =
            map { trim($_) } @parts;
    }

    return \%found;
}


# lines of blocks of text that begin as a log line does; what is indented is
# the rest of a long one

sub log_lines {
    my ($text) = @_;

    my @lines = map { split /\n/, $_->[1] =~ s/\n {4}(?=\S)/ /gr }
                    blocks($text, 'text');

    return grep {
        /^(?:"ratelimit" |ratelimit:? |rate "|limiting |delaying )/
    } @lines;
}


# checks: each returns what it finds

sub check_conf {
    my ($code, $level) = @_;

    return 'there is no "logs" on Debian, but /var/log/nginx'
        if $code =~ m{\slogs/};

    return 'what clients make up is counted in Redis'
        if $code =~ /ratelimit_zone [^;]*\$(?:http|arg|cookie)_[^;]* redis=/;

    my $conf = complete($code, $level || level($code));
    my $dir = tempdir(CLEANUP => 1);

    $conf =~ s{/var/log/nginx/}{logs/}g;

    mkdir "$dir/logs";
    spew("$dir/nginx.conf", $conf);
    spew("$dir/$_", "secret\n") for $conf =~ /password_file=(\w+\.pw)\b/g;
    symlink(getcwd() . '/docs/examples/rules', "$dir/rules");
    spew("$dir/$_", slurp("$made->{dir}/ca." . (/key$/ ? 'key' : 'pem')))
        for $conf =~ /\bssl_(?:ca|certificate|certificate_key)=([\w.-]+)/g;

    my $output = qx($nginx -t -e stderr -p $dir -c $dir/nginx.conf 2>&1);
    my $rc = $?;

    # as nginx before 1.25.1 knows it

    $output =~ s/^.*\[warn\].*"listen \.\.\. http2" directive is deprec.*\n//mg;

    # an example without a server need not use its zones

    $output =~ s/^.* is used by no "ratelimit" .*\n//mg
        if $code !~ /\bserver \{/;

    return grep { $rc || /\[\w+\]/ } split /\n/, $output;
}


# the block that an example belongs to

sub level {
    my ($code) = @_;

    return 'main' if $code =~ /^http \{/m;
    return 'http' if $code =~ /^(?:server|upstream|map|geo) /m
                     || $code =~ /^(?:\w+_zone|\w+_redis|\w+_rules|log_format) /m;
    return 'server' if $code =~ /^location /m;
    return 'location';
}


sub complete {
    my ($code, $level) = @_;

    my $missing = missing($code);

    $code = "location / {\n$code}\n" if $level eq 'location';
    $code = "server {\nlisten  127.0.0.1:8080;\n$code}\n"
        if $level =~ /^(?:server|location)$/;
    $code = "http {\n$code}\n" if $level ne 'main';

    my $paths = join '', map { "${_}_temp_path  temp_$_;\n" }
                             qw(client_body proxy fastcgi uwsgi scgi);

    $paths .= "access_log  logs/access.log;\n";

    $code =~ s/^http \{\n/http {\n$paths$missing/m;
    $code =~ s/^load_module .*\n//mg;
    $code = "events {\n}\n$code" if $code !~ /^events /m;

    return "load_module  $module;\npid  nginx.pid;\n$code";
}


# zones, Redis and an upstream that an example takes for granted

sub missing {
    my ($code) = @_;

    my $missing = '';
    my %declared = map { $_ => 1 } $code =~ /\bzone=(\w+):/g;
    my %used;

    while ($code =~ /^\s*ratelimit\s([^;]*)zone=(\w+)(?!:)\b([^;]*);/mg) {
        my ($name, $params) = ($2, "$1 $3");

        $used{$name} ||= '';
        $used{$name} = 'algorithm=leaky_bucket'
            if $params =~ /\b(?:burst=|nodelay|delay=)/;
    }

    for my $name (sort keys %used) {
        $missing .= "ratelimit_zone  \$ratelimit_client  zone=$name:1m "
                    . "rate=10r/s  $used{$name};\n" if !$declared{$name};
    }

    my %redis = map { $_ => 1 } $code =~ /\bredis=(\w+)/g;

    delete $redis{$_} for $code =~ /^\s*ratelimit_redis\s+(\w+)/mg;

    $missing .= "ratelimit_redis  $_  redis://127.0.0.1:6379;\n"
        for sort keys %redis;

    $missing .= "upstream backend {\nserver  127.0.0.1:8081;\n}\n"
        if $code =~ m{//backend\b} && $code !~ /^\s*upstream backend /m;

    return $missing;
}


sub check_addresses {
    my ($code) = @_;

    my @findings;

    push @findings, "$1 is not a loopback address"
        while $code =~ /(?<![\d.])((?!127\.)\d{1,3}(?:\.\d{1,3}){3})/g;

    push @findings, "listen $1 is not a loopback address"
        while $code =~ /\blisten\s+((?!127\.|\[::1\])\S+);/g;

    return @findings;
}


sub check_sections {
    my ($sections) = @_;

    my @findings;

    for my $name (sort keys %{$source{commands}}) {
        my $section = $sections->{$name};

        if (!$section) {
            push @findings, "$name is not documented";
            next;
        }

        my $contexts = join ', ', @{$source{commands}{$name}};

        push @findings, "$name: the context is $contexts"
            if $section->{context} ne $contexts;
        push @findings, "$name: the syntax is of another directive"
            if $section->{syntax} !~ /^\Q$name\E[ ;]/;
        push @findings, "$name: no version that CHANGES has"
            if $section->{since} !~ /^(?:$versions)$/;

        push @findings, map { "$name: $_" } check_params($name, $section);
    }

    for my $name (sort keys %$sections) {
        push @findings, "$name does not exist" if !$source{commands}{$name};
    }

    for my $word (@{$source{algorithms}}, @{$source{fails}}) {
        push @findings, "ratelimit_zone: $word is not in the syntax"
            if $sections->{ratelimit_zone}{syntax} !~ /\b$word\b/;
    }

    return @findings;
}


# parameters in the source, in the syntax, and in the text are the same

sub check_params {
    my ($name, $section) = @_;

    my @known = @{$source{params}{$name} || []};
    my (@findings, %seen);

    return if !@known;

    # words that need no description
    my $plain = qr/^(?:on|off|info|notice|warn|error|problem)$/;

    my %word = map { $_ => 1 } @known, $name, '...';

    $word{$_} = 1 for $name eq 'ratelimit_zone'
                      ? ('key', @{$source{algorithms}}, @{$source{fails}})
                      : $name eq 'ratelimit_redis' ? ('name', 'url', 'off')
                      : $name eq 'ratelimit_api' ? 'on' : ();

    for my $word (split /[\s\[\]|;]+/, $section->{syntax}) {
        my ($param) = $word =~ /^(\w+=)/;

        $seen{$word} = 1;
        $seen{$param} = 1 if defined $param;

        push @findings, "$word does not exist"
            if !$word{$word} && !(defined $param && $word{$param});
    }

    for my $word (@known) {
        my $bare = $word =~ s/=$//r;

        push @findings, "$word is not in the syntax" if !$seen{$word};
        push @findings, "$word is not described"
            if $section->{body} !~ /`\Q$bare\E`/ && $word !~ $plain;
        push @findings, "$word has no version that CHANGES has"
            if $word !~ $plain && $section->{body}
               !~ /- (?:`[^`]+`\S*, )?`\Q$bare\E`[^()]* \((?:$versions)\): /;
    }

    return @findings;
}


sub check_default {
    my ($default) = @_;

    return if $default eq "\x{2014}";
    return 'is not a directive' if $default !~ /^ratelimit.*;$/;

    return check_conf("$default\n");
}


# the table of directives has all of them, with links, defaults and versions

sub check_table {
    my ($text) = @_;

    my ($table) = $text =~ /((?:^\|.*\n)+)/m;
    my (@findings, %seen);

    while ($table =~ /^\|[ ]\[(\w+)\]\((\S+)\)[ ]\|[^|]+\|([^|]*)\|
                      [ ](\S+)[ ]\|$/mgx)
    {
        my ($name, $link, $default, $since) = ($1, $2, trim($3), $4);

        $seen{$name} = 1;

        if (!$source{commands}{$name}) {
            push @findings, "$name does not exist";
            next;
        }

        push @findings, "$name links to $link"
            if $link ne "#$name";
        push @findings, "$name: since $sections->{$name}{since}"
            if $since ne $sections->{$name}{since};

        my $documented = $sections->{$name}{default};

        $documented = $documented =~ /^\w+ (.*);$/ ? "`$1`" : '';

        push @findings, "$name: the default is $documented"
            if $default ne $documented;
    }

    push @findings, map { "$_ is not in the table" }
                    grep { !$seen{$_} } sort keys %{$source{commands}};

    return @findings;
}


# whatever is called ratelimit_... is a directive, or with $ a variable

sub check_words {
    my ($text) = @_;

    my @findings;

    while ($text =~ /(\$?)(?<![\w\/])(ratelimit_\w+)/g) {
        my ($sigil, $name) = ($1, $2);

        push @findings, "$sigil$name does not exist"
            if !$source{$sigil ? 'variables' : 'commands'}{$name};
    }

    return @findings;
}


# all that a path, an argument, a field or a metric may be

sub check_api {
    my ($text) = @_;

    my ($table) = $text =~ /^## Resources\n(.*?)^## /ms;
    my @paths = map { s{^\S+ /}{}r } $table =~ /^\| `([^`]+)` \|/mg;
    my %methods = map { $_ => 1 } $table =~ /^\| `([A-Z]+) /mg;
    my %told = map { $_ => 1 } map { split m{/} } @paths;
    my %metrics = map { $_ => 1 } $text =~ /^\| `(nginx_ratelimit_\w+)` \|/mg;
    my %known = map { $_ => 1 } @{$source{metrics}};

    return ((map { "resource $_ is not documented" }
             grep { !$told{$_} } @{$source{resources}}),
            (map { "resource $_ does not exist" }
             grep { my $name = $_; !grep { $_ eq $name } 'ZONE', 'KEY',
                    @{$source{resources}} } sort keys %told),
            ("@{[sort keys %methods]}" eq 'DELETE GET' ? ()
             : 'there are the methods GET and DELETE'),
            (map { "argument $_ is not documented" }
             grep { $text !~ /^\| `\?$_=/m } @{$source{arguments}}),
            (map { "field $_ is not documented" }
             grep { $text !~ /[`"]$_["`]/ } @{$source{fields}}),
            (map { "field $_ does not exist" }
             grep { my $name = $_; !grep { $_ eq $name } @{$source{fields}} }
             map { $_->[1] =~ /"(\w+)":/g } blocks($text, 'json')),
            (map { "metric $_ is not documented" }
             grep { !$metrics{$_} } sort keys %known),
            (map { "metric $_ does not exist" }
             grep { !$known{$_} } sort keys %metrics));
}


sub check_variables {
    my ($text) = @_;

    my ($section) = $text =~ /^## Embedded variables\n(.*)\z/ms;
    my %documented = map { $_ => 1 }
                     $section =~ /^- `\$(\w+)` \((?:$versions)\): /mg;
    my (@findings, %seen);

    push @findings, map { "\$$_ is not documented, with its version" }
                    grep { !$documented{$_} } sort keys %{$source{variables}};

    my ($values) = $section =~ /^- `\$ratelimit_status` (.*?)\n\n/ms;
    my %statuses = map { $_ => 1 } ($values || '') =~ /`([A-Z_]+)`/g;
    my %known = map { $_ => 1 } @{$source{statuses}};

    push @findings, map { "status $_ is not documented" }
                    grep { !$statuses{$_} } sort keys %known;
    push @findings, map { "status $_ does not exist" }
                    grep { !$known{$_} } $text =~ /`([A-Z]+(?:_[A-Z]+)*)`/g;

    return grep { !$seen{$_}++ } @findings;
}


sub check_algorithms {
    my ($text) = @_;

    my %known = map { $_ => 1 } @{$source{algorithms}};
    my @findings;

    for my $name (sort keys %known) {
        my ($section) = $text =~ /^## $name\n(.*?)(?=^## |\z)/ms;

        if (!$section) {
            push @findings, "$name is not documented";
            next;
        }

        push @findings, map { "$name: no $_" }
                        grep { index($section, "**$_.**") < 0 }
                             ('Promise', 'Worst case', 'Cost');
    }

    push @findings, map { "$_ does not exist" }
                    grep { !$known{$_} } $text =~ /^## ([a-z]+_\w+)$/mg;

    return @findings;
}


# by its letter the counters of an algorithm are known in Redis

sub check_letters {
    my ($text) = @_;

    my (@findings, %seen);

    for my $name (sort @{$source{algorithms}}) {
        my $letter = $source{letters}{$name} // 'none';

        push @findings, "$name: its letter $letter is not documented"
            if $text !~ /`$letter` for\s+a\s+`$name`/;
        push @findings, "$name: $letter is also that of another algorithm"
            if $seen{$letter}++;
    }

    return @findings;
}


# the figures are those that the table is held to by its own test

sub check_bytes {
    my ($text) = @_;

    my $number = qr/(\d[\d +*]*)/;
    my @tested = slurp('t/unit/table.c')
                 =~ /table_bytes\(RATELIMIT_(\w+),\s*$number,\s*$number,
                     [^,]*,\s*$number\)/xg;
    my (@findings, $n);

    while (my ($name, $buckets, $limit, $bytes) = splice @tested, 0, 4) {
        my ($section) = $text =~ /^## \L$name\E\n(.*?)(?=^## )/ms;

        ($section) = $section =~ /^\*\*Cost\.\*\* (.*?)\n\n/ms;

        # as in "60 with 10", "10 requests: 114 bytes"
        my ($x, $y) = (eval $bytes, $buckets || $limit);

        push @findings, lc($name) . ": $x bytes with $y"
            if $section !~ /^$x\sbytes/ && $section !~ /\b$x\swith\s$y\b/
               && $section !~ /^64\sbytes\sand\s5\b/;

        $n++;
    }

    push @findings, 'no figures are tested' if !$n;

    my ($memory) = $text =~ /^## Memory\n(.*)/ms;

    while ($memory =~ /^\| .*? \| (\d+) \| (\d+) \|$/mg) {
        push @findings, "$1 bytes: not $2 keys" if int(2 ** 20 / $1) != $2;
    }

    return @findings;
}


# and why Redis is marked down is a reason of ours, or of the system

sub check_log_line {
    my ($line) = @_;

    return "no reason is \"$1\""
        if $line =~ /is marked down: ([a-z].*?)(?: "|$)/
           && !grep { $_ eq $1 } @{$source{reasons}};

    return if grep { $line =~ /^(?:$_)$/ } @{$source{messages}};
    return 'nothing logs this';
}


sub check_breaker {
    my ($text) = @_;

    my %is = %{$source{breaker}};
    my ($section) = $text =~ /^\*\*The breaker\.\*\* (.*?)\n\n/ms;
    my @findings;

    my %told = (
        FAILURES => qr/\b(\d+)\sfailures\sin\sa\srow/,
        FIRST_PAUSE => qr/\b(\d+)\smilliseconds/,
        LAST_PAUSE => qr/\b(\d+)\sseconds/,
    );

    for my $name (sort keys %told) {
        my ($number) = $section =~ $told{$name};

        $number .= '000' if $name eq 'LAST_PAUSE';
        push @findings, "$name is $is{$name}, not $number"
            if $number != $is{$name};
    }

    return @findings;
}


# the table has all of ours; those with a capital are the system's

sub check_reasons {
    my ($text) = @_;

    my @tables = $text =~ /^\| reason \|.*\n((?:^\|.*\n)+)/mg;
    my %known = map { $_ => 1 } @{$source{reasons}};
    my %told = map { reason($_) => 1 } map { /^\| `([^`]+)` \|/mg } @tables;

    return ((map { "\"$_\" is not told" } grep { !$told{$_} } sort keys %known),
            (map { "\"$_\" does not exist" }
             grep { !$known{$_} && !/^[A-Z]/ } sort keys %told));
}


sub check_links {
    my ($page, $text) = @_;

    my ($dir) = $page =~ m{^(.*/)};
    my @findings;

    $text =~ s/^```.*?^```$//msg;

    while ($text =~ /(?:\]\(|\b(?:src|href)=")([^()\s"]+)[)"]/g) {
        my $link = $1;

        next if $link =~ m{^https://};

        my ($path, $anchor) = split /#/, $link, 2;
        my $file = $path eq '' ? $page : ($dir || '') . $path;

        if (!-e $file) {
            push @findings, "$link leads nowhere";
            next;
        }

        push @findings, "$link: no such heading"
            if defined $anchor && !grep { $_ eq $anchor } anchors($file);
    }

    return @findings;
}


# a page that begins with links to its sections has one for each

sub check_contents {
    my ($page, $text) = @_;

    my ($intro) = $text =~ /\A(.*?)^## /ms or return;

    return if $intro !~ /\]\(#/;

    return map { "no link to #$_ at the top" }
           grep { index($intro, "](#$_)") < 0 } headings($text, '##');
}


sub anchors {
    my ($file) = @_;

    return headings(slurp($file), '#+');
}


sub headings {
    my ($text, $level) = @_;

    $text =~ s/^```.*?^```$//msg;

    return map { lc(s/[^\w\s-]//gr) =~ s/\s/-/gr } $text =~ /^$level (.*)$/mg;
}


# what README says of speed is what was measured last, or near to it

sub check_speed {
    my ($text) = @_;

    my ($said) = $text =~ /^\*\*Speed\*\*: (.*?)(?:\n\n|\z)/ms
        or return 'nothing is said';
    my @said = $said =~ /(?<![\d,.])(\d\.\d+)(?![.,]?\d)/g;
    my @findings = @said == 4 ? () : 'there are not four ratios';
    my %added = $text{'docs/performance.md'}
                =~ m{^\| (\w+) \| [^|]+ \| (\d+ / \d+) \|$}mg;
    my @ours = split m{ / }, $added{sliding_window} // '';

    for my $name (qw(limit_req haproxy)) {
        my @theirs = split m{ / }, $added{$name} // '';

        push @findings, "$name was not measured" if !@theirs || !@ours;

        for my $i (0 .. $#theirs) {
            my $ratio = ($ours[$i] // 0) / $theirs[$i];
            my $told = shift(@said) // 0;

            push @findings, sprintf '%s: %s, but %.2f was measured', $name,
                                    $told, $ratio
                if $told < $ratio / 1.5 || $told > $ratio * 1.5;
        }
    }

    return @findings;
}


# names of functions, types and files are those of the tree; where a section
# says so, their prefix is left out

sub check_names {
    my ($text) = @_;

    my $source = join '', map { slurp($_) }
                 glob('ngx_http_ratelimit_module.c src/*/*.[ch]');
    my @findings;

    for my $name ($text =~ /`([\w.\/-]+)`/g) {

        if ($name =~ m{/|\.\w+$}) {
            my $full = $name =~ s{/(?=\w+\.[ch]$)}{/ngx_http_ratelimit_}r;

            push @findings, "there is no $name"
                if !grep { -e } $name, "src/$name", "src/$full",
                                glob("src/*/*/$name");

        } elsif ($name =~ /_\w/ && $name !~ /_$/) {
            push @findings, "$name is not in the source"
                if $source !~ /\b(?:ngx_http_ratelimit_)?\Q$name\E\b/;
        }
    }

    return @findings;
}


# an algorithm has files of its name

sub check_files {
    my ($text) = @_;

    my %algorithm = map { $_ => 1 } algorithms();

    return map { "$_ is not named" }
           grep { index($text, "`$_`") < 0
                  && !(/ratelimit_(\w+)\.c/ && $algorithm{$1}) }
           map { s{^src/|(?<=/)ngx_http_ratelimit_}{}gr } glob('src/*/*.c');
}


# targets and settings of the Makefile, and targets of nginx's own

sub check_targets {
    my ($text) = @_;

    my %known = map { $_ => 1 } slurp('Makefile') =~ /^\.PHONY: (\w+)$/mg;
    my @findings;

    while ($text =~ /(?:^|`)make ([a-z]\w*)/mg) {
        push @findings, "make $1: no such target"
            if !$known{$1} && $1 ne 'modules';
    }

    my %setting = map { $_ => 1 }
                  (slurp('Makefile') . slurp('config')) =~ /\b([A-Z_]{2,})\b/g;

    for my $line ($text =~ /^((?:RUN )?make .*|[A-Z_]+=\S+ .*)$/mg) {
        push @findings, map { "$_=: no such setting" } grep { !$setting{$_} }
                        $line =~ /(?<!\S)([A-Z_]+)=/g;
    }

    return @findings;
}


# the names of the package and of the module, and where it is

sub check_installed {
    my ($text) = @_;

    my ($package) = slurp('.ci/deb') =~ /^name=(\S+)$/m;
    my $module = 'ngx_http_ratelimit_module.so';

    return ((map { "there is no package $_" } grep { $_ ne $package }
             $text =~ /\b(libnginx-mod-[a-z-]*ratelimit)\b/g),
            (map { "there is no $_" } grep { $_ ne $module }
             $text =~ /\b(ngx_\w*ratelimit\w*\.so)\b/g),
            (map { "$_: not the folder of modules" }
             grep { !m{^(?:/usr/lib/nginx/)?modules/} }
             $text =~ /\bload_module +(\S+);/g));
}


sub check_text {
    my ($text) = @_;

    my (@findings, $n);

    push @findings, '1: no heading' if $text !~ /\A# /;

    for (split /\n/, $text) {
        $n++;

        push @findings, "$n: trailing blank" if / $/;
        push @findings, "$n: tab" if /\t/;
        push @findings, "$n: longer than 80 columns"
            if length(s/\]\(\S+\)//r) > 80 && !/^\|/;
    }

    return @findings;
}


sub trim {
    my ($text) = @_;

    return join ' ', split ' ', $text;
}


sub slurp {
    my ($file) = @_;

    open my $in, '<:encoding(UTF-8)', $file or BAIL_OUT("$file: $!");
    local $/;

    return <$in>;
}


sub spew {
    my ($file, $text) = @_;

    open my $out, '>:encoding(UTF-8)', $file or BAIL_OUT("$file: $!");
    print $out $text;
    close $out or BAIL_OUT("$file: $!");
}
