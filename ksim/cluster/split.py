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

    It computes a token that is the only one by itself.  Log-probabilities of a prompt come with the first token: those
    whom it is handed to need not compute the prompt again.
    """
    longest = decode.scheduler.limits.max_model_len
    if not connector.hands_over_token or request.output == 1 or request.prompt + 1 >= longest:
        return request, False
    most = None if request.max_tokens is None else request.max_tokens - 1
    return evolve(request, prompt=request.prompt + 1, output=request.output - 1, max_tokens=most,
                  prompt_logprobs=None), True
