package RedisServer;

# A real Redis of a test's own, on a free port and a UNIX-domain socket, with
# nothing on disk but what a test wants there.
#
#     my $redis = RedisServer->start('--maxmemory' => '10mb');
#     $redis->call('SET', 'a', 1);
#     $redis->kill;
#     $redis->restart;
#
# RATELIMIT_REDIS_SERVER is the program, redis-server if it is not set; that of
# Valkey does as well.  Whatever goes wrong, it is stopped by its pid, and its
# folder removed, when the object goes.

use strict;
use warnings;

use File::Path qw(remove_tree);
use File::Temp qw(tempdir);
use POSIX qw(:sys_wait_h dup2 _exit);
use Time::HiRes qw(sleep time);

use Ports qw(free_port);
use RedisClient;

use constant PATIENCE => 60;    # seconds for anything that must happen

# a test that is interrupted cleans up, too
$SIG{$_} = sub { exit 1 } for qw(HUP INT TERM);


# "host", "port", "password", "conf" and "tls" are ours, all else are options of
# the program.  "conf" is the text of a file.  "tls" is a path without ".pem"
# and ".key"; then there is "tls_port", too.

sub start {
    my ($class, %option) = @_;

    my $dir = tempdir('ratelimit-redis-XXXXXX', TMPDIR => 1);
    my $self = bless {
        owner => $$,
        dir => $dir,
        path => "$dir/socket",
        host => delete $option{host} // '127.0.0.1',
        port => delete $option{port},
        password => delete $option{password},
        conf => delete $option{conf},
        tls => delete $option{tls},
        options => {
            '--save' => '',
            '--appendonly' => 'no',
            '--enable-debug-command' => 'yes',
            '--repl-diskless-sync-delay' => 0,
            %option,
        },
    }, $class;

    $self->{options}{'--bind'} //= $self->{host};
    $self->{options}{'--requirepass'} = $self->{password}
        if defined $self->{password};

    if (defined $self->{conf}) {
        open my $file, '>', "$dir/conf" or die "$dir/conf: $!";
        print $file $self->{conf};
        close $file or die "$dir/conf: $!";
    }

    # workers, which connect to the socket, run as the user nobody
    chmod 0755, $dir;

    my $given = $self->{port};

    for (1 .. 5) {
        $self->{port} = $given // free_port();
        $self->{tls_port} = free_port() if $self->{tls};

        return $self if $self->launch;
    }

    die "Redis does not start:\n" . $self->log;
}


# true when it answers, whatever it answers

sub launch {
    my ($self, $loading) = @_;

    $self->{pid} = fork() // die "fork: $!";
    $self->exec_redis if $self->{pid} == 0;

    my $end = time + PATIENCE;

    while (time < $end) {
        if (waitpid($self->{pid}, WNOHANG) == $self->{pid}) {
            delete $self->{pid};
            return 0;
        }

        my ($reply) = eval { $self->client->pipe(['PING']) };

        return 1 if defined $reply && ($loading || $reply !~ /^LOADING/);

        sleep 0.005;
    }

    die "waited in vain for Redis to start:\n" . $self->log;
}


sub exec_redis {
    my ($self) = @_;

    my %option = (
        '--port' => $self->{port},
        '--unixsocket' => $self->{path},
        '--unixsocketperm' => 777,
        '--dir' => $self->{dir},
        '--daemonize' => 'no',
        $self->{tls} ? $self->tls_options : (),
        %{$self->{options}},
    );

    $SIG{$_} = 'DEFAULT' for qw(HUP INT TERM);

    open my $log, '>>', "$self->{dir}/log" or _exit(1);
    dup2(fileno($log), $_) for 1, 2;

    # an option may have a list of values; undef is none at all

    my @args = map { my $value = $option{$_}; ($_, ref $value ? @$value : $value) }
               grep { defined $option{$_} } sort keys %option;

    unshift @args, "$self->{dir}/conf" if defined $self->{conf};

    { exec binary(), @args }
    _exit(127);
}


# clients need no certificate, unless a test says so

sub tls_options {
    my ($self) = @_;

    return ('--tls-port' => $self->{tls_port},
            '--tls-cert-file' => "$self->{tls}.pem",
            '--tls-key-file' => "$self->{tls}.key",
            '--tls-ca-cert-file' => $self->{tls} =~ s{[^/]+$}{ca.pem}r,
            '--tls-auth-clients' => 'no');
}


sub binary { return $ENV{RATELIMIT_REDIS_SERVER} || 'redis-server' }


sub log {
    my ($self) = @_;

    open my $log, '<', "$self->{dir}/log" or return '';
    local $/;

    return <$log> // '';
}


# a connection of one's own

sub client {
    my ($self, %option) = @_;

    my $client = RedisClient->new(host => $self->{host},
                                  port => $self->{port}, %option);

    $client->call('AUTH', $self->{password}) if defined $self->{password};

    return $client;
}


# on a connection that is kept

sub call {
    my ($self, @command) = @_;

    return $self->kept->call(@command);
}


# the same for what only asks, so that it may be asked again: a server whose
# role changes closes all connections

sub ask {
    my ($self, @command) = @_;

    for my $last (0, 0, 0, 1) {
        my $reply;

        return $reply if eval { $reply = $self->call(@command); 1 };
        die $@ if $last || $@ !~ /^(?:Redis closes the connection|write to )/;

        delete $self->{kept};
    }
}


sub pipe {
    my ($self, @commands) = @_;

    return $self->kept->pipe(@commands);
}


sub kept {
    my ($self) = @_;

    return $self->{kept} //= $self->client;
}


# how often a command came since the start or "CONFIG RESETSTAT"

sub calls {
    my ($self, $command) = @_;

    my $stats = $self->ask('INFO', 'commandstats');

    return $stats =~ /^cmdstat_\Q$command\E:calls=(\d+)/m ? $1 : 0;
}


sub forget_calls {
    my ($self) = @_;

    $self->call('CONFIG', 'RESETSTAT');
}


# all keys of a database, in order

sub keys {
    my ($self, $db) = @_;

    my ($select, $keys, $back) = $self->pipe(['SELECT', $db // 0],
                                             ['KEYS', '*'], ['SELECT', 0]);

    return sort @$keys;
}


sub pause { CORE::kill 'STOP', $_[0]{pid} }

sub resume { CORE::kill 'CONT', $_[0]{pid} }


# at once, whatever it is doing

sub kill {
    my ($self) = @_;

    my $pid = delete $self->{pid} or return;

    delete $self->{kept};
    CORE::kill 'KILL', $pid;
    waitpid $pid, 0;
}


sub stop { goto &kill }


# at the same place; true as soon as it answers, "loading" while it loads, too

sub restart {
    my ($self, %option) = @_;

    my $loading = delete $option{loading};

    $self->{tls} = delete $option{tls} if $option{tls};

    $self->kill;
    $self->{options} = { %{$self->{options}}, %option };

    my $end = time + PATIENCE;

    until ($self->launch($loading)) {
        die "Redis does not start again:\n" . $self->log if time > $end;
        sleep 0.02;
    }
}


sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$;

    local ($?, $@);

    $self->kill;
    remove_tree($self->{dir});
}


1;
