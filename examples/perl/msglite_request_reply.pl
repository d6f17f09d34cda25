#!/usr/bin/perl
# Send a request with msglite, and reply to it from a second connection. Needs only core modules.
use strict;
use warnings;
use IO::Socket::INET;

my $port = shift // 9813;
my $queue = 'example-reverse';

sub dial {
    my $socket = IO::Socket::INET->new("127.0.0.1:$port") or die "cannot connect to port $port: $!\n";
    $socket->autoflush(1);
    return $socket;
}

# Read the next message: "> LENGTH TIMEOUT TO REPLY-TO", then the body; "*" means that none arrived.
sub read_message {
    my ($socket) = @_;
    my $line = readline $socket // die "the broker closed the connection\n";
    $line =~ s/\r\n\z//;
    die "no message arrived\n" if $line eq '*';
    die "the broker refused the command: $line\n" unless $line =~ /\A> (\d+) \d+ \S+ ?(\S*)\z/;
    my ($length, $reply_to) = ($1, $2);
    read $socket, my $body, $length + 2 if $length;
    return (substr($body // '', 0, $length), $reply_to);
}

my ($server, $client) = (dial(), dial());
print $server "< 30 $queue\r\n";
print $client "? 5 30 $queue\r\nhello\r\n";

my ($request, $reply_to) = read_message($server);
my $reply = reverse $request;
print $server '> ' . length($reply) . " 30 $reply_to\r\n$reply\r\n";

my ($answer) = read_message($client);
print "reply: $answer\n";
