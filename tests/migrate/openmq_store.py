"""Write the files of an Open MQ instance byte by byte, without the code that reads them.

Names and numbers of classes are those of Open MQ 6. The result was compared with a store written by
Open MQ.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from struct import pack
from zlib import adler32

MS = 1_760_000_000_000
"""Default send time of messages."""
IP = bytes.fromhex("00000000000000000000ffff7f000001")
CORE = "com.sun.messaging.jmq.jmsserver.core."
UTIL = "com.sun.messaging.jmq.util."
STRING = "Ljava/lang/String;"


# --- Java objects --------------------------------------------------------------------------------


class Stream:
    """A serialization stream, which describes each class once and then refers to it."""

    def __init__(self) -> None:
        self.data = b"\xac\xed\x00\x05"
        self._handle = 0x7E0000
        self._described: dict[str, int] = {}

    def text(self, text: str | None) -> None:
        if text is None:
            self.data += b"\x70"
            return
        raw = text.encode()
        self.data += b"\x74" + pack(">H", len(raw)) + raw
        self._handle += 1

    def describe(
        self,
        name: str,
        flags: int,
        fields: list[tuple[str, str, str]],
        parent: tuple[str, int, list[tuple[str, str, str]]] | None = None,
    ) -> None:
        """Write a class. `fields` are (type, name, class of an object field), primitives first, as
        in Java."""
        if name in self._described:
            self.data += b"\x71" + pack(">I", self._described[name])
            return
        self._described[name] = self._handle
        self._handle += 1
        raw = name.encode()
        self.data += b"\x72" + pack(">H", len(raw)) + raw + pack(">QBH", 1, flags, len(fields))
        for type_code, field, kind in fields:
            self.data += type_code.encode() + pack(">H", len(field)) + field.encode()
            if type_code in "L[":
                self.text(kind)
        self.data += b"\x78"
        if parent is None:
            self.data += b"\x70"
        else:
            self.describe(*parent)

    def begin(self) -> None:
        """Begin an object, whose class and data follow."""
        self.data += b"\x73"

    def assign_handle(self) -> None:
        """Assign a handle to the object."""
        self._handle += 1


def consumer_uid(stream: Stream, number: int) -> None:
    """Write an Externalizable of eight bytes."""
    stream.begin()
    stream.describe(f"{CORE}ConsumerUID", 0x0C, [], (f"{UTIL}UID", 2, [("J", "id", "")]))
    stream.assign_handle()
    stream.data += b"\x77\x08" + pack(">q", number) + b"\x78"


def destination_uid(stream: Stream, queue: bool, name: str) -> None:
    unique = ("Q:" if queue else "T:") + name.replace("/", "_")
    stream.begin()
    parent = (f"{CORE}StringUID", 2, [("I", "hashCode", ""), ("L", "str", STRING)])
    fields = [("Z", "isQueue", ""), ("L", "name", STRING)]
    stream.describe(f"{CORE}DestinationUID", 2, fields, parent)
    stream.assign_handle()
    stream.data += pack(">i", 0)
    stream.text(unique)
    stream.data += pack(">?", queue)
    stream.text(name)


def size_string(stream: Stream, size: int | None) -> None:
    if size is None:
        stream.data += b"\x70"
        return
    stream.begin()
    stream.describe(f"{UTIL}SizeString", 2, [("J", "bytes", ""), ("L", "str", STRING)])
    stream.assign_handle()
    stream.data += pack(">q", size)
    stream.text(f"{size}b")


def destination(
    name: str,
    queue: bool = True,
    *,
    type: int = 0,
    messages: int = 100_000,
    memory: int | None = 10 << 30,
    largest: int | None = 10 << 20,
    limit: int = 2,
    dmq: bool = True,
    producers: int = 100,
    active: int = -1,
    backup: int = 0,
) -> bytes:
    """Return an entry of the file `destination`: its unique name and the destination."""
    stream = Stream()
    stream.text(("Q:" if queue else "T:") + name.replace("/", "_"))
    fields = [
        ("I", "countLimit", ""),
        ("I", "limit", ""),
        ("I", "maxPrefetch", ""),
        ("I", "maxProducerLimit", ""),
        ("I", "type", ""),
        ("Z", "useDMQ", ""),
        ("L", "memoryLimit", f"L{UTIL.replace('.', '/')}SizeString;"),
        ("L", "msgSizeLimit", f"L{UTIL.replace('.', '/')}SizeString;"),
        ("L", "uid", f"L{CORE.replace('.', '/')}DestinationUID;"),
    ]
    parent = (f"{CORE}Destination", 2, fields)
    stream.begin()
    if queue:
        queue_fields = [("I", "maxActiveCount", ""), ("I", "maxFailoverCount", "")]
        stream.describe(f"{CORE}Queue", 2, queue_fields, parent)
    else:
        stream.describe(f"{CORE}Topic", 2, [("I", "maxSharedConsumers", "")], parent)
    stream.assign_handle()
    kind = type | (1 if queue else 2)
    stream.data += pack(">iiiii?", messages, limit, 1000, producers, kind, dmq)
    size_string(stream, memory)
    size_string(stream, largest)
    destination_uid(stream, queue, name)
    stream.data += pack(">ii", active, backup) if queue else pack(">i", -1)
    return stream.data


def interest(
    number: int,
    topic: str,
    client: str | None,
    durable: str,
    selector: str | None = None,
    *,
    no_local: bool = False,
    shared: bool = False,
) -> bytes:
    """Return an entry of the file `interest`: its number and the subscription."""
    stream = Stream()
    consumer_uid(stream, number)
    fields = [
        ("J", "lastAckTime", ""),
        ("Z", "noLocal", ""),
        ("L", "dest", f"L{CORE.replace('.', '/')}DestinationUID;"),
        ("L", "pending", "Ljava/util/HashSet;"),
        ("L", "selstr", STRING),
    ]
    own_fields = [("Z", "jmsshared", ""), ("L", "clientID", STRING), ("L", "durableName", STRING)]
    stream.begin()
    stream.describe(f"{CORE}Subscription", 2, own_fields, (f"{CORE}Consumer", 2, fields))
    stream.assign_handle()
    stream.data += pack(">q?", 0, no_local)
    destination_uid(stream, False, topic)
    stream.begin()  # a class that writes more than its fields
    stream.describe("java.util.HashSet", 3, [])
    stream.assign_handle()
    stream.data += b"\x77\x0c" + pack(">ifi", 16, 0.75, 0) + b"\x78"
    stream.text(selector)
    stream.data += pack(">?", shared)
    stream.text(client)
    stream.text(durable)
    return stream.data


# --- packets -------------------------------------------------------------------------------------

TEXT, BYTES, MESSAGE = 1, 2, 6
PERSISTENT, IS_QUEUE = 4, 1


def sysid(sequence: int, timestamp: int = MS) -> bytes:
    return pack(">q16sii", timestamp, IP, 4711, sequence)


def packet(
    name: str,
    body: bytes | str,
    sequence: int,
    *,
    queue: bool = True,
    type: int = TEXT,
    timestamp: int = MS,
    expiration: int = 0,
    priority: int = 4,
    strings: dict[int, str] | None = None,
    longs: dict[int, int] | None = None,
    properties: bytes = b"",
) -> bytes:
    """Return a packet; strings and longs are records of the variable header, by number."""
    raw = body.encode() if isinstance(body, str) else body
    header = b""
    for number, value in (longs or {}).items():
        header += pack(">hhq", number, 8, value)
    for number, text in {1: name, **(strings or {})}.items():
        header += pack(">hh", number, len(text.encode())) + text.encode()
    header += pack(">h", 0)
    header += bytes(4 - len(header) % 4)
    offset = 72 + len(header)
    return (
        pack(">Ihhi", 469754818, 301, type, offset + len(properties) + len(raw))
        + pack(">q", expiration)
        + sysid(sequence, timestamp)
        + pack(">iiBBHq", offset, len(properties), priority, 0, PERSISTENT | queue * IS_QUEUE, 7)
        + header
        + properties
        + raw
    )


def property_block(values: dict[str, str | int]) -> bytes:
    block = pack(">ii", 1, len(values))
    for name, value in values.items():
        block += pack(">H", len(name)) + name.encode()
        if isinstance(value, int):
            block += pack(">hq", 5, value)
        else:
            block += pack(">hH", 8, len(value.encode())) + value.encode()
    return block


# --- files ---------------------------------------------------------------------------------------


def states(delivery_states: dict[int, int]) -> bytes:
    return pack(">i", len(delivery_states)) + b"".join(
        pack(">qi", *item) for item in delivery_states.items()
    )


def stored(raw: bytes, delivery_states: dict[int, int]) -> bytes:
    """Return the data of a message's record."""
    return pack(">i", len(raw)) + raw + states(delivery_states)


def record(data: bytes, state: int = 2, cookie: int = 0, block: int = 256) -> bytes:
    size = -(-(len(data) + 12) // block) * block
    return pack(">Iihh", 0xAAAA5555, size, state, cookie) + data.ljust(size - 12, b"\0")


def record_file(*records: bytes, version: int = 2, length: int = 0) -> bytes:
    head = pack(">Ihhq", 0x5555AAAA, version, 0, 0) + (bytes(8) if version == 2 else b"")
    last = pack(">Iihh", 0xAAAA5555, 0, 3 if version == 2 else 0, 0)
    return (head + b"".join(records) + last).ljust(length, b"\0")


def large_file(raw: bytes, delivery_states: dict[int, int], tag: bytes = b"GOOD") -> bytes:
    attachment = states(delivery_states)
    return pack(">H4sq", 4, tag, len(raw)) + raw + pack(">q", len(attachment)) + attachment


# --- the transaction log -------------------------------------------------------------------------


def xid(global_id: bytes, branch: bytes, format: int = 4711) -> bytes:
    lengths = pack(">ihh", format, len(global_id), len(branch))
    return lengths + global_id.ljust(64, b"\0") + branch.ljust(64, b"\0")


def details(number: int, state: int, found: bytes = b"", kind: int = 1) -> bytes:
    return pack(">bqii?", kind, number, state, 0, bool(found)) + found


def ack(name: str, identity: bytes, consumer: int = 0) -> bytes:
    raw = name.encode()
    return pack(">H", len(raw)) + raw + identity + pack(">q", consumer)


def work(sends: list[bytes], acks: list[bytes], consumers: tuple[int, ...] = (0,)) -> bytes:
    recipients = pack(">i", len(consumers)) + b"".join(
        pack(">q", consumer) for consumer in consumers
    )
    return (
        pack(">i", len(sends))
        + b"".join(send + recipients for send in sends)
        + pack(">i", len(acks))
        + b"".join(acks)
    )


def log(*events: bytes, checkpoint: int = 3, compound: bool = False) -> bytes:
    start = pack(">IhhqqQ", 0x5555AAAA, 1, 3, 48, MS, checkpoint)
    data = start + pack(">QQ", adler32(start), 1)
    if compound:
        events = (
            pack(">i", len(events))
            + b"".join(pack(">ii", 1, len(event)) + event for event in events),
        )
    for number, event in enumerate(events):
        type_code = 8 if compound else 1
        data += pack(">IiiqqqQi", 0xAAAA5555, type_code, len(event), MS, number, checkpoint,
                      adler32(event), 0) + event  # fmt: skip
    return data + bytes(64)


# --- an instance ---------------------------------------------------------------------------------

ACCESS = """\
version=JMQFileAccessControlModel/100
connection.NORMAL.allow.user=*
connection.ADMIN.allow.group=admin
queue.*.produce.allow.user=*
queue.*.consume.allow.user=*
queue.*.browse.allow.user=*
topic.*.produce.allow.user=*
topic.*.consume.allow.user=*
queue.create.allow.user=*
topic.create.allow.user=*
"""


def password_hash(user: str, password: str) -> str:
    """Return a hash in the format of passwd: an MD5 as a signed number."""
    raw = hashlib.md5(f"{user}:{password}".encode()).digest()
    return f"{int.from_bytes(raw, 'big', signed=True):x}"


class Instance:
    """The directory of an instance, initially empty."""

    def __init__(self, root: Path, name: str = "shop") -> None:
        self.path = root / "instances" / name
        self.store = self.path / "fs370"
        (self.path / "props").mkdir(parents=True)
        (self.path / "etc").mkdir()
        self.store.mkdir()
        self.properties("imq.instanceconfig.version=300\n")
        self.write("etc/accesscontrol.properties", ACCESS.encode())
        accounts = [("admin", "admin", "admin"), ("guest", "guest", "anonymous")]
        lines = [
            f"{user}:{password_hash(user, word)}:{group}:1\n" for user, word, group in accounts
        ]
        self.write("etc/passwd", "".join(lines).encode())

    def write(self, name: str, content: bytes) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    def properties(self, text: str) -> None:
        self.write("props/config.properties", text.encode("latin-1"))

    def destinations(self, *entries: bytes) -> None:
        self.write("fs370/destination", record_file(*map(record, entries), length=8192))

    def interests(self, *entries: bytes) -> None:
        self.write("fs370/interest", record_file(*map(record, entries), length=8192))

    def messages(self, directory: str, *records: bytes) -> Path:
        return self.write(f"fs370/message/{directory}/vrfile", record_file(*records, length=8192))
