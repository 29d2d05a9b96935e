"""What vLLM's front end refuses of what a request asks of sampling (0.33, sampling_params.py)."""

from ksim.flow.request import Request

__all__ = ["sampling_refusal"]


def sampling_refusal(request: Request, most: int) -> str:
    """Why an engine with *most* for `max_logprobs` does not take *request*; "" if it does."""
    if request.beam_width:
        return _beam_refusal(request, most)
    asked = request.prompt_logprobs or 0
    if most >= 0 and not 0 <= asked <= most:
        shown = "all of the vocabulary" if asked < 0 else asked
        return f"its prompt_logprobs are {shown}, more than max_logprobs = {most}; set that to {asked}, or ask for less"
    return ""


def _beam_refusal(request: Request, most: int) -> str:
    if request.n > 1:
        return f"its n is {request.n}, and a beam search returns beam_width = {request.beam_width} sequences"
    if request.prompt_logprobs is not None:
        return "its prompt_logprobs are not computed by a beam search"
    if 0 <= most < 2 * request.beam_width:
        return (f"its beam_width is {request.beam_width}, which needs {2 * request.beam_width} log-probabilities at"
                f" each place, more than max_logprobs = {most}; raise that, or search less")
    return ""
