#!/usr/bin/perl

# What "nginx -t" says of "ratelimit_redis" and of zones that name one: every
# kind of error, word for word with the line that is to blame, and every
# spelling that must be accepted.  Nothing that nginx prints or logs, at debug
# level either, has a password in it.
#
# All passwords are of the word $secret.

use strict;
use warnings;

use POSIX qw(mkfifo);
use Test::More;

use lib 't/lib';
use Certificates;
use Configuration;
use Gateway;
use RedisServer;

my $secret = 'hunter2';

$ENV{LC_ALL} = 'C';

my $d = 'ratelimit_redis';
my $server = "server { listen unix:$dir/socket;";

# all that nginx has said so far
my $said = '';

my $begin = 'must begin with "redis://", "rediss://" or "unix:/"';
my $missing = 'the host is missing';
my $host = 'the host has a character that is not allowed';
my $ipv4 = 'the host is not an IPv4 address';
my $ipv6 = 'the host is not an IPv6 address';
my $port = 'the port must be a number from 1 to 65535';
my $db = 'the database must be a number from 0 to 65535';
my $hex = 'a "%" before the "@" must have two hexadecimal digits after it';
my $slash = 'a "/" before the "@" must be written as "%2F"';
my $path = 'the path of the socket must begin with "/"';
my $time = 'must be a time from 1ms to 1h';
my $later = 'is not supported yet';
my $number = 'must be a number from 1 to 64';
my $letters = 'must consist of letters, digits, "_", "-" and "."';

# what is written, what of it is shown if not all, and what is wrong

my @urls = (
    ['x',                           undef, $begin],
    ['""',                          '', $begin],
    ['timeout=50ms',                undef, $begin],
    ['http://h',                    undef, $begin],
    ['Redis://h',                   undef, $begin],
    ['redis:/h',                    'redis:***', $begin],
    ['127.0.0.1:6379',              undef, $begin],
    ["alice:$secret\@h:6379",       '***@h:6379', $begin],
    ["alice:$secret",               'alice:***', $begin],
    ["http://alice:$secret\@h",     'http://***@h', $begin],
    ['redis://',                    undef, $missing],
    ['redis://:6379',               'redis://:***', $missing],
    ["redis://:$secret",            'redis://:***', $missing],
    ["redis://alice:$secret\@",     'redis://***@', $missing],
    ['"redis://a b"',               'redis://a b', $host],
    ['redis://h?db=1',              undef, $host],
    ['redis://$arg_h',              undef, $host],
    ['redis://127.0.0.256',         undef, $ipv4],
    ['redis://1.2.3',               undef, $ipv4],
    ['redis://12:6379',             undef, $ipv4],
    ['redis://[::1',                undef, 'the "]" after the host is missing'],
    ['redis://[::g]',               undef, $ipv6],
    ['redis://[1:2]',               undef, $ipv6],
    ['redis://[::1::2]:6379',       undef, $ipv6],
    ['redis://[::1]6379',           undef, $port],
    ['redis://h:',                  'redis://h:', $port],
    ['redis://h:0',                 undef, $port],
    ['redis://h:65536',             'redis://h:***', $port],
    ['redis://h:x',                 'redis://h:***', $port],
    ["redis://alice:$secret",       'redis://alice:***', $port],
    ["redis://alice:$secret/0",     'redis://alice:***', $port],
    ["redis://alice:$secret\@h:x",  'redis://***@h:x', $port],
    ['redis://h/x',                 undef, $db],
    ['redis://h:6379/-1',           undef, $db],
    ['redis://h/65536',             undef, $db],
    ['redis://h/0/1',               undef, $db],
    ["redis://:$secret\@h/x",       'redis://***@h/x', $db],
    ['redis://@h',                  undef, 'there is nothing before the "@"'],
    ['redis://alice:@h',            'redis://***@h', 'the password is empty'],
    ["redis://alice:%$secret\@h",   'redis://***@h', $hex],
    ["redis://alice:$secret%4\@h",  'redis://***@h', $hex],
    ["redis://alice:$secret/\@h",   'redis://***@h', $slash],
    ["redis://alice:/$secret\@h",   'redis://***@h', $slash],
    ['unix:',                       'unix:', $path],
    ['unix:redis.sock',             'unix:***', $path],
    ["unix:alice:$secret\@h",       '***@h', $path],
    ['unix:/r?x=1',                 undef,
                        'only "db=" may follow the path of the socket'],
    ['unix:/r?db=x',                undef, $db],
    ['unix:/' . 'x' x 107,          undef,
                        'the path of the socket is too long'],
    ['redis://' . 'x' x 254,        undef, 'the host is too long'],
    ['rediss://',                   undef, $missing],
    ["rediss://:$secret\@h:x",      'rediss://***@h:x', $port],
);

my @parameters = (
    map({ my $name = $_;
          map { ["$name=$_", $time] }
              '', '0', '0ms', '-1', 'x', '1.5s', '50xs', '1h1ms', '2h',
              '1d', '99999999999999999999s', '$arg_a' }
        qw(timeout connect_timeout)),
    map({ ["connections=$_", $number] }
        '', '0', '-1', '+1', '65', '1.5', 'x', '99999999999999999999', '1k'),
    ['password_file=',              'must not be empty'],
    ['password_file=$arg_a',        'must not contain variables'],
    ['"prefix={"',                  'must not contain "{" or "}"'],
    ['"prefix=a}b"',                'must not contain "{" or "}"'],
    ['prefix=$arg_a',               'must not contain variables'],
    ["\"prefix=a\nb\"",             'must not contain control characters'],
    ["\"prefix=\177\"",             'must not contain control characters'],
    ['prefix=' . 'x' x 129,         'is longer than 128 bytes'],
);

subtest 'URLs' => sub {
    for my $case (@urls) {
        my ($url, $shown, $reason) = @$case;

        $shown //= $url =~ s/^"(.*)"$/$1/sr;

        bad("$d main $url;", $url,
            qq(invalid URL "$shown" in "$d" directive: $reason));
    }
};

# no name has such a part, so no name server is asked

subtest 'hosts' => sub {
    my $name = 'x' x 64;

    bad("$d main redis://:$secret\@$name;  # here\n\n", 'unknown',
        qq(host not found in "$name" of the "$d" directive));
};

subtest 'parameters' => sub {
    my $known = must_be(qw(timeout= connect_timeout= connections=
                           password_file= prefix= cluster sentinel= sentinel_user=
                           sentinel_password_file= sentinel_ssl= ssl_ca=
                           ssl_certificate= ssl_certificate_key= ssl_name=
                           ssl_verify= ssl_protocols= ssl_ciphers=));

    for my $case (@parameters) {
        my ($text, $reason) = @$case;

        my $shown = $text =~ s/^"(.*)"$/$1/sr;

        bad("$d main redis://127.0.0.1 $text;", $text,
            qq(invalid parameter "$shown" in "$d" directive: $reason));
    }

    for my $unknown ('foo', 'foo=1', 'Timeout=5ms', 'timeout', 'prefix', 'off',
                     '=5', 'redis=x', 'cluster=x', 'clusters', 'sentinel',
                     'ssl_x=1', 'h')
    {
        bad("$d main redis://127.0.0.1 $unknown;", "unknown $unknown",
            qq(invalid parameter "$unknown" in "$d" directive: $known));
    }

    bad("$d main redis://127.0.0.1 \"\";", 'an empty one',
        qq(invalid parameter "" in "$d" directive: $known));
    bad("$d main redis://127.0.0.1 alice:$secret;", 'half a URL',
        qq(invalid parameter "alice:***" in "$d" directive: $known));
    bad("$d main redis://127.0.0.1 alice:$secret\@h;", 'more of a URL',
        qq(invalid parameter "***\@h" in "$d" directive: $known));
    bad("$d main redis://127.0.0.1 password=$secret;", 'a password',
        qq(invalid parameter "password=***" in "$d" directive: $known));

    for my $twice (qw(timeout=5ms connect_timeout=5ms connections=5 prefix=x
                      password_file=x cluster sentinel=x sentinel_user=x
                      sentinel_password_file=x ssl_ca=x
                      ssl_certificate=x ssl_certificate_key=x ssl_name=x
                      ssl_verify=off ssl_protocols=x ssl_ciphers=x))
    {
        bad("$d main redis://127.0.0.1 $twice $twice;", "$twice twice",
            qq(invalid parameter "$twice" in "$d" directive: is duplicate));
    }

    for my $urls ('redis://g', "redis://:$secret\@g", 'unix:/g', 'x://y',
                  'redis://g redis://f')
    {
        bad("$d main redis://127.0.0.1 $urls timeout=5ms;", "$urls, too",
            qq(several URLs in "$d" directive need "cluster" or )
            . '"sentinel=NAME"');
    }

    bad("$d main redis://127.0.0.1 timeout=5ms redis://:$secret\@g;",
        'a URL after a parameter',
        qq(invalid parameter "redis://***\@g" in "$d" directive: )
        . 'a URL must come before all parameters');
};

subtest 'sentinels' => sub {
    my $seeds = "$d main redis://127.0.0.1:1";

    for my $case (
        ['sentinel=',               'must not be empty'],
        ['sentinel=a:b',            $letters],
        ['sentinel=$arg_a',         $letters],
        ['sentinel_user=',          'must not be empty'],
        ['sentinel_user=$a',        'must not contain variables'],
        ['sentinel_user=a',         'needs "sentinel=NAME"'],
        ['sentinel_password_file=', 'must not be empty'],
        ['sentinel_password_file=a', 'needs "sentinel=NAME"'],
        ['sentinel_ssl=on',         'needs "sentinel=NAME"'],
        ['sentinel_ssl=off',        'needs "sentinel=NAME"'],
        ['sentinel_ssl=1',          'must be "on" or "off"'],
    ) {
        my ($text, $reason) = @$case;

        bad("$seeds $text;", $text,
            qq(invalid parameter "$text" in "$d" directive: $reason));
    }

    bad("$seeds sentinel=m sentinel_user=a;", 'a user without a password',
        qq(invalid parameter "sentinel_user=a" in "$d" directive: )
        . 'needs "sentinel_password_file=PATH"');
    bad("$seeds sentinel=m sentinel_password_file=$dir/none;",
        'a file that is not there',
        qq(password file "$dir/none" in "$d" directive cannot be read )
        . '(2: No such file or directory)');

    my $same = 'must have the user, the password and the database of the '
               . 'first URL';

    for my $case (
        ['unix:/g',                 'a sentinel, and a node of a cluster, '
                                    . 'must have a host and a port'],
        ['redis://127.0.0.1:1',     'has the host and port of another URL'],
        ['redis://127.0.0.1:2/1',   $same],
        ["redis://:$secret\@127.0.0.1:2", $same],
        ["redis://u:$secret\@127.0.0.1:2", $same],
        ['http://127.0.0.1',        $begin],
        ['rediss://127.0.0.1:2',    'must begin with "redis://" as the first '
                                    . 'URL'],
    ) {
        my ($url, $reason) = @$case;
        my $shown = $url =~ s/(?<=\/)[^\/]*\@/***@/r;

        bad("$seeds $url sentinel=m;", "and $url",
            qq(invalid URL "$shown" in "$d" directive: $reason));
    }
};

subtest 'clusters' => sub {
    my $seeds = "$d main redis://127.0.0.1:1";
    my $seed = 'a sentinel, and a node of a cluster, must have a host and a '
               . 'port';

    bad("$seeds cluster sentinel=m;", 'a sentinel of a cluster',
        qq(invalid parameter "sentinel=m" in "$d" directive: )
        . 'conflicts with "cluster"');
    bad("$seeds sentinel=m cluster;", 'in another order',
        qq(invalid parameter "sentinel=m" in "$d" directive: )
        . 'conflicts with "cluster"');
    bad("$seeds cluster sentinel_user=u;", 'a user of sentinels',
        qq(invalid parameter "sentinel_user=u" in "$d" directive: )
        . 'needs "sentinel=NAME"');
    bad("$d main redis://127.0.0.1:1/1 cluster;", 'a database',
        qq(invalid URL "redis://127.0.0.1:1/1" in "$d" directive: )
        . 'a cluster has only the database 0');
    bad("$d main unix:/a cluster;", 'a socket',
        qq(invalid URL "unix:/a" in "$d" directive: $seed));
    bad("$seeds redis://127.0.0.1:1/0 cluster;", 'twice',
        qq(invalid URL "redis://127.0.0.1:1/0" in "$d" directive: )
        . 'has the host and port of another URL');
    bad("$seeds redis://:$secret\@127.0.0.1:2 cluster;", 'another password',
        qq(invalid URL "redis://***\@127.0.0.1:2" in "$d" directive: )
        . 'must have the user, the password and the database of the first URL');
};

subtest 'names' => sub {
    bad("$d;", 'nothing', qq(invalid number of arguments in "$d" directive));
    bad("$d redis://alice:$secret\@h;", 'only a URL',
        qq(invalid number of arguments in "$d" directive));
    bad("$d main;", 'only a name',
        qq(invalid number of arguments in "$d" directive));

    for my $case (
        ['""',                      '', 'must not be empty'],
        ['a:b',                     'a:***', $letters],
        ['"a b"',                   'a b', $letters],
        ['$arg_a',                  '$arg_a', $letters],
        ["a\x{fc}",                 "a\x{fc}", $letters],
        ["redis://:$secret\@h",     'redis://***@h', $letters],
    ) {
        my ($name, $shown, $reason) = @$case;

        bad("$d $name redis://127.0.0.1;", "named $name",
            qq(invalid name "$shown" in "$d" directive: $reason));
    }

    bad("$d main redis://127.0.0.1;\n$d main redis://g;", 'the same name',
        qq(invalid name "main" in "$d" directive: is duplicate));

    for my $place ('server', 'location') {
        my $inner = $place eq 'server' ? '' : 'location / {';

        bad("$server $inner $d main redis://:$secret\@h;  # here\n"
            . ($inner ? '} }' : '}'), "in a $place",
            qq("$d" directive is not allowed here));
    }
};

subtest 'password files' => sub {
    my $text = sub { "$d main redis://127.0.0.1 password_file=$_[0];" };
    my $file = "password file \"%s\" in \"$d\" directive %s";
    my $gone = 'cannot be read (2: No such file or directory)';

    write_file("$dir/password", "$secret\n");
    write_file("$dir/empty", '');
    write_file("$dir/newline", "\n");
    write_file("$dir/crlf", "\r\n");
    write_file("$dir/long", $secret x 700);
    write_file("$dir/longest", 'x' x 4096 . "\n");
    write_file("$dir/one", 'x' x 4097);
    write_file("$dir/lines", "$secret\n$secret\n");
    mkfifo("$dir/fifo", 0600) or die "mkfifo: $!";
    symlink('loop', "$dir/loop") or die "symlink: $!";

    for my $case (
        ["$dir/none",               undef, $gone],
        ['none',                    "$dir/none", $gone],
        ["$dir/password/x",         undef,
                                    'cannot be read (20: Not a directory)'],
        ["$dir/loop",               undef,
                     'cannot be read (40: Too many levels of symbolic links)'],
        [$dir,                      undef, 'is not a regular file'],
        ["$dir/fifo",               undef, 'is not a regular file'],
        ['/dev/zero',               undef, 'is not a regular file'],
        ["$dir/empty",              undef, 'is empty'],
        ["$dir/newline",            undef, 'is empty'],
        ["$dir/crlf",               undef, 'is empty'],
        ["$dir/long",               undef, 'is longer than 4096 bytes'],
        ["$dir/one",                undef, 'is longer than 4096 bytes'],
        ["$dir/lines",              undef, 'has more than one line'],
    ) {
        my ($path, $shown, $reason) = @$case;

        bad($text->($path), $path, sprintf($file, $shown // $path, $reason));
    }

    bad("$d main redis://:$secret\@h password_file=$dir/password;",
        'beside a password',
        qq(invalid parameter "password_file=$dir/password" in "$d" )
        . 'directive: conflicts with the password of the URL');

    bad("$d main redis://alice\@h;", 'a user alone',
        qq("$d" "main" has a user but no password));

    good($text->($_), $_) for "$dir/password", 'password', "$dir/longest";
    good("$d main redis://alice\@127.0.0.1 password_file=password;",
         'with a user');
    good("$d main unix:/r password_file=password;", 'of a socket');
};

subtest 'TLS' => sub {
    my $made = Certificates->new;
    my $in = $made->{dir};
    my $h = "$d main rediss://127.0.0.1";
    my $gone = 'cannot be read (2: No such file or directory)';

    $made->issue($_) for qw(a b);
    write_file("$in/text", "no certificate\n");
    write_file("$in/cut.pem", substr(Gateway::slurp("$in/a.pem"), 0, 200));
    write_file("$in/bad.pem", Gateway::slurp("$in/a.pem") =~ s/^M.{20}/$&AAAA/mr);
    mkfifo("$in/fifo", 0600) or die "mkfifo: $!";
    system("openssl ec -in $in/a.key -out $in/locked.key -aes128"
           . ' -passout pass:x 2> /dev/null') == 0 or die 'no encrypted key';
    system("openssl genrsa -out $in/rsa.key 2048 2> /dev/null") == 0
        or die 'no RSA key';

    for my $text (qw(ssl_ca=x ssl_certificate=x ssl_certificate_key=x
                     ssl_name=x ssl_verify=off ssl_protocols=x ssl_ciphers=x))
    {
        for my $url ('redis://127.0.0.1', 'unix:/r') {
            bad("$d main $url $text;", "$url $text",
                qq(invalid parameter "$text" in "$d" directive: needs a URL )
                . 'that begins with "rediss://"');
        }
    }

    my $protocol = must_be(qw(TLSv1 TLSv1.1 TLSv1.2 TLSv1.3));
    my $pair = "ssl_certificate=$in/%s ssl_certificate_key=$in/%s";

    # what is written, what of it is to blame, and why; with OpenSSL's words

    for my $case (
        ['ssl_ca=', 'ssl_ca=', 'must not be empty'],
        ['ssl_ca=$arg_a', 'ssl_ca=$arg_a', 'must not contain variables'],
        ['ssl_ca=none', "ssl_ca=$dir/none", $gone],
        ["ssl_ca=$in", "ssl_ca=$in", 'is not a regular file'],
        ["ssl_ca=$in/fifo", "ssl_ca=$in/fifo", 'is not a regular file'],
        ["ssl_ca=$in/text", "ssl_ca=$in/text", 'has no certificate', 1],
        ["ssl_ca=$in/cut.pem", "ssl_ca=$in/cut.pem", 'has no certificate', 1],
        ["ssl_ca=$in/ca.pem ssl_verify=off", "ssl_ca=$in/ca.pem",
         'conflicts with "ssl_verify=off"'],
        ['ssl_verify=yes', 'ssl_verify=yes', 'must be "on" or "off"'],
        ['ssl_name=a:b', 'ssl_name=a:b', 'must be a host name or an address'],
        ['ssl_name=a/b', 'ssl_name=a/b', 'must be a host name or an address'],
        ['ssl_name=.a', 'ssl_name=.a', 'must be a host name or an address'],
        ['ssl_name=' . 'x' x 254, 'ssl_name=' . 'x' x 254, 'is too long'],
        ['ssl_protocols=TLSv1.4', 'ssl_protocols=TLSv1.4', $protocol],
        ['ssl_protocols=SSLv3', 'ssl_protocols=SSLv3', $protocol],
        ['ssl_protocols=TLSv1.2,', 'ssl_protocols=TLSv1.2,', $protocol],
        ['ssl_ciphers=x', 'ssl_ciphers=x', 'there is no such cipher', 1],
        ["ssl_certificate=$in/a.pem", "ssl_certificate=$in/a.pem",
         'needs "ssl_certificate_key="'],
        ["ssl_certificate_key=$in/a.key", "ssl_certificate_key=$in/a.key",
         'needs "ssl_certificate="'],
        [sprintf($pair, 'none', 'a.key'), "ssl_certificate=$in/none", $gone],
        [sprintf($pair, 'a.pem', 'none'), "ssl_certificate_key=$in/none",
         $gone],
        [sprintf($pair, 'text', 'a.key'), "ssl_certificate=$in/text",
         'has no certificate', 1],
        [sprintf($pair, 'bad.pem', 'a.key'), "ssl_certificate=$in/bad.pem",
         'has no certificate', 1],
        [sprintf($pair, 'a.pem', 'text'), "ssl_certificate_key=$in/text",
         'has no private key', 1],
        [sprintf($pair, 'a.pem', 'b.key'), "ssl_certificate_key=$in/b.key",
         'is not the key of the certificate', 1],
        [sprintf($pair, 'a.pem', 'rsa.key'), "ssl_certificate_key=$in/rsa.key",
         'is not the key of the certificate', 1],
        [sprintf($pair, 'a.pem', 'locked.key'),
         "ssl_certificate_key=$in/locked.key",
         'is encrypted, which is not supported', 1],
    ) {
        my ($text, $shown, $reason, $openssl) = @$case;

        bad("$h $text;", $text,
            qq(invalid parameter "$shown" in "$d" directive: $reason),
            $openssl);
    }

    good("$d main redis://127.0.0.1 sentinel=m $_;", $_)
        for 'sentinel_ssl=off', 'sentinel_ssl=on ssl_verify=off';

    good("$h $_;", $_)
        for '', 'ssl_verify=off', 'ssl_verify=on', "ssl_ca=$in/ca.pem",
            'ssl_name=redis.example.com', 'ssl_name=::1', 'ssl_name=192.0.2.1',
            'ssl_protocols=TLSv1.3', '"ssl_protocols=TLSv1.2 TLSv1.3"',
            'ssl_protocols=TLSv1,TLSv1.1,TLSv1.2', 'ssl_ciphers=HIGH:!aNULL',
            sprintf($pair, 'a.pem', 'a.key');
};

subtest 'zones' => sub {
    my $range = 'must be a time from 10ms to 60s, or "off"';
    my $zone = 'ratelimit_zone $arg_a zone=x:1m rate=1r/s';
    my $redis = "$d main redis://127.0.0.1;";

    bad("$redis\n$zone redis=other;", 'of an unknown Redis',
        'unknown redis "other" in "ratelimit_zone" directive, '
        . "there is no \"$d other\"");
    bad("$zone redis=mai;  # here\n$redis", 'of half a name',
        'unknown redis "mai" in "ratelimit_zone" directive, '
        . "there is no \"$d mai\"");
    bad("$redis\n$zone redis=main;\n"
        . 'ratelimit_zone $arg_a zone=y:1m rate=1r/s redis=Main;  # here'
        . "\n\n\n", 'a second one of an unknown Redis',
        'unknown redis "Main" in "ratelimit_zone" directive, '
        . "there is no \"$d Main\"");

    for my $case (
        ['redis=',                  undef, 'must not be empty'],
        ['redis=$arg_a',            undef, $letters],
        ['redis=127.0.0.1:6379',    undef, $letters],
        ["redis=redis://:$secret\@h", 'redis=redis://***@h', $letters],
        ['redis=main redis=main',   'redis=main', 'is duplicate'],
        ["redis=main redis=redis://:$secret\@h", 'redis=redis://***@h',
                                    'is duplicate'],
        ['redis=main sync=',        'sync=', 'must be "off" or a time'],
        ['redis=main sync=on',      'sync=on', 'must be "off" or a time'],
        ['redis=main sync=x',       'sync=x', 'must be "off" or a time'],
        ['redis=main sync=-1s',     'sync=-1s', 'must be "off" or a time'],
        ['redis=main sync=0',       'sync=0', $range],
        ['redis=main sync=9ms',     'sync=9ms', $range],
        ['redis=main sync=61s',     'sync=61s', $range],
        ['redis=main sync=1h',      'sync=1h', $range],
        ['redis=main sync=off sync=off', 'sync=off', 'is duplicate'],
        ['redis=main fail=x',       'fail=x',
                                    'must be "local", "open" or "closed"'],
    ) {
        my ($text, $shown, $reason) = @$case;

        $shown //= $text;

        bad("$redis\n$zone $text;", $text,
            qq(invalid parameter "$shown" in "ratelimit_zone" directive: )
            . $reason);
    }

    bad("$redis\n$zone redis://:$secret\@h;", 'a URL in a zone',
        'invalid parameter "redis://***@h" in "ratelimit_zone" directive: '
        . must_be(qw(zone= rate= algorithm= fail= redis= sync= buckets=
                     capacity= top=)));
    bad("$redis\nratelimit_zone \$arg_a zone=x:1m rate=1024r/h redis=main "
        . "algorithm=sliding_log sync=1s;\n$server\n"
        . "ratelimit zone=x;  # here\n}", 'a log that is too long for sync',
        'zone "x" with "sync" and algorithm "sliding_log" can\'t have a limit '
        . 'of 1024 requests, at most 1023 are allowed');
    bad("$redis\n$zone sync=off;", 'sync alone',
        'parameter "sync=off" in "ratelimit_zone" directive needs "redis="');

    bad("$redis\nratelimit_zone \$arg_a zone=x:1m redis=main;\n"
        . "$server ratelimit zone=x;  # here\n}", 'without a rate',
        '"ratelimit" directive must have "rate" parameter, as zone "x" has '
        . 'none');
};

subtest 'what is accepted' => sub {
    my $h = '127.0.0.1';

    for my $url ("redis://$h", "redis://$h:6379/0", "redis://$h:1",
                 'redis://localhost/15', "redis://alice:$secret\@$h:1/65535",
                 "redis://:$secret\@$h/", "redis://a%3Ab:%40$secret\@$h",
                 "redis://:$secret:\@x\@$h", "\"redis://:a b\@$h\"",
                 'redis://[::1]', "redis://alice:$secret\@[2001:db8::7]:7/1",
                 'unix:/run/redis.sock', '"unix:/run/a b@c:d?db=3"',
                 'unix:/none')
    {
        good("$d main $url;", $url);
    }

    good("$d main redis://127.0.0.1 $_;", $_)
        for qw(timeout=1ms timeout=1h timeout=50 connect_timeout=1s
               connect_timeout=3600s connections=1 connections=64 prefix=
               prefix=a:b%c prefix=api.), 'prefix=' . 'x' x 128,
            'timeout=5ms connect_timeout=5ms connections=2 prefix=x';

    good(join("\n", map { "$d $_ redis://$h;" } qw(a A a-B_c.9)), 'names');

    for my $fail ('', 'fail=local', 'fail=open', 'fail=closed', 'sync=off') {
        good("ratelimit_zone \$arg_a zone=x:1m rate=1r/s redis=main $fail;\n"
             . "$d main redis://:$secret\@$h;\n$server ratelimit zone=x; }",
             "a zone that comes first, $fail");
    }
};

# the right password and wrong ones, by each way to give it

subtest 'a running nginx' => sub {
    my $redis = RedisServer->start(password => $secret);
    my $at = "127.0.0.1:$redis->{port}";

    $redis->call(qw(ACL SETUSER alice on ~* &* +@all), ">$secret-alice");
    write_file("$dir/alice", "$secret-alice\n");
    write_file("$dir/wrong", "$secret-wrong\n");

    my %right = (
        '/url' => "redis://:$secret\@$at",
        '/user' => "redis://alice:$secret%2Dalice\@$at",
        '/file' => "redis://alice\@$at password_file=$dir/alice",
        '/socket' => "unix:$redis->{path} password_file=$dir/password",
    );
    my %wrong = (
        '/none' => "redis://$at",
        '/bad' => "redis://:$secret-wrong\@$at",
        '/nobody' => "redis://bob:$secret\@$at",
        '/badfile' => "redis://alice\@$at password_file=$dir/wrong",
        '/gone' => "redis://:$secret\@127.0.0.1:1",
    );
    my %url = (%right, %wrong);
    my ($http, %location) = ('');

    for my $path (sort keys %url) {
        my $name = $path =~ s{/}{}r;

        $http .= "$d $name $url{$path} timeout=5s connect_timeout=5s "
                 . "prefix=$name:;\n"
                 . "ratelimit_zone \$http_x_key zone=$name:1m rate=2r/h "
                 . "redis=$name fail=closed;\n";
        $location{$path} = "ratelimit zone=$name;";
    }

    my $gateway = Gateway->start(main => 'error_log logs/debug.log debug;',
                                 http => $http . Gateway->server(%location));

    for my $path (sort keys %url) {
        my $tally = $gateway->load(requests => [([$path, 'a']) x 5]);

        is_deeply($tally->{keys}{a},
                  $right{$path} ? { sent => 5, 200 => 2, 429 => 3 }
                                : { sent => 5, 503 => 5 }, $path);
    }

    like($gateway->log, qr/WRONGPASS/, 'Redis has refused passwords');

    $gateway->stop;
    $said .= $gateway->log
             . Gateway::slurp("$gateway->{dir}/logs/debug.log");
};

subtest 'secrets' => sub {
    cmp_ok(length $said, '>', 10000, 'nginx has said a lot');
    like($said, qr/\[debug\]/, 'at debug level, too');
    unlike($said, qr/$secret/, 'and never a password');
};

done_testing();


# what OpenSSL adds is its own affair

sub bad {
    my ($text, $name, $message, $openssl) = @_;

    my $blame = write_http($text);
    my $heard = listen_to();

    $heard =~ s/ \(SSL: error:.*\)$/ OPENSSL/m;

    is($heard, refused($message, "$conf:$blame" . ($openssl ? ' OPENSSL' : '')),
       $name);
}


sub good {
    my ($text, $name) = @_;

    write_http($text);

    is(listen_to(), passed(), $name);
}


sub write_http {
    my ($text) = @_;

    return write_conf("error_log $dir/debug.log debug;\nhttp { $settings",
                      $text, '}');
}


# what nginx says, and what it only logs, is kept

sub listen_to {
    my $text = test_conf();

    $said .= $text;

    for my $log ("$dir/error.log", "$dir/debug.log") {
        $said .= Gateway::slurp($log);
        unlink($log);
    }

    return $text;
}
