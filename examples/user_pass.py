"""A pass of your own: quantize the forward only, to see whether activations or gradients cost accuracy.

python -m examples.user_pass
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

import gqc
from gqc.joint import JointGraph
from gqc.passes import Decision, Insert, Report
from gqc.passes.nodes import BACKWARD, origin
from gqc.passes.primitive import marked
from gqc.passes.report import KEPT


def keep_gradients(joint: JointGraph, policy: gqc.Policy) -> Report:
    """Keep every primitive of the backward in full precision."""
    report = Report("keep_gradients")
    for node, primitive in marked(joint.graph):
        if primitive.half == BACKWARD and primitive.kept is None:
            node.meta["gqc"] = replace(primitive, kept="gradients stay exact")
            where = (origin(node).module, primitive.kind, primitive.half)
            report.decisions.append(Decision(node.name, *where, KEPT, "gradients stay exact"))
    return report


FORWARD_ONLY = gqc.Policy(min_size=0, passes=(Insert(keep_gradients, before="quantize_operands"),))


def main() -> None:
    from examples.datasets import blocks
    from examples.models import recipe
    from examples.training import best, epochs

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()

    gcn = recipe("gcn", "blocks")
    data = gcn.prepare(blocks(args.nodes))
    policies = {"fp32": gqc.Policy(bits=32), "int8": gqc.Policy(min_size=0), "int8 forward only": FORWARD_ONLY}
    for name, policy in policies.items():
        torch.manual_seed(0)
        model = gqc.compile(gcn.model(data), policy)
        history = list(epochs(model, gcn.optimizer(model), data, args.epochs))
        print(f"{name}: test accuracy {best(history):.3f}")
    gqc.explain(model)


if __name__ == "__main__":
    main()
