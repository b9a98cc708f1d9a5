"""``bayeslista calibrate``: mend the distributions of a model by pairs that it did not learn from."""

from pathlib import Path
from typing import Annotated

import typer

from bayeslista.cli._files import check_pairs, check_place, describe, load_model, naming, read_pairs, using, writing
from bayeslista.cli._options import Choice, Codes, Header, Json, Model, Observations
from bayeslista.cli._running import reported, tell

_METHODS = ("isotonic", "logistic")


@reported
def calibrate(
    observations: Observations,
    codes: Codes,
    model: Model,
    out: Annotated[Path | None, typer.Option(help="File to write; else the model itself is replaced.")] = None,
    method: Annotated[
        str, typer.Option(help="isotonic, or logistic, which needs fewer pairs: the map of P(active).")
    ] = "isotonic",
    header: Header = Choice.AUTO,
    as_json: Json = False,
) -> None:
    """Mend the distributions of a model by held-out pairs.

        bayeslista calibrate held_out.npy held_out_codes.npy --model m.safetensors --out calibrated.safetensors

    P(active) and the widths change so as to suit pairs that the model did not learn from; two hundred are enough as a
    rule. Calibrating again begins anew.
    """
    if method not in _METHODS:
        raise typer.BadParameter(f"choose one of {', '.join(_METHODS)}.", param_hint="--method")
    target = model if out is None else out
    check_place(target)
    made = load_model(model)
    if not hasattr(made, "calibrate"):
        raise ValueError(
            f"{model} is a {type(made).__name__}, which predicts no distributions: there is nothing to calibrate. "
            "Fit spike-slab-net or bayes-lista."
        )
    X, y = read_pairs(observations, codes, header)
    check_pairs(made, X, y, observations, codes)
    with using(model), naming(observations, codes):
        made.calibrate(X.values, y.values, method=method)
    with writing(target):
        made.save(target)
    n_pairs = len(y.values)
    result = {"model": str(target), "estimator": type(made).__name__, "method": method, "n_pairs": n_pairs}
    tell(result, [f"{target}: {describe(made)}, calibrated on {n_pairs} pairs ({method})."], as_json)
