"""How long `import mithril` and `mithril backends list` take, against their budgets.

The list is timed as it is, and beside 20 more installed plugins. Each is timed as a whole process,
the median of several runs after one that warms the file cache; for the import, the start of the bare
interpreter is taken off. Exit code 1 says a budget is broken.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 9
IMPORT_BUDGET = 0.25
LIST_BUDGET = 0.6
PLUGINS = 20


def seconds(*command: str, path: str = "") -> float:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([path, os.environ.get("PYTHONPATH", "")]))
    times = []
    for _ in range(RUNS + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env if path else None)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def write_plugins(folder: Path) -> None:
    """Write distributions of a backend each, as pip would leave them."""
    for number in range(PLUGINS):
        source = (
            "from mithril.spi import BackendSpec, hookimpl\n@hookimpl\ndef mithril_backends():\n"
            f"    return [BackendSpec('chip{number}', open=print, api=(2, 0))]\n"
        )
        (folder / f"acme_{number}.py").write_text(source, encoding="utf-8")
        metadata = folder / f"acme_{number}-1.0.dist-info"
        metadata.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: acme-{number}", "Version: 1.0"]
        lines += ["Requires-Dist: mithril-core<1,>=0.1", "Requires-Dist: numpy<3,>=2"]
        (metadata / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text(
            f"[mithril.backends]\nchip{number} = acme_{number}\n", encoding="utf-8"
        )


def main() -> int:
    bare = seconds(sys.executable, "-c", "pass")
    imported = seconds(sys.executable, "-c", "import mithril") - bare
    command = str(Path(sys.executable).parent / "mithril"), "backends", "list"
    with tempfile.TemporaryDirectory() as folder:
        write_plugins(Path(folder))
        beside = seconds(*command, path=folder)
    rows = [
        ("import mithril", imported, IMPORT_BUDGET),
        ("backends list", seconds(*command), LIST_BUDGET),
        (f"… beside {PLUGINS} plugins", beside, LIST_BUDGET),
    ]
    for what, took, budget in rows:
        verdict = "ok" if took < budget else "TOO SLOW"
        print(f"{what:<19} {took:.3f} s of {budget} s  {verdict}")
    return int(any(took >= budget for _, took, budget in rows))


if __name__ == "__main__":
    sys.exit(main())
