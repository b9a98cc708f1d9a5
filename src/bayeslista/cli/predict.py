"""``bayeslista predict``: distributions of the codes of new observations, file by file."""

import glob
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayeslista.cli._model_files import check_place, file_errors, load_model, read_observations, writing
from bayeslista.cli._options import Choice, Header, Json, Level, Model, Quiet
from bayeslista.cli._running import reported, say, shows_progress, tell

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAME = "{name}"
_BATCH_NUMBERS, _LEAST_BATCH = 2**21, 1024  # numbers and rows that are predicted and written at once
_Intervals = StrEnum("_Intervals", ["model", "conformal"])


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
        _Intervals, typer.Option(help="conformal: with the coverage of the pairs of `bayeslista calibrate`.")
    ] = _Intervals.model,
    header: Header = Choice.auto,
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
    from tqdm import tqdm

    inputs = [file for pattern in observations for file in _files(pattern)]
    targets = _targets(inputs, out)
    for target in targets:
        check_place(target)
    made = load_model(model)
    checks: list[Any] = []
    forecast, progress = _forecast(made, model, level, intervals.value, checks), shows_progress(quiet)
    files: list[dict[str, Any]] = []
    for file, target in zip(inputs, targets, strict=True):
        X = read_observations(file, header, made).values
        if not (quiet or progress):
            say(f"Predicting {len(X)} signals of {file}.")
        with file_errors(file, model=model), writing(target):
            names = _write(
                made, X, target, forecast, tqdm(total=len(X), desc=file, unit="signal", disable=not progress)
            )
        files.append({"observations": file, "out": str(target), "n_rows": len(X), "columns": names})
    result = {"model": str(model), "estimator": type(made).__name__, "level": level, "files": files}
    lines = [f"{each['out']}: {', '.join(each['columns'])} of {each['n_rows']} signals." for each in files]
    if checks:
        result["check"] = check = _summary(checks)
        lines.append(
            f"predictive check: {check['n_failed']} of {check['n_rows']} answers failed; "
            f"chi-square per sensor {check['median_chi_square']:.3g} in the median, {check['largest_chi_square']:.3g} "
            f"at most; {check['n_sampled']} answers by the sampler."
        )
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
    """A file to write for each table; a folder for several is made."""
    from bayeslista.io.tables import WRITABLE

    single = len(inputs) == 1
    if _NAME in out.name:
        targets = [out.with_name(out.name.replace(_NAME, _stem(file))) for file in inputs]
    elif out.is_dir() or (not single and not out.suffix):
        targets = [out / f"{_stem(file)}.npz" for file in inputs]
    elif single:
        targets = [out]
    else:
        raise typer.BadParameter(
            f"there are {len(inputs)} tables; name a folder, or put {_NAME} in the name.", param_hint="--out"
        )
    if targets[0].suffix.lower() not in WRITABLE:
        raise typer.BadParameter(f"{targets[0]} has to end with {', '.join(WRITABLE)}.", param_hint="--out")
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
    model: Any, path: Path, level: float, intervals: str, checks: list[Any]
) -> Callable[["NDArray[Any]"], dict[str, "NDArray[Any]"]]:
    """The function from a batch of observations to the arrays that are written; it appends predictive checks."""
    from bayeslista.estimators.hooks import predict_and_check

    if not hasattr(model, "predict_dist"):
        if intervals != "model":
            raise ValueError(f"{type(model).__name__} predicts no distributions, and so no intervals.")
        return lambda X: {"mean": model.predict(X)}
    if intervals == "conformal" and getattr(model, "recalibration_", None) is None:
        raise ValueError(
            f"the model in {path} is not calibrated, which conformal intervals need: with pairs that it was not fitted "
            f"to, run bayeslista calibrate OBSERVATIONS CODES --model {path}"
        )

    def forecast(X: "NDArray[Any]") -> dict[str, "NDArray[Any]"]:
        if hasattr(model, "predictive_check"):
            dist, check = predict_and_check(model, X)
            checks.append(check)
        else:
            dist = model.predict_dist(X)
        low, high = dist.interval(level) if intervals == "model" else model.predict_interval(X, level, intervals)
        parts = {"mean": dist.mean(), "std": dist.std(), "prob_active": dist.prob_active}
        return {**parts, "low": low, "high": high}

    return forecast


def _summary(checks: list[Any]) -> dict[str, Any]:
    """Numbers of failed and of sampled answers, and the sizes of residuals."""
    import pandas as pd

    table = pd.concat(checks)
    return {
        "n_rows": len(table),
        "n_failed": int(table.failed.sum()),
        "n_sampled": int((table.engine == "exact").sum()),
        "median_chi_square": float(table.chi_square.median()),
        "largest_chi_square": float(table.chi_square.max()),
    }


def _write(model: Any, X: "NDArray[Any]", target: Path, forecast: Callable[..., Any], bar: Any) -> list[str]:
    """Predict and write batch by batch, in bounded memory; return the names of the arrays."""
    from bayeslista.io.tables import write_table

    names: list[str] = []
    width = max(X.shape[1], getattr(model, "n_components_", 1))
    size = max(_LEAST_BATCH, _BATCH_NUMBERS // width // _LEAST_BATCH * _LEAST_BATCH)

    def batches() -> Iterator[dict[str, "NDArray[Any]"]]:
        for begin in range(0, len(X), size):
            batch = X[begin : begin + size]
            parts = forecast(batch)
            yield parts
            names[:] = parts
            bar.update(len(batch))

    with bar:
        write_table(target, batches(), getattr(model, "component_names_", None))
    return names
