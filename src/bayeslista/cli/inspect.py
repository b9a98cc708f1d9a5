"""``bayeslista inspect``: the content of a model file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayeslista.cli._model_files import file_errors, load_model
from bayeslista.cli._options import Json
from bayeslista.cli._running import reported, tell

_OBJECTIVES = {  # of `history_`, as in docs/command_line.md
    "objective": "negative log score plus relative error of simulated pairs; smaller is better",
    "elbo": "the evidence lower bound of a pair; larger is better",
    "log_evidence": "the log evidence of a pair; larger is better",
}


@reported
def inspect(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model that `bayeslista fit` wrote.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Show the content of a model file.

        bayeslista inspect m.safetensors

    The estimator, its parameters and sizes, how its training went, whether it is calibrated, and the versions that
    wrote it.
    """
    from bayeslista.io.records import read_versions

    made = load_model(model)
    with file_errors(model=model):
        result = _found(made, model, read_versions(model))
    tell(result, _lines(result), as_json)


def _found(made: Any, model: Path, versions: dict[str, str]) -> dict[str, Any]:
    return {
        "model": str(model),
        "bytes": model.stat().st_size,
        "estimator": type(made).__name__,
        "fitted": hasattr(made, "design_matrix_") or hasattr(made, "coef_"),
        "parameters": {name: _summary(value) for name, value in made.get_params(deep=False).items()},
        "fitted_values": {name: _summary(value) for name, value in sorted(vars(made).items()) if _is_shown(name)},
        "training": {name: _course(values) for name, values in getattr(made, "history_", {}).items()},
        "diagnostics": {name: _summary(value) for name, value in getattr(made, "diagnostics_", {}).items()},
        "recalibrated": _recalibration(getattr(made, "recalibration_", None)),
        "versions": versions,
    }


def _is_shown(name: str) -> bool:
    """Whether it is a fitted attribute that is not shown under another title."""
    return name.endswith("_") and name[0] != "_" and name not in ("history_", "diagnostics_", "recalibration_")


def _summary(value: Any) -> Any:
    """A value as it is if it is short, else its shape."""
    import numpy as np

    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ", ".join(map(str, value))
        return f"{value.dtype} array of shape {value.shape}"
    return str(value) if isinstance(value, np.dtype) else type(value).__name__


def _course(values: Any) -> dict[str, Any]:
    """The length of a history, its first and its last value."""
    import numpy as np

    each = np.asarray(values, dtype=float).reshape(len(values), -1).mean(axis=1) if len(values) else []
    return {"n": len(each), "first": float(each[0]), "last": float(each[-1])} if len(each) else {"n": 0}


def _recalibration(found: Any) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"method": type(found.activity).__name__.removesuffix("Map").lower(), "n_pairs": len(found.tails)}


def _lines(result: dict[str, Any]) -> list[str]:
    calibrated = result["recalibrated"]
    state = (
        f"recalibrated on {calibrated['n_pairs']} pairs ({calibrated['method']})" if calibrated else "not recalibrated"
    )
    fitted = "fitted" if result["fitted"] else "not fitted"
    lines = [f"{result['model']}: {result['estimator']}, {fitted}, {state}, {result['bytes']} bytes"]
    for title in ("parameters", "fitted_values", "training", "diagnostics", "versions"):
        if result[title]:
            lines.append(f"{title.replace('_', ' ')}:")
            lines += [f"  {name:<22}{_text(value)}" for name, value in result[title].items()]
        if title == "training":
            lines += [f"  {'':<22}{name} is {_OBJECTIVES[name]}" for name in _OBJECTIVES if name in result[title]]
    return lines


def _text(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    if value["n"] == 0:
        return "no values"
    return f"{value['first']:.4g} → {value['last']:.4g} ({value['n']} values)"
