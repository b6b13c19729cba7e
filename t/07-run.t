#!/usr/bin/perl

# "make run" as a newcomer sees it: the gateway starts, what is printed can be
# typed and is true, Ctrl-C leaves nothing behind, and a port that is taken is
# named.

use strict;
use warnings;

use HTTP::Tiny;
use IO::Socket::INET;
use POSIX qw(setsid WNOHANG);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Browser;
use Ports qw(free_port);

use constant FIRST => 600;    # seconds to build and to start
use constant AGAIN => 60;     # to start when built, to stop

my $log = 'build/run.log';
my $group;

# of the make that runs the tests
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES)};

$ENV{LC_ALL} = 'C';

mkdir 'build';

my $port = free_port();
my $url = "http://127.0.0.1:$port";


subtest 'the gateway' => sub {
    start(FIRST) or done();

    my $text = slurp($log);

    like($text, qr{\A\N*\Q$url/\E}, 'says first where to look');

    my ($curl) = $text =~ /^ +(curl -i .*)$/m;
    my $answer = `$curl 2> /dev/null`;

    like($answer, qr{^HTTP/1\.1 200 }, "$curl: admitted");
    like($answer, qr/^X-RateLimit-Limit: 10\r$/m, 'the limit');
    like($answer, qr/^X-RateLimit-Remaining: 9\r$/m, 'what is left');
    like($answer, qr/^X-RateLimit-Reset: \d+\r$/m, 'when it is whole again');
    unlike($answer, qr/^Retry-After:/m, 'no need to wait');

    my ($loop) = $text =~ /^( +for .*?done)$/ms;

    is(join(' ', split /\n/, bash($loop)), join(' ', (200) x 9, (429) x 3),
       'the loop: the tenth request is the last one');

    refused("$url/api/hello");
};


subtest 'a limit of its own' => sub {
    my @status = map { get("$url/login")->{status} } 1 .. 6;

    is("@status", '200 200 200 200 200 429', '5 for /login');
    refused("$url/login");
};


subtest 'a taken port' => sub {
    my $text = `make run PORT=$port 2>&1 < /dev/null`;

    isnt($?, 0, 'is an error');
    like($text, qr/port $port is taken/, 'that names the port');
    like($text, qr/make run PORT=\d+/, 'and says what to do');

    is(get("$url/")->{status}, 200, 'its owner is not disturbed');

    $text = `make run PORT=http 2>&1 < /dev/null`;

    isnt($?, 0, 'what is not a port');
    like($text, qr/PORT=http is not a port/, 'is told so');
};


subtest 'Ctrl-C' => sub { stopped('INT') };


subtest 'once more' => sub {
    start(AGAIN) or done();

    browse();

    stopped('TERM');
};


done_testing();


# what a newcomer sees and clicks

sub browse {
    my $page = Browser->start->open("$url/");
    my %button = ('/api/hello' => [10, 10], '/login' => [5, 2]);

    for my $path (sort keys %button) {
        my ($admitted, $refused) = @{$button{$path}};

        $page->click("[data-path='$path']");
        $page->wait("document.querySelector('#result').innerText"
                    . ".endsWith('\\u00a0s.')");
        like($page->text('#result'),
             qr/^$path: (?:200 ){$admitted}(?:429 ){$refused}\S+ $admitted/,
             "$path: nothing is left of the counters");
        like($page->text('#result'), qr/, $refused refused; try again in \d+\xa0s/,
             'what is refused, and until when');
    }

    until_true(AGAIN, sub {
        $page->inner('document.title') =~ m{/s refused };
    });
    like($page->inner('document.title'), qr{/s refused }, 'the live page');
}


# without a gateway there is nothing more to see

sub done {
    fail('the gateway does not start');
    done_testing();
    exit(1);
}


# a terminal's foreground job is a process group, which gets its Ctrl-C

sub start {
    my ($seconds) = @_;

    my $begin = time;

    unlink($log);

    $group = fork() // die "fork: $!";

    if ($group == 0) {
        $SIG{INT} = $SIG{TERM} = 'DEFAULT';
        setsid();
        open(STDIN, '<', '/dev/null');
        open(STDOUT, '>', $log);
        open(STDERR, '>&', \*STDOUT);
        exec('make', 'run', "PORT=$port") or exit 1;
    }

    my $up = until_true($seconds, sub {
        slurp($log) =~ /Ctrl-C/ || waitpid($group, WNOHANG) != 0;
    });

    $up = $up && slurp($log) =~ /Ctrl-C/;

    ok($up, sprintf('starts within %d s', $seconds)) or diag(slurp($log));
    note(sprintf('it took %.1f s', time - $begin));

    return $up;
}


sub stopped {
    my ($signal) = @_;

    kill($signal, -$group);

    ok(until_true(AGAIN, sub { waitpid($group, WNOHANG) != 0 }),
       "$signal ends it");
    ok(until_true(AGAIN, sub { !kill(0, -$group) }), 'no process is left');
    undef $group;

    ok(!connected($port), 'nothing listens');
    ok(!-e 'build/run', 'no file is left');
    unlike(slurp($log), qr/\[(?:emerg|alert|crit)\]|nginx did not start/,
           'nothing went wrong');
}


sub refused {
    my ($where) = @_;

    my $answer = get($where);
    my $headers = $answer->{headers};

    is($answer->{status}, 429, "$where: refused");
    is($headers->{'x-ratelimit-remaining'}, 0, 'nothing is left');
    like($headers->{'retry-after'}, qr/^[1-9]\d?$/, 'when to come again');
    like($headers->{'content-type'}, qr{^application/problem\+json},
         'and why');
}


sub get {
    my ($where) = @_;

    return HTTP::Tiny->new(timeout => AGAIN)->get($where);
}


sub bash {
    my ($script) = @_;

    open(my $fh, '-|', 'bash', '-c', $script) or die "bash: $!";
    local $/;

    return scalar(<$fh>) // '';
}


sub until_true {
    my ($seconds, $condition) = @_;

    my $end = time + $seconds;

    while (time < $end) {
        return 1 if $condition->();
        sleep(0.05);
    }

    return 0;
}


sub connected {
    my ($to) = @_;

    return IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $to);
}


sub slurp {
    my ($path) = @_;

    open(my $fh, '<', $path) or return '';
    local $/;

    return scalar(<$fh>) // '';
}


END {
    kill('KILL', -$group) if $group;
}
