"""`python -m benchmarks.notebooks`: run the notebooks, and keep them with what their cells show.

Names of files run these alone: `python -m benchmarks.notebooks 05-plan-a-cluster.ipynb`.

Figures are drawn small, and nothing is kept that differs from run to run, such as when a cell ran.
"""

import base64
import io
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parents[1] / "notebooks"


def main(*names: str) -> None:
    """Run those of these *names*, or all of them, each in a kernel of its own."""
    for path in [FOLDER / name for name in names] or sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=1800, kernel_name="python3", record_timing=False,
                       resources={"metadata": {"path": str(FOLDER)}}).execute()
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [_joined(outputs) for outputs in _runs(cell.outputs)]
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


def _runs(outputs: list[nbformat.NotebookNode]) -> list[list[nbformat.NotebookNode]]:
    """*outputs* with pieces of one stream, which come as the kernel flushes them, together."""
    runs: list[list[nbformat.NotebookNode]] = []
    for output in outputs:
        if runs and output.output_type == "stream" == runs[-1][0].output_type and output.name == runs[-1][0].name:
            runs[-1].append(output)
        else:
            runs.append([output])
    return runs


def _joined(run: list[nbformat.NotebookNode]) -> nbformat.NotebookNode:
    if run[0].output_type == "stream":
        run[0].text = "".join(output.text for output in run)
    elif figure := run[0].get("data", {}).get("image/png"):
        run[0].data["image/png"] = _smaller(figure)
    return run[0]


def _smaller(figure: str) -> str:
    """A PNG *figure* with 64 colours, which take half of the room."""
    made = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(figure))).convert("RGB").quantize(64).save(made, "PNG", optimize=True)
    return base64.b64encode(made.getvalue()).decode()


if __name__ == "__main__":
    main(*sys.argv[1:])
