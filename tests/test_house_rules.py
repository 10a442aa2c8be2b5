"""Rules of the house that no tool checks: docstrings, start-up imports, one version, dependencies."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mithril
import pytest
from mithril import errors
from mithril.ops.collective import collectives
from mithril.plugins.published import PUBLISHED, Package

from tests.plugin_packages import python
from tests.syntax import forget_nodes, list_nodes, list_nodes_of

__all__ = ["forget_nodes"]

ROOT = Path(__file__).parent.parent
PROJECTS = sorted(ROOT.glob("mithril-*/pyproject.toml"))
MODULES = sorted(path for project in PROJECTS for path in project.parent.glob("src/**/*.py"))


def metadata(project: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    return table


def test_there_are_modules_to_check() -> None:
    assert ROOT / "mithril-core/src/mithril/errors.py" in MODULES


def test_a_module_opens_with_what_it_promises() -> None:
    texts = {path: ast.get_docstring(list_nodes_of(path)[0]) for path in MODULES}
    assert not [str(path) for path, text in texts.items() if len(text or "") <= 20]


ENGINES = re.compile(r"(^|_)engine$")


def looks_up_by_name(call: ast.AST) -> bool:
    """Whether something is `getattr(engine, "…")` or its like, however the engine is reached."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args):
        return False
    name = {ast.Name: "id", ast.Attribute: "attr"}.get(type(call.args[0]), "")
    held = str(vars(call.args[0]).get(name, ""))
    return call.func.id in ("getattr", "hasattr", "setattr") and bool(ENGINES.search(held))


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ('hasattr(engine, "part")', True),
        ('getattr(self.backend.engine, "missing", {})', True),
        ("getattr(self._engine, name)", True),
        ('getattr(wide_engine, "x")', True),
        ("engine.part", False),
        ('getattr(engineer, "x")', False),
        ("getattr(xp, function)", False),
    ],
)
def test_a_look_up_by_name_is_recognised(code: str, is_found: bool) -> None:
    assert looks_up_by_name(ast.parse(code, mode="eval").body) is is_found


def test_what_engines_have_is_declared() -> None:
    """`mithril.engine.Engine` says all that is asked of an engine; nothing is looked for by name."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        for node in list_nodes_of(path)
        if looks_up_by_name(node)
    ]
    assert found == []


def raised_classes() -> list[tuple[str, ast.ClassDef]]:
    """Return every class of the sources whose name says it is an error, with its module."""
    return [
        (path.stem, node)
        for path in MODULES
        for node in list_nodes_of(path)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
    ]


def test_errors_are_one_public_documented_tree() -> None:
    found = raised_classes()
    assert ("errors", "MithrilError") in [(module, node.name) for module, node in found]
    for module, node in found:
        assert module == "errors", f"{node.name} is outside of mithril/errors.py"
        assert ast.get_docstring(node), f"{node.name} does not say what it is about"
        assert node.name in mithril.__all__
        assert issubclass(getattr(mithril, node.name), errors.MithrilError)


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.parent.name)
def test_all_packages_have_one_version(project: Path) -> None:
    assert metadata(project)["version"] == version("mithril-core") == mithril.__version__


def test_what_is_said_of_absent_backends_is_what_their_specs_say() -> None:
    projects = [path for path in PROJECTS if "mithril.backends" in metadata(path)["entry-points"]]
    described = {}
    for project in projects:
        table = metadata(project)
        for name, module in table["entry-points"]["mithril.backends"].items():
            (spec,) = import_module(module).mithril_backends()
            can = spec.launch is not None, spec.planning is not None
            described[name] = Package(name, table["name"], spec.methods, *can)
    assert described.pop("numpy").name == "mithril-core"
    assert described == PUBLISHED


def test_the_changelog_begins_with_this_version_and_what_is_unreleased_is_short() -> None:
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert versions[0].startswith(f"[{mithril.__version__}] - ")
    lines = {text.partition("\n")[0]: len(text.splitlines()) for text in versions}
    assert not [name for name, count in lines.items() if "Unreleased" in name and count > 200]


def test_relative_links_of_the_changelog_exist() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    links = {link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link}
    assert "docs/training.md" in links
    assert not [link for link in links if not (ROOT / link).is_file()]


def test_core_depends_on_what_was_decided() -> None:
    core = metadata(ROOT / "mithril-core/pyproject.toml")["dependencies"]
    decision = (ROOT / "docs/decisions/0001-core-dependencies.md").read_text(encoding="utf-8")
    decided = re.findall(r"^\| (\w+) ≥ ([\d.]+) \|", decision, flags=re.MULTILINE)
    assert isinstance(core, list)
    assert sorted(core) == sorted(f"{name}>={least}" for name, least in decided)


def test_every_package_carries_the_license() -> None:
    license_text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    for project in PROJECTS:
        assert (project.parent / "LICENSE").read_text(encoding="utf-8") == license_text


def test_importing_mithril_imports_nothing_heavy(tmp_path: Path) -> None:
    frameworks = ("jax", "mlx", "torch")
    for framework in frameworks:  # importable, so an import would be seen
        (tmp_path / f"{framework}.py").touch()
    code = "import sys, mithril; print(*(name.partition('.')[0] for name in sys.modules))"
    loaded = set(python(code, tmp_path).split())
    assert not loaded & {*frameworks, "numpy", "pluggy", "rich", "safetensors", "typer"}
    assert "mithril" in loaded


@pytest.mark.slow
def test_every_docstring_example_is_collected_by_pytest() -> None:
    """An example that nobody runs is a promise nobody keeps."""
    sources = Path(mithril.__file__).parent
    root = Path(__file__).parent.parent
    written = {
        str(path.relative_to(root))
        for path in sources.rglob("*.py")
        if ">>> " in path.read_text("utf-8")
    }
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(sources)]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    collected = {line.split("::")[0] for line in listed.splitlines() if "::" in line}
    assert written == collected


REPLACED = {
    "mithril-core/src/mithril": {
        "Arrivals", "Assembly", "Class", "Cutter", "Intake", "Parted", "Piece", "Recent", "Seat",
        "Seats", "Shards", "SumRows", "TakeRows", "Wishes", "arrivals", "brought", "caller",
        "classify", "clock", "intake", "moved", "seed_of", "sum_rows", "take_rows", "told_time",
        "user_line", "wishes_of",
    },
    "mithril-jax/src/mithril_jax": {
        "arranged", "configured", "constrained", "held_array", "moving",
        "released", "repeated", "traced",
    },
    "mithril-mlx/src/mithril_mlx": {
        "Elsewhere", "Lazy", "Recorded", "Staged", "Wire", "carry", "exchange", "exchanges", "filled",
        "lane", "meet", "reduced", "scattered", "shifted", "staged", "ways", "widened", "wire",
    },
    "mithril-torch/src/mithril_torch": {
        "Acts", "Blame", "Call", "Collected", "Coming", "Crew", "Differentiated", "Exchange", "Found",
        "Growth", "Here", "HereExecutable", "InTurn", "Joined", "Link", "Outbox", "Place", "Places",
        "Remote", "Seen", "Started", "Style", "WRITTEN", "Workers", "Writer", "Written", "acts",
        "as_written", "carried_out", "caused", "collect", "crew", "delayed", "described",
        "exchange", "fused", "grown", "growing", "handle_of", "handles", "here", "indented",
        "issued", "late", "link", "moving_plan", "on_rows", "opened", "ordinary", "outbox",
        "parsed", "place", "places", "pooled_max", "pooled_mean", "prelude", "recorded", "recording",
        "remade", "rows", "source", "style", "style_of", "table_of", "tell", "tensors_of", "told",
        "uncompiled", "waited", "wire", "writer", "written", "written_into",
    },
}  # fmt: skip
"""Words that others have replaced, by package: no module, class or function bears them again."""


def defined_names(root: Path) -> list[tuple[str, str]]:
    """Return every module, class, function and alias that a package defines, with its file."""
    found = []
    for path in sorted(root.rglob("*.py")):
        where = str(path.relative_to(root))
        found.append((where, path.stem))
        module, *_ = nodes = list_nodes_of(path)
        assert isinstance(module, ast.Module)
        found += [
            (where, n.id)
            for s in module.body
            if isinstance(s, ast.Assign)
            for n in s.targets
            if isinstance(n, ast.Name)
        ]
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        found += [(where, node.name) for node in nodes if isinstance(node, kinds)]
    return found


@pytest.mark.parametrize("package", REPLACED)
def test_replaced_words_do_not_come_back(package: str) -> None:
    names = defined_names(ROOT / package)
    assert len(names) > 100
    assert [(where, name) for where, name in names if name in REPLACED[package]] == []


PARTICIPLES = {
    "bound", "broken", "brought", "built", "caught", "chosen", "done", "drawn", "found", "given",
    "gone", "grown", "held", "hidden", "kept", "known", "laid", "left", "lost", "made", "meant",
    "met", "seen", "sent", "shown", "spent", "stuck", "swept", "taken", "thrown", "told",
    "unbound", "understood", "won", "worn", "written",
}  # fmt: skip
"""Those that do not end in `ed` and are no present tense; `cut, put, read, run, split` are both."""

VERBS_IN_ED = {"embed", "exceed", "feed", "need", "proceed", "seed", "speed"}

NAMED_BY_PARTICIPLES = {
    "checked_keywords": "a decorator, read as an adjective",
    "checked_options": "a decorator, read as an adjective",
    "grouped_matmul": "the name of an op",
    "grouped_outer": "the name of an op",
    "left_shift": "the name of an op, and a direction",
    "masked": "optax's name",
    "replicated": "a constructor beside `Sharding.of`: it says what is made",
}
"""Functions that may be named so, and why."""


def named_by_participles(text: str) -> set[str]:
    """Return the functions of a module whose name begins with a past participle; no properties."""
    functions = [
        node
        for node in list_nodes(text)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    firsts = {node.name: node.name.strip("_").split("_")[0] for node in functions}
    return {
        name
        for name, first in firsts.items()
        if first in PARTICIPLES or (first.endswith("ed") and first not in VERBS_IN_ED)
    }


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("def padded(x): ...", True),
        ("class A:\n    def _sent_rows(self): ...", True),
        ("def f():\n    async def held(): ...", True),
        ("class A:\n    @cached_property\n    def taken(self): ...", False),
        ("def add_padding(x): ...", False),
        ("def seed_all(x): ...", False),
        ("def find_constrained(x): ...", False),
    ],
)
def test_a_participle_is_recognised(code: str, is_found: bool) -> None:
    assert bool(named_by_participles(code)) is is_found


def test_functions_are_verbs_in_the_present_tense() -> None:
    found = {
        name: str(path.relative_to(ROOT))
        for path in MODULES
        for name in named_by_participles(path.read_text(encoding="utf-8"))
    }
    assert set(found) == set(NAMED_BY_PARTICIPLES), found


KNOW_LOOPS = {
    "mithril-core/src/mithril/transform/checkpoint.py": "inlines checkpoints, and their gradient",
    "mithril-core/src/mithril/transform/repeat.py": "the gradient of loops",
    "mithril-core/src/mithril/transform/stack.py": "cuts loops into loops",
    "mithril-core/src/mithril/partition/offload/loops.py": "what loops hand on, slice by slice",
    "mithril-core/src/mithril/partition/pipeline/hoist_reductions.py": "takes sums out of loops",
    "mithril-core/src/mithril/partition/recompute/levels.py": "loops of forward and backward at once",
    "mithril-core/src/mithril/engine/lockstep.py": "a lowering",
    "mithril-core/src/mithril/testing/evaluate.py": "runs graphs on NumPy",
    "mithril-jax/src/mithril_jax/loop_weights.py": "takes transpositions out of loops",
    "mithril-jax/src/mithril_jax/lower.py": "a lowering",
    "mithril-torch/src/mithril_torch/program/emit.py": "a lowering",
}
"""Modules that may ask whether an op is a loop; all others go into bodies by `mithril.ir.rewrite`."""

NESTED = {"Repeat": "repeat", "Checkpoint": "checkpoint"}


def asks_for_loops(text: str) -> list[int]:
    """Return the lines of a module that ask whether an op is a loop or a checkpoint."""
    nodes = list_nodes(text)
    aliases = {
        alias.asname
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mithril.ir")
        for alias in node.names
        if alias.name in NESTED and alias.asname
    }

    def is_class(*parts: ast.AST | None) -> bool:
        inner = [node for part in parts if part is not None for node in ast.walk(part)]
        found = {node.id for node in inner if isinstance(node, ast.Name)}
        found |= {node.attr for node in inner if isinstance(node, ast.Attribute)}
        return not found.isdisjoint({*NESTED, *aliases})

    def is_name(*parts: ast.AST) -> bool:
        inner = [node for part in parts for node in ast.walk(part)]
        texts = {node.value for node in inner if isinstance(node, ast.Constant)}
        is_of_op = any(isinstance(node, ast.Attribute) and node.attr == "name" for node in inner)
        return is_of_op and not texts.isdisjoint(NESTED.values())

    def asks(node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
                return is_class(kinds)
            case ast.Compare(left=left, comparators=others):
                return is_class(left, *others) or is_name(left, *others)
            case ast.MatchClass(cls=kind):
                return is_class(kind)
            case ast.Dict(keys=keys):
                return is_class(*keys)
        return False

    return [node.lineno for node in nodes if asks(node) and hasattr(node, "lineno")]


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(node.op, Repeat)",
        "isinstance(node.op, Constant | ir.Repeat)",
        "isinstance(node.op, (AxisIndex, Checkpoint))",
        "from mithril.ir import Repeat as Loop\nisinstance(op, Loop)",
        "type(op) is Repeat",
        "type(op) in (Constant, Repeat)",
        "node.op.name == 'repeat'",
        "op.name in ('repeat', 'constant')",
        "match op:\n    case Repeat(count=1):\n        pass",
        "METHODS = {(Reshape,): reshape, (Repeat,): loop}",
    ],
)
def test_asking_for_loops_is_found(text: str) -> None:
    assert len(asks_for_loops(text)) == 1


def test_making_a_loop_is_not_asking_for_one() -> None:
    assert (
        asks_for_loops("op = Repeat(body, 3, 1, 0)\nkind == 'repeat'\ndef f(op: Repeat): ...") == []
    )


def test_only_modules_about_loops_ask_for_them() -> None:
    """A pass reaches what is in a loop by `rewrite`, `walk` or `Op.bodies`, and names no op."""
    asking = {
        str(path.relative_to(ROOT)): lines
        for path in MODULES
        if (lines := asks_for_loops(path.read_text(encoding="utf-8")))
    }
    assert set(asking) == set(KNOW_LOOPS), asking


NAMES_OF_COLLECTIVES = {
    "mithril-core/src/mithril/ops/collective.py": "their classes",
    "mithril-torch/src/mithril_torch/program/runtime_library/collectives.py": "the functions exported",
    "mithril-torch/src/mithril_torch/program/runtime_library/gathers.py": "the function exported",
    "mithril-torch/src/mithril_torch/program/runtime_library/host_collectives.py": "what observers are "
    "told",
}
"""Where the kinds of collectives are spelled out, and what for."""


def string_constants(path: Path) -> list[str]:
    """Return the string constants of a module that are not docstrings or the like."""
    nodes = list_nodes_of(path)
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    found = [node for node in nodes if isinstance(node, ast.Constant)]
    return [node.value for node in found if isinstance(node.value, str) and id(node) not in said]


def test_a_kind_of_collective_is_named_by_its_class() -> None:
    """A literal elsewhere would be one more place to know when a collective is added."""
    kinds = "|".join(collectives())
    spelled = re.compile(rf"(?<![.\w-])({kinds})(?!\w)")  # `.permute(` is an array's method
    found = {
        str(path.relative_to(ROOT))
        for path in MODULES
        if any(map(spelled.search, string_constants(path)))
    }
    assert found == set(NAMES_OF_COLLECTIVES)
