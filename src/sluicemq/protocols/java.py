"""Java's modified UTF-8, and the part of Java serialization that JMS bodies use.

Java writes strings in a UTF-8 that encodes U+0000 as C0 80 and each half of a surrogate pair as
three bytes (java.io.DataInput, "Modified UTF-8"). Standard UTF-8 is read as well. A lone surrogate,
which a Java String may contain, is read as U+FFFD, because Python text with it cannot be encoded.

    stream   = AC ED 00 05  content *
    content  = 70                                         null
             | 71 handle:u32                              object with that handle
             | 74 length:u16 utf  |  7C length:u64 utf    String
             | 73 class data                              object
             | 75 class count:i32 data                    array
             | 77 length:u8 data  |  7A length:i32 data   block data
             | 79                                         reset: handles start again
    class    = 72 name:str uid:u64 flags:u8 count:u16 field *  78 class
             | 71 handle:u32 | 70
    field    = type:u8 name:str

Handles are numbered from 0x7E0000 in the order in which classes, objects, Strings and arrays begin.
(Java Object Serialization Specification 6.4.)

The module reads and writes a closed set of types: Boolean, Byte, Short, Character, Integer, Long,
Float, Double, String, byte[], null, and HashMap and Hashtable with String keys, nested once. It
rejects a stream that names another class or describes one of these differently. It never loads a
class that a stream names.

    Java     Boolean Byte Short Character Integer Long Float Double String byte[] null  map
    Python   bool    Byte Short Char      int     Long Float float  str    bytes  None  dict

An int that does not fit into 32 bits is written as a Long. Byte, Short and Long are subclasses of
int, Float of float and Char of str.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterable, Mapping
from struct import Struct, error, pack
from typing import Any, Final, TypeVar

import msgspec

from sluicemq.model.errors import FrameTooLarge, ProtocolError


class SerialError(ProtocolError):
    """The bytes are no Java serialization, or one with types outside the closed set."""


class Byte(int):
    """java.lang.Byte, -128 to 127."""

    __slots__ = ()


class Short(int):
    """java.lang.Short, -32,768 to 32,767."""

    __slots__ = ()


class Long(int):
    """java.lang.Long, 64 bits. A plain int is an Integer if it fits into 32 bits."""

    __slots__ = ()


class Float(float):
    """java.lang.Float, 32 bits. A plain float is a Double."""

    __slots__ = ()


class Char(str):
    """java.lang.Character: one UTF-16 unit."""

    __slots__ = ()


ValueT = TypeVar("ValueT")
Value = bool | int | float | str | bytes | dict[str, "Value"] | None


MAX_ENTRIES: Final = 100_000
"""Maximum number of values of a stream, those of inner maps and resets included. It limits the
handles, too: a value adds at most three, for its class, the parent of that, and itself."""
MAX_SIZE: Final = 73_400_320
"""Maximum size in bytes of Strings, arrays and class descriptions; the first two count again for
each reference. Also the maximum size of a decompressed body."""
_EXPANSION: Final = 4
_FREE_EXPANSION: Final = 4 << 20
"""The size that MAX_SIZE limits is also at most _EXPANSION times the size of the stream plus
_FREE_EXPANSION bytes: otherwise a stream of 80 KB could have values of 70 MB once they are written
without references."""
_DEPTH: Final = 2
"""Maximum nesting of maps."""


# --- modified UTF-8 ----------------------------------------------------------------------------

_REPLACEMENT: Final = "\ufffd"
_ENCODED_DIFFERENTLY: Final = re.compile("[\0\U00010000-\U0010ffff\ud800-\udfff]")
"""Characters that modified UTF-8 encodes differently than UTF-8."""


def decode_utf(raw: bytes) -> str:
    """Decode modified or standard UTF-8. Raises SerialError for other bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        pass
    try:
        units = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as fault:
        raise SerialError(f"a string is not UTF-8: {fault.reason}") from None
    # UTF-16 joins the halves of a surrogate pair, and a lone half becomes U+FFFD
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encode_utf(text: str) -> bytes:
    """Encode as modified UTF-8. A lone surrogate is written as three bytes."""
    if _ENCODED_DIFFERENTLY.search(text) is None:
        return text.encode()
    return (
        _ENCODED_DIFFERENTLY.sub(_split, text)
        .encode("utf-8", "surrogatepass")
        .replace(b"\0", b"\xc0\x80")
    )


def _split(match: re.Match[str]) -> str:
    """Return the UTF-16 units of a character, each as a character."""
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join([chr(unit) for (unit,) in U16.iter_unpack(units)])


# --- the closed set ----------------------------------------------------------------------------

STREAM_HEADER: Final = b"\xac\xed\x00\x05"

_NULL: Final = 0x70
_REFERENCE: Final = 0x71
_CLASS: Final = 0x72
_OBJECT: Final = 0x73
_ARRAY: Final = 0x75
_END: Final = 0x78
_RESET: Final = 0x79
_FIRST_HANDLE: Final = 0x7E_0000

U8: Final = Struct(">B")
U16: Final = Struct(">H")
I32: Final = Struct(">i")
U32: Final = Struct(">I")
I64: Final = Struct(">q")
_u64: Final = Struct(">Q")
_map_fields: Final = Struct(">fi")
_map_size: Final = Struct(">ii")
"""Number of hash buckets, number of entries."""
STRINGS: Final = {0x74: U16, 0x7C: _u64}
BLOCKS: Final = {0x77: U8, 0x7A: I32}
"""Layout of the length, by code."""
_SERIALIZABLE: Final = 0x02
_WITH_METHOD: Final = 0x03
"""Serializable with a writeObject method, as maps are."""


class _Class:
    """Class of the closed set.

    tail         bytes after its name in a stream: uid, flags, fields, end; null without a parent
    parent       superclass, whose description follows; or None
    data         layout of an object's fields
    python_type  Python type of its values
    """

    __slots__ = ("data", "name", "parent", "python_type", "tail")

    def __init__(
        self,
        name: str,
        uid: int,
        flags: int,
        fields: Mapping[str, str],
        parent: _Class | None,
        data: Struct,
        python_type: type,
    ) -> None:
        self.name = name.encode()
        descriptions = [
            pack(f">cH{len(field)}s", code.encode(), len(field), field.encode())
            for field, code in fields.items()
        ]
        end = bytes((_END, _NULL)) if parent is None else bytes((_END,))
        self.tail = b"".join((pack(">QBH", uid, flags, len(fields)), *descriptions, end))
        self.parent = parent
        self.data = data
        self.python_type = python_type


def _boxed(
    name: str, uid: int, code: str, layout: str, python_type: type, parent: _Class | None = None
) -> _Class:
    return _Class(name, uid, _SERIALIZABLE, {"value": code}, parent, Struct(layout), python_type)


_NUMBER: Final = _Class(
    "java.lang.Number", 0x86AC951D0B94E08B, _SERIALIZABLE, {}, None, Struct(""), object
)
_BYTES: Final = _Class("[B", 0xACF317F8060854E0, _SERIALIZABLE, {}, None, Struct(""), bytes)
_BOXES: Final = (
    _boxed("java.lang.Boolean", 0xCD207280D59CFAEE, "Z", ">?", bool),
    _boxed("java.lang.Byte", 0x9C4E6084EE50F51C, "B", ">b", Byte, _NUMBER),
    _boxed("java.lang.Short", 0x684D37133460DA52, "S", ">h", Short, _NUMBER),
    _boxed("java.lang.Character", 0x348B47D96B1A2678, "C", ">H", Char),
    _boxed("java.lang.Integer", 0x12E2A0A4F7818738, "I", ">i", int, _NUMBER),
    _boxed("java.lang.Long", 0x3B8BE490CC8F23DF, "J", ">q", Long, _NUMBER),
    _boxed("java.lang.Float", 0xDAEDC9A2DB3CF0EC, "F", ">f", Float, _NUMBER),
    _boxed("java.lang.Double", 0x80B3C24A296BFB04, "D", ">d", float, _NUMBER),
)
_MAP_FIELDS: Final = {"loadFactor": "F", "threshold": "I"}
_HASHMAP: Final = _Class(
    "java.util.HashMap", 0x0507DAC1C31660D1, _WITH_METHOD, _MAP_FIELDS, None, _map_fields, dict
)
_HASHTABLE: Final = _Class(
    "java.util.Hashtable", 0x13BB0F25214AE4B8, _WITH_METHOD, _MAP_FIELDS, None, _map_fields, dict
)
_CLASSES: Final = {known.name: known for known in (*_BOXES, _NUMBER, _BYTES, _HASHMAP, _HASHTABLE)}
_BOX_OF: Final = {known.python_type: known for known in _BOXES}
_INTEGER: Final = _BOX_OF[int]
_LONG: Final = _BOX_OF[Long]


# --- reading -----------------------------------------------------------------------------------


def loads(stream: bytes, *, limited: bool = True) -> Value:
    """Return the first value of a stream. The rest is not read. Raises SerialError.

    `limited` as in `StreamReader`.
    """
    reader = _ValueReader(stream, limited)
    reader.header()
    reader.has_more()
    return reader.value(_DEPTH)


def loads_map(stream: bytes, *, limited: bool = True) -> dict[str, Value]:
    """Return the body of a MapMessage, as `loads`. Raises SerialError also for other values."""
    value = loads(stream, limited=limited)
    if not isinstance(value, dict):
        raise SerialError("the stream is not a map")
    return value


def loads_stream(stream: bytes, *, limited: bool = True) -> list[Value]:
    """Return the values of a StreamMessage's body, as `loads`; maps are invalid."""
    reader = _ValueReader(stream, limited)
    reader.header()
    values: list[Value] = []
    while reader.has_more():
        values.append(reader.value(0))
    return values


class StreamReader:
    """Reads the parts of which the contents of a stream consist. All methods raise SerialError.

    data      the stream
    position  offset of the next byte
    handles   objects that references can refer to; None stands for an unfinished object, because a
              reference to it would be a cycle
    """

    __slots__ = ("_bytes_left", "_entries_left", "data", "handles", "position")

    def __init__(self, data: bytes, limited: bool = True) -> None:
        """Read `data` within the limits of the module.

        `limited` False is for programs that keep the values in memory, where all references share
        one value: every body that a JMS client can send is read, in time proportional to its size.
        """
        self.data = data
        self.position = 0
        self.handles: list[Any] = []
        # a value has at least one byte
        self._entries_left = MAX_ENTRIES if limited else len(data)
        max_bytes = min(MAX_SIZE, _EXPANSION * len(data) + _FREE_EXPANSION)
        self._bytes_left = max_bytes if limited else sys.maxsize

    def header(self) -> None:
        """Read the beginning of the stream."""
        if not self.data.startswith(STREAM_HEADER):
            raise SerialError("the bytes are not a Java serialization stream")
        self.position = len(STREAM_HEADER)

    def number(self, layout: Struct) -> Any:
        """Read a number."""
        try:
            (number,) = layout.unpack_from(self.data, self.position)
        except error:
            raise SerialError("a stream ends within a value") from None
        self.position += layout.size
        return number

    def take(self, length: int) -> bytes:
        """Read the bytes of a String, an array or a class description."""
        start = self.position
        if not 0 <= length <= len(self.data) - start:
            raise SerialError(f"a stream announces {length} bytes and ends before")
        self.count_bytes(length)
        self.position = start + length
        return self.data[start : self.position]

    def text(self, layout: Struct = U16) -> str:
        """Read a string that follows its length."""
        return decode_utf(self.take(self.number(layout)))

    def count(self, values: int = 1) -> None:
        """Count values against their limit."""
        self._entries_left -= values
        if self._entries_left < 0:
            raise SerialError("a stream has too many values")

    def count_bytes(self, size: int) -> None:
        """Count bytes against their limit."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise SerialError("a stream's values are too large")

    def add_handle(self, value: ValueT) -> ValueT:
        """Assign the next handle to a value and return the value."""
        self.handles.append(value)
        return value

    def reference(self) -> Any:
        """Return the object to which a reference refers."""
        index = self.number(U32) - _FIRST_HANDLE
        if not 0 <= index < len(self.handles) or self.handles[index] is None:
            raise SerialError("a stream refers to an object that does not exist")
        return self.handles[index]


class _ValueReader(StreamReader):
    """Reads the values of a stream one by one."""

    __slots__ = ()

    def has_more(self) -> bool:
        """Skip resets and return whether there is another content."""
        while self.position < len(self.data):
            if self.data[self.position] != _RESET:
                return True
            self.position += 1
            self.handles.clear()
            self.count()
        return False

    def value(self, depth: int) -> Value:
        """Return the next value, with maps nested at most `depth` deep."""
        self.count()
        code = self.number(U8)
        if code in STRINGS:
            return self.add_handle(self.text(STRINGS[code]))
        if code == _OBJECT:
            return self._object(depth)
        if code == _REFERENCE:
            return self._referenced_value(depth)
        if code == _NULL:
            return None
        if code == _ARRAY:
            if self._class() is not _BYTES:
                raise SerialError("a stream has an array other than byte[]")
            return self.add_handle(self.take(self.number(I32)))
        raise SerialError(f"there is {code:#x} where a value should begin")

    def _referenced_value(self, depth: int) -> Value:
        value = self.reference()
        if not isinstance(value, (bool, int, float, str, bytes, dict)):
            raise SerialError("a stream refers to a class where a value should be")
        self._count_referenced(value, depth)
        return value

    def _count_referenced(self, value: Value, depth: int) -> None:
        """Count a referenced value against the limits as if it were written out."""
        if isinstance(value, (str, bytes)):
            self.count_bytes(len(value))
        elif isinstance(value, dict):
            if depth == 0:
                raise SerialError("a stream has a map in an invalid place")
            for name, inner in value.items():
                self.count()
                self.count_bytes(len(name))
                self._count_referenced(inner, depth - 1)

    def _class(self, is_superclass: bool = False) -> _Class:
        """Read a class of the closed set and assign its handle.

        `is_superclass`: it is the superclass of the last one read.
        """
        code = self.number(U8)
        if code == _REFERENCE:
            value = self.reference()
            if not isinstance(value, _Class):
                raise SerialError("a stream refers to a value where a class should be")
            return value
        if code != _CLASS:
            raise SerialError(f"there is {code:#x} where a class should begin")
        name = self.take(self.number(U16))
        java_class = _CLASSES.get(name)
        if java_class is None or (is_superclass and java_class.parent is not None):
            text = name[:64].decode("utf-8", "replace")
            raise SerialError(f"objects of the class {text!r} are not read")
        index = len(self.handles)
        self.add_handle(None)
        as_java = self.take(len(java_class.tail)) == java_class.tail
        if as_java and java_class.parent is not None:
            as_java = self._class(is_superclass=True) is java_class.parent
        if not as_java:
            raise SerialError(
                f"a stream describes {java_class.name.decode()} differently from Java"
            )
        self.handles[index] = java_class
        return java_class

    def _object(self, depth: int) -> Value:
        java_class = self._class()
        if java_class.python_type is dict:
            if depth == 0:
                raise SerialError("a stream has a map in an invalid place")
            index = len(self.handles)
            self.add_handle(None)
            entries = self._map(depth - 1)
            self.handles[index] = entries
            return entries
        if java_class not in _BOXES:
            raise SerialError(f"a stream has an object of the class {java_class.name.decode()}")
        raw = self.number(java_class.data)
        if java_class.python_type is Char:
            raw = _REPLACEMENT if 0xD800 <= raw <= 0xDFFF else chr(raw)
        value: Value = java_class.python_type(raw)
        return self.add_handle(value)

    def _map(self, depth: int) -> dict[str, Value]:
        self.position += _map_fields.size
        length = BLOCKS.get(self.number(U8))
        if length is None or self.number(length) != _map_size.size:
            raise SerialError("a stream describes a map differently from Java")
        self.position += I32.size  # the number of hash buckets
        size = self.number(I32)
        if size < 0:
            raise SerialError(f"a map announces {size} entries")
        entries: dict[str, Value] = {}
        for _ in range(size):
            name = self.value(0)
            if not isinstance(name, str) or isinstance(name, Char):
                raise SerialError("a map's key is not a String")
            entries[name] = self.value(depth)
        if self.number(U8) != _END:
            raise SerialError("a map has more than its entries")
        return entries


# --- writing -----------------------------------------------------------------------------------


def dumps(value: object, hashtable: bool = False) -> bytes:
    """Return a stream of one value, with maps as in `dumps_map`.

    Raises SerialError for types outside the closed set.
    """
    writer = _Writer(_HASHTABLE if hashtable else _HASHMAP)
    writer.value(value, _DEPTH)
    return writer.stream()


def dumps_map(entries: Mapping[str, object], hashtable: bool = False) -> bytes:
    """Return the body of a MapMessage: a HashMap, or a Hashtable, which cannot contain null.

    Raises SerialError for types outside the closed set.
    """
    return dumps(dict(entries), hashtable)


def dumps_stream(values: Iterable[object]) -> bytes:
    """Return the body of a StreamMessage. Raises SerialError for maps and types outside the closed
    set."""
    writer = _Writer(_HASHMAP)
    for value in values:
        writer.value(value, 0)
    return writer.stream()


class _Writer:
    __slots__ = ("_classes", "_handle", "_map_class", "_parts")

    def __init__(self, map_class: _Class) -> None:
        self._parts: list[bytes] = [STREAM_HEADER]
        self._classes: dict[_Class, bytes] = {}
        self._handle = _FIRST_HANDLE
        self._map_class = map_class

    def stream(self) -> bytes:
        return b"".join(self._parts)

    def value(self, value: object, depth: int) -> None:
        """Append a value, with maps nested at most `depth` deep."""
        append = self._parts.append
        if value is None:
            append(b"\x70")
        elif isinstance(value, dict):
            if depth == 0:
                raise SerialError("maps cannot be nested in three levels")
            self._map(value, depth - 1)
        elif isinstance(value, str) and not isinstance(value, Char):
            self._string(value)
        elif isinstance(value, bytes):
            self._begin(b"\x75", _BYTES)
            append(I32.pack(len(value)))
            append(value)
        else:
            self._box(value)

    def _string(self, text: str) -> None:
        raw = encode_utf(text)
        size = len(raw)
        head = b"\x74" + U16.pack(size) if size < 0x1_0000 else b"\x7c" + _u64.pack(size)
        self._parts += (head, raw)
        self._handle += 1

    def _box(self, value: object) -> None:
        kind = type(value)
        box = _BOX_OF.get(int if isinstance(value, int) and kind not in _BOX_OF else kind)
        if box is None:
            raise SerialError(f"values of type {kind.__name__} are not supported")
        if box is _INTEGER and isinstance(value, int):
            box = _INTEGER if -0x8000_0000 <= value <= 0x7FFF_FFFF else _LONG
        try:
            raw = box.data.pack(ord(value) if isinstance(value, Char) else value)
        except (error, OverflowError, TypeError):
            raise SerialError(f"a value is out of the range of {box.name.decode()}") from None
        self._begin(b"\x73", box)
        self._parts.append(raw)

    def _begin(self, code: bytes, java_class: _Class) -> None:
        """Append the code and the class of an object or array, and assign its handle."""
        self._parts.append(code)
        self._class(java_class)
        self._handle += 1

    def _class(self, java_class: _Class) -> None:
        reference = self._classes.get(java_class)
        if reference is not None:
            self._parts.append(reference)
            return
        self._classes[java_class] = b"\x71" + U32.pack(self._handle)
        self._handle += 1
        self._parts += (b"\x72", U16.pack(len(java_class.name)), java_class.name, java_class.tail)
        if java_class.parent is not None:
            self._class(java_class.parent)

    def _map(self, entries: dict[object, object], depth: int) -> None:
        append = self._parts.append
        self._begin(b"\x73", self._map_class)
        size = len(entries)
        buckets = 16
        while buckets * 3 < size * 4:
            buckets *= 2
        append(_map_fields.pack(0.75, buckets // 4 * 3 if size else 0))
        append(b"\x77\x08" + _map_size.pack(buckets, size))
        for name, value in entries.items():
            if type(name) is not str:
                raise SerialError("a map's key is not a String")
            if value is None and self._map_class is _HASHTABLE:
                raise SerialError("a Hashtable holds no null")
            self._string(name)
            self.value(value, depth)
        append(b"\x78")


# --- conversion for other protocols ------------------------------------------------------------


def json_of_map(body: bytes) -> bytes:
    """Return the body of a MapMessage as a JSON object. Raises SerialError.

    byte[] becomes base64, a Character text of one character, NaN and infinities text, a Float the
    shortest number that Java would write.
    """
    return msgspec.json.encode(_plain(loads_map(body)))


def json_of_stream(body: bytes) -> bytes:
    """Return a StreamMessage's body as a JSON array, as `json_of_map`; [] without a body."""
    values = loads_stream(body) if body else []
    return msgspec.json.encode([_plain(value) for value in values])


def _plain(value: Value) -> Value:
    """Convert a value for msgspec, which supports neither subclasses nor NaN."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, float):
        if value - value != 0:
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        return _shortest(value) if isinstance(value, Float) else value
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return str(value)
    return value


def _shortest(value: float) -> float:
    raw = pack(">f", value)
    for digits in range(6, 9):
        rounded = float(f"{value:.{digits}g}")
        if pack(">f", rounded) == raw:
            return rounded
    return float(value)


def inflate(body: bytes, expected: int | None, limit: int) -> bytes:
    """Decompress a body that its publisher compressed (zlib, RFC 1950).

    expected  size in bytes according to JMS_SUN_UNCOMPRESSED_SIZE; None = not known
    limit     maximum size in bytes

    Raises FrameTooLarge, and ProtocolError if it is corrupt or has another size.
    """
    decompressor = zlib.decompressobj()
    longest = limit if expected is None else min(limit, max(0, expected))
    try:
        plain = decompressor.decompress(body, longest + 1)
    except zlib.error as fault:
        raise ProtocolError(f"a compressed body is broken: {fault}") from None
    if len(plain) > limit:
        raise FrameTooLarge(f"a compressed body has more than {limit} bytes")
    if len(plain) > longest:
        raise ProtocolError(f"a compressed body has more than {expected} bytes, its stated size")
    if not decompressor.eof:
        raise ProtocolError("a compressed body ends too early")
    if expected is not None and len(plain) != expected:
        raise ProtocolError(f"a compressed body has {len(plain)} bytes, not {expected}")
    return plain
