"""The source of a whole module: header, imports, functions, and the class with the original's parameters."""

from __future__ import annotations

import ast
import platform
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from importlib import metadata
from typing import Any

import torch
from torch import nn

from gqc.errors import RewriteError
from gqc.policy import Policy
from gqc.rewrite.arguments import ArgumentReader
from gqc.rewrite.calls import literal
from gqc.rewrite.form import FormWriter
from gqc.rewrite.layout import Group, Text, docstring, keyword, statement, tuple_of
from gqc.rewrite.names import MODULE_NAMES, PARTS, identifier, is_identifier
from gqc.rewrite.parts import Parts
from gqc.rewrite.source_lines import SourceLines
from gqc.rewrite.stage import STEP_CLASSES
from gqc.rewrite.state import State
from gqc.runtime import rewritten
from gqc.variant import Variant

_CALLS = {
    "train": "model.train(), with gradients",
    "eval": "model.eval(), under torch.no_grad()",
    "eval-grad": "model.eval(), with gradients",
    "train-no-grad": "model.train(), under torch.no_grad()",
}


def module_source(
    model: nn.Module,
    variants: Mapping[str, Variant],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    policy: Policy,
    source: str,
) -> str:
    """Write a compiled model down.

    Args:
        model: the model from which ``variants`` were captured.
        variants: a compiled form for each mode.
        args, kwargs: the example call.
        policy: under which it was compiled.
        source: where the model comes from, for the header.

    Raises:
        RewriteError: something in the model has no form as source.
    """
    return ModuleWriter(model, variants, args, kwargs, policy, source).write()


class ModuleWriter:
    """See :func:`module_source`."""

    def __init__(
        self,
        model: nn.Module,
        variants: Mapping[str, Variant],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        policy: Policy,
        source: str,
    ) -> None:
        self._model, self._variants, self._policy, self._source = model, variants, policy, source
        fixed = {(i, axis) for v in variants.values() for i, axis, _ in v.captured.guards.shapes.fixed}
        reader = ArgumentReader(model, args, kwargs, lambda position, axis: (position, axis) not in fixed)
        self._arguments = reader.found
        self._state = State(model)
        paths = {id(module): path for path, module in model.named_modules()}
        apart = policy.seed is None and policy.bits == 32 and policy.saves is not None
        self._parts = Parts(self._arguments, self._state, SourceLines(model), paths, policy.seed, apart)

    def write(self) -> str:
        forms = {mode: FormWriter(self._parts, mode, variant) for mode, variant in self._variants.items()}
        class_lines = self._class(forms)
        body = "\n\n\n".join([*self._parts.definitions, "\n".join(class_lines)])
        constants = self._constants()
        used = {n.id for n in ast.walk(ast.parse("\n".join([*constants, body]))) if isinstance(n, ast.Name)}
        aliases = [f"{name} = torch.ops.{space}" for name, space in (("aten", "aten"), ("ops", "gqc")) if name in used]
        head = "\n".join([*self._header(), "", *self._imports(used | {"torch"} if aliases else used)])
        middle = "\n".join([*aliases, *[""] * bool(aliases and constants), *constants])
        return "\n".join([head, "", *([middle, ""] if middle else []), "", body]) + "\n"

    def _header(self) -> list[str]:
        name = type(self._model).__name__
        policy = ", ".join(f"{f.name}={_shown(getattr(self._policy, f.name))}" for f in fields(Policy))
        captured = "; ".join(_CALLS[mode] for mode in self._variants)
        missing = [call for mode, call in _CALLS.items() if mode not in self._variants]
        lines = docstring(f"{name}, {rewritten.MARK}: it trains on quantized primitives without tracing.", 0)
        lines[0], closing = lines[0].removesuffix('"""'), ['"""']
        rest = [line for line in lines[1:] if line != '"""']
        facts = {
            "source": self._source or f"{type(self._model).__module__}.{type(self._model).__qualname__}",
            "gqc": _version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "policy": policy,
            "written for": captured,
            "not for": "; ".join(missing),
        }
        text = [
            "Its parameters have the names of the original's and are NaN until they are loaded:",
            "",
            "    model = " + _class_name(self._model) + "()",
            "    model.load_state_dict(original.state_dict())",
            "",
            "Everything that forward decided in Python (numbers of layers and heads, dropout",
            "probabilities, branches) is written down as it was in the example call. A call of",
            "another kind raises gqc.InputError.",
            "",
        ]
        for key, value in facts.items():
            text += _fact(key, value)
        return [lines[0], *rest, "", *text, *closing]

    def _imports(self, used: set[str]) -> list[str]:
        lines = ["from __future__ import annotations", ""]
        library = [("collections", "OrderedDict"), ("typing", "Any")]
        plain = [line for module, name in library if name in used for line in _import(module, [name])]
        lines += [*plain, ""] if plain else []
        lines.append("import torch")
        if "F" in used:
            lines.append("import torch.nn.functional as F")
        lines += _import("gqc.runtime.relation", sorted(PARTS & used))
        helpers = [name for name in rewritten.__all__ if name in used]
        kinds = sorted(n for n in helpers if n[0].isupper())
        lines += _import("gqc.runtime.rewritten", [*kinds, *sorted(n for n in helpers if n not in kinds)])
        lines += _import("torch", [*["Tensor"] * ("Tensor" in used), "nn"])
        if "once_differentiable" in used:
            lines += _import("torch.autograd.function", ["once_differentiable"])
        return lines

    def _constants(self) -> list[str]:
        lines: list[str] = []
        for name, kind in self._arguments.kinds.items():
            lines += statement(f"{name} = ", kind, 0)
        if self._policy.seed is not None:
            lines.append(f"SEED = {self._policy.seed}")
        for name, value in self._parts.constants.items():
            lines += statement(f"{name} = ", value, 0)
        return lines

    # ---- the class

    def _class(self, forms: Mapping[str, FormWriter]) -> list[str]:
        name, original = _class_name(self._model), type(self._model)
        lines = [f"class {name}(nn.Module):"]
        lines += docstring(f"Has the parameters and buffers of ``{original.__qualname__}`` and computes the same.")
        lines += ["", "    def __init__(self) -> None:", "        super().__init__()"]
        lines += [f"        self.{self._parts.steps} = 0"] * (self._policy.seed is not None)
        lines += [f"        self.{self._parts.steps} = SeedApart()"] * self._parts.apart
        lines += self._state.write()
        checks = [form.checks for form in forms.values()]
        common = checks[0] if all(lines == checks[0] for lines in checks) else []
        bodies = {mode: form.body if common else [*form.checks, *form.body] for mode, form in forms.items()}
        read = _names(line for body in bodies.values() for line in body)
        passed = [p for p in self._passed() if p in read]
        lines += ["", *statement("", Group("def forward(", ["self", *self._arguments.signature], ") -> Any:"))]
        lines += docstring("Check the arguments, then run the form that the call asks for.", 8)
        lines += [*self._check_mode(), *self._check_state(), *self._arguments.checks(), *common]
        *first, last = forms
        for mode in first:
            lines += [f"        if {self._arguments.local('mode')} == {literal(mode)}:"]
            lines += statement("return ", Group(f"self._{identifier(mode)}(", passed), 12)
        lines += statement("return ", Group(f"self._{identifier(last)}(", passed), 8)
        for mode, body in bodies.items():
            parameters = ["self", *(f"{p}: {self._type(p)}" for p in passed)]
            lines += ["", *statement("", Group(f"def _{identifier(mode)}(", parameters, ") -> Any:"))]
            lines += docstring(f"For {_CALLS[mode]}.", 8) + body
        return lines

    def _passed(self) -> list[str]:
        """What the methods may read, in the order in which forward defines it."""
        names = [p.partition(":")[0] for p in self._arguments.signature]
        given = [g if isinstance(g, str) else g.relation for g in self._arguments.given]
        return list(dict.fromkeys([*given, *names]))

    def _type(self, name: str) -> str:
        for given in self._arguments.given:
            if given == name:
                return "Tensor"
            if not isinstance(given, str) and given.relation == name:
                return "list[Tensor]"
        return "Any"

    def _check_mode(self) -> list[str]:
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        items: list[Text] = ["self", tuple_of([literal(mode) for mode in self._variants])]
        items += [literal(autocast), literal(torch.get_default_dtype())]
        prefix = f"{self._arguments.local('mode')} = " if len(self._variants) > 1 else ""
        return statement(prefix, Group("check_mode(", items), 8)

    def _check_state(self) -> list[str]:
        state = [*self._model.named_parameters(), *self._model.named_buffers()]
        if not state:
            return []
        kinds = Counter(tensor.dtype for _, tensor in state if tensor.is_floating_point())
        usual = kinds.most_common(1)[0][0] if kinds else torch.get_default_dtype()
        items: list[Text] = ["self", literal(usual)]
        others = [f"{literal(name)}: {x.dtype}" for name, x in state if x.is_floating_point() and x.dtype is not usual]
        if others:
            items.append(Group("others={", others, "}"))
        frozen = [literal(name) for name, p in self._model.named_parameters() if not p.requires_grad]
        if frozen:
            items.append(keyword("frozen", tuple_of(frozen)))
        return statement("", Group("check_state(", items), 8)


def _class_name(model: nn.Module) -> str:
    name = type(model).__name__
    if not is_identifier(name) or name in (*MODULE_NAMES, *STEP_CLASSES.values()):
        raise RewriteError(f"the class is called {name!r}, which cannot be the name of the rewritten class: rename it")
    return name


def _names(lines: Any) -> set[str]:
    tree = ast.parse("def f():\n" + "\n".join(lines))
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _import(module: str, names: list[str]) -> list[str]:
    if not names:
        return []
    flat = f"from {module} import {', '.join(names)}"
    return [flat] if len(flat) <= 88 else statement(f"from {module} import ", Group("(", names), 0)


def _fact(key: str, value: str) -> list[str]:
    """A line of the header, continued where it is long."""
    lines, current = [], f"    {key:12}"
    for word in value.split(" "):
        if len(current) + len(word) + 1 > 84:
            lines.append(current.rstrip())
            current = " " * 16
        current += f"{word} "
    return [*lines, current.rstrip()]


def _shown(value: object) -> str:
    """A field of the policy, without addresses, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _version() -> str:
    return metadata.version("gqc")
