package Remote;

# Limits that Redis decides, one round trip for each request, against the Lua
# module with scripts of the same algorithms (peer/): requests a second, and
# what nginx and Redis spend on them.  All share one nginx and one Redis, and
# admit everything.

use strict;
use warnings;

use Cwd qw(getcwd);

use Instructions;
use Load;
use Server;

use constant ALGORITHMS => qw(fixed_window sliding_window);
use constant LIMIT => 9_999_999;
use constant PERIOD => 10;      # seconds: windows come and go meanwhile
use constant KEYS => 10_000;
use constant REQUESTS => 10_000;    # to each location in each round
use constant UNDER_WAY => 128;      # decisions, when Redis is to be filled
use constant FILLING => 100_000;    # requests in each round of that

# connections of clients, and how many times the requests a second at least

my %RATE = (32 => 1.3, 128 => 1.5);


sub rows {
    my ($module, $rounds) = @_;

    my $redis = Server->redis;
    my $http = config($redis);
    my $nginx = Server->nginx(http => $http, modules => [$module, Server::LUA]);

    Load::fill(port => $nginx->{port}, keys => KEYS, path => paths());

    my @times = map { times_of($nginx, $redis, $_, $rounds) }
                sort { $a <=> $b } keys %RATE;
    my @served = map { served($nginx, $redis, $_, $rounds) } ALGORITHMS;

    $nginx->stop;

    return (@times, @served, instructions($http, $module));
}


sub paths {
    return [map { ("/ours/$_", "/lua/$_") } ALGORITHMS];
}


# requests a second, and nanoseconds of both processes

sub times_of {
    my ($nginx, $redis, $connections, $rounds) = @_;

    my $before = decisions($redis);
    my %found = Load::measure(
        port => $nginx->{port}, path => ['/none', @{paths()}], keys => KEYS,
        pid => [$nginx->{worker}, $redis->{worker}], requests => REQUESTS,
        connections => $connections, rounds => $rounds);
    my $decisions = decisions($redis) - $before;

    die "Redis made $decisions decisions only\n"
        if $decisions != @{paths()} * REQUESTS * $rounds;

    return map {
        my ($ours, $lua) = @found{"/ours/$_", "/lua/$_"};

        die "a limit of Redis refuses\n" if $ours->{refused} || $lua->{refused};

        (
            row("$_, $connections connections, requests a second",
                $ours->{rate}, $lua->{rate}, $RATE{$connections}, 'least'),
            row("$_, $connections connections, nginx: ns added",
                $ours->{added}[0], $lua->{added}[0], 0.35, 'most'),
            row("$_, $connections connections, Redis: ns of a decision",
                $ours->{cpu}[1], $lua->{cpu}[1], 1, 'most'),
        );
    } ALGORITHMS;
}


# how many Redis has made

sub decisions {
    my ($redis) = @_;

    my ($calls) = `redis-cli -p $redis->{port} info commandstats`
                  =~ /^cmdstat_evalsha:calls=(\d+)/m;

    return $calls // 0;
}


# what is judged is the ratio

sub row {
    my ($what, $ours, $peer, $bound, $sense) = @_;

    return [$what, sprintf('%.0f', $ours), sprintf('%.0f', $peer),
            $ours / $peer, $bound, $sense];
}


# what Redis can do through nginx, against a client that does nothing else and
# has as many decisions under way; clients of nginx are to cost little, so each
# has its next requests sent already, and reads several answers at once

sub served {
    my ($nginx, $redis, $algorithm, $rounds) = @_;

    my (@through, @alone);

    for (1 .. $rounds) {
        my ($line) = Load::run(
            socket => "$nginx->{dir}/http", path => "/ours/$algorithm",
            keys => KEYS, pid => $redis->{worker}, requests => FILLING,
            depth => 32, pause => 2000, connections => UNDER_WAY);

        my (undef, $rate, undef, $cpu) = split /\t/, $line;

        push @through, [$rate, $cpu];
        push @alone, pipeline($redis, $algorithm);
    }

    my $what = "$algorithm, ${\ UNDER_WAY} under way, against a pipelining "
               . 'client';
    my $median = sub { my $i = shift; Load::median(map { $_->[$i] } @_) };

    return (
        row("$what, decisions a second", $median->(0, @through),
            $median->(0, @alone), 0.7, 'least'),
        row("$what, Redis: ns of a decision", $median->(1, @through),
            $median->(1, @alone)),
    );
}


# decisions a second, and nanoseconds of Redis

sub pipeline {
    my ($redis, $algorithm) = @_;

    my @command = ('build/bench/pipeline', $redis->{port}, $algorithm,
                   UNDER_WAY, FILLING, KEYS, $redis->{worker});
    my $line = `@command`;

    die "@command: failed\n" if $?;

    chomp $line;

    return [split /\t/, $line];
}


# more than without a limit; what is judged is the number

sub instructions {
    my ($http, $module) = @_;

    my %found = Instructions::measure(
        http => $http, modules => [$module, Server::LUA],
        path => ['/none', @{paths()}]);

    return map {
        my ($ours, $lua) = map { $_ - $found{'/none'} }
                           @found{"/ours/$_", "/lua/$_"};

        ["$_, instructions added", sprintf('%.0f', $ours),
         sprintf('%.0f', $lua), $ours, 9500, 'most'];
    } ALGORITHMS;
}


sub config {
    my ($redis) = @_;

    my $folder = getcwd() . '/t/bench/peer';
    my $rate = LIMIT . 'r/' . PERIOD . 's';

    my $zones = join '', map { <<"END" } ALGORITHMS;
    ratelimit_zone \$http_x_k zone=$_:16m rate=$rate algorithm=$_ redis=main;
END

    my $locations = join '', map { <<"END" } ALGORITHMS;
        location = /ours/$_ { ratelimit zone=$_; empty_gif; }

        location = /lua/$_ {
            access_by_lua_block {
                require('access').limit($redis->{port},
                                        '${\ sha($redis, $_)}',
                                        'lua:$_:' .. ngx.var.http_x_k,
                                        '${\ LIMIT}', '${\ PERIOD}')
            }
            empty_gif;
        }
END

    return <<"END";
    lua_package_path "$folder/?.lua;;";
    init_by_lua_block { require('access') }

    ratelimit_headers off;
    ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=1s;
$zones
    server {
        listen 127.0.0.1:PORT backlog=1024;
        listen unix:DIR/http backlog=1024;
        location = /none { empty_gif; }
        ${\ Instructions::MARK}

$locations
    }
END
}


# Redis knows the script of the peer by this

sub sha {
    my ($redis, $name) = @_;

    my $file = "t/bench/peer/$name.lua";
    my $sha = `redis-cli -p $redis->{port} -x script load < $file`;

    chomp $sha;
    die "$file: $sha\n" if $sha !~ /^[0-9a-f]{40}$/;

    return $sha;
}


1;
