#!/usr/bin/perl

# "delay=TIME" of a token bucket: a request without a token waits for one, in
# the order of arrival, at most so long.  If this fails, waiting requests are lost
# by a reload, hold up others, or pass earlier than the rate allows.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Clients;
use Gateway;

# nginx looks at a clock that ticks every few milliseconds
use constant TICK => 0.015;

my $h2 = Gateway::free_port();
my $gateway = Gateway->start(workers => 1, http => config());
my $clients = Clients->new($gateway->{port});

subtest 'first come, first served' => \&in_order;
subtest 'each key has a queue' => \&each_key;
subtest 'no longer wait' => \&no_longer;
subtest 'the token of a client that leaves is refunded' => \&leave;
subtest 'a request that waited has used a token' => \&used;
subtest 'a refusal takes none' => \&refused;
subtest 'a token beside a leaky bucket' => \&beside_leaky;
subtest 'other requests do not wait' => \&others;
subtest 'a cost' => \&cost;
subtest 'soft' => \&soft;
subtest 'a dry run' => \&dry_run;
subtest 'after authentication' => \&after_auth;
subtest 'HTTP/2' => \&http2;
subtest 'a reload' => \&reload;
subtest 'two workers' => \&two_workers;
subtest 'a graceful shutdown' => \&shutdown;

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub config {
    return <<"END" =~ s/^    //mgr;
    ratelimit_zone \$arg_k zone=second:1m rate=1r/s algorithm=token_bucket
                   capacity=1;
    ratelimit_zone \$arg_k zone=slow:1m rate=1r/m algorithm=token_bucket;
    ratelimit_zone \$arg_k zone=three:1m rate=3r/m algorithm=token_bucket;
    ratelimit_zone \$arg_k zone=fast:1m rate=5r/s algorithm=token_bucket
                   capacity=10;
    ratelimit_zone \$arg_o zone=other:1m rate=1r/h;
    ratelimit_zone \$arg_k zone=leaky:1m rate=1r/h algorithm=leaky_bucket;

    log_format delay "\$request_uri \$status \$ratelimit_status";

    add_header X-Status \$ratelimit_status always;
    add_header X-Time \$request_time always;

    server {
        listen 127.0.0.1:PORT reuseport backlog=2048;
        listen 127.0.0.1:$h2 http2;

        access_log logs/access.log delay;
        ratelimit_log_level warn;

        location / { empty_gif; }
        location = /second { ratelimit zone=second delay=9s; empty_gif; }
        location = /half { ratelimit zone=slow delay=30s; empty_gif; }
        location = /one { ratelimit zone=slow delay=90s; empty_gif; }
        location = /hour { ratelimit zone=slow delay=1h; empty_gif; }
        location = /fast { ratelimit zone=fast delay=2s; empty_gif; }
        location = /cost { ratelimit zone=three delay=1m cost=\$arg_c;
                           empty_gif; }
        location = /soft { ratelimit zone=slow soft=100% delay=10s;
                           empty_gif; }
        location = /dry { ratelimit zone=slow delay=90s; ratelimit_dry_run on;
                          empty_gif; }
        location = /both { ratelimit zone=slow delay=90s;
                           ratelimit zone=other; empty_gif; }
        location = /leaky { ratelimit zone=slow delay=90s;
                            ratelimit zone=leaky burst=9; empty_gif; }
        location = /auth { ratelimit zone=second delay=9s after_auth;
                           empty_gif; }
    }
END
}


# a client whose request nginx has begun to delay

sub waiting {
    my ($uri) = @_;

    my $client = $clients->send("GET $uri");

    Gateway::await(sub { delayed($uri) }, "$uri to be delayed");

    return $client;
}


sub delayed {
    my ($uri) = @_;

    return $gateway->log =~ /delaying request, .*"GET \Q$uri\E HTTP/;
}


sub accessed {
    my ($line) = @_;

    return Gateway::await(sub {
        Gateway::slurp("$gateway->{dir}/logs/access.log") =~ /^\Q$line\E$/m
    }, $line);
}


sub status {
    my ($client) = @_;

    Clients::await_answers(1, $client);

    return "$client->{answers}[0]{status} "
           . $client->{answers}[0]{field}{'x-status'};
}


sub ask {
    my ($uri) = @_;

    return status($clients->send("GET $uri"));
}


sub in_order {
    my $begin = time;
    my $first = $clients->send('GET /second?k=order&n=0');

    is(status($first), '200 PASSED', 'there was a token');

    my @queue = map { waiting("/second?k=order&n=$_") } 1 .. 4;

    is(scalar(grep { Clients::done($_) } $queue[3]), 0, 'they wait');

    Clients::await_answers(4, @queue);

    for my $i (1 .. 4) {
        is(status($queue[$i - 1]), '200 DELAYED', "request $i");
        cmp_ok($queue[$i - 1]{answers}[0]{at} - $begin, '>=', $i - TICK,
               'at its time');
        accessed("/second?k=order&n=$i 200 DELAYED");
    }

    my $log = Gateway::slurp("$gateway->{dir}/logs/access.log");

    is(join(' ', $log =~ m{^/second\?k=order&n=(\d)}mg), '0 1 2 3 4',
       'each after the one before');
}


sub each_key {
    is(ask("/hour?k=$_"), '200 PASSED', "key $_") for qw(a b);

    my $client = waiting('/hour?k=a&n=1');

    is(ask('/hour?k=c'), '200 PASSED', 'a request with a token does not wait');

    Clients::leave($client);
}


sub no_longer {
    is(ask('/half?k=long'), '200 PASSED', 'there was a token');

    my $answer = $clients->ask('GET /half?k=long');

    is($answer->{status}, 429, 'the next one comes too late');
    is($answer->{field}{'x-status'}, 'REJECTED', 'REJECTED');
    cmp_ok($answer->{field}{'retry-after'}, '<=', 30,
           'it would not if asked for later');
    cmp_ok($answer->{field}{'retry-after'}, '>=', 20, 'but not at once');
    cmp_ok($answer->{field}{'x-time'}, '<', 5, 'which is told at once');
}


sub leave {
    ask('/one?k=leave&n=0');

    my $client = waiting('/one?k=leave&n=1');

    is(ask('/one?k=leave&n=2'), '429 REJECTED', 'there is room for one');

    for my $n (3 .. 6) {
        Clients::leave($client);
        accessed('/one?k=leave&n=' . ($n == 3 ? 1 : $n - 1) . ' 499 DELAYED');

        $client = waiting("/one?k=leave&n=$n");
        pass('for another one, as soon as it leaves');
        is(ask("/one?k=leave&n=0$n"), '429 REJECTED', 'and for no more');
    }

    Clients::leave($client);
}


sub used {
    is(ask('/second?k=used&n=0'), '200 PASSED', 'a token');
    is(status(waiting('/second?k=used&n=1')), '200 DELAYED', 'its own');

    my $answer = $clients->ask('GET /second?k=used&n=2');

    is($answer->{field}{'x-status'}, 'DELAYED', 'which is gone');
}


sub refused {
    ask('/both?k=first&o=both');
    is(ask('/both?k=second&o=both'), '429 REJECTED', 'another limit refuses');
    is(ask('/one?k=second&n=first'), '200 PASSED', 'the token is still there');

    my $client = waiting('/one?k=second&n=wait');

    is(ask('/one?k=second&n=full'), '429 REJECTED', 'the queue is full')
        for 1 .. 5;

    Clients::leave($client);
    accessed('/one?k=second&n=wait 499 DELAYED');

    Clients::leave(waiting('/one?k=second&n=again'));
}


# the client waits for the leaky bucket, which takes longer; when it leaves, the
# token that it waited for, too, is there for another one

sub beside_leaky {
    is(ask('/leaky?k=leaky&n=0'), '200 PASSED', 'there was a token');

    my $client = waiting('/leaky?k=leaky&n=1');

    is(ask('/one?k=leaky&n=2'), '429 REJECTED', 'there is room for one');
    Clients::leave($client);
    accessed('/leaky?k=leaky&n=1 499 DELAYED');

    $client = waiting('/one?k=leaky&n=3');
    pass('for another one, as soon as it leaves');
    Clients::leave($client);
}


# hundreds that wait for minutes, and one worker

sub others {
    ask('/hour?k=others');

    my @queue = map { $clients->send("GET /hour?k=others&n=$_") } 1 .. 50;

    Gateway::await(sub { delayed("/hour?k=others&n=$_") }, 'a queue')
        for 1 .. 50;

    my $begin = time;
    my @answers = $clients->series((['GET /free']) x 500);

    is(Clients::tally(@answers)->{200}, 500, 'others are served');
    cmp_ok(time - $begin, '<', 30, 'meanwhile');
    is(scalar(grep { Clients::done($_) } @queue), 0, 'those wait');

    Clients::leave($_) for @queue;
    accessed("/hour?k=others&n=$_ 499 DELAYED") for 1 .. 50;

    my $client = waiting('/one?k=others&n=trace');

    ok($client, 'and leave no trace');
    Clients::leave($client);
}


sub cost {
    is(ask('/cost?k=a&c=2'), '200 PASSED', 'two of three');

    Clients::leave(waiting('/cost?k=a&c=3&n=1'));
    accessed('/cost?k=a&c=3&n=1 499 DELAYED');

    is(ask('/cost?k=a&c=1&n=2'), '200 PASSED', 'the third is still there');
    is(ask('/cost?k=a&c=4&n=3'), '429 REJECTED', 'what is never to be had');
}


sub soft {
    is(ask('/soft?k=soft'), '200 PASSED', 'within the limit');
    is(ask('/soft?k=soft'), '200 SOFT', 'above it');
    is(ask('/soft?k=soft'), '429 REJECTED', 'and too far above');
}


sub dry_run {
    is(ask('/dry?k=dry'), '200 PASSED', 'a token');
    is(ask('/dry?k=dry'), '200 DELAYED_DRY_RUN', 'none waits');
    is(ask('/dry?k=dry'), '200 REJECTED_DRY_RUN', 'none is refused');
}


sub after_auth {
    is(ask('/auth?k=auth&n=0'), '200 PASSED', 'a token');

    my @queue = map { waiting("/auth?k=auth&n=$_") } 1, 2;

    is(status($_), '200 DELAYED', 'a wait') for @queue;
}


# streams of one connection

sub http2 {
    my $said = nghttp('/second?k=h2&n=0', '/second?k=h2&n=1', '/free?n=2');

    like($said, qr/recv \(stream_id=\d+\) :status: 200/, 'they are answered');
    unlike($said, qr/:status: (?!200)/, 'all');
    accessed('/second?k=h2&n=0 200 PASSED');
    accessed('/second?k=h2&n=1 200 DELAYED');

    my $log = Gateway::slurp("$gateway->{dir}/logs/access.log");

    like($log, qr{^/free\?n=2 200.*^/second\?k=h2&n=1 200}sm,
         'a waiting request does not hold up others');

    ask('/one?k=h2');

    my $nghttp = start_nghttp('/one?k=h2&n=1');

    Gateway::await(sub { delayed('/one?k=h2&n=1') }, 'a stream that waits');
    kill 'TERM', $nghttp->{pid};
    close $nghttp->{out};
    accessed('/one?k=h2&n=1 499 DELAYED');

    Clients::leave(waiting('/one?k=h2&n=2'));
    accessed('/one?k=h2&n=2 499 DELAYED');
}


sub nghttp {
    my $nghttp = start_nghttp(@_);

    my $out = $nghttp->{out};
    my $text = join '', <$out>;
    close $out;

    return $text;
}


sub start_nghttp {
    my @arguments = map { s{^/}{http://127.0.0.1:$h2/}r } @_;

    my $pid = open my $out, '-|', 'sh', '-c', 'exec nghttp -v "$@" 2>&1', 'sh',
                            @arguments
        or die "nghttp: $!";

    return { pid => $pid, out => $out };
}


sub reload {
    my $begin = time;

    ask('/second?k=reload&n=0');

    my @queue = map { waiting("/second?k=reload&n=$_") } 1 .. 3;

    $gateway->reload(config());
    is(scalar(grep { Clients::done($_) } $queue[2]), 0, 'they wait');

    my $late = waiting('/second?k=reload&n=4');

    is(status($_), '200 DELAYED', 'and are answered') for @queue, $late;
    cmp_ok($late->{answers}[0]{at} - $begin, '>=', 4 - TICK,
           'requests of the new worker queue behind them');

    Gateway::await(sub { $gateway->settled }, 'the old worker to go');
    pass('then the old worker goes');
}


# all at once; the rate is never exceeded, and all that can be are served

sub two_workers {
    $gateway->reload(config(), workers => 2);
    Gateway::await(sub { $gateway->settled }, 'the old worker to go');

    my $begin = time;
    my @all = map { $clients->send("GET /fast?k=all&n=$_") } 1 .. 100;
    my $sent = time - $begin;

    Clients::await_answers(100, @all);

    my @at = sort { $a <=> $b }
             map { $_->{at} } grep { $_->{status} == 200 }
             map { $_->{answers}[0] } @all;

    # some may be decided a while after they were sent

    cmp_ok(scalar @at, '>=', 20, 'as many as come within two seconds');
    cmp_ok(scalar @at, '<=', 21 + 5 * ($sent + 4), 'and hardly more');

    my $early = grep { $at[$_] - $begin < ($_ - 9) / 5 - TICK } 10 .. $#at;

    is($early, 0, 'none before its time');
    is(scalar(grep { $_->{answers}[0]{status} == 429 } @all), 100 - @at,
       'all others are refused');
}


sub shutdown {
    ask('/second?k=quit&n=0');

    my @queue = map { waiting("/second?k=quit&n=$_") } 1, 2;

    kill 'QUIT', $gateway->{pid};

    Gateway::await(sub { !$gateway->connect }, 'the end of listening');
    is(status($_), '200 DELAYED', 'a waiting request is answered') for @queue;

    my $pid = delete $gateway->{pid};

    is(waitpid($pid, 0), $pid, 'then nginx goes');
    is($?, 0, 'in peace');
}
