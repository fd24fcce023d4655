"""As benchmarks.memory for the recommenders on knowledge graphs of examples.recommendation.

python -m benchmarks.memory_recommenders --data lastfm --data-root DIR --threads 1 --json recommenders.json
python -m benchmarks.plot recommenders.json recommenders.svg

A step is the forward of a batch with the BPR loss, backward and Adam; it draws its batch, too. Contestants: PyTorch in
fp32, the same with torch.utils.checkpoint around each layer, under bf16 autocast; gqc in full precision, and with
activations saved in 8, 4, 2 and 1 bits.
"""

from __future__ import annotations

import argparse
import copy
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks import saving_command
from benchmarks.saving import COMPILED, Autocast, Contest, Made, Prepare, chosen
from examples.recommendation.datasets import RecommendationData, load
from examples.recommendation.models import MODELS, NAMES, Recommender
from examples.recommendation.options import add_data_and_sizes
from examples.recommendation.training import Training

EAGER = "PyTorch fp32"


def checkpointed(model: nn.Module) -> nn.Module:
    """Let a recommender save what goes into its layers and compute them twice; a model of triples stays as it is."""
    if isinstance(model, Recommender):
        model.propagate = partial(checkpoint, model.propagate, use_reentrant=False)
    return model


CONTESTANTS: dict[str, Prepare] = {
    EAGER: lambda model: model,
    "checkpoint": checkpointed,
    "PyTorch bf16 autocast": Autocast,
    **COMPILED,
}
"""What prepares the model, by name."""


def contest(
    model: str, data: RecommendationData, names: list[str] | None, batch: int = 1024, width: int = 64, layers: int = 3
) -> Contest:
    """The steps of one model, all from the same weights and on the same batches.

    Args:
        model: a key of :data:`examples.recommendation.models.MODELS`.
        names: contestants, ``None`` for all; the base is always among them.
        batch: interactions a step.
        width: of embeddings.
    """
    torch.manual_seed(0)
    plain = MODELS[model](data, width, layers)  # type: ignore[call-arg]

    def make(name: str) -> Made:
        training = Training(copy.deepcopy(plain), data, CONTESTANTS[name], batch)
        training.model.train()
        drawn = training.endless()
        first = next(drawn)
        return lambda: training.step(next(drawn)), lambda: training.loss(first)

    title = f"{NAMES[model]}, {layers} layers, width {width}, batches of {batch}, on {data.name}"
    described = {"model": model, "data": data.name, "batch": batch, "hidden": width, "layers": layers}
    threads = f"{torch.get_num_threads()} threads"
    return Contest(f"{title}; {threads}", described, make, chosen(CONTESTANTS, names))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = saving_command.parser(__doc__, MODELS, CONTESTANTS)
    add_data_and_sizes(out)
    return out


def main() -> None:
    arguments = parser()
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    try:
        data = load(args.data, args.data_root, args.scale)
    except (ValueError, FileNotFoundError) as error:
        arguments.error(str(error))
    sizes = {"batch": args.batch, "width": args.width, "layers": args.layers}
    contests = (contest(model, data, args.contestant, **sizes) for model in args.model)
    saving_command.run("benchmarks.memory_recommenders", args, contests)


if __name__ == "__main__":
    main()
