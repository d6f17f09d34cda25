"""The two file formats of Open MQ's store, and the Java objects in them. All numbers are
big-endian.

A file of records (`vrfile`, `destination`, `interest`, `txn`, …):

    0 magic:u32 5555AAAA  4 version:i16  6 -:i16  8 cookie:i64  [version 2: 16 -:i64]   then records

    0 magic:u32 AAAA5555  4 size:i32, all of the record  8 state:i16  10 cookie:i16  12 data

    states of version 2: 1 free, 2 in use, 3 the last one, of size 0; of version 1: 1, 2, 0

A record whose cookie is not 0 was being written when the broker ended.

A directory of items has a file of records with items of `size:i32 data attachment`, and for each
large item a separate file (`0`, `1`, …):

    0 tag: 0004 and GOOD, FREE or "...."  6 size:i64  data  size:i64  attachment

A map is a file of records with two Java objects each, the key and the value: destinations, durable
subscriptions and transactions, as objects of Open MQ's own classes. They are read as plain data; no
named class is loaded. The format is in protocols/java.py, which reads the closed set that message
bodies consist of; here any class may occur, with these additional forms:

    content  = 73 class data of each class, from the topmost     object
             | 75 class count:i32 values                         array
             | 7E class string                                   enum constant
    data     = fields, then if the class writes more (flag 01): content * 78
             | of an Externalizable (flags 04, 08):             content * 78

(Java Object Serialization Specification 6.4.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from sluicemq.migrate.source_files import ByteReader, Damage, SourceFile
from sluicemq.protocols.java import (
    BLOCKS,
    I32,
    STRINGS,
    U8,
    U16,
    SerialError,
    StreamReader,
)

FILE_MAGIC: Final = 0x5555AAAA
RECORD_MAGIC: Final = 0xAAAA5555
MAX_INT: Final = 0x7FFF_FFFF
VRFILE: Final = "vrfile"

_FREE: Final = 1
_IN_USE: Final = 2
_LAST: Final = {1: 0, 2: 3}
_HEADER_SIZE: Final = {1: 16, 2: 24}
_RECORD_HEADER_SIZE: Final = 12
_TAG_SIZE: Final = 14

_NUMERIC: Final = re.compile(r"[0-9]{1,10}\Z")
_RECORD_MAGIC_BYTES: Final = RECORD_MAGIC.to_bytes(4, "big")
_SEARCH_WINDOW: Final = 1 << 20

_INTERRUPTED: Final = "the broker was killed while it wrote this, so its sender received no reply"

DamageHandler = Callable[[Damage], None]
"""Policy for damage: raise it, or record it and continue after it."""


@contextmanager
def handle_damage(on_damage: DamageHandler) -> Iterator[None]:
    """Leave damage in the context to the policy."""
    try:
        yield
    except Damage as error:
        on_damage(error)


# --- files of records --------------------------------------------------------------------------


class DataRange(NamedTuple):
    """Position of data in a file."""

    position: int
    size: int


def read_records(data: SourceFile, on_damage: DamageHandler) -> Iterator[DataRange]:
    """Yield the records in use of a file of records that were written to their end. A file with an
    invalid header has none."""
    if not data.size:
        return
    try:
        magic, version, _, _ = data.unpack(">Ihhq", 0)
        if magic != FILE_MAGIC or version not in _HEADER_SIZE:
            raise data.damage(0, "the file is not a record file of Open MQ, or has another version")
    except Damage as error:
        on_damage(error)
        return
    position = _HEADER_SIZE[version]
    last = _LAST[version]
    while position < data.size:
        try:
            record_magic, size, state, cookie = data.unpack(">Iihh", position)
            if record_magic != RECORD_MAGIC:
                raise data.damage(position, "a record should begin here")
            if state == last and not size:
                return
            if state not in (_FREE, _IN_USE):
                raise data.damage(position, f"a record has the invalid state {state}")
            if not _RECORD_HEADER_SIZE < size <= data.size - position:
                raise data.damage(position, f"a record cannot have {size} bytes here")
        except Damage as error:
            on_damage(error)
            position = _find_next_record(data, position + 1)
            continue
        start = position + _RECORD_HEADER_SIZE
        if state == _IN_USE and cookie:
            on_damage(data.damage(start, _INTERRUPTED))
        elif state == _IN_USE:
            yield DataRange(start, size - _RECORD_HEADER_SIZE)
        position += size


def _find_next_record(data: SourceFile, position: int) -> int:
    """Return the position of the next possible record; the end if there is none."""
    # a magic number may begin in one part and end in the next
    window = _SEARCH_WINDOW + len(_RECORD_MAGIC_BYTES) - 1
    while position < data.size:
        offset = data.read(position, min(window, data.size - position)).find(_RECORD_MAGIC_BYTES)
        if offset >= 0:
            return position + offset
        position += _SEARCH_WINDOW
    return data.size


# --- directories of items ----------------------------------------------------------------------


class StoredItem(NamedTuple):
    """An item in an open file: the position of its data and of what is attached."""

    file: SourceFile
    data: DataRange
    attachment: DataRange

    def content(self) -> ByteReader:
        """Return the data."""
        location = f"{self.file.path}, byte {self.data.position}"
        return ByteReader(self.file.read(self.data.position, self.data.size), location)


def read_items(directory: Path, on_damage: DamageHandler) -> Iterator[StoredItem]:
    """Read the items of a directory; there are none in a missing one."""
    if not directory.is_dir():
        return
    large_files = [path for path in directory.iterdir() if _NUMERIC.match(path.name)]
    for path in (directory / VRFILE, *sorted(large_files, key=lambda path: int(path.name))):
        if path.exists():
            with SourceFile.open(path) as file:
                read = _read_small_items if path.name == VRFILE else _read_large_item
                yield from read(file, on_damage)


def _read_small_items(file: SourceFile, on_damage: DamageHandler) -> Iterator[StoredItem]:
    for record in read_records(file, on_damage):
        with handle_damage(on_damage):
            (size,) = file.unpack(">i", record.position)
            start = record.position + 4
            attachment_size = record.size - 4 - size
            if size < 0 or attachment_size < 0:
                raise file.damage(record.position, f"{size} bytes of data are announced")
            yield StoredItem(file, DataRange(start, size), DataRange(start + size, attachment_size))


def _read_large_item(file: SourceFile, on_damage: DamageHandler) -> Iterator[StoredItem]:
    with handle_damage(on_damage):
        if file.size < _TAG_SIZE:
            return
        length, tag, size = file.unpack(">H4sq", 0)
        if length != 4 or tag not in (b"GOOD", b"FREE", b"...."):
            raise file.damage(0, "the file has no tag of Open MQ's")
        if tag == b"FREE":
            return
        if tag == b"....":
            raise file.damage(0, _INTERRUPTED)
        if not 0 <= size <= min(MAX_INT, file.size - _TAG_SIZE):
            raise file.damage(6, f"{size} bytes of data are announced, and the file ends before")
        position = _TAG_SIZE + size
        attachment_size = file.unpack(">q", position)[0] if file.size - position >= 8 else 0
        position += 8
        if attachment_size and not 0 <= attachment_size <= file.size - position:
            raise file.damage(position, f"{attachment_size} bytes of attachment are announced")
        yield StoredItem(file, DataRange(_TAG_SIZE, size), DataRange(position, attachment_size))


# --- maps of objects ---------------------------------------------------------------------------

MAX_DEPTH: Final = 48

_WRITE_METHOD: Final = 0x01
_SERIALIZABLE: Final = 0x02
_EXTERNALIZABLE: Final = 0x04
_BLOCK_DATA: Final = 0x08
_END: Final = object()

_PRIMITIVES: Final = {
    "B": Struct(">b"),
    "C": Struct(">H"),
    "D": Struct(">d"),
    "F": Struct(">f"),
    "I": Struct(">i"),
    "J": Struct(">q"),
    "S": Struct(">h"),
    "Z": Struct(">?"),
}


class MapEntry(NamedTuple):
    """A key and its value; `trailing_data` is the data after them."""

    key: object
    value: object
    trailing_data: bytes
    location: str


def read_map(path: Path, on_damage: DamageHandler) -> Iterator[MapEntry]:
    """Read a map from a file of records; a missing file is an empty map."""
    if not path.exists():
        return
    with SourceFile.open(path) as data:
        for record in read_records(data, on_damage):
            location = f"{path}, record at byte {record.position}"
            with handle_damage(on_damage):
                raw = data.read(record.position, record.size)
                (key, value), end = read_objects(raw, 2, location)
                yield MapEntry(key, value, raw[end:], location)


@dataclass(slots=True)
class JavaClass:
    """A class as described by a stream. `fields` are (type, name); `lineage` contains its
    superclasses, topmost first, and the class itself."""

    name: str
    flags: int = 0
    fields: list[tuple[str, str]] = field(default_factory=list)
    lineage: list[JavaClass] = field(default_factory=list)


class ParsedObject(dict[str, Any]):
    """An object: the values of its fields by name, those of the classes it extends included.

    name         of its class, with the package
    custom_data  bytes and objects that the writeObject methods of its classes have written
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.custom_data: list[Any] = []

    @property
    def written(self) -> bytes:
        """First bytes of `custom_data`; an Externalizable begins with them."""
        first = self.custom_data[0] if self.custom_data else b""
        return first if isinstance(first, bytes) else b""

    def custom_objects(self) -> list[ParsedObject]:
        """Return the objects of `custom_data`."""
        return [item for item in self.custom_data if isinstance(item, ParsedObject)]


def uid_number(value: object, location: str) -> int:
    """Parse the number of a ConsumerUID, or of a TransactionUID. Raises Damage."""
    if not isinstance(value, ParsedObject) or len(value.written) < 8:
        raise Damage(f"{location}: a consumer or a transaction has no number")
    return int.from_bytes(value.written[:8], "big", signed=True)


def read_objects(data: bytes, count: int, location: str) -> tuple[list[Any], int]:
    """Read the first objects of a stream; return them and the position after the last. Raises
    Damage."""
    reader = _ObjectReader(data)
    try:
        reader.header()
        return [reader.read_content(0) for _ in range(count)], reader.position
    except SerialError as error:
        raise Damage(f"{location}, at {reader.position} of {len(data)} bytes: {error}") from None


class _ObjectReader(StreamReader):
    """Reads objects of any class."""

    __slots__ = ()

    def read_content(self, depth: int) -> Any:
        """Read one value; `_END` at the end of a class's own data."""
        self.count()
        if depth > MAX_DEPTH:
            raise SerialError("a serialized object is nested too deep")
        code = self.number(U8)
        if code in BLOCKS:
            return self.take(self.number(BLOCKS[code]))
        if code in STRINGS:
            return self.add_handle(self.text(STRINGS[code]))
        match code:
            case 0x70:
                return None
            case 0x71:
                return self.reference()
            case 0x72:
                return self._read_class(depth)
            case 0x73:
                return self._read_object(depth)
            case 0x75:
                return self._read_array(depth)
            case 0x78:
                return _END
            case 0x7E:
                return self._read_enum(depth)
        raise SerialError(f"{code:#x} begins no value")

    def _read_class(self, depth: int) -> JavaClass:
        java_class = self.add_handle(JavaClass(self.text()))
        self.take(8)  # serialVersionUID
        java_class.flags = self.number(U8)
        for _ in range(self.number(U16)):
            type_code = chr(self.number(U8))
            name = self.text()
            if type_code in "L[":
                self.read_content(depth + 1)  # class name, as text
            elif type_code not in _PRIMITIVES:
                raise SerialError(f"the field {name!r} has no known type")
            java_class.fields.append((type_code, name))
        while self.read_content(depth + 1) is not _END:
            pass
        parent = self.read_content(depth + 1)
        if parent is not None:
            java_class.lineage += _expect_class(parent).lineage
        java_class.lineage.append(java_class)
        if len(java_class.lineage) > MAX_DEPTH:
            raise SerialError("classes are nested too deep")
        return java_class

    def _read_object(self, depth: int) -> ParsedObject:
        java_class = _expect_class(self.read_content(depth + 1))
        parsed_object = self.add_handle(ParsedObject(java_class.name))
        if java_class.flags & _EXTERNALIZABLE:
            if not java_class.flags & _BLOCK_DATA:
                raise SerialError(f"an object of {java_class.name} cannot be read")
            self._read_custom_data(parsed_object, depth)
            return parsed_object
        for ancestor in java_class.lineage:
            if ancestor.flags & _SERIALIZABLE:
                for type_code, name in ancestor.fields:
                    parsed_object[name] = self._read_value(type_code, depth)
                if ancestor.flags & _WRITE_METHOD:
                    self._read_custom_data(parsed_object, depth)
        return parsed_object

    def _read_custom_data(self, parsed_object: ParsedObject, depth: int) -> None:
        while (value := self.read_content(depth + 1)) is not _END:
            parsed_object.custom_data.append(value)

    def _read_value(self, type_code: str, depth: int) -> Any:
        layout = _PRIMITIVES.get(type_code)
        if layout is not None:
            return self.number(layout)
        value = self.read_content(depth + 1)
        if value is _END or isinstance(value, bytes):
            raise SerialError("the value of a field is expected here")
        return value

    def _read_array(self, depth: int) -> list[Any]:
        java_class = _expect_class(self.read_content(depth + 1))
        values: list[Any] = self.add_handle([])
        size = self.number(I32)
        if size < 0:
            raise SerialError(f"an array announces {size} values")
        self.count(size)
        for _ in range(size):
            values.append(self._read_value(java_class.name[1:2] or "L", depth))
        return values

    def _read_enum(self, depth: int) -> str:
        java_class = _expect_class(self.read_content(depth + 1))
        index = len(self.handles)
        self.add_handle(None)
        constant = self.read_content(depth + 1)
        if not isinstance(constant, str):
            raise SerialError(f"a constant of {java_class.name} has no name")
        self.handles[index] = constant
        return constant


def _expect_class(value: object) -> JavaClass:
    if not isinstance(value, JavaClass):
        raise SerialError("a class is expected here")
    return value
