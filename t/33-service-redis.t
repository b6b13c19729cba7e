#!/usr/bin/perl

# The service with its counters in Redis: by every algorithm, with two gateways,
# while Redis hangs or is down, with deadlines, and with clients that leave.  If
# this fails, a fleet counts apart, or a call that got no answer is charged.

use strict;
use warnings;

use IO::File;
use JSON::PP;
use POSIX ();
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use Registry qw(algorithms);
use RedisServer;
use RuleFiles;
use ScriptedRedis;
use ServiceCalls;

my $redis = RedisServer->start;
my $files = RuleFiles->new('basic.yaml' => <<'END');
domain: basic
descriptors:
  - { key: one, rate_limit: { unit: day, requests_per_unit: 5 } }
  - { key: two, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: many, rate_limit: { unit: day, requests_per_unit: 40 } }
  - { key: shadow, shadow_mode: true,
      rate_limit: { unit: day, requests_per_unit: 1 } }
END

subtest "by $_" => \&by, $_ for algorithms();
subtest "by $_, write-back" => \&write_back, $_ for algorithms();
subtest "by $_, a batch and one counter twice" => \&twice, $_
    for grep { $_ ne 'leaky_bucket' } algorithms();
subtest 'two gateways' => \&two_gateways;
subtest 'Redis is down' => \&down;
subtest 'Redis goes down, and a refusal is known' => \&refusal_known;
subtest 'a deadline, and clients that leave' => \&unanswered;
subtest 'many calls on one connection' => \&together;
subtest 'a reload while calls wait' => \&reload;
subtest 'the health' => \&health;

done_testing();


sub config {
    my ($zone, $h2, $port, $timeout) = @_;

    $port ||= $redis->{port};
    $timeout ||= '5s';

    my $listen = $h2 ? "listen 127.0.0.1:$h2 http2;" : '';

    return <<"END";
ratelimit_redis main redis://127.0.0.1:$port timeout=$timeout
                connect_timeout=5s;
ratelimit_rules $files->{dir}/*.yaml zone=rules:1m redis=main $zone;
ratelimit_headers off;
log_format status '\$status';
server {
    listen 127.0.0.1:PORT;
    $listen
    access_log logs/access.log status;
    location / { ratelimit_service; }
}
END
}


sub gateway {
    my (@config) = @_;

    my $gateway = Gateway->start(workers => 1, http => config(@config));
    my $calls = ServiceCalls->new(Clients->new($gateway->{port}), '/');

    return ($gateway, $calls);
}


sub answer {
    my ($calls, @call) = @_;

    my $answer = $calls->ask(@call);

    return ServiceCalls::short($answer->{json}) if $answer->{json}{overallCode};
    return "$answer->{status} $answer->{body}";
}


sub by {
    my ($algorithm) = @_;

    $redis->call('FLUSHALL');

    my ($gateway, $calls) = gateway("algorithm=$algorithm fail=closed");
    my @hits = $algorithm eq 'leaky_bucket' ? () : (-hitsAddend => 3);
    my $left = @hits ? 2 : 0;

    is(answer($calls, 'basic', [one => 'a', @hits], { two => 'a' }),
       @hits ? 'OK OK(2 of 5/DAY) OK(2 of 3/DAY)'
             : 'OK OK(0 of 5/DAY) OK(0 of 3/DAY)', 'charged');
    like(answer($calls, 'basic', [one => 'a', -hitsAddend => 3], { two => 'b' }),
         qr/^OVER_LIMIT OVER_LIMIT\($left of 5\/DAY\)/, 'refused');
    is(answer($calls, 'basic', [one => 'a', -hitsAddend => 3], { two => 'a' }),
       @hits ? 'OVER_LIMIT OVER_LIMIT(2 of 5/DAY) OK(2 of 3/DAY)'
             : 'OVER_LIMIT OVER_LIMIT(0 of 5/DAY) OVER_LIMIT(0 of 3/DAY)',
       'what is said of a limit beside one that is known to refuse');
    is(answer($calls, 'basic', { two => 'b' }),
       @hits ? 'OK OK(2 of 3/DAY)' : 'OK OK(0 of 3/DAY)',
       'which costs the other limit nothing');
    is(answer($calls, 'basic', [two => 'c', -hitsAddend => 0]),
       @hits ? 'OK OK(3 of 3/DAY)' : 'OK OK(1 of 3/DAY)', 'a look');
    is(answer($calls, 'basic', { shadow => 'a' }, [two => 'd']),
       @hits ? 'OK OK(0 of 1/DAY) OK(2 of 3/DAY)'
             : 'OK OK(0 of 1/DAY) OK(0 of 3/DAY)', 'shadow mode');
    like(answer($calls, 'basic', { shadow => 'a' }, { two => 'e' }),
         qr/^OK OK\(0 of 1\/DAY\) OK\(/, 'passes');

    my @back = (-hitsAddend => 2, -isNegativeHits => JSON::PP::true);
    my $most = @hits ? 5 : 1;

    answer($calls, 'basic', [one => 'g', @hits]);
    is(answer($calls, 'basic', [one => 'g', @back]),
       @hits ? 'OK OK(4 of 5/DAY)' : 'OK OK(1 of 5/DAY)', 'given back');
    is(answer($calls, 'basic', [one => 'g', @back]), "OK OK($most of 5/DAY)",
       'no more than there was');
    is(answer($calls, 'basic', [one => 'g', -hitsAddend => 0]),
       "OK OK($most of 5/DAY)", 'in Redis, too');
    is($gateway->complaints, '', 'nothing to complain about');
}


# what was not reported yet is given back, and what was; the other gateway asks
# Redis each time

sub write_back {
    my ($algorithm) = @_;

    $redis->call('FLUSHALL');

    my ($gateway, $calls) = gateway("algorithm=$algorithm sync=100ms");
    my ($other, $there) = gateway("algorithm=$algorithm");
    my @look = (-hitsAddend => 0);
    my @back = (-isNegativeHits => JSON::PP::true);
    my $most = $algorithm eq 'leaky_bucket' ? 1 : 40;

    my $seen = sub {
        my ($left) = @_;

        Gateway::await(sub {
            answer($there, 'basic', [many => 'a', @look])
            eq "OK OK($left of 40/DAY)";
        }, "$left there");
        is(answer($calls, 'basic', [many => 'a', @look]),
           "OK OK($left of 40/DAY)", "$left here and there");
    };

    answer($calls, 'basic', [many => 'a', -hitsAddend => $most > 1 ? 20 : 1]);
    $seen->($most > 1 ? 20 : 0);

    # before and after others that are not reported

    answer($calls, 'basic', [many => 'a', -hitsAddend => 5, @back]);
    answer($calls, 'basic', [many => 'a', -hitsAddend => 9]) if $most > 1;
    answer($calls, 'basic', [many => 'a', -hitsAddend => 20, @back])
        if $most > 1;
    $seen->($most > 1 ? 36 : 1);

    answer($calls, 'basic', [many => 'a', -hitsAddend => 100, @back]);
    answer($calls, 'basic', [many => 'a', -hitsAddend => 3]) if $most > 1;
    $seen->($most > 1 ? 37 : 1);

    is($gateway->complaints, '', 'nothing to complain about');
}


# a report is lost, and the next question, of two limits that share the counter,
# comes long before it would be sent again

sub twice {
    my ($algorithm) = @_;

    $redis->call('FLUSHALL');

    my $scripted = ScriptedRedis->start(upstream => $redis,
        parts => { lost => sub { return ['close'] } },
        deaf => { lost => sub { 1 } });
    my ($gateway, $calls) = gateway("algorithm=$algorithm sync=100ms", undef,
                                    $scripted->{port}, '60s');
    my @five = [many => 'a', -hitsAddend => 5];

    answer($calls, 'basic', [many => 'a', -hitsAddend => 9]);
    $scripted->play('lost');
    answer($calls, 'basic', [many => 'a', -hitsAddend => 3,
                             -isNegativeHits => JSON::PP::true]);
    Gateway::await(sub { asked($scripted) }, 'a report is lost');
    $scripted->play('honest');

    is(answer($calls, 'basic', @five, @five),
       'OK OK(24 of 40/DAY) OK(24 of 40/DAY)', 'what it had counts once');

    my ($other, $there) = gateway("algorithm=$algorithm");

    is(answer($there, 'basic', [many => 'a', -hitsAddend => 0]),
       'OK OK(24 of 40/DAY)', 'in Redis, too');
    is($gateway->complaints, '', 'nothing to complain about');
}


sub two_gateways {
    $redis->call('FLUSHALL');

    my ($one, $here) = gateway('algorithm=fixed_window fail=closed');
    my ($two, $there) = gateway('algorithm=fixed_window fail=closed');

    is(answer($here, 'basic', [one => 'a', -hitsAddend => 4]),
       'OK OK(1 of 5/DAY)', 'here');
    is(answer($there, 'basic', { one => 'a' }), 'OK OK(0 of 5/DAY)', 'there');
    is(answer($here, 'basic', { one => 'a' }),
       'OVER_LIMIT OVER_LIMIT(0 of 5/DAY)', 'here again');
    is(answer($there, 'basic', [one => 'a', -hitsAddend => 2,
                                -isNegativeHits => JSON::PP::true]),
       'OK OK(2 of 5/DAY)', 'given back there');

    Gateway::await(sub {
        answer($here, 'basic', { one => 'a' }) eq 'OK OK(1 of 5/DAY)'
    }, 'what was given back');
    pass('and used here');
}


sub down {
    my $port = Gateway::free_port();
    my ($gateway, $calls) = gateway('algorithm=fixed_window', 0, $port);

    is(answer($calls, 'basic', { one => 'a' }), 'OK OK(4 of 5/DAY)',
       'counted here');

    $gateway->reload(config('algorithm=fixed_window fail=open', 0, $port));
    is(answer($calls, 'basic', [one => 'a', -hitsAddend => 9]),
       'OK OK', 'admitted; what is left is not known');

    my $h2 = Gateway::free_port();

    $gateway->reload(config('algorithm=fixed_window fail=closed', $h2, $port));
    is(answer($calls, 'basic', { one => 'a' }),
       "503 {\"error\":\"the counters can not be reached\"}\n", 'refused');

    my @said = ServiceCalls::grpc($h2, { health => '' },
                    ServiceCalls::message('basic', { one => 'a' }));

    is($said[1]{status}, 'UNAVAILABLE', 'by gRPC, too');
    is(Gateway::await(sub {
        answer($calls, 'basic', { one => 'a' });
        return ServiceCalls::health($h2, '') eq 'NOT_SERVING';
    }, 'the health'), 1, 'which is not well');
}


# other limits can't be asked then: they are not shown as whole

sub refusal_known {
    $redis->call('FLUSHALL');

    my $scripted = ScriptedRedis->start(upstream => $redis);
    my ($gateway, $calls) = gateway('algorithm=fixed_window', 0,
                                    $scripted->{port});

    answer($calls, 'basic', [one => 'a', -hitsAddend => 5], { two => 'a' });
    is(answer($calls, 'basic', { one => 'a' }, { two => 'a' }),
       'OVER_LIMIT OVER_LIMIT(0 of 5/DAY) OK(2 of 3/DAY)', 'Redis is asked');

    $scripted->play('refuse');
    is(Gateway::await(sub {
        answer($calls, 'basic', { one => 'a' }, { two => 'a' })
            =~ /^(OVER_LIMIT OVER_LIMIT\(0 of 5\/DAY\) OK)(?:\(3.*)?$/ && $&;
    }, 'a server that is marked down'),
       'OVER_LIMIT OVER_LIMIT(0 of 5/DAY) OK', 'Redis is down');
}


# what Redis has counted in the end

sub counted {
    my ($expected) = @_;

    return Gateway::await(sub {
        my ($key) = grep { /:one:|user|\{2:one/ } $redis->keys;
        my $count = $key ? unpack('x7 V', $redis->call('GET', $key) // '') // 0
                         : 0;

        return $count == $expected ? 'yes' : '';
    }, "a count of $expected");
}


# commands that wait for a reply

sub asked { return grep { $_ eq 'EVALSHA' } $_[0]->seen }


sub unanswered {
    $redis->call('FLUSHALL');

    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $h2 = Gateway::free_port();
    my ($gateway, $calls) = gateway('algorithm=fixed_window fail=closed', $h2,
                                    $scripted->{port}, '60s');
    my $call = '"domain":"basic","descriptors":[{"entries":'
               . '[{"key":"one","value":"a"}]}]';
    my $log = "$gateway->{dir}/logs/access.log";

    is(answer($calls, 'basic', { one => 'a' }), 'OK OK(4 of 5/DAY)', 'one');

    $scripted->play('hold');

    my $message = "$gateway->{dir}/message";
    my $bytes = "\x0a\x05basic\x12\x0a\x0a\x08\x0a\x03one\x12\x01a";
    my $file = IO::File->new($message, 'w');

    print $file pack('CN', 0, length $bytes) . $bytes;
    close $file;

    my $said = `nghttp -v -t 60 -d $message -H 'content-type: application/grpc' -H 'grpc-timeout: 1S' http://127.0.0.1:$h2/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit 2>&1`;

    like($said, qr/grpc-status: 4\n/, 'the deadline has passed');
    Gateway::await(sub { asked($scripted) == 1 }, 'a question to Redis');

    my $client = $calls->{clients}->connect;
    my $text = encode_json(ServiceCalls::message('basic', { one => 'a' }));

    Clients::put($client, $calls->{clients}->text('POST /',
                 'Content-Length: ' . length $text) . $text);
    Gateway::await(sub { asked($scripted) == 2 }, 'a client that asks');
    Clients::leave($client);
    Gateway::await(sub { Gateway::slurp($log) =~ /^499$/m }, 'and leaves');

    my $go = "$gateway->{dir}/go";
    my $pid = fork // die $!;

    if (!$pid) {
        my ($said) = ServiceCalls::grpc($h2, "{\"cancel\":\"$go\",$call}");

        POSIX::_exit($said->{status} eq 'CANCELLED' ? 0 : 1);
    }

    Gateway::await(sub { asked($scripted) == 3 }, 'a client of gRPC');
    close(IO::File->new($go, 'w'));
    waitpid $pid, 0;
    is($?, 0, 'that cancels its call');
    Gateway::await(sub { 2 == (() = Gateway::slurp($log) =~ /^499$/mg) },
                   'which ends');

    $scripted->play('honest');

    is(counted(1), 'yes', 'none is charged');
    is(answer($calls, 'basic', { one => 'a' }), 'OK OK(3 of 5/DAY)', 'two');
    is($gateway->complaints, '', 'nothing to complain about');
}


# many calls on one connection, of which Redis answers none for a while

sub together {
    $redis->call('FLUSHALL');

    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $h2 = Gateway::free_port();
    my ($gateway, $calls) = gateway('algorithm=fixed_window fail=closed', $h2,
                                    $scripted->{port}, '60s');
    my @lines = map { '{"together":true,"domain":"basic","descriptors":[{'
                      . '"entries":[{"key":"many","value":"b"}]}]}' } 1 .. 50;

    answer($calls, 'basic', [many => 'b', -hitsAddend => 0]);
    $scripted->play('hold');

    my $results = "$gateway->{dir}/results";
    my $pid = fork // die $!;

    if (!$pid) {
        my @codes = sort map { $_->{response}{overall_code} }
                    ServiceCalls::grpc($h2, @lines);
        my $file = IO::File->new($results, 'w');

        print $file "@codes";
        close $file;
        POSIX::_exit(0);
    }

    Gateway::await(sub { asked($scripted) == 50 }, 'fifty calls');
    $scripted->play('honest');
    waitpid $pid, 0;

    is(Gateway::slurp($results), join(' ', ('OK') x 40, ('OVER_LIMIT') x 10),
       'all are answered, and 40 are admitted');
    is($gateway->complaints, '', 'nothing to complain about');
}


sub reload {
    $redis->call('FLUSHALL');

    my $scripted = ScriptedRedis->start(upstream => $redis);
    my @config = ('algorithm=fixed_window fail=closed', 0, $scripted->{port},
                  '60s');
    my ($gateway, $calls) = gateway(@config);
    my $client = $calls->{clients}->connect;
    my $text = encode_json(ServiceCalls::message('basic', { one => 'a' }));

    answer($calls, 'basic', { two => 'a' });
    $scripted->play('hold');

    Clients::put($client, $calls->{clients}->text('POST /', 'Connection: close',
                 'Content-Length: ' . length $text) . $text);
    Gateway::await(sub { asked($scripted) == 1 }, 'a call');

    $gateway->reload(config(@config));
    $scripted->play('honest');

    Clients::await_answers(1, $client);
    is($client->{answers}[0]{status}, 200, 'is answered');
    Gateway::await(sub { $gateway->settled }, 'the former worker to exit');
    is(answer($calls, 'basic', { one => 'a' }), 'OK OK(3 of 5/DAY)',
       'and charged once');
    is($gateway->complaints, '', 'nothing to complain about');
}


# the health is known without any call, and so is that Redis is up again

sub health {
    $redis->call('FLUSHALL');

    my $h2 = Gateway::free_port();
    my ($gateway, $calls) = gateway('algorithm=fixed_window fail=closed', $h2,
                                    0, '300ms');
    my $is = sub {
        my ($expected) = @_;

        return Gateway::await(sub {
            ServiceCalls::health($h2, 'ratelimit') eq $expected
        }, $expected);
    };

    is($is->('SERVING'), 1, 'well');
    $redis->pause;
    is($is->('NOT_SERVING'), 1, 'Redis hangs');
    $redis->resume;
    is($is->('SERVING'), 1, 'well again');

    $gateway->reload(config('algorithm=fixed_window fail=local', $h2,
                            Gateway::free_port()));
    answer($calls, 'basic', { one => 'h' }) for 1 .. 5;
    is($is->('SERVING'), 1, 'without a Redis that is not needed');
}
