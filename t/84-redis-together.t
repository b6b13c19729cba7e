#!/usr/bin/perl

# What goes wrong only when several things come together: a request that asks
# twice, one dead connection among others that live, a greeting that is slow.
# If this fails, some wait longer than they should, or for ever.

use strict;
use warnings;

use Fcntl qw(O_NONBLOCK O_RDWR);
use File::Temp;
use IO::Select;
use List::Util qw(max min);
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use ScriptedRedis;

use constant SLACK => 2;        # seconds: this machine has other things to do

my $redis = RedisServer->start;

subtest 'a second try does not delay other requests' => \&asks_twice;
subtest 'two servers have one time' => \&two_servers;
subtest 'to the moment' => \&punctual;
subtest 'a slow server is not the fault of the next' => \&slow_first;
subtest 'one refuses, and the other one is not asked' => \&one_refuses;
subtest 'what is counted of Redis' => \&counted;
subtest 'what Redis repeats is not told' => \&repeats;
subtest 'a refusal that comes late lasts no longer' => \&late_refusal;
subtest 'a refusal ends when others refund' => \&given_back;
subtest 'an admission that is not the last' => \&not_the_last;
subtest 'a refund comes before the end of the answer' => \&refund_first;
subtest 'also of one that is made at once' => \&refund_at_once;
subtest 'a refusal that comes after a refund' => \&refund_on_its_way;
subtest 'and after the refund of another one' => \&refund_once_more;
subtest 'no time to ask again' => \&no_time_left;
subtest 'a refusal that is older than a refund' => \&older_refusal;
subtest 'a cost that is never allowed' => \&never_allowed;
subtest 'a delay in a reply that is too long' => \&long_delay;
subtest 'nothing of other requests is sent' => \&nothing_else;
subtest 'a refusal is that of one Redis' => \&another_redis;
subtest 'a client that keeps asking is refused without Redis'
    => \&keeps_asking;
subtest 'one of two connections is dead' => \&half_dead;
subtest 'a greeting is slower than commands' => \&slow_greeting;

done_testing();


sub gateway {
    my ($http, %location) = @_;

    # where it is not what is tested, connecting may take its time

    my $no_time = qr/^ratelimit_redis (?:(?!connect_)[^;])+/m;

    $http =~ s/$no_time\K;/ connect_timeout=5s;/g;

    return Gateway->start(http => <<'END' . $http . Gateway->server(%location));
add_header X-Backend $ratelimit_backend always;
END
}


sub backend {
    my ($clients, $uri) = @_;

    return $clients->ask("GET $uri")->{field}{'x-backend'};
}


# the second one has a fifth of its time left, and needs two

sub slow_first {
    my %parts = (late => sub { return ['wait', 0.8], $_[1] },
                 later => sub { return ['wait', 0.4], $_[1] });
    my @scripted = map { ScriptedRedis->start(upstream => $redis,
                                              parts => \%parts) } 1, 2;
    my $gateway = gateway(<<"END", '/both' => <<'END2', '/two' => <<'END3');
ratelimit_redis one redis://127.0.0.1:$scripted[0]{port} timeout=4s;
ratelimit_redis two redis://127.0.0.1:$scripted[1]{port} timeout=1s;
ratelimit_zone \$arg_k zone=one:1m rate=100r/d redis=one;
ratelimit_zone \$arg_k zone=two:1m rate=100r/d redis=two;
END
ratelimit zone=one;
ratelimit zone=two;
END2
ratelimit zone=two;
END3
    my $clients = Clients->new($gateway->{port});

    is(backend($clients, '/both?k=slow'), 'redis', 'both are well');

    $scripted[0]->play('late');
    $scripted[1]->play('later');
    backend($clients, '/both?k=slow') for 1 .. 6;
    $scripted[1]->play('honest');

    is(backend($clients, '/two?k=slow'), 'redis', 'it is still asked');
    unlike($gateway->log, qr/"two" is marked down/, 'and was all the time');
}


# whichever of them it is; a limit that counts refusals is told of it

sub one_refuses {
    my @scripted = map { ScriptedRedis->start(upstream => $redis) } 1, 2;
    my @locations = ('/first' => <<'END', '/second' => <<'END2');
ratelimit zone=one name=first rate=2r/d;
ratelimit zone=two name=first;
END
ratelimit zone=one name=second;
ratelimit zone=two name=second rate=2r/d;
END2
    push @locations, '/rejected' => <<'END', '/look' => <<'END2';
ratelimit zone=one name=rejected rejected=count;
ratelimit zone=two name=second rate=2r/d;
END
ratelimit zone=one name=rejected cost=0;
END2
    my $gateway = gateway(<<"END", @locations);
ratelimit_redis one redis://127.0.0.1:$scripted[0]{port} timeout=5s;
ratelimit_redis two redis://127.0.0.1:$scripted[1]{port} timeout=5s;
ratelimit_zone \$arg_k zone=one:1m rate=100r/d redis=one;
ratelimit_zone \$arg_k zone=two:1m rate=100r/d redis=two;
END
    my $clients = Clients->new($gateway->{port});

    for my $uri ('/first?k=k', '/second?k=k') {
        my @answers = $clients->series((["GET $uri"]) x 4);

        is(join(' ', map { $_->{status} } @answers), '200 200 429 429', $uri);

        # what is remembered is asked for if that was a second ago

        Gateway::await(sub {
            $_->play('honest') for @scripted;
            @answers = $clients->series((["GET $uri"]) x 20);

            return 3 >= grep { /^EVAL/ } map { $_->seen } @scripted;
        }, 'refusals that cost next to nothing');

        is(scalar(grep { $_->{status} == 429 } @answers), 20, 'all refused');
        is($answers[0]{field}{'x-ratelimit-limit'}, 2,
           'by the one that refuses');
    }

    $clients->ask('GET /rejected?k=k') for 1 .. 3;
    Gateway::await(sub {
        my $look = $clients->ask('GET /look?k=k');

        return $look->{field}{'x-ratelimit-remaining'} == 97;
    }, 'the limit that counts refusals');
    pass('which has counted');
}


# the first one runs out of time, and asks again after authentication

sub asks_twice {
    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $gateway = gateway(<<"END", '/twice' => <<'END2', '/once' => <<'END3');
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=3s;
ratelimit_zone \$arg_k zone=one:1m rate=100r/d redis=main;
ratelimit_zone \$arg_k zone=two:1m rate=100r/d redis=main;
END
ratelimit zone=one;
ratelimit zone=two after_auth;
END2
ratelimit zone=one;
END3
    my $clients = Clients->new($gateway->{port});

    is(backend($clients, '/once?k=a'), 'redis', 'Redis is well');

    $scripted->play('silent');

    my $first = $clients->send('GET /twice?k=a');
    sleep 0.2;

    my $start = time;
    my $second = $clients->send('GET /once?k=a');

    Clients::await_answers(1, $second);
    cmp_ok($second->{answers}[0]{at} - $start, '<', 3 + SLACK,
           'the other one waits no longer than its timeout');
    Clients::await_answers(1, $first);

    is($gateway->complaints, '', 'nothing to complain about');
}


# the time that one has taken is missing to the other

sub two_servers {
    my @scripted = map { ScriptedRedis->start(upstream => $redis) } 1, 2;
    my $gateway = gateway(<<"END", '/both' => <<'END2');
ratelimit_redis one redis://127.0.0.1:$scripted[0]{port} timeout=3s;
ratelimit_redis two redis://127.0.0.1:$scripted[1]{port} timeout=3s;
ratelimit_zone \$arg_k zone=one:1m rate=100r/d redis=one;
ratelimit_zone \$arg_k zone=two:1m rate=100r/d redis=two;
END
ratelimit zone=one;
ratelimit zone=two;
END2
    my $clients = Clients->new($gateway->{port});

    is(backend($clients, '/both?k=both'), 'redis', 'both are well');

    $_->play('silent') for @scripted;

    my $start = time;
    my $client = $clients->send('GET /both?k=both');

    Clients::await_answers(1, $client);
    cmp_ok($client->{answers}[0]{at} - $start, '<', 3 + SLACK,
           'a decision takes no longer than the timeout');
    is($client->{answers}[0]{field}{'x-backend'}, 'local', 'without them');
}


# a busy machine is late now and then, but not each time

sub punctual {
    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $gateway = gateway(<<"END", '/' => 'ratelimit zone=punctual;');
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=250ms;
ratelimit_zone \$arg_k zone=punctual:1m rate=100r/d redis=main;
END
    my $clients = Clients->new($gateway->{port});
    my @times;

    for my $k (1 .. 7) {
        $scripted->play('honest');
        Gateway::await(sub { backend($clients, '/?k=well') eq 'redis' },
                       'Redis');
        $scripted->play('hold');

        my $start = time;

        is(backend($clients, "/?k=$k"), 'local', 'no answer');
        push @times, time - $start;
    }

    my $best = min(@times);

    cmp_ok($best, '>', 0.24, 'all of the timeout');
    cmp_ok($best, '<', 0.30, 'and a few milliseconds');
}


# of all workers, told when one of them exits

sub counted {
    my $scripted = ScriptedRedis->start(upstream => $redis, parts => {
        full => sub { return $_[0][0] =~ /^EVAL/ ? "-OOM alas\r\n" : $_[1] },
    });
    my $gateway = Gateway->start(main => 'error_log logs/info.log info;',
                                 http => <<"END" . Gateway->server(
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=3s
                connect_timeout=5s;
ratelimit_zone \$arg_k zone=counted:1m rate=2r/d redis=main;
add_header X-Backend \$ratelimit_backend always;
END
                                     '/' => 'ratelimit zone=counted;',
                                     '/api/' => 'ratelimit_api;'));
    my $clients = Clients->new($gateway->{port});

    # the script may have to be sent once

    $clients->ask('GET /?k=before');

    is(join(' ', map { $_->{status} }
                     $clients->series((['GET /?k=counted']) x 5)),
       '200 200 429 429 429', 'two ask, three are known');

    $scripted->play('silent');
    Clients::await_answers(5, map { $clients->send("GET /?k=$_") } 1 .. 5);

    # one is asked to see whether it is back, those before it are not

    my $without = 5;

    $scripted->play('honest');
    Gateway::await(sub {
        return 1 if backend($clients, '/?k=back' . rand) eq 'redis';

        $without++;
        return 0;
    }, 'Redis');

    $scripted->play('full');
    is(backend($clients, "/?k=full$_"), 'local', 'an error') for 1 .. 3;
    $without += 3;

    kill 'QUIT', $gateway->{pid};
    waitpid delete $gateway->{pid}, 0;

    my ($told) = reverse grep { / \d+ commands, / }
                 split /^/, Gateway::slurp("$gateway->{dir}/logs/info.log");

    # questions for resets are commands, too, one after a while; until one has
    # been answered, known refusals are asked for

    like($told, qr/"main":\ (?:1[2-9]|2\d)\ commands,\ 5\ timeouts,\ 3\ errors,
                   \ 2\ changes\ of\ state,\ $without\ fallbacks,
                   \ [1-3]\ refusals\ from\ the\ deny\ cache/x,
         'all is counted');
}


# a command that it does not know is told with its arguments

sub repeats {
    my %redis = map { ($_ => without($_)) } qw(AUTH EVALSHA);
    my %location = map { ("/$_" => "ratelimit zone=$_;") } keys %redis;
    my $gateway = gateway(<<"END", %location);
ratelimit_redis AUTH redis://:hokus\@127.0.0.1:$redis{AUTH}{port} timeout=5s;
ratelimit_redis EVALSHA redis://127.0.0.1:$redis{EVALSHA}{port} timeout=5s
                prefix=:;
ratelimit_zone \$arg_k zone=AUTH:1m rate=9r/d redis=AUTH;
ratelimit_zone \$arg_k zone=EVALSHA:1m rate=9r/d redis=EVALSHA;
END
    my $clients = Clients->new($gateway->{port});

    for my $name (sort keys %redis) {
        is(backend($clients, "/$name?k=pokus"), 'local', "$name: down")
            for 1 .. 6;
        like($gateway->log, qr/"ERR unknown command '$name'"/,
             "$name: it is told why");
    }

    unlike($gateway->log, qr/hokus|pok/, 'neither a password nor a key is');
}


# a Redis that lacks a command

sub without {
    my ($command) = @_;

    my $file = File::Temp->new;

    print $file "rename-command $command unknown\n";
    close $file;

    return RedisServer->start('--include' => "$file");
}


# the time that Redis gives begins when it decides

sub late_refusal {
    my $scripted = ScriptedRedis->start(upstream => $redis, parts => {
        late => sub {
            my ($command, $reply) = @_;
            return $command->[0] =~ /^EVAL/ ? (['wait', 0.5], $reply) : $reply;
        },
    });
    my $gateway = gateway(<<"END", '/' => 'ratelimit zone=late;');
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=5s;
ratelimit_zone \$arg_k zone=late:1m rate=1r/2s algorithm=sliding_log redis=main;
END
    my $clients = Clients->new($gateway->{port});
    my ($first, $request, @statuses, @seen);

    # on a busy machine a memory may be too old before the third one

    for my $key ('a' .. 't') {
        $request = "GET /?k=$key";
        $scripted->play('honest');

        @statuses = $clients->ask($request)->{status};
        $first = time;

        $scripted->play('late');
        push @statuses, $clients->ask($request)->{status};
        $scripted->play('honest');
        push @statuses, $clients->ask($request)->{status};

        @seen = $scripted->seen;
        last if !@seen;
    }

    is("@statuses", '200 429 429', 'two of three are refused');
    is_deeply(\@seen, [], 'the last one without a question to Redis');

    sleep max(0, $first + 2.1 - time);
    is($clients->ask($request)->{status}, 200, 'until its time has come');
}


# others have charged the limit, but only for a while

sub given_back {
    my $other = ScriptedRedis->start(upstream => RedisServer->start);
    my $backend = Clients::backend();
    my $gateway = gateway(<<"END",
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s;
ratelimit_redis other redis://127.0.0.1:$other->{port} timeout=5s;
ratelimit_zone \$arg_k zone=one:1m rate=1r/d redis=main;
ratelimit_zone \$arg_k zone=two:1m rate=1r/d redis=main;
ratelimit_zone \$arg_k zone=three:1m rate=1r/d redis=main;
ratelimit_zone \$uri zone=none:1m rate=2r/d redis=other;
END
        '/one' => 'ratelimit zone=one;',
        '/two' => 'ratelimit zone=two;',
        '/three' => 'ratelimit zone=three;',
        '/stores' => 'ratelimit zone=two; ratelimit zone=none cost=$arg_c;',
        '/stages' => 'ratelimit zone=three;
                      ratelimit zone=none cost=$arg_c after_auth;',
        '/count' => 'ratelimit zone=one count=401; proxy_pass http://127.0.0.1:'
                    . $backend->sockport . ';',
    );
    my $clients = Clients->new($gateway->{port});
    my $status = sub { $clients->ask("GET $_[0]?k=given")->{status} };

    for (['/stores' => 'two'], ['/stages' => 'three']) {
        my ($held, $zone) = @$_;

        is($clients->ask("GET $held?k=first&c=1")->{status}, 200,
           "$held: too little is left of one limit");
        $other->play('hold');

        my $client = $clients->send("GET $held?k=given&c=2");

        Gateway::await(sub { grep { /{2:given}:$zone:/ } $redis->keys },
                       'a charge');
        is($status->("/$zone"), 429, "$held: refused while another is decided");
        $other->play('honest');
        Clients::await_answers(1, $client);
        is($client->{answers}[0]{status}, 429, "$held: which is refused");
        await_return($zone);
        is($status->("/$zone"), 200, "$held: and then is not any more");
    }

    my $client = $clients->send('GET /count?k=given');
    my $errand = Clients::errand($backend);

    is($status->('/one'), 429, 'count: refused while another is answered');
    Clients::reply($errand, 200);
    Clients::await_answers(1, $client);
    await_return('one');
    is($status->('/one'), 200, 'count: and then is not any more');
}


# a refund first forgets what Redis has refused meanwhile

sub await_return {
    my ($zone) = @_;

    Gateway::await(sub { !grep { /{2:given}:$zone:/ } $redis->keys },
                   'a charge that is refunded');
}


# of two logins one is answered while Redis admits the other one, which leaves
# nothing as far as Redis can know

sub not_the_last {
    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $backend = Clients::backend();
    my $gateway = login_gateway('last', 2, $scripted->{port}, $backend);
    my $clients = Clients->new($gateway->{port});
    my $first = $clients->send('GET /?k=last');
    my $errand = Clients::errand($backend);

    $scripted->play('hold');

    my $second = $clients->send('GET /?k=last');

    Gateway::await(sub { $scripted->asked('{2:last}') == 1 }, 'a question');
    Clients::reply($errand, 200);
    Clients::await_answers(1, $first);
    Gateway::await(sub { $scripted->asked('{2:last}') == 2 }, 'a refund');
    $scripted->play('honest');

    my @open = admitted($backend, $second);

    is(@open, 1, 'the second one is admitted');

    # from now on what is remembered is believed

    Gateway::await(sub {
        $scripted->play('honest');
        return $clients->ask('GET /plain')->{status} == 429
               && !grep { /^EVAL/ } $scripted->seen;
    }, 'a refusal that is remembered');
    push @open, admitted($backend, $clients->send('GET /?k=last'));
    is(@open, 2, 'and so is a third one, as the first one has cost nothing');
}


# a worker that goes no further than its access log, a pipe that is full,
# has answered a login, whose client tries the next gateway

sub refund_first {
    my $backend = Clients::backend();
    my ($dir, $log) = pipe_for_log();
    my @gateways = map { login_gateway('first', 1, $redis->{port}, $backend,
                                       $_) } "access_log $dir/log;", '';
    my ($here, $there) = map { Clients->new($_->{port}) } @gateways;
    my $client = $here->send('GET /?k=first');
    my $errand = Clients::errand($backend);

    1 while syswrite $log, "\n" x 4096;

    Clients::reply($errand, 200);
    Clients::await_answers(1, $client);
    is(admitted($backend, $there->send('GET /?k=first')), 1,
       'the next one is admitted');

    1 while sysread $log, my $text, 4096;
}


# the same, while the worker handles what Redis has said

sub refund_at_once {
    my ($dir, $log) = pipe_for_log();
    my @gateways = map { gateway(<<"END", '/' => <<"END2") }
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=1h;
ratelimit_zone \$arg_k zone=once:1m rate=1r/d redis=main;
END
ratelimit zone=once count=401;
$_
END2
                   "access_log $dir/log;", '';
    my ($here, $there) = map { Clients->new($_->{port}) } @gateways;

    1 while syswrite $log, "\n" x 4096;

    my $client = $here->send('GET /?k=once');

    Clients::await_answers(1, $client);
    is($client->{answers}[0]{status}, 200, 'an answer');
    is($there->ask('GET /?k=once')->{status}, 200, 'the next one is admitted');

    1 while sysread $log, my $text, 4096;
}


sub pipe_for_log {
    my $dir = File::Temp->newdir;

    POSIX::mkfifo("$dir/log", 0600) or die "mkfifo: $!";
    sysopen my $log, "$dir/log", O_RDWR | O_NONBLOCK or die "$dir/log: $!";

    return ($dir, $log);
}


# another gateway refunds what Redis has refused for

sub refund_on_its_way {
    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $backend = Clients::backend();
    my @gateways = map { login_gateway('way', 1, $_->{port}, $backend) }
                   $redis, $scripted;
    my ($here, $there) = map { Clients->new($_->{port}) } @gateways;
    my $first = $here->send('GET /?k=way');
    my $errand = Clients::errand($backend);

    $scripted->play('hold');

    my $second = $there->send('GET /?k=way');

    Gateway::await(sub { $scripted->asked('{2:way}') }, 'a question');
    Clients::reply($errand, 200);
    Clients::await_answers(1, $first);
    Gateway::await(sub { !grep { /{2:way}/ } $redis->keys }, 'a refund');
    $scripted->play('honest');

    my @open = admitted($backend, $second);

    is(@open, 1, 'the other one is admitted');

    $scripted->play('honest');
    is($there->ask('GET /?k=way')->{status}, 429, 'two at once are not');
    is($scripted->asked('{2:way}'), 4, 'which Redis has said four times');
}


# the same happens to the question that is asked then

sub refund_once_more {
    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $backend = Clients::backend();
    my @gateways = map { login_gateway('more', 1, $_->{port}, $backend) }
                   $redis, $scripted;
    my ($here, $there) = map { Clients->new($_->{port}) } @gateways;
    my $client = $here->send('GET /?k=more');
    my $errand = Clients::errand($backend);

    $scripted->play('hold');

    my $other = $there->send('GET /?k=more');

    Gateway::await(sub { $scripted->asked('{2:more}') }, 'a question');
    Clients::reply($errand, 200);
    Clients::await_answers(1, $client);
    Gateway::await(sub { !grep { /{2:more}/ } $redis->keys }, 'a refund');

    $client = $here->send('GET /?k=more');
    $errand = Clients::errand($backend);

    $scripted->play('hold');
    Gateway::await(sub { $scripted->asked('{2:more}') }, 'another question');
    Clients::reply($errand, 200);
    Clients::await_answers(1, $client);
    Gateway::await(sub { !grep { /{2:more}/ } $redis->keys }, 'its refund');
    $scripted->play('honest');

    is(admitted($backend, $other), 1, 'the other one is admitted');
}


# a refusal that takes more than half of the time is believed

sub no_time_left {
    my $scripted = ScriptedRedis->start(upstream => $redis, parts => {
        late => sub { return ['wait', 2.2], $_[1] },
    });
    my $backend = Clients::backend();
    my $gateway = login_gateway('left', 1, $scripted->{port}, $backend,
                                '', '4s');
    my $clients = Clients->new($gateway->{port});
    my $client = $clients->send('GET /?k=left');
    my $errand = Clients::errand($backend);

    $scripted->play('late');

    my $answer = $clients->ask('GET /?k=left');

    is($answer->{status}, 429, 'refused');
    is($answer->{field}{'x-backend'}, 'redis', 'by Redis');
    is($scripted->asked('{2:left}'), 1, 'which was asked once');
}


# what Redis has said before it had the refund is not remembered

sub older_refusal {
    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $backend = Clients::backend();
    my $gateway = login_gateway('older', 1, $scripted->{port}, $backend,
                                '', '4s');
    my $clients = Clients->new($gateway->{port});
    my $first = $clients->send('GET /?k=older');
    my $errand = Clients::errand($backend);

    $scripted->play('hold');

    my $second = $clients->send('GET /?k=older');

    Gateway::await(sub { $scripted->asked('{2:older}') }, 'a question');
    Clients::reply($errand, 200);
    Clients::await_answers(1, $first);

    # there is no time to ask once more

    sleep 2.2;
    $scripted->play('honest');
    Clients::await_answers(1, $second);
    is($second->{answers}[0]{status}, 429, 'refused');
    is($second->{answers}[0]{field}{'x-backend'}, 'redis', 'by Redis');

    # from now on what is remembered is believed

    Gateway::await(sub {
        $scripted->play('honest');
        return $clients->ask('GET /plain')->{status} == 429
               && !grep { /^EVAL/ } $scripted->seen;
    }, 'a refusal that is remembered');
    is(admitted($backend, $clients->send('GET /?k=older')), 1,
       'the next one is admitted');
}


# of so many that are under way, those that are good cost nothing

sub login_gateway {
    my ($name, $n, $port, $backend, $more, $timeout) = @_;

    $more //= '';
    $timeout //= '1h';

    return gateway(<<"END", '/' => <<"END2", '/plain' => 'ratelimit zone=plain;');
ratelimit_redis main redis://127.0.0.1:$port timeout=$timeout;
ratelimit_zone \$arg_k zone=$name:1m rate=1r/d capacity=$n
               algorithm=token_bucket redis=main;
ratelimit_zone \$server_addr zone=plain:1m rate=1r/d redis=main;
END
ratelimit zone=$name count=401;
proxy_pass http://127.0.0.1:${\ $backend->sockport};
$more
END2
}


# what comes to the backend, unless the request is refused

sub admitted {
    my ($backend, $client) = @_;

    my @ready = IO::Select->new($backend, $client->{socket})
                          ->can_read(Gateway::PATIENCE);

    return map { Clients::errand($_) } grep { $_ == $backend } @ready;
}


# the limit is whole, and nevertheless refuses

sub never_allowed {
    my $gateway = gateway(<<"END", '/' => 'ratelimit zone=never cost=5;');
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s;
ratelimit_zone \$arg_k zone=never:1m rate=3r/m redis=main;
END
    my $clients = Clients->new($gateway->{port});

    my $asked = sub {
        $redis->forget_calls;

        my $answer = $clients->ask('GET /?k=a');

        is($answer->{status}, 429, 'refused');
        cmp_ok($answer->{field}{'x-ratelimit-reset'}, '<=', 60,
               'until it is whole it takes no longer than a period');

        return $redis->calls('eval') + $redis->calls('evalsha');
    };

    cmp_ok($asked->(), '>', 0, 'Redis is asked');
    Gateway::await(sub { !$asked->() }, 'a refusal that is known');
}


# a verdict that lets pass, after a century

sub long_delay {
    my $verdict = pack 'Q<7', 1, 0, 1, 0, 3_000_000_000_000_000, 0, 0;
    my $scripted = ScriptedRedis->start(upstream => $redis, parts => {
        long => sub {
            my ($command, $reply) = @_;
            return $command->[0] !~ /^EVAL/ ? $reply
                   : '$' . length($command->[-1] . $verdict) . "\r\n"
                     . "$command->[-1]$verdict\r\n";
        },
        array => sub { return $_[0][0] =~ /^EVAL/ ? "*1\r\n+a\r\n" : $_[1] },
    });
    my $gateway = gateway(<<"END", '/' => 'ratelimit zone=long;');
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=5s;
ratelimit_zone \$arg_k zone=long:1m rate=100r/d redis=main;
END
    my $clients = Clients->new($gateway->{port});

    for my $part (qw(long array)) {
        $scripted->play('honest');
        Gateway::await(sub { backend($clients, '/?k=a') eq 'redis' }, 'Redis');
        $scripted->play($part);
        is(backend($clients, '/?k=a'), 'local', "$part: not believed")
            for 1 .. 6;
    }

    my @why = $gateway->log =~ /is marked down: (.+)/g;

    is_deeply(\@why, [('malformed reply') x 2], 'it is told why');
}


# the stamp, which ends an argument before the echo, is for refunds

sub nothing_else {
    my $scripted = ScriptedRedis->start(upstream => $redis, parts => {
        careful => sub {
            my ($command, $reply) = @_;
            return $command->[0] !~ /^EVAL/ || $command->[-2] =~ /\0{8}\z/
                   ? $reply : "-ERR what is that?\r\n";
        },
    });
    my $limit = 'ratelimit zone=else rejected=count;';
    my $gateway = gateway(<<"END", '/' => $limit);
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=5s;
ratelimit_zone \$arg_k zone=else:1m rate=1000r/d redis=main;
END
    my $clients = Clients->new($gateway->{port});

    $scripted->play('careful');

    my @answers = $clients->series(
        map { ['GET /?k=a', map { "X-$_: " . 'secret' x (10 * $_) } 1 .. 20] }
        1 .. 40
    );

    is_deeply([grep { $_->{field}{'x-backend'} ne 'redis' } @answers], [],
              'Redis is told nothing that it need not know');
}


# a reload moves the zone to a Redis that has refused nothing

sub another_redis {
    my $other = RedisServer->start;
    my $config = sub {
        return <<"END" . Gateway->server('/' => 'ratelimit zone=moved;');
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s
                connect_timeout=5s;
ratelimit_redis other redis://127.0.0.1:$other->{port} timeout=5s
                connect_timeout=5s;
ratelimit_zone \$arg_k zone=moved:1m rate=1r/d redis=$_[0];
END
    };
    my $gateway = Gateway->start(http => $config->('main'));
    my $clients = Clients->new($gateway->{port});
    my $status = sub { $clients->ask('GET /?k=a')->{status} };

    is($status->(), $_, "main: $_") for 200, 429;
    $gateway->reload($config->('main'));
    is($status->(), 429, 'main: as before after a reload');
    $gateway->reload($config->('other'));
    is($status->(), $_, "other: $_") for 200, 429;
}


# refused requests count, also for the time without Redis

sub keeps_asking {
    my $server = RedisServer->start;
    my $limit = 'ratelimit zone=keeps rejected=count;';
    my $gateway = gateway(<<"END", '/' => $limit);
ratelimit_redis main redis://127.0.0.1:$server->{port} timeout=5s;
ratelimit_zone \$arg_k zone=keeps:1m rate=2r/4s algorithm=sliding_log redis=main;
END
    my $clients = Clients->new($gateway->{port});
    my $start = time;
    my $last;

    is($clients->ask('GET /?k=a')->{status}, 200, 'two pass') for 1 .. 2;

    while (time < $start + 3.8) {
        $last = $clients->ask('GET /?k=a');
        sleep 0.1;
    }

    is($last->{status}, 429, 'others do not');
    $server->kill;
    sleep max(0, $start + 4.5 - time);

    my $answer = $clients->ask('GET /?k=a');

    is($answer->{field}{'x-backend'}, 'local', 'Redis is down');
    is($answer->{status}, 429, 'a client that has kept asking is refused');
}


# as behind a firewall that has forgotten one of them

sub half_dead {
    my $scripted = ScriptedRedis->start(upstream => $redis, parts => {
        half => sub {
            my ($command, $reply, $connection) = @_;
            return $connection == 1 ? () : $reply;
        },
    });
    my $gateway = gateway(<<"END", '/' => 'ratelimit zone=half;');
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=800ms
                connections=2;
ratelimit_zone \$arg_k zone=half:1m rate=1000r/d redis=main;
END
    my $clients = Clients->new($gateway->{port});

    Gateway::await(sub { backend($clients, '/?k=a') eq 'redis' }, 'Redis');
    $scripted->play('half');

    # as long as it is one of two, it is the turn of each

    my ($local, $row) = (0, 0);

    Gateway::await(sub {
        my $dead = backend($clients, '/?k=a') eq 'local';

        $local += $dead;
        $row = $dead ? 0 : $row + 1;

        return $row >= 20;
    }, 'the dead one to be closed');

    cmp_ok($local, '>=', 5, 'the dead one is tried');
}


# connect_timeout= has time for it, timeout= has not

sub slow_greeting {
    my $scripted = ScriptedRedis->start(upstream => $redis, parts => {
        slow => sub {
            my ($command, $reply) = @_;
            return $command->[0] eq 'SELECT' ? (['wait', 0.2], $reply) : $reply;
        },
    });

    $scripted->play('slow');

    my $gateway = gateway(<<"END", '/' => 'ratelimit zone=slow;');
ratelimit_redis main redis://127.0.0.1:$scripted->{port}/1 timeout=100ms
                connect_timeout=2s;
ratelimit_zone \$arg_k zone=slow:1m rate=10000r/d redis=main;
END
    my $clients = Clients->new($gateway->{port});
    my $well = sub { backend($clients, '/?k=a') eq 'redis' };

    ok(Gateway::await($well, 'Redis'), 'it is well at first');

    $scripted->play('silent');
    $well->() for 1 .. 6;
    like($gateway->log, qr/is marked down/, 'and is marked down');

    $scripted->play('slow');
    ok(Gateway::await($well, 'Redis'), 'and is well again');
}
