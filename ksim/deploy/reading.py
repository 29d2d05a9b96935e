"""A pasted text to what it deploys, by the reader that recognises it."""

from ksim.deploy.imported import Deployed, Wanted
from ksim.deploy.pasted import Pasted
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

FOLDER = "deploy.readers"


def read(pasted: Pasted, wanted: Wanted) -> Deployed:
    """What *pasted* deploys; raises ConfigError for a text that no reader recognises, and for what one refuses."""
    for name in sorted(catalog.names(FOLDER), key=lambda name: (name == "lines", name)):
        reader = catalog.find(FOLDER, name)()
        if reader.recognises(pasted):
            deployed: Deployed = reader.read(pasted, wanted)
            return deployed
    raise ConfigError(pasted.source or "the text", _nothing(pasted))


def _nothing(pasted: Pasted) -> str:
    first = next((line.strip() for line in pasted.text.splitlines() if line.strip()), "")
    said = f"{first[:60]!r} starts no engine that ksim knows" if first else "is empty"
    return f"{said}; expected `vllm serve MODEL ...`, `python -m sglang.launch_server ...` or `trtllm-serve MODEL ...`"
