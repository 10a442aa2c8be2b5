"""A matrix of benchmarks on work that nobody has tuned for.

Rows are models × sizes drawn from a seed × parallelisms × backends (`cases`), with Mithril's models
(`models`) and those by hand (`by_hand_*`) as the sides of one contest (`contest`, `sides_*`), each in a
process of its own (`row`), and a table (`__main__`).
"""
