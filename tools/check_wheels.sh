#!/usr/bin/env bash
# Builds each package's wheel, installs all of them into a fresh venv and uses them from elsewhere,
# where the source tree cannot be seen. Usage: tools/check_wheels.sh PYTHON (one that has `build`).
set -euo pipefail
python=${1:?usage: tools/check_wheels.sh PYTHON}
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset PYTHONPATH

for project in "$root"/mithril-*/pyproject.toml; do
    "$python" -m build --wheel --outdir "$scratch/wheels" "$(dirname "$project")" >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2; exit 1; }
done
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --disable-pip-version-check --quiet \
    -c "$root/constraints.txt" "$scratch"/wheels/*.whl

mkdir "$scratch/elsewhere"
cd "$scratch/elsewhere"
"$scratch/venv/bin/mithril" --version
"$scratch/venv/bin/mithril" backends list --strict
"$scratch/venv/bin/mithril" demo --steps 5
"$scratch/venv/bin/mithril" demo --backend jax --mesh data=4,tensor=2 --steps 5
"$scratch/venv/bin/mithril" demo --backend torch --mesh data=2,tensor=2 --steps 5
"$scratch/venv/bin/mithril" demo --backend mlx --mesh data=2,tensor=2 --steps 5
for backend in numpy jax torch mlx; do
    "$scratch/venv/bin/mithril" backends check "$backend" --level smoke | tail -n 1
done
echo "wheels: $(cd "$scratch/wheels" && echo *.whl) built, installed and used"
