"""A scenario for tests: Llama 3.1 8B on an H200, and a burst of equal requests."""

BURST = {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 100},
         "output": {"kind": "fixed", "value": 10}}
TABLE = {"model": "llama-3.1-8b", "gpu": "h200", "workload": {"synthetic": BURST}}
