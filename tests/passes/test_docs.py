"""docs/passes.md has a section for every pass in running order, and its snippets are what the passes do."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from examples.user_pass import keep_gradients
from gqc.joint import JointGraph
from gqc.passes import PIPELINE, run
from gqc.passes.primitive import mark
from gqc.passes.report import Report
from gqc.policy import Policy
from gqc.save_bits import SaveBits
from tests.passes.models import CLASSES, MODELS, WIDTH, OnRelation, case, ops

PAGE = Path(__file__).resolve().parents[2] / "docs" / "passes.md"
SNIPPET = re.compile(r"(<!-- snippet: (\w+) -->\n```\w+\n)(.*?)(```\n)", flags=re.DOTALL)


class ScaledRows(OnRelation):
    """Mean over the neighbours, then a product that makes the features narrower."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, CLASSES))

    def run(self, g, x):
        degree = (g[0][1:] - g[0][:-1]).float().clamp(min=1).unsqueeze(1)
        return (ops.spmm(g, "copy_lhs", x, None) * degree.reciprocal()) @ self.weight


class Counter(OnRelation):
    """Scales by a buffer, then counts in it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("steps", torch.ones(WIDTH))

    def run(self, g, x):
        out = x * self.weight * self.steps.clone()
        self.steps.add_(1)
        return out


class Dropped(OnRelation):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, CLASSES)

    def run(self, g, x):
        return F.dropout(self.first(x), 0.5)


class Rectified(OnRelation):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def run(self, g, x):
        return self.last(self.second(F.relu(self.first(x))))


class WithLoss(OnRelation):
    """A linear layer and the loss of the rows that have a label."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("chosen", torch.tensor([0, 3, 4]))
        self.register_buffer("labels", torch.tensor([1, 0, 4]))

    def run(self, g, x):
        return F.cross_entropy(self.first(x)[self.chosen], self.labels)


class Neighbours(OnRelation):
    """Attention over three rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.table = nn.Linear(WIDTH, 3), nn.Embedding(9, WIDTH)

    def run(self, g, x):
        around = self.table((g[0][:-1, None] + torch.arange(3)) % 9)
        return x + (self.scores(x).softmax(1)[..., None] * around).sum(1)


class ManyClasses(OnRelation):
    """A product and a bias, whose scaled rows are summed over the neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, 40)), nn.Parameter(torch.randn(40))

    def run(self, g, x):
        return ops.spmm(g, "copy_lhs", (x @ self.weight + self.bias) * 0.5, None)


gcn, sage, perceptron = MODELS["gcn"], MODELS["sage"], MODELS["mlp"]
SHOWN: dict[str, tuple[Callable[[], OnRelation], dict[str, object]]] = {
    "simplify": (gcn, {}),
    "copy_updated": (Counter, {}),
    "scale_after_gemm": (ScaledRows, {}),
    "find_primitives": (gcn, {}),
    "measure_saved": (gcn, {}),
    "keep_full_precision": (gcn, {}),
    "choose_bits": (gcn, {"bits": {"conv1": 4}}),
    "quantize_operands": (gcn, {}),
    "share_quantized": (sage, {}),
    "draw_masks": (Dropped, {}),
    "save_masks": (perceptron, {}),
    "fuse_attention": (MODELS["gat"], {}),
    "fuse_cross_entropy": (WithLoss, {}),
    "fuse_kernels": (Rectified, {"rounding": "nearest", "skip": ("fuse_pointwise", "fuse_products")}),
    "recompute_products": (MODELS["gat"], {}),
    "fuse_weighted_sums": (Neighbours, {}),
    "compress_saved": (gcn, {"bits": 32, "save_bits": SaveBits(2, min_size=0)}),
    "multiply_floats": (gcn, {}),
    "fuse_pointwise": (gcn, {}),
    "fuse_products": (gcn, {}),
    "pair_products": (sage, {}),
    "store_float24": (ManyClasses, {}),
    "pack_integers": (Dropped, {"bits": 32, "save_bits": SaveBits(2, min_size=0)}),
    "schedule": (MODELS["rgcn"], {}),
}
"""Model and policy that show a pass; what the pass does to it is in the page."""

LINES = 16


def program(joint: JointGraph) -> list[str]:
    """One line a node, with what the passes have decided about it."""
    return [_line(node) for node in joint.graph.nodes if node.op == "call_function"]


def _line(node: fx.Node) -> str:
    name = str(node.target).removesuffix(".default") if "built-in" not in str(node.target) else node.target.__name__
    text = f"{node.name} = {name}({', '.join(map(_argument, node.args))})"
    primitive = mark(node)
    if primitive is None:
        return text
    decided = f", kept: {primitive.kept}" if primitive.kept else f", {primitive.bits} bits" * (primitive.bits != 8)
    return f"{text}  # {primitive.kind} {primitive.op}{decided}"


def _argument(argument: object) -> str:
    relation = isinstance(argument, list | tuple) and len(argument) == 8
    return "graph" if relation else repr(argument) if isinstance(argument, str) else str(argument)


def snippet(name: str) -> str:
    """What a pass changes in its model: the first lines of a diff, or of the report if it changes nothing."""
    model, options = SHOWN[name]
    with pytest.MonkeyPatch.context() as patch:
        if name == "fuse_kernels":  # for GPUs
            patch.setattr(sys.modules["gqc.passes.fuse_kernels"], "LEFT_ALONE", ())
        if name == "multiply_floats":  # for matrices that no cache holds
            patch.setattr(sys.modules["gqc.passes.multiply_floats"], "FEWEST_ROWS", 1)
            patch.setattr(sys.modules["gqc.passes.multiply_floats"], "MOST_CACHED", 0)
        if name == "store_float24":  # for matrices that no cache holds
            patch.setattr(sys.modules["gqc.passes.store_float24"], "FEWEST_ELEMENTS", 1)
        return _snippet(name, model, options)


def _snippet(name: str, model: Callable[[], OnRelation], options: dict[str, object]) -> str:
    torch.manual_seed(0)
    joint = case(model()).joint
    before, found = [], ""

    def watch(joint: JointGraph, report: Report) -> None:
        nonlocal before, found
        if report.name == name:
            found = _difference(before, program(joint), context=name == "schedule") or f"{report}\n"
        before = program(joint)

    run(joint, Policy(**{"min_size": 0, **options}), watch)  # type: ignore[arg-type]
    return found


def _difference(before: list[str], after: list[str], context: bool) -> str:
    """The lines that differ; with ``context``, and those around them, which show where a moved line goes."""
    lines = list(difflib.unified_diff(before, after, n=int(context), lineterm=""))[2:]
    shown = [line for line in lines if not line.startswith("@@")]
    return "\n".join(shown[:LINES] + (["..."] if len(shown) > LINES else [])) + "\n" if shown else ""


def expected(name: str) -> str:
    return inspect.getsource(keep_gradients) if name == "user_pass" else snippet(name)


@pytest.mark.parametrize("name", [*SHOWN, "user_pass"])
def test_snippets_are_what_the_passes_do(name, request):
    page = PAGE.read_text()
    made = expected(name)
    if request.config.option.update_golden:
        page = SNIPPET.sub(lambda m: f"{m[1]}{made}{m[4]}" if m[2] == name else m[0], page)
        PAGE.write_text(page)
    shown = {m[2]: m[3] for m in SNIPPET.finditer(page)}
    assert shown[name] == made, f"docs/passes.md is behind {name}: run pytest --update-golden and review it"


def test_a_section_for_every_pass_in_running_order():
    headings = re.findall(r"^### (\w+)$", PAGE.read_text(), flags=re.MULTILINE)
    assert headings == [step.name for step in PIPELINE] == list(SHOWN)


def test_every_section_says_what_the_pass_needs_does_and_ensures():
    sections = re.split(r"^### ", PAGE.read_text().split("## Write your own pass")[0], flags=re.MULTILINE)[1:]
    for section in sections:
        for word in ("**Needs**", "**Does**", "**Ensures**", "**Source**"):
            assert word in section, (section.splitlines()[0], word)
