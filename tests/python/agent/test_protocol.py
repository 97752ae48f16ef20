# SPDX-License-Identifier: Apache-2.0
"""The server of the Model Context Protocol: both eras, and what is no proper message."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from gpuscope.agent.protocol import Server, Tool
from gpuscope.errors import NotAvailable

STATELESS = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 1, "maximum": 9}
LIST = {"type": "array", "items": TEXT, "maxItems": 2}


def refuse():
    raise NotAvailable("no GPU")


def fail():
    raise ZeroDivisionError("secret")


TOOLS = [
    Tool(
        "echo",
        "Repeats.",
        {"text": TEXT, "count": COUNT, "list": LIST, "kind": {**TEXT, "enum": ["a"]}},
        ("text",),
        lambda text, **_: text,
    ),
    Tool("refuse", "Refuses.", {}, (), refuse),
    Tool("fail", "Fails.", {}, (), fail),
]


@pytest.fixture
def server():
    return Server(TOOLS, "how")


def ask(server, method, number=1, **params):
    return server.answer(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())


def handshake(server, version="2025-11-25"):
    return ask(server, "initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "t", "version": "1"})


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_handshake_agrees_on_the_clients_version(server, version):
    assert handshake(server, version)["result"]["protocolVersion"] == version


def test_a_handshake_of_an_unknown_version_gets_the_newest(server):
    assert handshake(server, "1999-01-01")["result"]["protocolVersion"] == "2025-11-25"


def test_tools_need_a_handshake_or_a_version(server):
    assert ask(server, "tools/list")["error"]["code"] == -32602
    handshake(server)
    assert [each["name"] for each in ask(server, "tools/list")["result"]["tools"]] == ["echo", "refuse", "fail"]


def test_a_stateless_request_needs_no_handshake(server):
    result = ask(server, "tools/list", _meta=STATELESS)["result"]
    assert (result["resultType"], result["cacheScope"], len(result["tools"])) == ("complete", "private", 3)


def test_discovery_lists_the_versions(server):
    result = ask(server, "server/discover", _meta=STATELESS)["result"]
    assert result["supportedVersions"][-2:] == ["2025-11-25", "2026-07-28"]
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "gpuscope"


def test_an_unknown_stateless_version_gets_the_served_ones(server):
    error = ask(server, "tools/list", _meta={"io.modelcontextprotocol/protocolVersion": "2099-01-01"})["error"]
    assert error["code"] == -32022
    assert "2026-07-28" in error["data"]["supported"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b"1" * 5000, -32700),
        (b"3", -32600),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b"", -32600),  # what the channel gives for a line that is too long
    ],
    ids=range(14),
)
def test_what_is_no_request_gets_an_error(server, line, code):
    handshake(server)
    assert server.answer(line)["error"]["code"] == code


@pytest.mark.parametrize(
    "line", [b" ", b'{"jsonrpc":"2.0","method":"notifications/initialized"}', b'{"jsonrpc":"2.0","id":1,"result":{}}']
)
def test_what_is_no_question_gets_no_answer(server, line):
    assert server.answer(line) is None


def test_batches_belong_to_one_version(server):
    handshake(server, "2025-03-26")
    batch = [{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in (1, 2)] + [{"jsonrpc": "2.0", "method": "x"}]
    assert [each["id"] for each in server.answer(json.dumps(batch).encode())] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "lacks the argument text"),
        ({"text": 3}, "text is 3"),
        ({"text": "a\0"}, "text without NUL"),
        ({"text": "a", "other": 1}, "no argument 'other'"),
        ({"text": "a", "count": 10}, "from 1 to 9"),
        ({"text": "a", "count": True}, "count is True"),
        ({"text": "a", "kind": "b"}, "one of a"),
        ({"text": "a", "list": []}, "list of 1 to 2"),
        ({"text": "a", "list": [1]}, "list of 1 to 2"),
    ],
)
def test_arguments_outside_the_schema_are_refused_in_a_sentence(server, arguments, said):
    result = ask(server, "tools/call", name="echo", arguments=arguments, _meta=STATELESS)["result"]
    assert result["isError"]
    assert said in result["content"][0]["text"]


def test_an_error_of_a_tool_is_an_answer(server):
    result = ask(server, "tools/call", name="refuse", _meta=STATELESS)["result"]
    assert (result["isError"], result["content"][0]["text"]) == (True, "no GPU")


def test_a_tool_that_breaks_does_not_end_the_server(server, capfd):
    result = ask(server, "tools/call", name="fail", _meta=STATELESS)["result"]
    assert result["isError"]
    assert "secret" not in result["content"][0]["text"]
    assert "secret" in capfd.readouterr().err


def test_an_unknown_tool_names_the_others(server):
    assert "echo, refuse, fail" in ask(server, "tools/call", name="no", _meta=STATELESS)["error"]["message"]


# -- the process ------------------------------------------------------------------------------------------------------

NOISY = """
import ctypes, os, subprocess, sys
from gpuscope.agent.protocol import Channel, Server, Tool
def noise():
    print("from Python", flush=True)
    os.write(1, b"from a descriptor\\n")
    ctypes.CDLL(None).puts(b"from C")
    ctypes.CDLL(None).fflush(None)
    subprocess.run(["echo", "from a child"])
    return sys.stdin.read() + "done"
Server([Tool("noise", "Prints.", {}, (), noise)], "").serve(Channel())
"""
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


def lines_of(source, given, arguments=("-c",)):
    done = subprocess.run([sys.executable, *arguments, source], input=given, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_what_a_tool_prints_is_not_among_the_messages():
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "noise", "_meta": STATELESS}}
    (answer,), printed = lines_of(NOISY, json.dumps(call).encode() + b"\n")
    assert answer["result"]["content"][0]["text"] == "done"
    assert printed.splitlines() == [b"from Python", b"from a descriptor", b"from C", b"from a child"]


def test_half_a_frame_at_the_end_gets_no_answer():
    assert len(lines_of(NOISY, PING + PING[:-5])[0]) == 1


def test_a_request_that_is_too_large_is_refused_and_the_next_is_answered():
    answers, _ = lines_of(NOISY, b"x" * (3 << 20) + b"\n" + PING)
    assert [answer.get("error", {}).get("code") for answer in answers] == [-32600, None]


def test_a_client_that_is_killed_ends_the_server():
    server = subprocess.Popen([sys.executable, "-c", NOISY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    server.stdout.close()  # nobody reads
    server.stdin.write(PING * 10)
    server.stdin.close()
    assert server.wait(60) == 0


OFFICIAL_1 = """
import anyio, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
async def main():
    async with stdio_client(StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])) as (read, write):
        async with ClientSession(read, write) as session:
            version = (await session.initialize()).protocolVersion
            tools = (await session.list_tools()).tools
            found = await session.call_tool("diagnose", {"recording": "resnet.gscope"})
            wrong = await session.call_tool("table", {"recording": "resnet.gscope", "rows": 0})
            print(version, len(tools), found.isError, wrong.isError, "R19" in found.content[0].text)
anyio.run(main)
"""
OFFICIAL_2 = """
import anyio, sys
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
async def main(mode):
    async with Client(StdioServerParameters(command=sys.argv[2], args=sys.argv[3:]), mode=mode) as client:
        tools = (await client.list_tools()).tools
        found = await client.call_tool("diagnose", {"recording": "resnet.gscope"})
        wrong = await client.call_tool("table", {"recording": "resnet.gscope", "rows": 0})
        print(client.protocol_version, len(tools), found.is_error, wrong.is_error, "R19" in found.content[0].text)
anyio.run(main, sys.argv[1])
"""
EXPECTED = "7 False True True"


def official(python, source, *arguments):
    """The answer of the official SDK's client; `python` has the SDK installed."""
    from pathlib import Path

    recordings = Path(__file__).resolve().parents[3] / "docs" / "recordings"
    server = [sys.executable, "-m", "gpuscope", "mcp", "--root", str(recordings)]
    done = subprocess.run([python, "-c", source, *arguments, *server], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def python_with(release, variable):
    """An interpreter with this release of the SDK: this one, or that of an environment variable."""
    import os

    if python := os.environ.get(variable):
        return python
    if importlib.util.find_spec("mcp") is not None:
        from importlib.metadata import version

        if version("mcp").startswith(f"{release}."):
            return sys.executable
    pytest.skip(f"mcp {release}.x is not installed; {variable} may name a Python that has it")


def test_the_official_client_of_the_handshake_is_served():
    python = python_with(1, "PYTHON_OF_MCP_1")
    assert official(python, OFFICIAL_1) == f"2025-11-25 {EXPECTED}"


@pytest.mark.parametrize(
    ("mode", "version"), [("auto", "2026-07-28"), ("2026-07-28", "2026-07-28"), ("legacy", "2025-11-25")]
)
def test_the_official_client_of_both_eras_is_served(mode, version):
    python = python_with(2, "PYTHON_OF_MCP_2")
    assert official(python, OFFICIAL_2, mode) == f"{version} {EXPECTED}"
