package Page;

# A page of docs/ whose commands are run as they stand: its "console" blocks
# have commands behind "$ ", continued behind "> ", and what they print.
#
#     my $page = Page->new('docs/recipes.md');
#     my $shell = Page->shell(dir => '/tmp', ports => {8080 => 34567});
#     my @lines = $shell->result('curl -s http://127.0.0.1:8080/', \@expected);
#
# A command has a terminal, the words that "sh" blocks define, and for ports of
# the page those of the servers that a test has started.  Left out are fields
# of nginx itself, as Server and Date.

use strict;
use warnings;

use File::Path qw(remove_tree);
use File::Temp qw(tempdir);
use Time::HiRes qw(time sleep);

use constant PATIENCE => 60;    # seconds for a line to be in a log
use constant HANG => 60;        # and for a command
use constant LATE => 120;       # and between a request and a look at its time

# of nginx and of the tests' own; and the line between head and body
my $boilerplate = qr/^(?: (?: Server|Date|Content-Type|Content-Length|Connection
                              |X-Worker|WWW-Authenticate|Last-Modified|ETag
                              |Accept-Ranges) :\ .* | ) $/x;

# what is told in seconds
my $seconds = qr/^( (?: X-RateLimit-Reset|Retry-After|X-RateLimit-Retry-After)
                    :\  | RateLimit:\ .*;t= | ngx-limit=.*;ngx-reset=
                    | \{.*"retry_after": )
                  (\d+)\}?$/x;

# what redis-cli prints of a number
my $integer = qr/^( (?: \d+\)\  )? \(integer\)\  | )(\d+)$/x;


sub new {
    my ($class, $file) = @_;

    my ($head, @parts) = split /^## (.*)\n/m, slurp($file);
    my $self = bless { intro => $head, sections => [] }, $class;

    while (my ($title, $body) = splice @parts, 0, 2) {
        push @{$self->{sections}}, section($title, $body);
    }

    return $self;
}


sub section {
    my ($title, $body) = @_;

    return {
        title => $title,
        body => $body,
        conf => [blocks($body, 'nginx')],
        sh => [blocks($body, 'sh')],
        console => [blocks($body, 'console')],
        file => $body =~ m{\]\(examples/(\S+\.conf)\)} ? $1 : undef,
    };
}


sub blocks {
    my ($text, $language) = @_;

    return $text =~ /^```\Q$language\E\n(.*?)^```$/msg;
}


# commands and what they print

sub commands {
    my ($text) = @_;

    my @found;

    for (split /\n/, $text) {
        if (/^\$ (.*)/) {
            push @found, {command => $1, lines => []};

        } elsif (/^> (.*)/) {
            $found[-1]{command} .= "\n$1";

        } else {
            push @{$found[-1]{lines}}, $_;
        }
    }

    return @found;
}


# Where commands run: words of the shell, a folder, and the port for each port
# of the page.  "redis-cli" is told the port of 6379, and that there is a terminal
# unless what it prints is for another program; "curl" shows no progress, as on a
# terminal; "nginx" is told the folder, its "-s" returns from a reload when the
# former workers have exited.  Debian's folder of logs is that of the gateway, and
# a file of conf.d its nginx.conf.

sub shell {
    my ($class, %option) = @_;

    my $self = bless {owner => $$, words => '', %option}, 'Page::Shell';

    $self->{bin} = tempdir('ratelimit-XXXXXX', TMPDIR => 1);

    program("$self->{bin}/redis-cli", <<'END'
test /proc/self/fd/1 -ef /proc/self/fd/2 && export FAKETTY=1
END
            . "exec redis-cli -p $self->{ports}{6379} \"\$@\"")
        if $self->{ports}{6379};

    program("$self->{bin}/curl", 'exec curl --no-progress-meter "$@"');

    my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';

    program("$self->{bin}/nginx", <<"END" . <<'END');
test "\$1" = -s || exec $nginx "\$@" -p "\$PWD" -c "\$PWD/nginx.conf"
END
master=$(cat nginx.pid)
former=$(cat /proc/$master/task/$master/children)
kill -HUP $master
for pid in $former; do
    while test -e /proc/$pid; do sleep 0.01; done
done
END

    return $self;
}


sub program {
    my ($path, $text) = @_;

    open my $file, '>', $path or die $!;
    print $file "#!/bin/sh\nPATH=\${PATH#*:}\n$text\n";
    close $file or die $!;
    chmod 0755, $path;
}


# a configuration or a command, with the paths of the gateway

sub with_paths {
    my ($text) = @_;

    return $text =~ s{/var/log/nginx/}{logs/}gr
                 =~ s{/etc/nginx/conf\.d/[\w.-]+}{nginx.conf}gr;
}


# a window of a period may be whole up to a tenth of it later

sub near {
    my ($expected, $lines) = @_;

    my @expected = @$expected;

    return map {
        my @others = parts(shift @expected);

        join ';', map { near_part($_, shift @others) } parts($_);
    } @$lines;
}


# at most one time in each: RateLimit may have two

sub parts {
    my ($line) = @_;

    return defined $line ? split /;(?=ngx-limit=)/, $line : ();
}


sub near_part {
    my ($part, $other) = @_;

    for my $kind (defined $other ? ($seconds, $integer) : ()) {
        my ($field, $got) = $part =~ $kind or next;
        my ($same, $shown) = $other =~ $kind or next;

        return $other if $same eq $field && alike($field, $got, $shown);
    }

    return $part;
}


# Numbers of Redis may be times in microseconds, also such that come within a
# day, or the number of a sub-window of 360 seconds, or milliseconds to go; what
# is small is a count.

sub alike {
    my ($field, $got, $shown) = @_;

    my $digits = length $shown;

    return abs($got - $shown) <= $shown * 0.12 + 1 if $field =~ /[:=] ?$/;
    return $got == $shown if $digits < 5;
    return abs($got - $shown) <= $shown * 0.12 if $field eq '(integer) ';

    my $ahead = $digits == 16 ? $got / 1e6 - time : $got * 360 - time;

    return abs($ahead) < LATE + 360 if $digits == 7;
    return $digits == 16 && $ahead > -LATE && $ahead < LATE + 86_400;
}


sub slurp {
    my ($file) = @_;

    open my $in, '<', $file or die "$file: $!";
    local $/;

    return <$in>;
}


package Page::Shell;

use Time::HiRes qw(time sleep);


# lines that a command prints; a log may be written a moment later

sub result {
    my ($self, $command, $expected) = @_;

    my $end = time + Page::PATIENCE;
    my $wanted = join "\n", @$expected;
    my @lines;

    for ( ;; ) {
        @lines = $self->output($command);

        last if $command !~ /^(?:cat|tail|grep) /;
        last if time > $end
                || join("\n", Page::near($expected, \@lines)) eq $wanted;

        sleep 0.01;
    }

    return @lines;
}


sub output {
    my ($self, $command) = @_;

    my %port = %{$self->{ports}};

    $command = Page::with_paths($command);
    $command =~ s/:$_\b/:$port{$_}/g for keys %port;

    local $ENV{SHELL} = '/bin/bash';
    local $ENV{PATH} = "$self->{bin}:$ENV{PATH}";
    local $ENV{PAGE_DIR} = $self->{dir};
    local $ENV{PAGE_COMMAND} = "$self->{words}\n$command";

    my $run = -e '/dev/ptmx' ? 'script -qec "$1" /dev/null' : 'bash -c "$1"';

    open my $pipe, '-|', 'bash', '-c', qq{exec timeout "\$0" $run < /dev/null},
         Page::HANG, 'cd "$PAGE_DIR" && exec 2>&1 < /dev/null;'
         . ' eval "$PAGE_COMMAND"'
        or die "bash: $!";

    # a terminal is shown bold names

    my @lines = map { s/\r*\n\z//r =~ s/\e\[\d+m//gr } <$pipe>;

    close $pipe;

    for my $shown (keys %port) {
        s/:$port{$shown}\b/:$shown/g for @lines;
    }

    return grep { $_ !~ $boilerplate } @lines;
}


sub DESTROY {
    my ($self) = @_;

    local ($?, $@);

    File::Path::remove_tree($self->{bin}) if $self->{owner} == $$;
}


1;
