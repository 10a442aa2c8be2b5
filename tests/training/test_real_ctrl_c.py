"""Ctrl-C as a terminal sends it, from outside of a process: see `sigint_scripts`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("loop", "0"),
        ("coroutine", "['cancelled']"),
        ("own_handler", "(True, True)"),
        ("thread", "True"),
        ("twice", "(True, (8, 8))"),
    ],
)
def test_real_interrupts(script: str, expected: str) -> None:
    command = [sys.executable, "-m", "tests.training.sigint_scripts", script]
    dice = random.Random(0)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        while process.stdout.read(1) == b"?":
            time.sleep(dice.uniform(0, 0.02))
            process.send_signal(signal.SIGINT)
        assert process.stdout.read().decode().strip() == expected
    assert process.returncode == 0
