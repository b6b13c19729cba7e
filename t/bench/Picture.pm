# A plot of lines, as SVG.

package Picture;

use strict;
use warnings;

use List::Util qw(max min);

use constant {
    WIDTH => 720,
    HEIGHT => 420,
    LEFT => 70,
    RIGHT => 230,
    TOP => 40,
    BOTTOM => 50,
};

my @COLOURS = map { "#$_" } qw(1b6ca8 6fb1e0 2e8b57 8fd19e c0392b e8a098);


# title, x, y (names of the axes), log (both axes), lines: [name, [x, y]...]

sub plot {
    my (%plot) = @_;

    my @points = map { @$_[1 .. $#$_] } @{$plot{lines}};
    my $x = axis($plot{log}, map { $_->[0] } @points);
    my $y = axis($plot{log}, map { $_->[1] } @points);

    my $svg = text(LEFT, 22, $plot{title}, 'font-weight="bold"');

    $svg .= grid($x, $y);
    $svg .= text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, $plot{x},
                 'text-anchor="middle"');
    $svg .= sprintf '<text transform="translate(16 %d) rotate(-90)" '
                    . "text-anchor=\"middle\">%s</text>\n",
                    (TOP + HEIGHT - BOTTOM) / 2, $plot{y};

    for my $i (0 .. $#{$plot{lines}}) {
        $svg .= line($x, $y, $i, @{$plot{lines}[$i]});
    }

    return sprintf qq{<svg xmlns="http://www.w3.org/2000/svg" width="%d" }
        . qq{height="%d" viewBox="0 0 %d %d" font-family="sans-serif" }
        . qq{font-size="12">\n<rect width="100%%" height="100%%" }
        . qq{fill="white"/>\n%s</svg>\n}, (WIDTH, HEIGHT) x 2, $svg;
}


# from, to, and where lines of a grid are

sub axis {
    my ($log, @values) = @_;

    return logarithmic(@values) if $log;

    my $most = max(@values);
    my $step = 10 ** int(log($most) / log(10));

    $step /= 2 while $most / $step < 4;

    my $from = min(@values) < $most / 4 ? 0
             : int(min(@values) / $step) * $step;
    my @ticks;

    for (my $at = $from; $at < $most + $step; $at += $step) {
        push @ticks, $at;
    }

    return { from => $from, to => $ticks[-1], ticks => \@ticks };
}


sub logarithmic {
    my (@values) = @_;

    my $from = floor10(min(@values));
    my $to = floor10(max(@values) * 0.999999) + 1;

    return { log => 1, from => $from, to => $to,
             ticks => [map { 10 ** $_ } $from .. $to] };
}


sub floor10 {
    my ($value) = @_;

    my $log = log($value) / log(10) + 1e-9;

    return $log >= 0 ? int $log : -int(-$log) - (int($log) != $log);
}


sub share {
    my ($axis, $value) = @_;

    $value = log($value) / log(10) if $axis->{log};

    return ($value - $axis->{from}) / ($axis->{to} - $axis->{from});
}


sub at_x {
    my ($axis, $value) = @_;

    return LEFT + share($axis, $value) * (WIDTH - LEFT - RIGHT);
}


sub at_y {
    my ($axis, $value) = @_;

    return HEIGHT - BOTTOM - share($axis, $value) * (HEIGHT - TOP - BOTTOM);
}


sub grid {
    my ($x, $y) = @_;

    my $svg = '';

    for my $tick (@{$x->{ticks}}) {
        $svg .= stroke(at_x($x, $tick), TOP, at_x($x, $tick),
                       HEIGHT - BOTTOM);
        $svg .= text(at_x($x, $tick), HEIGHT - BOTTOM + 16, number($tick),
                     'text-anchor="middle"');
    }

    for my $tick (@{$y->{ticks}}) {
        $svg .= stroke(LEFT, at_y($y, $tick), WIDTH - RIGHT,
                       at_y($y, $tick));
        $svg .= text(LEFT - 6, at_y($y, $tick) + 4, number($tick),
                     'text-anchor="end"');
    }

    return $svg;
}


sub line {
    my ($x, $y, $i, $name, @points) = @_;

    my $colour = $COLOURS[$i % @COLOURS];
    my $height = TOP + 14 + 20 * $i;
    my $path = join ' ', map {
        sprintf '%.1f,%.1f', at_x($x, $_->[0]), at_y($y, $_->[1])
    } @points;

    return sprintf(qq{<polyline points="%s" fill="none" stroke="%s" }
                   . qq{stroke-width="2"/>\n}, $path, $colour)
        . sprintf(qq{<rect x="%d" y="%d" width="18" height="3" fill="%s"/>\n},
                  WIDTH - RIGHT + 14, $height - 5, $colour)
        . text(WIDTH - RIGHT + 38, $height, $name);
}


sub stroke {
    return sprintf qq{<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" }
                   . qq{stroke="#ddd"/>\n}, @_;
}


sub text {
    my ($x, $y, $text, $more) = @_;

    return sprintf qq{<text x="%.1f" y="%.1f"%s>%s</text>\n}, $x, $y,
                   $more ? " $more" : '', $text;
}


sub number {
    my ($number) = @_;

    $number = sprintf '%g', $number if $number < 1000;

    1 while $number =~ s/^(\d+)(\d{3})/$1,$2/;

    return $number;
}


1;
