"""Cross entropy forward and backward, of all rows and of half of them, beside torch's, eager and with Inductor.

The forward must read the logits of its rows, the backward also write the gradient of all.

python -m benchmarks.primitives_loss --rows 169343 --classes 40
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.ceilings import Contestant, Group, add_timer_options, copying, show
from benchmarks.halves import Call, compiled_halves, halves
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc

gqc = torch.ops.gqc
IGNORED = -100


def contestants(rows: int, classes: int) -> Group:
    """Each way to compute the mean over all rows, and over the half that a mask of training nodes names."""
    logits = torch.randn(rows, classes, requires_grad=True)
    labels, index = torch.randint(classes, (rows,)), (torch.rand(rows) < 0.5).nonzero().flatten()
    found = copying(logits.detach())
    for name, chosen in (("all rows", None), ("half of the rows", index)):
        read = logits.nbytes if chosen is None else len(chosen) * classes * 4
        for peer, (forward, backward) in _peers(logits, labels, chosen).items():
            found[f"{name}, {peer}"] = Contestant(forward, {"copy": read})
            found[f"{name}, {peer}, backward"] = Contestant(backward, {"copy": read + logits.nbytes})
    return found


def _peers(logits: Tensor, labels: Tensor, index: Tensor | None) -> dict[str, tuple[Call, Call]]:
    labels = labels if index is None else labels[index]

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits if index is None else logits[index], labels)

    values, grad = logits.detach(), torch.ones(())
    options = "mean", IGNORED
    _, counted = gqc.cross_entropy(values, labels, index, *options)
    own: tuple[Callable[[], object], Callable[[], object]] = (
        lambda: gqc.cross_entropy(values, labels, index, *options),
        lambda: gqc.cross_entropy_backward(grad, values, labels, index, counted, *options),
    )
    return {
        "torch": halves(loss, [logits], grad),
        "Inductor": compiled_halves(loss, [logits], grad),
        "gqc": own,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=169_343)
    parser.add_argument("--classes", type=int, default=40)
    add_timer_options(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    title = f"cross entropy of [{args.rows:,}, {args.classes}]"
    show(title, contestants(args.rows, args.classes), args)


if __name__ == "__main__":
    main()
