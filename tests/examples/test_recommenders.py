"""The models: compiled as in eager, what they learn, and what their formulas say on graphs that a reader can follow."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import gqc
from examples.recommendation import __main__ as command
from examples.recommendation import comparison
from examples.recommendation.datasets import RecommendationData, amazon_book
from examples.recommendation.metrics import evaluate
from examples.recommendation.models import KGAT, KGCN, KGIN, KGNNLS, MODELS
from examples.recommendation.models.kgin import distance_correlations
from examples.recommendation.sampling import batches
from examples.recommendation.training import Training


@pytest.fixture(scope="module")
def data() -> RecommendationData:
    return amazon_book(300)


def tiny(train: list[list[int]], triples: list[list[int]], sizes: tuple[int, int, int, int]) -> RecommendationData:
    return RecommendationData("tiny", *sizes, torch.tensor(train), torch.empty(0, 2), torch.tensor(triples))


# KGNN-LS computes all that KGCN does.
@pytest.mark.parametrize(("name", "layers", "sums"), [("kgat", 2, 2), ("kgin", 2, 4), ("kgnn-ls", 1, 0)])
def test_compiled_it_is_one_graph_with_the_gradients_of_eager(
    name: str, layers: int, sums: int, data: RecommendationData
) -> None:
    model = MODELS[name](data, 16, layers)
    graph = model.graph_of(data)
    model.refresh(graph)
    batch = next(batches(data, 64, torch.Generator().manual_seed(0)))
    results = []
    compiled = gqc.compile(model, bits=32)
    for called in (model, compiled):
        torch.manual_seed(0)  # the same dropout
        loss = called(graph, *batch)
        parameters = {n: p for n, p in model.named_parameters() if not n.startswith("alternated.")}
        results.append(
            {"loss": loss, **dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))}
        )
    for key, expected in results[0].items():
        scale = expected.abs().max().item()
        torch.testing.assert_close(
            results[1][key], expected, rtol=1e-3, atol=1e-4 * scale, msg=lambda m, key=key: f"{key}: {m}"
        )
    explained = gqc.explain(compiled)
    assert not explained.fallbacks
    (variant,) = explained.variants
    assert not variant.islands
    (stage,) = variant.stages
    messages = [d for report in stage.reports if report.name == "find_messages" for d in report.decisions]
    assert len([d for d in messages if d.primitive == "spmm"]) == len(messages) == sums


@pytest.mark.parametrize("name", MODELS)
def test_training_beats_chance(name: str, data: RecommendationData) -> None:
    torch.manual_seed(0)
    training = Training(MODELS[name](data, 16, 2), data, batch=256, rate=0.01)
    losses = [training.epoch() for _ in range(8)]
    assert losses[-1] < losses[0]
    chance = evaluate(lambda users: torch.rand(len(users), data.items), data)
    after = training.evaluate()
    assert after.recall > 1.2 * chance.recall
    assert after.ndcg > chance.ndcg


def test_attention_of_kgat_sums_to_one_for_each_head(data: RecommendationData) -> None:
    model = KGAT(data, 8, 1)
    graph = model.graph_of(data)
    model.refresh(graph)
    sums = torch.zeros(data.entities + data.users).index_add(0, graph.head, model.attention)
    torch.testing.assert_close(sums[graph.head.unique()], torch.ones(len(graph.head.unique())))
    edges = (graph.head == graph.head[5]).nonzero().flatten()
    transr, relations = model.alternated, graph.relation[edges]
    head, tail = (
        torch.einsum("ed,edk->ek", model.nodes.weight[end[edges]], transr.projections[relations])
        for end in (graph.head, graph.tail)
    )
    logits = (tail * torch.tanh(head + transr.relations.weight[relations])).sum(1)
    torch.testing.assert_close(model.attention[edges], torch.softmax(logits, 0))


def test_kgin_weighs_tails_by_their_relations() -> None:
    data = tiny([[0, 0], [0, 1]], [[0, 0, 2], [0, 1, 3]], (1, 2, 4, 2))
    model = KGIN(data, 4, 1).eval()
    users, entities = model.embeddings(model.graph_of(data))
    e, r = model.entities.weight, model.relations.weight
    around = (r[0] * e[2] + r[1] * e[3]) / 2
    torch.testing.assert_close(entities[0], e[0] + F.normalize(around, dim=0))
    intents = torch.softmax(model.intents, 1) @ r
    liked = (e[0] + e[1]) / 2
    mixed = torch.softmax(intents @ model.users.weight[0], 0) @ intents
    torch.testing.assert_close(users[0], model.users.weight[0] + F.normalize(liked * mixed, dim=0))


def test_distance_correlation_is_one_of_equal_vectors_and_small_of_independent_ones() -> None:
    x = torch.randn(400)
    assert distance_correlations(torch.stack([x, 3 * x + 1])).item() == pytest.approx(1, abs=1e-3)
    assert distance_correlations(torch.randn(2, 400)).item() < 0.5


@pytest.mark.parametrize("model", [KGCN, KGNNLS])
def test_scores_of_all_items_are_those_of_their_fields(model, data: RecommendationData) -> None:
    plain = model(data, 8, 3).eval()
    graph, items = plain.graph_of(data), torch.arange(data.items)
    users = plain.users(torch.full_like(items, 7))
    field = plain.field(graph, items)
    seen = plain.seen_by(users, field, [plain.weights(users, r) for r in field.relations])
    torch.testing.assert_close(plain.scorer(graph)(torch.tensor([7]))[0], (seen * users).sum(1), rtol=1e-4, atol=1e-6)


def test_entities_without_neighbours_see_themselves() -> None:
    data = tiny([[0, 0]], [[0, 0, 2]], (1, 2, 3, 1))
    graph = KGCN.graph_of(data)
    assert graph.entity.tolist() == [[2] * 4, [1] * 4, [0] * 4]
    assert graph.relation.tolist() == [[0] * 4, [1] * 4, [0] * 4]


def test_labels_propagate_from_what_a_user_liked() -> None:
    """Item 0 is held out; its neighbour 2 is no item and is next to items 0 and 1; user 0 liked item 1, user 1 not."""
    data = tiny([[0, 0], [0, 1], [1, 0]], [[0, 0, 2], [1, 0, 2]], (2, 2, 3, 1))
    model = KGNNLS(data, 4, 2)
    graph = model.graph_of(data)
    users, items = torch.tensor([0, 1]), torch.tensor([0, 0])
    field = model.field(graph, items)
    weights = [model.weights(model.users(users), r) for r in field.relations]
    labels = model.propagated(graph, users, field, weights)
    shares = np.array([(hop == 1).float().mean(1).tolist() for hop in field.entities[2:]])[0]
    # Both neighbours of 2 are as likely, by one relation: item 1 tells 1 or 0, item 0 itself tells nothing.
    np.testing.assert_allclose(labels.tolist(), [shares[0] + (1 - shares[0]) / 2, (1 - shares[1]) / 2], rtol=1e-5)


def test_one_command_trains_measures_and_prints(tmp_path: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "results.json"
    monkeypatch.setattr(comparison, "TIMED_STEPS", 2)
    arguments = ["--scale", "400", "--model", "kgin", "--seeds", "2", "--epochs", "1", "--width", "32", "--layers", "1"]
    monkeypatch.setattr(
        sys, "argv", ["recommendation", *arguments, "--bits", "2", "--batch", "128", "--results", str(file)]
    )
    command.main()
    printed = capsys.readouterr().out
    found = json.loads(file.read_text())["models"]["kgin"]
    assert list(found) == ["FP32 PyTorch", "FP32 gqc", "INT2"]
    assert all(len(v["recall"]) == 2 and v["step_seconds"] > 0 for v in found.values())
    assert found["FP32 gqc"]["recall"] == pytest.approx(found["FP32 PyTorch"]["recall"], abs=0.02)
    assert 3 * found["INT2"]["saved_bytes"] < found["FP32 gqc"]["saved_bytes"] < found["FP32 PyTorch"]["saved_bytes"]
    assert "KGIN on Amazon-book" in printed

    monkeypatch.setattr(command, "compare", None)
    command.main()
    assert "KGIN on Amazon-book" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--seeds", "3"])
    with pytest.raises(SystemExit, match="other settings"):
        command.main()


def test_a_missing_folder_is_a_usage_error(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["recommendation", "--data", "lastfm"])
    with pytest.raises(SystemExit):
        command.main()
    assert "--data-root" in capsys.readouterr().err
