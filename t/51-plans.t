#!/usr/bin/perl

# Plans: a rate that is a variable.  A table of plans for users, endpoints and
# methods is enforced request by request, with the minutes really passing (for
# nginx); what is no plan is logged and handled as configured; and a client
# that chooses the value can neither fill the memory nor the log.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use FakeClock;
use Gateway;

my $clock = FakeClock->new;
my $gateway = Gateway->start(workers => 2, $clock->options, http => config());
my $clients = Clients->new($gateway->{port});
my $table = Clients->new($gateway->{port}, 'table');

for my $user (qw(4711 4712)) {
    my $cookie = "Cookie: session=$user";

    subtest "session $user: GET /api1" => sub {
        row(200, 900, 'GET /api1', $cookie);
    };
    subtest "session $user: GET /api2" => sub {
        row(200, 900, 'GET /api2', $cookie);
    };
    subtest "session $user: POST /api2" => sub {
        row(100, 500, 'POST /api2', $cookie);
    };
    subtest "session $user: GET /api3" => sub {
        row(150, 800, 'GET /api3', $cookie);
    };
}

subtest 'no session: GET' => sub { row(50, 250, 'GET /anything') };
subtest 'users and endpoints that are not in the table' => \&not_in_the_table;
subtest 'each row is counted by itself' => \&apart;
subtest 'an empty plan' => \&empty;
subtest 'values that are plans' => \&good_values;
subtest 'values that are none' => \&bad_values;
subtest 'what is logged of them' => \&bad_values_logged;
subtest 'costs that are none' => \&bad_costs;
subtest 'other limits hold' => \&other_limits;
subtest 'fail=closed' => \&fail_closed;
subtest 'fail=closed costs nothing' => \&fail_closed_costs_nothing;
subtest 'an upgrade' => \&upgrade;
subtest 'fields' => \&fields;
subtest 'a log has a bound' => \&bounded_log;
subtest 'algorithms' => \&algorithms;
subtest 'thousands of plans' => \&thousands;

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub config {
    return example() . <<'END';
ratelimit_zone $arg_k zone=open:1m rate=$arg_r;
ratelimit_zone $arg_k zone=local:1m rate=$r fail=local;
ratelimit_zone $arg_k zone=said:1m rate=$r fail=open;
ratelimit_zone $arg_k zone=closed:1m rate=$arg_r fail=closed;
ratelimit_zone $arg_o zone=other:1m rate=2r/h;
ratelimit_zone $arg_k zone=log:1m rate=3r/h rate=5r/d algorithm=sliding_log;
ratelimit_zone $arg_k zone=fixed:1m rate=$arg_r algorithm=fixed_window;
ratelimit_zone $arg_k zone=token:1m rate=$arg_r algorithm=token_bucket;
ratelimit_zone $arg_k zone=leaky:1m rate=$arg_r algorithm=leaky_bucket;
ratelimit_zone $arg_k zone=many:1m rate=$arg_r;

# blanks in a query
map $arg_r $r { ~^(?<a>[^_]+)$ $a; ~^(?<a>[^_]+)_(?<b>[^_]+)$ "$a $b";
                default $http_x_rate; }

map $uri $lines { default "9r/d
                          2r/h
                          "; }

log_format status "$uri $arg_k $status $ratelimit_status";
add_header X-Status "$ratelimit_status" always;

server {
    listen 127.0.0.1:PORT reuseport backlog=2048;
    server_name localhost;

    location = /open { ratelimit zone=open rate=$r name=r; empty_gif; }
    location = /local { ratelimit zone=local; empty_gif; }
    location = /said { ratelimit zone=said; empty_gif; }
    location = /closed { ratelimit zone=closed; empty_gif; }
    location = /inherited { ratelimit zone=open; empty_gif; }

    location = /page {
        ratelimit zone=closed;
        error_page 503 /sorry.gif;
        empty_gif;
    }
    location = /sorry.gif { ratelimit zone=closed; empty_gif; }

    location = /dry {
        ratelimit zone=closed;
        ratelimit_dry_run on;
        empty_gif;
    }

    location = /beside {
        ratelimit zone=other;
        ratelimit zone=open;
        empty_gif;
    }
    location = /beside_closed {
        ratelimit zone=other;
        ratelimit zone=closed;
        empty_gif;
    }
    location = /other { ratelimit zone=other; empty_gif; }

    location = /upgrade {
        ratelimit zone=open rate=$r name=upgrade;
        ratelimit_headers x ietf;
        empty_gif;
    }

    location = /log { ratelimit zone=log rate=$arg_r name=log; empty_gif; }
    location = /cost {
        ratelimit zone=open rate=9r/h name=cost cost=$http_x_cost;
        empty_gif;
    }
    location = /length {
        ratelimit zone=open rate=9r/h name=length cost=$content_length;
        empty_gif;
    }
    location = /lines { ratelimit zone=open rate=$lines; empty_gif; }
    location = /fixed { ratelimit zone=fixed; empty_gif; }
    location = /token { ratelimit zone=token; empty_gif; }
    location = /leaky { ratelimit zone=leaky burst=2 nodelay; empty_gif; }

    location = /many { ratelimit zone=many; empty_gif; }
}
END
}


# the table, as users get it

sub example {
    my $text = Gateway::slurp('docs/examples/plans.conf');

    $text =~ s/:8080/:PORT/g;

    return $text;
}


# so many of these requests pass in a minute, so many in 15; not one more
# passes, and not one less

sub row {
    my ($minute, $quarter, @request) = @_;

    my $left = $quarter;

    while ($left > 0) {
        my $now = $left < $minute ? $left : $minute;
        my @answers = $table->series(([@request]) x ($minute + 3));

        is(statuses(@answers), "200 x $now, 429 x " . ($minute + 3 - $now),
           "$now in a minute, $left are left");
        is($answers[0]{field}{'x-ratelimit-limit'},
           $left > $minute ? $minute : $quarter, 'the tighter one is told');

        $left -= $now;
        $clock->forward(70);
    }

    my $answer = $table->ask(@request);

    is($answer->{status}, 429, 'none in the next one');
    is($answer->{field}{'x-ratelimit-limit'}, $quarter,
       'because of those before it');
    cmp_ok($answer->{field}{'retry-after'}, '>', 60, 'for more than a minute');

    $clock->forward($answer->{field}{'retry-after'} + 1);
    is($table->ask(@request)->{status}, 200, 'then it goes on');
}


sub statuses {
    my (@answers) = @_;

    my @runs;

    for my $answer (@answers) {
        push @runs, [$answer->{status}, 0]
            if !@runs || $runs[-1][0] != $answer->{status};
        $runs[-1][1]++;
    }

    return join ', ', map { "$_->[0] x $_->[1]" } @runs;
}


sub not_in_the_table {
    for my $request (['DELETE /api1', 'Cookie: session=4711'],
                     ['POST /api1', 'Cookie: session=4711'],
                     ['GET /api4', 'Cookie: session=4711'],
                     ['GET /api11', 'Cookie: session=4711'],
                     ['POST /api2'])
    {
        my @answers = $table->series(($request) x 205);

        is(statuses(@answers), '200 x 205', "@$request");
        is($answers[0]{field}{'x-ratelimit-limit'}, undef, 'is not limited');
    }
}


sub apart {
    $clock->forward(3600);

    my $alice = 'Cookie: session=4711';
    my $bob = 'Cookie: session=4712';

    is(statuses($table->series((['GET /api1', $alice]) x 201)),
       '200 x 200, 429 x 1', 'all of one row');

    for my $request (['GET /api1', $bob], ['GET /api2', $alice],
                     ['POST /api2', $alice], ['GET /api3', $alice],
                     ['GET /api1'])
    {
        is($table->ask(@$request)->{status}, 200, "@$request");
    }

    is($table->ask('GET /api1/further', $alice)->{status}, 429,
       'what is below it is the same row');
    is(statuses($table->series((['GET /api1', 'Cookie: session=nobody']) x 51)),
       '200 x 49, 429 x 2', 'an unknown session has no user');
}


sub empty {
    my @answers = $clients->series((['GET /inherited?k=empty']) x 3,
                                   (['GET /inherited?k=empty&r=']) x 3,
                                   (['GET /inherited?k=empty&r=1r/h']) x 2,
                                   ['GET /inherited?k=empty']);

    is(statuses(@answers), '200 x 7, 429 x 1, 200 x 1', 'no limit');
    is($answers[0]{field}{'x-status'}, undef, 'no limit ran');
    is($answers[6]{field}{'x-status'}, 'PASSED', 'one ran');
    is(statuses($clients->series((['GET /closed?k=empty']) x 3)), '200 x 3',
       'nor is it a failure');
}


sub good_values {
    my $rates = join ' ', map { "9r/${_}h" } 2 .. 8;

    for my $value ('2r/h', '2r/h 9r/d', '9r/d 2r/h', '  2r/h  ', ' 2r/h   9r/d',
                   "2r/h\t9r/d", "9r/d \t 2r/h\t", "$rates 2r/h")
    {
        my $key = $value =~ s/ /%20/gr =~ s/\t/%09/gr;
        my @answers = $clients->series((["GET /open?k=$key&r=_",
                                         "X-Rate: $value"]) x 3);

        is(statuses(@answers), '200 x 2, 429 x 1', qq("$value"));
    }

    is(statuses($clients->series((['GET /lines?k=a']) x 3)),
       '200 x 2, 429 x 1', 'several lines');
}


sub bad_values {
    my %reason = reasons();

    for my $value (sort keys %reason) {
        for my $zone (qw(open local said)) {
            my @answers = $clients->series((["GET /$zone?k=bad&r=_",
                                             "X-Rate: $value"]) x 3);

            is(statuses(@answers), '200 x 3', qq($zone: "$value"));
            is($answers[2]{field}{'x-status'}, 'FAILED_OPEN', 'FAILED_OPEN');
            is($answers[2]{field}{'x-ratelimit-limit'}, undef, 'no fields');
        }
    }
}


# a value, and what is said of it

sub reasons {
    return (
        'x' => 'the number of requests is missing',
        '5' => 'must be NUMBERr/PERIOD',
        '0r/s' => 'must allow at least one request',
        '5r/m,' => 'unexpected characters after the period',
        '5r/m,6r/h' => 'unexpected characters after the period',
        '5r/m x' => 'the number of requests is missing',
        '5r/m 6r/60s' => 'two rates have the same period',
        '5r/m 5r/m' => 'two rates have the same period',
        join(' ', map { "9r/${_}h" } 1 .. 9) => 'has too many rates',
        '200000r/366d' => 'requests times period is too large',
        '4294967296r/s' => 'the number of requests is too large',
        'x' x 100 => 'the number of requests is missing',
        '5r/367d' => 'the period is longer than 366 days',
    );
}


sub bad_values_logged {
    my %reason = reasons();

    for my $value (sort keys %reason) {
        my $short = substr $value, 0, 64;

        like($gateway->log,
             qr/\[error\]\ .*\ rate\ "\$r"\ of\ zone\ "open"\ is\ invalid:
                \ "\Q$short\E":\ \Q$reason{$value}\E,\ client:/x, qq("$short"));
    }

    # nothing that a client chooses may forge a line

    $clients->ask('GET /open?k=bad&r=_', "X-Rate: a\tb\x{1b}[31m\xff");
    like($gateway->log, qr/is invalid: "a\?b\?\[31m\?":/, 'unprintable');

    # the second may pass while they are sent

    my $before = time;

    $clients->series((['GET /said?k=bad&r=often']) x 500,
                     (['GET /said?k=bad&r=oftener']) x 500);

    my $most = time - $before + 2;

    for my $value (qw(often oftener)) {
        my $lines = () = $gateway->log =~ /is invalid: "$value":/g;

        cmp_ok($lines, '>=', 1, "$value: it is logged");
        cmp_ok($lines, '<=', $most, "once a second, $lines");
    }

    $clock->forward(2);

    my $lines = () = $gateway->log =~ /is invalid: "often":/g;

    $clients->ask('GET /said?k=bad&r=often');
    is(() = $gateway->log =~ /is invalid: "often":/g, $lines + 1,
       'and again in a later one');
}


# an empty cost is none: a GET has no $content_length

sub bad_costs {
    my @answers = $clients->series((['GET /length?k=a']) x 4,
                                   (['GET /length?k=a', 'Content-Length: 0']));

    is($answers[3]{field}{'x-ratelimit-remaining'}, 5, 'an empty one is 1');
    is($answers[4]{field}{'x-ratelimit-remaining'}, 5, 'a number is what it is');
    unlike($gateway->log, qr/cost "\$content_length"/, 'and none is logged');

    my $before = time;

    @answers = $clients->series((['GET /cost?k=a', 'X-Cost: often']) x 500,
                                (['GET /cost?k=a', 'X-Cost: oftener']) x 500);

    is(statuses(@answers), '200 x 9, 429 x 991', 'others are 1');

    my $lines = () = $gateway->log =~ /is not a number: "often(er)?"/g;

    cmp_ok($lines, '>=', 1, 'it is logged');
    cmp_ok($lines, '<=', time - $before + 2, "once a second, $lines");
}


sub other_limits {
    my @answers = $clients->series((['GET /beside?k=a&o=a&r=x']) x 4);

    is(statuses(@answers), '200 x 2, 429 x 2', 'the other one holds');
    is($answers[1]{field}{'x-status'}, 'FAILED_OPEN', 'FAILED_OPEN');
    is($answers[2]{field}{'x-status'}, 'REJECTED', 'REJECTED');
    cmp_ok($answers[2]{field}{'retry-after'}, '>', 0, 'Retry-After');
}


sub fail_closed {
    my @answers = $clients->series((['GET /closed?k=a&r=x']) x 3);

    is(statuses(@answers), '503 x 3', 'refused');
    is($answers[0]{field}{'x-status'}, 'FAILED_CLOSED', 'FAILED_CLOSED');
    is($answers[0]{field}{$_}, undef, "no $_")
        for qw(retry-after x-ratelimit-limit);

    is(statuses($clients->series((['GET /closed?k=a&r=1r/h']) x 2)),
       '200 x 1, 429 x 1', 'a plan is a plan');

    my $answer = $clients->ask('GET /page?k=b&r=x');

    is($answer->{status}, 503, 'with an error page');
    is($answer->{field}{'content-type'}, 'image/gif', 'which is sent');
    is($answer->{field}{'x-status'}, 'FAILED_CLOSED', 'FAILED_CLOSED');

    $answer = $clients->ask('GET /dry?k=b&r=x');

    is($answer->{status}, 200, 'a dry run refuses none');
    is($answer->{field}{'x-status'}, 'FAILED_OPEN', 'FAILED_OPEN');

    is($clients->ask('GET /closed?r=x')->{status}, 200, 'no key, no failure');
}


sub fail_closed_costs_nothing {
    is(statuses($clients->series((['GET /beside_closed?k=a&o=c&r=x']) x 5)),
       '503 x 5', 'refused');
    is(statuses($clients->series((['GET /other?o=c']) x 3)),
       '200 x 2, 429 x 1', 'at no cost for another limit');
}


# what was used counts under the new plan, as far as it is of the same period

sub upgrade {
    my @answers = $clients->series((['GET /upgrade?k=up&r=2r/h_9r/d']) x 3,
                                   (['GET /upgrade?k=up&r=5r/h_9r/d']) x 4,
                                   (['GET /upgrade?k=up&r=2r/h_9r/d']) x 1,
                                   (['GET /upgrade?k=up&r=9r/d']) x 5);

    is(statuses(@answers),
       '200 x 2, 429 x 1, 200 x 3, 429 x 2, 200 x 4, 429 x 1', 'both ways');

    @answers = $clients->series((['GET /upgrade?k=other&r=2r/h']) x 3,
                                (['GET /upgrade?k=other&r=2r/2h']) x 3,
                                (['GET /upgrade?k=other&r=2r/60m']) x 1);

    is(statuses(@answers), '200 x 2, 429 x 1, 200 x 2, 429 x 2',
       'another period is another counter, another spelling is not');
}


sub fields {
    my $answer = $clients->ask('GET /upgrade?k=fields&r=7r/h_9r/d');

    is($answer->{field}{'ratelimit-policy'},
       '"r";q=7;w=3600, "r";q=9;w=86400' =~ s/"r"/"upgrade"/gr, 'the policy');
    like($answer->{field}{ratelimit}, qr/^"upgrade";r=6;t=3[67]\d\d;/,
         'what is left');
    is($answer->{field}{'x-ratelimit-limit'}, 7, 'the limit');

    $answer = $clients->ask('GET /upgrade?k=fields&r=3r/d');

    is($answer->{field}{'ratelimit-policy'}, '"upgrade";q=3;w=86400',
       'the policy of another value');
    is($answer->{field}{'x-ratelimit-remaining'}, 1, 'what is left');
}


sub bounded_log {
    is(statuses($clients->series((['GET /log?k=a&r=2r/m']) x 3)),
       '200 x 2, 429 x 1', 'below');
    is(statuses($clients->series((['GET /log?k=b&r=5r/m']) x 6)),
       '200 x 5, 429 x 1', 'equal to the largest rate of the zone');

    my @answers = $clients->series((['GET /log?k=c&r=6r/m']) x 6);

    is(statuses(@answers), '200 x 6', 'above');
    is($answers[0]{field}{'x-status'}, 'FAILED_OPEN', 'FAILED_OPEN');
    like($gateway->log,
         qr{rate\ "\$arg_r"\ of\ zone\ "log"\ is\ invalid:\ "6r/m":
            \ exceeds\ the\ largest\ fixed\ rate\ of\ the\ zone}x,
         'is logged');
}


sub algorithms {
    for my $name (qw(fixed token)) {
        is(statuses($clients->series((["GET /$name?k=a&r=3r/366d"]) x 4)),
           '200 x 3, 429 x 1', $name);
        is(statuses($clients->series((["GET /$name?k=big&r=100000r/d"]) x 4)),
           '200 x 4', "$name, large");
    }

    is(statuses($clients->series((['GET /leaky?k=a&r=1r/d']) x 4)),
       '200 x 3, 429 x 1', 'leaky');
}


# more than any worker remembers; good ones and bad ones

sub thousands {
    my @good = map { ["GET /many?k=$_&r=1r/${_}s"] } 1 .. 3000;

    is(statuses($clients->series(@good)), '200 x 3000', 'each is a plan');

    # the memory has grown to what it will be

    $clients->series(map { ["GET /many?k=g$_&r=2r/${_}s"] } 1 .. 3000);

    my %before = memory();

    is(statuses($clients->series(map { ["GET /many?k=h$_&r=3r/${_}s"] }
                                 1 .. 6000)),
       '200 x 6000', 'and so are many more');

    my %after = memory();

    for my $pid (sort keys %before) {
        cmp_ok($after{$pid} - $before{$pid}, '<', 128, 'at no cost in kB');
    }

    is(statuses($clients->series((['GET /many?k=last&r=3r/100000s']) x 5)),
       '200 x 3, 429 x 2', 'a new one is enforced');
    is(statuses($clients->series((['GET /many?k=first&r=1r/3000s']) x 3)),
       '200 x 1, 429 x 2', 'an old one is');

    my @answers = $clients->series((['GET /many?k=bad&r=forgotten']) x 200);

    is($answers[0]{field}{'x-status'}, 'FAILED_OPEN', 'a bad one is none');

    my $lines = () = $gateway->log =~ /is invalid: "forgotten":/g;

    cmp_ok($lines, '>=', 1, 'it is logged');
    cmp_ok($lines, '<=', 3, "once a second, $lines");
}


# anonymous kB of the workers

sub memory {
    return map {
        my ($kb) = Gateway::slurp("/proc/$_/status") =~ /^RssAnon:\s+(\d+)/m;
        ($_ => $kb);
    } $gateway->current_workers;
}
