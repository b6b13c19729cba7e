#!/usr/bin/perl

# What "nginx -t" says of rule files and of limits that use them, word for word
# with the line that is to blame.  The reasons why a file is refused are in
# t/rules/errors.txt; all of them arrive here.
#
# A row is a name, what is written, and the message that is expected.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Configuration;

my %file = (
    'a.yaml' => "domain: a\ndescriptors:\n  - key: k\n    rate_limit: "
                . "{ unit: day, requests_per_unit: 5 }\n",
    'b.yaml' => "domain: b\n",
    'again.yaml' => "domain: a\n",
    'bad.yaml' => "domain: bad\ndescriptors:\n  - key: k\n    rate: 5\n",
    'warned.yaml' => "domain: w\nunit: day\n",
    'year.yaml' => "domain: y\ndescriptors:\n  - key: k\n    rate_limit: "
                   . "{ unit: year, requests_per_unit: 1000000 }\n",
    'path.yaml' => "domain: a.k\ndescriptors:\n"
                   . "  - { key: x, rate_limit: { unit: day } }\n",
    'paths.yaml' => "domain: a\ndescriptors:\n"
                    . "  - { key: k.x, rate_limit: { unit: day } }\n",
    'log.yaml' => "domain: l\ndescriptors:\n  - key: k\n    rate_limit: "
                  . "{ unit: day, requests_per_unit: 100000 }\n",
    'empty' => '',
);

my @directive = (
    ['no file', 'ratelimit_rules zone=r:1m;',
     '"ratelimit_rules" directive must have a file before its parameters'],
    ['no zone', 'ratelimit_rules a.yaml;',
     '"ratelimit_rules" must have "zone" parameter'],
    ['a file behind the zone', 'ratelimit_rules zone=r:1m a.yaml;',
     '"ratelimit_rules" directive must have a file before its parameters'],
    ['a file between parameters',
     'ratelimit_rules a.yaml zone=r:1m b.yaml;',
     qr/^nginx: \[emerg\] invalid parameter "b.yaml" in "ratelimit_rules" directive: /],
    ['a rate', 'ratelimit_rules a.yaml zone=r:1m rate=5r/s;',
     'parameter "rate" is not for "ratelimit_rules", as the files say what is '
     . 'allowed'],
    ['an algorithm that is none',
     'ratelimit_rules a.yaml zone=r:1m algorithm=x;',
     qr/invalid parameter "algorithm=x" in "ratelimit_rules" directive: must be "fixed_window", /],
    ['buckets of a bucket',
     'ratelimit_rules a.yaml zone=r:1m algorithm=token_bucket buckets=5;',
     'parameter "buckets" in "ratelimit_rules" directive needs algorithm '
     . '"sliding_window", but zone "r" has "token_bucket"'],
    ['a zone that is there',
     "ratelimit_zone \$arg_a zone=r:1m rate=1r/s;\n"
     . 'ratelimit_rules a.yaml zone=r:1m;',
     'ratelimit_rules "r" is already bound to key "$arg_a"'],
    ['no such file', 'ratelimit_rules none.yaml zone=r:1m;',
     "open() \"$dir/none.yaml\" failed (2: No such file or directory)"],
    ['a folder', 'ratelimit_rules . zone=r:1m;', qr/read\(\) "$dir\/\." failed/],
    ['an empty file', 'ratelimit_rules empty zone=r:1m;',
     "invalid file \"$dir/empty\" in \"ratelimit_rules\" directive, line 1, "
     . 'column 1: config file cannot have empty domain'],
    ['a bad file', 'ratelimit_rules bad.yaml zone=r:1m;',
     "invalid file \"$dir/bad.yaml\" in \"ratelimit_rules\" directive, "
     . "line 4, column 5: config error, unknown key 'rate'"],
    ['a bad one of several', 'ratelimit_rules [ab]*.yaml zone=r:1m;',
     "invalid file \"$dir/again.yaml\" in \"ratelimit_rules\" directive, "
     . "line 1, column 9: duplicate domain 'a' in config file"],
    ['a domain twice, in two zones',
     "ratelimit_rules a.yaml zone=r:1m;\n"
     . 'ratelimit_rules again.yaml zone=s:1m;',
     "invalid file \"$dir/again.yaml\" in \"ratelimit_rules\" directive, "
     . "line 1, column 9: duplicate domain 'a' in config file"],
    ['too many requests for the algorithm',
     'ratelimit_rules year.yaml zone=r:1m;',
     "invalid file \"$dir/year.yaml\" in \"ratelimit_rules\" directive, "
     . 'line 3: limit "y.k": requests times period is too large for algorithm '
     . '"sliding_window", "fixed_window" takes any', 'rules=y'],
    ['two paths that are the same',
     'ratelimit_rules path.yaml paths.yaml zone=r:1m;',
     qr/ line 3: limit "a\.k\.x": another one has the same path in /],
);

my @limit = (
    ['no descriptor', 'rules=a',
     '"ratelimit" directive must have "descriptor" parameter beside "rules"'],
    ['no rules', 'descriptor=k:v',
     '"ratelimit" directive must have "rules" parameter beside "descriptor"'],
    ['an empty domain', 'rules= descriptor=k:v',
     'invalid parameter "rules=" in "ratelimit" directive: must not be empty'],
    ['an unknown domain', 'rules=x descriptor=k:v',
     'unknown domain "x" in "ratelimit" directive: no file of '
     . '"ratelimit_rules" has it'],
    (map { ["descriptor=$_", "rules=a descriptor=$_",
            "invalid parameter \"descriptor=$_\" in \"ratelimit\" directive: "
            . 'must be "KEY:VALUE,KEY:VALUE..."'] }
         '', 'k', 'k:', ':v', 'k:v,', 'k:v,l', ',k:v', 'k:v,,l:w', 'k\:v'),
    ['an unknown variable', 'rules=a descriptor=k:$nothing',
     'unknown "nothing" variable in "ratelimit" directive'],
    (map { ["$_ beside rules", "rules=a descriptor=k:v $_",
            '"ratelimit" directive must not have "zone", "key", "rate" or '
            . '"name" parameters beside "rules"'] }
         'zone=plain', 'key=$arg_a', 'rate=5r/s', 'name=x'),
    (map { ["$_ beside rules", "rules=a descriptor=k:v $_",
            '"ratelimit" directive must not have "soft", "elastic", "burst", '
            . '"delay" or "nodelay" parameters beside "rules"'] }
         'soft=5%', 'elastic=5%', 'burst=5', 'delay=1s', 'nodelay'),
    ['the zone of the rules', 'zone=rules',
     'zone "rules" in "ratelimit" directive has the limits of rule files, '
     . 'which are used by "rules=DOMAIN descriptor=KEY:VALUE,..."'],
);

my @good = (
    ['a variable', 'rules=a descriptor=k:$arg_k'],
    ['a text and a variable', 'rules=a descriptor=k:x$arg_k-y,l:1'],
    ['a colon in a value', 'rules=a descriptor=k:a:b'],
    ['escapes', 'rules=a descriptor=k\:l\,m:a\,b\\\\'],
    ['parameters', 'rules=a descriptor=k:v cost=2 if=$arg_i count=404 '
                   . 'rejected=count after_auth'],
    ['a domain without limits', 'rules=b descriptor=k:v'],
);

write_file("$dir/$_", $file{$_}) for sort keys %file;

subtest 'ratelimit_rules' => sub { directive(@$_) for @directive };
subtest 'ratelimit' => sub { limit(@$_) for @limit };
subtest 'accepted' => sub { good(@$_) for @good };
subtest 'warnings' => \&warnings_of_files;
subtest 'memory' => \&memory;
subtest 'ratelimit_service' => \&service;
subtest '10,000 rules' => \&many;

done_testing();


# the last line of the text is to blame

sub directive {
    my ($name, $text, $message, $use) = @_;

    my $line = write_conf("http { $settings", $text,
                          $use ? "server { location / { ratelimit $use "
                                 . "descriptor=k:v; } } }" : '}');
    my $said = test_conf();

    ref $message ? like($said, $message, $name)
                 : is($said, refused($message, "$conf:$line"), $name);
}


sub configured {
    my ($text) = @_;

    return write_conf("http { $settings\n"
                      . "ratelimit_zone \$arg_a zone=plain:1m rate=1r/s;\n"
                      . "ratelimit_rules a.yaml b.yaml zone=rules:1m;\n"
                      . 'server { location / {', "ratelimit $text;", '} } }');
}


sub limit {
    my ($name, $text, $message) = @_;

    my $line = configured($text);

    is(test_conf(), refused($message, "$conf:$line"), $name);
}


sub good {
    my ($name, $text) = @_;

    configured($text);
    is(test_conf(), passed(), $name);
}


sub warnings_of_files {
    my $line = write_conf("http { $settings", 'ratelimit_rules none*.yaml '
                          . 'warned.yaml zone=r:1m;', '}');

    is(test_conf(unused => 1),
       passed("no file matches \"$dir/none*.yaml\" in \"ratelimit_rules\" "
              . 'directive', "$conf:$line",
              "file \"$dir/warned.yaml\" in \"ratelimit_rules\" directive, "
              . "line 2, column 1: key 'unit' says nothing here, and is "
              . 'ignored', "$conf:$line",
              'zone "r" of "ratelimit_rules" is used by no "ratelimit"',
              "$conf:$line"),
       'of files, keys and zones that do nothing');
}


sub memory {
    my $line = write_conf("http { $settings",
                          'ratelimit_rules log.yaml zone=r:64k '
                          . 'algorithm=sliding_log;',
                          'server { location / { ratelimit rules=l '
                          . 'descriptor=k:v; } } }');

    like(test_conf(), qr/zone "r" is too small for its rates: 100000 requests of limit "l\.k" need at least \d+k/,
         'a zone that is too small for a rule');
}


sub service {
    my $line = write_conf("http { $settings", "server { location / {\n"
                          . 'ratelimit_service;', '} } }');

    is(test_conf(), passed('"ratelimit_service" is in a server whose '
                           . 'connections end after 1000 calls: set a higher '
                           . '"keepalive_requests" there', "$conf:$line"),
       'connections that end too early');

    # as nginx before 1.25.1 knows it, or as later ones do

    write_conf("http { $settings", 'http2 on;', '}');

    my $http2 = test_conf() =~ /unknown directive/ ? ' http2' : '; http2 on';
    my $servers = "server { listen 127.0.0.1:1984$http2; KEEP; }\n"
                  . 'server { listen 127.0.0.1:1984; server_name x; '
                  . "keepalive_requests 1001; location / {\n";

    $line = write_conf("http { $settings\n" . $servers =~ s/KEEP;//r,
                       'ratelimit_service;', '} } }');

    is(test_conf(), passed('"ratelimit_service" is in a server whose '
                           . 'connections end after 1000 calls: set a higher '
                           . '"keepalive_requests" in the default server of '
                           . '127.0.0.1:1984', "$conf:$line"),
       'by HTTP/2 as the default server says');

    write_conf("http { $settings\n"
               . $servers =~ s/KEEP;/keepalive_requests 1001;/r,
               'ratelimit_service;', '} } }');

    is(test_conf(), passed(), 'and that says another number');

    $line = write_conf("http { $settings", "server { keepalive_requests 1001; "
                       . "location / {\nratelimit_service;\n"
                       . 'ratelimit_service;', '} } }');

    is(test_conf(), refused('"ratelimit_service" directive is duplicate',
                            "$conf:$line"), 'twice');

    $line = write_conf("http { $settings", 'ratelimit_service;', '}');

    is(test_conf(), refused('"ratelimit_service" directive is not allowed here',
                            "$conf:$line"), 'in another place');

    $line = write_conf("http { $settings", 'server { location / { '
                       . 'ratelimit_service x;', '} } }');

    is(test_conf(), refused('invalid number of arguments in '
                            . '"ratelimit_service" directive', "$conf:$line"),
       'with an argument');

    write_conf("http { $settings\nkeepalive_requests 1000000;\n"
               . 'ratelimit_rules a.yaml zone=r:1m algorithm=sliding_log;',
               'server { location / { ratelimit_service; } }', '}');

    is(test_conf(unused => 1), passed(), 'rules that a service uses');
}


# in seconds of one processor, whatever else the machine does

sub many {
    my $text = "domain: many\ndescriptors:\n";

    $text .= "  - key: user\n    value: u$_\n    rate_limit:\n"
             . "      unit: day\n      requests_per_unit: $_\n" for 1 .. 10_000;

    write_file("$dir/many.yaml", $text);
    write_conf("http { $settings", 'ratelimit_rules many.yaml zone=r:8m;',
               'server { location / { ratelimit rules=many '
               . 'descriptor=user:$arg_u; } } }');

    my ($user, $system) = (times)[2, 3];

    is(test_conf(), passed(), 'are loaded');

    my $seconds = (times)[2] + (times)[3] - $user - $system;

    cmp_ok($seconds, '<', 1, sprintf 'in %.2f s', $seconds);
}
