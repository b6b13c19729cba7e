package Service;

# Calls of the rate limit service by gRPC, against a location of the same nginx
# that answers every call with a fixed message of the same size: calls a second
# on as many HTTP/2 connections, by turns, and how long 99 of 100 take.  Both
# have paths of the same length, as nginx has to decode and to parse them.

use strict;
use warnings;

use File::Temp qw(tempdir);

use Server;

use constant METHOD =>
    '/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit';
use constant FIXED => METHOD =~ s/envoy/fixed/r;
use constant CALLS => 20_000;       # in each round
use constant CONNECTIONS => 4;
use constant UNDER_WAY => 16;       # calls on each
use constant LEAST => 0.7;          # of the calls a second


sub rows {
    my ($module, $rounds) = @_;

    my $rules = tempdir('ratelimit-XXXXXX', TMPDIR => 1, CLEANUP => 1);
    my $fixed = 'x' x 32;

    open my $file, '>', "$rules/bench.yaml" or die "bench.yaml: $!\n";
    print $file "{ domain: bench, descriptors: [{ key: user, rate_limit: "
                . "{ unit: hour, requests_per_unit: 4000000000 } }] }\n";
    close $file or die "bench.yaml: $!\n";

    my $nginx = Server->nginx(modules => [$module], http => <<"END");
ratelimit_rules $rules/bench.yaml zone=rules:8m algorithm=fixed_window;

server {
    listen 127.0.0.1:PORT http2;

    location / { ratelimit_service; ratelimit_headers off; }

    location = ${\ FIXED} {
        default_type application/grpc;
        add_trailer grpc-status 0;
        return 200 "$fixed";
    }
}
END

    $nginx->write('message', message());

    my (%rate, %late);

    for my $round (1 .. $rounds) {
        for my $path ($round % 2 ? (METHOD, FIXED) : (FIXED, METHOD)) {
            my ($rate, $late) = load($nginx, $path);

            push @{$rate{$path}}, $rate;
            push @{$late{$path}}, $late;
        }
    }

    my ($ours, $peer) = map { median(@{$rate{$_}}) } METHOD, FIXED;
    my @late = map { median(@{$late{$_}}) } METHOD, FIXED;

    $nginx->stop;

    return (
        ['calls of the service a second', sprintf('%.0f', $ours),
         sprintf('%.0f', $peer), $ours / $peer, LEAST, 'least'],
        ['99 of 100 calls take, us', map { sprintf '%.0f', $_ } @late],
    );
}


# one descriptor of one entry, in its frame

sub message {
    my $entry = "\x0a\x04user\x12\x05alice";
    my $descriptor = "\x0a" . chr(length $entry) . $entry;
    my $message = "\x0a\x05bench\x12" . chr(length $descriptor) . $descriptor;

    return pack('CN', 0, length $message) . $message;
}


# calls a second, and the time that one of 100 exceeds

sub load {
    my ($nginx, $path) = @_;

    my $log = "$nginx->{dir}/calls.log";

    unlink $log;

    my ($calls, $clients, $depth) = (CALLS, CONNECTIONS, UNDER_WAY);
    my $said = `h2load -n $calls -c $clients -m $depth --log-file=$log -d $nginx->{dir}/message -H 'content-type: application/grpc' -H 'te: trailers' http://127.0.0.1:$nginx->{port}$path 2>&1`;

    $said =~ / $calls succeeded, 0 failed/ or die "h2load: $said\n";

    my ($rate) = $said =~ m{, ([\d.]+) req/s} or die "h2load: $said\n";

    open my $file, '<', $log or die "$log: $!\n";

    my @times = sort { $a <=> $b } map { (split)[2] } <$file>;

    return ($rate, $times[0.99 * @times]);
}


sub median {
    my @sorted = sort { $a <=> $b } @_;

    return $sorted[@sorted / 2];
}


1;
