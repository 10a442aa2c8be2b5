"""Schedules of pipelines."""


def last_first(devices: int, microbatches: int, chunks: int) -> list[str]:
    """Return GPipe's table with backwards in the other order: what was made last is freed first."""
    if chunks > 1:
        raise ValueError("it has one stage a device")
    orders = (range(microbatches), reversed(range(microbatches)))
    forwards, backwards = (list(order) for order in orders)
    return [
        ",".join([*(f"{d}F{m}" for m in forwards), *(f"{d}B{m}" for m in backwards)])
        for d in range(devices)
    ]
