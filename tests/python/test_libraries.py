# SPDX-License-Identifier: Apache-2.0
"""What libraries that profile through torch do with its profiler works with ours, and so do those that are installed.

Of a library the file that profiles is run from its own source, once as it is and once with torch.profiler changed into
gpuscope, as its user would do it.
"""

from __future__ import annotations

import gzip
import json
import re
import types
import warnings
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.profiler as theirs  # noqa: E402

import gpuscope as ours  # noqa: E402
from gpuscope.errors import GpuscopeWarning  # noqa: E402
from gpuscope.profiler.execution_trace import options_of  # noqa: E402

CPU = [ours.ProfilerActivity.CPU]

# -- habits ------------------------------------------------------------------------------------------------------------


def test_a_loop_that_asks_for_torchs_class_takes_its_steps():
    prof = ours.profile(activities=CPU)
    with prof:
        for _ in range(3):
            if isinstance(prof, theirs.profile):
                prof.step()
    assert prof.step_num == 3
    assert isinstance(prof, ours.profile)
    assert type(prof) is ours.profile


def test_a_profiler_of_torchs_is_none_of_ours():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not isinstance(theirs.profile(), ours.profile)


def test_the_schedule_is_replaced_by_torchs_default_on_the_way():
    ready = []
    with ours.profile(
        activities=CPU, schedule=ours.schedule(wait=9, warmup=0, active=1), on_trace_ready=ready.append
    ) as prof:
        prof.schedule = ours.profiler._default_schedule_fn
        prof.step()
        torch.ones(2)
    assert ready == [prof]
    assert [event.name for event in prof.events() if event.name == "aten::ones"] == ["aten::ones"]


def answers(module):
    """What lists of events hold at each step, up to the end of the first window."""
    seen = []
    with module.profile(
        activities=[module.ProfilerActivity.CPU], schedule=module.schedule(wait=1, warmup=1, active=2, repeat=1)
    ) as prof:
        for _ in range(4):
            torch.ones(2)
            prof.step()
            rows, results = prof.key_averages(), prof.profiler
            seen.append((prof.current_action.name, len(rows), len(prof.events()), len(results.function_events)))
    return seen


def test_lists_of_events_are_empty_until_the_first_window_ends_as_in_torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        of_torch, mine = answers(theirs), answers(ours)
    assert mine[:-1] == of_torch[:-1] == [("WARMUP", 0, 0, 0), ("RECORD", 0, 0, 0), ("RECORD_AND_SAVE", 0, 0, 0)]
    assert mine[-1] == of_torch[-1]


def test_a_list_that_is_empty_so_far_says_so():
    with ours.profile(activities=CPU) as prof:
        with pytest.warns(GpuscopeWarning, match="its window is still open"):
            table = prof.key_averages().table()
        assert "audit: INCOMPLETE - no recording yet: its window is still open" in table


@pytest.mark.parametrize("name", ["_ExperimentalConfig", "RecordScope"])
def test_names_that_only_torch_has_are_its_own(name):
    assert getattr(ours, name) is getattr(theirs, name)
    assert name.startswith("_") == (name not in ours.__all__)


@pytest.mark.parametrize(
    "options", [(), ("verbose",), ("verbose", "profile_all_threads"), ("enable_cuda_sync_events",)]
)
def test_an_experimental_config_that_asks_for_what_is_there_is_taken(options):
    config = ours._ExperimentalConfig(**dict.fromkeys(options, True))
    with ours.profile(activities=CPU, with_stack=True, experimental_config=config) as prof:
        torch.ones(2)
    assert "experimental_config" not in str(prof.audit())
    assert options_of(config) == set(options)


def test_an_experimental_config_that_asks_for_more_has_no_effect_and_says_so():
    config = ours._ExperimentalConfig(verbose=True, profiler_metrics=["kineto__cuda_core_flops"])
    with pytest.warns(GpuscopeWarning, match="without effect in this version: experimental_config"):
        ours.profile(activities=CPU, experimental_config=config)


@pytest.fixture
def process_group():
    """Rank 1 of 4, that talks to nobody."""
    distributed = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=1, world_size=4)
    yield distributed
    distributed.destroy_process_group()


def test_a_trace_tells_of_the_process_group_as_torchs(process_group, tmp_path):
    process_group.new_group([0, 1])
    told = []
    for module in (theirs, ours):
        with module.profile(activities=[module.ProfilerActivity.CPU]) as prof:
            torch.ones(2)
        prof.export_chrome_trace(str(tmp_path / "trace.json"))
        told.append(json.loads((tmp_path / "trace.json").read_text())["distributedInfo"])
    assert told[0] == told[1]
    info = prof.trace.info
    assert (info["process.rank"], info["process.world_size"]) == ("1", "4")


def test_the_process_group_of_a_launcher_has_its_local_rank_too(process_group, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with ours.profile(activities=CPU) as prof:
        pass
    assert json.loads(prof.trace.info["metadata.distributedInfo"])["local_rank"] == 0
    assert prof.trace.info["process.launcher"] == "torchrun"


# -- the libraries that are installed ----------------------------------------------------------------------------------


def changed(source):
    """A module's source with torch.profiler changed into gpuscope."""
    source = re.sub(r"(?<![\w.])torch\.profiler\b", "gpuscope", source)
    return re.sub(r"^(?=import torch$)", "import gpuscope\n", source, count=1, flags=re.MULTILINE)


def both(name):
    """A module of a library as it is, and run from its changed source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip(name, exc_type=ImportError)
    copy = types.ModuleType(name)
    copy.__package__, copy.__file__ = module.__package__, module.__file__
    source = Path(module.__file__).read_text(encoding="utf-8")
    exec(compile(changed(source), module.__file__, "exec"), copy.__dict__)
    return module, copy


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def step(model):
    model(torch.randn(5, 8)).square().mean().backward()


def rows(folder):
    """How many operators and regions of each name the traces in a folder have, by file name without its time."""
    found = {}
    for path in sorted(folder.rglob("*.json*")):
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        kinds = ("cpu_op", "user_annotation")
        names = Counter(event["name"] for event in trace["traceEvents"] if event.get("cat") in kinds)
        found[re.sub(r"\d{12,}", "TIME", str(path.relative_to(folder)))] = names
    assert found
    return found


def compared(modules, run, tmp_path, monkeypatch):
    """Runs both, each in a folder of its own, and compares the files written and what is in the traces."""
    found = []
    for number, module in enumerate(modules):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(module)
        texts = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.txt"))
        found.append((rows(folder), texts))
    assert found[0] == found[1]


def test_accelerate(tmp_path, monkeypatch):
    accelerate = pytest.importorskip("accelerate", exc_type=ImportError)

    def run(module):
        handler = module.ProfileKwargs(
            activities=["cpu"],
            schedule_option={"wait": 1, "warmup": 1, "active": 2, "repeat": 1},
            on_trace_ready=lambda prof: prof.export_chrome_trace(f"trace_{prof.step_num}.json"),
            record_shapes=True,
            with_flops=True,
        )
        accelerator = accelerate.Accelerator(cpu=True)
        model = network()
        with accelerator.profile(handler) as prof:
            for _ in range(5):
                step(model)
                prof.step()
        with accelerator.profile(module.ProfileKwargs(profile_memory=True, output_trace_dir="whole")):
            step(model)

    compared(both("accelerate.utils.dataclasses"), run, tmp_path, monkeypatch)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(package, tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip(package, exc_type=ImportError)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, index):
            return self.model(batch).square().mean()

        def test_step(self, batch, index):
            self.model(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def run(module):
        for name, batches in (("long", 8), ("short", 3)):
            trainer = lightning.Trainer(
                max_epochs=1,
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                profiler=module.PyTorchProfiler(dirpath=name, filename="report", profile_memory=True),
            )
            batches = torch.utils.data.DataLoader(torch.randn(batches, 8), batch_size=1)
            model = Module()
            trainer.fit(model, batches)
            trainer.test(model, batches, verbose=False)

    compared(both(f"{package}.profilers.pytorch"), run, tmp_path, monkeypatch)


def test_torch_geometric(tmp_path, monkeypatch):
    def run(module):
        with module.torch_profile():
            step(network())

    compared(both("torch_geometric.profile.profile"), run, tmp_path, monkeypatch)


def test_torchtnt(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaders = pytest.importorskip("torchtnt.utils.data.profile_dataloader", exc_type=ImportError)

    def run(module):
        handler = module.tensorboard_trace_handler("traces", worker_name="worker")
        with module.profile(activities=[module.ProfilerActivity.CPU], on_trace_ready=handler) as prof:
            loaders.profile_dataloader([torch.ones(2)] * 3, prof)

    compared((theirs, ours), run, tmp_path, monkeypatch)
