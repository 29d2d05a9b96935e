"""What the server answers where it cannot serve a request, in the words and shapes of vLLM 0.33."""

import json
from http import HTTPStatus
from typing import Any

__all__ = ["ApiError", "invalid", "not_found"]


class ApiError(Exception):
    """An answer that is an error: a status, and a message about the parameter `param`, if it is about one.

    `kind` is the error's `type`, by default the name of the status.
    """

    def __init__(self, message: str, status: int = 400, kind: str = "", param: str | None = None):
        super().__init__(message, status, kind, param)
        self.message, self.status, self.param = message, status, param
        self.kind = kind or HTTPStatus(status).phrase

    @property
    def body(self) -> dict[str, Any]:
        """What a client reads."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}

    @property
    def event(self) -> bytes:
        """The same within a stream, after which it ends."""
        return b"data: " + json.dumps(self.body).encode() + b"\n\n"


def invalid(message: str, param: str | None = None, value: Any = None) -> ApiError:
    """What vLLM answers to a parameter that it refuses; the message ends with its name and *value*, as vLLM's does."""
    said = [f"{name}={what}" for name, what in (("parameter", param), ("value", value)) if what is not None]
    return ApiError(f"{message} ({', '.join(said)})" if said else message, 400, "BadRequestError", param)


def not_found(model: str, served: str) -> ApiError:
    """What vLLM answers to the name of a *model* that is none of those *served*."""
    return ApiError(f"The model `{model}` does not exist. Valid aliases: {served}.", 404, "NotFoundError", "model")
