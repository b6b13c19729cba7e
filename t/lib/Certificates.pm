package Certificates;

# Certificates of a test's own, made by openssl, in a folder that goes with the
# object.  Paths of what was made are "$c->{dir}/NAME.pem" and "NAME.key".
#
#     my $c = Certificates->new;                   # and an authority, "ca"
#     $c->issue('server', names => 'DNS:localhost,IP:127.0.0.1');
#     $c->issue('old', names => 'DNS:localhost', days => -5);
#     $c->authority('other');
#     $c->issue('theirs', names => 'DNS:localhost', ca => 'other');

use strict;
use warnings;

use File::Path qw(remove_tree);
use File::Temp qw(tempdir);

use constant CONFIG => "[req]\ndistinguished_name = dn\n[dn]\n";


sub new {
    my ($class) = @_;

    my $self = bless {
        owner => $$,
        dir => tempdir('ratelimit-tls-XXXXXX', TMPDIR => 1),
    }, $class;

    # workers run as the user nobody
    chmod 0755, $self->{dir};

    open my $config, '>', "$self->{dir}/openssl.cnf" or die $!;
    print $config CONFIG;
    close $config or die $!;

    $self->authority('ca');

    return $self;
}


sub authority {
    my ($self, $name, @option) = @_;

    $self->request($name, '-addext', 'basicConstraints=critical,CA:TRUE',
                   @option);
}


# valid for so many days from now, or until so many days ago; extensions are in
# "also"

sub issue {
    my ($self, $name, %option) = @_;

    my $ca = "$self->{dir}/" . ($option{ca} // 'ca');

    local $self->{before} = $option{days} && $option{days} < 0
        ? ['faketime', '-f', $option{days} - 1 . 'd'] : [];

    $self->request($name, '-CA', "$ca.pem", '-CAkey', "$ca.key",
                   '-addext', 'basicConstraints=CA:FALSE',
                   $option{names} ? ('-addext',
                                     "subjectAltName=$option{names}") : (),
                   map { ('-addext', $_) } @{$option{also} // []});
}


sub request {
    my ($self, $name, @option) = @_;

    my $path = "$self->{dir}/$name";
    my @command = (@{$self->{before} // []}, 'openssl', 'req', '-x509',
                   '-config', "$self->{dir}/openssl.cnf", '-newkey', 'ec',
                   '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
                   '-keyout', "$path.key", '-out', "$path.pem",
                   '-days', @{$self->{before} // []} ? 1 : 30,
                   '-subj', "/CN=$name", @option);

    my $text = `@{[map { "'$_'" } @command]} 2>&1`;

    die "@command:\n$text" if $? != 0;

    # Redis does not run as root everywhere
    chmod 0644, "$path.key";
}


sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$;

    local ($?, $@);

    remove_tree($self->{dir});
}


1;
