import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from examples.datasets import blocks
from examples.memory import saved_bytes
from examples.models import RECIPES, Recipe, recipe
from examples.training import Epoch, best, epochs

N, WIDTH, HIDDEN = 30, 7, 11


def test_saved_bytes_counts_activations_once_and_neither_inputs_nor_parameters() -> None:
    first, second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 3)
    x = torch.randn(N, WIDTH)
    # relu and the second layer both save the hidden activation.
    assert saved_bytes(lambda: second(first(x).relu())) == N * HIDDEN * 4
    # gelu saves its input, the second layer gelu's output.
    assert saved_bytes(lambda: second(F.gelu(first(x)))) == 2 * N * HIDDEN * 4
    with torch.no_grad():
        assert saved_bytes(lambda: second(first(x).relu())) == 0


def test_best_is_the_first_epoch_with_the_best_validation_accuracy() -> None:
    history = [Epoch(0, 0, val, test) for val, test in ((0.5, 0.9), (0.7, 0.6), (0.7, 0.8), (0.6, 0.7))]
    assert best(history) == 0.6


@pytest.mark.parametrize("name", RECIPES)
def test_training_learns_and_repeats_with_its_seed(name: str) -> None:
    how = recipe(name)
    data = how.prepare(blocks(400))
    torch.manual_seed(0)
    initial = how.model(data)

    def run() -> list[Epoch]:
        torch.manual_seed(1)
        model = copy.deepcopy(initial)
        return list(epochs(model, how.optimizer(model), data, 30))

    history = run()
    assert sum(epoch.loss for epoch in history[-5:]) / 5 < 0.9 * history[0].loss
    assert [epoch.loss for epoch in run()] == pytest.approx([epoch.loss for epoch in history], rel=1e-3)


@pytest.mark.parametrize("how", [*RECIPES.values(), recipe("gat", "pubmed")])
def test_optimizer_holds_each_parameter_once(how: Recipe) -> None:
    model = how.model(blocks(50))
    held = [p for group in how.optimizer(model).param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def test_gcn_decays_its_first_layer_only() -> None:
    model = RECIPES["gcn"].model(blocks(50))
    decayed, rest = RECIPES["gcn"].optimizer(model).param_groups
    assert decayed["weight_decay"] == 5e-4
    assert rest["weight_decay"] == 0
    assert set(map(id, decayed["params"])) == set(map(id, model.conv1.parameters()))


def test_gat_for_pubmed_averages_eight_output_heads() -> None:
    assert recipe("gat", "pubmed").model(blocks(50)).conv2.attn_l.shape[1] == 8
    assert recipe("gat", "cora").model(blocks(50)).conv2.attn_l.shape[1] == 1
