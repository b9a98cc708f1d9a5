"""Estimators by name, and their parameters from text."""

import inspect
import json
from collections.abc import Mapping
from typing import Any

import typer

NAMES = {
    "spike-slab-net": "SpikeSlabNet",
    "bayes-lista": "BayesLISTA",
    "lista": "LISTA",
    "ista": "ISTA",
    "fista": "FISTA",
}

_NOT_BY_TEXT = ("self", "design_matrix", "verbose")


def class_name(text: str) -> str:
    """The class that a user means."""
    wanted = text.lower().replace("-", "").replace("_", "")
    for name in NAMES.values():
        if name.lower() == wanted:
            return name
    raise typer.BadParameter(f"there is no {text!r}; choose one of {', '.join(NAMES)}.", param_hint="--estimator")


def make_estimator(name: str, given: Mapping[str, Any], texts: list[str], **others: Any) -> Any:
    """Make an estimator from options (`given`, None where not), from ``name=value`` texts, and from `others`.

    `others` are passed where the constructor knows them.
    """
    import bayeslista

    kind = getattr(bayeslista, name)
    known = [each for each in inspect.signature(kind.__init__).parameters if each not in _NOT_BY_TEXT]
    wanted = {option: value for option, value in given.items() if value is not None}
    for option in wanted:
        if option not in known:
            raise typer.BadParameter(_unknown(name, option, known), param_hint=_hint(option))
    for text in texts:
        parameter, value = _parse(text)
        if parameter not in known:
            raise typer.BadParameter(_unknown(name, parameter, known), param_hint="--param")
        if parameter in wanted:
            raise typer.BadParameter(f"{parameter} is given twice.", param_hint="--param")
        wanted[parameter] = value
    everything = inspect.signature(kind.__init__).parameters
    extra = {each: value for each, value in others.items() if each in everything}
    model = kind(**{**extra, **wanted})
    try:
        model._check_parameters()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from error
    return model


def _parse(text: str) -> tuple[str, Any]:
    """A parameter and its value: JSON if it is, else one of Python's three names, else text."""
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name:
        raise typer.BadParameter(f"expected name=value, got {text!r}.", param_hint="--param")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, {"True": True, "False": False, "None": None}.get(value.strip(), value)


def _unknown(name: str, parameter: str, known: list[str]) -> str:
    return f"{name} has no parameter {parameter!r}. It has: {', '.join(known)}."


def _hint(parameter: str) -> str:
    return "--layers" if parameter == "n_layers" else f"--{parameter.replace('_', '-')}"
