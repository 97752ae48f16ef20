# SPDX-License-Identifier: Apache-2.0
"""The Model Context Protocol on standard input and output, by the official SDK; it knows nothing of the tools.

The SDK speaks both eras: revisions up to 2025-11-25 begin with `initialize`; since 2026-07-28 each request carries its
version (https://modelcontextprotocol.io/specification).

`Channel` replaces the SDK's transport. That one reads lines of any length, and does not answer those that it cannot
read. It also drops requests that are open when the input ends.
"""

from __future__ import annotations

import contextlib
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
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.text import brief, shorten

_LARGEST = 1 << 20  # bytes of a request
_AT_ONCE = 1 << 16
_LONGEST_ERROR = 2_000
_CACHED_MS = 3_600_000  # how long a client may keep the list of tools, which does not change
_PARSE, _REQUEST = -32700, -32600


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

    def listed(self) -> dict[str, Any]:
        """The entry of `tools/list`."""
        schema: dict[str, Any] = {"type": "object", "properties": self.properties, "additionalProperties": False}
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

    def answer(self, given: Mapping[str, Any]) -> tuple[str, bool]:
        """The text for the model, and whether the call failed."""
        try:
            self.check(given)
            return self.call(**given), False
        except (GpuscopeError, OSError) as error:  # the model can act on it
            return shorten(str(error), _LONGEST_ERROR), True
        except Exception as error:  # the next call must still be answered
            traceback.print_exc(file=sys.stderr)
            details = "standard error of the server has the details"
            return f"{self.name} failed: {type(error).__name__}; {details}", True


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

    async def read(self) -> bytes | None:
        """The next line, b"" for one that is too long; None when the client has ended. Half a line is dropped."""
        import anyio

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
            with contextlib.suppress(PermissionError):  # a file, which is always readable
                await anyio.wait_readable(self._input)
            part = os.read(self._input, _AT_ONCE)
            if not part:
                return None
            self._pending += part

    def write(self, message: str) -> None:
        """Sends one message."""
        rest = memoryview(message.encode() + b"\n")
        while rest:
            rest = rest[os.write(self._output, rest) :]

    def is_closed(self) -> bool:
        """Whether nobody reads the answers any more."""
        poll = select.poll()
        poll.register(self._output, 0)
        return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))


def serve(tools: Sequence[Tool], instructions: str, channel: Channel) -> None:
    """Answers the client's requests, one after the other, until it ends or is killed.

    Args:
        tools: the functions to offer.
        instructions: for the model, how to use them.
        channel: where the client is.

    Raises:
        NotAvailable: the SDK is not installed.
    """
    try:
        import anyio
        import mcp_types as types
        from mcp import MCPError
        from mcp.server.caching import CacheHint
        from mcp.server.lowlevel import Server
    except ImportError:  # or an older one
        raise NotAvailable(
            "the server is not available: mcp 2.3 is not installed; pip install 'gpuscope[agents]'"
        ) from None
    named = {tool.name: tool for tool in tools}
    listed = types.ListToolsResult.model_validate({"tools": [tool.listed() for tool in tools]})

    async def list_tools(_context: Any, _params: Any) -> Any:
        return listed

    async def call_tool(_context: Any, params: Any) -> Any:
        if params.name not in named:
            there = ", ".join(named)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {brief(params.name)}; there are {there}")
        text, failed = named[params.name].answer(params.arguments or {})
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    server = Server(
        "gpuscope",
        version=_core.__version__,
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        cache_hints={"tools/list": CacheHint(_CACHED_MS)},
    )
    anyio.run(_carry, channel, server)


async def _carry(channel: Channel, server: Any) -> None:
    """Hands messages over. A request is answered before the next line is read, so the end of the input loses none."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCRequest, jsonrpc_message_adapter

    to_server, requests = anyio.create_memory_object_stream[Any](0)
    answers, from_server = anyio.create_memory_object_stream[Any](0)
    async with anyio.create_task_group() as group, to_server, from_server:
        group.start_soon(server.run, requests, answers, server.create_initialization_options())
        with contextlib.suppress(BrokenPipeError):
            while (line := await channel.read()) is not None:
                if line.isspace():
                    continue
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:  # pydantic's is one
                    channel.write(json.dumps({"jsonrpc": "2.0", "id": None, "error": _refusal(line)}))
                    continue
                await to_server.send(SessionMessage(message))
                if isinstance(message, JSONRPCRequest):
                    answer = (await from_server.receive()).message
                    channel.write(answer.model_dump_json(by_alias=True, exclude_unset=True))


def _refusal(line: bytes) -> dict[str, Any]:
    """The error of JSON-RPC for a line that is no message."""
    if not line:
        return {"code": _REQUEST, "message": f"the request has more than {_LARGEST:,} bytes"}
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "accepted is one JSON value a line"
        return {"code": _PARSE, "message": f"the request cannot be read: {reason}"}
    return {"code": _REQUEST, "message": "accepted is one message of JSON-RPC 2.0 a line, and no batch"}
