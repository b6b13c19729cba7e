#!/usr/bin/perl

# The Debian package in a clean root, as an operator has it: installed beside a
# running nginx, enabled, limiting, upgraded under load, removed.  What
# README.Debian says is what is tried, and commands of docs/ are run as they
# stand.  For "make matrix", which gives two packages, the second one with a
# version of its own in package and module:
#
#     t/matrix/package.t OLD.deb NEW.deb

use strict;
use warnings;

use File::Temp qw(tempdir);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Together;

use constant PATIENCE => 60;

my ($old, $new) = @ARGV;
my $name = 'libnginx-mod-http-ratelimit';
my $doc = "/usr/share/doc/$name";
my $module = '/usr/lib/nginx/modules/ngx_http_ratelimit_module.so';
my $enabled = '/etc/nginx/modules-enabled/50-mod-http-ratelimit.conf';
my $conf = '/etc/nginx/conf.d/ratelimit.conf';
my $clients = Clients->new(80);
my $stop = tempdir(CLEANUP => 1) . '/stop';

BAIL_OUT('this is no root of its own') if !-d '/out' || $$ > 30_000;
BAIL_OUT('usage: package.t OLD.deb NEW.deb') if !defined $new;

# where "make" has installed nginx, it is neither running nor enabled

run('update-rc.d nginx disable');
run(commands('getting-started', 'make deb') =~ s/^(?:make|apt) .*\n//mgr);
is(() = glob('/etc/rc[2-5].d/S*nginx'), 4, 'nginx starts with the machine');


subtest 'installed' => sub {
    # dpkg tells nginx to reload

    reloads("apt-get -q -y install $old");

    ok(-l $enabled, 'and enabled');
    ok(scalar `nginx -T 2>&1` =~ /^load_module .*ratelimit/m, 'loaded');

    is($clients->ask('GET /')->{status}, 200, 'nginx goes on');

    my $inode = (stat $module)[1];

    reloads("apt-get -q -y install --reinstall $old");
    isnt((stat $module)[1], $inode, 'the same version in its place');

    ok(-f "$doc/$_", $_) for qw(copyright README.md docs/operations.md
                                examples/quickstart.conf);
};

subtest 'limits' => sub {
    my ($first) = slurp("$doc/README.Debian") =~ /^((?: {4}ratelimit.*\n)+)/m;

    ok(defined $first, 'README.Debian has a limit') or return;

    configure($first);
    is(join(' ', map { $clients->ask('GET /')->{status} } 1 .. 11),
       join(' ', (200) x 10, 429), 'as it says');
};

subtest 'upgraded under load' => sub {
    configure(<<'END');
ratelimit_zone  $arg_key  zone=key:1m  rate=3r/d;
ratelimit_zone  $ratelimit_client  zone=ip:1m  rate=1000000r/m;

server {
    listen  127.0.0.1:8080;

    location / {
        ratelimit  zone=ip;
        ratelimit  zone=key;
        empty_gif;
    }

    location /ratelimit/ {
        ratelimit_api;
    }
}
END

    $clients = Clients->new(8080);

    my $version = version();

    is(ask_key(), '200 200 200 429', 'a limit');

    my $lost = under_load(sub {
        reloads("apt-get -q -y install --reinstall $new");
        is(version(), $version, 'a reload: the old code goes on');
        is(ask_key(), '429 429 429 429', 'with its counters');

        run('service nginx upgrade');
        await(sub { version() ne $version }, 'the new code');
        pass('a new binary: the new code');
        is(ask_key(), '200 200 200 429', 'with counters of its own');

        my %before = map { $_ => 1 } workers();

        run(commands('operations', 'kill -USR2'));
        await(sub { !grep { $before{$_} } workers() }, 'new workers');
        is(ask_key(), '200 200 200 429', 'the same by hand');
    });

    is($lost, 0, 'no request was lost');

    $lost = under_load(sub {
        run('service nginx restart');
        await(sub { eval { version() } }, 'nginx');
        is(ask_key(), '200 200 200 429', 'a restart: counters begin again');
    });

    note("a restart: $lost requests were lost");
};

subtest 'a second gateway' => sub {
    my $api = '/etc/nginx/conf.d/api.conf';

    rename $conf, "$conf.away" or die "$conf: $!";
    run("cp $doc/examples/getting-started.conf $api");
    reloads('nginx -t -q && nginx -s reload');
    run(commands('getting-started', '-c /etc/nginx'));

    for my $port (8080, 8090) {
        my $gateway = Clients->new($port);

        await(sub { eval { $gateway->ask('GET /login')->{status} == 401 } },
              "a gateway at $port");
        is($gateway->ask('GET /api/', 'X-API-Key: 4711')
           ->{field}{'x-ratelimit-limit'}, 100, "it limits at $port");
    }

    run('nginx -c /etc/nginx/second.conf -s stop');
    unlink $api or die "$api: $!";
    rename "$conf.away", $conf or die "$conf: $!";
    reloads('service nginx reload');
    is(ask_key(), '200 200 200 429', 'as before');
};

subtest 'removed' => sub {
    run("apt-get -q -y remove $name");

    ok(!-e $enabled, 'disabled');
    isnt(system('nginx -t > /dev/null 2>&1'), 0, 'directives are unknown');
    is(ask_key(), '429 429 429 429', 'but nginx limits until it is restarted');

    unlink $conf or die "$conf: $!";
    run('service nginx restart');

    $clients = Clients->new(80);
    await(sub { eval { $clients->ask('GET /')->{status} == 200 } }, 'nginx');
    is(`nginx -T 2>&1 | grep -c ratelimit`, "0\n", 'nothing is left of it');

    run("apt-get -q -y purge $name");
    is_deeply([glob("$enabled*"), glob("$doc*"),
               glob('/usr/lib/nginx/modules/*ratelimit*')], [], 'nor in files');
};

run('service nginx stop');
unlike(slurp('/var/log/nginx/error.log'), qr/\[alert\]|signal/,
       'no worker has died');

done_testing();


sub run {
    my ($command) = @_;

    my $text = `$command 2>&1 < /dev/null`;

    is($?, 0, $command) or diag($text);
}


# of the one block of a page that has a text

sub commands {
    my ($page, $text) = @_;

    my @blocks = grep { index($_, $text) >= 0 }
                 slurp("docs/$page.md") =~ /^```sh\n(.*?)^```$/msg;

    is(scalar @blocks, 1, "$page.md has one block with \"$text\"");

    return "set -e\n$blocks[0]";
}


sub configure {
    my ($text) = @_;

    open my $file, '>', $conf or die "$conf: $!";
    print $file $text;
    close $file or die "$conf: $!";

    reloads('service nginx reload');
}


# and all workers that accept are new

sub reloads {
    my ($command) = @_;

    my %before = map { $_ => 1 } workers();

    run($command);
    await(sub { my @now = workers(); @now && !grep { $before{$_} } @now },
          'new workers');
}


# a few clients, each request on a connection of its own, while a sub runs;
# returns how many had no answer or another one than 200

sub under_load {
    my ($sub) = @_;

    my ($done, $result) = (0);

    unlink $stop;

    my @load = map { sub {
        my ($sent, $lost) = (0, 0);

        until (-e $stop) {
            my $answer = eval { $clients->ask('GET /') };

            $sent++;
            $lost++ if !$answer || $answer->{status} != 200;
        }

        return { sent => $sent, lost => $lost };
    } } 1 .. 3;

    my @results = Together::run(sub {
        return if $done;

        $done = 1;
        sleep 1;
        eval { $sub->(); 1 } or $result = $@;
        open my $file, '>', $stop or die "$stop: $!";
    }, @load);

    is($result, undef, 'as expected') if $result;
    cmp_ok($_->{sent}, '>', 10, 'a client was busy') for @results;

    my $lost = 0;
    $lost += $_->{lost} for @results;

    return $lost;
}


sub ask_key {
    return join ' ', map { $clients->ask('GET /?key=a')->{status} } 1 .. 4;
}


sub version {
    return $clients->ask('GET /ratelimit/metrics')->{body}
           =~ /build_info\{version="([^"]+)"/ ? $1 : die 'no version';
}


# pids of workers that accept

sub workers {
    return sort grep { slurp("/proc/$_/cmdline") =~ /^nginx: worker process\0*$/ }
                map { m{(\d+)$} ? $1 : () } glob('/proc/[0-9]*');
}


sub await {
    my ($condition, $what) = @_;

    my $end = time + PATIENCE;

    until ($condition->()) {
        die "waited in vain for $what" if time > $end;
        sleep 0.02;
    }
}


sub slurp {
    my ($path) = @_;

    open my $file, '<', $path or return '';
    local $/;

    return <$file> // '';
}
