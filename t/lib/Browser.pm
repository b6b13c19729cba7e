package Browser;

# A real Chromium, without a window: pages are opened, read and used as people
# do.
#
#     my $browser = Browser->start;
#     my $page = $browser->open($url, width => 375, dark => \1);
#     $page->wait('document.title == "ready"');
#     is($page->text('#total'), 12);
#     $page->click('#more');
#     is($page->problems, '', 'nothing on the console');
#
# It ends with the object.

use strict;
use warnings;

use IPC::Open2;
use JSON::PP;

my $json = JSON::PP->new->utf8->allow_nonref;


sub start {
    my ($class) = @_;

    local $ENV{NODE_PATH} = 'build/npm/node_modules';

    my $self = bless { owner => $$ }, $class;

    $self->{pid} = open2($self->{out}, $self->{in}, 'node',
                         't/node/browser.js');

    return $self;
}


# what the browser says to it; dies of its errors

sub call {
    my ($self, @words) = @_;

    print {$self->{in}} $json->encode(\@words), "\n";
    $self->{in}->flush;

    my $line = readline $self->{out};

    die 'the browser is gone' if !defined $line;

    my $answer = $json->decode($line);

    die "the browser says: $answer->{error}" if defined $answer->{error};

    return $answer->{value};
}


sub open {
    my ($self, $url, %option) = @_;

    my $page = $self->call('open', $url, \%option);

    return bless { browser => $self, page => $page }, 'Browser::Page';
}


# Chromium closes when there is nothing more to do

sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$;

    local ($?, $@);

    close $self->{in};
    waitpid $self->{pid}, 0;
}


package Browser::Page;


sub AUTOLOAD {
    my ($self, @arguments) = @_;

    our $AUTOLOAD;
    my ($name) = $AUTOLOAD =~ /(\w+)$/;

    return $self->{browser}->call($name, $self->{page}, @arguments);
}


sub DESTROY { }


# the text that is shown

sub text {
    my ($self, $selector) = @_;

    return $self->value("document.querySelector(\"$selector\").innerText");
}


# all that went wrong since the last call

sub problems {
    my ($self) = @_;

    return join "\n", @{$self->{browser}->call('problems', $self->{page})};
}


1;
