"""``bayeslista fit``: from tables of observations and codes to a model file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from bayeslista.cli._estimators import NAMES, class_name, make_estimator
from bayeslista.cli._model_files import (
    check_place,
    describe,
    file_errors,
    first_difference,
    load_model,
    read_observations,
    read_pairs,
    writing,
)
from bayeslista.cli._options import Choice, Header, Json, Observations, Quiet, Seed
from bayeslista.cli._running import reported, say, shows_progress, tell
from bayeslista.cli._scores import score, score_lines

_LEVEL = 0.9
_NOT_BEGUN, _BEGUN, _ENDED = "not begun", "begun", "ended"
_RESUMED = {_BEGUN: "The fit was resumed from {}.", _ENDED: "The fit had ended before: the model is that in {}."}


@reported
def fit(
    observations: Observations,
    codes: Annotated[
        str | None,
        typer.Argument(
            metavar="CODES",
            help="Table of their codes, row by row. Not needed by spike-slab-net with a design matrix.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[Path, typer.Option(help="File to write, usually .safetensors.", show_default=False)] = ...,  # type: ignore[assignment]
    design_matrix: Annotated[
        str | None,
        typer.Option(
            help="Table of shape (observed values, coefficients), else learned. Its header names the coefficients."
        ),
    ] = None,
    estimator: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = "spike-slab-net",
    layers: Annotated[int | None, typer.Option(help="Number of layers, or iterations; not of exact mode.")] = None,
    mode: Annotated[str | None, typer.Option(help="spike-slab-net: exact (the default), accurate or fast.")] = None,
    training: Annotated[
        str | None, typer.Option(help="spike-slab-net, accurate or fast: auto, full, none, or a number of steps.")
    ] = None,
    max_iter: Annotated[int | None, typer.Option(help="lista, bayes-lista: largest number of epochs.")] = None,
    shrinkage: Annotated[float | None, typer.Option(help="ista, fista, lista, bayes-lista: the threshold.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64; by default that of the tables.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any other parameter of the estimator; can be repeated."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File to save the state of a long fit to, and to resume from.")
    ] = None,
    seed: Seed = 0,
    test_fraction: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Fraction of the pairs to hold out and to score the model on.")
    ] = 0.0,
    header: Header = Choice.auto,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model to pairs of observations and codes.

        bayeslista fit observations.npy codes.npy --model m.safetensors
        bayeslista fit y.csv b.csv --design-matrix x.csv --mode fast --test-fraction 0.2 --model m.safetensors
        bayeslista fit y.csv b.csv --estimator lista --layers 8 --param learning_rate=0.1 --model m.safetensors

    The same command resumes a fit that was stopped, from its checkpoint:

        bayeslista fit y.npy b.npy --estimator bayes-lista --checkpoint c.safetensors --model m.safetensors

    With a design matrix, spike-slab-net can be fitted to observations alone:

        bayeslista fit observations.npy --design-matrix x.npy --model m.safetensors
    """
    import numpy as np

    name = class_name(estimator)
    given: dict[str, Any] = {
        "n_layers": layers,
        "mode": mode,
        "training": int(training) if training and training.isdecimal() else training,
        "max_iter": max_iter,
        "shrinkage": shrinkage,
        "dtype": dtype,
    }
    progress = shows_progress(quiet)
    made = make_estimator(name, given, param or [], random_state=seed, verbose=int(progress))
    if codes is None:
        _check_codes_are_not_needed(name, design_matrix, test_fraction)
    check_place(model)
    kept = {}
    if checkpoint is not None:
        if "checkpoint" not in signature(made.fit).parameters:
            raise typer.BadParameter(f"{name} is fitted too fast to need one.", param_hint="--checkpoint")
        check_place(checkpoint)
        kept = {"checkpoint": checkpoint}
    X, y = (read_observations(observations, header), None) if codes is None else read_pairs(observations, codes, header)
    component_names = _unique(() if y is None else y.names)
    if design_matrix is not None:
        matrix = read_observations(design_matrix, header)
        made.set_params(design_matrix=matrix.values)
        if sorted(component_names) == sorted(matrix.names) and component_names != matrix.names:
            raise ValueError(f"{codes} {first_difference(component_names, matrix.names, f'{design_matrix} has')}")
        component_names = component_names or _unique(matrix.names)
    pairs, test = _split(X.values, None if y is None else y.values, test_fraction, seed)
    if not quiet:
        say(f"Fitting {name} to {len(pairs[0])} {'observations' if codes is None else 'pairs'}.")
    start = time.perf_counter()
    before = _state_before(checkpoint)
    with file_errors(observations, codes), _resumption_named(checkpoint):
        made.fit(*pairs, **kept)
    seconds = time.perf_counter() - start
    if "verbose" in made.get_params():
        made.set_params(verbose=0)  # the file is the same whoever watches
    scores = None if test is None else score(made, *test, _LEVEL, seed)
    if X.names:
        made.feature_names_in_ = np.array(X.names, object)
    if component_names:
        made.component_names_ = np.array(component_names, object)
    with writing(model):
        made.save(model)
    n_fitted, n_test = len(pairs[0]), 0 if test is None else len(test[0])
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
    fitted_to = f"{n_fitted} {'observations' if codes is None else 'pairs'}"
    lines = [f"{model}: {describe(made)}, fitted to {fitted_to} in {seconds:.1f} s."]
    if before != _NOT_BEGUN:
        lines.append(_RESUMED[before].format(checkpoint))
    if scores is not None:
        lines += [f"On {n_test} pairs held out:", *score_lines(scores, _LEVEL)]
    tell(result, lines, as_json)


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that can be those of coefficients, or none."""
    return names if "" not in names and len(set(names)) == len(names) else ()


def _state_before(checkpoint: Path | None) -> str:
    """How far a checkpoint is; `fit` checks whether it is one of this fit."""
    if checkpoint is None or not checkpoint.exists():
        return _NOT_BEGUN
    try:
        load_model(checkpoint)
    except ValueError:
        return _BEGUN
    return _ENDED


@contextmanager
def _resumption_named(checkpoint: Path | None) -> Iterator[None]:
    """Add to an interrupt how to resume the fit."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if checkpoint is None or not checkpoint.exists():
            raise
        raise KeyboardInterrupt(f"the same command resumes from {checkpoint}") from stop


def _check_codes_are_not_needed(name: str, design_matrix: str | None, test_fraction: float) -> None:
    if name != "SpikeSlabNet" or design_matrix is None:
        raise typer.BadParameter(
            "is missing. Only spike-slab-net can be fitted to observations alone, and only with --design-matrix.",
            param_hint="CODES",
        )
    if test_fraction > 0:
        raise typer.BadParameter("needs codes to score the model on.", param_hint="--test-fraction")


def _split(X: Any, y: Any, fraction: float, seed: int) -> tuple[tuple[Any, ...], tuple[Any, Any] | None]:
    """Training arrays, and test pairs if some are held out."""
    if fraction == 0.0:
        return (X,) if y is None else (X, y), None
    import numpy as np

    n_test = max(1, round(fraction * len(X)))
    if n_test >= len(X):
        raise ValueError(f"--test-fraction {fraction:g} leaves none of the {len(X)} pairs to fit.")
    order = np.random.default_rng(seed).permutation(len(X))
    test, training = np.sort(order[:n_test]), np.sort(order[n_test:])
    return (X[training], y[training]), (X[test], y[test])
