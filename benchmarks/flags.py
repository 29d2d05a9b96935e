"""`python -m benchmarks.flags NAME ...`: write ksim/data/flags/NAME.json from an engine's own parser.

    python -m benchmarks.flags vllm 0.33.0                        # needs vLLM installed, and no GPU
    python -m benchmarks.flags vllm-bench 0.33.0                  # `vllm bench serve`
    python -m benchmarks.flags sglang-bench bench_serving.py 0.5.8
    python -m benchmarks.flags sglang FOLDER 0.5.23 OLDER 0.5.8   # folders of the package; flags of the older one alone
    python -m benchmarks.flags trtllm commands/serve.py 1.2       # are marked

Each flag has its names, those that switch it off, what follows it (kind and nargs), its choices and its default, where
these are plain values.  SGLang and TensorRT-LLM are read without being imported.
"""

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "ksim" / "data" / "flags"
#: What a parser's type makes of a word.
KINDS = {"int": "integer", "float": "number", "human_readable_int": "readable", "human_readable_int_type": "readable",
         "human_readable_int_or_auto": "readable", "loads": "json", "parse_dataclass": "json", "union_dict_and_str":
         "json", "json.loads": "json", "json_list_type": "json", "int_or_auto": "readable"}


def main() -> None:
    """Write the table of the engine that the command line names."""
    name, source = sys.argv[1:3]
    flags = {"vllm": _vllm, "vllm-bench": _vllm_bench, "sglang": _sglang, "sglang-bench": _sglang_bench,
             "trtllm": _trtllm}[name](Path(source))
    if older := sys.argv[4:]:
        names = {name for flag in flags for name in flag["names"]}
        flags += [{**flag, "until": older[1]} for flag in _sglang(Path(older[0])) if not names & {*flag["names"]}]
    write(name, source if name.startswith("vllm") else sys.argv[3], flags)


def write(name: str, release: str, flags: list[dict[str, Any]]) -> None:
    """Write a table, a flag a line."""
    rows = ",\n".join("  " + json.dumps(flag) for flag in sorted(flags, key=lambda flag: flag["dest"]))
    head = json.dumps(release)
    (DATA / f"{name}.json").write_text(f'{{"release": {head},\n "flags": [\n{rows}\n]}}\n', encoding="utf-8")


def of_parser(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """The flags of *parser*."""
    return [_of_action(action) for action in parser._actions if action.option_strings and action.dest != "help"]


def _of_action(action: argparse.Action) -> dict[str, Any]:
    off = [*getattr(action, "negative_option_strings", ())]
    names = [name for name in action.option_strings if name not in off]
    switch = action.nargs == 0
    flag: dict[str, Any] = {"dest": action.dest, "names": names}
    if off:
        flag["off"] = sorted({*off, *(f"--no-{name[2:]}" for name in names if name.startswith("--"))})
    flag["kind"] = "switch" if switch else KINDS.get(_type_name(action.type), "text")
    return flag | _rest(None if switch else action.nargs, action.choices, action.default)


def _rest(nargs: Any, choices: Any, default: Any) -> dict[str, Any]:
    rest: dict[str, Any] = {"nargs": nargs} if nargs else {}
    if choices:
        rest["choices"] = [choice for choice in choices if choice is not None]
    if isinstance(default, bool | int | float | str) and default != argparse.SUPPRESS:
        rest["default"] = getattr(default, "value", default)
    return rest


def _type_name(kind: Any) -> str:
    """The name of the function that makes a value, behind those that allow for None."""
    for cell in getattr(kind, "__closure__", None) or ():
        if callable(cell.cell_contents):
            return _type_name(cell.cell_contents) if kind.__name__ != "parse_dataclass" else "json.loads"
    return getattr(kind, "__name__", "")


def _vllm(_: Path) -> list[dict[str, Any]]:
    from vllm import platforms
    from vllm.platforms.interface import Platform, PlatformEnum

    gpu = type("Gpu", (Platform,), {"_enum": PlatformEnum.CUDA, "device_name": "cuda", "device_type": "cuda"})
    platforms._current_platform = gpu()
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return of_parser(make_arg_parser(FlexibleArgumentParser()))


def _vllm_bench(_: Path) -> list[dict[str, Any]]:
    from vllm.benchmarks.serve import add_cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    return [{**flag, "default": ""} if flag["dest"] == "request_id_prefix" else flag for flag in of_parser(parser)]


def _sglang_bench(path: Path) -> list[dict[str, Any]]:
    return [*_calls(ast.parse(path.read_text(encoding="utf-8")), set())]


def _sglang(folder: Path) -> list[dict[str, Any]]:
    """The flags of SGLang's `ServerArgs`: annotated fields (0.5.20), or calls of add_argument."""
    fields = sorted((folder / "srt" / "arg_groups" / "fields").glob("*.py"))
    server = folder / "srt" / "server_args.py"
    flags = [flag for path in fields for flag in _fields(ast.parse(path.read_text(encoding="utf-8")))]
    return [*flags, *_calls(ast.parse(server.read_text(encoding="utf-8")), {flag["dest"] for flag in flags})]


def _fields(tree: ast.Module) -> Iterator[dict[str, Any]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Subscript) and (
                getattr(node.annotation.value, "id", "") == "A") and isinstance(node.annotation.slice, ast.Tuple):
            kind, *more = node.annotation.slice.elts
            said = {word.arg: word.value for part in more if isinstance(part, ast.Call) for word in part.keywords}
            if "no_cli" not in said:
                yield _field(ast.unparse(node.target), ast.unparse(kind), said, node.value)


def _field(dest: str, kind: str, said: dict[str | None, ast.expr], default: ast.expr | None) -> dict[str, Any]:
    name = _plain(said.get("cli_name")) or f"--{dest.replace('_', '-')}"
    flag: dict[str, Any] = {"dest": dest, "names": [name, *(_plain(said.get("aliases")) or [])]}
    if "action" in said and "BooleanOptional" in ast.unparse(said["action"]):
        flag["off"] = [f"--no-{name[2:]}"]
    parser = ast.unparse(said["type_parser"]) if "type_parser" in said else ""
    inner = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
    lists = inner.startswith("List[") and not parser
    flag["kind"] = "switch" if inner == "bool" else KINDS.get(parser) or (
        "integer" if inner in ("int", "List[int]") else "number" if inner in ("float", "List[float]") else "text")
    nargs = _plain(said.get("nargs")) or ("+" if lists else "*" if "action_kwargs" in said else None)
    return flag | _rest(nargs, _plain(said.get("choices")), _plain(default))


def _calls(tree: ast.Module, known: set[str]) -> Iterator[dict[str, Any]]:
    """The flags of calls of add_argument, but for those of fields that are *known*."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            names = [name for part in node.args if (name := _plain(part))]
            said = {word.arg: word.value for word in node.keywords}
            dest = _plain(said.get("dest")) or names[0].lstrip("-").replace("-", "_")
            if dest not in known:
                yield _call(dest, names, said)


def _call(dest: str, names: list[str], said: dict[str | None, ast.expr]) -> dict[str, Any]:
    action = ast.unparse(said["action"]) if "action" in said else ""
    kind = ast.unparse(said["type"]) if "type" in said else ""
    switch = "store_true" in action or action.startswith("Deprecated") or "is_flag" in said
    flag = {"dest": dest, "names": names, "kind": "switch" if switch else KINDS.get(kind, "text")}
    return flag | _rest(_plain(said.get("nargs")), _plain(said.get("choices")), _plain(said.get("default")))


def _trtllm(path: Path) -> list[dict[str, Any]]:
    """The options of `trtllm-serve`'s command serve, which click declares."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    serve = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "serve")
    return [*_options(serve)]


def _options(serve: ast.FunctionDef) -> Iterator[dict[str, Any]]:
    for call in serve.decorator_list:
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "option":
            words = [name for part in call.args if (name := _plain(part))]
            names = [word for word in words if word.startswith("-")]
            dest = next((word for word in words if not word.startswith("-")), names[0].lstrip("-"))
            yield _call(dest, names, {word.arg: word.value for word in call.keywords})


def _plain(node: ast.expr | None) -> Any:
    """The value of a literal, or None."""
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


if __name__ == "__main__":
    main()
