"""Error responses: problem documents (RFC 9457).

    {"type": "/problems/user-not-found", "title": "User not found",
     "detail": "there is no user anna", "code": "user-not-found", "status": 404}

An ApiError has its own status and code, `_ERRORS` has those of the errors of other packages. A full
disk is 507, anything else 500; the log has its details.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog
from msgspec.inspect import (
    DictType,
    EnumType,
    ListType,
    LiteralType,
    Metadata,
    StructType,
    Type,
    UnionType,
    type_info,
)
from msgspec.structs import asdict
from starlette.responses import Response

from sluicemq.journal.space import NO_SPACE
from sluicemq.management.operation import to_base64
from sluicemq.model.errors import (
    AccessDenied,
    AccessError,
    AuthenticationFailed,
    AuthenticationMissing,
    BatchConflict,
    BrokerError,
    BrokerStopping,
    FrameTooLarge,
    LimitExceeded,
    LoginBusy,
    LowDiskSpace,
    ProtocolError,
    RoleExists,
    RoleNotFound,
    SluiceError,
    TokenNotFound,
    TooManyFailures,
    UserExists,
    UserNotFound,
)

MEDIA_TYPE: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"
CHALLENGE: Final = 'Basic realm="sluicemq", charset="UTF-8", Bearer realm="sluicemq"'
RETRY_SECONDS: Final = 1
"""Value of `Retry-After` while the broker stops or too many logins are pending, in seconds."""

log = structlog.get_logger("sluicemq.http")


class ApiError(SluiceError):
    """Error response with a status. `code` is for programs, the message for people; `more` holds
    extension members of the problem document."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        self.more = dict(more or {})


class Problem(msgspec.Struct, frozen=True):
    """Problem document of a request that was not carried out (RFC 9457). `type` and `code` are for
    programs, `title` and `detail` for people; some errors have further members."""

    type: str
    title: str
    status: int
    detail: str
    code: str


def problem(status: int, code: str, detail: str) -> Problem:
    """Return a problem document. Bytes of the detail that are not UTF-8, as in names that it
    quotes, are escaped."""
    return Problem(
        type=f"/problems/{code}",
        title=code.replace("-", " ").capitalize(),
        status=status,
        detail=detail.encode("utf-8", "backslashreplace").decode(),
        code=code,
    )


def json_response(content: Any, status: int = 200) -> Response:
    """Return a response with `content` as JSON."""
    return Response(msgspec.json.encode(content), status, media_type=MEDIA_TYPE)


def error_response(error: Exception) -> Response:
    """Return the error response for an exception."""
    api_error = _api_error(error)
    document = problem(api_error.status, api_error.code, str(api_error))
    body = {**asdict(document), **api_error.more}
    return Response(msgspec.json.encode(body), api_error.status, api_error.headers, PROBLEM_TYPE)


def decoding_error_text(error: Exception, decoded: Any) -> str:
    """Return the text of msgspec's error about a request with the name of the field as the client
    wrote it: "… in `max_messages`" instead of "… - at `$.max_messages`".

    The values that the type `decoded` permits follow an invalid one of an enumeration.
    """
    text = str(error)
    choices: list[str] = []
    if path := _ENUM_PATH.search(text):
        # items are `operations[0]` and `properties[...]`
        names = re.sub(r"\[[^]]*\]", "", path[1]).split(".")
        choices = _choices(type_info(decoded), names)
    text = text.replace(" - at `key` in `$.", " for a name in `").replace(" - at `$.", " in `")
    return f"{text}; there are {', '.join(choices)}" if choices else text


_ENUM_PATH: Final = re.compile(r"^Invalid enum value .* - at `\$\.([^`]+)`$", re.DOTALL)


def _choices(info: Type, path: Sequence[str]) -> list[str]:
    """Return the values of the enumeration at a path of field names; empty if there is none."""
    match info:
        case Metadata():
            return _choices(info.type, path)
        case UnionType():
            return [choice for member in info.types for choice in _choices(member, path)]
        case ListType():
            return _choices(info.item_type, path)
        case DictType():
            return _choices(info.value_type, path)
        case StructType() if path:
            fields = (field for field in info.fields if field.encode_name == path[0])
            return [choice for field in fields for choice in _choices(field.type, path[1:])]
        case LiteralType() if not path:
            return [str(value) for value in info.values if value != ""]  # "" selects all
        case EnumType() if not path:
            return [str(member.value) for member in info.cls]
    return []


_ERRORS: Final[tuple[tuple[type[SluiceError], int, str], ...]] = (
    (AuthenticationMissing, 401, "authentication-required"),
    (TooManyFailures, 429, "too-many-failures"),
    (LoginBusy, 503, "too-many-logins"),
    (AuthenticationFailed, 401, "authentication-failed"),
    (AccessDenied, 403, "forbidden"),
    (UserNotFound, 404, "user-not-found"),
    (UserExists, 409, "user-exists"),
    (RoleNotFound, 404, "role-not-found"),
    (RoleExists, 409, "role-exists"),
    (TokenNotFound, 404, "token-not-found"),
    (AccessError, 409, "rejected"),
    (FrameTooLarge, 413, "too-large"),
    (ProtocolError, 400, "bad-request"),
    (BrokerStopping, 503, "stopping"),
    (BatchConflict, 409, "batch-conflict"),
    (LowDiskSpace, 507, "low-disk-space"),
    (LimitExceeded, 409, "limit-exceeded"),
    (BrokerError, 409, "rejected"),
)
"""Status and code by class; the first class that matches counts."""


def _api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    for kind, status, code in _ERRORS:
        if isinstance(error, kind):
            headers = {}
            if status == 401:
                headers["WWW-Authenticate"] = CHALLENGE
            elif isinstance(error, TooManyFailures):
                headers["Retry-After"] = str(error.retry_after)
            elif status in (503, 507):
                headers["Retry-After"] = str(RETRY_SECONDS)
            return ApiError(status, code, str(error), headers)
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return ApiError(507, "low-disk-space", f"nothing was changed: {error}")
    log.error("internal error", exc_info=error)
    return ApiError(500, "internal-error", "internal error; the broker's log has the details")


# --- Names and texts in JSON ----------------------------------------------------------------------
#
# Names and texts of clients in a form that JSON can represent and users can read.


def printable(text: str) -> str:
    """Return the text if it is printable, else with escapes as in Python."""
    return text if text.isprintable() else ascii(text)[1:-1]


def base64_of(name: str) -> str | None:
    """Return the name's bytes in base64; None if `printable` returns the name unchanged."""
    if name.isprintable():
        return None
    try:
        return to_base64(name)
    except UnicodeEncodeError:  # a lone surrogate of a Java string
        return None
