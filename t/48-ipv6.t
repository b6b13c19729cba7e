#!/usr/bin/perl

# $ratelimit_client: one customer owns a whole /64 of IPv6 addresses, 2^64 of
# them.  If this fails, such a customer has no limit at all, or neighbours
# share one.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use IO::Socket::INET;
use Socket qw(inet_pton AF_INET AF_INET6);
use Test::Nginx::Socket 'no_plan';

our $port = Ratelimit::free_port();

# the addresses of the clients are those that a trusted proxy tells

our $realip = 'set_real_ip_from 127.0.0.0/8;
               real_ip_header X-Forwarded-For;';

sub from {
    return [map { "X-Forwarded-For: $_" } @_];
}


# before each request of "--- proxied", which go to $port, a balancer tells the
# client's address in the PROXY protocol, of version 1 or 2; then "--- statuses"
# are those of the answers

add_response_body_check(sub {
    my ($block) = @_;

    return if !defined $block->proxied;

    my @statuses = map { proxied(@$_) } @{ $block->proxied };

    is("@statuses", "@{ $block->statuses }", $block->name . " - statuses");
});


sub proxied {
    my ($version, $address) = @_;

    my $socket = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port",
                                       Timeout => timeout())
        or die "connect: $!";

    print $socket $version == 1 ? proxy_1($address) : proxy_2($address),
                  "GET /t HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

    my $answer = CORE::join '', <$socket>;

    return $answer =~ /^HTTP\/1.1 (\d+)/ ? $1 : "none: $answer";
}


sub proxy_1 {
    my ($address) = @_;

    return $address =~ /:/ ? "PROXY TCP6 $address 2001:db8::1 1000 80\r\n"
                           : "PROXY TCP4 $address 192.0.2.99 1000 80\r\n";
}


sub proxy_2 {
    my ($address) = @_;

    my $family = $address =~ /:/ ? AF_INET6 : AF_INET;
    my $binary = inet_pton($family, $address);
    my $addresses = $binary . $binary . pack 'nn', 1000, 80;

    return "\r\n\r\n\0\r\nQUIT\n\x21" . ($address =~ /:/ ? "\x21" : "\x11")
           . pack('n', length $addresses) . $addresses;
}


repeat_each(1);

run_tests();

__DATA__

=== TEST 1: addresses of one /64 are one client, those of another are not
--- http_config eval
"$::realip
 ratelimit_zone \$ratelimit_client zone=net:1m rate=2r/h;"
--- config
    location /t { ratelimit zone=net; try_files /index.html =404; }
--- request eval
[("GET /t") x 7]
--- more_headers eval
::from("2001:db8:1:2::1", "2001:db8:1:2::2", "2001:db8:1:2:ffff:ffff:ffff:ffff",
       "2001:db8:1:3::1", "2001:db8:1:3::", "2001:db8:1:3::1",
       "2001:db9:1:2::1")
--- error_code eval
[200, 200, 429, 200, 200, 429, 200]



=== TEST 2: IPv4 addresses are not cut
--- http_config eval
"$::realip
 ratelimit_zone \$ratelimit_client zone=ipv4:1m rate=1r/h;"
--- config
    location /t { ratelimit zone=ipv4; try_files /index.html =404; }
    location /cut { ratelimit zone=ipv4; ratelimit_ipv6_prefix 1;
                    try_files /index.html =404; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /cut", "GET /cut"]
--- more_headers eval
::from("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.2", "192.0.2.3")
--- error_code eval
[200, 200, 429, 429, 200]



=== TEST 3: the length of the prefix may be chosen
--- http_config eval
"$::realip
 ratelimit_zone \$ratelimit_client zone=p128:1m rate=1r/h;
 ratelimit_zone \$ratelimit_client zone=p48:1m rate=1r/h;
 ratelimit_ipv6_prefix 48;"
--- config
    location /p48 { ratelimit zone=p48; try_files /index.html =404; }
    location /p128 { ratelimit zone=p128; ratelimit_ipv6_prefix 128;
                     try_files /index.html =404; }
--- request eval
["GET /p48", "GET /p48", "GET /p48", "GET /p128", "GET /p128", "GET /p128"]
--- more_headers eval
::from("2001:db8:1:2::1", "2001:db8:1:ffff::1", "2001:db8:2::1",
       "2001:db8:1:2::1", "2001:db8:1:2::2", "2001:db8:1:2::1")
--- error_code eval
[200, 429, 200, 200, 200, 429]



=== TEST 4: the prefix may end within a byte
--- http_config eval
"$::realip
 ratelimit_zone \$ratelimit_client zone=p61:1m rate=1r/h;
 ratelimit_zone \$ratelimit_client zone=p33:1m rate=1r/h;"
--- config
    location /p61 { ratelimit zone=p61; ratelimit_ipv6_prefix 61;
                    try_files /index.html =404; }
    location /p33 { ratelimit zone=p33; ratelimit_ipv6_prefix 33;
                    try_files /index.html =404; }
--- request eval
["GET /p61", "GET /p61", "GET /p61", "GET /p33", "GET /p33", "GET /p33"]
--- more_headers eval
::from("2001:db8:1:8::1", "2001:db8:1:f::1", "2001:db8:1:10::1",
       "2001:db8:7fff::1", "2001:db8:8000::1", "2001:db8::1")
--- error_code eval
[200, 429, 200, 200, 200, 429]



=== TEST 5: an IPv4 address that is written as IPv6 is the same client
--- http_config eval
"$::realip
 ratelimit_zone \$ratelimit_client zone=mapped:1m rate=1r/h;"
--- config
    location /t { ratelimit zone=mapped; try_files /index.html =404; }
--- request eval
[("GET /t") x 4]
--- more_headers eval
::from("::ffff:192.0.2.1", "::ffff:192.0.2.2", "192.0.2.1", "::ffff:c000:202")
--- error_code eval
[200, 200, 429, 429]



=== TEST 6: the value is 4 or 16 bytes, cut with zeros
--- http_config eval
"$::realip" . '
 map $ratelimit_client $client {
     "~^\x20\x01\x0d\xb8\x00\x01\x00\x02\x00{8}$"  ipv6;
     "~^\xc0\x00\x02\x01$"                         ipv4;
     default                                       other;
 }'
--- config
    location /t { add_header X-Client $client; try_files /index.html =404; }
--- request eval
[("GET /t") x 3]
--- more_headers eval
::from("2001:db8:1:2:3:4:5:6", "192.0.2.1", "2001:db8:1:3::")
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-Client: ipv6", "X-Client: ipv4", "X-Client: other"]



=== TEST 7: a proxy that is not trusted can't choose an address
--- http_config
    set_real_ip_from 192.0.2.1;
    real_ip_header X-Forwarded-For;

    ratelimit_zone $ratelimit_client zone=liar:1m rate=1r/h;
--- config
    location /t { ratelimit zone=liar; try_files /index.html =404; }
--- request eval
[("GET /t") x 2]
--- more_headers eval
::from("2001:db8:1:2::1", "2001:db8:1:3::1")
--- error_code eval
[200, 429]



=== TEST 8: all clients on a unix socket are limited as one
--- http_config
    ratelimit_zone $ratelimit_client zone=unix:1m rate=1r/h;

    server {
        listen unix:$TEST_NGINX_SERVER_ROOT/logs/client.sock;
        ratelimit zone=unix;
    }
--- config
    location /t {
        proxy_pass
            http://unix:$TEST_NGINX_SERVER_ROOT/logs/client.sock:/index.html;
    }
--- request eval
[("GET /t") x 2]
--- error_code eval
[200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]



=== TEST 9: what a location knows of its proxies is known in time
--- http_config
    ratelimit_zone $ratelimit_client zone=location:1m rate=1r/d;
    ratelimit_zone $ratelimit_client zone=nested:1m rate=1r/d;
--- config
    location /t {
        set_real_ip_from 127.0.0.0/8;
        real_ip_header X-Forwarded-For;
        ratelimit zone=location;
        try_files /index.html =404;
    }

    location /other {
        ratelimit zone=location name=other;
        try_files /index.html =404;
    }

    location /nested {
        ratelimit zone=nested;
        set_real_ip_from 127.0.0.0/8;
        real_ip_header X-Client;

        location /nested/t { try_files /index.html =404; }
    }
--- request eval
[("GET /t") x 5, ("GET /other") x 2, ("GET /nested/t") x 3]
--- more_headers eval
[@{ ::from("2001:db8:1:2::1", "2001:db8:1:2::2", "2001:db8:1:3::1",
           "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2") },
 "X-Client: 192.0.2.1", "X-Client: 192.0.2.2", "X-Client: 192.0.2.1"]
--- error_code eval
[200, 429, 200, 200, 429, 200, 429, 200, 200, 429]



=== TEST 10: a PROXY protocol listener
--- http_config eval
"ratelimit_zone \$ratelimit_client zone=proxy:1m rate=2r/d;

 server {
     listen 127.0.0.1:$::port proxy_protocol;
     set_real_ip_from 127.0.0.0/8;
     real_ip_header proxy_protocol;
     location /t { ratelimit zone=proxy; empty_gif; }
 }"
--- config
--- request
GET /
--- proxied eval
[[1, "2001:db8:1:2::1"], [1, "2001:db8:1:2::2"], [1, "2001:db8:1:2:ff::1"],
 [2, "2001:db8:1:2::3"], [2, "2001:db8:1:3::3"], [1, "2001:db8:1:3::4"],
 [2, "2001:db8:1:3::5"], [1, "192.0.2.1"], [2, "192.0.2.1"], [1, "192.0.2.2"],
 [2, "192.0.2.1"], [2, "::ffff:192.0.2.1"]]
--- statuses eval
[200, 200, 429, 429, 200, 200, 429, 200, 200, 200, 429, 429]



=== TEST 11: a balancer that is not trusted is the client
--- http_config eval
"ratelimit_zone \$ratelimit_client zone=untrusted:1m rate=2r/d;

 server {
     listen 127.0.0.1:$::port proxy_protocol;
     set_real_ip_from 192.0.2.0/24;
     real_ip_header proxy_protocol;
     location /t { ratelimit zone=untrusted; empty_gif; }
 }"
--- config
--- request
GET /
--- proxied eval
[[1, "2001:db8:1:2::1"], [2, "2001:db8:1:3::1"], [1, "192.0.2.1"]]
--- statuses eval
[200, 200, 429]



=== TEST 12: the PROXY protocol for one location, another prefix
--- http_config eval
"ratelimit_zone \$ratelimit_client zone=proxy48:1m rate=1r/d;

 server {
     listen 127.0.0.1:$::port proxy_protocol;

     location /t {
         set_real_ip_from 127.0.0.0/8;
         real_ip_header proxy_protocol;
         ratelimit_ipv6_prefix 48;
         ratelimit zone=proxy48;
         empty_gif;
     }
 }"
--- config
--- request
GET /
--- proxied eval
[[1, "2001:db8:1:2::1"], [1, "2001:db8:1:3::1"], [2, "2001:db8:2:3::1"]]
--- statuses eval
[200, 429, 200]
