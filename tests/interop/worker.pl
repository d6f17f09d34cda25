# A msglite client in another language, as scripts in the field are written: blocking, one small
# write per command, Nagle's algorithm left on, a blank at the end of a command without reply address.
use strict;
use warnings;
use IO::Socket::INET;

my ($port, $role, $count) = @ARGV;
my $socket = IO::Socket::INET->new("127.0.0.1:$port") or die "no connection: $!";
binmode $socket;
$socket->autoflush(1);

sub command { my ($line, $body) = @_; print $socket "$line\r\n" . (length $body ? "$body\r\n" : ''); }

sub message {
    my $line = <$socket>;
    die "the broker closed the connection" unless defined $line;
    $line =~ s/\r\n\z//;
    return undef if $line eq '*';
    my ($sigil, $length, $timeout, $to, $reply) = split / /, $line;
    die "unexpected: $line" unless $sigil eq '>';
    my $body = '';
    if ($length > 0) { read $socket, $body, $length; read $socket, my $end, 2; die unless $end eq "\r\n"; }
    return { to => $to, reply => $reply, body => $body };
}

if ($role eq 'worker') {
    for (1 .. $count) {
        command('< 20 jobs other', '');
        my $job = message() or die 'no job came';
        my $answer = reverse $job->{body};
        command('> ' . length($answer) . " 20 $job->{reply}", $answer);
    }
} elsif ($role eq 'asker') {
    for my $number (1 .. $count) {
        my $question = "question $number";
        command('? ' . length($question) . ' 20 jobs', $question);
        my $answer = message() or die 'no answer came';
        die "wrong: $answer->{body}" unless $answer->{body} eq reverse $question;
    }
} elsif ($role eq 'sender') {
    command('> ' . length("body $_") . ' 60 letters ', "body $_") for 1 .. $count;
    command('.', '');
    die 'the broker did not close' if <$socket>;
}
print "done\n";
