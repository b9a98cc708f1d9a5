"""``bayeslista fit``: learn from tables, and keep the model in a file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from bayeslista.cli._estimators import NAMES, class_name, make_estimator
from bayeslista.cli._files import (
    check_place,
    describe,
    keep_names,
    load_model,
    naming,
    read_observations,
    read_pairs,
    writing,
)
from bayeslista.cli._options import Choice, Header, Json, Observations, Quiet, Seed
from bayeslista.cli._running import reported, say, shows_progress, tell
from bayeslista.cli._scores import score, score_lines

_LEVEL = 0.9
_NOT_BEGUN, _BEGUN, _ENDED = "not begun", "begun", "ended"
_RESUMED = {
    _BEGUN: "The fit went on from {}.",
    _ENDED: "The fit had ended before: this is what {} holds.",
}
_STARTED = "Fitting {}. This can take minutes."


@reported
def fit(
    observations: Observations,
    codes: Annotated[
        str | None,
        typer.Argument(
            metavar="CODES",
            help="Table of their codes, row by row. spike-slab-net needs none if there is a design matrix.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[Path, typer.Option(help="File to write, by custom .safetensors.", show_default=False)] = ...,  # type: ignore[assignment]
    design_matrix: Annotated[
        str | None, typer.Option(help="Table of shape (observed values, coefficients). Else it is learned.")
    ] = None,
    estimator: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = "spike-slab-net",
    layers: Annotated[int | None, typer.Option(help="How many layers, or steps.")] = None,
    mode: Annotated[str | None, typer.Option(help="spike-slab-net: accurate or fast.")] = None,
    calibration_steps: Annotated[int | None, typer.Option(help="spike-slab-net: 0 is quick.")] = None,
    max_iter: Annotated[int | None, typer.Option(help="lista, bayes-lista: passes over the pairs at most.")] = None,
    shrinkage: Annotated[float | None, typer.Option(help="ista, fista, lista, bayes-lista: the threshold.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64; else that of the tables.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any other parameter of the estimator; can be repeated."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="lista, bayes-lista, spike-slab-net: file to keep what is learned in, and to go on from."),
    ] = None,
    seed: Seed = 0,
    test_fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Fraction of the pairs to hold out and to score the model on.")
    ] = 0.0,
    header: Header = Choice.AUTO,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model to pairs of observations and codes.

        bayeslista fit observations.npy codes.npy --model m.safetensors
        bayeslista fit y.csv b.csv --design-matrix x.csv --mode fast --test-fraction 0.2 --model m.safetensors
        bayeslista fit y.csv b.csv --estimator lista --layers 8 --param learning_rate=0.1 --model m.safetensors

    A fit that was stopped goes on from its checkpoint when the same command is given again:

        bayeslista fit y.npy b.npy --estimator bayes-lista --checkpoint c.safetensors --model m.safetensors

    With a design matrix, spike-slab-net learns from observations alone:

        bayeslista fit observations.npy --design-matrix x.npy --model m.safetensors
    """
    name = class_name(estimator)
    given: dict[str, Any] = {
        "n_layers": layers,
        "mode": mode,
        "calibration_steps": calibration_steps,
        "max_iter": max_iter,
        "shrinkage": shrinkage,
        "dtype": dtype,
    }
    progress = shows_progress(quiet)
    made = make_estimator(name, given, param or [], random_state=seed, verbose=int(progress))
    if codes is None:
        _check_codes_are_not_needed(name, design_matrix, test_fraction)
    check_place(model)
    kept = {} if checkpoint is None else {"checkpoint": _checked_checkpoint(checkpoint, name)}
    if design_matrix is not None:
        made.set_params(design_matrix=read_observations(design_matrix, header).values)
    X, y = (read_observations(observations, header), None) if codes is None else read_pairs(observations, codes, header)
    training, test = _split(X.values, None if y is None else y.values, test_fraction, seed)
    if progress:
        say(_STARTED.format(name))
    start = time.perf_counter()
    before = _course_before(checkpoint)
    with naming(observations, codes), _told_how_to_go_on(checkpoint):
        made.fit(*training, **kept)
    seconds = time.perf_counter() - start
    if "verbose" in made.get_params():
        made.set_params(verbose=0)  # the file is the same whoever watches
    scores = None if test is None else score(made, *test, _LEVEL, seed)
    keep_names(made, X, y)
    with writing(model):
        made.save(model)
    n_fitted, n_test = len(training[0]), 0 if test is None else len(test[0])
    result = {
        "model": str(model),
        "estimator": name,
        "n_fitted": n_fitted,
        "n_test": n_test,
        "n_observed": made.n_features_in_,
        "n_components": made.n_components_,
        "with_codes": codes is not None,
        "seconds": round(seconds, 3),
        "checkpoint": None if checkpoint is None else {"path": str(checkpoint), "before": before},
        "scores": scores,
    }
    learned_from = f"{n_fitted} {'observations' if codes is None else 'pairs'}"
    lines = [f"{model}: {describe(made)}, fitted to {learned_from} in {seconds:.1f} s."]
    if before != _NOT_BEGUN:
        lines.append(_RESUMED[before].format(checkpoint))
    if scores is not None:
        lines += [f"On {n_test} pairs held out:", *score_lines(scores, _LEVEL)]
    tell(result, lines, as_json)


def _checked_checkpoint(checkpoint: Path, name: str) -> Path:
    if name in ("ISTA", "FISTA"):
        raise typer.BadParameter("is of no use where nothing is learned.", param_hint="--checkpoint")
    check_place(checkpoint)
    return checkpoint


def _course_before(checkpoint: Path | None) -> str:
    """How far a checkpoint is; whether it is one of this fit, the fit itself finds out."""
    if checkpoint is None or not checkpoint.exists():
        return _NOT_BEGUN
    try:
        load_model(checkpoint)
    except ValueError:
        return _BEGUN
    return _ENDED


@contextmanager
def _told_how_to_go_on(checkpoint: Path | None) -> Iterator[None]:
    """Say, where a fit is interrupted, that it can go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if checkpoint is None or not checkpoint.exists():
            raise
        raise KeyboardInterrupt(f"the same command goes on from {checkpoint}") from stop


def _check_codes_are_not_needed(name: str, design_matrix: str | None, test_fraction: float) -> None:
    if name != "SpikeSlabNet" or design_matrix is None:
        raise typer.BadParameter(
            "is missing. Only spike-slab-net learns from observations alone, and only with --design-matrix.",
            param_hint="CODES",
        )
    if test_fraction > 0:
        raise typer.BadParameter("needs codes to score the model on.", param_hint="--test-fraction")


def _split(X: Any, y: Any, fraction: float, seed: int) -> tuple[tuple[Any, ...], tuple[Any, Any] | None]:
    """Training arrays, and test pairs if some are to be held out."""
    if fraction == 0.0:
        return (X,) if y is None else (X, y), None
    import numpy as np

    n_test = max(1, round(fraction * len(X)))
    if n_test >= len(X):
        raise ValueError(f"--test-fraction {fraction:g} leaves none of the {len(X)} pairs to learn from.")
    order = np.random.default_rng(seed).permutation(len(X))
    test, training = np.sort(order[:n_test]), np.sort(order[n_test:])
    return (X[training], y[training]), (X[test], y[test])
