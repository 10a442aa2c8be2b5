"""One worker process a device: runs source text on all of them, and leaves none behind.

`controller` is what a backend uses, `remote_array` the handles it gets. The processes run `worker`
and `message_handler` (and `recorder`, which lists collectives); these import neither the core nor
the rest. In between: `messages`, `memory` (arrays that both sides see), `batching` (what waits for
the next message), `processes`, `round_trip` (a message to each, an answer from each), `faults` (who
failed, in words), `connection` (round trips with their errors).
"""
