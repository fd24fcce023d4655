"""Every decision on every model, as text that a reviewer reads."""

from __future__ import annotations

import pytest

from gqc.passes import partition, run
from gqc.policy import Policy
from tests.passes.models import MODELS, case


@pytest.mark.parametrize("name", MODELS)
def test_decisions(name, golden):
    joint = case(MODELS[name]()).joint
    reports = [r for r in run(joint, Policy(min_size=0)) if r.decisions and r.name != "find_primitives"]
    saved = [f"  {s.name} {s.dtype} {s.nbytes()}" for s in partition(joint).saved if not s.held]
    golden(name, "\n".join([*map(str, reports), "saved", *saved]) + "\n")
