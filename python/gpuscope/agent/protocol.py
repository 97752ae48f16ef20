# SPDX-License-Identifier: Apache-2.0
"""The Model Context Protocol on standard input and output, in both of its eras; it knows nothing of the tools.

Revisions up to 2025-11-25 begin with `initialize`. Since 2026-07-28 a request carries its version in ``_meta``, and
`server/discover` says which are served (https://modelcontextprotocol.io/specification). Messages are JSON-RPC 2.0, one
a line.

The official SDK (`mcp` 2.3) speaks both eras too. It is not used: importing its server takes 0.9 s of CPU time and 30
packages, it reads lines of any length, and it replaces bytes that are not UTF-8 without an error.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuscope import _core
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.text import brief

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS = ("2026-07-28",)

_META = "io.modelcontextprotocol/"
_BATCHES = "2025-03-26"  # the only revision that has them
_LARGEST = 1 << 20  # bytes of a request
_AT_ONCE = 1 << 16
_CACHED_MS = 3_600_000  # how long a client may keep the list of tools, which does not change
_PARSE, _REQUEST, _METHOD, _PARAMS, _VERSION = -32700, -32600, -32601, -32602, -32022

Reply = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A function for agents.

    Attributes:
        name: as the client calls it.
        description: for the model, which chooses by it.
        properties: the JSON Schema of each argument: type, description, and enum, minimum, maximum, items or maxItems.
        required: arguments without a default.
        call: takes the checked arguments by name, and returns the answer.
        runs_programs: it starts programs of the user; the others only read.
    """

    name: str
    description: str
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    call: Callable[..., str]
    runs_programs: bool = False

    def listed(self) -> Reply:
        """The entry of `tools/list`."""
        schema: Reply = {"type": "object", "properties": self.properties, "additionalProperties": False}
        if self.required:
            schema["required"] = list(self.required)
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": schema,
            "annotations": {"readOnlyHint": not self.runs_programs},
        }

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises InvalidArgument for arguments outside the schema."""
        for name, value in given.items():
            if name not in self.properties:
                accepted = ", ".join(self.properties) or "none"
                raise InvalidArgument(f"{self.name} has no argument {brief(name)}; accepted are {accepted}")
            if not _fits(value, self.properties[name]):
                raise InvalidArgument(f"{name} is {brief(value)}; accepted is {_accepted(self.properties[name])}")
        missing = [name for name in self.required if name not in given]
        if missing:
            raise InvalidArgument(f"{self.name} lacks the argument {missing[0]}")


def _fits(value: object, schema: Mapping[str, Any]) -> bool:
    kind: type = {"string": str, "integer": int, "array": list}[schema["type"]]
    if type(value) is not kind or ("enum" in schema and value not in schema["enum"]):
        return False
    if isinstance(value, int):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    if isinstance(value, list):
        return 0 < len(value) <= schema["maxItems"] and all(_fits(each, schema["items"]) for each in value)
    return "\0" not in str(value)


def _accepted(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "integer":
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    return "a text without NUL" if schema["type"] == "string" else f"a list of 1 to {schema['maxItems']} texts"


class Channel:
    """The client's end of standard input and output.

    Making one moves both away: file descriptor 0 becomes empty and 1 goes to standard error, so what a library or a
    child process prints is not among the messages.
    """

    def __init__(self) -> None:
        self._input, self._output = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 3) for each in (0, 1))
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # standard error is closed
            os.dup2(nothing, 1)
        os.close(nothing)
        self._pending = b""
        self._skips = False  # the rest of a line that is too long

    def read(self) -> bytes | None:
        """The next line, b"" for one that is too long; None when the client has ended. Half a line is dropped."""
        while True:
            line, end, rest = self._pending.partition(b"\n")
            if end:
                self._pending = rest
                if not self._skips and len(line) <= _LARGEST:
                    return line or b" "
                self._skips = False
                return b""
            if len(self._pending) > _LARGEST:
                self._skips = True
            if self._skips:
                self._pending = b""
            part = os.read(self._input, _AT_ONCE)
            if not part:
                return None
            self._pending += part

    def write(self, message: object) -> None:
        """Sends one message."""
        rest = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        while rest:
            rest = rest[os.write(self._output, rest) :]

    def is_closed(self) -> bool:
        """Whether nobody reads the answers any more."""
        poll = select.poll()
        poll.register(self._output, 0)
        return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))


class _Refused(Exception):  # noqa: N818 - as the exceptions of `errors`
    """A request that gets an error of JSON-RPC: code, message and data."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error: Reply = {"code": code, "message": message} | ({} if data is None else {"data": data})


class Server:
    """Answers the messages of one client, one after the other.

    Args:
        tools: the functions to offer.
        instructions: for the model, how to use them.
    """

    def __init__(self, tools: Sequence[Tool], instructions: str) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._instructions = instructions
        self._version: str | None = None  # of the handshake

    def serve(self, channel: Channel) -> None:
        """Answers until the client ends or is killed."""
        try:
            while (line := channel.read()) is not None:
                answer = self.answer(line)
                if answer is not None:
                    channel.write(answer)
        except BrokenPipeError:
            return

    def answer(self, line: bytes) -> Reply | list[Reply] | None:
        """The answer to a line; None for notifications and blank lines."""
        if not line:
            return _error(None, _REQUEST, f"the request has more than {_LARGEST:,} bytes")
        if not line.strip():
            return None
        try:
            message = json.loads(line.decode())
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "accepted is one JSON value a line"
            return _error(None, _PARSE, f"the request cannot be read: {reason}")
        if isinstance(message, list) and message and self._version == _BATCHES:
            return [answer for each in message if (answer := self._one(each)) is not None] or None
        return self._one(message)

    def _one(self, message: object) -> Reply | None:
        if not isinstance(message, dict):
            return _error(None, _REQUEST, "accepted is one JSON object a line; batches exist only in 2025-03-26")
        if "method" not in message and ("result" in message or "error" in message):
            return None  # an answer, and this server asks nothing
        number = message.get("id")
        if type(number) not in (int, str):
            is_notification = "id" not in message and isinstance(message.get("method"), str)
            return None if is_notification else _error(None, _REQUEST, "id is not a text or a whole number")
        method, params = message.get("method"), message.get("params", {})
        try:
            if message.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, dict):
                raise _Refused(_REQUEST, "accepted are objects with jsonrpc '2.0', a method and params as an object")
            return {"jsonrpc": "2.0", "id": number, "result": self._result(method, params)}
        except _Refused as refused:
            return {"jsonrpc": "2.0", "id": number, "error": refused.error}

    def _result(self, method: str, params: Reply) -> Reply:
        meta = params.get("_meta")
        version = meta.get(f"{_META}protocolVersion") if isinstance(meta, dict) else None
        if version is not None and version not in STATELESS_VERSIONS and method != "initialize":
            supported = [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS]
            raise _Refused(
                _VERSION, f"version {brief(version)} is not served", {"supported": supported, "requested": version}
            )
        if method == "initialize":
            return self._initialized(params)
        if method == "ping":
            return {"resultType": "complete"} if version else {}
        answers = {"server/discover": self._discovered, "tools/list": self._listed, "tools/call": self._called}
        if method not in answers:
            raise _Refused(_METHOD, f"there is no method {brief(method)}")
        if version is None and (self._version is None or method == "server/discover"):
            raise _Refused(_PARAMS, f"params._meta lacks {_META}protocolVersion, and initialize did not come before")
        result = answers[method](params)
        if version is None:
            return result
        cached = {} if method == "tools/call" else {"ttlMs": _CACHED_MS, "cacheScope": "private"}
        return {**result, "resultType": "complete", **cached}

    def _initialized(self, params: Reply) -> Reply:
        asked = params.get("protocolVersion")
        if not isinstance(asked, str):
            raise _Refused(_PARAMS, "params lack protocolVersion, a text")
        self._version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        return {"protocolVersion": self._version, "serverInfo": _SERVER, **self._abilities()}

    def _discovered(self, _params: Reply) -> Reply:
        versions = [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS]
        return {"supportedVersions": versions, "_meta": {f"{_META}serverInfo": _SERVER}, **self._abilities()}

    def _abilities(self) -> Reply:
        return {"capabilities": {"tools": {}}, "instructions": self._instructions}

    def _listed(self, _params: Reply) -> Reply:
        return {"tools": [tool.listed() for tool in self._tools.values()]}

    def _called(self, params: Reply) -> Reply:
        name, given = params.get("name"), params.get("arguments", {})
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise _Refused(_PARAMS, f"there is no tool {brief(name)}; there are {', '.join(self._tools)}")
        if not isinstance(given, dict):
            raise _Refused(_PARAMS, f"arguments are {brief(given)}; accepted is an object")
        failed = True
        try:
            tool.check(given)
            text, failed = tool.call(**given), False
        except (GpuscopeError, OSError) as error:  # the model can act on it
            text = str(error)
        except Exception as error:  # the next call must still be answered
            traceback.print_exc(file=sys.stderr)
            text = f"{tool.name} failed: {type(error).__name__}; standard error of the server has the details"
        return {"content": [{"type": "text", "text": text}], "isError": failed}


_SERVER = {"name": "gpuscope", "version": _core.__version__}


def _error(number: int | str | None, code: int, message: str) -> Reply:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
