package Gateway;

# A real nginx with real workers, for tests that Test::Nginx can't do: many
# clients at once, workers that are killed, reloads under load.
#
#     my $gateway = Gateway->start(workers => 2, http => $config);
#     my $tally = $gateway->load(requests => [['/', 'key'], ...]);
#     $gateway->reload($other_config);
#     $gateway->stop;
#
# Whatever goes wrong, all that was started is stopped by its pid, and the
# folder removed, when the object goes.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Path qw(remove_tree);
use File::Temp qw(tempdir);
use IO::Socket::INET;
use POSIX qw(:sys_wait_h dup2 _exit);
use Time::HiRes qw(sleep time);

use GatewayClient;
use Ports qw(free_port);

use constant PATIENCE => 60;    # seconds for anything that must happen

# a test that is interrupted cleans up, too
$SIG{$_} = sub { exit 1 } for qw(HUP INT TERM);


sub start {
    my ($class, %options) = @_;

    my $self = bless {
        owner => $$,
        workers => 1,
        env => {},
        main => '',
        %options,
        dir => tempdir('ratelimit-XXXXXX', TMPDIR => 1),
    }, $class;

    chmod 0755, $self->{dir};
    mkdir "$self->{dir}/logs";

    for (1 .. 5) {
        $self->{port} = free_port();
        $self->configure($self->{http});

        return $self if $self->launch;
    }

    die "nginx does not start:\n" . $self->log;
}


sub binary { return $ENV{TEST_NGINX_BINARY} || 'nginx' }


sub module {
    return $ENV{RATELIMIT_MODULE}
           || getcwd() . '/build/ngx_http_ratelimit_module.so';
}


# %option replaces others of start, as workers

sub configure {
    my ($self, $http, %option) = @_;

    %$self = (%$self, %option);

    my $module = module();
    my $load = $module ? "load_module $module;" : '';

    $http =~ s{\bPORT\b}{$self->{port}}g;

    # nginx may be reading the former one; a binary that takes over has the
    # variables of "env" alone, and needs those of the sanitizers

    open my $file, '>', "$self->{dir}/new.conf" or die $!;

    print $file <<"END";
$load
daemon off;
pid nginx.pid;
error_log logs/error.log notice;
worker_processes $self->{workers};
env ASAN_OPTIONS;
env UBSAN_OPTIONS;
$self->{main}

events {
    worker_connections 2048;
}

http {
    access_log off;
    ratelimit_log_level info;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 1000000;
    add_header X-Worker \$pid always;

$http
}
END

    close $file or die $!;
    rename "$self->{dir}/new.conf", "$self->{dir}/nginx.conf" or die $!;
}


# a server with a location for each of the texts

sub server {
    my ($self, %location) = @_;

    my $text = "server {\n    listen 127.0.0.1:PORT reuseport backlog=2048;\n";

    $text .= "    location $_ {\n        empty_gif;\n$location{$_}\n    }\n"
        for sort keys %location;

    return "$text}\n";
}


sub launch {
    my ($self) = @_;

    $self->{pid} = fork() // die "fork: $!";

    if ($self->{pid} == 0) {
        $self->exec_nginx;
    }

    return await(sub {
        if (waitpid($self->{pid}, WNOHANG) == $self->{pid}) {
            delete $self->{pid};
            return 'gone';
        }

        return ($self->current_workers == $self->{workers} && $self->connect)
               ? 'started' : '';
    }) eq 'started';
}


sub exec_nginx {
    my ($self) = @_;

    my $dir = $self->{dir};

    $SIG{$_} = 'DEFAULT' for qw(HUP INT TERM);
    %ENV = (%ENV, %{$self->{env}});
    $ENV{PATH} .= ':/usr/sbin:/sbin';

    open my $out, '>>', "$dir/logs/stderr" or _exit(1);
    dup2(fileno($out), $_) for 1, 2;

    { exec binary(), '-p', "$dir/", '-c', "$dir/nginx.conf" }
    _exit(127);
}


sub connect {
    my ($self) = @_;

    return IO::Socket::INET->new(PeerAddr => "127.0.0.1:$self->{port}");
}


# the condition's value, as soon as it is true

sub await {
    my ($condition, $what, $patience) = @_;

    my $end = time + ($patience || PATIENCE);
    my $value;

    until ($value = $condition->()) {
        die 'waited in vain for ' . ($what || 'nginx') if time > $end;
        sleep 0.005;
    }

    return $value;
}


sub log {
    my ($self) = @_;

    return join '', map { slurp("$self->{dir}/logs/$_") } qw(stderr error.log);
}


sub slurp {
    my ($file) = @_;

    open my $handle, '<', $file or return '';
    local $/;

    return <$handle> // '';
}


# what should never be logged, but for killed workers if these are expected

sub complaints {
    my ($self, $expected) = @_;

    my @lines = grep { /\[(?:emerg|alert|crit)\]/ } split /^/, $self->log;

    @lines = grep { $_ !~ $expected } @lines if $expected;

    return join '', @lines;
}


# pids of all workers, and of those that accept connections

sub all_workers {
    my ($self) = @_;

    my $pid = $self->{pid};
    my @pids = split ' ', slurp("/proc/$pid/task/$pid/children");

    return grep { slurp("/proc/$_/cmdline") =~ /^nginx: worker process/ } @pids;
}


sub current_workers {
    my ($self) = @_;

    return grep { slurp("/proc/$_/cmdline") !~ /shutting down/ }
           $self->all_workers;
}


# and of those that are doing something

sub busy_workers {
    my ($self) = @_;

    return grep { slurp("/proc/$_/stat") =~ /\) R / } $self->current_workers;
}


# tells nginx to reload; awaits nothing

sub hup {
    my ($self, $http, %option) = @_;

    $self->{before}{$_} = 1 for $self->all_workers;
    $self->{logged} = length $self->log;
    $self->configure($http, %option);
    kill 'HUP', $self->{pid};
}


# whether nginx has refused what the last hup told it to load

sub failed {
    my ($self) = @_;

    return $self->{logged}
           && substr($self->log, $self->{logged}) =~ /\[emerg\]/;
}


# as many workers accept as there should, and all are newer than the last hup

sub reloaded {
    my ($self) = @_;

    die "the reload failed:\n" . $self->log if $self->failed;

    my @current = $self->current_workers;

    return @current == $self->{workers}
           && !grep { $self->{before}{$_} } @current;
}


# and all others are gone

sub settled {
    my ($self) = @_;

    return $self->reloaded && $self->all_workers == $self->{workers};
}


sub reload {
    my ($self, $http, %option) = @_;

    $self->hup($http, %option);
    await(sub { $self->reloaded }, 'new workers');
}


sub load {
    my ($self, %option) = @_;

    return GatewayClient->new(port => $self->{port}, %option)->run;
}


sub stop {
    my ($self) = @_;

    my $pid = delete $self->{pid} or return;
    my $end = time + PATIENCE;

    kill 'TERM', $pid;

    until (waitpid($pid, WNOHANG)) {
        kill 'KILL', $pid if time > $end;
        sleep 0.005;
    }
}


sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$;

    local ($?, $@);

    $self->stop;
    remove_tree($self->{dir});
}


1;
