# SPDX-License-Identifier: Apache-2.0
"""Programs of which a diagnosis has nothing to say: real ones, as their authors' advice has them.

Each function makes a step, or raises ModuleNotFoundError where its library is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch

Step = Callable[[], object]
WARM_UP = 5


def resnet() -> Step:
    """ResNet-50 in training: bfloat16, channels last, compiled to CUDA graphs, batches that lie on the GPU already."""
    from torchvision.models import resnet50

    model = resnet50().cuda().to(memory_format=torch.channels_last)
    images = torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (128,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)

    def loss_of() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(images), labels)

    return _trained(torch.compile(loss_of, mode="reduce-overhead"), optimizer)


class _Block(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.wide, self.narrow = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.between(x)), approximate="tanh"))


def gpt() -> Step:
    """A GPT-2 of its small size in training: bfloat16, fused attention, compiled to CUDA graphs, a round vocabulary."""
    width, heads, layers, vocabulary = 768, 12, 12, 50304
    tokens, places = torch.nn.Embedding(vocabulary, width).cuda(), torch.nn.Embedding(1024, width).cuda()
    blocks = torch.nn.Sequential(*(_Block(width, heads) for _ in range(layers)), torch.nn.LayerNorm(width)).cuda()
    head = torch.nn.Linear(width, vocabulary, bias=False).cuda()
    parameters = [each for module in (tokens, places, blocks, head) for each in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-4, fused=True)
    text = torch.randint(vocabulary, (16, 1024), device="cuda")
    place = torch.arange(1024, device="cuda")

    def loss_of() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            found = head(blocks(tokens(text) + places(place)))
            return torch.nn.functional.cross_entropy(found.view(-1, vocabulary), text.view(-1))

    return _trained(torch.compile(loss_of, mode="reduce-overhead"), optimizer)


def recommender() -> Step:
    """Sums of embeddings and a deep network over them, in the way of DLRM, with all tables in one.

    The whole step is a CUDA graph.
    """
    count, rows = 8, 100_000
    tables = torch.nn.EmbeddingBag(count * rows, 64, mode="sum").cuda()
    dense = torch.nn.Sequential(torch.nn.Linear(13, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).cuda()
    layers: list[torch.nn.Module] = []
    for inner, outer in ((9 * 64, 4096), (4096, 4096), (4096, 4096)):
        layers += [torch.nn.Linear(inner, outer), torch.nn.ReLU()]
    over = torch.nn.Sequential(*layers, torch.nn.Linear(4096, 1)).cuda().to(torch.bfloat16)
    numbers = torch.randn(16384, 13, device="cuda")
    first = rows * torch.arange(count, device="cuda").view(1, count, 1)
    bags = (torch.randint(rows, (16384, count, 4), device="cuda") + first).view(-1, 4)

    def loss_of() -> torch.Tensor:
        sums = tables(bags).view(len(numbers), -1)
        return over(torch.cat([dense(numbers), sums], dim=1).to(torch.bfloat16)).float().square().mean()

    parameters = [each for module in (tables, dense, over) for each in module.parameters()]
    return _captured(_trained(loss_of, torch.optim.SGD(parameters, 1e-3, fused=True)))


def solver() -> Step:
    """Jacobi's iteration in CuPy: large arrays, one fused kernel an iteration, no look at the residual."""
    import cupy

    relax = cupy.RawKernel(
        r"""extern "C" __global__ void relax(const float* from, float* to, int n) {
              int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
              if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
              long at = (long)y * n + x;
              to[at] = 0.25f * (from[at - 1] + from[at + 1] + from[at - n] + from[at + n]);
            }""",
        "relax",
    )
    size = 8192
    grids = [cupy.random.rand(size, size, dtype=cupy.float32) for _ in range(2)]
    blocks = ((size + 255) // 256, size)

    def step() -> object:
        for at in range(20):
            relax(blocks, (256,), (grids[at % 2], grids[1 - at % 2], cupy.int32(size)))
        return grids

    return step


def perceptron() -> Step:
    """A large multilayer perceptron in JAX, jitted as a whole, in bfloat16, its old parameters donated."""
    import jax

    widths = (4096, 8192, 8192, 4096)
    keys = jax.random.split(jax.random.key(0), len(widths))
    shapes = list(pairwise(widths))
    kept = [jax.random.normal(key, shape, jax.numpy.bfloat16) * 0.02 for key, shape in zip(keys, shapes, strict=False)]
    inputs = jax.random.normal(keys[-1], (8192, widths[0]), jax.numpy.bfloat16)

    def loss_of(parameters: Any) -> Any:
        found = inputs
        for each in parameters:
            found = jax.nn.relu(found @ each)
        return (found.astype(jax.numpy.float32) ** 2).mean()

    @partial(jax.jit, donate_argnums=0)
    def update(parameters: Any) -> Any:
        return [each - 1e-3 * slope for each, slope in zip(parameters, jax.grad(loss_of)(parameters), strict=True)]

    state = {"parameters": kept}

    def step() -> object:
        state["parameters"] = update(state["parameters"])
        return state

    return step


def decoder() -> Step:
    """Tokens one after the other with a batch that fills the GPU, each a replay of one CUDA graph."""
    width = 4096
    blocks = torch.nn.Sequential(*(_Block(width, 32) for _ in range(4))).cuda().to(torch.bfloat16).eval()
    state = torch.randn(512, 1, width, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def token() -> object:
        state.copy_(torch.nn.functional.layer_norm(blocks(state), (width,)))
        return state

    replay = _captured(token)
    return lambda: [replay() for _ in range(20)]


TUNED = (resnet, gpt, recommender, solver, perceptron, decoder)


def _trained(loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step() -> torch.Tensor:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def _captured(step: Step) -> Step:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
