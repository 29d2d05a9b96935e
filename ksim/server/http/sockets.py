"""The socket at which the server listens."""

import errno
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from ksim.foundation.errors import ConfigError

__all__ = ["Address", "allow_many_files"]

#: Open files that vLLM asks for.
_FILES = 65535


@frozen
class Address:
    """A `port` of a `host`, or the path of a Unix socket, `uds`."""

    host: str = "localhost"
    port: int = 8000
    uds: Path | None = None

    @contextmanager
    def bound(self) -> Iterator[socket.socket]:
        """A bound socket, which is closed in the end; raises ConfigError if it cannot be bound."""
        listening = self._of_path(self.uds) if self.uds else self._of_port()
        try:
            yield listening
        finally:
            listening.close()
            if self.uds:
                self.uds.unlink(missing_ok=True)

    def url(self, bound: socket.socket) -> str:
        """The URL for clients."""
        if self.uds:
            return f"unix:{self.uds}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{bound.getsockname()[1]}"

    def _of_port(self) -> socket.socket:
        host = "127.0.0.1" if self.host == "localhost" else self.host
        try:
            family, *_, place = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise ConfigError("--host", f"{self.host!r} is no host here: {error}") from None
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(place)
            listening.listen()
        except OSError as error:
            listening.close()
            raise self._refused(error) from None
        return listening

    def _refused(self, error: OSError) -> ConfigError:
        if error.errno == errno.EADDRINUSE:
            return ConfigError("--port", f"{self.port} is in use on {self.host}; choose another, or 0 for any free one")
        if error.errno == errno.EACCES:
            return ConfigError("--port", f"{self.port} is for privileged users; choose one from 1024 on")
        if error.errno == errno.EADDRNOTAVAIL:
            return ConfigError("--host", f"{self.host} is no address of this machine")
        return ConfigError("--port", f"{self.port} of {self.host}: {error.strerror}")

    @staticmethod
    def _of_path(path: Path) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and listening.connect_ex(str(path)):
                path.unlink()  # left by a server that was killed
            listening.close()
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(str(path))
            listening.listen()
        except OSError as error:
            listening.close()
            what = "is there already" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise ConfigError("--uds", f"{path} {what}") from None
        return listening


def allow_many_files() -> None:
    """Raise this process's soft limit of open files."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
