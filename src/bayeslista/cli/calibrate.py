"""``bayeslista calibrate``: recalibrate the distributions of a model on held-out pairs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bayeslista.cli._model_files import check_place, describe, file_errors, load_model, read_pairs, writing
from bayeslista.cli._options import Choice, Codes, Header, Json, Model, Observations
from bayeslista.cli._running import reported, tell

_Method = StrEnum("_Method", ["isotonic", "logistic"])


@reported
def calibrate(
    observations: Observations,
    codes: Codes,
    model: Model,
    out: Annotated[Path | None, typer.Option(help="File to write; without it the model itself is replaced.")] = None,
    method: Annotated[_Method, typer.Option(help="Map of P(active); logistic needs fewer pairs.")] = _Method.isotonic,
    header: Header = Choice.auto,
    as_json: Json = False,
) -> None:
    """Recalibrate the distributions of a model on held-out pairs.

        bayeslista calibrate held_out.npy held_out_codes.npy --model m.safetensors --out calibrated.safetensors

    P(active) and the widths of intervals are fitted to pairs that the model was not fitted to; two hundred are enough
    as a rule. A second calibration replaces the first.
    """
    target = model if out is None else out
    check_place(target)
    made = load_model(model)
    if not hasattr(made, "calibrate"):
        raise ValueError(
            f"{model} is a {type(made).__name__}, which predicts no distributions: there is nothing to calibrate. "
            "Fit spike-slab-net or bayes-lista."
        )
    X, y = read_pairs(observations, codes, header, made)
    with file_errors(observations, codes, model):
        made.calibrate(X.values, y.values, method=method.value)
    with writing(target):
        made.save(target)
    n_pairs = len(y.values)
    result = {"model": str(target), "estimator": type(made).__name__, "method": method, "n_pairs": n_pairs}
    tell(result, [f"{target}: {describe(made)}, calibrated on {n_pairs} pairs ({method})."], as_json)
