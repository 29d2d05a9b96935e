"""The two parts of a request that one engine prefills and another decodes."""

from attrs import evolve

from ksim.engine.engine import Engine
from ksim.flow.request import Request
from ksim.kv_transfer.connectors import KvConnector

__all__ = ["first_token", "rest_of"]


def first_token(request: Request) -> Request:
    """What an engine serves of *request* that only prefills it."""
    return evolve(request, output=1, max_tokens=None)


def rest_of(request: Request, decode: Engine, connector: KvConnector) -> tuple[Request, bool]:
    """What *decode* serves of *request*, and whether that is without the first token, which is handed over.

    It computes a token that is the only one by itself.  Where tokens are handed over, so are log-probabilities of the
    prompt: it takes the prompt's KV, and need not compute the prompt again.
    """
    if not connector.hands_over_token:
        return request, False
    taken = evolve(request, prompt_logprobs=None)
    if request.output == 1 or request.prompt + 1 >= decode.scheduler.limits.max_model_len:
        return taken, False
    most = None if request.max_tokens is None else request.max_tokens - 1
    return evolve(taken, prompt=request.prompt + 1, output=request.output - 1, max_tokens=most), True
