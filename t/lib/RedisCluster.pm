package RedisCluster;

# A real cluster: primaries, each with a part of the hash slots, and replicas.
#
#     my $cluster = RedisCluster->start(primaries => 3, replicas => 1);
#     my $urls = $cluster->urls;
#     my $server = $cluster->primary_of($name);    # of a key
#     $cluster->cli('reshard', ...);
#
# The servers, RedisServer, are in "servers": the primaries, then the replicas.

use strict;
use warnings;

use Time::HiRes qw(sleep time);

use RedisServer;

use constant SLOTS => 16384;
use constant PATIENCE => 60;    # seconds for anything that must happen

# milliseconds of silence until a node is down: none is to be taken for dead
# because the machine is busy, except where a test wants that; when nodes get to
# know one another, they say more in a short time
use constant NODE_TIMEOUT => 15_000;
use constant IMPATIENT => 1000;


# "primaries" and "replicas", of each of them, are how many; "clocks", if any, are
# those of the servers, RedisClock; all else are options of the servers

sub start {
    my ($class, %option) = @_;

    my $primaries = delete $option{primaries} // 3;
    my $replicas = delete $option{replicas} // 1;

    my $clocks = delete $option{clocks} // [];

    my $self = bless { option => \%option, servers => [],
                       clocks => $clocks }, $class;

    $self->add for 1 .. $primaries * (1 + $replicas);

    my @primaries = @{$self->{servers}}[0 .. $primaries - 1];
    my @replicas = @{$self->{servers}}[$primaries .. $#{$self->{servers}}];

    for my $i (0 .. $#primaries) {
        my $first = int(SLOTS * $i / $primaries);
        my $last = int(SLOTS * ($i + 1) / $primaries) - 1;

        $primaries[$i]->call('CLUSTER', 'SET-CONFIG-EPOCH', $i + 1);
        $primaries[$i]->call('CLUSTER', 'ADDSLOTSRANGE', $first, $last);
    }

    $self->meet($_) for @{$self->{servers}}[1 .. $#{$self->{servers}}];
    $self->await_nodes;

    for my $i (0 .. $#replicas) {
        my $primary = $primaries[$i % $primaries];

        $replicas[$i]->call('CLUSTER', 'REPLICATE',
                            $primary->call('CLUSTER', 'MYID'));
    }

    $self->await_ok;
    await(sub { !grep { !synced($_) } @replicas }, 'replicas');

    $self->set('cluster-node-timeout', NODE_TIMEOUT);

    return $self;
}


# a server that is not a part of the cluster yet

sub add {
    my ($self) = @_;

    my $bus = RedisServer::free_port();
    my $clock = $self->{clocks}[@{$self->{servers}}];
    my @option = (
        '--cluster-enabled' => 'yes',
        '--cluster-port' => $bus,
        '--cluster-node-timeout' => IMPATIENT,
        '--cluster-replica-validity-factor' => 0,
        '--repl-ping-replica-period' => 1,
        %{$self->{option}},
    );
    my $server = $clock ? $clock->start_redis(@option)
                        : RedisServer->start(@option);

    $server->{bus} = $bus;
    push @{$self->{servers}}, $server;

    return $server;
}


sub meet {
    my ($self, $server) = @_;

    my $first = $self->{servers}[0];

    $server->call('CLUSTER', 'MEET', $first->{host}, $first->{port},
                  $first->{bus});
}


sub alive {
    my ($self) = @_;

    return grep { $_->{pid} && !$_->{paused} } @{$self->{servers}};
}


# adds a server, as a primary without hash slots

sub grow {
    my ($self) = @_;

    my $server = $self->add;

    $self->set('cluster-node-timeout', IMPATIENT);
    $self->meet($server);
    $self->await_nodes;
    $self->set('cluster-node-timeout', NODE_TIMEOUT);

    return $server;
}


# all know one another

sub await_nodes {
    my ($self) = @_;

    my $n = @{$self->{servers}};

    await(sub {
        return !grep { info($_) !~ /^cluster_known_nodes:$n\r$/m }
                @{$self->{servers}};
    }, 'nodes');
}


sub await_ok {
    my ($self) = @_;

    await(sub { $self->ok }, 'the cluster');
}


# all nodes that run say so, and that all hash slots are served

sub ok {
    my ($self) = @_;

    for my $server ($self->alive) {
        my $info = info($server);

        return 0 if $info !~ /^cluster_state:ok\r$/m
                    || $info !~ /^cluster_slots_ok:16384\r$/m;
    }

    return 1;
}


sub info {
    my ($server) = @_;

    return $server->ask('CLUSTER', 'INFO');
}


sub synced {
    my ($replica) = @_;

    return $replica->ask('INFO', 'replication') =~ /^master_link_status:up/m;
}


sub urls {
    my ($self, @servers) = @_;

    @servers = @{$self->{servers}} if !@servers;

    return join ' ', map { "redis://$_->{host}:$_->{port}" } @servers;
}


# the one that has the hash slot of a key, as another one says

sub primary_of {
    my ($self, $key) = @_;

    my ($server) = $self->alive;
    my $slot = $server->ask('CLUSTER', 'KEYSLOT', $key);

    for my $range (@{$server->ask('CLUSTER', 'SLOTS')}) {
        my ($first, $last, $node) = @$range;

        next if $slot < $first || $slot > $last;

        my ($primary) = grep { $_->{port} == $node->[1] } @{$self->{servers}};

        return $primary;
    }

    return;
}


# Begins to move the hash slot of a key, to another primary unless one is named.
# What is returned ends it, or moves no more than the keys that match.

sub move {
    my ($self, $key, $to) = @_;

    my $from = $self->primary_of($key);

    ($to) = grep { $_ != $from } $self->primaries if !$to;

    my $slot = $from->call('CLUSTER', 'KEYSLOT', $key);
    my ($from_id, $to_id) = map { $_->call('CLUSTER', 'MYID') } $from, $to;

    $to->call('CLUSTER', 'SETSLOT', $slot, 'IMPORTING', $from_id);
    $from->call('CLUSTER', 'SETSLOT', $slot, 'MIGRATING', $to_id);

    return sub {
        my ($only) = @_;

        my @names = @{$from->call('CLUSTER', 'GETKEYSINSLOT', $slot, 1000)};

        @names = grep { $_ =~ $only } @names if $only;

        $from->call('MIGRATE', $to->{host}, $to->{tls_port} || $to->{port}, '',
                    0, 5000, 'KEYS', @names) if @names;

        return if $only;

        $_->call('CLUSTER', 'SETSLOT', $slot, 'NODE', $to_id) for $to, $from;
    };
}


# all that run and are no replicas, as they say

sub primaries {
    my ($self) = @_;

    return grep { role($_) eq 'master' } $self->alive;
}


sub role {
    my ($server) = @_;

    return $server->ask('ROLE')->[0];
}


# what the primary has is on its replicas, too

sub await_replicas {
    my ($primary) = @_;

    await(sub {
        my $info = $primary->ask('INFO', 'replication');
        my ($offset) = $info =~ /^master_repl_offset:(\d+)/m;
        my @replicas = $info =~ /^slave\d+:.*?state=online,offset=(\d+)/mg;

        return @replicas && !grep { $_ < $offset } @replicas;
    }, 'a replica');
}


# sets an option of all nodes

sub set {
    my ($self, $name, $value) = @_;

    $_->ask('CONFIG', 'SET', $name, $value) for $self->alive;
}


# how often a command came to all nodes that run

sub calls {
    my ($self, $command) = @_;

    my $n = 0;

    $n += $_->calls($command) for $self->alive;

    return $n;
}


# all nodes have one map of hash slots

sub await_agreement {
    my ($self) = @_;

    await(sub {
        my %maps = map { (map_of($_) => 1) } $self->alive;

        return keys %maps == 1;
    }, 'nodes to agree');
}


sub map_of {
    my ($server) = @_;

    return join ' ', sort map { "$_->[0]-$_->[1]:$_->[2][1]" }
                          @{$server->ask('CLUSTER', 'SLOTS')};
}


# redis-cli --cluster, when all is well; returns what it says

sub cli {
    my ($self, @args) = @_;

    $self->await_ok;
    $self->await_agreement;

    my $pid = open my $out, '-|' // die "fork: $!";

    if (!$pid) {
        open STDERR, '>&', \*STDOUT;
        exec 'redis-cli', $self->tls_options, '--cluster', @args;
        die "redis-cli: $!";
    }

    my $said = do { local $/; <$out> };

    close $out or die "redis-cli --cluster @args:\n$said";

    return $said;
}


# between nodes that speak TLS, redis-cli must, too, to tell their ports

sub tls_options {
    my ($self) = @_;

    my $tls = $self->{option}{tls};

    return $tls ? ('--tls', '--cacert', $tls =~ s{[^/]+$}{ca.pem}r) : ();
}


sub await {
    my ($condition, $what) = @_;

    my $end = time + PATIENCE;
    my $value;

    until ($value = $condition->()) {
        die "waited in vain for $what" if time > $end;
        sleep 0.02;
    }

    return $value;
}


1;
