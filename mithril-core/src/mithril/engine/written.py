"""Programs written as Python: what runs them, and whose layer and line an error in them is for."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never

from mithril.engine.checks import KernelChecks, drop_guards, is_checking, is_named, place_in_code
from mithril.engine.protocol import Observer
from mithril.errors import MithrilError
from mithril.ir import Node

_Run = Callable[[Sequence[Sequence[Any]], Observer | None], list[list[Any]]]


class WrittenRun:
    """The function `run` of a program's source; the results of kernels are looked at once.

    Args:
        source: of the program.
        file: what tracebacks call it.
        constants: what its names mean; they become the function's globals.
        nodes: what each kernel is called for, by its name.
        checks: whose kernels they are.
    """

    def __init__(
        self,
        source: str,
        file: str,
        constants: dict[str, Any],
        nodes: Mapping[str, Node],
        checks: KernelChecks,
    ) -> None:
        exec(compile(source, file, "exec"), constants)
        self.run: _Run = constants["run"]
        self._lines = source.splitlines()
        self._file, self._nodes, self._checks = file, nodes, checks
        self.is_new = not is_checking()

    @property
    def names(self) -> dict[str, Any]:
        """What the names in the source mean."""
        return self.run.__globals__

    def __call__(
        self, inputs: Sequence[Sequence[Any]], observe: Observer | None = None
    ) -> list[list[Any]]:
        """Run once; see `Executable`.

        Raises:
            BackendError: a kernel raises, or returns something else than its op's result.
        """
        try:
            made = self.run(inputs, observe)
        except Exception as error:
            self.fail(error)
        if self.is_new:
            self.settle()
        return made

    def settle(self) -> None:
        """Have kernels called as they are from now on: each was looked at."""
        drop_guards(self.names)
        self.is_new = False

    def fail(self, error: Exception) -> Never:
        """Raise an error of `run` again, with the op, layer and line that it is of.

        Raises:
            BackendError: a kernel raised something of its own.
            Exception: anything else, as it was.
        """
        told = self._tell_place(error)
        if told is error:
            raise error
        raise told from (None if isinstance(error, MithrilError) else error)

    def _tell_place(self, error: Exception) -> Exception:
        """Return an error with the op, and the user's layer and line, that it is of."""
        node = self._find_node(error)
        if node is None:
            return error
        if not is_named(error, node):
            return self._checks.explain(node, error)
        place = place_in_code(node)
        if not isinstance(error, MithrilError) or not place or place in str(error):
            return error
        return type(error)(f"{error} (in {place})")

    def _find_node(self, error: Exception) -> Node | None:
        """Return the node whose kernel was called, if one was."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno or 1 for frame in frames if frame.filename == self._file]
        called = re.search(r"= (\w+)\(", self._lines[lines[-1] - 1]) if lines else None
        return self._nodes.get(called[1]) if called else None
