#!/usr/bin/perl

# Redis and shared memory decide alike: the same random requests to two
# gateways, of which one has its zones in Redis, are answered in the same way,
# whatever their limits say.  If this fails, a zone that moves to Redis means
# something else there.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

use constant STEPS => 10_000;
use constant BATCH => 50;

my $seed = $ENV{RATELIMIT_SEED} || 78;
note("RATELIMIT_SEED=$seed");
srand $seed;

my %algorithm = (
    fixed => 'algorithm=fixed_window rate=5r/366d',
    sliding => 'rate=5r/d',
    sliding1 => 'buckets=1 rate=5r/d',
    sliding60 => 'buckets=60 rate=5r/d',
    log => 'algorithm=sliding_log rate=5r/d',
    token => 'algorithm=token_bucket rate=5r/d',
    capacity => 'algorithm=token_bucket rate=5r/d capacity=7',
    leaky => 'algorithm=leaky_bucket rate=5r/d',
    rates => 'rate=5r/d rate=7r/2d rate=9r/3d',
);

# what a limit of each zone may say beside its name
my %limit = (
    plain => '',
    cost => 'cost=$arg_c',
    soft => 'soft=40% cost=$arg_c',
    elastic => 'elastic=60% soft=20%',
    rejected => 'rejected=count',
    rejected_cost => 'rejected=count cost=$arg_c soft=20%',
    named => 'name=named rate=6r/d',
    count => 'count=401,5xx',
);

my $redis = RedisServer->start;
my @gateways = map { Gateway->start(http => config($_)) } '', 'redis=main';
my @clients = map { Clients->new($_->{port}) } @gateways;
my %seen;

for my $step (1 .. STEPS / BATCH) {
    my @requests = map { [request($step)] } 1 .. BATCH;
    my ($ours, $theirs) = map { [$_->series(@requests)] } @clients;

    for my $i (0 .. BATCH - 1) {
        my ($a, $b) = map { seen($_) } $ours->[$i], $theirs->[$i];

        $seen{$ours->[$i]{field}{'x-status'} // '-'}++;

        next if $a eq $b && same_time($ours->[$i], $theirs->[$i]);

        fail("step $step, request $i: @{$requests[$i]}");
        diag("shared memory: $a\nRedis: $b");
        diag(explain($ours->[$i]{field}, $theirs->[$i]{field}));
        done_testing();
        exit 1;
    }
}

pass('all are answered alike');

cmp_ok($seen{$_} || 0, '>', STEPS / 100, "there were some: $_")
    for qw(PASSED REJECTED SOFT ELASTIC REJECTED_DRY_RUN);

is($_->complaints, '', 'nothing to complain about') for @gateways;
is($clients[1]->ask('GET /sliding/plain?k=last')->{field}{'x-backend'},
   'redis', 'one of them was in Redis');

done_testing();


sub config {
    my ($where) = @_;

    my $http = <<'END' =~ s/REDIS/$redis->{port}/r =~ s/WHERE/$where/gr;
ratelimit_redis main redis://127.0.0.1:REDIS timeout=5s connect_timeout=5s;
ratelimit_elastic connections=99%;
ratelimit_zone $arg_k zone=plan:1m rate=$arg_r WHERE;
ratelimit_zone $arg_k zone=three:1m rate=3r/d WHERE;
ratelimit_zone all zone=all:1m rate=1000r/d WHERE;
add_header X-Status $ratelimit_status always;
add_header X-Backend $ratelimit_backend always;
add_header X-Zone $ratelimit_zone always;
ratelimit_headers x ietf;

server {
    listen 127.0.0.2:PORT;

    location /200 { return 200; }
    location /401 { return 401; }
    location /500 { return 500; }
}
END
    my %location = (
        '/plan' => 'ratelimit zone=plan;',
        '/dry' => 'ratelimit zone=three name=dry cost=$arg_c;
                   ratelimit_dry_run on;',
        '/if' => 'ratelimit zone=three name=if if=$arg_i;',
        '/shared' => 'ratelimit zone=sliding; ratelimit zone=three;',
        '/three' => 'ratelimit zone=token; ratelimit zone=log cost=$arg_c;
                     ratelimit zone=three rejected=count;',
        '/all' => 'ratelimit zone=all cost=$arg_c; ratelimit zone=fixed;',
        '/same' => 'ratelimit zone=three name=x rate=4r/d;
                    ratelimit zone=three name=y rate=5r/d key=$arg_k$arg_c;',
    );

    for my $name (sort keys %algorithm) {
        $http .= "ratelimit_zone \$arg_k zone=$name:1m $algorithm{$name}"
                 . " $where;\n";

        my $burst = $name eq 'leaky' ? 'burst=4 nodelay' : '';

        $location{"/$name/$_"} = "ratelimit zone=$name $limit{$_} $burst;"
            for keys %limit;

        $location{"/$name/count"} .= 'proxy_pass http://127.0.0.2:PORT/$arg_s;';
    }

    return ($http . Gateway->server(%location))
           =~ s/empty_gif;(?=[^}]*_pass)//gr;
}


# new keys come now and then, as old ones are used up

sub request {
    my ($step) = @_;

    my @names = sort keys %algorithm;
    my @limits = sort keys %limit;
    my @paths = qw(/plan /dry /if /shared /three /all /same);
    my $path = rand() < 0.75 ? "/$names[rand @names]/$limits[rand @limits]"
                             : $paths[rand @paths];
    my %argument = (
        k => join('.', int $step / 8, int rand 3),
        c => (0, 1, 1, 1, 2, 3, 9)[rand 7],
        s => (200, 401, 500)[rand 3],
        r => ('3r/d', '5r/d', '2r/h', '', '9r/2d')[rand 5],
        i => int rand 2,
    );

    return "GET $path?" . join '&', map { "$_=$argument{$_}" }
                                    sort keys %argument;
}


# A client that was refused before is told what Redis said then, and not what
# others have used of the same counter since.

sub seen {
    my ($answer) = @_;

    my @fields = refused($answer)
                 ? qw(x-status ratelimit-policy)
                 : qw(x-status x-zone x-ratelimit-limit x-ratelimit-remaining
                      ratelimit-policy);

    return join ' ', $answer->{status},
                     map { $answer->{field}{$_} // '-' } @fields;
}


sub refused {
    my ($answer) = @_;

    return ($answer->{field}{'x-status'} // '') =~ /^REJECTED/;
}


# There are moments between them, and seconds are rounded up.  Sub-windows of
# shared memory begin when those of Redis do not.

sub same_time {
    my ($ours, $theirs) = @_;

    my $exact = !refused($ours) && ($ours->{field}{'x-zone'} // '')
                =~ /^(?:fixed|log|token|capacity|leaky)$/;

    for my $name (qw(x-ratelimit-reset retry-after)) {
        my ($a, $b) = map { $_->{field}{$name} } $ours, $theirs;

        return 0 if defined $a != defined $b;
        return 0 if $exact && defined $a && abs($a - $b) > 3;
    }

    return 1;
}
