# SPDX-License-Identifier: Apache-2.0
"""Programs as users write them: each has one line of plain Python beside the GPU's work that takes its time."""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import json
import logging
import os
import pickle
import re
import socket
import subprocess
import threading
import time
import zlib

import numpy as np
import torch

from . import COMPUTE_MS, Compute, Fault, Step

WORDS = "the quick brown fox jumps over the lazy dog, again and again. " * 4
MANY = 100  # of what is done at a time, which takes a part of a millisecond
SHORT = 1.2 * COMPUTE_MS
RECORD = {"id": 7, "text": WORDS, "values": list(range(20)), "labels": {"a": 1, "b": 2}}


def _beside(host: Step) -> Step:
    compute = Compute()
    return lambda: (host(), compute())


def _again(ms: float, host: Step) -> Step:
    """Does it for so long each step: it takes as long where it is recorded."""

    def step() -> None:
        until = time.perf_counter() + ms / 1e3
        while time.perf_counter() < until:
            host()

    return _beside(step)


def nothing_beside(amount: float) -> Step:
    return _beside(lambda: None)


def batch_loaded_by_hand(ms: float) -> Step:
    def load() -> torch.Tensor:
        time.sleep(ms / 1e3)
        return torch.randn(64, 64)

    return _beside(lambda: load().cuda(non_blocking=True))


def batch_made_on_the_gpu(ms: float) -> Step:
    return _beside(lambda: torch.randn(64, 64, device="cuda"))


def json_in_a_comprehension(ms: float) -> Step:
    lines = [json.dumps(RECORD)] * MANY
    return _again(ms, lambda: [json.loads(line) for line in lines])


def accuracy_in_python(ms: float) -> Step:
    answers = [n % 10 for n in range(100 * MANY)]

    def accuracy() -> float:
        right = 0
        for answer in answers:
            right += answer == 3
        return right / len(answers)

    return _again(ms, accuracy)


def numbers_sorted_by_numpy(ms: float) -> Step:
    values = np.random.default_rng(0).random(200 * MANY)
    return _again(ms, lambda: np.percentile(values, 95))


@functools.cache  # an open file that is collected would warn
def _log() -> logging.Logger:
    log = logging.Logger("training")
    log.addHandler(logging.FileHandler(os.devnull))
    return log


def log_of_each_sample(ms: float) -> Step:
    log = _log()

    def tell() -> None:
        for n in range(MANY):
            log.info("sample %d: loss %.3f", n, 0.5)

    return _again(ms, tell)


def retry_that_sleeps(ms: float) -> Step:
    def fetch() -> None:
        for _ in range(3):
            try:
                raise ConnectionError
            except ConnectionError:
                time.sleep(ms / 3e3)

    return _beside(fetch)


def command_each_step(ms: float) -> Step:
    return _again(ms, lambda: subprocess.run(["/bin/true"], check=True))


def checkpoint_to_a_file(ms: float) -> Step:
    weights = {"weights": torch.zeros(1 << 18)}

    def save() -> None:
        with open(os.devnull, "wb") as file:
            torch.save(weights, file)

    return _again(ms, save)


def objects_pickled(ms: float) -> Step:
    records = [dict(RECORD) for _ in range(10 * MANY)]
    return _again(ms, lambda: pickle.dump(records, io.BytesIO()))


def words_found_by_a_pattern(ms: float) -> Step:
    text, word = WORDS * MANY, re.compile(r"[a-z]+")
    return _again(ms, lambda: len(word.findall(text)))


def settings_copied(ms: float) -> Step:
    settings = [dict(RECORD) for _ in range(MANY)]
    return _again(ms, lambda: copy.deepcopy(settings))


def bytes_hashed(ms: float) -> Step:
    data = bytes(1 << 20)
    return _again(ms, lambda: hashlib.sha256(data).hexdigest())


def bytes_compressed(ms: float) -> Step:
    data = os.urandom(1 << 14)
    return _again(ms, lambda: zlib.compress(data))


@functools.cache
def _server() -> socket.socket:
    """Answers a byte with another one, after as many tenths of a ms as the byte says."""
    here, there = socket.socketpair()

    def serve() -> None:
        while asked := there.recv(1):
            time.sleep(asked[0] / 1e4)
            there.send(b"y")

    threading.Thread(target=serve, daemon=True).start()
    return here


def answer_from_a_socket(ms: float) -> Step:
    here = _server()

    def ask() -> bytes:
        here.send(bytes([min(round(10 * ms), 255)]))
        return here.recv(1)

    return _beside(ask)


def lock_of_another_thread(ms: float) -> Step:
    lock, asked = threading.Lock(), threading.Semaphore(0)
    taken = threading.Event()

    def hold() -> None:
        while True:
            asked.acquire()
            with lock:
                taken.set()
                time.sleep(ms / 1e3)

    threading.Thread(target=hold, daemon=True).start()

    def count() -> None:
        asked.release()
        taken.wait()
        taken.clear()
        with lock:
            pass

    return _beside(count)


class _Sentences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> str:
        return WORDS


def _batches(ms: float, workers: int) -> Step:
    def tokens_of(sentences: list[str]) -> torch.Tensor:
        until = time.perf_counter() + ms / 1e3
        while time.perf_counter() < until:
            words = [len(word) for text in sentences for word in text.split()]
        return torch.tensor(words)

    loader = torch.utils.data.DataLoader(
        _Sentences(), 8, num_workers=workers, collate_fn=tokens_of, persistent_workers=workers > 0
    )
    batches = iter(loader)
    return _beside(lambda: next(batches))


def tokens_made_while_batches_are_put_together(ms: float) -> Step:
    return _batches(ms, 0)


def tokens_made_by_workers(ms: float) -> Step:
    return _batches(ms, 4)


FAULTS = (
    Fault("R24", batch_loaded_by_hand, batch_made_on_the_gpu, "time.sleep(", begin=SHORT),
    Fault("R24", json_in_a_comprehension, nothing_beside, "json.loads(line)", begin=SHORT),
    Fault("R24", accuracy_in_python, nothing_beside, "answer", begin=SHORT),
    Fault("R24", numbers_sorted_by_numpy, nothing_beside, "np.percentile(", begin=SHORT),
    Fault("R24", log_of_each_sample, nothing_beside, "log.info(", begin=SHORT),
    Fault("R24", retry_that_sleeps, nothing_beside, "time.sleep(", begin=SHORT),
    Fault("R24", command_each_step, nothing_beside, "subprocess.run(", begin=SHORT),
    Fault("R26", checkpoint_to_a_file, nothing_beside, "torch.save(", begin=SHORT),
    Fault("R26", objects_pickled, nothing_beside, "pickle.dump(", begin=SHORT),
    Fault("R24", words_found_by_a_pattern, nothing_beside, "word.findall(", begin=SHORT),
    Fault("R24", settings_copied, nothing_beside, "copy.deepcopy(", begin=SHORT),
    Fault("R24", bytes_hashed, nothing_beside, "hashlib.sha256(", begin=SHORT),
    Fault("R24", bytes_compressed, nothing_beside, "zlib.compress(", begin=SHORT),
    Fault("R26", answer_from_a_socket, nothing_beside, "here.recv(1)", begin=SHORT),
    Fault("R24", lock_of_another_thread, nothing_beside, "with lock", begin=SHORT),
    Fault("R02", tokens_made_while_batches_are_put_together, tokens_made_by_workers, "text.split()", begin=SHORT),
)
