"""Tables of measured transfers, made up."""

from pathlib import Path

HEAD = "series,kind,engine,connector,gpu,tp_src,tp_dst,line_rate_gb_s,tokens,bytes,seconds"


def row(*, series: str = "s", kind: str = "pd_kv_push", engine: str = "vLLM 0.11", connector: str = "MooncakeConnector",
        ranks: int = 8, others: int = 0, line: object = 200, bytes: object = 1e9, seconds: object = 0.01) -> str:
    values = (series, kind, engine, connector, "H800", ranks, others or ranks, line, 1000, bytes, seconds)
    return ",".join(map(str, values))


def table(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "transfers.csv"
    path.write_text("\n".join((head, *rows)) + "\n", encoding="utf-8")
    return path
