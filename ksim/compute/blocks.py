"""Parts that many architectures share: attention, gated MLPs, mixtures of experts, and the two ends."""

from ksim.compute.einsum import Attend, Communicate, Gather, Map, Operation, op
from ksim.compute.model import Config

Operations = tuple[Operation, ...]


def sizes(config: Config) -> dict[str, int]:
    """The indices of a transformer with grouped-query attention, by their usual names in config.json."""
    heads = config.need("num_attention_heads")
    kv_heads = config.get("num_key_value_heads", heads)
    group = heads // kv_heads
    return {
        "m": config.need("hidden_size"), "V": config.need("vocab_size"),
        "K": kv_heads, "r": group, "i": group + 2, "h": head_dim(config),
        "F": config.need("intermediate_size"), "g": 2,
    }


def head_dim(config: Config) -> int:
    return config.get("head_dim", config.need("hidden_size") // config.need("num_attention_heads"))


def norm(label: str) -> Map:
    """RMSNorm fused with the residual addition before it: both are read and written."""
    return Map("fused_add_rms_norm", "tm,tm->tm,tm", label, scale="m")


def attention(qk_norm: bool = False, window: int = 0, bias: bool = False) -> Operations:
    """Grouped-query attention from the normed hidden state back to it."""
    norms = (
        Map("rms_norm", "tKrh->tKrh", "q_norm", parallel="K", scale="h"),
        Map("rms_norm", "tKh->tKh", "k_norm", parallel="K", scale="h"),
    ) if qk_norm else ()
    return (
        op("tm,miKh->tiKh", "qkv", parallel="K", bias=bias),
        *norms,
        Map("rope", "tKrh,tKh->tKrh,tKh", "rope", parallel="K"),
        Map("kv_write", "tKh,tKh->tKh,tKh", "kv_write", parallel="K", writes="cache"),
        Attend(window=window),
        op("tKrh,Krhm->tm", "o_proj", parallel="K"),
    )


def gated_mlp(activation: str = "silu_mul") -> Operations:
    return (
        op("tm,mgF->tgF", "gate_up", parallel="F"),
        Map(activation, "tgF->tF", "act", parallel="F"),
        op("tF,Fm->tm", "down", parallel="F"),
    )


def experts() -> Operations:
    """A mixture of experts: route, send rows to their experts, compute, and add up each token's results."""
    return (
        op("tm,mE->tE", "router", quantized=False),
        Map("topk", "tE->x", "topk", reads="fp32", writes="fp32"),
        op("xm,EmgF->xgF", "experts_gate_up", parallel="F", routed="E"),
        Map("silu_mul", "xgF->xF", "experts_act", parallel="F"),
        op("xF,EFm->xm", "experts_down", parallel="F", routed="E"),
        Map("moe_combine", "xm->tm", "combine"),
        Communicate("all_reduce", "tm", "experts_all_reduce"),
    )


def embedding() -> Operations:
    return (Gather("Vm->tm", "embedding", parallel="V"),)


def head(cap: bool = False) -> Operations:
    """The last norm, the logits of the sampled tokens, and greedy sampling."""
    softcap = (Map("softcap", "sV->sV", "logits_softcap", reads="fp32", writes="fp32"),) if cap else ()
    return (
        norm("final_norm"),
        op("sm,mV->sV", "lm_head", parallel="V", quantized=False),
        Communicate("all_gather", "sV", "logits_gather"),
        *softcap,
        Map("argmax", "sV->s", "sample", reads="fp32", writes="fp32"),
    )
