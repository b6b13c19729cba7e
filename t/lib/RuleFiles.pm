package RuleFiles;

# Rule files in a folder of their own, which goes when the object goes.
#
#     my $files = RuleFiles->new('auth.yaml' => "domain: auth\n...");
#     my $directive = "ratelimit_rules $files->{dir}/*.yaml zone=rules:1m;";
#     $files->write('auth.yaml' => $other);

use strict;
use warnings;

use File::Path qw(remove_tree);
use File::Temp qw(tempdir);


sub new {
    my ($class, %file) = @_;

    my $self = bless {
        owner => $$,
        dir => tempdir('ratelimit-rules-XXXXXX', TMPDIR => 1),
    }, $class;

    chmod 0755, $self->{dir};
    $self->write($_ => $file{$_}) for sort keys %file;

    return $self;
}


sub write {
    my ($self, $name, $text) = @_;

    open my $file, '>', "$self->{dir}/$name" or die "$name: $!";
    print $file $text;
    close $file or die "$name: $!";
}


sub DESTROY {
    my ($self) = @_;

    remove_tree($self->{dir}) if $self->{owner} == $$;
}


1;
