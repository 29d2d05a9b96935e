"""AIConfigurator's folders: the file in one to import."""

from pathlib import Path

from ksim.foundation.errors import DataError

__all__ = ["main_file"]

#: Files of AIConfigurator, the first that is there counts; its generator_config.yaml has what the others lack.
_FILES = ("generator_config.yaml", "k8s_deploy.yaml", "best_config_topn.csv")
#: Docker Compose's own names of its file.
_COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
#: Files of folders that another program must write out first, and how.
_WRITTEN_OUT = {"Chart.yaml": "is a Helm chart; render it first: helm template RELEASE {} > rendered.yaml",
                "kustomization.yaml": "is a kustomization; build it first: kubectl kustomize {} > built.yaml"}
#: Folders inside its results.
_INNER = ("top1", "agg", "disagg")


def main_file(folder: Path) -> Path:
    """The file of *folder* to import; raises DataError for a folder that no tool wrote which ksim knows."""
    for name, remedy in _WRITTEN_OUT.items():
        if (folder / name).is_file():
            raise DataError(str(folder), remedy.format(folder))
    for name in (*_FILES[:2], *_COMPOSE):
        if (folder / name).is_file():
            return folder / name
    inner = [folder / name for name in _INNER if (folder / name).is_dir()]
    if len(inner) == 1 and any(inner[0].iterdir()):
        return main_file(inner[0])
    if (folder / _FILES[2]).is_file():
        return folder / _FILES[2]
    if inner:
        raise DataError(str(folder), f"has several results; name one: {', '.join(str(path) for path in inner)}")
    raise DataError(str(folder), f"is a folder without {', '.join(_FILES)} or compose.yaml; name a file in it")
