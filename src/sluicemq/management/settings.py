"""Settings of the HTTP API, the console and `/metrics`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluicemq.model.setting import about


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all HTTP listeners."""

    session_idle_timeout: Annotated[
        float,
        about(
            "Time without use after which a session of the console ends.",
            "s",
            ge=1,
        ),
    ] = 1800.0
    session_lifetime: Annotated[
        float,
        about("Time after which a session ends even if it is used.", "s", ge=1),
    ] = 43_200.0
    max_sessions: Annotated[
        int,
        about(
            "Maximum number of sessions; beyond it, the session of the user with the most "
            "sessions that has been unused for the longest time ends.",
            ge=1,
        ),
    ] = 1000
    secure_cookies: Annotated[
        bool,
        about(
            "Browsers send the session cookie only over TLS. This is always so for `http+tls` "
            "listeners; set it for a listener behind a proxy that terminates TLS."
        ),
    ] = False
    max_event_streams: Annotated[
        int,
        about(
            "Maximum number of concurrent streams of live statistics (`/api/v1/events`) of a "
            "listener; 0 = none.",
            ge=0,
        ),
    ] = 32
    max_publish_bytes: Annotated[
        int,
        about(
            "Maximum size of the body of a message that is published over the API; 0 = only "
            "messages without a body.",
            "bytes",
            ge=0,
        ),
    ] = 4 * 1024 * 1024
    max_batch_destinations: Annotated[
        int,
        about("Maximum number of destinations in one part of a batch; 0 = no limit."),
    ] = 1000
    max_scan_messages: Annotated[
        int,
        about(
            "Maximum number of messages that one request with a selector examines; the response "
            "contains the matches so far, and the next request continues.",
            ge=1,
        ),
    ] = 50_000
    max_scan_time: Annotated[
        float, about("Maximum time of such a request; 0 = no limit.", "s", ge=0)
    ] = 2.0
    max_action_time: Annotated[
        float,
        about(
            "Maximum time in which one request moves, copies or deletes messages; the next "
            "request continues. 0 = no limit.",
            "s",
            ge=0,
        ),
    ] = 10.0
    public_metrics: Annotated[bool, about("`/metrics` requires no login.")] = False
