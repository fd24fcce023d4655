"""Policy.cuda_graph where nothing can be recorded, and beside what looks into a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gqc
from gqc.cuda_graph import recorder, refusal, stage
from gqc.cuda_graph.recorder import CudaRecorder
from gqc.errors import RewriteError
from gqc.passes import Insert, Report
from tests.fake_graphs import FakeRecorder

META = torch.device("meta")


class Rows(nn.Module):
    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor] = lambda m, h: h.relu()) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(8, 16), nn.Linear(16, 8), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(x)))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (refusal, stage):
        monkeypatch.setattr(module, "recorder_for", lambda device: FakeRecorder())
    monkeypatch.setattr(stage, "WARM_UPS", 1)


def compiled(model: nn.Module, **options: Any) -> nn.Module:
    return gqc.compile(model, **{"min_size": 0, "rounding": "nearest", "cuda_graph": True, **options})


def trained(model: nn.Module, x: Tensor, steps: int = 4) -> list[Any]:
    """Usage of each stage after some steps."""
    expected = None
    for _ in range(steps):
        model.zero_grad()
        out = model(x)
        out.sum().backward()
        results = [out.detach(), *(p.grad for p in model.parameters())]
        if x.device != META:
            torch.testing.assert_close(results, expected or results)
        expected = [r.clone() for r in results]
    (variant,) = gqc.explain(model).variants
    return [part.cuda_graph for part in variant.stages]


def test_a_model_on_the_cpu_says_so() -> None:
    model = compiled(Rows())
    (usage,) = trained(model, torch.randn(20, 8))
    assert (usage.forwards, usage.recordings) == (0, 0)
    text = "no CUDA graph: it computes on the device 'cpu', and CUDA graphs need a GPU of NVIDIA"
    assert text in str(gqc.explain(model))
    plain = gqc.compile(Rows())
    plain(torch.randn(20, 8))
    assert "CUDA graph" not in str(gqc.explain(plain))


def test_stages_beside_an_island_are_replayed(recorded: None) -> None:
    model = compiled(Rows(lambda m, h: h * len(h.detach().sign().unique()) / 2))
    usages = trained(model, torch.randn(20, 8))
    assert len(usages) == 2
    assert all(u.forwards == 3 for u in usages)
    text = " ".join(str(gqc.explain(model)).split())
    assert "eager island" in text
    assert "CUDA graph: 3 forwards and 2 backwards replayed, 1 forwards recorded" in text
    assert f"1 not replayed: {stage.WARMING_UP}" in text


def test_a_stage_with_a_tensor_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch, recorded: None) -> None:
    model = Rows(lambda m, h: h * m.factor).to(META)
    model.register_buffer("factor", torch.tensor(2.0))
    (usage,) = trained(compiled(model, bits=32), torch.randn(20, 8, device=META))
    assert usage.refusal == "factor is on cpu and not on meta, so its values would never change"


def test_python_among_the_ops_is_refused(recorded: None) -> None:
    def log(x: Tensor) -> Tensor:
        return x

    def add_log(joint: Any, policy: gqc.Policy) -> Report:
        node = next(n for n in joint.graph.nodes if n.target is torch.ops.aten.relu.default)
        with joint.graph.inserting_after(node):
            call = joint.graph.call_function(log, (node,))
        call.meta.update(node.meta)
        node.replace_all_uses_with(call, delete_user_cb=lambda user: user is not call)
        return Report("add_log")

    model = compiled(Rows(), bits=32, passes=[Insert(add_log, after="simplify")])
    (usage,) = trained(model, torch.randn(20, 8))
    assert usage.refusal == "log calls log, which is Python and would not run in a replay"


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_what_fails_while_it_is_recorded_runs_op_by_op(
    monkeypatch: pytest.MonkeyPatch, recorded: None, half: str
) -> None:
    class Failing(FakeRecorder):
        def record(self, run: Callable[[], Any]) -> Any:
            graph, result = super().record(run)
            if half == "forward" or self._pool.index(graph) == 1:
                raise torch.OutOfMemoryError("no memory left")
            return graph, result

    monkeypatch.setattr(stage, "recorder_for", lambda device: Failing())
    (usage,) = trained(compiled(Rows()), torch.randn(20, 8), steps=6)
    assert usage.refusal == "recording failed with OutOfMemoryError: no memory left"
    assert (usage.forwards, usage.backwards) == (0 if half == "forward" else 2, 0)


def test_within_a_recording_of_the_callers_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch, recorded: None) -> None:
    model, x = compiled(Rows()), torch.randn(20, 8)
    trained(model, x, steps=2)
    monkeypatch.setattr(stage, "is_recording", lambda device: True)
    (usage,) = trained(model, x)
    assert usage.launched[stage.WITHIN] == 4
    monkeypatch.undo()


def test_modes_and_transforms_run_op_by_op(recorded: None) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, x = compiled(Rows(), bits=32), torch.randn(20, 8)
    trained(model, x)
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert counter.get_total_flops() == 2 * 2 * 20 * 8 * 16
    (variant,) = gqc.explain(model).variants
    assert variant.stages[0].cuda_graph.launched[stage.MODES] == 1


def test_tools_that_look_into_a_model_see_its_ops(recorded: None, tmp_path: Path) -> None:
    x = torch.randn(200, 8)
    model = compiled(Rows(), keep_output_layer=False, dump=tmp_path)
    (usage,) = trained(model, x)
    assert (usage.forwards, usage.launched[stage.WARMING_UP]) == (2, 1)  # the first call was measured
    assert "Measured on a call" in next(tmp_path.rglob("errors.json")).read_text()
    assert gqc.error_report(model, x).of("operand")
    assert gqc.explain(model).variants[0].stages[0].cuda_graph.forwards == 2

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        assert not gqc.state_of(model).policy.cuda_graph
        return model(x).square().mean()

    assert gqc.bisect(model, loss, (x,), progress=False).suspects == 5
    with pytest.raises(RewriteError, match="cuda_graph=False"):
        gqc.rewrite(model, (x,))


def test_recordings_on_a_gpu_and_the_order_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Stream:
        def __init__(self, name: object) -> None:
            self.name = name

        def wait_event(self, event: object) -> None:
            log.append(f"{self.name} waits")

    @contextmanager
    def graph(graph: object, pool: str, stream: Stream, capture_error_mode: str) -> Any:
        log.append(f"record on {stream.name} into {pool}, {capture_error_mode}")
        yield
        log.append("recorded")

    event = SimpleNamespace(record=lambda stream: log.append(f"event after {stream.name}"))
    current = [Stream("first")]
    replaced = {
        "graph_pool_handle": lambda: "a pool",
        "Stream": Stream,
        "Event": lambda: event,
        "CUDAGraph": object,
        "graph": graph,
        "device": lambda device: nullcontext(),
        "current_stream": lambda device=None: current[0],
        "set_stream": lambda stream: log.append(f"back on {stream.name}"),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    clear = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch._C, clear, lambda: log.append("clear"), raising=False)
    device = torch.device("cuda", 1)
    made = recorder.recorder_for(device)
    assert isinstance(made, CudaRecorder)
    assert made.record(lambda: log.append("run") or 3)[1] == 3
    assert log == ["clear", "record on cuda:1 into a pool, thread_local", "run", "recorded", "clear", "back on first"]
    log.clear()
    memory = [SimpleNamespace(record_stream=lambda stream: log.append(f"memory is used on {stream.name}"))]
    for name in ("first", "first", "second"):
        current[0] = current[0] if current[0].name == name else Stream(name)
        with made.using(memory):
            log.append("replay")
    first = ["replay", "event after first"]
    assert log == [*first, *first, "second waits", "memory is used on second", "replay", "event after second"]
