"""A fleet whose load rises and falls, for comparisons of autoscalers."""

#: Two sizes at the start and at the end, and three in the middle.
SCHEDULE = {"name": "perfect", "sizes": {"a": [[0.0, 2], [6.0, 3], [20.0, 2]]}, "interval": "1 s"}


def table(**more):
    phases = [{"rate": 2, "for": "8 s"}, {"rate": 40, "for": "8 s"}, {"rate": 2, "for": "8 s"}]
    return {"model": "llama-3.1-8b", "gpu": "h100", "router": "least_outstanding", "serve": {"max_model_len": 4096},
            "startup": {"name": "default", "mode": "sleep_1"}, "slo": {"ttft": "0.25 s", "tpot": "20 ms"},
            "pools": {"a": {"role": "both", "replicas": 2, "max_replicas": 3}}, "autoscaler": SCHEDULE,
            "energy": {"price_per_gpu_hour": 3.0},
            "workload": {"synthetic": {"count": 500, "arrivals": phases, "prompt": {"kind": "fixed", "value": 1500},
                                       "output": {"kind": "fixed", "value": 8}}}, **more}
