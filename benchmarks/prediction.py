"""What plans predict against what happens: memory, and time.

    python -m benchmarks.prediction memory --backend torch

Each part has its own arguments; `--help` after its name shows them.
"""

from __future__ import annotations

import importlib
import sys

PARTS = ("memory", "time")


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        print(f"{__doc__}\nparts: {', '.join(PARTS)}")
        return 2
    part = importlib.import_module(f"benchmarks.prediction_{sys.argv[1]}")
    result: int = part.main(sys.argv[2:])
    return result


if __name__ == "__main__":
    sys.exit(main())
