#!/usr/bin/perl

# A new module in place of the old one, under load: a reload goes on with the
# old code, a new binary by USR2 and a restart run the new one.  A reload and
# USR2 lose no request.  Counters in shared memory survive the reload alone,
# those in Redis all of them.  If the new binary does not start, the old one goes
# on.  docs/operations.md says so, and its commands are run.

use strict;
use warnings;

use File::Copy qw(copy);
use File::Temp qw(tempdir);
use POSIX qw(_exit);
use Test::More;
use Time::HiRes qw(sleep);

use lib 't/lib';
use Clients;
use Gateway;
use Page;
use RedisServer;
use Together;

use constant CLIENTS => 3;

my $dir = tempdir(CLEANUP => 1);
my $module = "$dir/ngx_http_ratelimit_module.so";
my $built = Gateway->module;
my $redis = RedisServer->start;

chmod 0755, $dir;

# the version is all that differs, and of the same length

my ($version) = slurp('src/api/ngx_http_ratelimit_api.h')
                =~ /VERSION  "([^"]+)"/;
my $other = $version =~ s/.$/x/r;

BAIL_OUT("$built is missing: make") if !-f $built;

copy($built, $module) or die "$module: $!";
$ENV{RATELIMIT_MODULE} = $module;

# by its path, so that it finds itself again

$ENV{PATH} .= ':/usr/sbin:/sbin';
$ENV{TEST_NGINX_BINARY} = `sh -c 'command -v @{[Gateway::binary()]}'`
                          =~ s/\n//r;

# not by reuseport: what waits in a socket of an old worker would be lost

my $gateway = Daemon->start(workers => 2, http => <<"END");
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s
                connect_timeout=5s;
ratelimit_zone \$arg_k zone=shm:1m rate=3r/d;
ratelimit_zone \$arg_k zone=redis:1m rate=3r/d redis=main;
ratelimit_zone \$arg_all zone=all:1m rate=1000000r/m;

server {
    listen 127.0.0.1:PORT backlog=2048;

    location / { ratelimit zone=all; empty_gif; }
    location = /shm { ratelimit zone=shm; empty_gif; }
    location = /redis { ratelimit zone=redis; empty_gif; }
    location /api/ { ratelimit_api; }
}
END

my $clients = Clients->new($gateway->{port});

is(version(), $version, 'the old code');
is(counted('shm'), '200 200 200 429', 'counts in shared memory');
is(counted('redis'), '200 200 200 429', 'and in Redis');

replace_module();

subtest 'reload' => sub {
    is(under_load(sub { $gateway->reload($gateway->{http}) }), 0,
       'no request is lost');
    is(version(), $version, 'the old code goes on');
    is(counted('shm'), '429 429 429 429', 'with its counters');
    is(counted('redis'), '429 429 429 429', 'also in Redis');
};

subtest 'a new binary' => sub {
    is(under_load(\&new_binary), 0, 'no request is lost');
    is(version(), $other, 'the new code');
    is(counted('shm'), '200 200 200 429', 'begins to count');
    is(counted('redis'), '429 429 429 429', 'and goes on in Redis');
};

subtest 'restart' => sub {
    my $lost = under_load(sub {
        $gateway->stop;
        $gateway->launch;
    });

    note("$lost requests are lost");
    is(version(), $other, 'the new code');
    is(counted('shm'), '200 200 200 429', 'begins to count');
    is(counted('redis'), '429 429 429 429', 'and goes on in Redis');
};

is($gateway->complaints, '', 'nothing to complain about');

subtest 'a new binary that finds an address in use' => sub {
    my $other = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1)
        or die "listen: $!";

    $gateway->configure($gateway->{http} . "server { listen 127.0.0.1:"
                        . $other->sockport . "; }\n");
    upgrade();
    isnt($?, 0, 'the commands fail');
    is(slurp("$gateway->{dir}/nginx.pid"), "$gateway->{pid}\n", 'the old one');
    is(counted('shm'), '429 429 429 429', 'goes on to count');
    $gateway->configure($gateway->{http});
};

subtest 'a new binary that does not start' => sub {
    rename $module, "$module.away" or die "$module: $!";
    kill 'USR2', $gateway->{pid};
    Gateway::await(sub { $gateway->complaints =~ /dlopen.* failed/ },
                   'an end for want of a module');
    Gateway::await(sub { !-e "$gateway->{dir}/nginx.pid.oldbin" },
                   'the name of the old one');

    is(slurp("$gateway->{dir}/nginx.pid"), "$gateway->{pid}\n", 'the old one');
    is(counted('shm'), '429 429 429 429', 'goes on to count');
};

done_testing();


# nginx ignores USR2 as long as the process lives that has started it

package Daemon;

use parent -norequire, 'Gateway';


sub launch {
    my ($self) = @_;

    my $pid = fork() // die "fork: $!";

    if ($pid == 0) {
        $self->exec_nginx if fork() == 0;
        $self->started;
        main::_exit(0);
    }

    waitpid $pid, 0;

    return $self->started;
}


# all workers of a master other than the old one

sub started {
    my ($self, $old) = (@_, 0);

    return Gateway::await(sub {
        my ($pid) = main::slurp("$self->{dir}/nginx.pid") =~ /^(\d+)$/;

        return 0 if !$pid || $pid == $old || !kill 0, $pid;

        $self->{pid} = $pid;

        return $self->current_workers == $self->{workers} && $self->connect;
    }, 'a master and its workers');
}


sub stop {
    my ($self) = @_;

    my $pid = delete $self->{pid} or return;

    kill 'TERM', $pid;
    Gateway::await(sub { !kill 0, $pid }, 'the end of nginx');
}


package main;


# as "make install" does

sub replace_module {
    my $text = slurp($module);

    $text =~ s/\Q$version\E/$other/g or die "no version in $module";

    open my $file, '>:raw', "$module.new" or die "$module.new: $!";
    print $file $text;
    close $file or die "$module.new: $!";
    rename "$module.new", $module or die "$module: $!";
}


# the steps of docs/operations.md

sub new_binary {
    my $old = $gateway->{pid};
    my $said = upgrade();

    die $said if $?;

    $gateway->started($old);
    Gateway::await(sub { !kill 0, $old }, 'the end of the old one');
}


sub upgrade {
    my ($commands) = grep { /USR2/ }
                     Page::blocks(slurp('docs/operations.md'), 'sh');
    my $own = "$ENV{TEST_NGINX_BINARY} -p $gateway->{dir}/"
              . " -c $gateway->{dir}/nginx.conf";

    $commands =~ s/^nginx\b/$own/m or die 'the page has no "nginx -t"';
    $commands =~ s{/run/}{$gateway->{dir}/}g;

    open my $shell, '-|', 'sh', '-e', '-c', "exec 2>&1\n$commands"
        or die "sh: $!";
    my $said = join '', <$shell>;
    close $shell;

    return $said;
}


# clients that ask all the time, each on new connections; returns how many
# requests had another answer than 200

sub under_load {
    my ($sub) = @_;

    my ($done, $error);
    my $stop = "$dir/stop";

    unlink $stop;

    my @results = Together::run(sub {
        return if $done++;

        sleep 0.3;
        eval { $sub->(); 1 } or $error = $@;
        sleep 0.3;
        open my $file, '>', $stop or die "$stop: $!";
    }, map { sub { ask_until($stop) } } 1 .. CLIENTS);

    die $error . $gateway->log if $error;

    my $lost = 0;

    for (@results) {
        cmp_ok($_->{sent}, '>', 10, 'a client is busy');
        $lost += $_->{lost};
    }

    return $lost;
}


sub ask_until {
    my ($stop) = @_;

    my ($sent, $lost) = (0, 0);

    until (-e $stop) {
        my $answer = eval { $clients->ask('GET /?all=a', 'Connection: close') };

        $sent++;
        $lost++ if !$answer || $answer->{status} != 200;
        sleep 0.001;
    }

    return { sent => $sent, lost => $lost };
}


sub counted {
    my ($zone) = @_;

    return join ' ', map { $clients->ask("GET /$zone?k=a")->{status} } 1 .. 4;
}


sub version {
    return $clients->ask('GET /api/metrics')->{body}
           =~ /build_info\{version="([^"]+)"/ ? $1 : 'none';
}


sub slurp {
    my ($path) = @_;

    open my $file, '<:raw', $path or return '';
    local $/;

    return <$file> // '';
}
