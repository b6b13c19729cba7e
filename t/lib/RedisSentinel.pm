package RedisSentinel;

# A primary, its replicas, and the sentinels that watch them, all real.
#
#     my $fleet = RedisSentinel->start;
#     my $urls = $fleet->urls;             # of the sentinels
#     $fleet->primary->kill;
#     $fleet->await_primary_but($killed);
#
# The servers are in "servers", the first of them is the first primary; the
# sentinels are in "sentinels".  All are RedisServer.

use strict;
use warnings;

use Time::HiRes qw(sleep time);

use RedisServer;

use constant PATIENCE => 60;    # seconds for anything that must happen


# "name" is that of the primary, "replicas" and "sentinels" are how many, "down"
# the milliseconds until a silent server counts as down, "sentinel" has options
# of the sentinels, "conf" lines of theirs; all else are options of the servers

sub start {
    my ($class, %option) = @_;

    my $self = bless {
        name => delete $option{name} // 'mymaster',
        down => delete $option{down} // 1000,
        conf => delete $option{conf} // '',
        sentinel => delete $option{sentinel} // {},
    }, $class;

    my $replicas = delete $option{replicas} // 2;
    my $sentinels = delete $option{sentinels} // 3;

    $self->{servers} = [map { RedisServer->start(%option) } 0 .. $replicas];

    my ($primary, @replicas) = @{$self->{servers}};

    for my $replica (@replicas) {
        $replica->call('CONFIG', 'SET', 'masterauth', $primary->{password})
            if defined $primary->{password};
        $replica->call('REPLICAOF', $primary->{host}, $primary->{port});
    }

    await(sub {
        return !grep { !synced($_) } @replicas;
    }, 'replicas');

    $self->{sentinels} = [map { $self->start_sentinel($primary) }
                          1 .. $sentinels];

    $self->await_agreement;

    return $self;
}


sub start_sentinel {
    my ($self, $primary) = @_;

    my $name = $self->{name};
    my $conf = <<"END";
sentinel monitor $name $primary->{host} $primary->{port} 2
sentinel down-after-milliseconds $name $self->{down}
sentinel failover-timeout $name 3000
sentinel parallel-syncs $name 5
$self->{conf}
END

    $conf .= "sentinel auth-pass $name $primary->{password}\n"
        if defined $primary->{password};

    return RedisServer->start(
        '--sentinel' => [], conf => $conf, '--save' => undef,
        '--appendonly' => undef, '--enable-debug-command' => undef,
        '--repl-diskless-sync-delay' => undef, '--unixsocket' => undef,
        '--unixsocketperm' => undef, %{$self->{sentinel}});
}


sub synced {
    my ($replica) = @_;

    return $replica->ask('INFO', 'replication') =~ /^master_link_status:up/m;
}


# all sentinels know of one another, and of the replicas

sub await_agreement {
    my ($self) = @_;

    my $replicas = $#{$self->{servers}};
    my $sentinels = @{$self->{sentinels}};

    await(sub {
        for my $sentinel (@{$self->{sentinels}}) {
            my %is = @{$sentinel->call('SENTINEL', 'MASTER', $self->{name})};

            return 0 if $is{'num-slaves'} != $replicas
                        || $is{'num-other-sentinels'} != $sentinels - 1
                        || $is{flags} ne 'master';
        }

        return 1;
    }, 'sentinels');
}


sub urls {
    my ($self) = @_;

    return join ' ', map { "redis://$_->{host}:$_->{port}" }
                     @{$self->{sentinels}};
}


# as a sentinel has it

sub primary {
    my ($self) = @_;

    for my $sentinel (grep { $_->{pid} } @{$self->{sentinels}}) {
        my ($host, $port) = @{$sentinel->call('SENTINEL',
                                              'get-master-addr-by-name',
                                              $self->{name})};
        my ($server) = grep { $_->{port} == $port } @{$self->{servers}};

        return $server if $server;
    }

    die 'no sentinel knows the primary';
}


# another one, which says itself that it is; returns it

sub await_primary_but {
    my ($self, $former) = @_;

    return await(sub {
        my $server = $self->primary;

        return $server != $former && role($server) eq 'master' && $server;
    }, 'another primary');
}


sub role {
    my ($server) = @_;

    return $server->ask('ROLE')->[0];
}


# what the primary was told until now is on so many replicas

sub await_replicas {
    my ($self, $n) = @_;

    my $primary = $self->primary;

    await(sub {
        my (undef, $have) = eval { $primary->pipe(['SET', 'replicated', time],
                                                  ['WAIT', $n, 1000]) };

        delete $primary->{kept} if $@;

        return ($have // 0) >= $n;
    }, 'replicas');
}


# as an operator wants it; returns when another server is the primary

sub fail_over {
    my ($self) = @_;

    my $former = $self->primary;

    await(sub {
        my ($said) = $self->{sentinels}[0]->pipe(['SENTINEL', 'FAILOVER',
                                                  $self->{name}]);

        return $said eq 'OK';
    }, 'a fail-over');

    $self->await_primary_but($former);
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
