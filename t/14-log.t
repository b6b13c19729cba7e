#!/usr/bin/perl

# What the error log says of refusals, and how often: fail2ban's own filter of
# limit_req finds each of them, limits with a name tell it, and "limit=" leaves
# lines out and counts them, over all workers.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use Gateway;

use constant FILTER => '/etc/fail2ban/filter.d/nginx-limit-req.conf';

BAIL_OUT('fail2ban is missing') if !-f FILTER;

my $http = <<'END';
ratelimit_zone $arg_k zone=plain:1m rate=1r/h;
ratelimit_zone $arg_k zone=few:1m rate=1r/h;
ratelimit_zone $arg_k zone=level:1m rate=1r/h;
ratelimit_zone $arg_k zone=slow:1m rate=1r/h algorithm=leaky_bucket;
log_format names '$ratelimit_zone:$ratelimit_name:$ratelimit_status';

server {
    listen 127.0.0.1:PORT reuseport;
    access_log logs/names.log names;
    ratelimit_log_level error;

    location /plain { ratelimit zone=plain; empty_gif; }
    location /own { ratelimit zone=plain rate=1r/d; empty_gif; }
    location /named { ratelimit zone=plain rate=1r/d name=login; empty_gif; }
    location /dry {
        ratelimit zone=plain rate=1r/d name=trial;
        ratelimit_dry_run on;
        empty_gif;
    }
    location /few {
        ratelimit zone=few;
        ratelimit_log_level error limit=3;
        empty_gif;

        location /few/all {
            ratelimit_log_level error;
            empty_gif;
        }
    }
    location /slow { ratelimit zone=slow burst=5; empty_gif; }
    location /level {
        ratelimit zone=level;
        ratelimit_log_level info limit=1;
        error_log logs/level.log info;
        empty_gif;
    }
}
END

my $gateway = Gateway->start(workers => 2, http => $http);
my $clients = Clients->new($gateway->{port});


subtest 'lines' => sub {
    $clients->series((["GET $_?k=a"]) x 3) for qw(/plain /own /named /dry);

    my $log = $gateway->log;

    is(lines($log, qr/limiting requests, excess: \d+\.\d{3} by zone "plain",/),
       4, 'a zone, and a limit of its own');
    is(lines($log,
             qr/limiting requests, excess: \d+\.\d{3} by zone "plain:login",/),
       2, 'a limit with a name');
    is(lines($log, qr/limiting\ requests,\ dry\ run,\ excess:\ \d+\.\d{3}
                      \ by\ zone\ "plain:trial",/x), 2, 'a dry run');

    my $waiting = $clients->send('GET /slow?k=a');
    my @more = map { $clients->send('GET /slow?k=a') } 1 .. 2;

    Gateway::await(sub { lines($gateway->log, qr/delaying request/) == 2 },
                   'delays');
    is(lines($gateway->log,
             qr/delaying request, excess: \d+\.\d{3}, by zone "slow",/), 2,
       'a delay');
    Clients::leave($_) for $waiting, @more;
};


subtest '$ratelimit_name' => sub {
    my $names = Gateway::slurp("$gateway->{dir}/logs/names.log");

    is(lines($names, qr/^plain::REJECTED$/), 2, 'of the zone itself');
    is(lines($names, qr/^plain:login:REJECTED$/), 2, 'of a name');
    is(lines($names, qr{^plain:/own:REJECTED$}), 2, 'of a location');
    is(lines($names, qr/^plain:login:PASSED$/), 1, 'of one that passes');
};


subtest 'fail2ban' => sub {
    my $file = "$gateway->{dir}/logs/error.log";
    my ($filter) = Gateway::slurp('docs/operations.md') =~ /^filter += (.*)$/m;

    # since fail2ban 1.1.1 delays, too

    my $kind = Gateway::slurp(FILTER) =~ /delaying/
               ? qr/limiting requests|delaying request/ : qr/limiting requests/;
    my $excess = qr/(?:$kind), excess: \S+/;

    is(matched($file, FILTER), lines($gateway->log, $excess),
       'each refusal is found, and nothing else');
    is(matched($file, $filter =~ s/\bip\b/plain/gr),
       lines($gateway->log, qr/$excess by zone "plain(?::login)?"/),
       'those of the zones that the page names');
};


subtest 'limit=' => sub {
    my $refused = 400;
    my $tally = $gateway->load(connections => 8,
                               requests => [(['/few?k=a', 'a'])
                                            x (1 + $refused)]);

    is($tally->{keys}{a}{429}, $refused, 'refused');

    my $few = qr/limiting requests, excess: \S+ by zone "few"/;
    my $rest = qr/zone "few" has limited or delayed (\d+) further requests/;
    my $sum = sub {
        my $log = $gateway->log;
        my $n = lines($log, $few);

        $n += $_ for $log =~ /$rest/g;

        return $n;
    };

    Gateway::await(sub { $sum->() == $refused }, 'lines and their rest');
    is($sum->(), $refused, 'none is lost, none counted twice');
    cmp_ok(lines($gateway->log, $few), '<=', $refused / 4, 'few are logged');
    cmp_ok(lines($gateway->log, $few), '>=', 3, 'some are');

    $clients->series((['GET /few/all?k=a']) x 20);
    is(lines($gateway->log, qr{by zone "few".*/few/all}), 20,
       'a level of its own has no limit');
};



subtest 'the rest of a level, when workers end' => sub {
    $clients->series((['GET /level?k=a']) x 30);
    $gateway->reload($http);

    my $log = sub { Gateway::slurp("$gateway->{dir}/logs/level.log") };
    my $rest = qr/\[info\] .*"level" has limited or delayed (\d+) further/;
    my $sum = sub {
        my $n = lines($log->(), qr/limiting requests/);

        $n += $_ for $log->() =~ /$rest/g;

        return $n;
    };

    Gateway::await(sub { $sum->() == 29 }, 'all are told');
    is($sum->(), 29, 'where and as they would have been');
};

is($gateway->complaints, '', 'no complaints');

done_testing();


sub matched {
    my ($file, $filter) = @_;

    my $said = `fail2ban-regex $file '$filter' 2>&1`;

    is($?, 0, 'it runs') or diag($said);

    return $said =~ /^Lines: \d+ lines, .*?, (\d+) matched/m ? $1 : 'none';
}


sub lines {
    my ($text, $pattern) = @_;

    return scalar grep { $_ =~ $pattern } split /\n/, $text;
}
