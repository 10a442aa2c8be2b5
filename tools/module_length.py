"""Reports long modules: above 400 lines a file is named, above 500 the check fails."""

import sys
from pathlib import Path

AIM = 400
LIMIT = 500
ROOT = Path(__file__).parent.parent
FOLDERS = ("mithril-*/src", "tests", "tools", "benchmarks", "examples")


def main() -> int:
    files = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py")]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    long = sorted((length, path) for path, length in lengths.items() if length > AIM)
    for length, path in long:
        verdict = f"over the limit of {LIMIT}" if length > LIMIT else f"aim for {AIM}"
        print(f"{path.relative_to(ROOT)}: {length} lines; {verdict}; split it by concept")
    print(f"module length: {len(files)} files, {len(long)} over {AIM} lines")
    return int(any(length > LIMIT for length, _ in long))


if __name__ == "__main__":
    sys.exit(main())
