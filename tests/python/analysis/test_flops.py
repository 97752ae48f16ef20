# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from fakes.gscope import NONE
from fakes.recordings import make_trace
from gpuscope.analysis import events, flops, key_averages
from gpuscope.analysis.rows import flat_shapes, nested_shapes, parse_shapes

OP = 1
NUMBERS = {"m": 3, "k": 4, "n": 5, "b": 2}


def record(*ops):
    """A trace of operators, each (name, shapes, parent row, and details by name)."""
    names, parents, details = [], [], {key: [] for key in ("region", "shapes", "forward", "op", "producer")}
    for row, (name, shapes, parent, *more) in enumerate(ops):
        names.append(name)
        parents.append(NONE if parent is None else parent)
        detail = more[0] if more else {}
        details["region"].append(row)
        details["shapes"].append(shapes)
        details["forward"].append(detail.get("forward", NONE))
        details["op"].append(detail.get("op", 0))
        details["producer"].append(detail.get("producer", 0))
    count = len(ops)
    return make_trace(
        {
            "path": {"name": names, "parent": parents, "kind": [OP] * count},
            "thread": {"system_id": [1]},
            "region": {
                "start_ns": list(range(count)),
                "duration_ns": [100] * count,
                "parent": parents,
                "path": list(range(count)),
            },
            "detail": details,
        }
    )


def counted(*ops):
    return [event.flops for event in events(record(*ops))]


@pytest.mark.parametrize(
    ("name", "shapes", "count"),
    [
        ("aten::mm", "[[3, 4], [4, 5]]", 120),
        ("aten::addmm", "[[5], [3, 4], [4, 5], [], []]", 120),
        ("aten::bmm", "[[2, 3, 4], [2, 4, 5]]", 240),
        ("aten::baddbmm", "[[2, 3, 5], [2, 3, 4], [2, 4, 5], [], []]", 240),
        ("aten::mv", "[[3, 4], [4]]", 24),
        ("aten::dot", "[[4], [4]]", 8),
        ("aten::add", "[[3, 4], [3, 4], []]", 12),
        ("aten::mul_", "[[3, 4], []]", 12),
        ("aten::mul", "[[3, 1], [4]]", 3),  # torch counts the first input
        ("aten::sub", "[[3, 1], [4]]", 12),
        ("aten::embedding_dense_backward", "[[2, 3, 4], [2, 3], [], [], []]", 24),
        ("aten::linear", "[[3, 4], [5, 4], [5]]", 0),
        ("aten::embedding", "[[10, 4], [2, 3]]", 0),
        ("aten::view", "[[3, 4], []]", 0),
    ],
)
def test_operators_count_by_their_shapes(name, shapes, count):
    assert counted((name, shapes, None)) == [count]


@pytest.mark.parametrize("shapes", ["[[3, 4], [5, 6]]", "[[3, 4]]", "[[3], [4]]", "[]", "nonsense", "[[[3, 4]], []]"])
def test_shapes_that_fit_no_formula_are_not_counted(shapes):
    (event,) = events(record(("aten::mm", shapes, None)))
    assert event.flops is None
    assert "input shapes" in event.flops_unknown


def test_an_operator_inside_a_counted_one_is_not_counted():
    inner = ("aten::mul", "[[3, 4], [3, 4]]", 0)
    assert counted(("aten::mul", "[[3, 4], []]", None), inner) == [12, 0]


def test_an_operator_that_only_calls_others_leaves_the_count_to_them():
    assert counted(("aten::linear", "[[3, 4], [5, 4], [5]]", None), ("aten::addmm", "[[5], [3, 4], [4, 5]]", 0)) == [
        *(0, 120)
    ]


CONV = "[[2, 3, 8, 8], [6, 3, 3, 3], [6], [], [], [], []]"
OUT = "[2, 6, 4, 4]"
CONV_FLOPS = 2 * 2 * 16 * 6 * 3 * 9
CONVS = [("aten::conv2d", CONV, None), ("aten::convolution", CONV, 0), ("aten::mkldnn_convolution", CONV, 1)]


def backward(**details):
    node = ("ConvolutionBackward0", f"[{OUT}]", None, {"forward": 1})
    return node, ("aten::convolution_backward", f"[{OUT}, [2, 3, 8, 8], [6, 3, 3, 3], [], []]", 3, details)


def test_a_convolution_counts_once_with_the_size_that_its_backward_operator_tells():
    assert counted(*CONVS, *backward())[:3] == [CONV_FLOPS, 0, 0]


def test_a_convolution_counts_with_the_size_that_an_operator_behind_it_tells():
    made = ("aten::conv2d", CONV, None, {"op": 7})
    assert counted(made, ("aten::relu", f"[{OUT}]", None, {"producer": 7}))[0] == CONV_FLOPS


def test_an_operator_behind_an_inner_convolution_tells_for_the_outer_one():
    convs = [*CONVS[:2], ("aten::cudnn_convolution", CONV, 1, {"op": 7})]
    assert counted(*convs, ("aten::add_", f"[{OUT}, [1, 6, 1, 1]]", 1, {"producer": 7})) == [CONV_FLOPS, 0, 0, 0]


def test_a_convolution_of_unknown_size_has_no_count_and_says_why():
    event = events(record(*CONVS))[0]
    assert event.flops is None
    assert "stride and padding" in event.flops_unknown
    assert key_averages(record(*CONVS))[0].flops == 0


def test_a_size_that_the_convolution_cannot_have_is_not_taken():
    made = ("aten::conv2d", CONV, None, {"op": 7})
    assert counted(made, ("aten::relu", "[[9, 6, 4, 4]]", None, {"producer": 7}))[0] is None


@pytest.mark.parametrize(
    ("taken", "times"), [(["[2, 3, 8, 8]", "[6, 3, 3, 3]"], 2), (["[6, 3, 3, 3]"], 1), (["[6]"], None), ([], None)]
)
def test_backward_counts_the_gradients_that_something_took(taken, times):
    takers = [("torch::autograd::AccumulateGrad", f"[{shape}]", None, {"producer": 9}) for shape in taken]
    count = counted(*CONVS, *backward(op=9), *takers)[4]
    assert count == (None if times is None else times * CONV_FLOPS)


def test_a_transposed_convolution_counts_the_points_of_its_input():
    conv = ("aten::conv_transpose2d", "[[2, 6, 4, 4], [6, 3, 3, 3], [3]]", None, {"op": 7})
    assert counted(conv, ("aten::relu", "[[2, 3, 8, 8]]", None, {"producer": 7}))[0] == 2 * 2 * 16 * 6 * 3 * 9


def test_a_convolution_that_may_be_transposed_or_not_has_no_count():
    conv = ("aten::convolution", "[[2, 6, 8, 8], [6, 6, 3, 3], []]", None, {"op": 7})
    assert counted(conv, ("aten::relu", "[[2, 6, 4, 4]]", None, {"producer": 7}))[0] is None


def test_without_shapes_nothing_counts():
    trace = make_trace(
        {
            "path": {"name": ["aten::mm"], "kind": [OP]},
            "thread": {"system_id": [1]},
            "region": {"duration_ns": [5], "path": [0]},
        },
        info={"metadata.with_flops": "1"},
    )
    assert events(trace)[0].flops == 0
    assert "FLOPs" not in key_averages(trace).table()


def test_shapes_read_as_torch_gives_them():
    shapes = parse_shapes("[[2, 3], [], [[4], [5, 6]]]")
    assert flat_shapes(shapes) == [[2, 3], [], []]
    assert nested_shapes(shapes) == [[2, 3], [], [[4], [5, 6]]]


# -- against torch.utils.flop_counter --------------------------------------------------------------------------------


def registered(name):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import flop_registry

    return torch, flop_registry[getattr(torch.ops.aten, name)]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(3, 4), (4, 5)]),
        ("addmm", [(5,), (3, 4), (4, 5)]),
        ("bmm", [(2, 3, 4), (2, 4, 5)]),
        ("baddbmm", [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
        *(
            (f"_scaled_dot_product_{which}_attention", [(2, 4, 7, 8), (2, heads, 9, 8), (2, heads, 9, 6)])
            for which in ("flash", "efficient", "cudnn")
            for heads in (4, 2)
        ),
        *(
            (
                f"_scaled_dot_product_{which}_attention_backward",
                [(2, 4, 7, 6), (2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 6)],
            )
            for which in ("flash", "efficient", "cudnn")
        ),
    ],
)
def test_formulas_agree_with_torchs_counter(name, shapes):
    torch, formula = registered(name)
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    assert flops.FORMULAS[f"aten::{name}"](tuple(shapes)) == formula(*tensors)


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_agree_with_torchs_counter(transposed):
    torch, formula = registered("convolution")
    x, weight = torch.empty(2, 6, 9, 9, device="meta"), torch.empty(6, 6, 3, 3, device="meta")
    out = torch.convolution(x, weight, None, [2, 2], [1, 1], [1, 1], transposed, [0, 0], 1)
    theirs = formula(x, weight, None, [2, 2], [1, 1], [1, 1], transposed, out_val=out)
    assert flops.convolution(tuple(x.shape), tuple(weight.shape), tuple(out.shape), transposed) == theirs


def test_backward_convolutions_agree_with_torchs_counter():
    torch, formula = registered("convolution_backward")
    x, weight, grad = (torch.empty(s, device="meta") for s in ((2, 3, 8, 8), (6, 3, 3, 3), (2, 6, 4, 4)))
    options = [[6], [2, 2], [1, 1], [1, 1], False, [0, 0], 1]
    both = formula(grad, x, weight, *options, [True, True, False], out_val=(x, weight, None))
    assert both == 2 * CONV_FLOPS


def test_a_count_beyond_64_bits_is_not_known():
    huge = "[[4194304, 4194304], [4194304, 4194304]]"
    assert counted(("aten::mm", huge, None), ("aten::mm", "[[3, 4], [4, 5]]", None)) == [None, 120]


def test_sums_of_counts_may_be_beyond_64_bits():
    large = "[[2097152, 1048576], [1048576, 1048576]]"  # 2^62
    (row,) = key_averages(record(*[("aten::mm", large, None)] * 3))
    assert row.flops == 3 * 2**62
