"""The HTTP API decodes the requests that the client of the management API encodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from sluicemq.admin.app import Application
from sluicemq.admin.endpoints import RouteTable, parameters, read_query
from sluicemq.broker import Broker, ManualClock
from sluicemq.clients.http import request_of
from sluicemq.journal import MemoryJournal
from sluicemq.management.operation import ApiOperation
from sluicemq.model.destination import Address, Kind, decode_name
from tests.admin.context import context

TABLE: RouteTable = Application(context(Broker(MemoryJournal(), ManualClock()))).table
OPERATIONS = {
    f"{endpoint.operation.operation_id} {endpoint.operation.full_path}": endpoint.operation
    for endpoint in TABLE.endpoints
    if "{*" not in endpoint.operation.path
}
ADDRESSES = st.builds(Address, st.sampled_from(Kind), st.binary(min_size=1).map(decode_name))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def values(kind: inspect.Type, *, filled: bool = False) -> st.SearchStrategy[Any]:
    """Return valid values of a type; with `filled`, texts are not empty."""
    match kind:
        case inspect.IntType():
            return st.integers(kind.ge or 0, min(kind.le or 1 << 53, (kind.lt or 1 << 54) - 1))
        case inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern.replace("$", r"\Z").replace("[0-9]", "[1-9]"))
        case inspect.StrType():
            least = max(kind.min_length or 0, filled)
            return TEXTS.map(lambda text: (text or "x") if least else text)
        case inspect.BoolType():
            return st.booleans()
        case inspect.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.EnumType():
            return st.sampled_from(kind.cls)
        case inspect.Metadata():
            return values(kind.type, filled=filled)
        case inspect.UnionType():
            return st.one_of(*(values(variant) for variant in kind.types))
        case inspect.ListType():
            return st.lists(values(kind.item_type), min_size=kind.min_length or 0, max_size=3)
        case inspect.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=2)
        case inspect.StructType():
            return structs(kind.cls)
        case inspect.NamedTupleType():
            return ADDRESSES
        case inspect.RawType():
            return st.just(msgspec.Raw(b'{"a": 1.0}'))
        case inspect.NoneType():
            return st.none()
    raise AssertionError(kind)


@st.composite
def structs(draw: st.DrawFn, kind: type, path: tuple[str, ...] = ()) -> Any:
    """Return instances of a struct; fields that are in the path are not empty."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    field_values = {}
    for field in info.fields:
        if field.required or draw(st.booleans()):
            field_values[field.name] = draw(values(field.type, filled=field.name in path))
    try:
        return kind(**field_values)
    except ValueError:  # offset and cursor
        assume(False)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(data=st.data())
def test_requests_of_the_client_are_decoded(name: str, data: st.DataObject) -> None:
    operation: ApiOperation[Any, Any] = OPERATIONS[name]
    expected = data.draw(structs(operation.parameters, operation.path_names))
    method, url, body, _ = request_of(operation, expected)
    path, _, query = url.partition("?")
    endpoint, names = TABLE.find(method, path.encode("ascii"))
    assert endpoint.operation == operation
    decoded = None
    if operation.body is not None:
        decoded = msgspec.json.decode(b"".join(body), type=operation.body)
    decoded_request = parameters(operation, names, read_query(query.encode("ascii")), decoded)
    assert decoded_request == expected
