# SPDX-License-Identifier: Apache-2.0
"""Files that were damaged, or made to do harm: each opens, or gets one sentence, within time and memory."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuscope as gs
from fakes import other_traces
from fakes.recordings import training
from gpuscope.errors import CorruptTrace
from gpuscope.readers import proton
from gpuscope.readers.jax_trace import JaxEvents
from gpuscope.recording import Recording

US = 1e9  # since an epoch, as torch.profiler has it


def torch_trace(steps: int = 4) -> dict[str, Any]:
    events: list[dict[str, Any]] = []

    def event(category: str, name: str, ts: float, dur: float, **arguments: Any) -> None:
        gpu = category in ("kernel", "gpu_memcpy", "gpu_memset")
        place = {"pid": 0, "tid": 7} if gpu else {"pid": 11, "tid": 12}
        events.append({"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": arguments} | place)

    events.append({"ph": "M", "name": "process_name", "pid": 11, "tid": 0, "args": {"name": "python train.py"}})
    events.append({"ph": "M", "name": "thread_name", "pid": 11, "tid": 12, "args": {"name": "thread 12 (python)"}})
    place = {"device": 0, "context": 1, "stream": 7}
    for step in range(steps):
        t, number = US + 1000 * step, 10 * step + 1
        sizes = {"grid": [8, 2, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024}
        event("user_annotation", f"ProfilerStep#{step}", t, 900)
        event("python_function", "train.py(12): step", t + 1, 880, **{"Python id": number, "Python parent id": None})
        shapes = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"], "Sequence number": step}
        event("cpu_op", "aten::mm", t + 100, 50, **{"External id": number}, **shapes)
        event("cuda_runtime", "cudaLaunchKernel", t + 110, 5, correlation=number)
        event("kernel", "void gemm<float>(int)", t + 130, 200, correlation=number, **place, **sizes)
        event("cuda_runtime", "cudaMemcpyAsync", t + 210, 5, correlation=number + 1)
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", t + 400, 9, correlation=number + 1, bytes=64, **place)
        events.append(
            {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 11, "tid": 12, "ts": t + 105}
            | {"args": {"Bytes": 512, "Addr": 4096, "Device Type": 1, "Device Id": 0, "Total Allocated": 512}}
        )
        events.append({"ph": "s", "id": number, "pid": 11, "tid": 12, "ts": t + 110, "cat": "ac2g", "name": "ac2g"})
    device = {"id": 0, "name": "NVIDIA H100", "numSms": 132, "computeMajor": 9, "totalGlobalMem": 85_000_000_000}
    facts = {"host_name": "node7", "trace_id": "1F", "distributedInfo": {"rank": 0, "world_size": 2}}
    return {"schemaVersion": 1, "deviceProperties": [device], **facts, "traceEvents": events, "traceName": "a.json"}


def load(document: Any, folder: Path, name: str = "trace.json") -> Recording:
    (folder / name).write_text(json.dumps(document))
    return gs.load(folder / name)


def of(document: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event.get("cat") == category]


# -- any change ------------------------------------------------------------------------------------------------------

HOSTILE = (
    *("@9@20@", "@9@400@", "@9@5000@", "-@9@25@", "0.@9@5000@", "@9@5000@.5", "1e@9@400@"),
    *("NaN", "-Infinity", "nan", "-nan(ind)", "N/A", "null", "true", "-1", "0", "1e18", "-0.0", "9223372036854775807"),
    *('""', '"\\ud800"', '"\\udfff\\ud800x"', '"\\u0000"', '"\\r\\n\\u001b[31m"', '"@9@5000@"', '"-5"', '"C:\\q\\x"'),
    *('"ProfilerStep#@9@5000@"', '"a.py(@9@5000@): f"', '"@9@25@"', "[]", "{}", "[[[[1]]]]", "[@9@30@, @9@30@]"),
    *('"/device:GPU:@9@5000@"', '"Stream #@9@5000@"', '"GPU @9@30@ Stream @9@5000@"', '"@xy@20000@"', '"@[@300@"'),
)
BYTES = (b"\0", b"\xef\xbb\xbf", b"\\", b'"', b"\xff", b"[", b"}", b",", b" " * 5000, b"[" * 400, b"\xed\xa0\x80", b"-")


def spelled(value: str) -> str:
    """With `@9@5000@` as 5,000 nines."""
    return re.sub(r"@([^@]+)@(\d+)@", lambda found: found[1] * int(found[2]), value)


def leaves(node: Any) -> Iterator[tuple[Any, Any]]:
    """Where each value stands: its list or object, and its key there."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield node, key
        if isinstance(value, (dict, list)):
            yield from leaves(value)


def changed(document: Any, dice: random.Random) -> bytes:
    """The document as JSON with some values replaced by hostile ones, and at times bytes of it too."""
    document = json.loads(json.dumps(document))
    marks = {}
    for number in range(dice.randint(0, 3)):
        node, key = dice.choice(list(leaves(document)))
        marks[json.dumps(f"mark {number}")] = spelled(dice.choice(HOSTILE))
        if isinstance(node, dict) and dice.random() < 0.1:
            node[f"mark {number}"] = node.pop(key)
            marks[json.dumps(f"mark {number}")] = json.dumps(spelled(dice.choice(('@"@3@', "\ud800", "@9@5000@"))))
        else:
            node[key] = f"mark {number}"
    text = json.dumps(document)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    data = text.encode("utf-8", "surrogatepass")
    if dice.random() < 0.4:
        at = dice.choice((0, dice.randrange(len(data)), len(data)))
        data = data[:at] + dice.choice(BYTES) + data[at + dice.randint(0, 2) :]
    if dice.random() < 0.1:
        data = data[: dice.randrange(len(data))]
    if dice.random() < 0.2:
        data = gzip.compress(data, mtime=0)[: dice.choice((None, None, -9, 30))]
    return data


KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "torch": (torch_trace, "trace.json"),
    "jax": (lambda: other_traces.jax(2), "vm.trace.json"),
    "proton": (lambda: other_traces.proton(2), "trace.json"),
    "tree": (other_traces.proton_tree, "tree.hatchet"),
}


def opens_or_is_refused(data: bytes, path: Path) -> bool:
    path.write_bytes(data)
    try:
        recording = gs.load(path)
    except CorruptTrace as error:
        sentence = str(error)
        assert "\n" not in sentence
        assert len(sentence) < 300 + len(str(path)), sentence
        return False
    assert recording.audit().verdict
    assert recording.table()
    return True


@pytest.mark.parametrize("kind", [*KINDS, "ours"])
def test_a_file_with_any_change_opens_or_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    if kind == "ours":
        Recording(training().store).export_chrome_trace(tmp_path / "own.json")
        document, name = json.loads((tmp_path / "own.json").read_text()), "trace.json"
    else:
        make, name = KINDS[kind]
        document = make()
    dice = random.Random(f"{kind} 49")
    opened = [opens_or_is_refused(changed(document, dice), tmp_path / name) for _ in range(60)]
    assert 10 < sum(opened) < 60


# -- what live recordings are checked for ----------------------------------------------------------------------------

BROKEN_WORK = [
    ({"dur": -5}, "1 record has an end before the start"),
    ({"dur": float("nan")}, "1 kernel has no end: gemm (1)"),
    ({"dur": float("inf")}, "1 kernel has no end"),
    ({"dur": 1e300}, "1 kernel has no end"),
    ({"dur": None}, "1 kernel has no end"),
    ({"ts": 0, "dur": 0}, "1 record has no timestamps"),
    ({"ts": 0}, "1 record has no timestamps"),
    ({"ts": -1}, "1 record has no timestamps"),
    ({"ts": float("-inf")}, "1 record has no timestamps"),
    ({"ts": None}, "1 record has no timestamps"),
    ({"name": ""}, "1 kernel has no name in the file"),
    ({"name": None}, "1 kernel has no name in the file"),
]


@pytest.mark.parametrize(("wrong", "reason"), BROKEN_WORK)
def test_gpu_work_that_is_broken_is_kept_and_makes_the_audit_incomplete(
    tmp_path: Path, wrong: dict[str, Any], reason: str
) -> None:
    document = torch_trace()
    before = load(document, tmp_path)
    of(document, "kernel")[1].update(wrong)
    recording = load(document, tmp_path)
    audit = recording.audit()
    assert not audit.complete
    assert any(reason in each for each in audit.reasons), audit.reasons
    assert len(recording.trace.kernels) == len(before.trace.kernels)
    assert audit.recorded_ns == before.audit().recorded_ns
    assert recording.trace.kernels.start_ns.min() >= US * 1000


@pytest.mark.parametrize("make", [other_traces.jax, other_traces.proton])
def test_gpu_work_of_other_tools_is_checked_alike(tmp_path: Path, make: Callable[[int], dict[str, Any]]) -> None:
    document = make(2)
    kernels = [event for event in document["traceEvents"] if event.get("name") in ("gemm_fusion_dot_3", "add_kernel")]
    kernels[0]["dur"] = -3
    assert load(document, tmp_path).audit().reasons == ("1 record has an end before the start",)


def test_a_frame_of_a_tree_without_a_time_makes_the_audit_incomplete(tmp_path: Path) -> None:
    for value in (-1, float("nan"), "many", 1e300):
        document = other_traces.proton_tree()
        document[0]["children"][0]["children"][1]["metrics"]["time (ns)"] = value
        assert load(document, tmp_path, "tree.hatchet").audit().reasons == ("1 record has no timestamps",)


def test_a_tree_that_is_nested_too_deeply_gets_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "deep.hatchet"
    path.write_text('[{"frame": {"name": "a"}, "children": ' * 20_000 + "[]" + "}]" * 20_000)
    with pytest.raises(CorruptTrace, match=r"its values are nested too deeply$"):
        gs.load(path)


def test_frames_below_the_deepest_path_keep_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proton, "_MOST_DEEP", 3)
    node: dict[str, Any] = {"frame": {"name": "kernel"}, "metrics": {"time (ns)": 7000, "count": 1}, "children": []}
    for depth in range(6):
        node = {"frame": {"name": f"f{depth}"}, "metrics": {}, "children": [node]}
    recording = load([node], tmp_path, "deep.hatchet")
    assert [row.device_time_total for row in recording.key_averages() if row.kind == "kernel"] == [7]


@pytest.mark.parametrize(
    ("wrong", "remark", "rows"),
    [
        ({"ts": -1}, "left out: 1 region; the file has no usable time for them", 7),
        ({"ts": float("nan")}, "left out: 1 region;", 7),
        ({"ts": 0}, "left out: 1 region;", 7),
        ({"dur": -5}, "duration not read: 1 region;", 8),
        ({"dur": float("inf")}, "duration not read: 1 region;", 8),
        ({"name": None}, "without a name in the file: 1 region; here it is (no name)", 8),
    ],
)
def test_rows_of_the_cpu_that_are_left_out_or_repaired_are_noted(
    tmp_path: Path, wrong: dict[str, Any], remark: str, rows: int
) -> None:
    document = torch_trace()
    of(document, "cpu_op")[1].update(wrong)
    recording = load(document, tmp_path)
    audit = recording.audit()
    assert audit.complete
    assert any(each.startswith(remark) for each in audit.remarks), audit.remarks
    assert len(recording.trace.regions) == rows


def test_what_no_row_is_made_of_is_noted(tmp_path: Path) -> None:
    document = torch_trace()
    place = {"pid": 1, "tid": 1, "ts": US, "name": "x"}
    document["traceEvents"] += [
        *[place | {"ph": "X", "dur": 1, "cat": "mtia_insight"}] * 3,
        place | {"ph": "X", "dur": 1},
        place | {"ph": "C", "args": {"x": 1}},
        place | {"ph": "X", "dur": 1, "cat": "Trace"},  # says what others say
    ]
    remark = next(each for each in load(document, tmp_path).audit().remarks if "not read" in each)
    assert remark == "in the file and not read: 3 of 'mtia_insight', 1 of counters, 1 of no category"


def test_a_trace_without_faults_has_no_remark_of_them(tmp_path: Path) -> None:
    remarks = " ".join(load(torch_trace(), tmp_path).audit().remarks)
    assert not re.search("left out|not read|without a name|impossible", remarks)


@pytest.mark.parametrize("category", ["kernel", "gpu_memcpy"])
def test_work_that_lies_over_many_rows_of_its_stream_is_noted(tmp_path: Path, category: str) -> None:
    document = torch_trace(40)
    of(document, category)[2]["dur"] = 3.4e6
    audit = load(document, tmp_path).audit()
    name = "'void gemm<float>(int)'" if category == "kernel" else "a copy or fill"
    over = 75 if category == "kernel" else 74
    assert any(f"impossible duration: {name}, 3,400.000 ms" in each for each in audit.remarks), audit.remarks
    assert any(f"overlaps the next {over} rows of its stream" in each for each in audit.remarks)


def test_nodes_of_one_graph_may_run_beside_each_other(tmp_path: Path) -> None:
    document = torch_trace(40)
    for event in (*of(document, "kernel"), *of(document, "gpu_memcpy")):
        event["args"] |= {"graph node id": 5, "correlation": 7}
    of(document, "kernel")[2]["dur"] = 3.4e6
    assert not any("impossible" in each for each in load(document, tmp_path).audit().remarks)


# -- old versions ----------------------------------------------------------------------------------------------------

OLD = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "python_function": "Python_Function",
}


def test_categories_of_the_first_versions_are_those_of_today(tmp_path: Path) -> None:
    document = torch_trace()
    today = load(document, tmp_path)
    for event in document["traceEvents"]:
        event["cat"] = OLD.get(event.get("cat", ""), event.get("cat"))
        if "External id" in (arguments := event.get("args", {})):
            arguments["external id"] = arguments.pop("External id")
            arguments["Input dims"] = arguments.pop("Input Dims")
    old = load(document, tmp_path)
    assert sorted(old.table().splitlines()) == sorted(today.table().splitlines())
    assert old.audit().verdict == today.audit().verdict
    assert [old.trace.string(int(each)) for each in old.trace.details.shapes] == ["[[8, 16], [16, 4]]"] * 4
    assert len(old.step_breakdown().steps) == len(today.step_breakdown().steps) == 4


def test_traces_of_windows_are_read(tmp_path: Path) -> None:
    document = torch_trace(2)
    text = json.dumps(document)
    text = text.replace("train.py(12)", r"torch\nn\modules\utils.py(12)").replace('"a.json"', r'".\log\a.json"')
    text = text.replace('"bytes": 64', '"bytes": 64, "memory bandwidth (GB/s)": N/A, "x": nan, "y": -nan(ind)')
    (tmp_path / "trace.json").write_text(text)
    recording = gs.load(tmp_path / "trace.json")
    functions = recording.trace.python_functions
    assert {recording.trace.string(int(each)) for each in functions.name} == {r"torch\nn\modules\utils.py(12): step"}
    (tmp_path / "today.json").write_text(json.dumps(document))
    assert len(recording.events()) == len(gs.load(tmp_path / "today.json").events())
    remarks = recording.audit().remarks
    assert any("backslashes are not escaped" in each for each in remarks)
    assert any("nan, inf and N/A" in each for each in remarks)


# -- texts, numbers, size --------------------------------------------------------------------------------------------

LONE = "\ud800"


@pytest.mark.parametrize(
    "facts",
    [
        {"host_name": LONE},
        {"trace_id": "\udfff"},
        {"deviceProperties": [{"id": 0, "name": LONE}]},
        {"gpuscope": {"a": LONE, LONE: "a"}},
        {"distributedInfo": {"rank": 0, "world_size": 2, "backend": LONE}},
    ],
)
def test_halves_of_characters_are_replaced(tmp_path: Path, facts: dict[str, Any]) -> None:
    recording = load(torch_trace() | facts, tmp_path)
    assert len(recording.trace.kernels) == 4
    recording.save(tmp_path / "run.gscope")
    tree = other_traces.proton_tree()
    tree[0]["children"][0]["frame"]["name"] = LONE
    assert "\ufffd" in {node.name for node in load(tree, tmp_path, "tree.hatchet").tree().root}


@pytest.mark.parametrize("digits", [19, 20, 400, 5000])
def test_names_may_have_numbers_of_many_digits(tmp_path: Path, digits: int) -> None:
    document = torch_trace()
    number = "9" * digits
    for category, name in (
        ("user_annotation", f"ProfilerStep#{number}"),
        ("python_function", f"train.py({number}): step"),
        ("kernel", number),
    ):
        of(document, category)[1]["name"] = name
    recording = load(document, tmp_path)
    assert str(recording.diagnose())
    assert len(recording.step_breakdown().steps) == 4


def test_the_memory_of_a_gpu_is_read(tmp_path: Path) -> None:
    assert load(torch_trace(), tmp_path).trace.devices.memory_bytes.tolist() == [85_000_000_000]


@pytest.mark.parametrize("name", ["a.json.gz", "a.hatchet", "a.json"])
def test_what_expands_more_than_a_hundred_times_is_refused(tmp_path: Path, name: str) -> None:
    head = b'[{"frame": {"name": "ROOT"}, "children": []}' if name == "a.hatchet" else b'{"traceEvents": ['
    (tmp_path / name).write_bytes(gzip.compress(head + b" " * (20 << 20) + b"]", mtime=0))
    with pytest.raises(CorruptTrace, match=r"cannot be decompressed: it has more than 100 times the size"):
        gs.load(tmp_path / name)


def test_a_short_trace_may_be_compressed_well(tmp_path: Path) -> None:
    document = torch_trace()
    text = json.dumps(document).encode() + b" " * 500_000
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text, mtime=0))
    assert len(gs.load(tmp_path / "a.json.gz").trace.kernels) == 4


def test_many_small_members_of_gzip_are_read(tmp_path: Path) -> None:
    text = json.dumps(torch_trace()).encode()
    members = [gzip.compress(text[at : at + 100], mtime=0) for at in range(0, len(text), 100)]
    (tmp_path / "a.json.gz").write_bytes(b"".join(members) + gzip.compress(b"", mtime=0) * 5000 + bytes(100))
    assert len(gs.load(tmp_path / "a.json.gz").trace.kernels) == 4


def many_lanes(kind: str, lanes: int) -> str:
    gpu = {"torch": '"cat":"cpu_op",', "jax": "", "proton": '"cat":"scope",'}[kind]
    first = '{"ph":"M","pid":0,"name":"process_name","args":{"name":"/host:CPU"}}'
    begin = '{"ph":"X","cat":"cuda_runtime","name":"cudaStreamBeginCapture","ts":1,"dur":1,"pid":%d,"tid":1},'
    rows = (
        f'{{"ph":"X",{gpu}"pid":{lane},"tid":1,"ts":{lane + 1},"dur":5,"name":"f"}},'
        f'{{"ph":"s","id":{lane},"pid":{lane},"tid":1,"ts":{lane + 1}}},{begin % lane if kind == "torch" else ""}'
        f'{{"ph":"M","pid":{lane},"tid":1,"name":"thread_name","args":{{"name":"t"}}}}'
        for lane in range(lanes)
    )
    return f'{{"traceEvents":[{first},{",".join(rows)}]}}'


@pytest.mark.parametrize("kind", ["torch", "jax", "proton"])
def test_many_lanes_are_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.json").write_text(many_lanes(kind, 40_000))
    assert len(gs.load(tmp_path / "a.json").trace.regions) == 40_000


def test_lanes_of_jax_are_looked_at_in_the_parts_that_they_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    plain = JaxEvents._stream

    def counted(events: JaxEvents, place: int) -> tuple[int, int, int]:
        looked.append(place)
        return plain(events, place)

    monkeypatch.setattr(JaxEvents, "_stream", counted)
    (tmp_path / "a.json").write_text(many_lanes("jax", 40_000))  # of eight parts
    gs.load(tmp_path / "a.json")
    assert len(looked) < 40_100
