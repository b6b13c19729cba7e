#!/usr/bin/perl

# Rule files in Redis, and over reloads.  If this fails, a fleet counts apart,
# limits that need not allow are not passed over, or a bad file stops a gateway
# that was running.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use Registry qw(algorithms);
use RedisServer;
use RuleFiles;

my $redis = RedisServer->start;
my $files = RuleFiles->new('auth.yaml' => auth(3), 'modes.yaml' => <<'END');
domain: modes
descriptors:
  - { key: shadow, shadow_mode: true,
      rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: ordinary, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: small, quota_mode: true,
      rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: large, quota_mode: true,
      rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: never, rate_limit: { unit: month, requests_per_unit: 0 } }
END

subtest 'in shared memory, over reloads' => \&reloads;
subtest "in Redis, by $_" => \&in_redis, $_ for algorithms();
subtest 'without Redis' => \&without_redis;
subtest 'two gateways' => \&two_gateways;
subtest 'a rule that becomes another' => \&renamed;

done_testing();


sub auth {
    my ($limit, $more) = @_;

    return <<"END" . ($more // '');
domain: auth
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: $limit } }
END
}


sub config {
    my ($zone, $size) = @_;

    my $dir = $files->{dir};
    my $rules = 'ratelimit rules=modes';

    return <<"END" . Gateway->server(
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s
                connect_timeout=5s;
ratelimit_rules $dir/*.yaml zone=rules:1m $zone;
ratelimit_zone \$arg_k zone=plain:1m rate=2r/d algorithm=fixed_window;
add_header X-Decided "\$ratelimit_status \$ratelimit_backend" always;
END
        '/auth' => 'ratelimit rules=auth descriptor=user:$arg_u;',
        '/shadow' => "$rules descriptor=shadow:\$arg_s;"
                     . " $rules descriptor=ordinary:\$arg_o;",
        '/quota' => "$rules descriptor=small:\$arg_k;"
                    . " $rules descriptor=large:\$arg_k;",
        '/never' => "$rules descriptor=never:\$arg_k;",
        '/both' => "ratelimit zone=plain; $rules descriptor=shadow:\$arg_s;"
                   . " $rules descriptor=ordinary:\$arg_o;");
}


sub statuses {
    my ($clients, @requests) = @_;

    return join ' ', map { $_->{status} }
                     $clients->series(map { ["GET $_"] } @requests);
}


sub reloads {
    my $gateway = Gateway->start(workers => 2,
                                 http => config('algorithm=fixed_window'));
    my $clients = Clients->new($gateway->{port});

    is(statuses($clients, ('/auth?u=a') x 4), '200 200 200 429',
       'three a day');

    $files->write('auth.yaml' => auth(5));
    $gateway->reload(config('algorithm=fixed_window'));

    is(statuses($clients, ('/auth?u=a') x 3), '200 200 429',
       'two more when five are allowed');

    $files->write('auth.yaml' => auth(5, "  - { key: user, rate: 5 }\n"));
    $gateway->hup(config('algorithm=fixed_window'));
    Gateway::await(sub { $gateway->failed }, 'the refusal of a bad file');

    like($gateway->log, qr/\[emerg\] .*auth\.yaml" in "ratelimit_rules" directive, line 4, column 18: config error, unknown key 'rate'/,
         'a bad file is refused');
    is(statuses($clients, '/auth?u=a', ('/auth?u=b') x 6),
       '429 200 200 200 200 200 429', 'and the former rules go on');

    $files->write('auth.yaml' => auth(2));
    $gateway->reload(config('algorithm=fixed_window'));

    is(statuses($clients, '/auth?u=b', ('/auth?u=c') x 3), '429 200 200 429',
       'until there are better ones');

    $gateway->reload(config('algorithm=fixed_window') =~ s/rules:1m/rules:2m/r);

    is(statuses($clients, '/auth?u=c'), '429', 'in a larger zone, too');

    $files->write('auth.yaml' => auth(3));
    like($gateway->log, qr/signal process started|reconfiguring/, 'reloaded');
}


sub in_redis {
    my ($algorithm) = @_;

    $redis->call('FLUSHALL');

    my $gateway = Gateway->start(workers => 2,
                                 http => config("redis=main fail=closed"
                                                . " algorithm=$algorithm"));
    my $clients = Clients->new($gateway->{port});

    # a leaky bucket without a burst has room for one

    my $one = $algorithm eq 'leaky_bucket';

    is(statuses($clients, ('/auth?u=a') x 4),
       $one ? '200 429 429 429' : '200 200 200 429', 'a limit');
    is(statuses($clients, ('/never?k=a') x 2), '429 429', 'no request');

    my @answers = $clients->series((['GET /shadow?s=a&o=a']) x 4);

    is(join(' ', map { $_->{status} } @answers),
       $one ? '200 429 429 429' : '200 200 200 429', 'shadow mode');
    is_deeply([map { $_->{field}{'x-decided'} } @answers],
              ['PASSED redis', $one ? ('REJECTED redis') x 2
               : ('REJECTED_DRY_RUN redis') x 2, 'REJECTED redis'],
              'as its status says');

    is(statuses($clients, ('/shadow?s=b') x 3), '200 200 200',
       'shadow mode alone');
    is(statuses($clients, ('/quota?k=a') x 4),
       $one ? '200 429 429 429' : '200 200 200 429', 'quota mode');
    is(statuses($clients, ('/both?k=a&s=a') x 3), '200 200 429',
       'beside a limit in shared memory, charged once each');

    is($gateway->complaints, '', 'nothing to complain about');
}


sub without_redis {
    my $port = Gateway::free_port();
    my $conf = config('redis=main algorithm=fixed_window')
               =~ s/(127\.0\.0\.1:)$redis->{port}/$1$port/r;

    my $gateway = Gateway->start(http => $conf);
    my $clients = Clients->new($gateway->{port});
    my @answers = $clients->series((['GET /shadow?s=a&o=a']) x 4);

    is(join(' ', map { $_->{status} } @answers), '200 200 200 429',
       'limited in shared memory');
    is_deeply([map { $_->{field}{'x-decided'} } @answers],
              ['PASSED local', ('REJECTED_DRY_RUN local') x 2,
               'REJECTED local'], 'as the status says');

    $gateway->reload($conf =~ s/redis=main/redis=main fail=closed/r);
    is(statuses($clients, '/shadow?s=b&o=b'), '503', 'or refused');

    $gateway->reload($conf =~ s/redis=main/redis=main fail=open/r);
    is(statuses($clients, ('/shadow?s=a&o=a') x 2), '200 200', 'or admitted');
}


sub two_gateways {
    $redis->call('FLUSHALL');

    my $conf = config('redis=main algorithm=fixed_window fail=closed');
    my @gateways = map { Gateway->start(http => $conf) } 1, 2;
    my ($one, $two) = map { Clients->new($_->{port}) } @gateways;

    is(statuses($one, ('/auth?u=a') x 2), '200 200', 'two here');
    is(statuses($two, ('/auth?u=a') x 2), '200 429', 'one there');

    my @keys = $redis->keys;

    is_deeply(\@keys, ['ratelimit:{2:user:a}:rules:auth.user:86400f'],
              'the counter is known by descriptor and rule')
        or diag(explain \@keys);
}


# a value that gets a rule of its own counts from the beginning

sub renamed {
    $redis->call('FLUSHALL');

    my $conf = config('redis=main algorithm=fixed_window fail=closed');
    my $gateway = Gateway->start(http => $conf);
    my $clients = Clients->new($gateway->{port});

    is(statuses($clients, ('/auth?u=a') x 4), '200 200 200 429', 'before');

    $files->write('auth.yaml' => auth(3, "  - { key: user, value: a, rate_limit:"
                                         . " { unit: day, requests_per_unit: "
                                         . "1 } }\n"));
    $gateway->reload($conf);
    is(statuses($clients, ('/auth?u=a') x 2), '200 429', 'after');
    $files->write('auth.yaml' => auth(3));
}
