# SPDX-License-Identifier: Apache-2.0
"""The files behind `gpuscope hang`: dumps of the Flight Recorder, texts of RAS, stacks, and untrusted folders."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuscope import _core
from gpuscope.cli import main
from gpuscope.errors import CorruptTrace, InvalidArgument, NotAvailable
from gpuscope.watching.evidence import gather
from gpuscope.watching.flight_recorder import read_flight_recorder
from gpuscope.watching.hang import HangReport, find_hang, find_hang_by_ras
from gpuscope.watching.ras import parse_ras
from gpuscope.watching.stacks import read_stacks

GLOO_PROGRAM = Path(__file__).parents[2] / "fakes" / "gloo_hang.py"
SECONDS_AGO_NS = 60 * 10**9


def entry(number: int, name: str = "nccl:all_reduce", state: str = "completed", **fields: Any) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": time.time_ns() - SECONDS_AGO_NS,
        "input_sizes": [[1024, 8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024, 8]],
        "output_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "is_p2p": False,
        "frames": [
            {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 2501},
            {"name": "reduce_grads", "filename": "/home/me/train.py", "line": 41},
        ],
        **fields,
    }


def dump(entries: Sequence[dict[str, Any]], ranks: int = 2, version: str = "2.10") -> dict[str, Any]:
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    return {"version": version, "entries": list(entries), "pg_config": {"0": group}, "pg_status": {}}


def write(folder: Path, dumps: Sequence[dict[str, Any]], *, as_json: bool = False) -> Path:
    folder.mkdir(exist_ok=True, mode=0o700)
    for rank, each in enumerate(dumps):
        data = json.dumps(each).encode() if as_json else pickle.dumps(each, 2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rank_that_misses_a_collective_is_named(tmp_path: Path, as_json: bool) -> None:
    done = [entry(1), entry(2)]
    dumps = [dump([*done, entry(3, state="started"), entry(4, state="scheduled")], 3) for _ in range(2)]
    report = find_hang(write(tmp_path / "dumps", [*dumps, dump(done, 3)], as_json=as_json))
    cause = report.causes[0]
    assert (cause.kind, cause.ranks, cause.waiting) == ("late", (2,), (0, 1))
    assert "rank 2 misses all_reduce 3 of default_pg: ranks 0 and 1 wait inside for 6" in str(report).lower()
    assert report.ranks[0].place == "train.py:41 in reduce_grads"


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    dumps = [dump([entry(1, state="started")], 3) for _ in range(2)]
    report = find_hang(write(tmp_path / "dumps", dumps))
    assert (report.causes[0].kind, report.causes[0].ranks) == ("silent", (2,))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (entry(3, "nccl:broadcast", "started"), "rank 1 calls broadcast"),
        (entry(3, state="started", input_sizes=[[1000, 8]]), "rank 1 calls it with [[1000, 8]] Float"),
        (entry(3, state="started", input_dtypes=["BFloat16"]), "rank 1 calls it with [[1024, 8]] BFloat16"),
    ],
)
def test_ranks_in_different_collectives_are_named(tmp_path: Path, other: dict[str, Any], words: str) -> None:
    dumps = [dump([entry(2), entry(3, state="started")], 3), dump([entry(2), other], 3)]
    report = find_hang(write(tmp_path / "dumps", [*dumps, dumps[0]]))
    assert (report.causes[0].kind, report.causes[0].ranks) == ("mismatch", (1,))
    assert words in str(report)


def test_sizes_of_an_all_to_all_may_differ(tmp_path: Path) -> None:
    sizes = [entry(1, "nccl:all_to_all", "started", input_sizes=[[size]]) for size in (8, 9)]
    report = find_hang(write(tmp_path / "dumps", [dump([each]) for each in sizes]))
    assert [cause.kind for cause in report.causes] == ["stuck"]


def test_a_rank_of_which_alone_is_known_waits(tmp_path: Path) -> None:
    report = find_hang(write(tmp_path / "dumps", [{**dump([entry(3, state="started")]), "pg_config": {}}]))
    assert [(cause.kind, cause.ranks) for cause in report.causes] == [("stuck", (0,))]
    assert "Rank 0 is inside all_reduce 3 of default_pg, and it does not end." in str(report)
    assert "No other rank is known." in str(report)


def test_a_size_without_bounds_does_no_harm(tmp_path: Path) -> None:
    box = _core.BlackBox(str(tmp_path / "black_box.bin"), 0)
    box.collective("dp", 1, "all_reduce", 8, (1 << 64) - 1)
    time.sleep(0.02)
    report = find_hang(tmp_path, 0.01)
    box.close()
    assert [(cause.kind, cause.ranks) for cause in report.causes] == [("stuck", (0,))]
    assert "ranks, 1 have entered it" in str(report)


def test_a_chain_of_waits_ends_at_the_rank_that_waits_for_nothing(tmp_path: Path) -> None:
    groups = {name: {"name": name, "desc": name, "ranks": ranks} for name, ranks in (("a", "[0, 1]"), ("b", "[1, 2]"))}
    calls: list[list[dict[str, Any]]] = [
        [entry(5, state="started", process_group=("a", "a"))],
        [entry(4, process_group=("a", "a")), entry(9, state="started", process_group=("b", "b"))],
        [entry(8, process_group=("b", "b"))],
    ]
    dumps = [{**dump(each), "pg_config": groups} for each in calls]
    report = find_hang(write(tmp_path / "dumps", dumps))
    assert [cause.ranks for cause in report.causes] == [(2,)]
    assert "9 of b" in str(report)


def test_ended_collectives_are_no_hang(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", [dump([entry(1), entry(2)]) for _ in range(2)])
    assert not find_hang(folder).is_hang
    young = entry(3, state="started", time_created_ns=time.time_ns())
    assert not find_hang(write(folder, [dump([entry(2), young]), dump([entry(2)])])).is_hang


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/never-made-by-a-pickle",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"entries": [Runs()], "pg_config": {}, "version": "2.1"}),
        pickle.dumps({**dump([entry(1)], version="3.0")}),
        pickle.dumps({**dump([]), "entries": "many"}),
        pickle.dumps(dump([entry(1)]))[:-20],
        b'{"pg_config": {}, "entries": [',
        b'{"entries":' + b"[" * 100_000 + b'"pg_config"',
    ],
    ids=["runs code", "version", "no list", "cut off", "half JSON", "deep JSON"],
)
def test_hostile_dumps_are_refused_and_noted(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorruptTrace):
        read_flight_recorder("dump", data)
    folder = write(tmp_path / "dumps", [dump([entry(1)])])
    (folder / "nccl_trace_rank_7").write_bytes(data)
    report = find_hang(folder)
    assert len(report.notes) == 1
    assert "nccl_trace_rank_7" in report.notes[0]
    assert not Path("/tmp/never-made-by-a-pickle").exists()


def test_fields_of_other_types_do_no_harm() -> None:
    wrong: list[Any] = [None, -1, "x", [], {}, 1 << 70, [[None]], {"ranks": 3}]
    chance = random.Random(3)
    for _ in range(300):
        each = dump([{**entry(1), chance.choice(list(entry(1))): chance.choice(wrong)}, chance.choice(wrong)])
        each["pg_config"] = chance.choice([each["pg_config"], *wrong])
        with contextlib.suppress(CorruptTrace):
            read_flight_recorder("dump", pickle.dumps(each, 2))


RAS = """\
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

"""
BEHIND = """\
Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  29 ranks have launched up to operation {most}
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 10.0.0.1
  Rank 2 -- GPU 2 managed by process 483074 on node 10.0.0.1
  Rank 9 has not launched any operations -- GPU 1 managed by process 91 on node 10.0.0.2

  Communicator ranks have different Broadcast operation counts
  31 ranks have launched up to operation 7
  Rank 4 has launched up to operation 6 -- GPU 4 managed by process 95 on node 10.0.0.2

"""
SILENT = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

"""
DEAD = SILENT.replace("INCOMPLETE\n  Missing communicator data from 1 job", "DEAD\n  1 job process is dead\n  x", 1)


def test_processes_that_do_not_answer_ras_are_named(tmp_path: Path) -> None:
    (tmp_path / "ras.txt").write_text(RAS + SILENT + "Warnings\n========\n\nTIMEOUT\n  Encountered 2 timeouts\n")
    report = find_hang(tmp_path)
    assert [(cause.kind, cause.ranks) for cause in report.causes] == [("silent", (21,))]
    assert "Process 3487984 on node 172.16.64.213 (GPU 5) does not answer" in str(report)
    assert "rank 21 of #0-0" in str(report)
    (tmp_path / "ras.txt").write_text(RAS + DEAD)
    assert [(cause.kind, cause.ranks) for cause in find_hang(tmp_path).causes] == [("dead", (21,))]
    old_form = SILENT.replace(
        "  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213", "  The missing rank: 21"
    )
    assert parse_ras(RAS + old_form, "x").missing == (("#0-0 (cf264af53edbe986)", (21,)),)


def test_ranks_that_are_behind_are_read() -> None:
    behind = parse_ras(RAS + BEHIND.format(most=6650), "x").behind
    assert [(each.launched, each.most, each.count, each.ranks) for each in behind] == [
        (6649, 6650, 2, (0, 2)),
        (0, 6650, 1, (9,)),
        (6, 7, 1, (4,)),
    ]
    assert parse_ras(RAS, "x") == parse_ras(RAS + "Warnings\n========\n\n", "x")
    with pytest.raises(CorruptTrace):
        parse_ras("some other text", "x")


@contextlib.contextmanager
def ras_service(answers: Sequence[str]) -> Iterator[int]:
    """Answers each connection with the next text, as NCCL does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                with server.accept()[0] as connection, connection.makefile("rb") as file:
                    if file.readline() == b"CLIENT PROTOCOL 2\n":
                        connection.sendall(b"SERVER PROTOCOL 2\n")
                    if file.readline() == b"VERBOSE STATUS\n":
                        connection.sendall(answer.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        thread.join(10)


def test_only_ranks_that_stay_behind_hang() -> None:
    same, moved = RAS + BEHIND.format(most=6650), RAS + BEHIND.format(most=6651)
    with ras_service([same, same]) as port:
        report = find_hang_by_ras("127.0.0.1", port, 0.01)
    assert [cause.kind for cause in report.causes] == ["behind"] * 3
    assert "behind in AllReduce: 6,649 launched, the others 6,650: ranks 0 and 2" in str(report)
    with ras_service([same, moved.replace("operation 7", "operation 8")]) as port:
        assert not find_hang_by_ras("127.0.0.1", port, 0.01).is_hang


def test_the_command_asks_ras(capfd: pytest.CaptureFixture[str]) -> None:
    with ras_service([RAS + SILENT]) as port:
        assert main(["hang", f"127.0.0.1:{port}"]) == 1
    assert "does not answer" in capfd.readouterr().out
    with ras_service([RAS]) as port:
        assert main(["hang", f"127.0.0.1:{port}", "--after", "10ms"]) == 0
    assert main(["hang", "127.0.0.1:1"]) == 2
    assert main(["hang", "127.0.0.1:99999"]) == 2


def test_a_port_without_ras_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(NotAvailable, match="timed out"):
        find_hang_by_ras("127.0.0.1", server.getsockname()[1], timeout_s=0.1)
    with pytest.raises(NotAvailable, match="NCCL_RAS"):
        find_hang_by_ras("127.0.0.1", 1, timeout_s=1)


def test_stacks_of_faulthandler_and_py_spy_are_read() -> None:
    threads = read_stacks(
        "Timeout (0:00:05)!\n"
        "Thread 0x00007f29bfe666c0 [loader] (most recent call first):\n"
        '  File "/lib/python3.11/queue.py", line 171 in get\n\n'
        "Current thread 0x00007f29c07cbb80 (most recent call first):\n"
        '  File "/lib/python3.11/threading.py", line 320 in wait\n'
        '  File "/home/me/train.py", line 12 in <module>\n'
    )
    assert [str(thread.place) for thread in threads] == ["train.py:12 in <module>", "queue.py:171 in get"]
    threads = read_stacks(
        "Process 812: python train.py\nPython v3.11.7\n\n"
        'Thread 812 (active+gil): "MainThread"\n    tokenize (text.py:5)\n    <module> (train.py:12)\n'
        'Thread 0x7F1 (idle): "loader"\n    get (queue.py:171)\n'
    )
    assert [(thread.has_gil, str(thread.place)) for thread in threads] == [
        (True, "text.py:5 in tokenize"),
        (False, "queue.py:171 in get"),
    ]
    assert read_stacks("no stacks here\n") == []


@pytest.mark.parametrize("times", [(1, 2), (2, 1)])
def test_the_latest_stacks_belong_to_the_rank_of_their_why(tmp_path: Path, times: tuple[int, int]) -> None:
    folder = write(tmp_path / "job", [dump([entry(1), entry(2, state="started")]), dump([entry(1)])])
    text = 'Thread 0x1 (most recent call first):\n  File "/home/me/{}.py", line 5 in load\n'
    for name, when in zip(("0001-hang", "0002-hang"), times, strict=True):
        (folder / "dumps" / name).mkdir(parents=True)
        (folder / "dumps" / name / "why.json").write_text('{"rank": 1}')
        (folder / "dumps" / name / "stacks.txt").write_text(text.format("new" if when == 2 else "old"))
        os.utime(folder / "dumps" / name / "stacks.txt", (when, when))
    assert "Rank 1 is at new.py:5 in load." in str(find_hang(folder))


def refusal(folder: Path) -> str:
    with pytest.raises(InvalidArgument) as caught:
        gather(folder)
    return str(caught.value)


def test_folders_that_others_may_have_written_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", [dump([entry(1)])])
    folder.chmod(0o777)
    assert "all users can write" in refusal(folder)
    folder.chmod(0o1777)
    assert gather(folder).ranks
    (tmp_path / "link").symlink_to(folder)
    assert "is a link" in refusal(tmp_path / "link")
    assert "no such file" in refusal(tmp_path / "absent").lower()
    assert "name of a file" in refusal(tmp_path / "a\0b")
    with pytest.raises(InvalidArgument, match="after_s"):
        find_hang(folder, 0)
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
        assert "belongs to user 12345" in refusal(folder)


def test_links_and_files_of_others_inside_a_folder_are_left_out(tmp_path: Path) -> None:
    target = write(tmp_path / "target", [dump([entry(1)])])
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "nccl_trace_rank_0").symlink_to(target / "nccl_trace_rank_0")
    (folder / "black_box.bin").symlink_to("/etc/passwd")
    (folder / "inner").symlink_to(target)
    os.mkfifo(folder / "stacks.txt")
    assert "no readable black box" in refusal(folder)
    write(folder / "open", [dump([entry(1)])])
    (folder / "open").chmod(0o777)
    assert "all users can write" in refusal(folder)
    if os.geteuid() == 0:
        (folder / "open").chmod(0o700)
        os.chown(folder / "open" / "nccl_trace_rank_0", 12345, 12345)
        assert "belongs to another user" in refusal(folder)


def test_a_folder_of_a_thousand_ranks_has_a_short_answer(tmp_path: Path) -> None:
    dumps = [dump([entry(1), entry(2, state="started")] if rank % 100 else [entry(1)], 1000) for rank in range(1000)]
    report = find_hang(write(tmp_path / "dumps", dumps))
    assert len(report.causes[0].ranks) == 10
    assert len(str(report).splitlines()) <= 40
    assert max(map(len, str(report).splitlines())) <= 400


@contextlib.contextmanager
def gloo_job(folder: Path, scenario: str) -> Iterator[None]:
    folder.mkdir(mode=0o700)
    program = [sys.executable, str(GLOO_PROGRAM), str(folder)]
    ranks = [subprocess.Popen([*program, str(rank), "2", scenario], stderr=subprocess.DEVNULL) for rank in range(2)]
    try:
        until = time.monotonic() + 100
        while len(list(folder.glob("nccl_trace_rank_*"))) < 2 and time.monotonic() < until:
            assert all(rank.poll() is None for rank in ranks)
            time.sleep(0.1)
        yield
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("scenario", "kind", "words"), [("late", "late", "misses"), ("mismatch", "mismatch", "broadcast")]
)
def test_dumps_of_real_gloo_ranks_are_read(tmp_path: Path, scenario: str, kind: str, words: str) -> None:
    with gloo_job(tmp_path / "job", scenario):
        report: HangReport = find_hang(tmp_path / "job", 0.2)
    assert [(cause.kind, cause.ranks) for cause in report.causes] == [(kind, (1,))]
    assert words in str(report)
    assert report.ranks[0].place is not None
    assert "gloo_hang.py" in report.ranks[0].place
