#!/usr/bin/perl

# A rolling upgrade: a gateway of the former release and one of this release use
# one Redis at the same time.  Names of counters carry a version, so neither
# reads what the other has written: each has its own counters until the last
# former gateway is gone, and no reply is an error.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Path qw(make_path);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use Programs qw(command);
use RedisServer;

use constant FORMER => 'da84d4e';    # 0.1.0
use constant LIMIT => 3;

my $root = getcwd();
my $tree = "$root/build/former";
my $former = "$tree/build/ngx_http_ratelimit_module.so";
my @algorithms = qw(fixed_window sliding_window sliding_log token_bucket
                    leaky_bucket);

# of the make that runs the tests
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CC CFLAGS LDFLAGS
               RATELIMIT_HIREDIS)};

make_path($tree);

BAIL_OUT('the former release is not in the history of this repository')
    if !-f "$tree/config"
       && !command("git archive " . FORMER . " | tar -x -C $tree");

# with headers of nginx 1.26 it does not build without this word

BAIL_OUT('the former release does not build')
    if !command("make -C $tree CFLAGS='-O2 -g -D_GNU_SOURCE'");

my $redis = RedisServer->start;
my $http = configuration($redis);

my $new = Gateway->start(http => $http);
my $old = do {
    local $ENV{RATELIMIT_MODULE} = $former;
    Gateway->start(http => $http);
};

my %client = (old => Clients->new($old->{port}),
              new => Clients->new($new->{port}));

for my $algorithm (@algorithms) {

    # in turn, so that each finds what the other has just written

    my %admitted = (old => 0, new => 0);

    for (1 .. 2 * LIMIT) {
        $admitted{$_} += $client{$_}->ask("GET /$algorithm")->{status} == 200
            for qw(old new);
    }

    is($admitted{old}, LIMIT, "$algorithm: a former gateway holds the limit");
    is($admitted{new}, LIMIT, "$algorithm: so does a new one");
}

for my $gateway ($old, $new) {
    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/\[(?:error|warn)\] .*redis/, 'nor an error');
}

done_testing();


sub configuration {
    my ($server) = @_;

    my $conf = "ratelimit_redis main redis://127.0.0.1:$server->{port} "
               . "timeout=5s;\n";

    for my $name (@algorithms) {
        $conf .= "ratelimit_zone \$uri zone=$name:1m rate="
                 . LIMIT . "r/d algorithm=$name redis=main;\n";
    }

    my $locations = join '', map {
        my $burst = /leaky/ ? ' burst=' . (LIMIT - 1) . ' nodelay' : '';
        "location = /$_ { ratelimit zone=$_$burst; empty_gif; }\n"
    } @algorithms;

    return "$conf server { listen 127.0.0.1:PORT; $locations }";
}
