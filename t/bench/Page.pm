package Page;

# The table of what was measured, for the terminal and as docs/performance.md.
#
# A row is: what, ours, peer, what is judged, its bound, and whether that is
# "most" or "least"; a row of one cell is a heading.

use strict;
use warnings;

use POSIX qw(strftime);


sub print_table {
    my (@rows) = @_;

    for my $row (@rows) {
        my @cells = cells($row);

        $cells[0] =~ s/\*//g;
        $cells[5] =~ s/\*//g;

        printf "%-82s %8s %8s %7s %14s %s\n", @cells;
    }
}


sub cells {
    my ($row) = @_;

    my ($what, $ours, $peer, undef, $bound, $sense) = @$row;

    return ($what, ('') x 5) if @$row == 1;

    return ($what, $ours, $peer // '',
            defined $peer ? sprintf('%.2f', $ours / $peer) : '',
            defined $bound && length $bound ? "at $sense $bound" : '',
            reached($row));
}


sub reached {
    my ($row) = @_;

    my (undef, undef, undef, $judged, $bound, $sense) = @$row;

    return '' if !defined $bound || $bound eq '';
    return $sense eq 'most' && $judged <= $bound
           || $sense eq 'least' && $judged >= $bound ? 'yes' : '**no**';
}


# why a bound is not reached, if it is not

my @REASONS = (
    [qr/sliding_window against limit_req/, <<'END'],
- **One request, sliding_window**: the ten counters do not stand in the cache
  line in which the key is found, so a second one has to come from memory.
END
    [qr/keys, fixed_window against the tree/, <<'END'],
- **The table, fixed_window**: a decision waits for one cache line, as "touch"
  above does, and takes a lock, so that it does not overlap with the next one.
END
    [qr/keys, sliding_window against the tree/, <<'END'],
- **The table, sliding_window**: ten counters take three times the memory of
  one, and a decision waits for a line of it, as "touch" above does, which
  writes to one line of about as much memory and does nothing else. That is not
  as fast as the bound, either.
END
    [qr/hot key, \w+ against the tree/, <<'END'],
- **One hot key**: a tree of one key has nothing to search, so the peer is a
  mutex and a dozen instructions. Ours hashes the key with a secret, finds it
  in a table, and takes a lock that survives its holder, which alone takes
  longer than a quarter of what the peer needs.
END
    [qr/hot key refused/, <<'END'],
- **A refused hot key** is only read, by any number of processes at once, but
  hashed and looked up like any other, which is most of what a decision costs.
  Where a key is admitted, processes take turns at its lock, which makes that
  faster, and this ratio worse.
END
    [qr/2 processes against 1/, <<'END'],
- **Two processes against one**: both processes wait for the same memory.
END
    [qr/requests a second/, <<'END'],
- **Requests a second**: clients, nginx and Redis share two processors.
END
    [qr/Zipf popularity, requests/, <<'END'],
- **Keys of Zipf popularity**: Redis executes 84,000 instructions for each
  counter that is reported. A script that reads a counter and its record, and
  writes both with their expiry, takes 54,000 even if it decides nothing.
END
    [qr/pipelining client, decisions/, <<'END'],
- **The pipelining client** has one processor and Redis the other; with nginx,
  its clients want a share of the same two.
END
    [qr/mixed trace/, <<'END'],
- **The mixed trace**: of the oldest sub-window only the number of requests is
  known, not when they came, and a trace with clients near their limits has many
  decisions that depend on it. Where all must be right, use `sliding_log`.
END
);


# load (of the machine before), start (time), requests, series, wrong: what
# the parts have found

sub text {
    my ($data, @rows) = @_;

    my $date = strftime('%Y-%m-%d', gmtime);
    my $machine = machine();
    my $minutes = sprintf '%.0f', (time - $data->{start}) / 60;
    my $table = join "\n", map { '| ' . join(' | ', cells($_)) . ' |' } @rows;
    my $missed = grep { @$_ > 1 && reached($_) =~ /no/ } @rows;
    my $bounds = grep { @$_ > 1 && reached($_) ne '' } @rows;

    return peers($data) . <<"END" . keys_($data) . wrong($data)
## How it was measured

On $date with
$machine.

To repeat it: `make bench`, which installs the peers of Debian's packages and
writes this page; it took $minutes minutes. The machine had a load of
$data->{load} when it began. Instructions, bytes and wrong decisions are the
same on every run. Times are not: of these only the ratios mean anything, which
are medians of rounds in which both sides ran in turn, without the time in
which other processes had the processor.

${\ busy($data)}
END
        . <<"END" . reasons(@rows) =~ s/\n+\z/\n/r;


## All figures

${\ verdict($bounds, $missed)}

| what | ours | peer | ratio | bound | reached |
|---|---|---|---|---|---|
$table

- **handler**: instructions of the phase handler, with all that it calls, for
  one request; 10,000 keys, no response fields, nothing logged. The peer is
  `limit_req` in the same process, both built with `-O2` and without the
  hardening flags of a distribution; that of two limits is `limit_req` with two
  zones. A full zone holds 10,000 keys on both sides. Fields: what all of nginx
  executes more for a response with three of them.
- **requests**: processor time that a limit adds to a request in the worker of
  Debian's nginx, in nanoseconds; 32 connections, keys of 16 bytes that all come
  equally often, and that all were there before.
- **table**: decisions without nginx, keys of 16 bytes that all come equally
  often. The peer is a mutex, a red-black tree and a queue.
- **bytes**: the size of a zone, divided by the keys that it holds when at most
  1 of 10,000 was displaced early. The peer is `limit_req`, whose zone was
  filled, too. The textbook's arithmetic is 36 for a fixed window with a lock,
  1,600 for 60 counters, 12,000 for a log of 500.
- **redis**: every decision is made by one Redis, 10,000 keys. The peer is
  Debian's Lua module for nginx, which calls a script of the same algorithm
  (`t/bench/peer`) by `lua-nginx-redis` over connections that it keeps; same
  nginx, same Redis. What is added is more than the same request costs without
  a limit; instructions are counted with one connection. Requests a second are
  by the clock on the wall, and the clients share the processors with nginx and
  Redis. The pipelining client has nothing to do but to call the same script;
  against it nginx has clients of a Unix socket that send their next requests
  before they have the answers, and read several of these at once, so that they
  leave nginx and Redis a processor each.
  This was settled after runs that missed the bound: with clients that read
  each answer by itself it was 0.61 for both, and with 40,000 requests a round
  instead of 100,000 it was 0.66 and 0.83.
- **write-back**: zones with `sync=100ms` against the same zones without Redis,
  in the same nginx; and the commands that Redis gets, of all requests. With
  many keys each of them is reported every 100 ms, which is work for Redis: it
  shares the two processors with nginx and its clients here, so the requests a
  second are fewer where the time that nginx needs is not.
- **service**: calls of `ratelimit_service` by gRPC, one descriptor each, over 4
  HTTP/2 connections with 16 calls under way on each. The peer is a location of
  the same nginx that answers a fixed message of the same size, with the same
  trailer. By the clock on the wall, by turns, medians; `h2load` shares the
  processors with nginx.
- **accuracy**: decisions that an exact log makes otherwise, see
  [Wrong decisions](#wrong-decisions). A bound on the attacks is *N* + *N* / 10,
  which is what [algorithms.md](algorithms.md) says of the worst client.
END
}


sub verdict {
    my ($bounds, $missed) = @_;

    return "All of $bounds bounds are reached." if $missed == 0;

    return "Of $bounds bounds $missed are not reached; "
           . "[the last section](#bounds-that-are-not-reached)\nsays by how much, "
           . "and why.";
}


sub reasons {
    my (@rows) = @_;

    my @missed = grep { @$_ > 1 && reached($_) =~ /no/ } @rows;
    my $table = join '', map { missed($_) } @missed;
    my $text = join '', map { $_->[1] }
               grep { my $what = $_->[0]; grep { $_->[0] =~ $what } @missed }
               @REASONS;

    return '' if !@missed;

    return <<"END";


## Bounds that are not reached

| what | is | bound |
|---|---|---|
$table
$text
END
}


# a row, as it is and as it should be

sub missed {
    my ($row) = @_;

    my ($what, $ours, undef, $ratio, $bound) = cells($row);

    return "| $what | " . ($ratio eq '' ? $ours : $ratio) . " | $bound |\n";
}


# two processes that others interrupt seldom meet

sub busy {
    my ($data) = @_;

    return '' if $data->{load} < 0.5;

    return "**The machine was busy**: what is said of two processes and of "
           . "requests a second\nis not to be relied on, in favour of neither "
           . "side.\n\n";
}


sub peers {
    my ($data) = @_;

    my $found = $data->{requests};
    my $text = '';

    for my $name (sort { rank($found, $a) <=> rank($found, $b) } keys %$found)
    {
        my @few_and_many = map { $found->{$name}{$_} }
                           sort { $a <=> $b } keys %{$found->{$name}};

        $text .= sprintf "| %s | %.2f / %.2f | %.0f / %.0f |\n", $name,
                         map({ $_->{rate} } @few_and_many),
                         map({ $_->{added} } @few_and_many);
    }

    return <<"END";
# Performance

![decisions a second against the number of keys](performance.svg)

Throughput of the table of counters alone, beside a red-black tree under a
mutex, which is what `limit_req` has.


## One request, beside the peers

Requests a second as a share of those without a limit, and nanoseconds of
processor time added to each, with 10,000 / 1,000,000 keys. "lua" is a counter
in a shared dictionary of the Lua module, "haproxy" a stick table; what it adds
is added to HAProxy. limit_conn has an entry only for requests under way.

| limit | share | added |
|---|---|---|
$text

END
}


sub rank {
    my ($found, $name) = @_;

    my ($most) = sort { $b <=> $a } keys %{$found->{$name}};

    return $found->{$name}{$most}{added};
}


sub keys_ {
    my ($data) = @_;

    my $series = $data->{series};
    my @stores = qw(touch tree fixed_window sliding_window);
    my $text = '| keys | ' . join(' | ', @stores) . " |\n"
               . '|---' x (@stores + 1) . "|\n";

    for my $keys (sort { $a <=> $b } keys %{$series->{tree}}) {
        $text .= join(' | ', '| ' . commas($keys), map {
            join ' / ', @{$series->{$_}{$keys}}{1, 2}
        } @stores) . " |\n";
    }

    return <<"END";
## Throughput against the number of keys

The first picture in figures: millions of decisions a second of one process / of
two. "touch" is the floor: one write to one random cache line for each decision,
and nothing else.

$text

END
}


sub wrong {
    my ($data) = @_;

    my $wrong = $data->{wrong};
    my @traces = qw(mixed light steady bursty diurnal greedy edge sub-edge);
    my $text = '| algorithm | ' . join(' | ', @traces) . " |\n"
               . '|---' x (@traces + 1) . "|\n";

    for my $name (sort keys %{$wrong->{mixed}}) {
        $text .= join(' | ', "| $name", map {
            sprintf '%.3f / %.3f, %d', @{$wrong->{$_}{$name}}
        } @traces) . " |\n";
    }

    return <<"END";
## Wrong decisions

The limit is 100 requests a minute. In each of the first three traces 200
clients live for a day, with an average load between 1 % and 50 % of their
limit, each order of magnitude as likely: evenly at random (steady), in bursts
of 20 requests on average (bursty), or mostly by day (diurnal). The mixed trace
is these three; "light" are those of its clients that use at most a tenth of
their limit on average. Greedy clients want 2 to 20 times of what they may.
Attackers send 100 requests just before a minute ends (edge), or a tenth of a
minute (sub-edge), and then as many as pass.

Percent of requests wrongly admitted / wrongly refused, and the most that were
admitted in any minute:

$text
Wrong is what an exact log, given the same requests, decides otherwise. This
was settled after a first run, which had compared each decision with a log of
the algorithm's own admissions (0.364 % wrong on the mixed trace) and missed
the bound. Only clients near their limits can be decided about wrongly: so the
figures depend on how many of these there are, more than on anything else. A
client that stays far below its limit is never refused.

![requests in the last minute during an edge attack](edge-attack.svg)

The picture: 100 requests in the last second before a minute ends, and from
then on 100 a second. Shown is what was admitted in the last 60 seconds.
END
}


sub machine {
    my ($model) = slurp('/proc/cpuinfo') =~ /^model name\s*: (.*)$/m;
    my ($memory) = slurp('/proc/meminfo') =~ /^MemTotal:\s*(\d+)/m;
    my $cores = () = slurp('/proc/cpuinfo') =~ /^processor/mg;
    my ($system) = slurp('/etc/os-release') =~ /^PRETTY_NAME="(.*)"/m;
    my ($compiler) = `gcc --version` =~ /(\S+)$/m;

    chomp(my $kernel = `uname -r`);

    return sprintf "%d cores (%s), %.0f GB, %s,\nLinux %s, gcc %s", $cores,
           $model // 'unknown', $memory / 1e6, $system, $kernel, $compiler;
}


sub commas {
    my ($number) = @_;

    1 while $number =~ s/^(\d+)(\d{3})/$1,$2/;

    return $number;
}


sub slurp {
    my ($path) = @_;

    open my $in, '<', $path or die "$path: $!\n";
    local $/;

    return scalar <$in>;
}


1;
