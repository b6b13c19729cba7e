#!/usr/bin/perl

# docs/getting-started.md: its steps are done one after another, in one nginx
# that is reloaded, and each shows what the page shows.  The file that the steps
# have made in the end is docs/examples/getting-started.conf.
#
# A block of a step replaces what the file has under the same name (a location,
# a map, a zone), or is added: a location in the first server, all else above
# the servers.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Gateway;
use Page;
use RedisServer;

my $page = Page->new('docs/getting-started.md');
my @steps = grep { @{$_->{console}} } @{$page->{sections}};
my $redis = RedisServer->start;
my $file = '';
my ($first, $second);

subtest 'the checks can fail' => \&self_test;

cmp_ok(scalar @steps, '>=', 6, 'there are steps');

$first = Gateway->start(http => "server {\n    listen 127.0.0.1:PORT;\n}\n");

for my $step (@steps) {
    subtest $step->{title} => sub { take($step) };
}

is($_->complaints, '', 'nothing is wrong with nginx') for $first, $second;

my $example = Page::slurp('docs/examples/getting-started.conf');

is_deeply(plain($file), plain($example),
          'the example is what the steps have made');

done_testing();


sub take {
    my ($step) = @_;

    $file = edit($file, $_) for @{$step->{conf}};

    my $conf = local_conf($file);
    my @commands = map { Page::commands($_) } @{$step->{console}};

    $first->configure($conf);

    if (grep { $_->{command} =~ /:8090\b/ } @commands) {
        $second = Gateway->start(http => $conf);
    }

    my $shell = Page->shell(dir => $first->{dir}, ports => {
        8080 => $first->{port}, 6379 => $redis->{port},
        $second ? (8090 => $second->{port}) : (),
    });

    for my $command (@commands) {
        my @lines = $shell->result($command->{command}, $command->{lines});

        is_deeply([Page::near($command->{lines}, \@lines)], $command->{lines},
                  (split /\n/, $command->{command})[0]);
    }
}


# a Redis that is busy has time to answer

sub local_conf {
    my ($text) = @_;

    $text =~ s/:8080\b/:PORT/g;
    $text =~ s/:6379;/:$redis->{port}  timeout=5s  connect_timeout=5s;/;

    return $text;
}


# a file with the blocks and directives of a text

sub edit {
    my ($whole, $text) = @_;

    my @items = items($whole);

    for my $item (items($text)) {
        if ($item !~ /^location /) {
            put(\@items, $item);
            next;
        }

        my ($server) = grep { $items[$_] =~ /^server / } 0 .. $#items;
        my ($body) = $items[$server] =~ /\A.*?\n(.*)\}\n\z/s;
        my @inside = items($body =~ s/^ {4}//mgr);

        put(\@inside, $item);
        $items[$server] = "server {\n" . join("\n", @inside) =~ s/^(?=.)/    /mgr
                          . "}\n";
    }

    return join "\n", @items;
}


sub put {
    my ($items, $item) = @_;

    my $name = name($item);
    my ($old) = grep { name($items->[$_]) eq $name } 0 .. $#$items;
    my ($place) = grep { $items->[$_] =~ /^server / } 0 .. $#$items;

    if (defined $old) {
        $items->[$old] = $item;

    } elsif ($item !~ /^server / && defined $place) {
        splice @$items, $place, 0, $item;

    } else {
        push @$items, $item;
    }
}


# directives and blocks, each with its lines

sub items {
    my ($text) = @_;

    my (@items, @lines);

    for (split /^/m, $text) {
        next if !@lines && /^(?:#.*)?$/;

        push @lines, $_;

        if ($lines[0] =~ /\{$/ ? /^\}$/ : /;$/) {
            push @items, join '', splice @lines;
        }
    }

    die "a part of a configuration:\n@lines" if @lines;

    return @items;
}


# what it is known by, or all of it

sub name {
    my ($item) = @_;

    return $item =~ /^(?:map .*|location .*|ratelimit_zone .* zone=\w+(?=:))/
           ? $& =~ s/^(ratelimit_zone) .* /$1 /r : $item;
}


# in any order, without comments and indentation

sub plain {
    my ($text) = @_;

    return [sort map { join ' ', split ' ', s/^ *#.*//mgr } items($text)];
}


sub self_test {
    my $was = "a  1;\nserver {\n    location / {\n        b;\n    }\n}\n"
              . "server {\n    c;\n}\n";
    my $new = "map x y {\n    d;\n}\n\nlocation / {\n    e;\n}\n";
    my $made = edit($was, $new);

    is(join(' ', split ' ', $made), 'a 1; map x y { d; } '
       . 'server { location / { e; } } server { c; }', 'an edited file');
    is(edit($made, $new), $made, 'twice is as once');
    isnt(edit($made, $new =~ s/d;/f;/r), $made, 'another block is not');
    is_deeply(plain("# x\n$made"), plain($made), 'comments do not matter');
    isnt(join('', @{plain($made)}), join('', @{plain($was)}), 'the rest does');
}
