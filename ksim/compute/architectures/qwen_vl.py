"""Alibaba's Qwen with eyes, and ears."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.qwen import qwen2, qwen3, qwen3_moe
from ksim.compute.model import Config, Decoder
from ksim.compute.notation.product import HeldWeights
from ksim.compute.vision.towers import qwen2_5_vision, qwen2_vision, qwen3_vision
from ksim.foundation.units import DType

__all__ = ["qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_vl_moe"]


def qwen2_vl(config: Config) -> Decoder:
    """Qwen2-VL: a Qwen2 that sees."""
    decoder = qwen2(blocks.text(config))
    return evolve(decoder, encoder=qwen2_vision(config.part("vision_config"), decoder.sizes["m"]))


def qwen2_5_vl(config: Config) -> Decoder:
    """Qwen2.5-VL: a Qwen2.5 that sees."""
    decoder = qwen2(blocks.text(config))
    return evolve(decoder, encoder=qwen2_5_vision(config.part("vision_config"), decoder.sizes["m"]))


#: Parts that make speech of text, and what concerns sounds and videos alone.
SPEECH = ("talker_config", "token2wav_config", "enable_audio_output", "enable_talker")
SOUNDS = ("audio_config", "position_id_per_seconds", "seconds_per_chunk", "user_token_id")
#: The letter of the size of the encoder of sounds.
AUDIO = "Q"


def qwen2_5_omni(config: Config) -> Decoder:
    """Qwen2.5-Omni: its thinker, which is a Qwen2.5-VL that hears, too, and generates text; vLLM serves that part
    alone.

    Sounds are not simulated; every rank holds the encoder of sounds, a Whisper's (qwen2_5_omni_thinker.py).
    """
    for key in SPEECH:
        config.value(key)
    thinker = config.part("thinker_config") if config.value("thinker_config") else config
    for key in SOUNDS:
        thinker.value(key)
    decoder = qwen2(blocks.text(thinker))
    vision = thinker.part("vision_config")
    vision.value("embed_dim")  # hidden_size, once more
    encoder = qwen2_5_vision(vision, decoder.sizes["m"])
    weights = _hearing(thinker.part("audio_config"), decoder.sizes["m"])
    return evolve(decoder, encoder=evolve(encoder, sizes={**encoder.sizes, AUDIO: weights}, embedding=(
        HeldWeights(AUDIO, "audio_tower", DType.BF16), *encoder.embedding)))


def _hearing(config: Config, decoder: int) -> int:
    """The parameters of the encoder of sounds: two convolutions over three frames, layers, a projection, two tokens."""
    hidden, inner = config.need("d_model", 1280), config.need("encoder_ffn_dim", 5120)
    layer = 4 * hidden**2 + 3 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    convolutions = 3 * hidden * (config.need("num_mel_bins", 128) + hidden) + 2 * hidden
    out = config.need("output_dim", decoder)
    for key in config.table:
        config.value(key)  # only its size counts
    return convolutions + config.need("encoder_layers", 32) * layer + 2 * hidden + hidden * out + out + 2 * out


def qwen3_vl(config: Config) -> Decoder:
    """Qwen3-VL: a Qwen3 that sees."""
    decoder = qwen3(blocks.text(config))
    return evolve(decoder, encoder=qwen3_vision(config.part("vision_config"), decoder.sizes["m"]))


def qwen3_vl_moe(config: Config) -> Decoder:
    """Qwen3-VL's mixtures of experts: a Qwen3 mixture that sees."""
    decoder = qwen3_moe(blocks.text(config))
    return evolve(decoder, encoder=qwen3_vision(config.part("vision_config"), decoder.sizes["m"]))
