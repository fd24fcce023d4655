"""What the functions and methods of one generated module share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import fx

from gqc.errors import RewriteError
from gqc.rewrite.arguments import Arguments
from gqc.rewrite.function import Given, RelationPart
from gqc.rewrite.layout import Group, Text, result, statement, tuple_of
from gqc.rewrite.names import Scope
from gqc.rewrite.source_lines import SourceLines
from gqc.rewrite.state import State, tensor_literal


@dataclass
class Parts:
    """The parts of a module while it is written.

    Attributes:
        arguments, state, lines: of the model.
        paths: dotted path of each of its modules by identity.
        seed: seed of stochastic rounding, ``None``: drawn at each step.
        apart: whether the seed leaves torch's generators as they are.
        steps: attribute of the model that counts steps, where a seed is given, or gives seeds apart.
        constants: names and values of the tensors at the head of the module.
        definitions: the functions and classes in order.
    """

    arguments: Arguments
    state: State
    lines: SourceLines
    paths: dict[int, str]
    seed: int | None
    apart: bool = False
    constants: dict[str, Group] = field(default_factory=dict)
    definitions: list[str] = field(default_factory=list)
    _functions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = self.state.model
        self.steps = Scope({*model._modules, *model._parameters, *model._buffers}).take("steps")

    def constant(self, graph: fx.GraphModule, target: str) -> str:
        """Name of a tensor that the model has made and that no state_dict holds."""
        text = tensor_literal(getattr(graph, target), f"a constant tensor of the model ({target})")
        name = next((n for n, known in self.constants.items() if str(known) == str(text)), None)
        if name is None:
            name = f"CONSTANT_{len(self.constants)}"
            self.constants[name] = text
        return name

    def attribute(self, graph: fx.GraphModule, target: str) -> str:
        """Source of what a get_attr node reads: a parameter, a buffer or a constant."""
        return self.state.access(target) if target in self.state.names else self.constant(graph, target)

    def define(self, lines: Sequence[str]) -> None:
        """Add a function or class."""
        self.definitions.append("\n".join(lines))

    def share(self, name: str, prefix: str, lines: Sequence[str]) -> str:
        """Add a function, unless another form has the same; returns its name.

        Args:
            name: its name if that is free, else it is told apart by ``prefix``.
            lines: its source with ``{name}`` for the name.
        """
        text = "\n".join(lines)
        if text not in self._functions:
            taken = name in self._functions.values()
            self._functions[text] = f"{prefix}_{name}" if taken else name
            if taken and f"{prefix}_{name}" in list(self._functions.values())[:-1]:
                raise RewriteError(f"two functions are called {prefix}_{name}")
            self.definitions.append(text.replace("{name}", self._functions[text]))
        return self._functions[text]


def names_of(given: Sequence[Given]) -> set[str]:
    """The variables behind what values are called."""
    return {g if isinstance(g, str) else g.relation for g in given}


def relations_of(given: Sequence[Given]) -> list[str]:
    """The relations whose tensors are among some values."""
    return list(dict.fromkeys(g.relation for g in given if isinstance(g, RelationPart)))


def signature(name: str, parameters: list[str], returns: str, indent: int = 0) -> list[str]:
    """The first lines of a function."""
    return statement("", Group(f"def {name}(", parameters, f") -> {returns}:"), indent)


def result_tuple(items: Sequence[Text]) -> list[str]:
    """A return statement of a tuple, also of one item."""
    return statement("return ", tuple_of(items)) if len(items) == 1 else result(items)


def assign(names: Sequence[str], call: Group, indent: int = 8) -> list[str]:
    """Assign the tuple that a call returns."""
    target = f"({names[0]},)" if len(names) == 1 else ", ".join(names)
    if indent + len(target) + len(call.head) <= 84:
        return statement(f"{target} = ", call, indent)
    margin = " " * indent
    first, *rest = statement(") = ", call, indent)
    return [f"{margin}(", *(f"{margin}    {name}," for name in names), first, *rest]
