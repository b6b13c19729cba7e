#!/usr/bin/perl

# While a request waits for Redis, its client may leave, its worker may be told
# to go or be killed, and the name of the Redis may come to mean another
# address.  If this fails, nginx crashes or leaks when a client is impatient,
# or does not end.

use strict;
use warnings;

use File::Temp;
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use ScriptedDns;
use ScriptedRedis;
use Together;

use constant PROMPT => 15;      # seconds, where 60 would be a hang

my $redis = RedisServer->start;
my $scripted = ScriptedRedis->start(upstream => $redis);
my $h2 = Gateway::free_port();
my $gateway = Gateway->start(workers => 2, http => config());
my $clients = Clients->new($gateway->{port});

subtest 'a client that leaves while its request waits' => \&leave;
subtest 'a client that leaves and is not counted' => \&leave_uncounted;
subtest 'a client that leaves and might have waited for a token' => \&leave_queue;
subtest 'post_action after a client has left' => \&post_action;
subtest 'a thousand keys' => \&thousand;
subtest 'many that leave' => \&many_leave;
subtest 'HTTP/2' => \&http2;
subtest 'one request, one count' => \&once;
subtest 'an idle reload' => \&idle_reload;
subtest 'a reload while waiting' => \&reload_waiting;
subtest 'a reload while waiting in vain' => \&reload_in_vain;
subtest 'a refund by an old worker' => \&old_refund;
subtest 'quit while waiting' => \&quit_waiting;
subtest 'a quick end while waiting' => \&term_waiting;
subtest 'a killed worker' => \&killed;
subtest 'a reload that drops it' => \&dropped;
subtest 'into Redis, and out of it' => \&moves;
subtest 'names' => \&names;
subtest 'no password in any log' => \&passwords;

is($gateway->complaints(qr/exited on signal 9/), '',
   'nothing to complain about');
unlike($gateway->log, qr/exited on signal (?!9)/, 'no worker has died');

done_testing();


sub config {
    return <<'END' =~ s/SCRIPTED/$scripted->{port}/gr
ratelimit_redis main redis://127.0.0.1:SCRIPTED timeout=60s
                connect_timeout=60s;
ratelimit_redis brief redis://127.0.0.1:SCRIPTED timeout=3s
                connect_timeout=15s;

ratelimit_zone $arg_k zone=z:4m rate=10r/d redis=main;
ratelimit_zone $arg_k zone=brief:1m rate=10r/d redis=brief;
ratelimit_zone $http_x_key zone=load:1m rate=1000r/d redis=main;

add_header X-Status $ratelimit_status always;
add_header X-Backend $ratelimit_backend always;

log_format outcome "$request_uri $status $ratelimit_status";

server {
    listen 127.0.0.1:PORT reuseport backlog=2048;
    listen 127.0.0.1:H2 http2;
    access_log logs/access.log outcome;

    location /z { ratelimit zone=z; empty_gif; }
    location /brief { ratelimit zone=brief; empty_gif; }
    location /load { ratelimit zone=load; empty_gif; }
    location /look { ratelimit zone=z cost=0; empty_gif; }

    location /count { ratelimit zone=z count=401;
                      proxy_pass http://127.0.0.1:PORT/slow; }
    location /slow { limit_rate 100; root .; try_files /slow.txt =404; }

    location /left { ratelimit zone=z count=401; post_action /post; }
    location = /post { internal; proxy_pass http://127.0.0.1:PORT/late; }
    location /late { limit_rate 100; root .; try_files /late.txt =404; }

    location /page { ratelimit zone=z; error_page 404 /again; }
    location /named { ratelimit zone=z; error_page 404 @again; }
    location /tried { ratelimit zone=z; try_files /nothing @again; }
    location /auth { ratelimit zone=z; auth_request /again; empty_gif; }
    location /added { ratelimit zone=z; add_after_body /again;
                      default_type text/plain; root .;
                      try_files /slow.txt =404; }
    location /mirrored { ratelimit zone=z; mirror /again; empty_gif; }
    location /again { ratelimit zone=z; empty_gif; }
    location @again { ratelimit zone=z; empty_gif; }
}
END
    =~ s/H2/$h2/r;
}


sub honest { $scripted->play('honest') }


# so many scripts have come to Redis since the last change of its part

sub asked {
    my ($n) = @_;

    Gateway::await(sub { (grep { /^EVAL/ } $scripted->seen) >= $n },
                   "$n commands");
}


sub statuses {
    return join ' ', map { $_->{status} }
                     $clients->series(map { ["GET $_"] } @_);
}


sub left {
    my ($k) = @_;

    return $clients->ask("GET /look?k=$k")->{field}{'x-ratelimit-remaining'};
}


sub logged {
    my ($line, $n, $where) = (@_, $gateway);

    Gateway::await(sub {
        my $log = Gateway::slurp("$where->{dir}/logs/access.log");
        my $lines = () = $log =~ /^\Q$line\E/mg;

        return $lines >= $n;
    }, $line);
}


sub leave {
    $scripted->play('hold');

    my @all = map { $clients->send('GET /z?k=leave') } 1 .. 5;

    asked(5);
    Clients::leave($_) for @all[0 .. 3];
    logged('/z?k=leave 499', 4);
    honest();
    Clients::await_answers(1, $all[4]);

    is($all[4]{answers}[0]{status}, 200, 'another one gets its response');
    cmp_ok(left('leave'), '>=', 5, 'none counts twice');
    is(statuses('/z?k=after'), 200, 'and all goes on');
}


# 499 is none of the statuses that count

sub leave_uncounted {
    $scripted->play('hold');

    my @all = map { $clients->send('GET /count?k=uncounted') } 1 .. 3;

    push @all, $clients->send('GET /z?k=uncounted');

    asked(4);
    Clients::leave($_) for @all;
    logged('/count?k=uncounted 499', 3);
    logged('/z?k=uncounted 499', 1);
    honest();

    Gateway::await(sub { left('uncounted') == 9 }, 'a refund');
    pass('all but one');
}


# before it is known that the request would have to wait, where statuses are
# looked at and where none is

sub leave_queue {
    for my $count ('', 'count=401') {
        my $other = Gateway->start(workers => 2, http => <<"END");
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=60s
                connect_timeout=60s;
ratelimit_zone \$arg_k zone=token:1m rate=1r/h algorithm=token_bucket
               redis=main;
log_format outcome "\$request_uri \$status";

server {
    listen 127.0.0.1:PORT;
    access_log logs/access.log outcome;

    location /token { ratelimit zone=token delay=9h; empty_gif; }
    location /look { ratelimit zone=token cost=0; empty_gif; }
    location /other { ratelimit zone=token name=other $count; empty_gif; }
}
END
        my $clients = Clients->new($other->{port});
        my $uri = "/token?k=queue$count";

        is($clients->ask("GET $uri")->{status}, 200, 'the only token');
        $scripted->play('hold');

        my $client = $clients->send("GET $uri");

        asked(1);
        Clients::leave($client);
        logged("$uri 499", 1, $other);
        honest();

        Gateway::await(sub {
            my $answer = $clients->ask("GET /look?k=queue$count");

            return $answer->{field}{'x-ratelimit-reset'} <= 3600;
        }, 'a refund');
        pass('the next token is not spent');
    }
}


# once, whatever Redis says meanwhile

sub post_action {
    write_file('late.txt', 'text ' x 50);
    $scripted->play('hold');

    my $client = $clients->send('GET /left?k=left');

    asked(1);
    Clients::leave($client);
    sleep(0.3);
    honest();
    logged('/left?k=left', 1);
    logged('/late ', 1);

    my $log = Gateway::slurp("$gateway->{dir}/logs/access.log");

    is(join(' ', $log =~ m{^/late (\d+)}mg), 200, 'once, and to its end');
    Gateway::await(sub { left('left') == 10 }, 'a refund');
    pass('a client that left is not counted');
}


# in two processes, for one may not have so many files

sub thousand {
    $scripted->play('hold');

    my $held = 1;
    my @all = map { @$_ } Together::run(sub {
        return if !$held || (grep { /^EVAL/ } $scripted->seen) < 1000;

        honest();
        $held = 0;
    }, map { my $from = $_; sub {
        my @some = map { $clients->send("GET /z?k=many$_") }
                   $from .. $from + 499;

        Clients::await_answers(500, @some);

        return [map { $_->{answers}[0] } @some];
    } } 1, 501);

    is_deeply(Clients::tally(@all), { 200 => 1000 }, 'all pass');
    is(scalar(grep { $_->{field}{'x-ratelimit-remaining'} == 9 } @all), 1000,
       'each by itself');
    is(scalar(grep { /\{2:many\d+\}/ } $redis->keys), 1000, 'a key for each');
    ok(!$held, 'all of them were under way at the same time');
}


sub many_leave {
    $scripted->play('hold');

    my @all = map { $clients->send("GET /z?k=gone$_") } 1 .. 500;

    asked(500);
    Clients::leave($_) for @all;
    logged('/z?k=gone', 500);
    honest();
    is(statuses('/z?k=after-all'), 200, 'all goes on');
    is(left('gone1'), 9, 'what was asked has been counted once');
}


sub nghttp {
    my (@uris) = @_;

    open my $nghttp, '-|', 'nghttp', '-v', '-t', '20',
                     map { "http://127.0.0.1:$h2$_" } @uris
        or die "nghttp: $!";
    my $text = join '', <$nghttp>;
    close $nghttp;

    return $text =~ /:status: (\d+)/g;
}


sub http2 {
    is(join(' ', sort(nghttp(map { "/z?k=h2&n=$_" } 1 .. 12))),
       join(' ', (200) x 10, 429, 429), 'streams count');

    # streams that wait, and are gone

    $scripted->play('hold');

    my $pid = open my $nghttp, '-|', 'nghttp', '-v',
                   map { "http://127.0.0.1:$h2/z?k=h2-gone&n=$_" } 1 .. 5
        or die "nghttp: $!";

    asked(5);
    kill 'KILL', $pid;
    close $nghttp;
    logged('/z?k=h2-gone', 5);
    honest();

    is(join(' ', nghttp('/z?k=h2-after', '/z?k=h2-after&n')), '200 200',
       'all goes on');
}


sub once {
    write_file('slow.txt', 'text ' x 100);

    my %expected = (page => 404, named => 404, tried => 200, auth => 200,
                    added => 200, mirrored => 200);

    for my $name (sort keys %expected) {
        is(statuses("/$name?k=once-$name"), $expected{$name}, $name);
        is(left("once-$name"), 9, "$name counts once");
    }
}


sub write_file {
    my ($name, $text) = @_;

    open my $out, '>', "$gateway->{dir}/$name" or die "$name: $!";
    print $out $text;
    close $out or die $!;
    chmod 0644, "$gateway->{dir}/$name";
}


# a connection to Redis on which nothing happens holds no worker

sub idle_reload {
    is(statuses('/z?k=idle', '/brief?k=idle'), '200 200', 'connected');

    my $start = time;

    $gateway->reload(config());
    Gateway::await(sub { $gateway->settled }, 'old workers');
    cmp_ok(time - $start, '<', PROMPT, 'old workers are gone');

    is(left('idle'), 9, 'counters are where they were');
}


sub reload_waiting {
    $scripted->play('hold');

    my @all = map { $clients->send("GET /z?k=reload$_") } 1 .. 20;

    asked(20);
    $gateway->reload(config());
    cmp_ok(scalar $gateway->all_workers, '>', 2, 'old workers wait');
    honest();

    my $start = time;

    Clients::await_answers(20, @all);
    is_deeply(Clients::tally(map { $_->{answers}[0] } @all), { 200 => 20 },
              'all are answered');
    is(scalar(grep { $_->{answers}[0]{field}{'x-backend'} eq 'redis' } @all),
       20, 'by Redis');
    Gateway::await(sub { $gateway->settled }, 'old workers');
    cmp_ok(time - $start, '<', PROMPT, 'and old workers are gone');
}


# Redis never answers: the timeout ends it

sub reload_in_vain {
    is(statuses('/brief?k=vain'), 200, 'connected');
    $scripted->play('silent');

    my @all = map { $clients->send('GET /brief?k=vain') } 1 .. 10;

    asked(10);

    my $start = time;

    $gateway->reload(config());
    Clients::await_answers(10, @all);
    Gateway::await(sub { $gateway->settled }, 'old workers');
    cmp_ok(time - $start, '<', PROMPT, 'old workers are gone');

    is_deeply(Clients::tally(map { $_->{answers}[0] } @all),
              { 200 => 9, 429 => 1 }, 'all are answered from here');
    honest();
}


# A request of an old worker ends after the reload.  What it refunds must
# reach Redis, and must not keep the worker.

sub old_refund {
    write_file('slow.txt', 'text ' x 20);

    my $client = $clients->send('GET /count?k=old');

    Gateway::await(sub { left('old') == 9 }, 'a reservation');

    $gateway->reload(config());
    Clients::await_answers(1, $client);
    is($client->{answers}[0]{status}, 200, 'a good end');

    my $start = time;

    Gateway::await(sub { left('old') == 10 }, 'a refund');
    Gateway::await(sub { $gateway->settled }, 'old workers');
    cmp_ok(time - $start, '<', PROMPT, 'and the worker is gone');
}


sub quit_waiting {
    is(statuses('/brief?k=quit'), 200, 'connected');
    $scripted->play('silent');

    my @all = map { $clients->send('GET /brief?k=quit') } 1 .. 10;

    asked(10);

    my $start = time;

    kill 'QUIT', $gateway->{pid};
    Clients::await_answers(10, @all);
    is_deeply(Clients::tally(map { $_->{answers}[0] } @all),
              { 200 => 9, 429 => 1 }, 'all are answered');
    waitpid $gateway->{pid}, 0;
    cmp_ok(time - $start, '<', PROMPT, 'nginx is gone');
    is($?, 0, 'as if nothing had been');

    honest();
    $gateway->launch or die 'nginx does not start again';
}


sub term_waiting {
    $scripted->play('hold');

    my @all = map { $clients->send("GET /z?k=term$_") } 1 .. 10;

    asked(10);

    my $start = time;

    kill 'TERM', $gateway->{pid};
    waitpid $gateway->{pid}, 0;
    cmp_ok(time - $start, '<', PROMPT, 'nginx is gone');
    is($?, 0, 'as if nothing had been');

    honest();
    $gateway->launch or die 'nginx does not start again';
}


# in the middle of a load, again and again: a request without a response may
# have been counted, and no other one

sub killed {
    my $kills = 0;
    my $tally = $gateway->load(
        requests => [(['/load', 'killed']) x 2500],
        tick => sub {
            my ($answers) = @_;

            return if $answers < 150 * ($kills + 1) || $kills >= 4;

            my ($pid) = $gateway->current_workers or return;

            kill 'KILL', $pid;
            $kills++;
        },
    );
    my $count = $tally->{keys}{killed};
    my $lost = $count->{unanswered} || 0;

    is($kills, 4, 'four were killed');
    is($tally->{hang}, 0, 'no hang');
    cmp_ok($count->{200}, '<=', 1000, 'not one too many');
    cmp_ok($count->{200}, '>=', 1000 - $lost, "nor too few, $lost lost");
}


sub dropped {
    $scripted->play('hold');

    my @all = map { $clients->send("GET /z?k=dropped$_") } 1 .. 5;

    asked(5);
    $gateway->reload('add_header X-Backend $ratelimit_backend always;'
                     . Gateway->server('/' => ''));
    honest();
    Clients::await_answers(5, @all);
    is_deeply(Clients::tally(map { $_->{answers}[0] } @all), { 200 => 5 },
              'all are answered');
    Gateway::await(sub { $gateway->settled }, 'old workers');
    Gateway::await(sub {
        my $list = $redis->call('CLIENT', 'LIST');

        return 1 == (() = $list =~ /^id=/mg);
    }, 'connections to end');
    pass('no client is connected any more');
}


# A zone's own memory knows what was counted in Redis, but not the reverse.

sub moves {
    my $other = RedisServer->start;
    my $config = sub {
        my ($port, $redis) = @_;

        return <<"END" . Gateway->server('/' => 'ratelimit zone=moves;');
ratelimit_redis main redis://127.0.0.1:$port timeout=5s connect_timeout=5s;
ratelimit_zone \$arg_k zone=moves:1m rate=5r/d $redis;
add_header X-Backend \$ratelimit_backend always;
END
    };
    my $backends = sub {
        my ($uri, $n) = @_;

        return join ' ', map { "$_->{status}:$_->{field}{'x-backend'}" }
                         $clients->series((["GET $uri"]) x $n);
    };

    $gateway->reload($config->($redis->{port}, ''));
    is($backends->('/?k=a', 3), '200:shm 200:shm 200:shm', 'here');

    $gateway->reload($config->($redis->{port}, 'redis=main'));
    is($backends->('/?k=a', 2), '200:redis 200:redis', 'in Redis');
    is($backends->('/?k=b', 2), '200:redis 200:redis', 'another key');

    $gateway->reload($config->($redis->{port}, ''));
    is($backends->('/?k=a', 1), '429:shm', 'here again: all were counted');
    is($backends->('/?k=b', 4), '200:shm 200:shm 200:shm 429:shm',
       'another key, too');

    $gateway->reload($config->($redis->{port}, 'redis=main'));
    is($backends->('/?k=a', 4), '200:redis 200:redis 200:redis 429:redis',
       'in Redis again');

    # it is gone, and another one takes its place

    $gateway->reload($config->(Gateway::free_port(), 'redis=main'));
    like($backends->('/?k=c', 6), qr/^(?:200:local ){5}429:local$/, 'nowhere');

    $gateway->reload($config->($other->{port}, 'redis=main'));
    Gateway::await(sub { $backends->('/?k=' . rand, 1) eq '200:redis' },
                   'another Redis');
    is($backends->('/?k=d', 6), '200:redis ' x 5 . '429:redis', 'elsewhere');
    is(scalar(grep { /\{2:d\}/ } $other->keys), 1, 'as its keys show');

    Gateway::await(sub { $gateway->settled }, 'old workers');
}


# "localhost" needs no resolver, any other name may have one

sub names {
    my $dns = ScriptedDns->start;
    my $port = Gateway::free_port();
    my ($one, $two) = map {
        RedisServer->start(host => "127.0.0.$_", port => $port);
    } 1 .. 2;
    my $config = <<'END' =~ s/DNS/$dns->{port}/gr =~ s/REDIS/$port/gr
resolver 127.0.0.1:DNS valid=1s ipv6=off;
resolver_timeout 1s;

ratelimit_redis local redis://localhost:REDIS timeout=5s connect_timeout=5s;
ratelimit_redis named redis://ratelimit-test:REDIS timeout=5s
                connect_timeout=5s;

ratelimit_zone $arg_k zone=local:1m rate=2r/d redis=local;
ratelimit_zone $arg_k zone=named:1m rate=1000r/d redis=named;

add_header X-Backend $ratelimit_backend always;
END
    . Gateway->server('/local' => 'ratelimit zone=local;',
                      '/named' => 'ratelimit zone=named;');

    $dns->silence;

    my $nobody = nobody('ratelimit-test');
    my $gateway = Gateway->start(http => $config, main => 'env HOSTALIASES;',
                                 env => { HOSTALIASES => "$nobody" });
    my $clients = Clients->new($gateway->{port});
    my $backend = sub {
        return $clients->ask("GET $_[0]")->{field}{'x-backend'};
    };

    is($backend->('/local?k=a'), 'redis', 'localhost');

    my $start = time;

    is($backend->('/named?k=a'), 'local', 'a resolver that says nothing')
        for 1 .. 10;
    cmp_ok(time - $start, '<', 5, 'makes no request wait for it');

    $dns->tell('ratelimit-test', '127.0.0.1');
    Gateway::await(sub { $backend->('/named?k=a') eq 'redis' }, 'a name');
    pass('a name is found');
    is(scalar(grep { /:named:/ } $one->keys), 1, 'at its address');

    # it moves

    $dns->tell('ratelimit-test', '127.0.0.2');
    $one->kill;
    Gateway::await(sub { $backend->('/named?k=b') eq 'redis' },
                   'the other address');
    is(scalar(grep { /\{2:b\}:named:/ } $two->keys), 1,
       'then at another one');

    # it is gone, and comes back

    $dns->tell('ratelimit-test');
    $two->kill;
    Gateway::await(sub { $backend->('/named?k=c') eq 'local' }, 'no address');

    $one->restart;
    $dns->tell('ratelimit-test', '127.0.0.1');
    Gateway::await(sub { $backend->('/named?k=d') eq 'redis' },
                   'the first address');
    pass('and again at the first one');

    several_addresses($dns, $backend, $one, $two);

    $gateway->reload($config);
    Gateway::await(sub { $gateway->settled }, 'old workers');
    is($gateway->complaints, '', 'nothing to complain about');
}


# The system is asked for a name when a configuration is read.  It does not ask
# another machine if the name is an alias of one that there can't be.

sub nobody {
    my ($name) = @_;

    my $file = File::Temp->new;

    print $file "$name ", 'x' x 64, "\n";
    close $file or die $!;

    return $file;
}


# Of two addresses one is dead.  It is not the resolver that helps: it says
# nothing any more, and what it has said is not valid any more.

sub several_addresses {
    my ($dns, $backend, $here, $there) = @_;

    my $asked = sub {
        my $before = $dns->asked('ratelimit-test');

        Gateway::await(sub {
            $here->call('CLIENT', 'KILL', 'TYPE', 'normal');
            $backend->('/named?k=e');

            return $dns->asked('ratelimit-test') > $before;
        }, 'a resolver to be asked');
    };

    $dns->tell('ratelimit-test', '127.0.0.1', '127.0.0.2');
    $asked->();
    $dns->silence;
    $asked->();

    for my $k (1 .. 3) {
        $there->restart;
        $here->kill;
        ($here, $there) = ($there, $here);

        Gateway::await(sub { $backend->("/named?k=e$k") eq 'redis' },
                       'the address that lives');
        is(scalar(grep { /\{2:e$k\}:named:/ } $here->keys), 1,
           "a dead address is passed over for $here->{host}");
    }
}


# neither as they are written nor as they are sent, at any level

sub passwords {
    my $locked = RedisServer->start(password => 'zaubern_mit-99');

    $locked->call('ACL', 'SETUSER', 'gate', 'on', '>simsala@bim', '~*',
                  '+@all');

    my $config = <<'END' =~ s/REDIS/$locked->{port}/gr
ratelimit_redis a redis://:zaubern_mit-99@127.0.0.1:REDIS timeout=5s
                connect_timeout=5s;
ratelimit_redis b redis://gate:simsala%40bim@127.0.0.1:REDIS timeout=5s
                connect_timeout=5s;
ratelimit_redis c redis://gate:hokus-pokus@127.0.0.1:REDIS timeout=5s
                connect_timeout=5s;
ratelimit_zone $arg_k zone=a:1m rate=2r/d redis=a;
ratelimit_zone $arg_k zone=b:1m rate=2r/d redis=b;
ratelimit_zone $arg_k zone=c:1m rate=2r/d redis=c;
add_header X-Backend $ratelimit_backend always;
END
    . Gateway->server(map { ("/$_" => "ratelimit zone=$_;") } qw(a b c));

    my $debug = Gateway->start(
        http => $config, main => 'error_log logs/debug.log debug;',
    );
    my $clients = Clients->new($debug->{port});

    is($clients->ask('GET /a?k=a')->{field}{'x-backend'}, 'redis', 'let in');
    is($clients->ask('GET /b?k=a')->{field}{'x-backend'}, 'redis', 'let in');
    is($clients->ask('GET /c?k=a')->{field}{'x-backend'}, 'local', 'not in')
        for 1 .. 10;

    $locked->kill;
    is($clients->ask('GET /a?k=a')->{field}{'x-backend'}, 'local', 'down');
    $debug->reload($config);
    Gateway::await(sub { $debug->settled }, 'old workers');

    my $log = $debug->log . Gateway::slurp("$debug->{dir}/logs/debug.log");

    like($log, qr/\[debug\]/, 'the log is a long one');
    unlike($log, qr/zaubern|simsala|hokus|AUTH\W+\S*gate/,
           'it has no password');
}
