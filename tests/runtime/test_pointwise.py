"""Pointwise programs against torch's ops, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gqc.runtime.ops.pointwise  # noqa: F401  registers the op
from gqc.errors import KernelError
from gqc.runtime import native
from gqc.runtime.pointwise.program import DTYPES, FLOAT, INSTRUCTIONS, MASK, parse
from gqc.runtime.reference.pointwise import pointwise as reference
from tests.runtime.backends import ISAS

op = torch.ops.gqc.pointwise
CSRC = Path(__file__).resolve().parents[2] / "csrc"

INEXACT = {
    *("sqrt", "rsqrt"),  # torch's are off by one unit in the last place on some processors
    *("exp", "log", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "elu", "elu_backward", "elu_backward_of_result"),
    *("sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward", "gelu_tanh_backward"),
}
CANCELLING = {
    *("gelu", "gelu_tanh", "sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward"),
    "gelu_tanh_backward",
}
"""Sums whose terms may cancel, so that the error is relative to the operands."""

PARAMETERS = {
    "leaky_relu": (0.2,),
    "elu": (1.5, 1.1, 0.7),
    "threshold_backward": (0.25,),
    "leaky_relu_backward": (0.2,),
    "elu_backward": (1.5, 1.1, 0.7),
    "elu_backward_of_result": (1.5, 1.1, 0.7),
    "keep": (0.3, 65537),
    "drop": (0.3,),
}
HARD = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-40, 3e38, -3e38, 88.8, -88.8, 1e-4]


def fresh_seed() -> Tensor:
    return torch.randint(2**62, (2,))


def check(inputs: list[Tensor], program: str, seed: Tensor | None = None, rtol: float = 0, atol: float = 0) -> None:
    results, expected = op(inputs, seed, program), reference(inputs, seed, program)
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=rtol, atol=atol, equal_nan=True)


def operands(name: str, floats: list[Tensor]) -> tuple[list[Tensor], str]:
    """Inputs and their names for an instruction."""
    kinds = INSTRUCTIONS[name].operands
    inputs = [x if kind == FLOAT else x > 0 for x, kind in zip(floats, kinds, strict=False)]
    return inputs, ", ".join([*(f"x{i}" for i in range(len(inputs))), *map(str, PARAMETERS.get(name, ()))])


def form(name: str) -> str:
    return "bool" if INSTRUCTIONS[name].result == MASK else "float32"


@pytest.mark.parametrize("name", [name for name in INSTRUCTIONS if name != "keep"])
def test_every_instruction_on_hard_and_random_values(isa, name):
    pairs = torch.cartesian_prod(*[torch.tensor(HARD)] * 2)
    floats = [torch.cat([pairs[:, i], torch.randn(2000) * 10 ** torch.randn(2000)]) for i in (0, 1)]
    floats.append(torch.randn_like(floats[0]))
    inputs, written = operands(name, floats)
    program = f"v0 = {name}({written}); return {form(name)}(v0)"
    if name not in CANCELLING:
        tolerance = 2e-6 if name in INEXACT else 0
        check(inputs, program, rtol=tolerance, atol=tolerance and 1e-37)
        return
    (result,), (expected,) = op(inputs, None, program), reference(inputs, None, program)
    scale = inputs[0].abs() * (1 + inputs[-1] ** 2 if len(inputs) > 1 else 1)
    finite = (scale < 1e30).nonzero()  # beyond, torch overflows on the way
    assert ((result - expected).abs() <= 2e-6 * scale + 1e-37)[finite].all()
    nan = inputs[0].isnan() | inputs[-1].isnan()
    assert result[nan].isnan().all()


EXACT = {
    "exp": torch.exp,
    "log": torch.log,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
    "elu": lambda x: torch.ops.aten.elu(x, *PARAMETERS["elu"]),
}
"""Functions whose error is relative everywhere; that of GELU, a sum with 1, is relative to the operand."""


@pytest.mark.parametrize("name", EXACT)
def test_a_few_units_in_the_last_place_over_the_whole_float_range(isa, name):
    bits = torch.arange(-(2**31), 2**31, 39916801 // 1024)
    x = bits.to(torch.int32).view(torch.float32)
    x = x[x.isfinite()]
    _, written = operands(name, [x])
    (result,) = op([x], None, f"v0 = {name}({written}); return float32(v0)")
    exact = EXACT[name](x.double())
    finite = exact.float().isfinite()
    assert torch.equal(result.isfinite(), finite)
    # silu(x) = x / (1 + exp(-x)) is 0 where exp(-x) overflows, in torch too.
    normal = finite & (exact.abs() > 4e-37)
    assert (((result.double() - exact) / exact).abs()[normal] < 6 * 2**-24).all()
    assert ((result.double() - exact).abs()[finite & ~normal] < 4e-37).all()


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu_is_exact_beside_its_operand(isa, name):
    x = torch.randn(100_000) * 3
    approximate = "tanh" if name == "gelu_tanh" else "none"
    exact = torch.nn.functional.gelu(x.double(), approximate=approximate)
    (result,) = op([x], None, f"v0 = {name}(x0); return float32(v0)")
    assert ((result.double() - exact).abs() <= 4 * 2**-24 * x.abs().double() + 1e-30).all()


BINARY = [n for n, k in INSTRUCTIONS.items() if k.operands == "ff" and k.result == FLOAT and n not in INEXACT]
UNARY = ["neg", "abs", "sign", "relu", "leaky_relu", "to_bfloat16", "to_float16", "square"]
COMPARE = ["lt", "le", "gt", "ge", "eq", "ne"]


@st.composite
def programs(draw, floats: int, masks: int) -> str:
    """Programs of instructions that round as torch does, whose inputs are floats and then masks."""
    of = {FLOAT: [f"x{i}" for i in range(floats)], MASK: [f"x{floats + i}" for i in range(masks)]}
    lines, outputs = [], []
    for i in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from([*BINARY, *UNARY, *COMPARE, "where", "logical_and", "logical_not", "keep", "drop"]))
        if INSTRUCTIONS[name].operands.count(MASK) and not of[MASK]:
            name = "gt"
        kind = INSTRUCTIONS[name]
        operands = [draw(st.sampled_from(of[k])) for k in kind.operands]
        if kind.operands == "ff" and draw(st.booleans()):
            operands[draw(st.integers(0, 1))] = str(draw(st.floats(-4, 4, width=32)))
        lines.append(f"v{i} = {name}({', '.join([*operands, *map(str, PARAMETERS.get(name, ()))])})")
        of[kind.result].append(f"v{i}")
        forms = ("bool", "bits") if kind.result == MASK else ("float32", "bfloat16", "float16", "absmax")
        outputs.append(f"{draw(st.sampled_from(forms))}(v{i})")
    last = next((v for v in reversed(of[FLOAT]) if v.startswith("v")), None)
    if last is not None and draw(st.booleans()):
        outputs.append(f"int8({last}, 7, {draw(st.integers(2, 8))}, {draw(st.integers(0, 1))})")
    kept = draw(st.lists(st.sampled_from(outputs), min_size=1, unique=True))
    return "; ".join([*lines, f"return {', '.join(kept)}"])


def broadcast(shape: tuple[int, ...], without: tuple[bool, ...]) -> tuple[int, ...]:
    return tuple(1 if w else n for n, w in zip(shape, without, strict=False))


@settings(max_examples=110, deadline=None)
@given(
    data=st.data(),
    shape=st.sampled_from([(1,), (7,), (129, 5), (64, 3, 4), (300, 1), (9, 1000), (130, 8, 16), (4, 3, 333), (0, 4)]),
    isa=st.sampled_from(ISAS),  # programs have no use for tiles
)
def test_random_programs(data, shape, isa):
    axes = st.tuples(*[st.booleans()] * len(shape))
    dtypes = data.draw(
        st.lists(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), min_size=1, max_size=3)
    )
    inputs = [torch.randn(shape)] + [torch.randn(broadcast(shape, data.draw(axes))).to(d) for d in dtypes]
    masks = data.draw(st.integers(0, 1))
    inputs += [torch.randint(256, ((inputs[0].numel() + 7) // 8,), dtype=torch.uint8)] * masks
    if data.draw(st.booleans()):
        inputs[0].view(-1)[::3] = data.draw(st.sampled_from(HARD))
    program = data.draw(programs(1 + len(dtypes), masks))
    with native.use_isa(isa):
        check(inputs, program, fresh_seed())


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_sums_are_exact_and_do_not_depend_on_threads(isa, threads):
    x, norm, attention = torch.randn(30_000, 4, 32), torch.rand(30_000, 1, 1), torch.randn(4, 32)
    program = (
        "v0 = mul(x0, x1); v1 = mul(v0, x2); return float32(sum(v0, 0)), float32(sum(v1, -1)), bfloat16(sum(v1, 0))"
    )
    results = op([x, norm, attention], None, program)
    scaled = x * norm
    # The terms cancel; what is rounded are partial sums, so an error is relative to the sizes of the terms.
    error = (results[0] - scaled.double().sum(0)).abs()
    assert (error <= 2**-24 * scaled.double().abs().sum(0)).all()
    torch.testing.assert_close(results[1], (scaled * attention).double().sum(-1).float(), rtol=1e-5, atol=1e-5)
    assert results[2].dtype is torch.bfloat16
    torch.set_num_threads(3 - threads)
    assert all(map(torch.equal, results, op([x, norm, attention], None, program)))


def test_a_sum_over_many_rows_keeps_its_precision(isa):
    (total,) = op([torch.full((400_000, 2), 0.1)], None, "return float32(sum(x0, 0))")
    torch.testing.assert_close(total, torch.full((2,), 40_000.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(1000, 33), (5, 4096), (2, 3000, 4)])
def test_a_bias_as_long_as_can_be_and_its_gradient(isa, shape):
    x, bias = torch.randn(shape), torch.randn(shape[1:])
    check([x, bias], "v0 = add(x0, x1); return float32(v0), float32(sum(v0, 0))", rtol=1e-5, atol=1e-4)


def test_the_same_elements_are_dropped_as_by_dropout(isa):
    x, seed = torch.randn(999, 17), fresh_seed()
    program = "v0 = keep(0.4, 65539); v1 = drop(x0, v0, 0.4); return float32(v1), bits(v0)"
    out, mask = op([x], seed, program)
    expected, expected_mask = torch.ops.gqc.dropout(x, 0.4, seed, 65539)
    assert torch.equal(out, expected)
    assert torch.equal(mask, expected_mask)


@pytest.mark.parametrize("width", [17, 65, 333, 1000])
@pytest.mark.parametrize("stochastic", [0, 1])
def test_the_same_int8_values_as_of_quantize(isa, stochastic, width):
    x, y, seed = torch.randn(999, width), torch.randn(999, 1), fresh_seed()
    q, scale = op([x, y], seed, f"v0 = mul(x0, x1); return int8(v0, 11, 8, {stochastic})")
    expected = torch.ops.gqc.quantize(x * y, None, seed, 11, 8, bool(stochastic))
    assert torch.equal(q, expected[0])
    assert torch.equal(scale, expected[1])


def test_int8_values_of_the_longest_odd_rows_that_are_summed(isa):
    x = torch.randint(-9, 10, (50, 511)).float()  # whose sums are exact
    check([x], "v0 = neg(x0); return float32(sum(v0, -1)), int8(v0, 1, 8, 1)", fresh_seed())


def test_results_too_large_for_caches(isa):
    check([torch.randn(2**24 + 13)], "v0 = neg(x0); return float32(v0), bfloat16(v0), int8(v0, 1, 8, 0)")


def test_transposed_and_expanded_inputs(isa):
    check([torch.randn(20, 30).t(), torch.randn(1, 1).expand(30, 20)], "v0 = add(x0, x1); return float32(v0)")


def test_opcheck():
    inputs = [torch.randn(13, 5), torch.randn(13, 1), torch.randn(5)]
    program = (
        "v0 = mul(x0, x1); v1 = keep(0.5, 1); return float32(v0), bits(v1), float32(sum(v0, 0)), int8(v0, 1, 8, 1)"
    )
    torch.library.opcheck(torch.ops.gqc.pointwise.default, (inputs, torch.tensor([1, 2]), program))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("v0 = mul(x0, x1)", "return"),
        ("v0 = mull(x0, x1); return float32(v0)", "no instruction"),
        ("v0 = mul(x0); return float32(v0)", "takes 2 operands"),
        ("v0 = where(x0, x1, x1); v1 = neg(x0); return float32(v1)", "is a mask"),
        ("v0 = mul(x0, v3); return float32(v0)", "not computed"),
        ("v0 = mul(x0, x7); return float32(v0)", "got 2 inputs"),
        ("v0 = gt(x0, x1); return float32(v0)", "must be a float"),
        ("v0 = keep(0.5, 1); return bits(v0)", "needs a seed"),
        ("v0 = mul(x0, x1); return int4(v0)", "is none of"),
        ("v0 = = mul", "no Python"),
    ],
)
def test_what_is_wrong_is_said(program, message):
    with pytest.raises(KernelError, match=message):
        op([torch.randn(3, 4), torch.randn(4)], None, program)


def test_inputs_that_do_not_fit_are_named():
    with pytest.raises(KernelError, match="broadcast"):
        op([torch.randn(3, 4), torch.randn(3)], None, "v0 = mul(x0, x1); return float32(v0)")
    with pytest.raises(KernelError, match=r"input 0 is torch\.float64"):
        op([torch.randn(3, dtype=torch.float64)], None, "return float32(x0)")
    with pytest.raises(KernelError, match="packed mask"):
        op([torch.randn(30), torch.zeros(3, dtype=torch.uint8)], None, "v0 = drop(x0, x1, 0.5); return float32(v0)")
    with pytest.raises(KernelError, match="no gradient"):
        op([torch.randn(3, requires_grad=True)], None, "return float32(x0)")


def test_a_program_reads_as_it_is_written():
    text = (
        "v0 = mul(x0, -inf); v1 = keep(0.5, 3); return float32(v0), bfloat16(sum(v0, -1)), bits(v1), int8(v0, 1, 8, 1)"
    )
    assert str(parse(text)) == text


def test_kernels_number_instructions_and_forms_as_python_does():
    header = (CSRC / "cpu" / "pointwise" / "plan.h").read_text()
    names = re.search(r"enum class Op : int64_t \{(.*?)\}", header, flags=re.DOTALL)[1]  # type: ignore[index]
    assert re.findall(r"\w+", names) == list(INSTRUCTIONS)
    forms = re.search(r"enum class Form : int64_t \{(.*?)\}", header, flags=re.DOTALL)[1]  # type: ignore[index]
    assert [f.replace("boolean", "bool") for f in re.findall(r"\w+", forms)] == list(DTYPES)
