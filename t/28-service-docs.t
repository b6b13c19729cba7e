#!/usr/bin/perl

# docs/service.md: every file and command of the page, and every example that
# it names, are run.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Copy qw(copy);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use Page;
use RedisServer;
use RuleFiles;

my $root = getcwd();
my $page = Page->new('docs/service.md');
my %section = map { ($_->{title} => $_) } @{$page->{sections}};

subtest 'Rule files' => \&rule_files;
subtest $_->{title} => \&run, $_
    for grep { @{$_->{console}} } @{$page->{sections}};

done_testing();


# each is loaded, and does what the page says

sub rule_files {
    my @files = map { Page::blocks($_->{body}, 'yaml') } @{$page->{sections}};

    cmp_ok(scalar @files, '>=', 2, 'there are some');

    my %file;

    for my $text (@files) {
        my ($domain) = $text =~ /^domain: (\w+)$/m;

        $file{"$domain.yaml"} = $text;
    }

    is($file{'messaging.yaml'},
       Page::slurp('docs/examples/rules/messaging.yaml') =~ s/\A#.*\n\n//r,
       'the example is on the page');

    my $files = RuleFiles->new(%file);
    my $conf = <<"END" . Gateway->server(
ratelimit_rules $files->{dir}/*.yaml zone=rules:1m;
END
        '/' => 'ratelimit rules=shop descriptor=ip:$arg_ip; '
               . 'ratelimit rules=shop descriptor=ip:$arg_ip,'
               . 'method:$request_method;');
    my $gateway = Gateway->start(http => $conf);
    my $clients = Clients->new($gateway->{port});
    my $tally = sub {
        return Clients::tally($clients->series(map { [$_] } @_));
    };

    is_deeply($tally->(('GET /?ip=a') x 110), { 200 => 100, 429 => 10 },
              '100 for each address');
    is_deeply($tally->(('DELETE /?ip=b') x 90, ('POST /?ip=b') x 12),
              { 405 => 100, 429 => 2 }, '10 that write');
    is_deeply($tally->(('GET /?ip=192.0.2.1') x 110), { 200 => 110 },
              'as many as one address likes');

    $files->write('shop.yaml' => $file{'shop.yaml'}
                                 =~ s/unit: \Kminute/fortnight/r);
    $gateway->hup($conf);
    Gateway::await(sub { $gateway->failed }, 'the refusal of a bad file');

    my ($shown) = Page::blocks($section{'Rule files'}{body}, 'text');
    my ($said) = $gateway->log =~ /(invalid file.*)/;

    # names of files and numbers of lines aside

    is(alike($said), alike($shown =~ s/\n/ /gr), 'a bad file is refused so');
}


sub alike {
    my ($text) = @_;

    return $text =~ s{/\S+/}{}gr =~ s/\w+\.yaml/x.yaml/r =~ s/\d+/N/gr
                 =~ s/ *\z//r;
}


sub run {
    my ($part) = @_;

    my $conf = join "\n", @{$part->{conf}};

    if (defined $part->{file}) {
        my $file = Page::slurp("docs/examples/$part->{file}");

        ok(index($file, $_) >= 0, "$part->{file} has what the page has")
            for @{$part->{conf}};

        $conf = $file;
    }

    my $h2 = Gateway::free_port();
    my $redis = $conf =~ /ratelimit_redis/ ? RedisServer->start : undef;

    $conf = Page::with_paths($conf) =~ s/:8080\b/:PORT/gr
            =~ s/:8081\b/:$h2/gr =~ s{ rules/}{ $root/docs/examples/rules/}gr;
    $conf =~ s{:6379  timeout=\w+}{:$redis->{port}  timeout=5s} if $redis;

    my $gateway = Gateway->start(http => $conf);
    my $shell = Page->shell(dir => $gateway->{dir}, ports => {
        8080 => $gateway->{port}, 8081 => $h2,
    });

    copy("docs/examples/$_", "$gateway->{dir}/$_")
        for qw(client.js ratelimit.proto);

    local $ENV{NODE_PATH} = "$root/build/npm/node_modules";

    for my $step (map { Page::commands($_) } @{$part->{console}}) {

        # no window of a minute ends meanwhile

        Gateway::await(sub { time % 60 < 45 }, 'the begin of a minute');

        my @lines = $shell->result($step->{command}, $step->{lines});

        is_deeply([Page::near($step->{lines}, \@lines)], $step->{lines},
                  (split /\n/, $step->{command})[0]);
    }

    is($gateway->complaints, '', 'nothing is wrong with nginx');
}
