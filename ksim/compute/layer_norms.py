"""Parts of models in the manner of GPT: LayerNorms with biases, MLPs without a gate, learned positions."""

from ksim.compute import blocks
from ksim.compute.model import Config
from ksim.compute.model_ops import Lookup, op, pointwise
from ksim.compute.notation.pointwise import Elementwise
from ksim.foundation.errors import ConfigError

__all__ = ["PLAIN", "layer", "layer_norm", "parallel_layer", "plain_mlp", "positions"]

#: Activations of one projection, and the kernels that apply them.
PLAIN = {"gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu",
         "relu2": "relu2"}


def layer_norm(label: str) -> Elementwise:
    """LayerNorm with a bias, fused with the residual addition before it, as the compiler fuses them."""
    return pointwise("fused_add_layer_norm", "tm,tm->tm,tm", label, scale="m,m")


def layer(attention: blocks.Operations, mlp: blocks.Operations) -> blocks.Operations:
    """A layer with a norm before *attention* and one before *mlp*."""
    return (layer_norm("attention_norm"), *attention, layer_norm("mlp_norm"), *mlp)


def parallel_layer(attention: blocks.Operations, mlp: blocks.Operations) -> blocks.Operations:
    """A layer whose *attention* and *mlp* have norms of the same hidden state; their results are added up."""
    both = pointwise("layer_norm", "tm->tm,tm", "norms", scale="mg,mg")
    return (both, *attention, *mlp, pointwise("add", "tm,tm,tm->tm", "residual_add"))


def plain_mlp(config: Config, act: str, *, bias: bool = True) -> blocks.Operations:
    """An MLP of two projections with the activation *act* between them; raises ConfigError for one that is unknown."""
    if act not in PLAIN:
        raise ConfigError(f"{config.name}: activation", f"{act!r} is none of {', '.join(PLAIN)}")
    return (
        op("tm,mF->tF", "up", parallel="F", bias=bias, part="mlp"),
        pointwise(PLAIN[act], "tF->tF", "act", parallel="F"),
        op("tF,Fm->tm", "down", parallel="F", bias=bias, part="mlp"),
    )


def positions() -> blocks.Operations:
    """The rows of the tokens' positions in a table of C learned ones, which every rank has."""
    return (Lookup("Cm->tm", "positions"), pointwise("add", "tm,tm->tm", "positions_add"))
