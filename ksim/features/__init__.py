"""Features: what a deployment may have beside a plain engine.

Each module is one feature with all its pieces, or part of one: its settings and checks, memory, passes, scheduler
rules, engines, connectors, remarks.  `FEATURE` is what deployments and assembly ask.

The contract has two halves: `ksim.scenario.features` for a deployment, `ksim.simulation.features` for engines and
fleets.  A module is imported where its condition in `ksim.scenario.features.WANTED` holds, and nowhere else.
"""
