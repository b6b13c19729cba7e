#!/usr/bin/perl

# TLS to a real Redis: what is counted is exact, what is not to be trusted is
# refused, with a line in the log that says why, and nothing is said to it, no
# password either.  If this fails, a gateway talks to a stranger, in plain
# text, or not at all.

use strict;
use warnings;

use IO::Socket::INET;
use IPC::Open2 qw(open2);
use POSIX ();
use Test::More;

use lib 't/lib';
use Certificates;
use Clients;
use Gateway;
use RedisServer;

my $secret = 'hunter2';
my $local = 'DNS:localhost,IP:127.0.0.1';

# as OpenSSL calls it before and since 3.5
my $handshake_failure = qr{^TLS: (?:sslv3|ssl/tls) alert handshake failure$};

my $made = Certificates->new;
my $dir = $made->{dir};

$made->authority('other');
$made->issue('server', names => $local);
$made->issue('renewed', names => $local);
$made->issue('expired', names => $local, days => -5);
$made->issue('stranger', names => 'DNS:redis.example.com');
$made->issue('theirs', names => $local, ca => 'other');
$made->issue('gateway');
$made->issue('client', names => $local, also => ['extendedKeyUsage=clientAuth']);

# an authority of the same name, which certificates do not tell apart
my @unmarked = map { "${_}KeyIdentifier=none" } qw(subject authority);

$made->authority('twin', '-subj', '/CN=ca', map { ('-addext', $_) } @unmarked);
$made->issue('twins', names => $local, ca => 'twin', also => \@unmarked);

my $redis = RedisServer->start(tls => "$dir/server");
my $url = "rediss://localhost:$redis->{tls_port}";
my $ca = "ssl_ca=$dir/ca.pem";

my ($gateway, $clients);

subtest 'two workers, exact' => \&exact;
subtest 'names and addresses' => \&names;
subtest 'certificates that are refused' => \&refused;
subtest 'servers that do not fit' => \&misfits;
subtest 'passwords are not told to strangers' => \&untold;
subtest 'client certificates' => \&mutual;
subtest 'a user of access control lists' => \&user;
subtest 'protocols and ciphers' => \&protocols;
subtest 'sessions are used again' => \&sessions;
subtest 'what OpenSSL holds is read' => \&held;
subtest 'reloads and killed workers' => \&lifecycle;
subtest 'a Redis with another certificate' => \&renewed;
subtest 'sentinels' => \&sentinels;

done_testing();


# a process that ends with its object

package Child {

    sub start {
        my ($class, $port, $work) = @_;

        my $pid = fork() // die "fork: $!";

        if ($pid == 0) {
            $SIG{$_} = 'DEFAULT' for qw(HUP INT TERM);
            $SIG{PIPE} = 'IGNORE';
            $work->();
            POSIX::_exit(0);
        }

        return bless { pid => $pid, port => $port, owner => $$ }, $class;
    }

    sub DESTROY {
        my ($self) = @_;

        return if $self->{owner} != $$;

        local ($?, $@);

        kill 'KILL', $self->{pid};
        waitpid $self->{pid}, 0;
    }
}


# one that fails closed, so that whatever is admitted was counted in Redis

sub start {
    my ($parameters, %option) = @_;

    my $times = delete $option{times};

    $gateway = Gateway->start(http => config($parameters, $times), %option);
    $clients = Clients->new($gateway->{port});
}


sub config {
    my ($parameters, $times) = @_;

    $times //= 'timeout=15s connect_timeout=15s';

    return <<"END" . Gateway->server('/' => 'ratelimit zone=z;',
ratelimit_redis main $parameters $times;
ratelimit_zone \$arg_k\$http_x_key zone=z:1m rate=50r/d redis=main fail=closed;
add_header X-Backend \$ratelimit_backend always;
END
                                     '/wide' => 'ratelimit zone=z rate=5000r/d'
                                                . ' name=wide;',
                                     '/status' => 'stub_status;');
}


sub counted {
    my ($name) = @_;

    my $answer = $clients->ask('GET /?k=' . $name =~ s/\W/_/gr);

    is($answer->{status}, 200, $name);
    is($answer->{field}{'x-backend'}, 'redis', "$name, in Redis");
}


# the reason for which Redis is marked down

sub down {
    my ($reason, $name) = @_;

    # each failure is one of five

    is(join(' ', map { $_->{status} } $clients->series((['GET /?k=a']) x 5)),
       '503 503 503 503 503', $name);

    my @lines = $gateway->log =~ /ratelimit: redis "main" is marked down: (.*)/g;

    like($lines[0], ref $reason ? $reason : qr/^\Q$reason\E$/,
         'the log says why');
    is($gateway->complaints, '', 'nothing to complain about');
}


sub exact {
    start("$url $ca", workers => 2);

    my $tally = $gateway->load(requests => [map { (['/', 'a'], ['/', 'b']) }
                                                1 .. 150]);

    is_deeply($tally->{keys}{$_}, { sent => 150, 200 => 50, 429 => 100 },
              "50 of 150 of $_") for qw(a b);
    is(scalar(keys %{$tally->{workers}}), 2, 'by two workers');

    my @list = grep { /\bladdr=\S+:$redis->{tls_port} / }
               split /^/, $redis->call('CLIENT', 'LIST');

    is(scalar(@list), 2, 'over TLS');
    is($gateway->complaints, '', 'nothing to complain about');
}


sub names {
    start("rediss://127.0.0.1:$redis->{tls_port} $ca");
    counted('the address of a certificate');

    $redis->restart(tls => "$dir/stranger");

    start("$url $ca");
    down('the certificate is not for "localhost"', 'another name');

    start("rediss://127.0.0.1:$redis->{tls_port} $ca");
    down('the certificate is not for "127.0.0.1"', 'another address');

    start("$url $ca ssl_name=redis.example.com");
    counted('ssl_name');

    start("$url $ca ssl_name=REDIS.example.com.");
    counted('a name with a dot at its end');

    start("$url $ca ssl_name=example.com");
    down('the certificate is not for "example.com"', 'a domain above');

    $redis->restart(tls => "$dir/server");
}


sub refused {
    for my $case (
        ['expired', $ca, 'the certificate has expired'],
        ['theirs', $ca, 'the certificate is not of a trusted CA'],
        ['twins', $ca, 'the certificate is not of a trusted CA'],
        ['client', $ca, qr/^the certificate is not valid: un\w+ certificate pu/],
        ['server', '', 'the certificate is not of a trusted CA'],
    ) {
        my ($certificate, $parameters, $reason) = @$case;

        $redis->restart(tls => "$dir/$certificate");

        start("$url $parameters");
        down($reason, $certificate);

        start("$url ssl_verify=off");
        counted("$certificate, not verified");
    }
}


sub misfits {
    my $brief = 'timeout=5s connect_timeout=1s';
    my $plain = 'the server does not speak TLS';
    my $silent = 'no answer to a TLS handshake (a server without TLS needs '
                 . 'redis://)';

    # Redis answers a line, which may end within the length of a handshake:
    # of OpenSSL 3.5 it is 0x060a

    start("rediss://localhost:$redis->{port} $ca", times => $brief);
    down(qr/^(?:\Q$silent\E|$plain)$/, 'TLS, where plain text is spoken');

    start("redis://localhost:$redis->{tls_port}");
    down('Connection reset by peer before any reply '
         . '(a server that speaks TLS needs rediss://)',
         'plain text, where TLS is spoken');

    for my $case (
        ["\x15\3\3\0\2\2\x46", 'redis', 'the server speaks TLS, which needs '
                                        . 'rediss://'],
        ["\x15\3\3\0\2\2\x46", 'rediss', 'TLS: tlsv1 alert protocol version'],
        ['', 'rediss', 'Server closed the connection'],
        ["-ERR unknown command\r\n", 'rediss', $plain],
    ) {
        my ($says, $scheme, $reason) = @$case;

        my $stranger = stranger($says);

        start("$scheme://127.0.0.1:$stranger->{port}");
        down($reason, "$scheme, a stranger that says " . unpack('H*', $says));
    }

    my $nameless = Gateway::free_port();
    my $weak = 'ssl_protocols=TLSv1.2 ssl_ciphers=aNULL:@SECLEVEL=0';
    my ($pid, $said, $says) = s_server($nameless, '-nocert -tls1_2'
                                                  . ' -cipher aNULL:@SECLEVEL=0');

    start("rediss://:$secret\@localhost:$nameless $ca $weak");
    down('the server has no certificate', 'none at all');
    kill 'KILL', $pid;
    waitpid $pid, 0;
    is(join('', <$said>), '', 'is told nothing');

    for my $case (
        ['', $silent],
        ["\x16\3\3", 'TLS handshake timed out'],
    ) {
        my ($says, $reason) = @$case;

        my $stranger = stranger($says, 60);

        start("rediss://127.0.0.1:$stranger->{port}", times => $brief);
        down($reason, 'one that stops after ' . unpack('H*', $says));
    }
}


# accepts connections, reads a bit, says something, closes after so long

sub stranger {
    my ($says, $seconds) = @_;

    my $socket = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1')
        or die $!;

    return Child->start($socket->sockport, sub {
        my @open;

        while (my $client = $socket->accept) {
            sysread $client, my $heard, 4096;
            syswrite $client, $says;
            push @open, $client if $seconds;
        }
    });
}


# what it is told can be read, and it can be told something

sub s_server {
    my ($port, $options) = @_;

    my $pid = open2(my $said, my $says, 'exec openssl s_server -quiet '
                    . "-accept 127.0.0.1:$port $options 2> $dir/shown");

    Gateway::await(sub {
        return IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port");
    }, 's_server');

    return ($pid, $said, $says);
}


# s_server prints what it is told, and which certificate it is shown; with
# "-servername" it has another one for those that ask for this name

sub untold {
    for my $case (
        ['stranger', 'the certificate is not for "localhost"'],
        ['theirs', 'the certificate is not of a trusted CA'],
        ['server'],
        ['stranger', undef, 'localhost', 'server'],
        ['server', undef, '127.0.0.1', 'stranger'],
    ) {
        my ($first, $reason, $name, $second) = @$case;

        my $port = Gateway::free_port();
        my $options = "-verify 1 -cert $dir/$first.pem -key $dir/$first.key";

        $options .= " -servername $name -cert2 $dir/$second.pem"
                    . " -key2 $dir/$second.key" if $name;

        my ($pid, $said, $says) = s_server($port, $options);

        $name //= 'localhost';
        start("rediss://:$secret\@$name:$port $ca"
              . " ssl_certificate=$dir/gateway.pem"
              . " ssl_certificate_key=$dir/gateway.key");

        if ($reason) {
            down($reason, $first);

        } else {
            local $SIG{ALRM} = sub { die 'waited in vain for a password' };

            alarm Gateway::PATIENCE;
            is(join('', map { scalar <$said> } 1 .. 5),
               "*2\r\n\$4\r\nAUTH\r\n\$7\r\n$secret\r\n", 'told a friend');
            alarm 0;
        }

        kill 'KILL', $pid;
        waitpid $pid, 0;

        is(join('', <$said>), '', 'and nothing else');
        is(Gateway::slurp("$dir/shown") =~ /CN ?= ?gateway/, !$reason,
           'shown the certificate, if a friend');
        unlike($gateway->log, qr/$secret/, 'not in the log');
    }
}


sub mutual {
    $redis->restart('--tls-auth-clients' => 'yes');

    start("$url $ca");
    down('TLS: tlsv13 alert certificate required', 'none');

    start("$url $ca ssl_protocols=TLSv1.2");
    down($handshake_failure, 'none, TLSv1.2');

    start("$url $ca ssl_certificate=$dir/theirs.pem"
          . " ssl_certificate_key=$dir/theirs.key");
    down('TLS: tlsv1 alert unknown ca', 'of another authority');

    start("$url $ca ssl_certificate=$dir/gateway.pem"
          . " ssl_certificate_key=$dir/gateway.key");
    counted('the right one');

    $redis->restart('--tls-auth-clients' => 'no');
}


sub user {
    $redis->call('ACL', 'SETUSER', 'gateway', 'on', ">$secret",
                 '~ratelimit:*', '-@all',
                 map { "+$_" } qw(evalsha eval time get set del strlen
                                  getrange setrange pexpireat));

    start("rediss://gateway:$secret\@localhost:$redis->{tls_port} $ca");
    counted('user and password');

    start("rediss://gateway:wrong\@localhost:$redis->{tls_port} $ca");
    down('error reply "WRONGPASS invalid username-password pair or user is '
         . 'disabled."', 'a wrong password');
}


sub protocols {
    my $debug = 'error_log logs/debug.log debug;';

    for my $case (
        ['ssl_protocols=TLSv1.2', qr/TLSv1\.2, ECDHE-ECDSA-AES256-GCM-SHA384/],
        ['ssl_protocols=TLSv1.3,TLSv1.2', qr/TLSv1\.3, TLS_AES_256_GCM_SHA384/],
        ['ssl_protocols=TLSv1.2 ssl_ciphers=ECDHE-ECDSA-CHACHA20-POLY1305',
         qr/TLSv1\.2, ECDHE-ECDSA-CHACHA20-POLY1305/],
    ) {
        my ($parameters, $line) = @$case;

        start("$url $ca $parameters", main => $debug);
        counted($parameters);
        like(debug_log(), qr/ratelimit redis: $line, session new/, 'so');
    }

    $redis->restart('--tls-protocols' => 'TLSv1.3');

    start("$url $ca ssl_protocols=TLSv1.2");
    down('TLS: tlsv1 alert protocol version', 'no protocol in common');

    $redis->restart('--tls-protocols' => 'TLSv1.2',
                    '--tls-ciphers' => 'ECDHE-ECDSA-AES128-GCM-SHA256');

    start("$url $ca ssl_ciphers=ECDHE-ECDSA-AES256-GCM-SHA384");
    down($handshake_failure, 'no cipher in common');

    $redis->restart('--tls-protocols' => 'TLSv1.2 TLSv1.3',
                    '--tls-ciphers' => 'DEFAULT');
}


sub debug_log { return Gateway::slurp("$gateway->{dir}/logs/debug.log") }


sub sessions {
    for my $protocol (qw(TLSv1.2 TLSv1.3)) {
        start("$url $ca ssl_protocols=$protocol",
              main => 'error_log logs/debug.log debug;');

        for my $i (1 .. 3) {
            counted("$protocol $i");
            $redis->call('CLIENT', 'KILL', 'TYPE', 'normal');
        }

        my @said = debug_log() =~ /ratelimit redis: $protocol.* session (\w+)/g;

        is(shift @said, 'new', 'first');
        cmp_ok(scalar(@said), '>=', 2, 'and then');
        is((grep { $_ ne 'reused' } @said), 0, 'used again');
    }
}


# all replies wait for a worker that is stopped, in several records

sub held {
    my $n = 300;

    start("$url $ca");
    counted('before');

    my ($worker) = $gateway->current_workers;

    $redis->forget_calls;
    $redis->pause;

    my @all = map { $clients->send("GET /wide?k=held$_") } 1 .. $n;

    Gateway::await(sub { requests() >= $n }, 'requests');

    kill 'STOP', $worker;
    $redis->resume;
    Gateway::await(sub { $redis->calls('evalsha') >= $n }, 'commands');
    kill 'CONT', $worker;

    Clients::await_answers($n, @all);

    my @wrong = grep { $_->{answers}[0]{status} != 200 } @all;

    is(scalar(@wrong), 0, 'all are answered in time');
}


# that nginx has read, its own one included

sub requests {
    my ($n) = $clients->ask('GET /status')->{body} =~ /^ \d+ \d+ (\d+)/m;

    return $n;
}


sub lifecycle {
    my ($reloaded, $killed);

    start("$url $ca", workers => 2);

    my $tally = $gateway->load(
        requests => [(['/wide', 'life']) x 6000],
        tick => sub {
            my ($answers) = @_;

            $gateway->hup($gateway->{http}) if $answers > 500 && !$reloaded++;

            if ($answers > 2500 && !$killed && $gateway->settled) {
                $killed = kill 'KILL', ($gateway->current_workers)[0];
            }
        });

    my $key = $tally->{keys}{life};
    my $lost = $key->{unanswered} // 0;

    is($killed, 1, 'reloaded, and a worker was killed');
    is($key->{200} + $key->{429} + $lost, 6000, 'all others are answered');
    cmp_ok($key->{200}, '<=', 5000, 'none too many');
    cmp_ok($key->{200} + $lost, '>=', 5000, 'none too few');
    is($gateway->complaints(qr/exited on signal 9/), '',
       'nothing to complain about');
}


sub renewed {
    start("$url $ca", workers => 2);
    counted('with one');

    $redis->restart(tls => "$dir/renewed");
    served('with another one');

    $redis->restart(tls => "$dir/theirs");
    Gateway::await(sub {
        $clients->ask('GET /?k=renewed');
        return $gateway->log =~ /is marked down: the certificate is not of a/;
    }, 'a refusal');

    $redis->restart(tls => "$dir/server");
    served('with one that is right');
    like($gateway->log, qr/redis "main" is up again/, 'it is told');
}


sub served {
    my ($name) = @_;

    Gateway::await(sub {
        return $clients->ask("GET /?k=$name" =~ s/ (?!\/)//gr)->{status} == 200;
    }, $name);
    pass($name);
}


# TLS of the sentinel and that of the server are two things

sub sentinels {
    my $sentinel = RedisServer->start(
        '--sentinel' => [], '--save' => undef, '--appendonly' => undef,
        '--enable-debug-command' => undef,
        '--repl-diskless-sync-delay' => undef, tls => "$dir/server",
        conf => "sentinel monitor m 127.0.0.1 $redis->{tls_port} 1\n");

    start("rediss://localhost:$sentinel->{port} sentinel=m $ca");
    served('one in plain text');

    start("rediss://localhost:$sentinel->{tls_port} sentinel=m $ca"
          . ' sentinel_ssl=on');
    served('one by TLS');

    start("rediss://localhost:$sentinel->{tls_port} sentinel=m $ca"
          . ' sentinel_ssl=on ssl_name=other',
          times => 'timeout=100ms connect_timeout=5s');
    Gateway::await(sub {
        $clients->ask('GET /?k=other');
        return $gateway->log =~ /: the certificate is not for "other"/;
    }, 'a refusal');
    is($clients->ask('GET /?k=other')->{status}, 503, 'one of another name');
}
