"""``bayeslista predict``: codes of new observations, and how sure they are, file by file."""

import glob
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayeslista.cli._files import check_columns, check_place, load_model, naming, read_observations, using, writing
from bayeslista.cli._options import Choice, Header, Json, Level, Model, Quiet
from bayeslista.cli._running import reported, shows_progress, tell

if TYPE_CHECKING:
    import numpy as np

_NAME = "{name}"
_USUAL = ".npz"
_BATCH_NUMBERS, _LEAST_BATCH = 2**21, 1024
_INTERVALS = ("model", "conformal")


@reported
def predict(
    observations: Annotated[
        list[str],
        typer.Argument(
            metavar="OBSERVATIONS",
            help="Tables of observations, or patterns of their names in quotes.",
            show_default=False,
        ),
    ],
    model: Model,
    out: Annotated[
        Path,
        typer.Option(
            help="File to write: .npz, .csv or .parquet. For several tables a folder, or a name with {name} in it.",
            show_default=False,
        ),
    ],
    level: Level = 0.9,
    intervals: Annotated[
        str, typer.Option(help="model, or conformal: those that the pairs of `bayeslista calibrate` vouch for.")
    ] = "model",
    header: Header = Choice.AUTO,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict the codes of new observations.

        bayeslista predict new.npy --model m.safetensors --out out.parquet
        bayeslista predict 'days/*.csv' --model m.safetensors --out 'predictions/{name}.csv'

    Mean, standard deviation, P(active) and the ends of intervals come as arrays (.npz) or as columns mean_0, …, std_0,
    …, prob_active_0, …, low_0, …, high_0, …; models without distributions give the mean alone. Where the codes of the
    fit had names, these take the place of numbers: mean_left, mean_right, …
    """
    if intervals not in _INTERVALS:
        raise typer.BadParameter(f"choose one of {', '.join(_INTERVALS)}.", param_hint="--intervals")
    inputs = [file for pattern in observations for file in _files(pattern)]
    targets = _targets(inputs, out)
    for target in targets:
        check_place(target)
    made = load_model(model)
    forecast = _forecast(made, model, level, intervals)
    files: list[dict[str, Any]] = []
    for file, target in zip(inputs, targets, strict=True):
        table = read_observations(file, header)
        check_columns(made, table, file)
        X = table.values
        with using(model), naming(file):
            bar = _bar(file, len(X), shows_progress(quiet))
            names = _write(made, X, target, forecast, bar)
        files.append({"observations": file, "out": str(target), "n_rows": len(X), "columns": names})
    result = {"model": str(model), "estimator": type(made).__name__, "level": level, "files": files}
    lines = [f"{each['out']}: {', '.join(each['columns'])} of {each['n_rows']} signals." for each in files]
    tell(result, lines, as_json)


def _files(pattern: str) -> list[str]:
    """The files that a pattern names, in alphabetical order."""
    if not glob.has_magic(pattern) or Path(pattern).exists():
        return [pattern]
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise FileNotFoundError(2, "No file has such a name", pattern)
    return found


def _targets(inputs: list[str], out: Path) -> list[Path]:
    """A file to write for each table; folders of several are made."""
    from bayeslista.tables import WRITTEN

    single = len(inputs) == 1
    if _NAME in out.name:
        targets = [out.with_name(out.name.replace(_NAME, _stem(file))) for file in inputs]
    elif out.is_dir() or (not single and not out.suffix):
        targets = [out / f"{_stem(file)}{_USUAL}" for file in inputs]
    elif single:
        targets = [out]
    else:
        raise typer.BadParameter(
            f"there are {len(inputs)} tables; name a folder, or put {_NAME} in the name.", param_hint="--out"
        )
    if targets[0].suffix.lower() not in WRITTEN:
        raise typer.BadParameter(f"{targets[0]} has to end with {', '.join(WRITTEN)}.", param_hint="--out")
    twice = {target for target in targets if targets.count(target) > 1}
    if twice:
        raise ValueError(f"several tables would be written to {min(twice)}; predict them one by one.")
    if not single or _NAME in out.name:
        with writing(targets[0].parent):
            targets[0].parent.mkdir(parents=True, exist_ok=True)
    return targets


def _stem(file: str) -> str:
    """The name of a table without folder and ending; that of an array in it is kept."""
    name = Path(file).name
    archive, colon, entry = name.rpartition(":")
    return f"{Path(archive).stem}-{entry}" if colon and archive.lower().endswith(".npz") else Path(name).stem


def _forecast(
    model: Any, path: Path, level: float, intervals: str
) -> Callable[["np.ndarray"], dict[str, "np.ndarray"]]:
    """What to write of a batch."""
    if not hasattr(model, "predict_dist"):
        if intervals != "model":
            raise ValueError(f"{type(model).__name__} predicts no distributions, and so no intervals.")
        return lambda X: {"mean": model.predict(X)}
    if intervals == "conformal" and getattr(model, "recalibration_", None) is None:
        raise ValueError(
            f"the model in {path} is not calibrated, as conformal intervals need it: with pairs that it did not learn "
            f"from, run bayeslista calibrate OBSERVATIONS CODES --model {path}"
        )

    def forecast(X: "np.ndarray") -> dict[str, "np.ndarray"]:
        dist = model.predict_dist(X)
        low, high = dist.interval(level) if intervals == "model" else model.predict_interval(X, level, intervals)
        parts = {"mean": dist.mean(), "std": dist.std(), "prob_active": dist.prob_active}
        return {**parts, "low": low, "high": high}

    return forecast


def _write(model: Any, X: "np.ndarray", target: Path, forecast: Callable[..., Any], bar: Any) -> list[str]:
    """Predict batch by batch, so that tables of any length fit in memory; return the names of what is written."""
    from bayeslista.tables import table_writer

    names: list[str] = []
    components = getattr(model, "component_names_", None)
    with bar, writing(target), table_writer(target, components) as write:
        for rows in _batches(len(X), max(X.shape[1], getattr(model, "n_components_", 1))):
            parts = forecast(X[rows])
            write(parts)
            names = list(parts)
            bar.update(rows.stop - rows.start)
    return names


def _batches(n_rows: int, width: int) -> Iterator[slice]:
    size = max(_LEAST_BATCH, _BATCH_NUMBERS // width // _LEAST_BATCH * _LEAST_BATCH)
    for begin in range(0, n_rows, size):
        yield slice(begin, min(begin + size, n_rows))


def _bar(description: str, total: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc=description, unit="signal", disable=not shown)
