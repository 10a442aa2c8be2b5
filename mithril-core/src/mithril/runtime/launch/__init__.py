"""Runs the processes of one job on this machine, and leaves none of them behind, however it ends.

`supervise` is the whole of it; which commands make a job, the backend says (`BackendSpec.launch`).
"""

from mithril.runtime.launch.supervisor import Outcome, supervise

__all__ = ["Outcome", "supervise"]
