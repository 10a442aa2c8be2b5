"""Tools of the repository as modules, for their tests."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def load_tool(name: str) -> ModuleType:
    """Return the module of a file of `tools`."""
    spec = util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    tool = util.module_from_spec(spec)
    sys.modules[name] = tool  # dataclasses look for their module
    spec.loader.exec_module(tool)
    return tool
