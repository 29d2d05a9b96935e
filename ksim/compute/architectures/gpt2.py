"""GPT-2: learned positions, LayerNorms, biases everywhere, and an MLP without a gate."""

from attrs import evolve

from ksim.compute import blocks, layer_norms
from ksim.compute.model import Config, Decoder

__all__ = ["gpt2"]


#: GPT-2's names, and those of later families.
NAMES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
         "n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}



def gpt2(config: Config) -> Decoder:
    plain = config.under(NAMES)
    inner = plain.need("intermediate_size", 4 * plain.need("hidden_size"))
    plain = plain.instead({**plain.table, "intermediate_size": inner})
    mlp = layer_norms.plain_mlp(plain, plain.get("activation_function", "gelu_new"))
    layer = layer_norms.layer(blocks.attention(plain, qkv_bias=True, out_bias=True, before=()), mlp)
    length = plain.need("max_position_embeddings")
    decoder = blocks.decoder(plain, [layer] * plain.need("num_hidden_layers"), tied=True, C=length)
    return evolve(decoder, embedding=(*blocks.embedding(), *layer_norms.positions()),
                  head=blocks.head(last=layer_norms.layer_norm("final_norm")))
