package Server;

# What is measured: nginx, HAProxy and Redis as Debian packs them, each with
# one worker or thread, on a free port of the loopback interface.
#
#     my $nginx = Server->nginx(http => $directives, modules => [$path]);
#     my $redis = Server->redis;
#     print "$nginx->{port} $nginx->{worker}\n";
#
# PORT in a configuration is the server's own, and DIR its folder.  It ends, and
# the folder goes, when the object goes.

use strict;
use warnings;

use File::Path qw(remove_tree);
use File::Temp qw(tempdir);
use IO::Socket::INET;
use POSIX qw(WNOHANG _exit dup2);
use Time::HiRes qw(sleep time);

use constant PATIENCE => 60;    # seconds, for it may run under valgrind

# what nginx has to load for Lua
use constant LUA => map { "/usr/lib/nginx/modules/$_" }
                        qw(ndk_http_module.so ngx_http_lua_module.so);

$ENV{PATH} .= ':/usr/sbin:/sbin';
$SIG{$_} = sub { exit 1 } for qw(HUP INT TERM);


# "under" is a command that runs it, then in one process; "workers" are 1 if not
# told

sub nginx {
    my ($class, %option) = @_;

    my $self = $class->create;
    my @under = @{$option{under} || []};
    my @load = map { "load_module $_;" } @{$option{modules}};
    my $master = @under ? 'off' : 'on';
    my $workers = $option{workers} || 1;

    $self->write('nginx.conf', <<"END");
@load
daemon off;
master_process $master;
worker_processes $workers;
pid nginx.pid;
error_log error.log crit;

events { worker_connections 2048; }

http {
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 1d;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;

$option{http}
}
END

    $self->launch(@under, 'nginx', '-p', "$self->{dir}/", '-c',
                  "$self->{dir}/nginx.conf");

    $self->{worker} = @under ? $self->{pid} : $self->await(\&child);

    return $self;
}


sub haproxy {
    my ($class, $config) = @_;

    my $self = $class->create;

    $self->write('haproxy.cfg', $config);
    $self->launch('haproxy', '-db', '-f', "$self->{dir}/haproxy.cfg");

    return $self;
}


sub redis {
    my ($class) = @_;

    my $self = $class->create;

    $self->launch('redis-server', '--port', $self->{port}, '--bind',
                  '127.0.0.1', '--dir', $self->{dir}, '--save', '',
                  '--appendonly', 'no');

    return $self;
}


sub create {
    my ($class) = @_;

    my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1')
        or die "listen: $!\n";

    my $self = bless {
        owner => $$,
        dir => tempdir('ratelimit-XXXXXX', TMPDIR => 1),
        port => $socket->sockport,
    }, $class;

    chmod 0755, $self->{dir};

    return $self;
}


sub write {
    my ($self, $name, $text) = @_;

    $text =~ s/\bPORT\b/$self->{port}/g;
    $text =~ s/\bDIR\b/$self->{dir}/g;

    open my $out, '>', "$self->{dir}/$name" or die "$name: $!\n";
    print $out $text;
    close $out or die "$name: $!\n";
}


# until it takes connections

sub launch {
    my ($self, @command) = @_;

    my $pid = fork // die "fork: $!\n";

    if ($pid == 0) {
        $SIG{$_} = 'DEFAULT' for qw(HUP INT TERM);

        open my $out, '>', "$self->{dir}/output" or _exit(1);
        dup2(fileno $out, $_) for 1, 2;

        { exec @command }
        _exit(127);
    }

    $self->{pid} = $self->{worker} = $pid;
    $self->await(\&connection);
}


sub connection {
    my ($self) = @_;

    return IO::Socket::INET->new(PeerAddr => "127.0.0.1:$self->{port}");
}


sub child {
    my ($self) = @_;

    my $pid = $self->{pid};

    return (split ' ', slurp("/proc/$pid/task/$pid/children"))[0];
}


sub await {
    my ($self, $condition) = @_;

    my $end = time + PATIENCE;
    my $value;

    until ($value = $condition->($self)) {
        my $gone = waitpid($self->{pid}, WNOHANG) != 0;

        die "does not start:\n" . slurp("$self->{dir}/output")
            if $gone || time > $end;

        sleep 0.01;
    }

    return $value;
}


sub stop {
    my ($self) = @_;

    my $pid = delete $self->{pid} or return;

    kill 'TERM', $pid;
    waitpid $pid, 0;
}


sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$;

    local ($?, $@, $!);

    $self->stop;
    remove_tree($self->{dir});
}


sub slurp {
    my ($path) = @_;

    open my $in, '<', $path or return '';
    local $/;

    return <$in> // '';
}


1;
