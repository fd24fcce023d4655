"""Activations are saved in few bits: the forward stays what it is, and gradients keep their expectation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.joint import SEED
from gqc.passes import partition, run
from gqc.passes.kept_as_is import EXACT_STATISTIC
from gqc.passes.partition import Halves
from gqc.passes.saved_plan import plan_of
from gqc.policy import Policy
from gqc.save_bits import SaveBits
from tests.passes.models import CLASSES, HIDDEN, MODELS, WIDTH, Case, OnRelation, case, graph_and_features

NODES, EDGES = 60, 300
INDICES = (torch.int64, torch.int32)


def compiled(model: OnRelation, save_bits: Any = None, dtype: torch.dtype = torch.float32, **options: Any):
    """The case of a model after all passes, and its halves."""
    made = case(model, dtype, input_needs_grad=True)
    saves = None if save_bits is None else SaveBits(save_bits, min_size=0) if isinstance(save_bits, int) else save_bits
    run(made.joint, Policy(**{"bits": 32, "save_bits": saves, **options}))
    return made, partition(made.joint)


def arguments(made: Case, g: list[Tensor], x: Tensor, number: int) -> list[Any]:
    """What the forward half takes in a step of this number."""
    seed = [torch.tensor([number, 0])] if any(p.kind == SEED for p in made.joint.placeholders) else []
    return [value.clone() for value in made.primals(g, x)] + seed


def saved_bytes(halves: Halves) -> int:
    return sum(tensor.nbytes() for tensor in halves.saved)


class Steps:
    """Runs a model exactly and with compressed activations on one input."""

    def __init__(self, model: OnRelation, save_bits: Any, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        self.g, x = graph_and_features(NODES, EDGES)
        self.x = x.to(dtype)
        self.exact = compiled(model, dtype=dtype, **options)
        self.compressed = compiled(model, save_bits, dtype, **options)
        self.tangents: list[Tensor] = []

    def run(self, which: tuple[Case, Halves], number: int = 0) -> tuple[list[Tensor], list[Tensor]]:
        made, halves = which
        with torch.no_grad():
            torch.manual_seed(3)
            results = halves.forward(*arguments(made, self.g, self.x, number))
            outputs, saved = results[: made.joint.num_forward_outputs], results[made.joint.num_forward_outputs :]
            self.tangents = self.tangents or [torch.randn_like(out) for out in outputs]
            return list(outputs), [t for t in halves.backward(*saved, *self.tangents) if t is not None]

    def assert_forward_is_exact(self) -> None:
        exact, compressed = self.run(self.exact)[0], self.run(self.compressed)[0]
        torch.testing.assert_close(compressed, exact, rtol=0, atol=0)

    def bias(self, runs: int) -> list[tuple[float, float]]:
        """For each gradient how far the mean of many steps is from the exact one, and how far chance takes it, as the
        root of the mean's expected square distance."""
        _, exact = self.run(self.exact)
        total = [torch.zeros_like(t, dtype=torch.float64) for t in exact]
        squares = [torch.zeros_like(t, dtype=torch.float64) for t in exact]
        for number in torch.randint(1 << 20, (runs,)).tolist():
            for i, gradient in enumerate(self.run(self.compressed, number)[1]):
                total[i] += gradient
                squares[i] += gradient.double() ** 2
        found = []
        for gradient, mean, square in zip(exact, (t / runs for t in total), (s / runs for s in squares), strict=True):
            chance = ((square - mean**2).clamp(min=0).sum() / (runs - 1)).sqrt()
            found.append((float((mean - gradient).norm()), float(chance + 1e-5 * gradient.norm())))
        return found


def assert_unbiased(steps: Steps, runs: int) -> None:
    # Where all noise of a gradient lies in one direction, chance takes a mean 6 deviations away once in 10^8 times.
    for distance, chance in steps.bias(runs):
        assert distance <= 6 * chance + 1e-6


@pytest.mark.parametrize("name", ["sage", "pool"])
def test_the_forward_is_exact_and_gradients_keep_their_expectation(name):
    steps = Steps(MODELS[name](), 2)
    steps.assert_forward_is_exact()
    assert_unbiased(steps, 40)
    floats = [sum(t.nbytes() for t in h.saved if t.dtype not in INDICES) for _, h in (steps.exact, steps.compressed)]
    assert floats[1] < floats[0] / 3
    assert torch.int64 not in {t.dtype for t in steps.compressed[1].saved if not t.held}


@pytest.mark.parametrize("name", ["gat", "mlp"])
def test_softmax_and_normalization_are_nearly_unbiased(name, golden):
    steps = Steps(MODELS[name](), 4)
    steps.assert_forward_is_exact()
    _, exact = steps.run(steps.exact)
    for gradient, (distance, chance) in zip(exact, steps.bias(20), strict=True):
        assert distance <= 4 * chance + 0.2 * gradient.norm() + 1e-4
    made, halves = steps.compressed
    assert saved_bytes(halves) < saved_bytes(steps.exact[1]) / 2
    golden(f"saved_{name}", "".join(f"{plan}\n" for plan in plan_of(made.joint, halves.saved, SaveBits(4, min_size=0))))


class Activations(OnRelation):
    """Activations whose derivatives are no linear function of what torch saves for them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def run(self, g, x):
        h = torch.tanh(self.layers[0](x))
        h = F.gelu(self.layers[1](h)) + F.elu(h)
        h = torch.sigmoid(self.layers[2](h)) / (1 + h.square())
        h = F.normalize(h)
        return F.leaky_relu(self.layers[3](h), 0.1)


def test_derivatives_are_computed_from_exact_activations():
    steps = Steps(Activations(), 2)
    steps.assert_forward_is_exact()
    assert_unbiased(steps, 40)
    inverses = {t.name: t.shape for t in steps.compressed[1].saved if "inverse" in t.name}
    assert "expand_inverse_packed" not in inverses  # that of the norms, not of the norms repeated along the rows


class Shapes(OnRelation):
    """Tensors of one and of three axes, a scalar, and one that is read in several shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.factor = nn.Parameter(torch.randn(WIDTH))

    def run(self, g, x):
        heads = (x * self.factor).view(-1, 4, 4)
        products = torch.relu(heads @ self.weight)
        column = (products.flatten(1) * heads.flatten(1)).sum(1)
        return (column.tanh() * x[:, 0]) * column.mean()


def test_tensors_of_any_rank():
    steps = Steps(Shapes(), 8)
    steps.assert_forward_is_exact()
    _, exact = steps.run(steps.exact)
    _, rounded = steps.run(steps.compressed)
    for gradient, other in zip(exact, rounded, strict=True):
        assert torch.dist(gradient, other) <= 0.2 * gradient.norm()
    packed = [t for t in steps.compressed[1].saved if t.name.endswith("_packed")]
    # heads and products, of 16 values a node: each once, whatever shape reads it
    assert [t.shape[1:] for t in packed] == [(16,), (4, 4), (), (), ()]


class Masks(OnRelation):
    """Dropout, max pooling and leaky ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN // 2, CLASSES)

    def run(self, g, x):
        h = F.dropout(F.leaky_relu(self.first(x), 0.2), 0.5)
        h = F.max_pool1d(h.unsqueeze(0), 2).squeeze(0)
        return self.last(h)


def test_masks_take_one_bit_and_dropout_draws_eagers_numbers():
    steps = Steps(Masks(), 2)
    steps.assert_forward_is_exact()
    assert_unbiased(steps, 40)
    saved = {t.name: t.dtype for t in steps.compressed[1].saved}
    assert torch.bool not in saved.values()
    assert saved["getitem_3_narrow"] is torch.uint8  # places in a plane of 24


def test_sums_over_neighbours_save_nothing():
    class Sum(OnRelation):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.randn(WIDTH))

        def run(self, g, x):
            return torch.ops.gqc.spmm(g, "copy_lhs", torch.ops.gqc.spmm(g, "copy_lhs", x, None), None) + self.factor

    assert saved_bytes(compiled(Sum(), 2)[1]) == 0


class BiInteraction(OnRelation):
    """A layer of KGAT, which normalizes rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.sum, self.product = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def run(self, g, x):
        x = torch.tanh(self.first(x))
        around = torch.ops.gqc.spmm(g, "copy_lhs", x, None)
        h = F.leaky_relu(self.sum(x + around)) + F.leaky_relu(self.product(x * around))
        return F.normalize(h) * h


@pytest.mark.parametrize("bits", [2, 8])
def test_norms_stay_exact_and_what_is_linear_beside_them_is_computed_again(bits):
    steps = Steps(BiInteraction(), bits)
    steps.assert_forward_is_exact()
    _, exact = steps.run(steps.exact)
    for gradient, (distance, chance) in zip(exact, steps.bias(20), strict=True):
        assert distance <= 4 * chance + 0.2 * gradient.norm() + 1e-4
    made, halves = steps.compressed
    plans = [p for p in plan_of(made.joint, halves.saved, SaveBits(bits, min_size=0)) if p.how != "mask in 1 bit"]
    assert not [p for p in plans if p.name == "add" or p.name.startswith("div")]
    norms = [p for p in plans if p.shape[1] == 1]
    assert norms
    assert {p.reason for p in norms} == {EXACT_STATISTIC}


class Scaled(OnRelation):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def run(self, g, x):
        return x.sin() * self.weight


def test_rows_that_are_constant_or_not_finite():
    steps = Steps(Scaled(), SaveBits(4, min_size=0, stats="fp32"))
    random = steps.x
    steps.x = random[:, :1].expand(-1, WIDTH).contiguous()
    torch.testing.assert_close(steps.run(steps.compressed), steps.run(steps.exact), rtol=0, atol=0)
    for value in (float("nan"), float("inf")):
        steps.x = random.clone()
        steps.x[5, 3] = value
        assert bool(steps.run(steps.compressed)[1][0].isnan().all())


def test_projected_rows_keep_their_expectation():
    steps = Steps(Scaled(), SaveBits(8, project=0.5, min_size=0))
    steps.assert_forward_is_exact()
    assert_unbiased(steps, 40)
    _, halves = steps.compressed
    packed = [t.shape[1:] for t in halves.saved if t.name.endswith("_packed")]
    assert packed == [(WIDTH // 2,)]


def test_groups_share_a_range():
    _, halves = compiled(Scaled(), SaveBits(8, group=8, stats="fp32", min_size=0))
    ranges = [(t.dtype, t.shape[1:]) for t in halves.saved if t.name.endswith("_range")]
    assert ranges == [(torch.float32, (WIDTH // 8,))]


def test_small_tensors_stay_as_they_are():
    made, halves = compiled(Scaled(), SaveBits(2, min_size=10**6))
    assert [t.dtype for t in halves.saved if t.nbytes()] == [torch.float32]
    assert not any(p.kind == SEED for p in made.joint.placeholders)


def test_together_with_int8_an_operand_stays_what_is_saved():
    _, alone = compiled(MODELS["sage"](), bits=8, min_size=0, keep_output_layer=False)
    _, both = compiled(MODELS["sage"](), 2, bits=8, min_size=0, keep_output_layer=False)
    int8 = [{t.name for t in halves.saved if t.dtype is torch.int8} for halves in (alone, both)]
    assert int8[0]
    assert int8[0] == int8[1]
    assert saved_bytes(both) <= saved_bytes(alone)


def test_without_training_nothing_is_compressed():
    with torch.no_grad():
        made = case(MODELS["gcn"]())
        reports = run(made.joint, Policy(bits=32, save_bits=2))
    assert not [d for r in reports if r.name in ("compress_saved", "pack_integers") for d in r.decisions]


class Table(nn.Module):
    """The rows of an embedding, which the backward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 16), nn.Linear(16, 16)

    def forward(self, index: Tensor, picked: Tensor) -> Tensor:
        rows = self.table(index) * self.table.weight.index_select(0, picked)
        return self.layer(rows.view(-1, 16)).tanh().view(rows.shape)


def test_rows_of_an_embedding_are_gathered_again():
    model = Table()
    index, picked = torch.randint(20, (2, 40)).unbind()
    results, plans = [], []
    for save_bits in (None, SaveBits(8, min_size=0)):
        compiled = gqc.compile(model, bits=32, save_bits=save_bits)
        out = compiled(index, picked)
        results.append([out, *torch.autograd.grad(out.sum(), model.parameters())])
        plans = [p for stage in gqc.explain(compiled).variants[0].stages for p in stage.plan]
    again = [p for p in plans if p.how == "recomputed" and p.name.startswith(("embedding", "index_select"))]
    assert len(again) == 2
    assert {p.after for p in again} == {0}
    torch.testing.assert_close(results[1][0], results[0][0], rtol=0, atol=0)
    for exact, found in zip(results[0][1:], results[1][1:], strict=True):
        torch.testing.assert_close(found, exact, rtol=0.05, atol=0.05 * exact.abs().max().item())


class Ranking(nn.Module):
    """Items behind a layer, of which a loss compares two that are much alike for a user."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, users: Tensor, items: Tensor, chosen: Tensor, others: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(items))
        better, worse = hidden.index_select(0, chosen), hidden.index_select(0, others)
        return F.softplus((users * (worse - better)).sum(1)).mean() + 1e-3 * better.square().sum()


def test_what_a_loss_reads_has_8_bits():
    model, users = Ranking(), torch.randn(30, 16, requires_grad=True)
    items = torch.randn(1, 16) + 0.02 * torch.randn(60, 16)
    pairs = torch.randperm(60).view(2, 30)
    low = gqc.compile(model, bits=32, save_bits=SaveBits(2, min_size=0))
    loss, want = low(users, items, *pairs), model(users, items, *pairs)
    torch.testing.assert_close(loss, want)
    (got,), (exact,) = (torch.autograd.grad(result, users) for result in (loss, want))
    assert (got - exact).norm() <= 0.1 * exact.norm()  # in 2 bits about half of it
    plans = [p for stage in gqc.explain(low).variants[0].stages for p in stage.plan if p.after]
    of_loss = [p for p in plans if p.reason == "save_bits=2, but the loss reads it"]
    assert len(of_loss) >= 2
    assert {p.how for p in of_loss} == {"compressed to 8 bits"}
    assert any(p.how == "compressed to 2 bits" for p in plans)  # what the layer reads
