# SPDX-License-Identifier: Apache-2.0
"""The server of the Model Context Protocol: both eras, and what is no proper message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuscope.agent.protocol import Tool, serve
from gpuscope.errors import NotAvailable

pytest.importorskip("mcp_types")  # which only the SDK of both eras has
pytest.importorskip("mcp.server.lowlevel")

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


class Script:
    """A client that sends these lines and ends."""

    def __init__(self, lines):
        self._lines = iter(lines)
        self.answers = []

    async def read(self):
        return next(self._lines, None)

    def write(self, message):
        assert "\n" not in message
        self.answers.append(json.loads(message))


def answers(*lines):
    client = Script(lines)
    serve(TOOLS, "how", client)
    return client.answers


def request(method, number=1, **params):
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def handshake(version="2025-11-25"):
    return request("initialize", 0, protocolVersion=version, capabilities={}, clientInfo={"name": "t", "version": "1"})


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_handshake_agrees_on_the_clients_version(version):
    (answer,) = answers(handshake(version))
    assert answer["result"]["protocolVersion"] == version


def test_a_handshake_of_an_unknown_version_gets_the_newest():
    (answer,) = answers(handshake("1999-01-01"))
    assert answer["result"]["protocolVersion"] == "2025-11-25"


def test_a_handshake_says_how_to_use_the_tools():
    (answer,) = answers(handshake())
    assert (answer["result"]["instructions"], answer["result"]["serverInfo"]["name"]) == ("how", "gpuscope")


def test_tools_need_a_handshake_or_a_version():
    (refused,) = answers(request("tools/list"))
    assert refused["error"]["code"] == -32602


def test_tools_are_listed_after_a_handshake():
    _, listed = answers(handshake(), request("tools/list"))
    assert [each["name"] for each in listed["result"]["tools"]] == ["echo", "refuse", "fail"]


def test_a_stateless_request_needs_no_handshake():
    (listed,) = answers(request("tools/list", _meta=STATELESS))
    result = listed["result"]
    assert (result["resultType"], result["ttlMs"], len(result["tools"])) == ("complete", 3_600_000, 3)


def test_an_unknown_stateless_version_gets_the_served_ones():
    unknown = STATELESS | {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    (refused,) = answers(request("tools/list", _meta=unknown))
    assert refused["error"]["data"]["supported"] == ["2026-07-28"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b"3", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\\ud800"}}', -32600),
        (b"", -32600),  # what the channel gives for a line that is too long
    ],
    ids=range(10),
)
def test_what_is_no_message_gets_an_error_and_the_next_is_answered(line, code):
    _, refused, pong = answers(handshake(), line, request("ping"))
    assert (refused["error"]["code"], pong["result"]) == (code, {})


def test_an_unknown_method_gets_an_error():
    _, refused = answers(handshake(), request("resources/list"))
    assert refused["error"]["code"] == -32601


@pytest.mark.parametrize(
    "line", [b" ", b'{"jsonrpc":"2.0","method":"notifications/initialized"}', b'{"jsonrpc":"2.0","id":1,"result":{}}']
)
def test_what_is_no_question_gets_no_answer(line):
    assert len(answers(handshake(), line)) == 1


def test_a_request_that_is_cancelled_before_it_is_read_does_not_stop_the_server():
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
    assert len(answers(handshake(), cancel, request("tools/call", name="echo"), cancel, request("ping", 2))) == 3


def test_requests_are_answered_in_their_order():
    calls = [request("tools/call", number, name="echo", arguments={"text": "a"}) for number in range(1, 20)]
    assert [each["id"] for each in answers(handshake(), *calls)] == list(range(20))


def called(tool, arguments=None):
    (answer,) = answers(request("tools/call", name=tool, arguments=arguments or {}, _meta=STATELESS))
    return answer["result"]["isError"], answer["result"]["content"][0]["text"]


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
def test_arguments_outside_the_schema_are_refused_in_a_sentence(arguments, said):
    text, failed = TOOLS[0].answer(arguments)
    assert failed
    assert said in text


def test_an_error_is_short():
    text, failed = Tool("open", "", {"name": TEXT}, ("name",), lambda name: os.stat(name)).answer(
        {"name": "a/" * 9_999}
    )
    assert (failed, len(text)) == (True, 2_000)


def test_an_error_of_a_tool_is_an_answer():
    assert called("refuse") == (True, "no GPU")


def test_a_tool_that_breaks_does_not_end_the_server(capfd):
    failed, text = called("fail")
    assert failed
    assert "secret" not in text
    assert "secret" in capfd.readouterr().err


def test_an_unknown_tool_names_the_others():
    (answer,) = answers(request("tools/call", name="no", _meta=STATELESS))
    assert "echo, refuse, fail" in answer["error"]["message"]


def test_without_the_sdk_the_server_names_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    with pytest.raises(NotAvailable, match=r"pip install 'gpuscope\[agents\]'"):
        serve(TOOLS, "how", Script([]))


# -- the process ------------------------------------------------------------------------------------------------------

NOISY = """
import ctypes, os, subprocess, sys
from gpuscope.agent.protocol import Channel, Tool, serve
def noise():
    print("from Python", flush=True)
    os.write(1, b"from a descriptor\\n")
    ctypes.CDLL(None).puts(b"from C")
    ctypes.CDLL(None).fflush(None)
    subprocess.run(["echo", "from a child"])
    return sys.stdin.read() + "done"
serve([Tool("noise", "Prints.", {}, (), noise)], "", Channel())
"""
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


def lines_of(given):
    done = subprocess.run([sys.executable, "-c", NOISY], input=given, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_what_a_tool_prints_is_not_among_the_messages():
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "noise", "_meta": STATELESS}}
    (answer,), printed = lines_of(json.dumps(call).encode() + b"\n")
    assert answer["result"]["content"][0]["text"] == "done"
    assert printed.splitlines() == [b"from Python", b"from a descriptor", b"from C", b"from a child"]


def test_half_a_frame_at_the_end_gets_no_answer():
    assert len(lines_of(PING + PING[:-5])[0]) == 1


def test_input_from_a_file_is_answered(tmp_path):
    (tmp_path / "in").write_bytes(PING)
    with open(tmp_path / "in", "rb") as given:
        done = subprocess.run([sys.executable, "-c", NOISY], stdin=given, capture_output=True, timeout=60)
    assert len(done.stdout.splitlines()) == 1, done.stderr


def test_a_request_that_is_too_large_is_refused_and_the_next_is_answered():
    answers, _ = lines_of(b"x" * (3 << 20) + b"\n" + PING)
    assert [answer.get("error", {}).get("code") for answer in answers] == [-32600, None]


def test_a_client_that_is_killed_ends_the_server():
    server = subprocess.Popen([sys.executable, "-c", NOISY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    server.stdout.close()  # nobody reads
    server.stdin.write(PING * 10)
    server.stdin.close()
    assert server.wait(60) == 0


@pytest.mark.parametrize(("ended_by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (None, 0)])
def test_a_server_that_ends_ends_the_program_that_it_runs(tmp_path, ended_by, code):
    (tmp_path / "work.py").write_text("import os, time\nprint(os.getpid(), file=open('pid', 'w'))\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "gpuscope", "mcp", "--root", str(tmp_path), "--allow-run"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    arguments = {"command": ["work.py"], "output": "out.gscope"}
    server.stdin.write(request("tools/call", name="record", arguments=arguments, _meta=STATELESS) + b"\n")
    server.stdin.flush()
    for _ in range(600):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        time.sleep(0.1)
    if ended_by is None:
        server.stdout.close()
    else:
        server.send_signal(ended_by)
    server.stdin.close()
    assert (server.wait(60), b"Traceback" in server.stderr.read()) == (code, False)
    server.stdout.close()
    server.stderr.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


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


def official(variable, source, *arguments):
    """The answer of the official SDK's client, in the Python that a variable of the environment names."""
    if (python := os.environ.get(variable)) is None:
        pytest.skip(f"{variable} names no Python with this release of mcp")
    recordings = Path(__file__).resolve().parents[3] / "docs" / "recordings"
    server = [sys.executable, "-m", "gpuscope", "mcp", "--root", str(recordings)]
    done = subprocess.run([python, "-c", source, *arguments, *server], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_official_client_of_the_handshake_is_served():
    assert official("PYTHON_OF_MCP_1", OFFICIAL_1) == f"2025-11-25 {EXPECTED}"


@pytest.mark.parametrize(
    ("mode", "version"), [("auto", "2026-07-28"), ("2026-07-28", "2026-07-28"), ("legacy", "2025-11-25")]
)
def test_the_official_client_of_both_eras_is_served(mode, version):
    assert official("PYTHON_OF_MCP_2", OFFICIAL_2, mode) == f"{version} {EXPECTED}"
