package ServiceCalls;

# Calls of a location that has "ratelimit_service".
#
#     my $calls = ServiceCalls->new($clients, '/json');
#     my $answer = $calls->ask('auth', { ip => 'a' });
#     is(ServiceCalls::short($answer), 'OK OK 4/5 MINUTE');
#
# A descriptor is a hash, or a list of keys and values; what begins with a dash
# are members of the descriptor: -hitsAddend, -limit, -isNegativeHits.
#
#     my @answers = ServiceCalls::grpc($port, { domain => 'auth', ... });

use strict;
use warnings;

use File::Temp;
use JSON::PP;


sub new {
    my ($class, $clients, $path, @fields) = @_;

    return bless { clients => $clients, path => $path, fields => \@fields },
           $class;
}


sub message {
    my ($domain, @descriptors) = @_;

    my %more = ref $descriptors[-1] eq 'SCALAR'
               ? (hitsAddend => ${pop @descriptors}) : ();

    return { domain => $domain, %more,
             descriptors => [map { descriptor($_) } @descriptors] };
}


sub descriptor {
    my ($given) = @_;

    my @pairs = ref $given eq 'HASH' ? map { ($_ => $given->{$_}) }
                                       sort keys %$given : @$given;
    my (@entries, %more);

    while (my ($key, $value) = splice @pairs, 0, 2) {
        if ($key =~ /^-(.*)/) {
            $more{$1} = $value;
        } else {
            push @entries, { key => $key, value => $value };
        }
    }

    return { entries => \@entries, %more };
}


# of a domain and descriptors, or of a text

sub ask {
    my ($self, @call) = @_;

    my $text = @call == 1 ? $call[0] : encode_json(message(@call));
    my $client = $self->{clients}->connect;

    Clients::put($client, $self->{clients}->text("POST $self->{path}",
                 'Content-Type: application/json', @{$self->{fields}},
                 'Content-Length: ' . length $text) . $text);
    Clients::await_answers(1, $client);

    my $answer = $client->{answers}[0];

    $answer->{json} = eval { decode_json($answer->{body}) };

    return $answer;
}


# what a client of gRPC gets for each message, or text of JSON

sub grpc {
    my ($port, @messages) = @_;

    local $ENV{NODE_PATH} = 'build/npm/node_modules';

    my $input = File::Temp->new;

    print $input map { (ref $_ ? encode_json($_) : $_) . "\n" } @messages;
    close $input;

    return map { decode_json($_) }
           `node t/node/service.js 127.0.0.1:$port < $input`;
}


sub health {
    my ($port, $name) = @_;

    my ($said) = grpc($port, { health => $name });

    return $said->{response}{status};
}


# overall code, and code, what is left, limit and unit of each status

sub short {
    my ($json) = @_;

    return join ' ', $json->{overallCode}, map { status($_) }
                     @{$json->{statuses}};
}


sub status {
    my ($status) = @_;

    my $limit = $status->{currentLimit};
    my $left = $status->{limitRemaining} // 0;

    return $status->{code} . ($left ? "($left)" : '') if !$limit;
    return sprintf '%s(%d of %d/%s%s)', $status->{code}, $left,
                   $limit->{requestsPerUnit} // 0, $limit->{unit},
                   $limit->{name} ? " $limit->{name}" : '';
}


1;
