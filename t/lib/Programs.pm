package Programs;

# Programs that are built for a test, and whose results become results of it.

use strict;
use warnings;

use Exporter qw(import);
use Test::More;

our @EXPORT_OK = qw(command relay);


# every result of the program becomes one of ours

sub relay {
    my ($env, @command) = @_;

    my $plan;
    my $seen = 0;

    local @ENV{keys %$env} = values %$env;

    open(my $fh, '-|', "@command 2>&1") or return fail("@command: $!");

    while (my $line = <$fh>) {
        chomp $line;

        if ($line =~ /^(not )?ok \d+(?: - (.*))?$/) {
            ok(!$1, $2);
            $seen++;

        } elsif ($line =~ /^1\.\.(\d+)$/) {
            $plan = $1;

        } elsif ($line =~ /^# (.*)/) {
            note($1);

        } else {
            diag($line);
        }
    }

    close($fh);

    is($?, 0, 'ends well');
    is($plan, $seen, 'runs all that it planned');
}


sub command {
    my $command = join ' ', @_, '2>&1';
    my $text = `$command`;

    return 1 if $? == 0;

    diag("$command\n$text");

    return 0;
}


1;
