"""How long `import mithril` and `mithril backends list` take, against their budgets.

Each is timed as a whole process, the median of several runs after one that warms the file cache;
for the import, the start of the bare interpreter is taken off. Exit code 1 says a budget is broken.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 9
IMPORT_BUDGET = 0.25
LIST_BUDGET = 0.6


def seconds(*command: str) -> float:
    times = []
    for _ in range(RUNS + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def main() -> int:
    bare = seconds(sys.executable, "-c", "pass")
    imported = seconds(sys.executable, "-c", "import mithril") - bare
    listed = seconds(str(Path(sys.executable).parent / "mithril"), "backends", "list")
    rows = [("import mithril", imported, IMPORT_BUDGET), ("backends list", listed, LIST_BUDGET)]
    for what, took, budget in rows:
        verdict = "ok" if took < budget else "TOO SLOW"
        print(f"{what:<16} {took:.3f} s of {budget} s  {verdict}")
    return int(any(took >= budget for _, took, budget in rows))


if __name__ == "__main__":
    sys.exit(main())
