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
    """The class that a user names."""
    wanted = text.lower().replace("-", "").replace("_", "")
    for name in NAMES.values():
        if name.lower() == wanted:
            return name
    raise typer.BadParameter(f"there is no {text!r}; choose one of {', '.join(NAMES)}.", param_hint="--estimator")


def make_estimator(name: str, given: Mapping[str, Any], texts: list[str], **others: Any) -> Any:
    """An estimator from options, None where not given, ``name=value`` texts, and others that it may not have."""
    import bayeslista

    kind = getattr(bayeslista, name)
    parameters = inspect.signature(kind.__init__).parameters
    known = [each for each in parameters if each not in _NOT_BY_TEXT]
    wanted = {option: value for option, value in given.items() if value is not None}
    for option in wanted:
        if option not in known:
            hint = "--layers" if option == "n_layers" else f"--{option.replace('_', '-')}"
            raise typer.BadParameter(_unknown(name, option, known), param_hint=hint)
    for text in texts:
        parameter, value = _parse(text)
        if parameter not in known:
            raise typer.BadParameter(_unknown(name, parameter, known), param_hint="--param")
        if parameter in wanted:
            raise typer.BadParameter(f"{parameter} is given twice.", param_hint="--param")
        wanted[parameter] = value
    return kind(**{**{each: value for each, value in others.items() if each in parameters}, **wanted})


def _parse(text: str) -> tuple[str, Any]:
    """A parameter and its value: JSON if it is, else True, False or None, else text."""
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
