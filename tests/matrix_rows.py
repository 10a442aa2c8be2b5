"""Rows of the matrix of benchmarks that are small enough for tests."""

from __future__ import annotations

from benchmarks.matrix.cases import ONE, STEP, Row

TRANSFORMER = {
    "layers": 2, "width": 16, "heads": 4, "hidden": 24, "vocabulary": 11, "context": 8, "batch": 4,
}  # fmt: skip
SIZES = {
    "mlp": {"features": 6, "width": 8, "depth": 3, "classes": 5, "batch": 4},
    "gpt": TRANSFORMER,
    "llama": {**TRANSFORMER, "key_heads": 2},
    "long-sequence": {**TRANSFORMER, "context": 32},
    "vit": {
        "layers": 1, "width": 16, "heads": 2, "hidden": 24, "size": 8, "patch": 4, "classes": 5,
        "batch": 4,
    },
    "resnet": {"width": 4, "stages": 2, "blocks": 1, "size": 8, "classes": 5, "batch": 8},
    "unet": {"width": 8, "levels": 2, "size": 8, "batch": 2},
    "lstm": {"width": 8, "layers": 2, "context": 6, "vocabulary": 11, "batch": 4},
    "moe": {"experts": 4, "width": 8, "hidden": 12, "top_k": 2, "batch": 2, "context": 8},
}  # fmt: skip
SIZES["resnet-channels-last"] = SIZES["resnet"]


def tiny(model: str, backend: str, parallelism: str = ONE, kind: str = STEP) -> Row:
    """Return a small row."""
    return Row(model, backend, parallelism, kind, 0, SIZES[model])
