#!/usr/bin/perl

# What "nginx -t" says of a configuration: every kind of error that each
# directive can have, word for word with the line that is to blame, and every
# spelling that must be accepted.
#
# A row is a name, what is written, and the message that is expected.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Configuration;
use Registry qw(algorithms);

my $zones = <<'ZONES';
ratelimit_zone $arg_a zone=plain:1m rate=10r/s;
ratelimit_zone $arg_a zone=fixed:1m rate=10r/s algorithm=fixed_window;
ratelimit_zone $arg_a zone=log:1m rate=10r/s algorithm=sliding_log;
ratelimit_zone $arg_a zone=token:1m rate=10r/s algorithm=token_bucket;
ratelimit_zone $arg_a zone=leaky:1m rate=10r/s algorithm=leaky_bucket;
ratelimit_zone $arg_a zone=bare:1m;
ratelimit_zone $arg_a zone=slow:1m rate=1r/366d algorithm=leaky_bucket;
ZONES

my $rate = 'invalid parameter "rate=%s" in "%s" directive: %s';
my $number = 'invalid parameter "%s" in "%s" directive: '
             . 'must be a number from %s to %s';
my $value = 'invalid value "%s" in "%s" directive: '
            . 'must be a number from %s to %s';
my $needs = 'parameter "%s" in "%s" directive needs algorithm "%s", '
            . 'but zone "%s" has "%s"';
my $too_large = 'limit of zone "%s" in "ratelimit" directive is too large: '
                . 'requests times period is too large';
my $delay = 'invalid parameter "delay=%s" in "ratelimit" directive: %s';
my $too_many = 'too many rates in "ratelimit" directives of one block: '
               . '%s, at most 256 are allowed';
my $again = 'duplicate zone "%s" in "ratelimit" directive: '
            . 'it needs a "name" to count separately';

my @rates = (
    ['',                    'the number of requests is missing'],
    ['r/s',                 'the number of requests is missing'],
    ['-1r/s',               'the number of requests is missing'],
    ['x',                   'the number of requests is missing'],
    ['0r/s',                'must allow at least one request'],
    ['4294967296r/s',       'the number of requests is too large'],
    ['99999999999999999999999r/s',
                            'the number of requests is too large'],
    ['10',                  'must be NUMBERr/PERIOD'],
    ['10r',                 'must be NUMBERr/PERIOD'],
    ['10/s',                'must be NUMBERr/PERIOD'],
    ['1.5r/s',              'must be NUMBERr/PERIOD'],
    ['10R/s',               'must be NUMBERr/PERIOD'],
    ['10r/',                'the unit of the period must be s, m, h or d'],
    ['10r/15',              'the unit of the period must be s, m, h or d'],
    ['10r/w',               'the unit of the period must be s, m, h or d'],
    ['100r/min',            'the unit of the period must be s, m, h or d'],
    ['100r/15MIN',          'the unit of the period must be s, m, h or d'],
    ['100r/month',          'the unit of the period must be s, m, h or d'],
    ['100r/hour',           'the unit of the period must be s, m, h or d'],
    ['10r/0s',              'the period is zero'],
    ['10r/s/',              'unexpected characters after the period'],
    ['10r/15m5s',           'unexpected characters after the period'],
    ['10r/367d',            'the period is longer than 366 days'],
    ['1r/99999999999999999999d',
                            'the period is longer than 366 days'],
    ['145837r/366d',        'requests times period is too large'],
    ['4294967295r/d',       'requests times period is too large'],
);

subtest 'ratelimit_zone' => sub {
    my $d = 'ratelimit_zone';
    my $bad = sub { bad('http', "$d $_[0];", @_) };

    $bad->('', arguments($d));
    $bad->('$arg_a', arguments($d));

    misplaced('server', "$d \$arg_a zone=x:1m rate=1r/s;");
    misplaced('location', "$d \$arg_a zone=x:1m rate=1r/s;");

    $bad->('$arg_a rate=1r/s', qq("$d" must have "zone" parameter));
    $bad->('zone=x:1m rate=1r/s',
           qq("$d" must have a key before "zone=x:1m"));
    $bad->('rate=1r/s algorithm=sliding_log',
           qq("$d" must have a key before "rate=1r/s"));

    for my $unknown (qw(foo foo=1 burst=5 nodelay Zone=y:1m key=$arg_b soft=1%
                        buckets =5 off zone rate), '""')
    {
        $bad->("\$arg_a zone=x:1m $unknown",
               'invalid parameter "' . $unknown =~ tr/"//dr
               . qq(" in "$d" directive: )
               . must_be(qw(zone= rate= algorithm= fail= redis= sync= buckets=
                            capacity= top=)));
    }

    for my $twice (qw(zone=y:1m algorithm=sliding_window buckets=5 fail=open))
    {
        my $first = $twice =~ /^zone/ ? '' : $twice;

        $bad->("\$arg_a zone=x:1m $first $twice",
               qq(invalid parameter "$twice" in "$d" directive: )
               . 'is duplicate');
    }

    $bad->('$arg_a zone=x:1m algorithm=token_bucket capacity=5 capacity=5',
           qq(invalid parameter "capacity=5" in "$d" directive: is duplicate));

    # zone=

    for my $case (
        ['',            'must be "zone=NAME:SIZE"'],
        ['x',           'must be "zone=NAME:SIZE"'],
        [':1m',         'the name must not be empty'],
        ['x:',          'the size is invalid'],
        ['x:y',         'the size is invalid'],
        ['x:-1m',       'the size is invalid'],
        ['x:1mb',       'the size is invalid'],
        ['x:1.5m',      'the size is invalid'],
        ['x:1m:y',      'the size is invalid'],
        ['x:99999999999999999999',  'the size is invalid'],
        ['x:9999999999999999999g',  'the size is invalid'],
    ) {
        my ($zone, $reason) = @$case;

        $bad->("\$arg_a zone=$zone rate=1r/s",
               qq(invalid parameter "zone=$zone" in "$d" directive: $reason));
    }

    for my $size (qw(0 1 4k 31k 32767)) {
        $bad->("\$arg_a zone=x:$size rate=1r/s",
               qq(invalid parameter "zone=x:$size" in "$d" directive: )
               . 'the size must be at least 32k');
    }

    $bad->('$arg_b zone=plain:1m rate=1r/s',
           qq($d "plain" is already bound to key "\$arg_a"));
    $bad->('$arg_a zone=plain:1m rate=10r/s',
           qq($d "plain" is already bound to key "\$arg_a"));

    bad('http', "limit_req_zone \$arg_a zone=x:1m rate=1r/s;\n"
                . "$d \$arg_a zone=x:1m rate=1r/s;",
        'zone of another module',
        'the shared memory zone "x" is already declared for a different use');

    bad('http', "$d \$arg_a zone=x:1m rate=1r/s;\n"
                . "limit_req_zone \$arg_a zone=x:1m rate=1r/s;",
        'zone for another module',
        'the shared memory zone "x" is already declared for a different use');

    # rate=

    for my $case (@rates) {
        my ($text, $reason) = @$case;

        $bad->("\$arg_a zone=x:1m rate=$text",
               sprintf($rate, $text, $d, $reason));
    }

    $bad->('$arg_a zone=x:1m rate=1r/m rate=5r/h rate=2r/60s',
           sprintf($rate, '2r/60s', $d, 'another rate has the same period'));
    $bad->('$arg_a zone=x:1m rate=1r/s rate=1r/s',
           sprintf($rate, '1r/s', $d, 'another rate has the same period'));
    $bad->('$arg_a zone=x:1m "rate=1r/s 5r/m"',
           sprintf($rate, '1r/s 5r/m', $d,
                   'unexpected characters after the period'));

    variable_rates('http', "$d \$arg_a zone=x:1m", $d);

    $bad->('$arg_a zone=x:1m rate=$nowhere',
           qq(unknown "nowhere" variable in "$d" directive));

    # a log of unknown length

    for my $zone ('rate=$arg_r', '') {
        bad('location',
            "ratelimit zone=x" . ($zone ? '' : ' rate=$arg_r') . ";  # here\n"
            . "} }\nratelimit_zone \$arg_a zone=x:1m algorithm=sliding_log "
            . "$zone;\nserver { location / {",
            "a log with a variable rate and no other, $zone",
            'invalid parameter "rate=$arg_r" in "ratelimit" directive: '
            . 'zone "x" with algorithm "sliding_log" needs a rate without '
            . 'variables as an upper bound');
    }

    # fail=

    for my $word ('', 'closed,', qw(foo off Open clos 1)) {
        $bad->("\$arg_a zone=x:1m fail=$word",
               qq(invalid parameter "fail=$word" in "$d" directive: )
               . 'must be "local", "open" or "closed"');
    }

    # algorithm= and what belongs to one

    for my $name ('', qw(foo sliding SLIDING_WINDOW sliding_windows)) {
        $bad->("\$arg_a zone=x:1m algorithm=$name",
               qq(invalid parameter "algorithm=$name" in "$d" directive: )
               . must_be(algorithms()));
    }

    for my $name (grep { $_ ne 'sliding_window' } algorithms()) {
        $bad->("\$arg_a zone=x:1m algorithm=$name buckets=5",
               sprintf($needs, 'buckets', $d, 'sliding_window', 'x', $name));
        $bad->("\$arg_a zone=x:1m buckets=5 algorithm=$name",
               sprintf($needs, 'buckets', $d, 'sliding_window', 'x', $name));
    }

    for my $name (grep { $_ ne 'token_bucket' } algorithms()) {
        $bad->("\$arg_a zone=x:1m algorithm=$name capacity=5",
               sprintf($needs, 'capacity', $d, 'token_bucket', 'x', $name));
    }

    $bad->('$arg_a zone=x:1m capacity=5',
           sprintf($needs, 'capacity', $d, 'token_bucket', 'x',
                   'sliding_window'));

    for my $n ('', qw(0 61 -1 +5 x 5x 1.5 18446744073709551617)) {
        $bad->("\$arg_a zone=x:1m buckets=$n",
               sprintf($number, "buckets=$n", $d, 1, 60));
    }

    $bad->("\$arg_a zone=x:1m top=$_", sprintf($number, "top=$_", $d, 0, 256))
        for qw(257 -1 x), '';

    for my $n ('', qw(0 -1 x 5x 4294967296 99999999999999999999)) {
        $bad->("\$arg_a zone=x:1m algorithm=token_bucket capacity=$n",
               sprintf($number, "capacity=$n", $d, 1, 4294967295));
    }

    # keys

    $bad->('$nowhere zone=x:1m rate=1r/s',
           qq(unknown "nowhere" variable in "$d" directive));
    $bad->('a${nowhere}b zone=x:1m rate=1r/s',
           qq(unknown "nowhere" variable in "$d" directive));
    $bad->('$arg_a$nowhere$elsewhere zone=x:1m rate=1r/s',
           qq(unknown "nowhere" variable in "$d" directive));
    $bad->('"" zone=x:1m rate=1r/s',
           qq(invalid key "" in "$d" directive: must not be empty));
    $bad->('$ zone=x:1m rate=1r/s', 'invalid variable name');
    $bad->('"${arg_a" zone=x:1m rate=1r/s',
           'the closing bracket in "arg_a" variable is missing');

    # a log needs room for as many times as its largest limit: the size that
    # the message names is enough, and a kilobyte less is not

    my $log = "$d \$arg_a zone=x:%s algorithm=sliding_log %s;  # here\n"
              . 'ratelimit zone=x %s;';

    for my $case (
        ['rate=1000000r/h', '',                     '1000000 requests'],
        ['rate=1000000r/h', 'soft=10%',             '1100000 requests'],
        ['rate=1r/h rate=1000000r/d rate=1r/s', '', '1000000 requests'],
        ['rate=1r/h',       'rate=1000000r/h',      '1000000 requests of '
                                                    . 'limit "http"'],
        ['rate=1r/h',       'name=a rate=5000r/h',  '5000 requests of limit '
                                                    . '"a"'],
        ['rate=1000000r/h', 'rate=$arg_r',          '1000000 requests of '
                                                    . 'limit "http"'],
        ['rate=4294967295r/s', '',                  '4294967295 requests'],
        [join(' ', map { "rate=${_}r/${_}h" } 1 .. 200), '', '200 requests'],
    ) {
        my ($rates, $limit, $largest) = @$case;

        my $message = qq("$d" zone "x" is too small for its rates: $largest )
                      . 'need at least %dk';
        my $name = "a log too large for its zone: $largest, "
                   . substr($rates, 0, 40);

        write_in('http', sprintf($log, '64k', $rates, $limit));

        my ($size) = test_conf() =~ /need at least (\d+)k/;

        bad('http', sprintf($log, '64k', $rates, $limit), $name,
            sprintf($message, $size));
        bad('http', sprintf($log, $size - 1 . 'k', $rates, $limit),
            "$name, 1k less than enough", sprintf($message, $size));
        good('http', sprintf($log, $size . 'k', $rates, $limit),
             "$name, enough") if $size < 100_000;
    }
};

subtest 'ratelimit' => sub {
    my $d = 'ratelimit';
    my $bad = sub { bad('location', "$d $_[0];", @_) };
    my $parameters = must_be(qw(zone= rules= descriptor= key= rate= name= soft= elastic= burst=
                                delay= nodelay cost= settle= if= count= rejected=
                                after_auth));

    $bad->('', arguments($d));
    misplaced('main', "$d zone=plain;");
    misplaced('upstream', "$d zone=plain;");
    misplaced('if', "$d zone=plain;");
    misplaced('limit_except', "$d zone=plain;");

    $bad->('rate=1r/s', qq("$d" must have "zone" parameter));
    $bad->('nodelay', qq("$d" must have "zone" parameter));

    for my $unknown (qw(foo foo=1 nodelay=1 Burst=5 buckets=5 capacity=5
                        algorithm=leaky_bucket off plain zone after_auth=1
                        after_auth= before_auth after fail=open rejected count
                        soft delay), '""')
    {
        $bad->("zone=plain $unknown",
               'invalid parameter "' . $unknown =~ tr/"//dr
               . qq(" in "$d" directive: $parameters));
    }

    $bad->('off zone=plain',
           qq(invalid parameter "off" in "$d" directive: )
           . 'must be the only one');

    for my $word (qw(on plain redis offf)) {
        $bad->("$word$_",
               qq(invalid parameter "$word" in "$d" directive: )
               . qq(must be "zone=$word" or "off"))
            for '', ' rate=5r/m', ' zone=plain';
    }

    $bad->('""', qq(invalid parameter "" in "$d" directive: $parameters));
    $bad->('redis://alice:secret@h',
           qq(invalid parameter "redis://***\@h" in "$d" directive: )
           . $parameters);

    for my $twice (qw(zone=leaky key=$arg_a name=x soft=5% burst=5 delay=5
                      nodelay cost=5 settle=$arg_a if=$arg_a count=401 rejected=count
                      after_auth))
    {
        my $first = $twice =~ /^zone/ ? '' : $twice;

        $bad->("zone=leaky $first $twice",
               qq(invalid parameter "$twice" in "$d" directive: )
               . 'is duplicate');
    }

    # zone=

    $bad->('zone=', qq(invalid parameter "zone=" in "$d" directive: )
                    . 'must not be empty');
    $bad->('zone=nowhere', qq(unknown zone "nowhere" in "$d" directive));
    $bad->('zone=plai', qq(unknown zone "plai" in "$d" directive));
    $bad->('zone=plain2', qq(unknown zone "plain2" in "$d" directive));
    $bad->('zone=Plain', qq(unknown zone "Plain" in "$d" directive));
    $bad->('zone=plain:1m', qq(unknown zone "plain:1m" in "$d" directive));

    bad('http', "$d zone=nowhere;", 'undefined zone in http',
        qq(unknown zone "nowhere" in "$d" directive));
    bad('server', "$d zone=nowhere;", 'undefined zone in a server',
        qq(unknown zone "nowhere" in "$d" directive));
    bad('http', "limit_req_zone \$arg_a zone=x:1m rate=1r/s;\n$d zone=x;",
        'zone of another module', qq(unknown zone "x" in "$d" directive));

    # rate=

    for my $case (@rates) {
        my ($text, $reason) = @$case;

        $bad->("zone=plain rate=$text", sprintf($rate, $text, $d, $reason));
    }

    $bad->('zone=plain rate=1r/m rate=2r/60s',
           sprintf($rate, '2r/60s', $d, 'another rate has the same period'));
    variable_rates('location', "$d zone=plain", $d);

    for my $text ('$nowhere', '${arg_a}r/$nowhere', '5r/s$nowhere') {
        $bad->("zone=plain rate=$text",
               qq(unknown "nowhere" variable in "$d" directive));
    }

    $bad->('zone=plain rate=$', 'invalid variable name');

    # too many of them; a variable may be 8

    my @variables = map { "rate=\$arg_a name=$_" } 1 .. 33;

    for my $case (
        [257, join ' ', map { "rate=${_}r/${_}m" } 1 .. 257],
        [264, @variables],
        [264, map { "$_ after_auth" } @variables],
        [258, @variables[1 .. 31],
              join(' ', 'after_auth', map { "rate=${_}r/${_}m" } 1 .. 10)],
    ) {
        my ($n, @limits) = @$case;
        my ($first, @others) = map { "$d zone=plain $_;" } @limits;

        bad('location', join("\n", "$first  # here", @others),
            "$n rates in a block", sprintf($too_many, $n));
    }

    $bad->('zone=bare', qq("$d" directive must have "rate" parameter, )
                        . 'as zone "bare" has none');
    $bad->('zone=bare key=$arg_b name=x soft=5%',
           qq("$d" directive must have "rate" parameter, )
           . 'as zone "bare" has none');

    # soft=

    for my $soft ('', qw(5 % x 10%% 1.5), '5 %x') {
        my $reason = $soft =~ /%$/ ? 'must be from 1% to 1000%'
                                   : 'must be a percentage such as "10%"';

        $bad->(qq("zone=plain" "soft=$soft"),
               qq(invalid parameter "soft=$soft" in "$d" directive: $reason));
    }

    for my $soft (qw(0% 1001% -5% +5% 1.5% x% 99999999999999999999%)) {
        $bad->("zone=plain soft=$soft",
               qq(invalid parameter "soft=$soft" in "$d" directive: )
               . 'must be from 1% to 1000%');
    }

    # burst=, delay=, nodelay

    for my $n ('', qw(0 -1 x 5x 4294967295 99999999999999999999)) {
        $bad->("zone=leaky burst=$n",
               sprintf($number, "burst=$n", $d, 1, 4294967294));
    }

    for my $n (qw(0 -1 x 5x 1s 4294967295 99999999999999999999)) {
        $bad->("zone=leaky delay=$n",
               sprintf($delay, $n, 'must be a number from 1 to 4294967294'));
    }

    for my $time (qw(0 0s 0ms abc -1 5x 1.5s 2d 86401 1d1ms 25h 5r/s 1m1h
                     99999999999999999999s))
    {
        $bad->("zone=token delay=$time",
               sprintf($delay, $time, 'must be a time from 1ms to 1d'));
    }

    $bad->("zone=$_ delay=", sprintf($delay, '', 'must not be empty'))
        for qw(leaky token plain);
    $bad->("zone=$_ delay=\$arg_a",
           sprintf($delay, '$arg_a', 'must not contain variables'))
        for qw(leaky token plain);

    my %algorithms = (
        plain => 'sliding_window',
        fixed => 'fixed_window',
        log => 'sliding_log',
        token => 'token_bucket',
    );

    for my $zone (sort keys %algorithms) {
        for my $parameter (qw(burst=5 nodelay)) {
            $bad->("zone=$zone $parameter",
                   sprintf($needs, $parameter =~ s/=.*//r, $d, 'leaky_bucket',
                           $zone, $algorithms{$zone}));
        }
    }

    for my $zone (qw(plain fixed log)) {
        for my $value (qw(5 1s x)) {
            $bad->("zone=$zone delay=$value",
                   sprintf($needs, 'delay', $d, 'token_bucket" or "leaky_bucket',
                           $zone, $algorithms{$zone}));
        }
    }

    $bad->('zone=token burst=5 delay=1s',
           sprintf($needs, 'burst', $d, 'leaky_bucket', 'token',
                   'token_bucket'));

    # count=

    for my $codes (qw(99 100 199 600 999 1000 0401 40 x 4x 4XX 1xx 2xx 3xx 6xx
                      xxx 4xx5xx -401 401;403 401-403 $arg_a),
                   '', '401,', ',401', '401,,403', '401,x', '403,600', '4xx,',
                   '401, 403')
    {
        $bad->(qq(zone=plain "count=$codes"),
               qq(invalid parameter "count=$codes" in "$d" directive: must be )
               . 'statuses from 200 to 599, 4xx or 5xx, separated by commas');
    }

    # rejected=

    for my $word ('', 'count,', qw(foo counts Count on 1)) {
        $bad->("zone=plain rejected=$word",
               qq(invalid parameter "rejected=$word" in "$d" directive: )
               . 'must be "count"');
    }

    $bad->('zone=plain burst=5 nodelay',
           sprintf($needs, 'burst', $d, 'leaky_bucket', 'plain',
                   'sliding_window'));

    # products

    $bad->("zone=$_", sprintf($too_large, /^(\w+)/))
        for 'slow burst=145836', 'leaky rate=1r/d burst=4294967294',
            'plain rate=145836r/366d soft=1%',
            'plain rate=4294967295r/s soft=1%',
            'token rate=145834r/366d delay=1d',
            'token rate=50000000r/d delay=1d';

    bad('location',
        "$d zone=x;  # here\n} }\nratelimit_zone \$arg_a zone=x:1m "
        . "rate=1r/366d algorithm=token_bucket capacity=145837;\n"
        . 'server { location / {',
        'capacity times period of a zone declared further down',
        sprintf($too_large, 'x'));

    # expressions

    for my $name (qw(key if)) {
        $bad->("zone=plain $name=",
               qq(invalid parameter "$name=" in "$d" directive: )
               . 'must not be empty');
    }

    for my $name (qw(key cost settle if)) {
        $bad->("zone=plain $name=\$nowhere",
               qq(unknown "nowhere" variable in "$d" directive));
        $bad->("zone=plain $name=\${arg_a}x\$nowhere",
               qq(unknown "nowhere" variable in "$d" directive));
        $bad->("zone=plain $name=\$", 'invalid variable name');
    }

    for my $cost ('', qw(x -1 +1 1.5 5x 4294967296 99999999999999999999)) {
        $bad->("zone=plain $_=$cost",
               sprintf($number, "$_=$cost", $d, 0, 4294967295))
            for qw(cost settle);
    }

    # name=

    $bad->('zone=plain name=',
           qq(invalid parameter "name=" in "$d" directive: must not be empty));
    $bad->('zone=plain name=$uri',
           qq(invalid parameter "name=\$uri" in "$d" directive: )
           . 'must not contain variables');
    $bad->('zone=plain name=a${uri}',
           qq(invalid parameter "name=a\${uri}" in "$d" directive: )
           . 'must not contain variables');

    # one counter twice in a decision

    for my $case (
        ['zone=plain', 'zone=plain'],
        ['zone=plain', 'zone=plain soft=5%'],
        ['zone=plain', 'zone=plain if=$arg_b'],
        ['zone=plain rate=1r/s', 'zone=plain rate=5r/m'],
        ['zone=plain key=$arg_b', 'zone=plain rate=5r/m'],
        ['zone=plain key=$arg_b', 'zone=plain key=$arg_c'],
        ['zone=plain name=x', 'zone=plain name=x'],
        ['zone=plain name=x rate=1r/s', 'zone=plain name=x key=$arg_b'],
        ['zone=plain rate=1r/s', 'zone=plain name=/'],
    ) {
        my @limits = map { "$d $_;" } @$case;

        bad('location', join("\n", @limits), "@limits",
            sprintf($again, 'plain'));
    }

    bad('server', "$d zone=plain rate=1r/s;\n$d zone=log;\n"
                  . "$d zone=plain rate=5r/m;",
        'one zone twice in a server, another one between',
        sprintf($again, 'plain'));
    bad('http', "$d zone=plain rate=1r/s;\n$d zone=plain rate=5r/m;",
        'one zone twice in http', sprintf($again, 'plain'));

    # off

    bad('location', "$d off;\n$d off;", 'off twice',
        qq("$d" directive is duplicate));
    bad('location', "$d off;\n$d zone=plain;", 'off first',
        qq("$d" directive conflicts with "ratelimit off" of the same block));
    bad('location', "$d zone=plain;\n$d off;", 'off last',
        qq("$d" directive "off" conflicts with other "ratelimit" directives )
        . 'of the same block');
};

subtest 'ratelimit_headers' => sub {
    my $d = 'ratelimit_headers';
    my $bad = sub { bad('location', "$d $_[0];", @_) };

    plain($d, 'x');

    $bad->('', arguments($d));

    for my $unknown (qw(foo X on reset reset= reset=foo), '""') {
        $bad->("x $unknown", 'invalid parameter "' . $unknown =~ tr/"//dr
                             . qq(" in "$d" directive: must be "off", "x", )
                             . '"ietf", "reset=delta" or "reset=epoch"');
    }

    for my $twice (qw(x ietf reset=delta reset=epoch off)) {
        $bad->("$twice $twice",
               qq(invalid parameter "$twice" in "$d" directive: )
               . 'is duplicate');
    }

    for my $other (qw(x ietf reset=delta)) {
        my $message = qq("$d" directive has "off", which conflicts with )
                      . 'other parameters';

        $bad->("off $other", $message);
        $bad->("$other off", $message);
    }

    $bad->('reset=epoch', qq("$d" directive must have "x", "ietf" or "off"));
    $bad->('x reset=delta reset=epoch',
           qq("$d" directive has both "reset=delta" and "reset=epoch"));
};

subtest 'ratelimit_status' => sub {
    my $d = 'ratelimit_status';

    plain($d, 429);
    counted($d, 429);

    for my $n ('""', qw(x 0 200 399 600 -429 429x 4294967725
                        18446744073709552045))
    {
        bad('location', "$d $n;", "$d $n",
            sprintf($value, $n =~ tr/"//dr, $d, 400, 599));
    }
};

subtest 'ratelimit_ipv6_prefix' => sub {
    my $d = 'ratelimit_ipv6_prefix';

    plain($d, 64);
    counted($d, 64);

    for my $n ('""', qw(x 0 129 -1 64x /64 4294967360)) {
        bad('location', "$d $n;", "$d $n",
            sprintf($value, $n =~ tr/"//dr, $d, 1, 128));
    }
};

subtest 'ratelimit_body' => sub {
    my $d = 'ratelimit_body';

    plain($d, 'off');
    counted($d, 'off');

    for my $word ('""', qw(on json problems of)) {
        bad('location', "$d $word;", "$d $word",
            'invalid value "' . $word =~ tr/"//dr . qq(" in "$d" directive: )
            . 'must be "problem" or "off"');
    }
};

subtest 'ratelimit_log_level' => sub {
    my $d = 'ratelimit_log_level';

    plain($d, 'warn');

    bad('location', "$d;", 'no value', arguments($d));
    bad('location', "$d warn limit=1 limit=1;", 'three', arguments($d));
    bad('location', "$d warn $_->[0];", $_->[0],
        qq(invalid parameter "$_->[0]" in "$d" directive: $_->[1]))
        for ['warn', 'must be "limit="'],
            map { ["limit=$_", 'must be a number from 1 to 1000000'] }
                ('', qw(0 x 1000001));

    for my $word ('""', qw(debug crit emerg 5 warning)) {
        bad('location', "$d $word;", "$d $word",
            'invalid value "' . $word =~ tr/"//dr . qq(" in "$d" directive: )
            . 'must be "info", "notice", "warn" or "error"');
    }
};

subtest 'ratelimit_dry_run' => sub {
    my $d = 'ratelimit_dry_run';

    plain($d, 'on');
    counted($d, 'on');

    for my $word ('""', qw(yes 1 onn)) {
        bad('location', "$d $word;", "$d $word",
            'invalid value "' . $word =~ tr/"//dr . qq(" in "$d" directive, )
            . 'it must be "on" or "off"');
    }
};

subtest 'ratelimit_bypass' => sub {
    my $d = 'ratelimit_bypass';

    misplaced('main', "$d \$arg_a;");
    misplaced('if', "$d \$arg_a;");
    bad('location', "$d;", 'no value', arguments($d));
    bad('location', "$d \$nowhere;", 'unknown variable',
        qq(unknown "nowhere" variable in "$d" directive));
    bad('location', "$d \$arg_a;\n$d \$arg_b \$nowhere;",
        'unknown variable of the second line',
        qq(unknown "nowhere" variable in "$d" directive));
    bad('server', "$d \$arg_a \$nowhere \$arg_b;  # here\n$d \$arg_b;",
        'unknown variable of the first line',
        qq(unknown "nowhere" variable in "$d" directive));
};

subtest 'ratelimit_api' => sub {
    my $d = 'ratelimit_api';
    my $invalid = "invalid parameter \"%s\" in \"$d\" directive: %s";

    misplaced($_, "$d;") for qw(main http server if upstream);

    bad('location', "$d;\n$d;", 'twice', qq("$d" directive is duplicate));
    bad('location', "$d write=on write=on;", 'two', arguments($d));
    bad('location', "$d $_->[0];", $_->[0], sprintf($invalid, @$_))
        for ['write=', 'must be "off" or "on"'],
            ['write=yes', 'must be "off" or "on"'],
            ['read=on', 'must be "write="'];
    bad('server', "location ~ ^/a { $d; }", 'regex',
        qq("$d" directive needs a location that is given by a prefix));
    bad('server', "location \@a { $d; }", 'named',
        qq("$d" directive needs a location that has a path));

    # one inside another has its paths

    write_in('server', "location /a { $d; location = /a/metrics { $d; } }\n"
                       . "location = /b { $d; }");
    is(test_conf(),
       qq(nginx: [warn] "$d" in "location = /b" has no resources below it, and )
       . "the page does not work: give the location by a prefix\n" . passed(),
       'without what is below it');
};

subtest 'an included file' => sub {
    for my $case (
        ['zone=nowhere',    'unknown zone "nowhere" in "ratelimit" directive'],
        ['foo',             'invalid parameter "foo" in "ratelimit" directive: '
                            . 'must be "zone=foo" or "off"'],
        ['zone=plain burst=5',
         sprintf($needs, 'burst', 'ratelimit', 'leaky_bucket', 'plain',
                 'sliding_window')],
        ['zone=plain if=$nowhere',
         'unknown "nowhere" variable in "ratelimit" directive'],
    ) {
        my ($limit, $message) = @$case;

        write_file("$dir/included.conf", "\n\nratelimit $limit;\n\n");
        write_in('location', "include $dir/included.conf;");

        is(test_conf(), refused($message, "$dir/included.conf:3"), $limit);
    }
};

subtest 'good' => sub {
    good('http', '', 'nothing');
    good('http', "ratelimit_zone $_;", $_)
        for '$arg_a zone=x:32k',
            '$arg_a zone=x:32K rate=1r/s',
            '$arg_a zone=x:32768 rate=1r/s',
            'all zone=x:1m rate=1r/s',
            '"$binary_remote_addr $http_x_y" zone=x:1M rate=1r/s',
            '$ratelimit_client zone=x:1m rate=1r/s',
            '${arg_a}x zone=x:1m rate=1r/s',
            '$arg_a rate=1r/s algorithm=fixed_window zone=x:1m',
            map({ "\$arg_a zone=x:1m rate=$_" }
                qw(15r/s 200r/m 900r/15m 500r/1h 500r/h 20r/d 1r/90s 1r/366d
                   4294967295r/s 145836r/366d)),
            '$arg_a zone=x:1m rate=15r/s rate=200r/m rate=900r/15m '
                . 'rate=500r/1h rate=20r/d',
            map({ "\$arg_a zone=x:1m rate=1r/s algorithm=$_" }
                qw(fixed_window sliding_window sliding_log token_bucket
                   leaky_bucket)),
            map({ "\$arg_a zone=x:32k algorithm=$_" }
                qw(fixed_window sliding_window sliding_log token_bucket
                   leaky_bucket)),
            map({ "\$arg_a zone=x:1m rate=1r/s buckets=$_" } 1, 10, 60),
            map({ "\$arg_a zone=x:1m rate=1r/s algorithm=token_bucket "
                  . "capacity=$_" } 1, 4294967295),
            map({ "\$arg_a zone=x:1m fail=$_" } qw(local open closed)),
            map({ "\$arg_a zone=x:1m rate=\$arg_r algorithm=$_" }
                qw(fixed_window sliding_window token_bucket leaky_bucket)),
            '$arg_a zone=x:1m rate=$arg_r fail=closed',
            '$arg_a zone=x:1m rate=${arg_n}r/$arg_p',
            '$arg_a zone=x:1m "rate=$arg_n 5r/m"';

    # the module's own zone must not be in the way, whatever its size

    good('http', "ratelimit_zone \$arg_a zone=ratelimit_lifelines:$_ "
                 . "rate=1r/s;\nratelimit zone=ratelimit_lifelines;",
         "zone=ratelimit_lifelines:$_")
        for '80k', '1m';

    good('location', "ratelimit $_;", $_)
        for 'off',
            map({ "zone=$_" } qw(plain fixed log token leaky slow)),
            'soft=10% zone=plain',
            map({ "zone=plain soft=$_%" } 1, 100, 1000),
            map({ "zone=$_ soft=10%" } qw(fixed log token leaky)),
            'zone=bare rate=1r/s',
            'zone=plain rate=15r/s rate=200r/m',
            'zone=plain key=$arg_b rate=1r/s name=x soft=5% cost=2 if=$arg_c',
            'zone=plain key=constant',
            '"zone=plain" "name=with \"quotes\" and blanks"',
            map({ ("zone=plain cost=$_", "zone=plain settle=$_") }
                qw(0 1 4294967295 $arg_cost ${arg_cost}0)),
            'zone=plain if=1',
            'zone=leaky burst=1',
            'zone=leaky burst=4294967294',
            'zone=leaky burst=5 nodelay',
            'zone=leaky burst=5 delay=3',
            'zone=leaky burst=5 delay=4294967294',
            'zone=slow burst=145834',
            'zone=plain rate=145836r/366d', 'zone=slow burst=145835',
            map({ "zone=token delay=$_" }
                qw(1ms 5 1s 1s500ms 90s 2m 1h 24h 1d 86400)),
            map({ "zone=plain count=$_" }
                401, 200, 599, '401,403', '4xx', '5xx', '4xx,5xx',
                '404,5xx,204', '401,401'),
            map({ "zone=$_ rejected=count" } qw(plain fixed log token leaky)),
            map({ "zone=$_ after_auth" } qw(plain fixed log token leaky)),
            map({ "zone=$_ rate=\$arg_r" }
                qw(plain fixed log token leaky bare)),
            'zone=plain rate=$arg_r soft=5%',
            'zone=token delay=1s count=401 rejected=count after_auth soft=5%',
            'zone=plain ' . join(' ', map { "rate=${_}r/${_}m" } 1 .. 256);

    good('location',
         join("\n", map { "ratelimit zone=plain rate=\$arg_a name=$_;" }
                        1 .. 32),
         'as many variable rates as there may be');

    good('location', $_, $_ =~ tr/\n/ /r)
        for "ratelimit zone=plain;\nratelimit zone=fixed;",
            "ratelimit zone=plain;\nratelimit zone=plain rate=1r/s;",
            "ratelimit zone=plain name=x;\nratelimit zone=plain name=y;",
            "ratelimit zone=plain name=x;\nratelimit zone=fixed name=x;";

    for my $place (qw(http server location)) {
        good($place, $_, "$_ in $place")
            for 'ratelimit zone=plain;',
                'ratelimit zone=plain rate=1r/s;',
                'ratelimit off;',
                map({ "ratelimit_headers $_;" }
                    'off', 'x', 'ietf', 'x ietf', 'ietf x', 'x reset=delta',
                    'x reset=epoch', 'reset=epoch x ietf', 'ietf reset=delta'),
                map({ "ratelimit_status $_;" } 400, 429, 503, 599),
                map({ "ratelimit_body $_;" } qw(problem off)),
                map({ "ratelimit_log_level $_;" } qw(info notice warn error)),
                map({ "ratelimit_dry_run $_;" } qw(on off)),
                'ratelimit_bypass $arg_a;',
                'ratelimit_bypass "" 1 $arg_a $arg_b$arg_c;',
                "ratelimit_bypass \$arg_a;\nratelimit_bypass \$arg_b;",
                map({ "ratelimit_ipv6_prefix $_;" } 1, 48, 64, 128);
    }

    good('location',
         "ratelimit zone=late;\n} }\n"
         . "ratelimit_zone \$late zone=late:1m rate=1r/s;\n"
         . "map \$arg_a \$late { default x; }\n"
         . 'server { location / {',
         'zone and variable that are declared further down');
    good('http',
         "ratelimit zone=plain;\nserver { ratelimit zone=fixed;\n"
         . "location / { ratelimit zone=plain rate=1r/s; }\n"
         . "location /a { ratelimit off; }\n"
         . 'location /b { location /b/c { ratelimit zone=log; } } }',
         'limits on every level');
    good('http', "$_;", $_)
        for 'limit_req_zone $arg_a zone=r:1m rate=1r/s',
            'limit_conn_zone $arg_a zone=c:1m';
    good('server',
         "location ~ ^/(?<who>[a-z]+)/(.*) {\n"
         . 'ratelimit zone=plain key=$who$2; }',
         'captures of a location');
    good('server', "set \$who x;\nratelimit zone=plain key=\$who;",
         'variable of the rewrite module');
    good('location', "ratelimit zone=plain if=\$$_;", "\$$_")
        for map { "ratelimit_$_" }
            qw(status zone limit remaining reset retry_after backend client);
};

subtest 'warnings' => sub {
    my $key = '"ratelimit_zone" has the key "%s", which looks like a parameter';
    my $burst = 'parameter "%s" in "ratelimit" directive has no effect '
                . 'without "burst"';
    my $unused = 'zone "%s" of "ratelimit_zone" is used by no "ratelimit"';

    warned('http', "ratelimit_zone $_ zone=x:1m rate=1r/s;", $_,
           sprintf($key, $_))
        for qw(rate=1r/m zone=y:1m algorithm=$arg_a);

    warned('location', "ratelimit zone=leaky $_;", $_,
           sprintf($burst, /(\w+)/))
        for qw(nodelay delay=5);

    for my $case (
        ['none is used',        '',                             qw(x y)],
        ['one is used',         'ratelimit zone=x;',            qw(y)],
        ['one is a budget',     "ratelimit_elastic zone=x:80%;\n"
                                . 'ratelimit zone=y;',          qw(x)],
        ['limits are off',      'ratelimit off;',               qw(x y)],
        ['both are used',       "ratelimit zone=x;\n"
                                . 'server { ratelimit zone=y rate=5r/m; }'],
    ) {
        my ($name, $text, @unused) = @$case;

        my $last = write_conf("http { $settings",
                              join("\n", map {
                                  "ratelimit_zone \$arg_a zone=$_:1m rate=1r/s;"
                              } qw(x y)),
                              "$text }");
        my %line = (x => $last - 1, y => $last);

        is(test_conf(unused => 1),
           passed(map { sprintf($unused, $_), "$conf:$line{$_}" } @unused),
           $name);
    }
};

done_testing();


# a rate with variables is the only one

sub variable_rates {
    my ($place, $text, $d) = @_;

    my $message = 'invalid parameter "rate=%s" in "%s" directive: %s';

    for my $case (
        ['$arg_a', '$arg_b',    'conflicts with a rate that has variables'],
        ['$arg_a', '$arg_a',    'conflicts with a rate that has variables'],
        ['$arg_a', '5r/m',      'conflicts with a rate that has variables'],
        ['5r/m', '$arg_a',      'has variables, which conflicts with another rate'],
        ['5r/m', '${arg_a}r/h', 'has variables, which conflicts with another rate'],
    ) {
        my ($one, $two, $reason) = @$case;

        bad($place, "$text rate=$one rate=$two;", "rate=$one rate=$two",
            sprintf($message, $two, $d, $reason));
    }
}


# what all directives with one value have in common

sub plain {
    my ($directive, $good) = @_;

    my $text = "$directive $good;";

    misplaced('main', $text);
    misplaced('if', $text);
    misplaced('upstream', $text);

    bad($_, "$text\n$text", "twice in $_",
        qq("$directive" directive is duplicate))
        for qw(http server location);
}


sub counted {
    my ($directive, $good) = @_;

    # nginx has its own words for "on" and "off"

    bad('location', "$directive;", 'no value', arguments($directive));
    bad('location', "$directive $good $good;", 'two values',
        arguments($directive));
}


sub misplaced {
    my ($place, $text) = @_;

    my ($directive) = $text =~ /^(\w+)/;

    bad($place, $text, "in $place",
        qq("$directive" directive is not allowed here));
}


sub arguments {
    my ($directive) = @_;

    return qq(invalid number of arguments in "$directive" directive);
}


sub bad {
    my ($place, $text, $name, $message) = @_;

    my $blame = write_in($place, $text);

    is(test_conf(), refused($message, "$conf:$blame"), $name);
}


sub good {
    my ($place, $text, $name) = @_;

    write_in($place, $text);

    is(test_conf(), passed(), $name);
}


sub warned {
    my ($place, $text, $name, $message) = @_;

    my $blame = write_in($place, $text);

    is(test_conf(), passed($message, "$conf:$blame"), $name);
}


# returns the number of the line that is to blame

sub write_in {
    my ($place, $text) = @_;

    my %around = (
        main => ['', ''],
        http => ['http {', '}'],
        server => ['http { server {', '} }'],
        location => ['http { server { location / {', '} } }'],
        if => ['http { server { location / { if ($arg_a) {', '} } } }'],
        limit_except =>
            ['http { server { location / { limit_except GET {', '} } } }'],
        upstream => ['http { upstream u {', 'server 127.0.0.1:8; } }'],
    );

    my ($head, $tail) = @{$around{$place}};

    $head =~ s/http \{/http {\n$settings\n$zones/;
    $head =~ s/server \{/server { listen unix:$dir\/socket;/;

    return write_conf($head, $text, $tail);
}
