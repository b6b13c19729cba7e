#!/usr/bin/perl

# Limits of rule files in locations: which of them apply, that they are one
# decision with all others, and what clients and operators see of them.  If
# this fails, a rule file does not limit what it says.

use strict;
use warnings;

use JSON::PP qw(decode_json);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use Registry qw(algorithms);
use RuleFiles;

my $files = RuleFiles->new(
    'messaging.yaml' => <<'END',
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    rate_limit: { unit: day, requests_per_unit: 5 }
END
    'auth.yaml' => <<'END',
domain: auth
descriptors:
  - key: auth_type
    value: login
    rate_limit: { unit: week, requests_per_unit: 3 }
    descriptors:
      - key: ip
        rate_limit: { unit: day, requests_per_unit: 2 }
  - key: free
    rate_limit: { unlimited: true }
  - key: never
    rate_limit: { unit: year, requests_per_unit: 0 }
END
    'modes.yaml' => <<'END',
domain: modes
descriptors:
  - key: shadow
    shadow_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: ordinary
    rate_limit: { unit: day, requests_per_unit: 3, name: "the ordinary one" }
  - key: other
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: small
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: large
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 3 }
  - key: base
    rate_limit: { unit: day, requests_per_unit: 1, name: base }
  - key: plus
    rate_limit: { unit: day, requests_per_unit: 4, replaces: [{ name: base }] }
  - key: shared
    value: "a*"
    share_threshold: true
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: shared
    rate_limit: { unit: day, requests_per_unit: 2 }
END
);

my $gateway = Gateway->start(workers => 2, http => config());
my $clients = Clients->new($gateway->{port});

subtest 'a descriptor' => \&descriptor;
subtest 'fields, variables and the log name the rule' => \&names;
subtest 'several entries' => \&entries;
subtest 'a value that is empty' => \&empty;
subtest 'one decision' => \&one_decision;
subtest 'unlimited, and nothing at all' => \&extremes;
subtest 'shadow mode' => \&shadow;
subtest 'quota mode' => \&quota;
subtest 'limits that replace others' => \&replaces;
subtest 'values that share a counter' => \&shared;
subtest 'one counter, named twice' => \&twice;
subtest 'cost, settle, if, count and rejected' => \&parameters;
subtest 'rejected=count beside shadow mode' => \&rejected;
subtest 'a debt beyond what small limits need' => \&debt;
subtest 'a bypass' => \&bypass;
subtest 'no request at all, by any algorithm' => \&zero;

is($gateway->complaints, '', 'nothing to complain about');
unlike($gateway->log, qr/exited on signal/, 'no worker has died');

done_testing();


sub config {
    my $dir = $files->{dir};
    my $rules = 'ratelimit rules=modes';
    my %location = (
        '/marketing' => 'ratelimit rules=messaging'
                        . ' descriptor=message_type:marketing;',
        '/send' => 'ratelimit rules=messaging'
                   . ' descriptor=message_type:$arg_type;',
        '/login' => 'ratelimit rules=auth'
                    . ' descriptor=auth_type:login,ip:$arg_ip;',
        '/both' => 'ratelimit rules=auth descriptor=auth_type:$arg_auth;'
                   . ' ratelimit zone=plain;'
                   . ' ratelimit rules=modes descriptor=ordinary:$arg_k;',
        '/free' => 'ratelimit rules=auth descriptor=free:x;',
        '/never' => 'ratelimit rules=auth descriptor=never:x;',
        '/shadow' => "$rules descriptor=shadow:\$arg_s;"
                     . " $rules descriptor=ordinary:\$arg_o;",
        '/quota' => "$rules descriptor=small:\$arg_k;"
                    . " $rules descriptor=large:\$arg_k;"
                    . " $rules descriptor=ordinary:\$arg_o;",
        '/replaces' => "$rules descriptor=base:\$arg_k;"
                       . " $rules descriptor=plus:\$arg_p;",
        '/shared' => "$rules descriptor=shared:\$arg_k;",
        '/twice' => "$rules descriptor=ordinary:\$arg_k;"
                    . " $rules descriptor=ordinary:\$arg_l;",
        '/cost' => "$rules descriptor=ordinary:\$arg_k cost=\$arg_c;",
        '/settle' => "$rules descriptor=ordinary:\$arg_k cost=\$arg_c"
                     . ' settle=$arg_v;'
                     . " $rules descriptor=shadow:\$arg_s settle=9;",
        '/debt' => 'ratelimit rules=zero-token_bucket'
                   . ' descriptor=debt:$arg_k settle=$arg_v;',
        '/if' => "$rules descriptor=ordinary:\$arg_k if=\$arg_i;",
        '/count' => "$rules descriptor=ordinary:\$arg_k count=403;"
                    . ' limit_except GET { deny all; }',
        '/rejected' => 'ratelimit zone=plain rejected=count;'
                       . " $rules descriptor=shadow:\$arg_s;"
                       . " $rules descriptor=other:\$arg_o;",
        '/after' => "$rules descriptor=other:\$arg_k after_auth;",
        '/bypass' => 'ratelimit rules=auth descriptor=never:x;'
                     . ' ratelimit zone=plain; ratelimit_bypass $arg_b;',
        '/api/' => 'ratelimit_api;',
        map { ("/zero/$_" => "ratelimit rules=zero-$_ descriptor=$_:x;") }
            algorithms(),
    );

    my $zero = '';

    for my $name (algorithms()) {
        $files->write("zero-$name", <<"END");
domain: zero-$name
descriptors:
  - { key: $name, rate_limit: { unit: hour, requests_per_unit: 0 } }
  - { key: debt, rate_limit: { unit: second, requests_per_unit: 9 } }
END
        $zero .= "ratelimit_rules $dir/zero-$name zone=$name:1m"
                 . " algorithm=$name;\n";
    }

    my $server = Gateway->server(%location)
                 =~ s/^server \{\n/$&ratelimit_log_level error;\n/r;

    return <<"END" . $server;
ratelimit_rules $dir/messaging.yaml $dir/[am]*s.yaml $dir/auth.yaml
                zone=rules:1m algorithm=fixed_window;
ratelimit_zone \$arg_k zone=plain:1m rate=2r/d algorithm=fixed_window;
$zero
ratelimit_headers x ietf;
add_header X-Decided "\$ratelimit_status \$ratelimit_zone \$ratelimit_limit"
           always;
add_header X-Name \$ratelimit_name always;
END
}


sub statuses {
    return join ' ', map { $_->{status} } $clients->series(map { [$_] } @_);
}


# by a limit of this name

sub counted {
    my $all = decode_json($clients->ask('GET /api/zones')->{body});

    return (grep { $_->{name} eq $_[0] } map { @{$_->{limits}} }
                                         @{$all->{zones}})[0]{requests};
}


sub descriptor {
    is(statuses(('GET /marketing') x 6), '200 200 200 200 200 429',
       'five messages a day');
    is(statuses('GET /send?type=marketing', 'GET /send?type=other',
                'GET /send?type='), '429 200 200',
       'a location that has the same descriptor counts the same');
}


sub names {
    my ($first, $second) = $clients->series((['GET /cost?k=names&c=3']) x 2);

    is($first->{field}{'ratelimit-policy'},
       '"the ordinary one";q=3;w=86400', 'the name of the file');
    like($first->{field}{ratelimit}, qr/^"the ordinary one";r=0;t=\d+/,
         'in both fields');
    is($first->{field}{'x-ratelimit-remaining'}, 0, 'nothing is left');
    is($second->{status}, 429, 'refused');
    is($second->{field}{'x-decided'}, 'REJECTED rules 3', 'variables');
    is($second->{field}{'x-name'}, 'modes.ordinary', 'of its name, too');
    like($second->{body}, qr/"violated-policies":\["the ordinary one"\]/,
         'and the body');

    my $login = $clients->ask('GET /login?ip=names');

    is($login->{field}{'ratelimit-policy'}, '"auth.auth_type_login.ip";q=2;'
       . 'w=86400', 'the path, where the file has no name');
    like($gateway->log, qr/limiting requests, excess: 3\.000 by zone "rules:modes\.ordinary"/,
         'the log');
}


sub entries {
    is(statuses(('GET /login?ip=a') x 3, 'GET /login?ip=b'),
       '200 200 429 200', 'each value counts by itself');
    is(statuses(map { "GET /login?ip=c,$_" } 1, 1, 1, 2), '200 200 429 200',
       'whatever bytes it has');
}


sub empty {
    is(statuses(('GET /login') x 4), '200 200 200 200',
       'the limit does not apply');
}


# the plain zone admits two, the ordinary limit three, logins are three a week

sub one_decision {
    is(statuses(('GET /both?k=one') x 3), '200 200 429',
       'a zone and a rule');
    is(statuses(('GET /cost?k=one&c=1') x 2), '200 429',
       'what the zone refused was not charged to the rule');

    is(statuses(('GET /both?auth=login') x 4), '200 200 200 429',
       'a rule without the zone');
    is(statuses('GET /both?auth=login&k=two', ('GET /cost?k=two&c=1') x 4),
       '429 200 200 200 429', 'what one rule refused another was not charged');
}


sub extremes {
    is(statuses(('GET /free') x 20), join(' ', (200) x 20), 'unlimited');

    my $answer = $clients->ask('GET /never');

    is($answer->{status}, 429, 'no request in a year');
    is($answer->{field}{'x-ratelimit-limit'}, 0, 'is what is said');
    is($answer->{field}{'retry-after'}, 365 * 86400, 'and when to come again');
}


sub shadow {
    is(statuses(('GET /shadow?s=1') x 3), '200 200 200', 'never refuses');

    my $log = $gateway->log;

    is(() = $log =~ /limiting requests, dry run.* by zone "rules:modes\.shadow"/g,
       2, 'but says what it would refuse');

    my @answers = $clients->series((['GET /shadow?s=2&o=2']) x 4);

    is(join(' ', map { $_->{status} } @answers), '200 200 200 429',
       'others are charged once each');
    is_deeply([map { $_->{field}{'x-decided'} } @answers],
              ['PASSED rules 1', ('REJECTED_DRY_RUN rules 3') x 2,
               'REJECTED rules 3'], 'the status tells');
    is($answers[1]{field}{'ratelimit-policy'},
       '"the ordinary one";q=3;w=86400', 'what is in force is sent');

    my $before = counted('modes.shadow');
    my $alone = ($clients->series((['GET /shadow?s=3']) x 2))[1];
    my $after = counted('modes.shadow');

    is_deeply([grep { /ratelimit/ } keys %{$alone->{field}}], [],
              'nothing is sent where nothing is in force');
    is($alone->{field}{'x-decided'}, 'REJECTED_DRY_RUN  ', 'nor told');
    is_deeply([map { $after->{$_} - $before->{$_} }
                   qw(passed rejected_dry_run)], [1, 1], 'and counted once');
}


sub quota {
    is(statuses(('GET /quota?k=1') x 4), '200 200 200 429',
       'refused when all quotas are used up');
    is(statuses(('GET /quota?k=2&o=q') x 4), '200 200 200 429',
       'as are ordinary limits');
    is(statuses('GET /quota?k=3&o=q', ('GET /quota?k=3') x 4),
       '429 200 200 200 429', 'what an ordinary limit refuses costs no quota');
}


sub replaces {
    is(statuses(('GET /replaces?k=1') x 2), '200 429', 'by itself');
    is(statuses(('GET /replaces?k=1&p=1') x 5), '200 200 200 200 429',
       'replaced by a larger one');
}


sub shared {
    is(statuses(map { "GET /shared?k=$_" } qw(a1 a2 a3 b1 b1 b1 b2)),
       '200 200 429 200 200 429 200', 'by the wildcard, or by themselves');
}


sub twice {
    is(statuses(('GET /twice?k=t1&l=t1') x 2), '200 429',
       'costs twice, and three are allowed');
    is(statuses(('GET /twice?k=t1&l=t2') x 2), '200 429',
       'two counters are two');
    is(statuses(('GET /twice?k=t2&l=t3') x 3), '200 200 429', 'each by itself');
}


sub parameters {
    is(statuses('GET /cost?k=p1&c=2', 'GET /cost?k=p1&c=2', 'GET /cost?k=p1&c=0',
                'GET /cost?k=p1&c=1', 'GET /cost?k=p1&c=1'),
       '200 429 200 200 429', 'cost');
    is(statuses(('GET /if?k=p2&i=0') x 4, ('GET /if?k=p2&i=1') x 4),
       join(' ', (200) x 7, 429), 'if');
    is(statuses(('GET /count?k=p3') x 4, ('DELETE /count?k=p3') x 4),
       join(' ', (200) x 4, (403) x 3, 429), 'count');
    is(statuses(('GET /after?k=p4') x 2), '200 429', 'after_auth');
    is(statuses('GET /settle?k=p5&c=3&v=1', 'GET /settle?k=p5&c=2&v=9',
                'GET /settle?k=p5&c=1', 'GET /settle?k=p6&s=p6&c=0&v=2',
                'GET /settle?k=p6&s=p6&c=1', 'GET /settle?k=p6&s=p6&c=1'),
       '200 200 429 200 200 429', 'settle');
}


# what is asked twice because of shadow mode is counted once

sub rejected {
    is(statuses('GET /rejected?s=r1', 'GET /rejected?k=r1&s=r1',
                'GET /rejected?k=r1&s=r1', 'GET /rejected?k=r1'),
       '200 200 200 429', 'passed requests');
    is(statuses('GET /rejected?s=r2&o=r2', 'GET /rejected?k=r2&s=r2&o=r2',
                'GET /rejected?k=r2', 'GET /rejected?k=r2'),
       '200 429 200 429', 'and refused ones');
}


# nine a second are back in a fourth of a year

sub debt {
    $clients->ask('GET /debt?k=d1&v=70000000');

    my $retry = $clients->ask('GET /debt?k=d1')->{field}{'retry-after'};

    cmp_ok($retry, '>', 69_999_000 / 9, 'not cut');
}


# which rules would apply is not looked at: they count nothing

sub bypass {
    is(statuses(('GET /bypass?b=1&k=b') x 3, 'GET /bypass?k=b'),
       '200 200 200 429', 'a rule is bypassed, with a zone');
    is(counted('')->{bypassed}, 3, 'the zone counts it');
    is(counted('auth.never')->{bypassed}, 0, 'the rule does not');
}


sub zero {
    for my $name (algorithms()) {
        my $answer = $clients->ask("GET /zero/$name");

        is($answer->{status}, 429, $name);
        is($answer->{field}{'x-ratelimit-limit'}, 0, 'is what is said');
    }
}
