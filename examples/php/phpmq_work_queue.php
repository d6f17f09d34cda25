<?php
// Publish two jobs to a PHPMQ queue, and acknowledge them from a second connection. Needs no library.
declare(strict_types=1);

const QUEUE = 'example-php-jobs';

// Message types and packet types of PHPMQ 1.
const SEND = 1;
const SUBSCRIBE = 2;
const DISPATCH = 3;
const ACK = 4;
const QUEUE_PACKET = 1;
const BODY_PACKET = 2;
const ID_PACKET = 3;
const COUNT_PACKET = 4;

/** @param array<int, string> $packets packet type => content, in the order of the packet types */
function encode(int $type, array $packets): string
{
    $message = sprintf('H01%03d%02d', $type, count($packets));
    foreach ($packets as $packet => $content) {
        $message .= sprintf('P%02d%029d', $packet, strlen($content)) . $content;
    }
    return $message;
}

/** @return resource */
function connect(int $port)
{
    $socket = stream_socket_client("tcp://127.0.0.1:$port", $code, $reason, 10);
    if ($socket === false) {
        throw new RuntimeException("cannot connect to port $port: $reason");
    }
    stream_set_timeout($socket, 30);
    return $socket;
}

/** @param resource $socket */
function read_bytes($socket, int $length): string
{
    $bytes = $length ? stream_get_contents($socket, $length) : '';
    if ($bytes === false || strlen($bytes) < $length) {
        throw new RuntimeException('the connection ended, or no message arrived in time');
    }
    return $bytes;
}

/**
 * @param resource $socket
 * @return array<int, string> packet type => content
 */
function read_dispatch($socket): array
{
    [$version, $type, $count] = sscanf(read_bytes($socket, 8), 'H%2d%3d%2d');
    if ($version !== 1 || $type !== DISPATCH) {
        throw new RuntimeException("unexpected message: version $version, type $type");
    }
    $packets = [];
    while ($count-- > 0) {
        [$packet, $length] = sscanf(read_bytes($socket, 32), 'P%2d%29d');
        $packets[$packet] = read_bytes($socket, $length);
    }
    return $packets;
}

$port = (int) ($argv[1] ?? 9100);
$publisher = connect($port);
foreach (['resize 1.png', 'resize 2.png'] as $body) {
    fwrite($publisher, encode(SEND, [QUEUE_PACKET => QUEUE, BODY_PACKET => $body]));
}

$worker = connect($port);
fwrite($worker, encode(SUBSCRIBE, [QUEUE_PACKET => QUEUE, COUNT_PACKET => '1']));
for ($job = 1; $job <= 2; $job++) {
    $message = read_dispatch($worker);
    fwrite($worker, encode(ACK, [QUEUE_PACKET => QUEUE, ID_PACKET => $message[ID_PACKET]]));
    echo "processed {$message[BODY_PACKET]}\n";
}
