#!/usr/bin/perl

# The house rules that a machine can see: nginx's C style, the size of
# functions and files, the prefix of every symbol, and what must not be in
# any file.  Each rule is shown a planted error first, so that it can fail.

use strict;
use warnings;

use File::Find;
use Test::More;

use constant MAX_COLUMNS => 80;
use constant MAX_BODY => 60;
use constant LONG_FILE => 500;

# lines of code that two places may share, how many must be alike in a row, and
# how many others may be in between
use constant MAX_SHARED => 10;
use constant ALIKE => 3;
use constant BETWEEN => 2;

# of lines whose comments and strings are blanks
my @line_rules = (
    [qr{//},                                '// comment'],
    [qr{\b(?:if|for|while|switch)\(},       'no blank before ('],
    [qr{\)\{},                              'no blank before {'],
    [qr{^\s*\}\s*else$},                     'else without {'],
    [qr{^\s*else\b},                        'else not behind }'],
    [qr{\}else|else\{},                     'no blank around else'],
    [qr{\bsizeof\(\*},                      'sizeof of an expression'],
    [qr{\bassert\(},                        'assert'],
    [qr{^\s+if \(.*\).*;$},                 'if and statement on one line'],
    [qr{,[^\s]},                            'no blank after a comma'],
    [qr{\w\* \w+(?:;|,|\))},                'star at the type'],
);

my @files = files();
my @c = grep { /\.[ch]$/ } @files;
my @tests = grep { m{^t/.*\.t$} } @files;
my @confs = grep { /\.conf$/ } @files;
my @scripts = grep { m{^\.ci/} } @files;

self_test();

subtest 'C style' => sub {
    ok(scalar(grep { m{^src/} } @c), 'there are sources');
    clean($_, check_c($_, slurp($_))) for @c;

    # advice: a file is cut where its subject has a seam, not at a line count

    for my $file (grep { !m{^t/} } @c) {
        my $lines = slurp($file) =~ tr/\n//;

        note("$file has $lines lines") if $lines > LONG_FILE;
    }
};

subtest 'everything is written once' => sub {
    my %code = map { $_ => slurp($_) }
               grep { /^(?:src|ngx).*\.(?:[ch]|lua|js)$/ } @files;

    clean("no two places of src share more than 10 lines of one $_",
          check_repeats($_, %code)) for qw(text shape);
};

subtest 'tests are run, all of them' => sub {
    clean($_, check_test($_, slurp($_))) for @tests;
};

subtest 'addresses' => sub {
    clean($_, check_addresses($_, slurp($_))) for @tests, @confs;
};

subtest 'text' => sub {
    clean($_, check_text($_, slurp($_)))
        for @scripts, @confs, 'config', 'Makefile';
};

subtest 'plain English' => sub {
    clean($_, check_words($_, slurp($_)))
        for grep { /^(?:src|docs|ngx|README|CHANGES)/ && !/\.(?:png|svg)$/ }
            @files;
};

subtest 'no host of a package mirror' => sub {
    clean($_, check_hosts($_, slurp($_))) for @files;
};

subtest 'scripts' => sub {
    is(system('bash', '-n', $_), 0, $_) for @scripts;
};

done_testing();


sub clean {
    my ($file, @findings) = @_;

    ok(!@findings, $file) or diag(join "\n", @findings);
}


# C

sub check_c {
    my ($file, $text) = @_;

    my $code = blank_out($text);
    my @findings = (
        check_lines($file, $text),
        check_code_lines($code),
        check_conditions($code),
        check_items($file, $text, $code),
        check_spacing($text, $code),
        check_prefix($file, $code),
    );

    push @findings, check_guard($file, $text) if $file =~ /\.h$/;

    return sort_findings($file, @findings);
}


sub check_lines {
    my ($file, $text) = @_;

    my @lines = split /\n/, $text, -1;
    my @findings;

    push @findings, [1, 'the first line is not empty']
        if $text !~ /\A\n[^\n]/;
    push @findings, [scalar @lines, 'no newline at the end']
        if $text !~ /[^\n]\n\z/;

    for my $i (0 .. $#lines) {
        local $_ = $lines[$i];

        push @findings, [$i + 1, 'longer than ' . MAX_COLUMNS . ' columns']
            if length > MAX_COLUMNS;
        push @findings, [$i + 1, 'tab'] if /\t/;
        push @findings, [$i + 1, 'carriage return'] if /\r/;
        push @findings, [$i + 1, 'trailing blank'] if / $/;
    }

    return @findings;
}


sub check_code_lines {
    my ($code) = @_;

    my @lines = split /\n/, $code, -1;
    my @findings;

    for my $i (0 .. $#lines) {
        for my $rule (@line_rules) {
            my ($re, $message) = @$rule;

            push @findings, [$i + 1, $message] if $lines[$i] =~ $re;
        }

        push @findings, [$i + 1, 'no empty line before else']
            if $lines[$i] =~ /^\s*\} else\b/ && $lines[$i - 1] ne '';
    }

    return @findings;
}


# the braces of conditions, and what is in them

sub check_conditions {
    my ($code) = @_;

    my @findings;
    my $parens;
    $parens = qr/\((?:[^()]++|(??{ $parens }))*\)/;

    while ($code =~ /(?<!#)\b(if|while|for|switch) ($parens)([^\n]*\n[^\n]*)/g)
    {
        my ($word, $condition, $rest) = ($1, $2, $3);
        my $line = line_of($code, $-[0]);

        my $before = substr($code, 0, $-[0]);
        next if $before =~ /#\s*$/;

        push @findings, [$line, 'assignment in a condition']
            if $word ne 'for' && $condition =~ /[^=!<>]=[^=]/;

        next if $word eq 'while' && $before =~ /\} $/;

        if ($condition =~ /\n/) {
            push @findings, [$line, 'the brace of a wrapped condition is not '
                                    . 'alone on its line']
                if $rest !~ /^\n\s*\{$/;

        } else {
            my $full = length((split /\n/, $code)[$line - 1]);

            push @findings, [$line, 'no brace']
                if $rest !~ /^ \{/
                   && ($rest !~ /^\n\s*\{$/ || $full < MAX_COLUMNS - 2);
        }
    }

    return @findings;
}


# functions: their form, length and prototypes

sub check_items {
    my ($file, $text, $code) = @_;

    my @lines = split /^/, $text;
    my @findings;
    my %prototypes;

    for my $item (items($code)) {
        my ($line, $head, $body) = @$item{qw(line head body)};

        if (!defined $body) {
            $prototypes{$1} = 1 if $head =~ /^static\b.*?\b(\w+)\(/s;
            next;
        }

        next if $head !~ /\b(\w+)\(/ || $head =~ /=/;

        my $name = function_name($head);
        my $start = $line - 1 + ($head =~ tr/\n//);
        my $length = ($body =~ tr/\n//) - 1;

        push @findings, [$line, "$name: return type not on its own line"]
            if $head !~ /^\Q$name\E\(/m;
        push @findings, [$line, "$name: brace not alone"]
            if $head !~ /\n$/ || $body !~ /^\{\n/;
        push @findings, [$line, "$name: body of $length lines"]
            if $length > MAX_BODY;
        push @findings, [$line, "$name: two empty lines in the body"]
            if join('', @lines[$start .. $start + $length]) =~ /\n\n\n/;
        push @findings, [$line, "$name: no prototype"]
            if $head =~ /^static\b/ && $head !~ /\binline\b|ngx_inline/
               && $file =~ /\.c$/ && !$prototypes{$name};
    }

    return @findings;
}


# two empty lines between functions, never more

sub check_spacing {
    my ($text, $code) = @_;

    my @findings;

    while ($text =~ /\n\n\n\n/g) {
        push @findings, [line_of($text, $-[0]), 'three empty lines'];
    }

    while ($text =~ /^\}\n(\n*)([^\n]*)/mg) {
        my ($blank, $next) = ($1, $2);

        next if $next eq '' || $next =~ /^#/ || length $blank == 2;

        push @findings, [line_of($text, $-[0]),
                         'not two empty lines after a function'];
    }

    my @lines = split /^/, $text;

    while ($code =~ /^(\w[^\n;]*)\n(\w+)\([^;{]*\)\n\{/mg) {
        my ($name, $line) = ($2, line_of($code, $-[0]));
        my $before = join '', @lines[0 .. $line - 2];

        next if $before =~ m{(?:\n\n\n|\*/\n\n?|^#[^\n]*\n+)\z}m;

        push @findings, [$line,
                         "$name: not two empty lines before a function"];
    }

    return @findings;
}


# the prefix shows the layer

sub check_prefix {
    my ($file, $code) = @_;

    return if $file =~ m{^t/};

    my $prefix = $file =~ m{(?:^|/)ratelimit[^/]*$} ? 'ratelimit_'
                                                     : 'ngx_http_ratelimit_';
    my $upper = uc $prefix;
    my @findings;

    for my $item (items($code)) {
        my ($line, $head) = @$item{qw(line head)};
        my $name;

        $head =~ s/\[[^\]]*\]/[]/g;

        if ($head =~ /^(?:typedef|struct|union|enum)\b/) {
            $name = $head =~ /\}\s*(\w+)[^}]*$/ ? $1
                  : $head =~ /\(\*(\w+)\)/ ? $1
                  : $head =~ /(\w+)\s*(?:\{|;|$)/ ? $1 : '';

        } elsif ($head =~ /^extern\b/) {
            next;

        } elsif ($head =~ /^[^=]*\(/s) {
            $name = function_name($head);

        } elsif ($head =~ /(\w+)\s*(?:\[[^=]*\]\s*)*(?:=|;|\{|$)/) {
            $name = $1;
        }

        next if !defined $name || $name eq '';
        next if $name =~ /^\Q$prefix\E/ || $name . '_' eq $prefix;

        push @findings, [$line, "$name lacks the prefix $prefix"];
    }

    while ($code =~ /^#\s*define\s+(\w+)/mg) {
        my $name = $1;

        next if $name =~ /^_?\Q$upper\E/ || $name =~ /^_GNU_SOURCE$/;
        next if $name =~ /^\Q$prefix\E/;

        push @findings, [line_of($code, $-[0]),
                         "$name lacks the prefix $upper"];
    }

    return @findings;
}


sub check_guard {
    my ($file, $text) = @_;

    my ($base) = $file =~ m{([^/]+)\.h$};
    my $guard = '_' . uc($base) . '_H_INCLUDED_';

    return if $text =~ m{
        \n\#ifndef[ ]$guard\n
        \#define[ ]$guard\n\n\n[^\n]
        .*[^\n]\n\n\n
        \#endif[ ]/\*[ ]$guard[ ]\*/\n\z
    }xs;

    return [1, "no header guard $guard, two empty lines inside each end"];
}


# declarations and definitions of a file, without preprocessor lines

sub items {
    my ($code) = @_;

    $code =~ s{^(#(?:[^\n]*\\\n)*[^\n]*)}{$1 =~ tr/\n//cdr}mge;

    my @items;
    my $braces;
    $braces = qr/\{(?:[^{}]++|(??{ $braces }))*\}/;

    while ($code =~ /\G\s*/gc && pos($code) < length $code) {
        my $start = pos $code;
        my %item = (line => line_of($code, $start));

        if ($code =~ /\G((?:typedef|struct|union|enum)\b[^;{(]*$braces[^;]*;)/gc
            || $code =~ /\G([^;{]*=\s*(?:$braces)[^;]*;)/gc
            || $code =~ /\G([^;{]*;)/gc)
        {
            $item{head} = $1;

        } elsif ($code =~ /\G([^;{]*)($braces)/gc) {
            @item{qw(head body)} = ($1, $2);

        } else {
            push @items, {line => $item{line}, head => 'unbalanced braces'};
            last;
        }

        push @items, \%item;
    }

    return @items;
}


# of attributes, only the name before the last list of arguments counts

sub function_name {
    my ($head) = @_;

    $head =~ s/__attribute__\s*\(\(.*?\)\)\s*(?=\n|\w|;)//s;

    return $head =~ /\b(\w+)\(/ ? $1 : '';
}


# comments and strings become blanks, lines and columns stay

sub blank_out {
    my ($text) = @_;

    $text =~ s{(/\*.*?\*/)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')}{
        defined $1 ? $1 =~ s/[^\n]/ /gr : '"' . ' ' x (length($2) - 2) . '"'
    }gse;

    $text =~ s/ +$//mg;

    return $text;
}


sub line_of {
    my ($text, $pos) = @_;

    return 1 + (substr($text, 0, $pos) =~ tr/\n//);
}


sub sort_findings {
    my ($file, @findings) = @_;

    return map { "$file:$_->[0]: $_->[1]" }
           sort { $a->[0] <=> $b->[0] } @findings;
}


# Places that share lines of the same text, or of the same shape: whatever the
# names, strings and numbers are.  What is between two stretches of such lines
# may differ.

sub check_repeats {
    my ($kind, %code) = @_;

    my @lines = map { (code_lines($kind, $_, $code{$_}), [$_, 0, "end of $_"]) }
                sort keys %code;
    my @shapes = map { $_->[2] } @lines;
    my (%places, %walked, @findings);

    for my $i (0 .. @shapes - ALIKE) {
        my $shape = join "\n", @shapes[$i .. $i + ALIKE - 1];

        for my $j (@{$places{$shape}}) {
            next if $walked{"$j $i"};

            my ($shared, $end, $last) = walk(\@shapes, \%walked, $j, $i);

            push @findings, "$lines[$j][0]:$lines[$j][1]-$lines[$end][1] and "
                            . "$lines[$i][0]:$lines[$i][1]-$lines[$last][1] "
                            . "share $shared lines"
                if $shared > MAX_SHARED && $end < $i;
        }

        push @{$places{$shape}}, $i;
    }

    return @findings;
}


# how many lines are shared from two places on, and the last one of each

sub walk {
    my ($shapes, $walked, $one, $two) = @_;

    my $shared = 0;

    while (1) {
        while ($two < @$shapes && $shapes->[$one] eq $shapes->[$two]) {
            $walked->{$one++ . ' ' . $two++} = 1;
            $shared++;
        }

        my ($gap) = grep { alike($shapes, $one + $_->[0], $two + $_->[1]) }
                    sort { $a->[0] + $a->[1] <=> $b->[0] + $b->[1] }
                    map { my $n = $_; map { [$n, $_] } 0 .. BETWEEN }
                    0 .. BETWEEN;

        return ($shared, $one - 1, $two - 1) if !$gap;

        $one += $gap->[0];
        $two += $gap->[1];
    }
}


sub alike {
    my ($shapes, $one, $two) = @_;

    for my $i (0 .. ALIKE - 1) {
        return 0 if $two + $i >= @$shapes
                    || $shapes->[$one + $i] ne $shapes->[$two + $i];
    }

    return 1;
}


# what functions do: file, number, and text or shape of each line that says
# something; lines of one shape in a row are a list, which counts as one

sub code_lines {
    my ($kind, $file, $text) = @_;

    my $code = blank_out($text);
    my $comment = $file =~ /\.lua$/ ? qr/--.*/ : qr{//.*};
    my @bodies = $file !~ /\.[ch]$/ ? [1, $code =~ s/$comment//gr]
                 : map { [$_->{line} + ($_->{head} =~ tr/\n//), $_->{body}] }
                   grep { defined $_->{body} } items($code);
    my @lines;

    for my $body (@bodies) {
        my ($number, $code) = @$body;

        for (split /\n/, $code) {
            my $line = $kind eq 'text' ? s/^\s+//r : shape($_);

            push @lines, [$file, $number, $line]
                if $line !~ /^(?:break|end|else|[\s{}();,])*$/
                   && ($kind eq 'text' || !@lines || $lines[-1][2] ne $line);

            $number++;
        }
    }

    return @lines;
}


# declarations have none

sub shape {
    local ($_) = @_;

    my $words = qr/(?:if|else|for|while|do|switch|case|default|return|goto
                      |break|continue|function|local|const|let|then|end)\b/x;

    s/"[^"]*"|\b(?!$words)\w+/x/g;
    s/x(?:(?:->|\.)x)+/x/g;
    s/^\s+//;
    s/\s+/ /g;

    return /^(?:const )?(?:x )+\**x(?:\[.*\])*(?:, \**x(?:\[.*\])*)*;$/ ? '' : $_;
}


# other files

sub check_test {
    my ($file, $text) = @_;

    my @findings;
    my $all = 'skip_' . 'all';

    push @findings, [line_of($text, $-[0]), "$1 hides tests"]
        while $text =~ /^--- (ONLY|LAST|SKIP)\b/mg;

    push @findings, [line_of($text, $-[0]), "$1 hides tests"]
        while $text =~ /\b($all\b|SKIP(?=:))/g;

    return sort_findings($file, @findings);
}


# Loopback only.  Addresses that are reserved for documentation are fine as
# data, such as a value of X-Forwarded-For, but nothing listens or connects
# there.

sub check_addresses {
    my ($file, $text) = @_;

    my @lines = split /\n/, $text;
    my @findings;

    for my $i (0 .. $#lines) {
        while ($lines[$i] =~ /(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?![\d.])/g) {
            my $address = $1;

            next if $address =~ /^127\./;
            next if $address =~ /^(?:192\.0\.2|198\.51\.100|203\.0\.113)\./
                    && $lines[$i] !~ /\b(?:listen|server|upstream|resolver)\s
                                      |_pass\s/x;

            push @findings, [$i + 1, "$address is not a loopback address"];
        }

        push @findings, [$i + 1, 'not a loopback address']
            if $lines[$i] =~ /\b(?:listen|server|\w+_pass)\s.*\[(?!::1\])[\da-f]*:/;
    }

    return sort_findings($file, @findings);
}


sub check_text {
    my ($file, $text) = @_;

    my @findings = grep { $_->[1] ne 'the first line is not empty' }
                   check_lines($file, $text);

    @findings = grep { $_->[1] ne 'tab' } @findings if $file eq 'Makefile';

    return sort_findings($file, @findings);
}


# what happens has a named subject: the worker, the request, the client

# sentences are about the client, the worker, the operator; a title may ask

sub check_words {
    my ($file, $text) = @_;

    my @findings;

    push @findings, [line_of($text, $-[0]), "\"$1\" names no subject"]
        while $text =~ /(?:\bWho[ ]may[ ]see[ ]it\b|\#who-may-see-it\b)
                        (*SKIP)(*FAIL)
                        |\b(who|whom|whoever|nobody|somebody|anybody
                             |his|her|he|she|anew|away)\b/gix;

    return sort_findings($file, @findings);
}


sub check_hosts {
    my ($file, $text) = @_;

    my @findings;

    push @findings, [line_of($text, $-[0]), 'host of a package mirror']
        while $text =~ m{https?://[^\s/]*(?:\.debian\.org|/debian\b|registry)}g;

    return sort_findings($file, @findings);
}


sub files {
    my @found;

    find({
        no_chdir => 1,
        preprocess => sub { sort grep { !/^(?:\.git|build|servroot.*)$/ } @_ },
        wanted => sub { push @found, s{^\./}{}r if -f && !-B _ || -z _ },
    }, '.');

    return @found;
}


sub slurp {
    my ($path) = @_;

    open(my $fh, '<:raw', $path) or die "$path: $!";
    local $/;

    return scalar(<$fh>) // '';
}


# each rule sees an error that was put into a faultless text

sub self_test {
    my $good = join '', <DATA>;
    my $file = 'src/http/ngx_http_ratelimit_sample.c';

    my @planted = (
        [qr/longer than/,         's/say: why/"say: " . "why " x 9/e'],
        [qr/tab/,                 's/^    n = 0/\tn = 0/m'],
        [qr/trailing blank/,      's/n = 0;$/n = 0; /m'],
        [qr/carriage return/,     's/n = 0;$/n = 0;\r/m'],
        [qr/first line/,          's/^\n//'],
        [qr/newline at the end/,  's/\n\z//'],
        [qr{// comment},          's/n = 0;/n = 0;  \/\/ why/'],
        [qr/no blank before \(/,  's/if \(n/if(n/'],
        [qr/no blank before \{/,  's/\) \{/){/'],
        [qr/empty line before e/, 's/\n\n    \} else/\n    } else/'],
        [qr/else not behind/,     's/\} else \{/}\n    else {/'],
        [qr/else without/,        's/\} else \{/} else/'],
        [qr/sizeof/,              's/sizeof\(int\)/sizeof(*p)/'],
        [qr/on one line/,         's/if \(n\) \{/if (n) n = 1;/'],
        [qr/after a comma/,       's/r, 1\)/r,1)/'],
        [qr/star at the type/,    's/request_t \*r\)/request_t* r)/'],
        [qr/assignment in a/,     's/if \(n\)/if (n = 1)/'],
        [qr/no brace/,            's/if \(n\) \{/if (n)/'],
        [qr/wrapped condition/,   's/&& p\)\n    \{/&& p) {/'],
        [qr/return type/,         's/^static int\n/static int /m'],
        [qr/brace not alone/,     's/r, int \*p\)\n\{/r, int *p) {/'],
        [qr/body of \d+ lines/,   's/(    n = 0;\n)/$1 x 60/e'],
        [qr/empty lines in the/,  's/(n = 0;\n)/$1\n\n/'],
        [qr/three empty lines/,   's/^static int\n/\n$&/m'],
        [qr/no prototype/,        's/^static int .*?;\n//ms'],
        [qr/lines after a func/,  's/^\}\n\n\n/}\n\n/m'],
        [qr/lines before a func/, 's/;\n\n\nint\n/;\n\nint\n/'],
        [qr/count lacks the pre/, 's/ratelimit_count\b/count/'],
        [qr/sample_t lacks the/,  's/ngx_http_ratelimit_(sample_t)/$1/'],
        [qr/other lacks the pre/, 's/ngx_http_ratelimit_other/other/g'],
        [qr/LIMIT lacks the pre/, 's/NGX_HTTP_RATELIMIT_(LIMIT)/$1/'],
    );

    subtest 'the checks can fail' => sub {
        is(join("\n", check_c($file, $good)), '', 'a faultless text');

        for my $case (@planted) {
            my ($finding, $change) = @$case;

            local $_ = $good;
            eval $change;
            die "$change: $@" if $@;
            isnt($_, $good, "$change changes the text");

            like(join("\n", check_c($file, $_)), $finding, $change);
        }

        self_test_guard();
        self_test_repeats();
        self_test_others();
    };
}


sub self_test_guard {
    my $file = 'src/core/ratelimit_x.h';
    my $guard = '_RATELIMIT_X_H_INCLUDED_';
    my $good = "\n/* x */\n\n\n#ifndef $guard\n#define $guard\n\n\nint "
               . "ratelimit_x(void);\n\n\n#endif /* $guard */\n";

    is(join("\n", check_c($file, $good)), '', 'a faultless header');
    like(join("\n", check_c($file, $good =~ s/_X_H_/_Y_H_/r)),
         qr/header guard/, 'a header of another guard');
    like(join("\n", check_c($file, $good =~ s/ratelimit_x/rl_x/r)),
         qr/rl_x lacks/, 'a header without the prefix');
}


sub self_test_repeats {
    my @lines = map { "    n = ratelimit_f$_(" . '1, ' x $_ . "p->n);\n" }
                1 .. MAX_SHARED + 1;
    my $one = "static int\nratelimit_one(int n)\n{\n" . join('', @lines)
              . "}\n";
    my $two = $one =~ s/ratelimit_(?:one|f)/$&_other/gr =~ s/p->n/"text"/gr;
    my $short = "int\nratelimit_two(int n)\n{\n"
                . join('', @lines[1 .. MAX_SHARED]) . "}\n";
    my $far = $two =~ s/^(.*other4.*\n)/$1    if (n) {\n        n--;\n    }\n/mr;

    like(join("\n", check_repeats('shape', 'a.c' => $one, 'b.c' => $_)),
         qr/a\.c:4-14 and b\.c:4-1\d share 11 lines/, 'code that is repeated')
        for $two, $far;
    like(join("\n", check_repeats('shape', 'a.c' => "$one\n\n$two")),
         qr/a\.c:4-14 and a\.c:21-31 share/, 'in one file');
    like(join("\n", check_repeats('text', 'a.c' => $one, 'b.c' => $one)),
         qr/share 11 lines/, 'by copying');
    is(join("\n", check_repeats('text', 'a.c' => $one, 'b.c' => $two)), '',
       'another text');
    is(join("\n", check_repeats('shape', 'a.c' => $one, 'b.c' => $short)), '',
       'a line less');
}


sub self_test_others {
    my $all = 'skip_' . 'all';

    ok(scalar(check_test('x.t', "--- $_\n")), "--- $_")
        for qw(ONLY LAST SKIP);
    ok(scalar(check_test('x.t', "plan $all => 1")), 'a test that is left out');
    ok(!check_test('x.t', "--- request\n"), 'a faultless test');

    my @bad = ('listen 192.0.' . '2.1:80;', 'proxy_pass http://8.8.' . '8.8;',
               'X-Forwarded-For: 10.0.' . '0.1',
               'listen [' . '2001:db8::1]:80;');
    my @good = ('listen 127.0.0.1:80;', 'listen [::1]:80;',
                'X-Forwarded-For: 192.0.2.1', 'deny 2001:db8::1;');

    ok(scalar(check_addresses('x.conf', $_)), $_) for @bad;
    ok(!check_addresses('x.conf', $_), $_) for @good;

    ok(scalar(check_words('x.md', "a limit of $_\n")), "the word $_")
        for qw(who whom nobody anew);
    ok(!check_words('x.md', $_), 'plain words')
        for "a limit whose rate is always\n", "## Who may see it\n";

    ok(scalar(check_hosts('x', 'http:' . '//x.debian.org/')), 'a mirror');
    ok(scalar(check_text('x', "a\tb\n")), 'a tab');
    ok(!check_text('Makefile', "\ta\n"), 'a tab of a makefile');
}


__DATA__

/*
 * Says why.
 */


#include <ngx_config.h>


#define NGX_HTTP_RATELIMIT_LIMIT  10


typedef struct {
    int                             n;
} ngx_http_ratelimit_sample_t;


static int ngx_http_ratelimit_other(ngx_http_request_t *r,
    int *p);


static int  ngx_http_ratelimit_count = sizeof(int);


int
ngx_http_ratelimit_sample(ngx_http_request_t *r)
{
    return ngx_http_ratelimit_other(r, 1);
}


static int
ngx_http_ratelimit_other(ngx_http_request_t *r, int *p)
{
    int  n;

    /* some lines are quite long and say: why */
    n = 0;

    if (n) {
        n = 1;

    } else {
        n = 2;
    }

    if (n
        && p)
    {
        n = 3;
    }

    return n;
}
