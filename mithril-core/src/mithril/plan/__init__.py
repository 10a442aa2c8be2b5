"""Plans: the programs of every stage, when they run, and what is sent between them, as data.

Everything here is plain data and knows no devices and no framework.
"""

from mithril.plan.execution import Execution
from mithril.plan.issued import Issued
from mithril.plan.plan import Analyst, Plan, Pricing, TensorReport, Whole
from mithril.plan.program import Collective, Port, Program, Stage
from mithril.plan.schedule import Action, Schedule, Work
from mithril.plan.timetable import Run, Send, Timetable, Transfer

__all__ = [
    "Analyst",
    "Action",
    "Collective",
    "Issued",
    "Plan",
    "Port",
    "Execution",
    "Pricing",
    "Program",
    "Run",
    "Schedule",
    "Send",
    "Stage",
    "TensorReport",
    "Timetable",
    "Transfer",
    "Whole",
    "Work",
]
