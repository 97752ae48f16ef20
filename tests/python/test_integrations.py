# SPDX-License-Identifier: Apache-2.0
"""Callbacks of libraries that train, with these libraries."""

from __future__ import annotations

import builtins
import importlib
import logging
import pickle
import sys
import warnings
from collections import Counter

import pytest

import gpuscope as gs
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument, NotAvailable

torch = pytest.importorskip("torch")

# Of these libraries and of what they import.
pytestmark = pytest.mark.filterwarnings("default")
STEPS = 15
ALL = gs.schedule(wait=0, warmup=0, active=STEPS, repeat=1)


def regions(recording):
    counts = Counter()
    for node in recording.tree():
        if node.kind == "region":
            counts[node.name] += node.count
    return counts


def library(name, module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(name, exc_type=ImportError)
        return importlib.import_module(module)


# -- transformers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains a tiny model under the callback."""
    ours = library("transformers", "gpuscope.integrations.transformers")
    import transformers

    monkeypatch.chdir(tmp_path)
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=8,
        num_labels=2,
    )
    rows = [{"input_ids": torch.arange(8), "labels": torch.tensor(row % 2)} for row in range(STEPS)]

    def run(*arguments, accumulate=1, **options):
        callback = ours.GpuscopeCallback(*arguments, **options)
        settings = transformers.TrainingArguments(
            output_dir="out",
            per_device_train_batch_size=1,
            gradient_accumulation_steps=accumulate,
            num_train_epochs=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        model = transformers.BertForSequenceClassification(config)
        transformers.Trainer(model=model, args=settings, train_dataset=rows, callbacks=[callback]).train()
        return callback

    return run


def test_a_trainer_records_ten_steps_and_writes_them(train, tmp_path):
    callback = train()
    loaded = gs.load(tmp_path / "training.gscope")
    assert regions(loaded)["training_step"] == 10
    assert regions(loaded)["optimizer"] == 10
    assert [node.name for node in loaded.tree() if node.name == "aten::linear"]
    assert regions(callback.profiler) == regions(loaded)
    found = callback.profiler.step_breakdown()
    assert len(found.steps) + found.left_out == 10


def test_a_trainer_takes_a_schedule_a_handler_and_options(train, tmp_path):
    seen = []
    train("run.pftrace", schedule=ALL, on_trace_ready=seen.append, record_shapes=True)
    assert (tmp_path / "run.pftrace").stat().st_size
    (profiler,) = seen
    assert regions(profiler)["training_step"] == STEPS
    assert any(row.input_shapes for row in profiler.key_averages(group_by_input_shape=True))


def test_accumulated_gradients_are_steps_of_the_trainer(train):
    callback = train(None, schedule=ALL, accumulate=5)
    assert callback.profiler.step_num == STEPS // 5
    assert regions(callback.profiler)["optimizer"] == STEPS // 5


def test_each_window_has_a_file(train, tmp_path):
    train("a.json", schedule=gs.schedule(wait=0, warmup=0, active=5, repeat=3))
    assert {path.name for path in tmp_path.glob("*.json")} == {"a.json", "a-2.json", "a-3.json"}


def test_a_training_that_fails_leaves_a_callback_that_can_begin_again(train):
    ours = sys.modules["gpuscope.integrations.transformers"]
    callback = ours.GpuscopeCallback(None, schedule=ALL)
    callback.on_train_begin(None, None, None)
    callback.on_step_begin(None, None, None)
    callback = ours.GpuscopeCallback(None, schedule=ALL)
    callback.on_train_begin(None, None, None)
    callback.on_step_begin(None, None, None)
    callback.on_step_end(None, None, None)
    callback.on_train_end(None, None, None)
    assert regions(callback.profiler)["training_step"] == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((("x.txt",), {}), InvalidArgument),
        (((None,), {"mode": "none"}), InvalidArgument),
        (((), {"speed": 1}), TypeError),
    ],
)
def test_wrong_arguments_are_told_before_the_training(train, arguments, error):
    positional, named = arguments
    with pytest.raises(error):
        train(*positional, **named)


def test_a_file_that_cannot_be_written_ends_no_training(train, tmp_path):
    (tmp_path / "folder").mkdir()
    ours = sys.modules["gpuscope.integrations.transformers"]
    callback = ours.GpuscopeCallback("folder/x.gscope", schedule=ALL)
    (tmp_path / "folder").rmdir()
    callback.on_train_begin(None, None, None)
    with pytest.warns(GpuscopeWarning, match="the recording could not be written"):
        callback.on_train_end(None, None, None)


def test_processes_have_files_of_their_own(train, tmp_path, monkeypatch):
    from gpuscope.integrations.windows import Handler

    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with gs.profile(on_trace_ready=Handler("a.json.gz", None)):
        pass
    assert (tmp_path / "a-rank2.json.gz").exists()


def test_processes_that_no_launcher_numbered_have_files_of_their_own(tmp_path, monkeypatch):
    from gpuscope.integrations.windows import Handler

    distributed = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    monkeypatch.setenv("LOCAL_RANK", "1")  # all that Lightning sets of a process's place
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=1, world_size=2)
    try:
        with gs.profile(on_trace_ready=Handler(tmp_path / "a.gscope", None)):
            pass
    finally:
        distributed.destroy_process_group()
    assert (tmp_path / "a-rank1.gscope").exists()


def test_a_handler_reaches_the_processes_that_a_trainer_spawns(tmp_path):
    from gpuscope.integrations.windows import Handler

    made = pickle.loads(pickle.dumps(Handler(tmp_path / "a.gscope", None)))
    with gs.profile(on_trace_ready=made):
        pass
    assert (tmp_path / "a.gscope").exists()


# -- Lightning ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Runs a tiny module under the profiler."""
    ours = library("pytorch_lightning", "gpuscope.integrations.lightning")
    import pytorch_lightning as lightning

    monkeypatch.chdir(tmp_path)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(8, 8)

        def training_step(self, batch, index):
            if getattr(self, "fails", False):
                raise ValueError("fails")
            return self.model(batch).square().mean()

        def validation_step(self, batch, index):
            self.model(batch)

        test_step = validation_step

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def run(*arguments, what="fit", fails=False, **options):
        profiler = ours.GpuscopeProfiler(*arguments, **options)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            profiler=profiler,
        )
        module = Module()
        module.fails = fails
        getattr(trainer, what)(module, torch.utils.data.DataLoader(torch.randn(STEPS, 8), batch_size=1))
        return profiler

    return run


def test_a_fit_records_ten_batches_with_lightnings_actions(fit, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        profiler = fit()
    loaded = gs.load(tmp_path / "training.gscope")
    assert regions(loaded)["run_training_batch"] == 10
    assert regions(loaded)["[Strategy]SingleDeviceStrategy.training_step"] == 10
    found = profiler.profiler.step_breakdown()
    assert len(found.steps) + found.left_out == 10
    assert "run_training_batch" in caplog.text
    assert "audit: complete" in caplog.text


def test_a_test_has_steps_of_its_own(fit):
    profiler = fit(None, what="test", schedule=ALL)
    assert profiler.profiler.step_num == STEPS
    assert regions(profiler.profiler)["[Strategy]SingleDeviceStrategy.test_step"] == STEPS


def test_the_text_goes_where_lightnings_profilers_write_theirs(fit, tmp_path):
    fit(None, dirpath=tmp_path, filename="report", schedule=ALL)
    (path,) = tmp_path.glob("*report*")
    assert "run_training_batch" in path.read_text()


def test_a_fit_that_fails_raises_its_error_and_keeps_the_recording(fit):
    seen = []
    with pytest.raises(ValueError, match="fails"):
        fit(None, fails=True, schedule=ALL, on_trace_ready=seen.append)
    assert regions(seen[0])["run_training_batch"] == 1
    assert fit(None, schedule=ALL).profiler.audit().complete


def test_a_run_shorter_than_its_schedule_says_so(fit, caplog):
    with caplog.at_level(logging.INFO):
        fit(None, schedule=gs.schedule(wait=99, warmup=0, active=1))
    assert "nothing was recorded" in caplog.text


@pytest.mark.parametrize("name", ["transformers", "lightning"])
def test_without_the_library_it_is_a_sentence(name, monkeypatch):
    missing = {"transformers": ["transformers"], "lightning": ["lightning", "pytorch_lightning"]}[name]
    original = builtins.__import__

    def without(module, *arguments, **options):
        if module.partition(".")[0] in missing:
            raise ImportError(module)
        return original(module, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for each in missing:
        monkeypatch.setitem(sys.modules, each, None)
        for inner in ("pytorch", "profilers"):
            monkeypatch.delitem(sys.modules, f"{each}.{inner}", raising=False)
    monkeypatch.delitem(sys.modules, f"gpuscope.integrations.{name}", raising=False)
    with pytest.raises(NotAvailable, match=f"not installed; pip install {name}") as caught:
        importlib.import_module(f"gpuscope.integrations.{name}")
    assert isinstance(caught.value, GpuscopeError)
