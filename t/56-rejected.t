#!/usr/bin/perl

# "rejected=count": a client that keeps asking stays refused, by every
# algorithm; one that stops is admitted again, as soon as was said.  If this
# fails, refused requests cost nothing where they should, or refuse a client
# for good.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use FakeClock;
use Gateway;

# three at once, then three in a minute
my %algorithm = (
    sliding_window => ['rate=3r/m'],
    sliding_window_1 => ['rate=3r/m buckets=1'],
    sliding_window_60 => ['rate=3r/m buckets=60'],
    sliding_log => ['rate=3r/m algorithm=sliding_log'],
    token_bucket => ['rate=3r/m algorithm=token_bucket'],
    leaky_bucket => ['rate=3r/m algorithm=leaky_bucket', 'burst=2 nodelay'],
);

my $clock = FakeClock->new;
my $gateway = Gateway->start(workers => 2, $clock->options, http => config());
my $clients = Clients->new($gateway->{port});

subtest "$_: a client that keeps asking" => sub { knocking($_) }
    for sort keys %algorithm;
subtest "$_: a client that stops" => sub { stops($_) } for sort keys %algorithm;
subtest "$_: soft" => sub { soft($_) } for sort keys %algorithm;
subtest 'fixed_window: to the end of the window' => \&fixed_window;
subtest 'refused by another limit' => \&another;
subtest 'all that it costs' => \&cost;
subtest 'a plan' => \&plans;
subtest "$_ beside a limit that refuses" => \&beside, $_, '/beside'
    for sort keys %algorithm;
subtest "$_ before a limit that refuses" => \&beside, $_, '/before'
    for sort keys %algorithm;

subtest 'a dry run' => \&dry_run;
subtest 'a hundred at once' => \&parallel;

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub config {
    my $config = <<'END';
ratelimit_zone $arg_k zone=fixed:1m rate=3r/m algorithm=fixed_window;
ratelimit_zone $arg_k zone=log:1m rate=3r/m algorithm=sliding_log;
ratelimit_zone $arg_k zone=plan:1m rate=$arg_r;
ratelimit_zone $arg_o zone=other:1m rate=1r/h;
ratelimit_zone $arg_o zone=short:1m rate=1r/10s algorithm=sliding_log;

add_header X-Status $ratelimit_status always;
END
    my %location = (
        '/fixed' => 'ratelimit zone=fixed rejected=count;',
        '/one' => 'ratelimit zone=log rejected=count; ratelimit zone=other;',
        '/two' => 'ratelimit zone=other; ratelimit zone=log rejected=count;',
        '/forgiving' => 'ratelimit zone=log; ratelimit zone=other;',
        '/log' => 'ratelimit zone=log;',
        '/cost' => 'ratelimit zone=log rejected=count cost=$arg_c;',
        '/plan' => 'ratelimit zone=plan rejected=count;',
        '/dry' => 'ratelimit zone=log rejected=count; ratelimit_dry_run on;',
    );

    for my $name (sort keys %algorithm) {
        my ($zone, $limit) = (@{$algorithm{$name}}, '');

        $config .= "ratelimit_zone \$arg_k zone=$name:1m $zone;\n";
        $location{"/strict/$name"} =
            "ratelimit zone=$name $limit rejected=count;";
        $location{"/forgiving/$name"} = "ratelimit zone=$name $limit;";
        $location{"/beside/$name"} = "ratelimit zone=short;
            ratelimit zone=$name $limit rejected=count;";
        $location{"/before/$name"} = "ratelimit zone=short after_auth;
            ratelimit zone=$name $limit rejected=count;";
        $location{"/soft/$name"} =
            "ratelimit zone=$name $limit soft=100% rejected=count;";
    }

    return $config . Gateway->server(%location);
}


sub statuses {
    return join ' ', map { $_->{status} }
                     $clients->series(map { ["GET $_"] } @_);
}


# what the refused request has used up is waited for, too

sub beside {
    my ($name, $where) = @_;

    my $uri = "$where/$name?k=$where-$name&o=$where-$name";
    my @answers = $clients->series((["GET $uri"]) x 3);

    is(join(' ', map { $_->{status} } @answers), '200 429 429',
       'the short limit refuses');
    cmp_ok($answers[1]{field}{'retry-after'}, '<=', 10, 'and says so');
    cmp_ok($answers[1]{field}{'retry-after'}, '>', 0, 'for a while');

    my $wait = $answers[2]{field}{'retry-after'};

    cmp_ok($wait, '>', 10, 'then the other one has nothing left');
    like($answers[2]{body}, qr/"short"/, 'both are named');
    like($answers[2]{body}, qr/"$name"/, 'in the body');
    $clock->forward($wait);
    is(statuses($uri), '200', 'a client that waits so long is admitted');
}


# once in so many seconds

sub knock {
    my ($uri, $times, $seconds) = @_;

    return join ' ', map {
        $clock->forward($seconds);
        $clients->ask("GET $uri")->{status};
    } 1 .. $times;
}


sub knocking {
    my ($name) = @_;

    for my $kind (qw(strict forgiving)) {
        my $uri = "/$kind/$name?k=$kind";

        is(statuses(($uri) x 4), '200 200 200 429', "$kind: three pass");
    }

    # in step, so that both see the same times

    my ($strict, $forgiving) = (0, 0);

    for (1 .. 25) {
        $clock->forward(10);

        $strict++
            if statuses("/strict/$name?k=strict") == 200;
        $forgiving++
            if statuses("/forgiving/$name?k=forgiving") == 200;
    }

    is($strict, 0, 'a client that keeps asking stays refused');
    cmp_ok($forgiving, '>=', 6, 'without rejected=count it does not');
    cmp_ok($forgiving, '<=', 15, 'but for the limit');
}


sub stops {
    my ($name) = @_;

    my $uri = "/strict/$name?k=stops";

    statuses(($uri) x 3);
    is(knock($uri, 10, 1), join(' ', (429) x 10), 'ten knocks');

    my $answer = $clients->ask("GET $uri");
    my $seconds = $answer->{field}{'retry-after'};

    # a client that has used up its limit now

    statuses(("/strict/$name?k=now") x 3);

    my $most = $clients->ask("GET /forgiving/$name?k=now")
                       ->{field}{'retry-after'};

    cmp_ok($seconds, '>', 10, 'there is a while to wait');
    cmp_ok($seconds, '<=', 120, 'but not for ever') if $name =~ /window/;
    cmp_ok($seconds, '<=', $most, 'as for any other') if $name !~ /window/;

    $clock->forward($seconds);
    is($clients->ask("GET $uri")->{status}, 200, 'then it passes');

    $clock->forward(3600);
    is(statuses(($uri) x 4), '200 200 200 429', 'and all is forgotten');
}


sub soft {
    my ($name) = @_;

    my @answers = $clients->series((["GET /soft/$name?k=soft"]) x 9);

    is(join(' ', map { $_->{field}{'x-status'} } @answers),
       join(' ', ('PASSED') x 3, ('SOFT') x 3, ('REJECTED') x 3),
       'the ceiling is where it was');
    is(knock("/soft/$name?k=soft", 20, 5), join(' ', (429) x 20),
       'a client that keeps asking stays refused');
}


sub fixed_window {

    # to the first second of a minute

    $clock->forward(60 - $clock->now % 60 + 1);

    is(statuses(('/fixed?k=a') x 3), '200 200 200', 'three pass');
    is(knock('/fixed?k=a', 5, 10), join(' ', (429) x 5), 'none until the end');

    $clock->forward(10);
    is(statuses(('/fixed?k=a') x 4), '200 200 200 429', 'a new one is new');
}


# "other" refuses; what "log" counts of that is another question

sub another {
    for my $uri (qw(/one /two /forgiving)) {
        my $k = "k=another$uri&o=another$uri";

        is(statuses(("$uri?$k") x 3), '200 429 429', "$uri: one passes");
        is(statuses(("/log?$k") x 3),
           $uri eq '/forgiving' ? '200 200 429' : '429 429 429',
           'and the others count where it was said');
    }
}


sub cost {
    is(statuses('/cost?k=a&c=1', '/cost?k=a&c=3', '/cost?k=a&c=1'),
       '200 429 429', 'three more than there were');
    is(statuses('/cost?k=b&c=0', '/cost?k=b&c=3', '/cost?k=b&c=0',
                '/cost?k=b&c=1', '/cost?k=b&c=0'),
       '200 200 200 429 200', 'nothing costs nothing');
}


sub plans {
    is(statuses(('/plan?k=a&r=2r/m') x 3), '200 200 429', 'two');
    is(knock('/plan?k=a&r=2r/m', 15, 15), join(' ', (429) x 15),
       'a client that keeps asking stays refused');
}


sub dry_run {
    my @answers = map {
        $clock->forward(10);
        $clients->ask('GET /dry?k=dry');
    } 1 .. 12;

    is(join(' ', map { $_->{field}{'x-status'} } @answers),
       join(' ', ('PASSED') x 3, ('REJECTED_DRY_RUN') x 9),
       'it says what would be');
}


sub parallel {
    my @all = map { $clients->send('GET /strict/sliding_log?k=all') } 1 .. 100;

    Clients::await_answers(100, @all);

    is_deeply(Clients::tally(map { $_->{answers}[0] } @all),
              { 200 => 3, 429 => 97 }, 'three pass');
    is(knock('/strict/sliding_log?k=all', 15, 15), join(' ', (429) x 15),
       'a client that keeps asking stays refused');
}
