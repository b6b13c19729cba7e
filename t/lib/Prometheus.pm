package Prometheus;

# A real Prometheus of a test's own, which scrapes what the test tells it.
#
#     my $prometheus = Prometheus->start($yaml);
#     my $samples = $prometheus->query('up == 1');
#     is($samples->[0]{value}, 1);
#
# It is stopped by its pid, and its folder removed, when the object goes.

use strict;
use warnings;

use File::Path qw(remove_tree);
use File::Temp qw(tempdir);
use HTTP::Tiny;
use JSON::PP qw(decode_json);
use POSIX qw(:sys_wait_h dup2 _exit);
use Time::HiRes qw(sleep time);

use Gateway;

use constant PATIENCE => 60;    # seconds for it to start


sub start {
    my ($class, $yaml) = @_;

    my $self = bless {
        owner => $$,
        dir => tempdir('ratelimit-prometheus-XXXXXX', TMPDIR => 1),
    }, $class;

    open my $file, '>', "$self->{dir}/prometheus.yml" or die $!;
    print $file $yaml;
    close $file or die $!;

    for (1 .. 5) {
        $self->{port} = Gateway::free_port();

        return $self if $self->launch;
    }

    die "Prometheus does not start:\n" . $self->log;
}


sub launch {
    my ($self) = @_;

    $self->{pid} = fork() // die "fork: $!";
    $self->exec_prometheus if $self->{pid} == 0;

    return Gateway::await(sub {
        if (waitpid($self->{pid}, WNOHANG) == $self->{pid}) {
            delete $self->{pid};
            return 'gone';
        }

        return $self->get('/-/ready')->{success} ? 'started' : '';
    }, 'Prometheus', PATIENCE) eq 'started';
}


sub exec_prometheus {
    my ($self) = @_;

    $SIG{$_} = 'DEFAULT' for qw(HUP INT TERM);

    open my $log, '>>', "$self->{dir}/log" or _exit(1);
    dup2(fileno($log), $_) for 1, 2;

    { exec 'prometheus', "--config.file=$self->{dir}/prometheus.yml",
           "--storage.tsdb.path=$self->{dir}/data",
           "--web.listen-address=127.0.0.1:$self->{port}" }
    _exit(127);
}


# samples as { labels, value }

sub query {
    my ($self, $expression) = @_;

    my $params = HTTP::Tiny->new->www_form_urlencode({query => $expression});
    my $answer = $self->get("/api/v1/query?$params");
    my $result = decode_json($answer->{content});

    die "$expression: $result->{error}" if $result->{status} ne 'success';

    return [map { { labels => $_->{metric}, value => $_->{value}[1] } }
            @{$result->{data}{result}}];
}


sub get {
    my ($self, $path) = @_;

    return HTTP::Tiny->new(timeout => PATIENCE)
                     ->get("http://127.0.0.1:$self->{port}$path");
}


sub log { return Gateway::slurp("$_[0]{dir}/log") }


sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$;

    local ($?, $@);

    if (my $pid = delete $self->{pid}) {
        kill 'KILL', $pid;
        waitpid $pid, 0;
    }

    remove_tree($self->{dir});
}


1;
