package Configuration;

# A configuration file in a folder of its own, and what "nginx -t" says of it.
#
#     my $line = write_conf('http {', 'ratelimit_zone;', '}');
#     is(test_conf(), refused($message, "$conf:$line"), $name);

use strict;
use warnings;

use Exporter qw(import);
use File::Spec;
use File::Temp qw(tempdir);
use Test::More;

our @EXPORT = qw($dir $conf $settings write_conf write_file test_conf refused
                 passed must_be);

my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';
my $module = File::Spec->rel2abs($ENV{RATELIMIT_MODULE}
                                 || 'build/ngx_http_ratelimit_module.so');

$ENV{PATH} .= ':/usr/sbin:/sbin';

BAIL_OUT("there is no $module") if !-f $module;

# paths that do not depend on the user or on how nginx was built
our $dir = tempdir(CLEANUP => 1);
our $conf = "$dir/nginx.conf";

# what each http block needs for it
our $settings = join ' ',
    'access_log off;',
    map { "${_}_temp_path $dir/$_;" }
        qw(client_body proxy fastcgi uwsgi scgi);


# Returns the number of the line that is to blame: the last one of the text,
# unless another one is marked with "# here".

sub write_conf {
    my ($head, $text, $tail) = @_;

    my $before = "load_module $module;\n"
                 . "pid $dir/nginx.pid; events {}\n$head\n";
    my $marked = ($text =~ /\A(.*)# here/s) ? $1 : $text;

    write_file($conf, "$before$text\n$tail\n");

    return 1 + ("$before$marked" =~ tr/\n//);
}


sub write_file {
    my ($path, $text) = @_;

    open(my $fh, '>', $path) or die "$path: $!";
    print $fh $text;
    close($fh) or die "$path: $!";
}


# All that nginx says, if its exit code agrees.  Warnings of zones that no limit
# uses are left out, unless they are asked for.

sub test_conf {
    my (%option) = @_;

    my $said = `'$nginx' -t -p '$dir' -e '$dir/error.log' -c '$conf' 2>&1`;
    my $failed = $said =~ /test failed$/m ? 1 : 0;

    $said =~ s/^nginx: \[warn\] zone .* is used by no .*\n//mg
        if !$option{unused};

    return $said if $? == $failed << 8;

    return "${said}exit code $?\n";
}


sub refused {
    my ($message, $place) = @_;

    return "nginx: [emerg] $message in $place\n"
           . "nginx: configuration file $conf test failed\n";
}


# the warnings are pairs of message and place

sub passed {
    my (@warnings) = @_;

    my $warned = '';

    while (my ($message, $place) = splice @warnings, 0, 2) {
        $warned .= "nginx: [warn] $message in $place\n";
    }

    return "${warned}nginx: the configuration file $conf syntax is ok\n"
           . "nginx: configuration file $conf test is successful\n";
}


# as a message lists what may be written

sub must_be {
    my @words = map { qq("$_") } @_;
    my $last = pop @words;

    return 'must be ' . join ' or ', @words ? join(', ', @words) : (), $last;
}


1;
