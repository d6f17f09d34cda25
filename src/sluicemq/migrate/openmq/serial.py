"""Objects as Java serialises them, read as plain data; no named class is loaded.

Open MQ keeps its destinations, durable subscriptions and transactions in this form, as objects of
its own classes. The format is in protocols/java.py, which reads the closed set that message bodies
consist of; here any class may occur, with these additional forms:

    content  = 73 class data of each class, from the topmost     object
             | 75 class count:i32 values                         array
             | 7E class string                                   enum constant
             | 76 class                                          class
    data     = fields, then if the class writes more (flag 01): content * 78
             | of an Externalizable (flags 04, 08):             content * 78

(Java Object Serialization Specification 6.4.)
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from sluicemq.migrate.source_files import ByteReader
from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.java import STREAM_HEADER, decode_utf

MAX_OBJECTS: Final = 20_000
"""Maximum number of objects in a stream; an Open MQ destination has a dozen."""
MAX_DEPTH: Final = 48

_FIRST_HANDLE: Final = 0x7E0000
_WRITE_METHOD: Final = 0x01
_SERIALIZABLE: Final = 0x02
_EXTERNALIZABLE: Final = 0x04
_BLOCK_DATA: Final = 0x08
_END: Final = object()

_u8: Final = Struct(">B")
_u16: Final = Struct(">H")
_i32: Final = Struct(">i")
_u32: Final = Struct(">I")
_u64: Final = Struct(">Q")
_description: Final = Struct(">QB")
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


class JavaClass:
    """A class as described by a stream. `fields` are (type, name)."""

    __slots__ = ("fields", "flags", "name", "parent")

    def __init__(self, name: str) -> None:
        self.name = name
        self.flags = 0
        self.fields: list[tuple[str, str]] = []
        self.parent: JavaClass | None = None

    def lineage(self) -> list[JavaClass]:
        """Return the class and its superclasses, topmost first."""
        found: list[JavaClass] = []
        each: JavaClass | None = self
        while each is not None:
            found.append(each)
            each = each.parent
        return found[::-1]


class ParsedObject:
    """An object.

    name    of its class, with the package
    fields  values by name, those of the classes it extends included
    more    what its classes have written besides: bytes, and objects
    """

    __slots__ = ("fields", "more", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: dict[str, Any] = {}
        self.more: list[Any] = []

    @property
    def simple_name(self) -> str:
        """Return the name of its class, without the package."""
        return self.name.rpartition(".")[2]

    @property
    def written(self) -> bytes:
        """Return the first bytes of `more`, which an Externalizable begins with."""
        first = self.more[0] if self.more else b""
        return first if isinstance(first, bytes) else b""


def read_objects(data: bytes, count: int, where: str) -> tuple[list[Any], int]:
    """Read the first objects of a stream; return them and the position after the last. Raises
    Damage."""
    cursor = ByteReader(data, where)
    if cursor.take(len(STREAM_HEADER)) != STREAM_HEADER:
        raise ByteReader(data, where).damage("there is no Java serialisation")
    reader = _Reader(cursor)
    return [reader.content(0) for _ in range(count)], cursor.position


class _Reader:
    def __init__(self, cursor: ByteReader) -> None:
        self._cursor = cursor
        self._handles: list[Any] = []
        self._left = MAX_OBJECTS

    def content(self, depth: int) -> Any:
        """Read one value; `_END` at the end of a class's own data."""
        cursor = self._cursor
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise cursor.damage("a serialised object is too large, or nested too deep")
        code = cursor.unpack(_u8)[0]
        match code:
            case 0x70:
                return None
            case 0x71:
                return self._referred()
            case 0x73:
                return self._object(depth)
            case 0x74:
                return self._keep(self._text(cursor.unpack(_u16)[0]))
            case 0x75:
                return self._array(depth)
            case 0x76:
                return self._keep(self._class(depth))
            case 0x77:
                return cursor.take(cursor.unpack(_u8)[0])
            case 0x78:
                return _END
            case 0x79:
                self._handles.clear()
                return self.content(depth + 1)
            case 0x7A:
                return cursor.take(cursor.unpack(_i32)[0])
            case 0x7C:
                return self._keep(self._text(cursor.unpack(_u64)[0]))
            case 0x7E:
                return self._enum(depth)
        raise cursor.damage(f"{code:#x} begins no value")

    def _keep(self, value: Any) -> Any:
        self._handles.append(value)
        return value

    def _referred(self) -> Any:
        place = self._cursor.unpack(_u32)[0] - _FIRST_HANDLE
        if not 0 <= place < len(self._handles):
            raise self._cursor.damage("a reference leads nowhere")
        return self._handles[place]

    def _text(self, size: int) -> str:
        raw = self._cursor.take(size)
        try:
            return decode_utf(raw)
        except ProtocolError as fault:
            raise self._cursor.damage(str(fault)) from None

    def _class(self, depth: int) -> JavaClass | None:
        cursor = self._cursor
        if depth > MAX_DEPTH:
            raise cursor.damage("classes are nested too deep")
        code = cursor.unpack(_u8)[0]
        if code == 0x70:
            return None
        if code == 0x71:
            known = self._referred()
            if isinstance(known, JavaClass):
                return known
        if code != 0x72:
            raise cursor.damage(f"{code:#x} begins no class")
        described = JavaClass(self._text(cursor.unpack(_u16)[0]))
        _, described.flags = cursor.unpack(_description)
        self._keep(described)
        for _ in range(cursor.unpack(_u16)[0]):
            sort = chr(cursor.unpack(_u8)[0])
            name = self._text(cursor.unpack(_u16)[0])
            if sort in "L[":
                self.content(depth + 1)  # class name, as text
            elif sort not in _PRIMITIVES:
                raise cursor.damage(f"the field {name!r} has no known type")
            described.fields.append((sort, name))
        while self.content(depth + 1) is not _END:
            pass
        described.parent = self._class(depth + 1)
        return described

    def _expected_class(self, depth: int) -> JavaClass:
        described = self._class(depth + 1)
        if described is None:
            raise self._cursor.damage("an object has no class")
        return described

    def _object(self, depth: int) -> ParsedObject:
        described = self._expected_class(depth)
        made: ParsedObject = self._keep(ParsedObject(described.name))
        if described.flags & _EXTERNALIZABLE:
            if not described.flags & _BLOCK_DATA:
                raise self._cursor.damage(f"an object of {described.name} cannot be read")
            self._more(made, depth)
            return made
        for each in described.lineage():
            if each.flags & _SERIALIZABLE:
                for sort, name in each.fields:
                    made.fields[name] = self._value(sort, depth)
                if each.flags & _WRITE_METHOD:
                    self._more(made, depth)
        return made

    def _more(self, made: ParsedObject, depth: int) -> None:
        while (value := self.content(depth + 1)) is not _END:
            made.more.append(value)

    def _value(self, sort: str, depth: int) -> Any:
        layout = _PRIMITIVES.get(sort)
        if layout is not None:
            return self._cursor.unpack(layout)[0]
        value = self.content(depth + 1)
        if value is _END or (isinstance(value, bytes)):
            raise self._cursor.damage("there is something else where a field should be")
        return value

    def _array(self, depth: int) -> list[Any]:
        described = self._expected_class(depth)
        values: list[Any] = self._keep([])
        size = self._cursor.unpack(_i32)[0]
        if not 0 <= size <= self._cursor.left:  # each takes at least one byte
            raise self._cursor.damage(f"an array announces {size} values")
        sort = described.name[1:2]
        for _ in range(size):
            self._left -= 1
            values.append(self._value(sort or "L", depth))
        return values

    def _enum(self, depth: int) -> str:
        described = self._expected_class(depth)
        place = len(self._handles)
        self._keep("")
        constant = self.content(depth + 1)
        if not isinstance(constant, str):
            raise self._cursor.damage(f"a constant of {described.name} has no name")
        self._handles[place] = constant
        return constant
