"""Records the collectives that a program issues, by a dispatch mode of PyTorch.

What processes of one host carry out without an op of PyTorch they tell the recorder themselves.

It records the in-place ones of `torch.distributed` and the functional ones. PyTorch does not
compile under such a mode, so meanwhile a program of `torch.compile` runs eagerly.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from mithril_torch.program.runtime_library.groups import GROUPS, Group
from mithril_torch.program.runtime_library.point_to_point import SENDS

GATHERED = "all_gather_by_messages"
NAMESPACES = ("c10d", "_c10d_functional")
NOT_COLLECTIVE = ("wait_tensor", "check_for_nan", "_wrap_tensor_autograd")


@contextmanager
def record_collectives(step: memoryview) -> Iterator[list[dict[str, Any]]]:
    """Return a context that fills a list with one row for each collective; see `Recorder`."""
    with _force_eager(), Recorder(step) as recorder:
        yield recorder.rows


def _force_eager() -> AbstractContextManager[Any]:
    """Return the context in which nothing is compiled; what is not loaded compiles nothing."""
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()


class Recorder(TorchDispatchMode):
    """Keeps one row for each collective.

    A row has `op`, `group` (PyTorch's name), its `ranks` and mesh `axes`, `bytes` that this rank
    puts in (or gets, if split sizes say that this is more), `dtype`, `shape` (of the first tensor
    that is put in), `partners` (how many of the ranks its split sizes give something, the most of
    sent and received; all where there are none), `peer` (of a message, the rank it goes to or comes
    from), its `tag`, and `step` of the program. The messages of one gather over mesh axes are one
    row, whose `partners` are those that each went to and came from.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from loading its compiler, for seconds, to leave this class out of it.

        `record_collectives` compiles nothing meanwhile.
        """
        return False

    def __init__(self, step: memoryview) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._gather: tuple[str, int] | None = None
        self._ways: Counter[tuple[str, int]] = Counter()
        self._step = step

    def __enter__(self) -> Recorder:
        """Watch; processes of one host exchange data without an op of PyTorch."""
        for group in GROUPS.values():
            if group is not None:
                group.observe = self.note
        entered: Recorder = super().__enter__()
        return entered

    def __exit__(self, *error: object) -> None:
        """Watch no longer."""
        for group in GROUPS.values():
            if group is not None:
                group.observe = None
        super().__exit__(*error)

    def note(self, group: Group, kind: str, tensors: list[torch.Tensor]) -> None:
        """Note a collective that processes of one host carry out."""
        size = sum(x.nbytes for x in tensors)
        self.rows.append(self._make_row(kind, group.name, size, tensors, group.size))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Note a collective, then run the op as it is."""
        kwargs = kwargs or {}
        space, _, name = func._schema.name.partition("::")
        if space in NAMESPACES and name not in NOT_COLLECTIVE:
            self._add(self._row(name, func._schema, args, kwargs))
        call: Callable[..., Any] = func
        return call(*args, **kwargs)

    def _add(self, row: dict[str, Any]) -> None:
        """Keep a row, or count a message to what it is a part of."""
        if row["tag"] is None or row["axes"] == [SENDS]:
            self.rows.append(row)
            return
        gather = row["group"], row["tag"]
        if gather != self._gather:
            self._gather, self._ways = gather, Counter()
            self.rows.append({**row, "op": GATHERED, "peer": None, "tag": None})
        # What went to, or came from, each of the others is one part.
        self._ways[row["op"], row["peer"]] += row["bytes"]
        self.rows[-1]["bytes"] = max(self._ways.values())
        self.rows[-1]["partners"] = len(self._ways) // 2

    def _row(
        self, name: str, schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        group = _group_name(given)
        sent = list(_tensors(_input(given)))
        size = sum(t.numel() * t.element_size() for t in sent)
        splits = [sizes for key, sizes in given.items() if key.endswith("split_sizes") and sizes]
        given_to = [sum(map(bool, sizes)) for sizes in splits]
        partners = max(given_to, default=len(_ranks(group)))
        row = self._make_row(
            name, group, max(size, _count_received_bytes(given, sent)), sent, partners
        )
        return {**row, "peer": given.get("dst", given.get("src")), "tag": given.get("tag")}

    def _make_row(
        self, op: str, group: str, size: int, sent: list[torch.Tensor], partners: int
    ) -> dict[str, Any]:
        """Return the row of what is no message; see the class."""
        return {
            "op": op,
            "group": group,
            "ranks": _ranks(group),
            "axes": _axes(group),
            "bytes": size,
            "dtype": str(sent[0].dtype).removeprefix("torch.") if sent else "",
            "shape": list(sent[0].shape) if sent else [],
            "partners": partners,
            "peer": None,
            "tag": None,
            "step": self._step[0],
        }


def _count_received_bytes(given: dict[str, Any], sent: list[torch.Tensor]) -> int:
    """Return the bytes that come here, where split sizes say so: rows of what is sent."""
    rows = sum(given.get("output_split_sizes") or ())
    return rows * math.prod(sent[0].shape[1:]) * sent[0].element_size() if rows else 0


def _group_name(given: dict[str, Any]) -> str:
    if "process_group" in given:
        return str(dist.ProcessGroup.unbox(given["process_group"]).group_name)
    return str(given.get("group_name", ""))


def _ranks(name: str) -> list[int]:
    found = _group(name)
    return dist.get_process_group_ranks(found) if found is not None else []


def _axes(name: str) -> list[str]:
    """Return the mesh axes that `make_group` made the group for."""
    found = _group(name)
    return found.group_desc.split(",") if found is not None else []


def _group(name: str) -> Any:
    world = dist.distributed_c10d._world
    return next((group for group in world.pg_map if group.group_name == name), None)


def _input(given: dict[str, Any]) -> Any:
    """Return what goes into a collective: its input where it has one, else what it works on."""
    inputs = [
        value for key, value in given.items() if key.startswith("input") and "split" not in key
    ]
    return inputs[0] if inputs else given.get("tensors", given.get("tensor", ()))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
