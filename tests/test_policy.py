"""What a policy accepts, and what it says of the rest."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import gqc
from gqc.layer_bits import LayerBits
from gqc.policy import Insert


def observe(joint, policy):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("bits", 8.0, "one of 2, 3"),
        ("bits", torch.tensor(8), "one of 2, 3"),
        ("bits", np.array([4, 8]), "one of 2, 3"),
        ("bits", [8], "one of 2, 3"),
        ("rounding", np.array([1, 2]), "one of 'stochastic'"),
        ("keep_output_layer", 1, "one of True, False"),
        ("keep_output_layer", None, "one of True, False"),
        ("attention_logits", "int4", "one of 'fp32'"),
        ("float_products", "tf32", "one of 'bf16x3', 'fp32'"),
        ("float_storage", "fp16", "one of 'bf16', 'fp32'"),
        ("min_size", True, "None or a number of elements"),
        ("min_size", 1.5, "None or a number of elements"),
        ("costs", 3.0, "None or a gqc.cost.CostModel"),
        ("seed", True, "None or an integer"),
        ("seed", 2**63, "None or an integer"),
        ("keep", None, "a list of names$"),
        ("keep", {"a"}, "a list of names$"),
        ("keep", ["a", 3], "a list of names$"),
        ("keep", "conv1", r"a list of names, such as \['conv1'\]"),
        ("passes", Insert(observe, before="schedule"), r"a list of Insert, such as \[Insert\(observe, before='sch"),
    ],
)
def test_wrong_values(field: str, value: object, expected: str) -> None:
    with pytest.raises(gqc.PolicyError, match=rf"^Policy\.{field}=[\s\S]*: expected {expected}"):
        gqc.Policy(**{field: value})


def test_a_function_in_place_of_an_insert() -> None:
    with pytest.raises(gqc.PolicyError) as error:
        gqc.Policy(passes=[observe])
    wrap = "wrap it: gqc.passes.Insert(observe, before=...)"
    assert str(error.value) == f"Policy.passes holds observe: expected a list of Insert; {wrap}"


def test_numpys_integers_become_pythons() -> None:
    policy = gqc.Policy(bits=np.int64(4), min_size=np.int32(7), seed=np.uint8(3))
    assert policy == gqc.Policy(bits=4, min_size=7, seed=3)
    assert {type(policy.bits), type(policy.min_size), type(policy.seed)} == {int}
    layers = gqc.Policy(bits={"a": np.int64(4)})
    assert layers == gqc.Policy(bits={"a": 4})
    assert hash(pickle.loads(pickle.dumps(layers))) == hash(layers)


def test_widths_are_checked_however_they_are_given() -> None:
    with pytest.raises(gqc.PolicyError, match=r"Policy\.bits\['a'\]=99: expected one of"):
        LayerBits((("a", 99),))
    with pytest.raises(gqc.PolicyError, match=r"Policy\.bits\['a'\]={'b': 4}: expected one of"):
        gqc.Policy(bits={"a": {"b": 4}})


def test_what_is_no_policy() -> None:
    for given in ({"bits": 8}, "int8", gqc.Policy):
        with pytest.raises(gqc.PolicyError, match=r"expected a gqc\.Policy, or its fields as keyword arguments"):
            gqc.compile(nn.Linear(2, 2), given)


@pytest.mark.parametrize("options", [{"before": 3}, {"before": "schedule", "name": 3}, {"after": observe}])
def test_places_of_a_pass_are_names(options: dict) -> None:
    with pytest.raises(gqc.PolicyError, match="is no name"):
        Insert(observe, **options)
