package WriteBack;

# Zones that report to Redis, against the same zones without Redis: requests a
# second, and how many commands Redis gets for a hot key and for ten thousand
# keys of Zipf popularity, each of which was seen before; and how many requests
# of a key three gateways admit together.

use strict;
use warnings;

use Time::HiRes qw(sleep time);

use Load;
use Server;

use constant LIMIT => 9_999_999;
use constant REQUESTS => 20_000;    # to each location in each round
use constant CONNECTIONS => 32;
use constant LEAST => 0.9;          # of the requests a second
use constant COMMANDS => 0.1;       # of the requests on a hot key

use constant GATEWAYS => 3;
use constant ALLOWED => 2_000;      # as many are sent to each gateway
use constant SECONDS => 3;
use constant ROUNDS => 20;
use constant OVER => 1.05;


sub rows {
    my ($module, $rounds) = @_;

    my $redis = Server->redis;
    my $nginx = Server->nginx(http => config($redis), modules => [$module]);
    my @rows;

    for my $case (['a hot key', 1, 'random', COMMANDS],
                  ['10,000 keys of Zipf popularity', 10_000, 'zipf', COMMANDS])
    {
        my ($what, $keys, $order, $most) = @$case;
        my %job = (port => $nginx->{port}, path => ['/none', '/shm', '/sync'],
                   keys => $keys, order => $order, requests => REQUESTS,
                   connections => CONNECTIONS, pid => [$nginx->{worker}]);

        # a key that was never seen is asked about

        Load::fill(port => $nginx->{port}, path => $_, keys => $keys,
                   connections => CONNECTIONS) for '/shm', '/sync';
        Load::measure(%job, rounds => 1);

        my $before = commands($redis);
        my %found = Load::measure(%job, rounds => $rounds);
        my $commands = (commands($redis) - $before) / $rounds;

        die "a limit refuses\n" if $found{'/sync'}{refused};

        push @rows,
            row("$what, requests a second", $found{'/sync'}{rate},
                $found{'/shm'}{rate}, LEAST, 'least'),
            row("$what, nginx: ns of a request", $found{'/sync'}{cpu}[0],
                $found{'/shm'}{cpu}[0], sprintf('%.2f', 1 / LEAST), 'most'),
            row("$what, commands for so many requests", $commands, REQUESTS,
                $most, 'most');
    }

    $nginx->stop;

    return @rows, fleet($module);
}


# requests of one key to several gateways of two workers each, in some seconds

sub fleet {
    my ($module) = @_;

    my $redis = Server->redis;
    my @gateways = map {
        Server->nginx(http => config($redis, ALLOWED), modules => [$module],
                      workers => 2)
    } 1 .. GATEWAYS;

    my $before = commands($redis);
    my $sent = GATEWAYS * ALLOWED;
    my $admitted = $sent;

    $admitted -= $_ for map { <$_> } map { refusals($_->{port}) } @gateways;

    my $what = "$sent requests of a key to three gateways in "
               . SECONDS . ' s, ' . ALLOWED . ' allowed';

    return row("$what: admitted", $admitted, ALLOWED, 1, 'least'),
           row("$what: admitted, at most", $admitted, ALLOWED, OVER, 'most'),
           row("$what: commands", commands($redis) - $before, $sent, COMMANDS,
               'most');
}


# a process that sends requests, and prints how many of them are refused

sub refusals {
    my ($port) = @_;

    my $pid = open(my $out, '-|') // die "fork: $!\n";

    return $out if $pid;

    my $begin = time;

    for my $round (1 .. ROUNDS) {
        my ($line) = Load::run(port => $port, path => '/sync', keys => 1,
                               requests => ALLOWED / ROUNDS, connections => 4);
        my (undef, undef, $refused) = split /\t/, $line;
        my $rest = $begin + SECONDS * $round / ROUNDS - time;

        print "$refused\n";
        sleep $rest if $rest > 0;
    }

    POSIX::_exit(0) if close STDOUT;
    POSIX::_exit(1);
}


sub row {
    my ($what, $ours, $peer, $bound, $sense) = @_;

    return [$what, sprintf('%.0f', $ours), sprintf('%.0f', $peer),
            $ours / $peer, $bound, $sense];
}


sub commands {
    my ($redis) = @_;

    my $text = `redis-cli -p $redis->{port} info commandstats`;
    my $sum = 0;

    $sum += $_ for $text =~ /^cmdstat_eval(?:sha)?:calls=(\d+)/mg;

    return $sum;
}


sub config {
    my ($redis, $limit) = @_;

    my $rate = ($limit || LIMIT) . 'r/h';

    return <<"END";
    ratelimit_headers off;
    ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=1s;
    ratelimit_zone \$http_x_k zone=shm:16m rate=$rate;
    ratelimit_zone \$http_x_k zone=sync:16m rate=$rate redis=main sync=100ms;

    server {
        listen 127.0.0.1:PORT backlog=1024;
        location = /none { empty_gif; }
        location = /shm { ratelimit zone=shm; empty_gif; }
        location = /sync { ratelimit zone=sync; empty_gif; }
    }
END
}


1;
