"""Errors that clients get, in the words and shapes of vLLM 0.33."""

import json
from http import HTTPStatus
from typing import Any

__all__ = ["ApiError", "invalid", "not_found"]


class ApiError(Exception):
    """A request cannot be answered: the HTTP status, the message, and the parameter that it is about, if any.

    `kind` is the `type` in the body, by default the name of the status.
    """

    def __init__(self, message: str, status: int = 400, kind: str = "", param: str | None = None):
        super().__init__(message, status, kind, param)
        self.message, self.status, self.param = message, status, param
        self.kind = kind or HTTPStatus(status).phrase

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the response."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}

    @property
    def event(self) -> bytes:
        """The same as an event of a stream that has begun."""
        return b"data: " + json.dumps(self.body).encode() + b"\n\n"


def invalid(message: str, param: str | None = None, value: Any = None) -> ApiError:
    """The error for a refused parameter, whose name and *value* end the message."""
    said = [f"{name}={what}" for name, what in (("parameter", param), ("value", value)) if what is not None]
    return ApiError(f"{message} ({', '.join(said)})" if said else message, 400, "BadRequestError", param)


def not_found(model: str, served: str) -> ApiError:
    """The error for a *model* that is not among those *served*."""
    return ApiError(f"The model `{model}` does not exist. Valid aliases: {served}.", 404, "NotFoundError", "model")
