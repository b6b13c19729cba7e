#!/usr/bin/perl

# What "nginx -t" says of "ratelimit_elastic" and of limits that are elastic:
# every kind of error, word for word with the line that is to blame, and every
# spelling that must be accepted.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Configuration;

my $d = 'ratelimit_elastic';
my $server = "server { listen unix:$dir/socket;";

my $percentage = 'must be a percentage such as "10%"';
my $mark = 'must be from 1% to 100%';
my $named = 'must be "zone=NAME:PERCENTAGE"';
my $twice = 'is duplicate';

# what is wrong in a parameter, and why; the first is of any signal

my @marks = (
    ['',                        $percentage],
    ['80',                      $percentage],
    ['0.8',                     $percentage],
    ['80%%x',                   $percentage],
    ['$arg_a',                  $percentage],
    ['%',                       $mark],
    ['0%',                      $mark],
    ['000%',                    $mark],
    ['101%',                    $mark],
    ['1000%',                   $mark],
    ['1001%',                   $mark],
    ['-5%',                     $mark],
    ['+5%',                     $mark],
    ['1.5%',                    $mark],
    ['x%',                      $mark],
    ['80%%',                    $mark],
    ['18446744073709551617%',   $mark],
);

my @parameters = (
    map({ my ($text, $reason) = @$_;
          map { ["$_=$text", $reason] } 'cpu', 'connections' } @marks),
    map({ ["zone=plain:$_->[0]", $_->[1]] } @marks),

    ['zone=',                   $named],
    ['zone=plain',              $named],
    ['zone=80%',                $named],
    ['zone=:80%',               $named],
    ['zone=:',                  $named],

    ['foo',                     undef],
    ['foo=80%',                 undef],
    ['cpu',                     undef],
    ['80%',                     undef],
    ['memory=80%',              undef],
    ['CPU=80%',                 undef],
    ['off',                     undef],
);

subtest 'parameters' => sub {
    for my $case (@parameters) {
        my ($parameter, $reason) = @$case;

        for my $before ('', 'connections=50% ', 'cpu=50% ') {
            next if $before =~ /^(\w+=)/ && $parameter =~ /^\Q$1\E/;

            bad("$d $before$parameter;", "$before$parameter",
                invalid($parameter, $reason));
        }
    }

    for my $parameter (qw(cpu=80% connections=80% zone=plain:80%)) {
        bad("$d $parameter $parameter;", "$parameter twice",
            invalid($parameter, $twice));
    }

    bad("$d zone=plain:80% zone=log:5% zone=plain:90%;", 'a zone twice',
        invalid('zone=plain:90%', $twice));
    bad("$d cpu=80% cpu=0%;", 'a second one', invalid('cpu=0%', $twice));

    bad("$d;", 'no parameter', qq(invalid number of arguments in "$d" )
                               . 'directive');
    bad("$d cpu=80%;\n$d connections=80%;", 'two directives',
        qq("$d" directive is duplicate));

    bad("$server $d cpu=80%; }", 'in a server',
        qq("$d" directive is not allowed here));
    bad("$server location / { $d cpu=80%; } }", 'in a location',
        qq("$d" directive is not allowed here));
};

subtest 'zones' => sub {
    for my $case (
        ['nowhere',     'the zone is not declared'],
        ['Plain',       'the zone is not declared'],
        ['plain2',      'the zone is not declared'],
        ['req',         'the zone is not declared'],
        ['bare',        'the zone has no rate without variables'],
        ['plan',        'the zone has no rate without variables'],
        ['leaky',       'algorithm "leaky_bucket" has no budget'],
        ['large',       'requests times period is too large'],
    ) {
        my ($zone, $reason) = @$case;
        my $message = qq(invalid zone "$zone" in "$d" directive: $reason);

        bad("$d zone=$zone:80%;", $zone, $message);
        bad("$d cpu=5% zone=plain:1% zone=$zone:80%;  # here\n"
            . 'ratelimit_zone $arg_b zone=other:1m rate=1r/s;',
            "$zone, not in the last line", $message);
    }

    bad_file("\n$d zone=nowhere:80%;\n\n", 2, 'an included file',
             qq(invalid zone "nowhere" in "$d" directive: )
             . 'the zone is not declared');
};

subtest 'limits' => sub {
    my $needs = 'parameter "elastic" in "ratelimit" directive needs '
                . '"ratelimit_elastic"';

    bad("$server location / { ratelimit zone=plain elastic=10%; } }",
        'in a location', $needs);
    bad("ratelimit zone=plain elastic=10%;  # here\n$server }", 'in http',
        $needs);

    for my $case (@marks) {
        my ($text, $reason) = @$case;

        next if $text eq '101%' || $text eq '1000%';

        bad("$d cpu=80%;\nratelimit zone=plain elastic=$text;",
            "elastic=$text",
            qq(invalid parameter "elastic=$text" in "ratelimit" directive: )
            . $reason =~ s/100%/1000%/r);
    }

    bad("$d cpu=80%;\nratelimit zone=plain elastic=1% elastic=1%;",
        'elastic twice',
        'invalid parameter "elastic=1%" in "ratelimit" directive: '
        . 'is duplicate');
};

subtest 'good' => sub {
    good("$d $_;", $_)
        for 'cpu=80%', 'cpu=1%', 'cpu=100%', 'cpu=080%',
            'connections=1%', 'connections=100%',
            'zone=plain:1%', 'zone=plain:100%',
            map({ "zone=$_:80%" } qw(fixed log token rates constant)),
            'zone=plain:80% zone=log:90%',
            'cpu=80% connections=70% zone=plain:60%',
            'zone=plain:60% connections=70% cpu=80%',
            '"zone=plain:60%" "cpu=80%"';

    good("ratelimit zone=plain elastic=$_%;\n$d cpu=80%;",
         "elastic=$_%, declared further down")
        for 1, 10, 1000;

    good("$d zone=late:80%;\n"
         . 'ratelimit_zone $late zone=late:1m rate=1r/s;'
         . "\nmap \$arg_a \$late { default x; }",
         'a zone that is declared further down');
    good("$d cpu=80%;\nratelimit_zone \$arg_a zone=ratelimit_elastic:1m "
         . 'rate=1r/s;', 'a zone of that name');
};

done_testing();


sub invalid {
    my ($parameter, $reason) = @_;

    $reason //= must_be(qw(cpu= connections= zone=));

    return qq(invalid parameter "$parameter" in "$d" directive: $reason);
}


sub bad {
    my ($text, $name, $message) = @_;

    my $blame = write_http($text);

    is(test_conf(), refused($message, "$conf:$blame"), $name);
}


sub bad_file {
    my ($text, $line, $name, $message) = @_;

    write_file("$dir/included.conf", $text);
    write_http("include $dir/included.conf;");

    is(test_conf(), refused($message, "$dir/included.conf:$line"), $name);
}


sub good {
    my ($text, $name) = @_;

    write_http($text);

    is(test_conf(), passed(), $name);
}


sub write_http {
    my ($text) = @_;

    return write_conf(<<"HEAD", $text, '}');
http { $settings
ratelimit_zone \$arg_a zone=plain:1m rate=10r/s;
ratelimit_zone \$arg_a zone=fixed:1m rate=10r/s algorithm=fixed_window;
ratelimit_zone \$arg_a zone=log:1m rate=10r/s algorithm=sliding_log;
ratelimit_zone \$arg_a zone=token:1m rate=10r/s algorithm=token_bucket;
ratelimit_zone \$arg_a zone=leaky:1m rate=10r/s algorithm=leaky_bucket;
ratelimit_zone \$arg_a zone=rates:1m rate=10r/s rate=20r/d;
ratelimit_zone constant zone=constant:1m rate=10r/s;
ratelimit_zone \$arg_a zone=bare:1m;
ratelimit_zone \$arg_a zone=plan:1m rate=\$arg_b;
ratelimit_zone \$arg_a zone=large:1m rate=1r/366d algorithm=token_bucket capacity=4294967295;
limit_req_zone \$arg_a zone=req:1m rate=10r/s;
HEAD
}
