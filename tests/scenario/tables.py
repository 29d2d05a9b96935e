"""Tables of scenarios that tests start from."""

#: Ten tokens for each prompt of a hundred, all at once.
BURST = {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 100},
         "output": {"kind": "fixed", "value": 10}}
#: A dense model that fits one GPU.
TABLE = {"model": "llama-3.1-8b", "gpu": "h200", "workload": {"synthetic": BURST}}
