"""One worker process a device: runs source text on all of them, and leaves none behind.

`controller` is what a backend uses, `remote` the handles it gets. The processes run `worker` and
`executor` (and `recorder`, which lists collectives); these import neither the core nor the rest. In
between: `wire` (messages), `memory` (arrays that both sides see), `outbox` (what waits for the next
message), `crew` (the processes), `exchange` (a message to each, an answer from each), `faults` (who
failed, in words), `link` (exchanges with their errors).
"""
