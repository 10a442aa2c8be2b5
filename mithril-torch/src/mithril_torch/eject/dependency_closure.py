"""The source of functions together with everything of this package that they use.

A definition is a function, class or assignment at the top of a module. What it uses is found by the
names in it: other definitions, in this package, follow it into the text; what comes from elsewhere
becomes an import.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

PACKAGE = "mithril_torch."


@dataclass
class DependencyClosure:
    """Sources that need each other, in an order in which they can be loaded.

    Args:
        modules: statements that import whole modules.
        members: names from elsewhere, by the module they come from.
        definitions: sources, by name.
    """

    modules: dict[str, None] = field(default_factory=dict)  # `import torch`, in use
    members: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    definitions: dict[str, str] = field(default_factory=dict)

    @property
    def imports(self) -> list[str]:
        """Import statements in the usual order."""
        froms = [f"from {m} import {', '.join(sorted(n))}" for m, n in self.members.items()]
        both = [*sorted(self.modules), *sorted(froms)]
        torch = [line for line in both if line.split()[1].partition(".")[0] == "torch"]
        return [*(line for line in both if line not in torch), "", *torch]

    def add(self, module: str, names: Iterable[str]) -> None:
        """Add what a module of this package calls by some names, and all that it uses."""
        read = parse_module(module)
        for name in sorted(names):
            if name in read.imports:
                self.modules[read.imports[name]] = None
            elif name in read.members:
                self._add_member(*read.members[name], name)
            elif name in read.definitions:
                self._add_definition(module, name, read.definitions[name])

    def _add_member(self, origin: str, member: str, name: str) -> None:
        if origin.startswith(PACKAGE):
            self.add(origin, [member])
        else:
            self.members[origin].add(member if member == name else f"{member} as {name}")

    def _add_definition(self, module: str, name: str, found: Definition) -> None:
        if name in self.definitions:
            same = self.definitions[name] in ("", found.text)  # "": it uses itself
            assert same, f"'{name}' is defined twice in the modules of programs"
            return
        self.definitions[name] = ""
        self.add(module, found.uses - {name})
        del self.definitions[name]  # after what it uses
        self.definitions[name] = found.text


@dataclass(frozen=True)
class Definition:
    """One definition: its source, and the names that stand in it."""

    text: str
    uses: frozenset[str]


@dataclass(frozen=True)
class Module:
    """What the names at the top of a module are.

    Args:
        imports: import statements of whole modules.
        members: module and name of what comes from another one.
        definitions: what is made here.
    """

    imports: Mapping[str, str]
    members: Mapping[str, tuple[str, str]]
    definitions: Mapping[str, Definition]


@cache
def parse_module(module: str) -> Module:
    """Return what the names at the top of a module are."""
    source = inspect.getsource(import_module(module))
    imports: dict[str, str] = {}
    members: dict[str, tuple[str, str]] = {}
    definitions: dict[str, Definition] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                imports[alias.asname or alias.name] = ast.unparse(ast.Import([alias]))
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            origin = node.module or ""
            for alias in node.names:
                if alias.name == "*":
                    members |= {name: (origin, name) for name in import_module(origin).__all__}
                else:
                    members[alias.asname or alias.name] = (origin, alias.name)
        else:
            for name in _list_defined_names(node):
                definitions[name] = Definition(_source_of(source, node), names_in(node))
    return Module(imports, members, definitions)


def names_in(node: ast.AST) -> frozenset[str]:
    """Return the names that stand in a piece of source."""
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _list_defined_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def _source_of(source: str, node: ast.stmt) -> str:
    """Return the lines of a statement, its decorators and what is said behind it included."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
