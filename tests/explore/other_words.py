"""Changes of a scenario, as a run's directory has it, that change nothing: other words for the same, and what nobody
uses."""

from collections.abc import Callable
from typing import Any

Table = dict[str, Any]
#: Blocks of which no scenario that is tried here can need all.
AMPLE = 20_000


def pools_renamed(table: Table) -> None:
    """By names in the other order, unless an autoscaler knows them."""
    if "pools" in table and "autoscaler" not in table:
        last = len(table["pools"]) - 1
        table["pools"] = {f"pool{last - place}": pool for place, pool in enumerate(table["pools"].values())}


def pools_that_say_all(table: Table) -> None:
    """What the scenario says of all pools, each says itself."""
    common = table["serve"] if "pools" in table else {}
    for pool in table.get("pools", {}).values():
        own = pool.get("serve", {})
        transfer = {**common.get("kv_transfer_config", {}), **own.get("kv_transfer_config", {})}
        pool["serve"] = {**common, **own} | ({"kv_transfer_config": transfer} if transfer else {})
        for key in ("engine", "host"):
            pool.setdefault(key, table[key])


def one_pool(table: Table) -> None:
    table.setdefault("pools", {"all": {"role": "both"}})


def a_pool_for_each_replica(table: Table) -> None:
    """Engines that offload share what they share with their pool."""
    offloads = "kv_offloading_size" in table["serve"] or "kv_transfer_config" in table["serve"]
    if "pools" in table and not offloads and "autoscaler" not in table:
        table["pools"] = {f"{name}-{number}": {**pool, "replicas": 1} for name, pool in table["pools"].items()
                          for number in range(pool.get("replicas", 1))}


def tenants_renamed(table: Table) -> None:
    """By names in the other order, also where they have weights, of which another tenant has one, too."""
    synthetic, control = table["workload"].get("synthetic", {"tenants": {}}), table.get("flow_control")
    names = {name: f"tenant{len(synthetic['tenants']) - place}" for place, name in enumerate(synthetic["tenants"])}
    synthetic["tenants"] = {names[name]: weight for name, weight in synthetic["tenants"].items()}
    if isinstance(control, dict) and "weights" in control:
        control["weights"] = {names.get(name, name): weight for name, weight in control["weights"].items()} | {
            "nobody": 7.0}


def weights_doubled(table: Table) -> None:
    """Chances and shares that count beside each other alone."""
    synthetic, router = table["workload"].get("synthetic", {}), table.get("router")
    for here, key in ((synthetic, "tenants"), (synthetic.get("images", {}), "bucket_config"), (router, "scorers")):
        if isinstance(here, dict) and isinstance(here.get(key), dict):
            here[key] = {name: 2 * weight for name, weight in here[key].items()}
    acceptance = table["serve"].get("speculative_config", {}).get("acceptance")
    if isinstance(acceptance, dict) and "counts" in acceptance:
        acceptance["counts"] = [2 * count for count in acceptance["counts"]]


def priorities_raised(table: Table) -> None:
    """But where a policy multiplies by them."""
    multiplied = "earliest_deadline_first" in str(table["serve"].get("scheduling_policy"))
    if (synthetic := table["workload"].get("synthetic")) and not multiplied:
        synthetic["priorities"] = [priority + 10 for priority in synthetic["priorities"]]


def an_adapter_nobody_asks_for(table: Table) -> None:
    """First, so that those after it have driven it out of their slots."""
    if table["serve"]["lora_modules"]:
        table["serve"]["lora_modules"].insert(0, {"name": "nobody", "rank": 8})


def limits_nobody_reaches(table: Table) -> None:
    serve, workload = table["serve"], table["workload"]
    workload.setdefault("max_concurrency", 100_000)
    if serve.get("num_gpu_blocks_override", 0) >= AMPLE:
        serve["num_gpu_blocks_override"] *= 2


def a_gateway_that_lets_all_pass(table: Table) -> None:
    if "flow_control" not in table:
        table["flow_control"] = "none"


def patience_nobody_needs(table: Table) -> None:
    """Without a flow control, and with this router, nobody is refused with status 429; without grace, none is cut off.
    """
    cut = "termination_grace_period" in table.get("lifecycle", {})
    if "flow_control" not in table and table.get("router") == "round_robin" and not cut:
        table["workload"].setdefault("retries", {"max_retries": 3})


def signals_nobody_reads(table: Table) -> None:
    if table.get("flow_control", "none") == "none" and table.get("router") == "round_robin" and (
            "pair_router" not in table):
        table["signals"] = {"scrape_interval": "3 ms", "delay": "1 ms", "loss": 0.5}


def another_bill(table: Table) -> None:
    """Prices and targets are of what has happened, but where a flow control goes by the target."""
    table["energy"] = {**table["energy"], "pue": 1.7, "host_watts": 70.0, "price_per_kwh": 0.3}
    if "predicted_ttft" not in str(table.get("flow_control")):
        table["slo"] = {"ttft": "3 ms", "tpot": "1 ms"}


def lists_in_another_order(table: Table) -> None:
    """Of the algorithms of collectives, the fastest is taken; a batch takes the smallest graph that it fits into."""
    table["collectives"] = table["collectives"][::-1]
    sizes = table["serve"].get("cudagraph_capture_sizes", [])
    table["serve"]["cudagraph_capture_sizes"] = [*sizes[::-1], *sizes]


def keys_in_another_order(table: Table) -> None:
    for here in (table, table["serve"], table["workload"], table["workload"].get("synthetic", {}),
                 *table.get("pools", {}).values()):
        for key in [*here][::-1]:
            here[key] = here.pop(key)


#: Each changes the table that it is given; where what it changes is missing, it does nothing.
OTHER_WORDS: tuple[Callable[[Table], None], ...] = (
    pools_renamed, pools_that_say_all, a_pool_for_each_replica, one_pool, tenants_renamed, weights_doubled,
    priorities_raised, an_adapter_nobody_asks_for, limits_nobody_reaches, patience_nobody_needs, signals_nobody_reads,
    a_gateway_that_lets_all_pass, another_bill, lists_in_another_order, keys_in_another_order)
