# SPDX-License-Identifier: Apache-2.0
"""A diagnosis names the fault that was planted, with its line, and says nothing of it where it was mended."""

from __future__ import annotations

import gc
import linecache
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

from faults import Fault, amount_of, clear_shared, faults, recorded  # noqa: E402 - it needs torch
from tuned import TUNED, Step  # noqa: E402

if TYPE_CHECKING:
    from gpuscope.diagnosis import Diagnosis

SHARE = 0.4
# A data loader forks its workers; Python 3.12 warns of it in every program that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def _nothing_stays() -> Iterator[None]:
    """What these programs share, and compiled ones keep, would be in what other tests find in this process's memory."""
    yield
    clear_shared()
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def named(found: Diagnosis) -> list[str]:
    """The text of the lines that the first finding and what lies in it name."""
    places = [place for each in (found.findings[0], *found.findings[0].parts) for place in each.where]
    return [linecache.getline(place.file, place.line) for place in places if place.file and place.line]


@pytest.mark.parametrize("share", [0.4, 0.1, 0.03])
@pytest.mark.parametrize(
    ("step_ms", "begin"),
    [(lambda ms: max(10.0, 0.9 * ms + 0.8), 100.0), (lambda ms: 10 + 0.05 * ms, 1.0)],
    ids=["hidden up to some amount", "from the first on"],
)
def test_the_amount_of_a_fault_is_that_of_its_share(
    step_ms: Callable[[float], float], begin: float, share: float
) -> None:
    amount = amount_of(share, lambda amount: 1 - 10 / step_ms(amount), begin, {})
    assert 1 - 10 / step_ms(amount) == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize("most", [0.3, 0.0])
def test_a_share_that_no_amount_has_is_not_looked_for_among_ever_longer_steps(most: float) -> None:
    tried: list[float] = []

    def measure(amount: float) -> float:
        tried.append(amount)
        return most

    amount_of(0.4, measure, 1.0, {})
    assert max(tried) <= 8**3


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_planted_fault_is_the_first_finding(fault: Fault) -> None:
    found = recorded(fault.faulty(SHARE), fault.steps).diagnose()
    assert found.findings, found
    first = found.findings[0]
    assert fault.rule in [each.id for each in (first, *first.parts)], found
    if fault.line:
        assert any(fault.line in line for line in named(found)), found


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_the_mended_program_has_it_no_more(fault: Fault) -> None:
    found = recorded(fault.clean(SHARE), fault.steps).diagnose()
    assert fault.rule not in [finding.id for finding in found.findings], found


# torch's own pool of memory for graphs begins with one without work; torch catches that warning.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("program", TUNED, ids=lambda program: program.__name__)
def test_a_tuned_program_is_fine(program: Callable[[], Step]) -> None:
    try:
        step = program()
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    found = recorded(step).diagnose()
    assert not found.findings, found
