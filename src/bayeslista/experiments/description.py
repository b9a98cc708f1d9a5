"""How a figure is described: a title, axes, and for each preset the cells that make it."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bayeslista.experiments.cells import Cell

__all__ = ["Figure", "Preset", "PresetName", "sweep_cells"]

PresetName = Literal["quick", "standard", "paper"]


@dataclass(frozen=True)
class Preset:
    """How much of a figure to compute.

    Parameters
    ----------
    points : sequence of int
        Where on the horizontal axis.
    seeds : mapping of str to int
        The methods, in the order of the legend, and for each how many seeds, counted from 0.
    passes : mapping of str to int
        Passes over the training pairs, for methods that do not run by their own defaults.
    sizes : mapping of str to int
        Sizes of the data and of the networks.

    Examples
    --------
    >>> from bayeslista.experiments.description import Preset
    >>> Preset(points=(2, 4), seeds={"ISTA": 10}, passes={}, sizes={"n_train": 1000}).seeds["ISTA"]
    10
    """

    points: Sequence[int]
    seeds: Mapping[str, int]
    passes: Mapping[str, int]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper and how to make it.

    Parameters
    ----------
    name : str
        Of its files, and of the published curves it is laid over.
    title, x_label : str
        What stands on it.
    presets : mapping of str to Preset
        ``"quick"``, ``"standard"`` and ``"paper"``.
    make_cells : callable
        From the figure's name and a preset to cells.
    log_x : bool, default=False
        Whether the horizontal axis is logarithmic.
    compare : callable or None, default=None
        From the records of the figure to one more table, header first, where curves are to be compared seed by seed.
    comparison : str, default=""
        What that table shows.

    Examples
    --------
    >>> from bayeslista.experiments.layers import FIGURE
    >>> FIGURE.name, len(FIGURE.cells("quick")) < len(FIGURE.cells("paper"))
    ('layers', True)
    """

    name: str
    title: str
    x_label: str
    presets: Mapping[str, Preset]
    make_cells: Callable[[str, Preset], list[Cell]]
    log_x: bool = False
    compare: Callable[[Sequence[Any]], list[tuple[str, ...]]] | None = None
    comparison: str = ""

    def cells(self, preset: str, points: Sequence[int] = ()) -> list[Cell]:
        """The cells of a preset, always in the same order; of some points only, if any are named."""
        chosen = self.presets[preset]
        if strange := sorted(set(points) - set(chosen.points)):
            known = ", ".join(f"{point}" for point in chosen.points)
            raise ValueError(f"{self.name} has no point {strange[0]} in the preset {preset}: choose from {known}.")
        if points:
            chosen = replace(chosen, points=[point for point in chosen.points if point in points])
        return self.make_cells(self.name, chosen)


def sweep_cells(figure: str, task: str, preset: Preset, at_once: Container[str]) -> list[Cell]:
    """One cell for each method, point and seed; one for all points of some methods.

    Parameters
    ----------
    figure : str
        Name of the figure.
    task : str
        What computes a cell, as ``"package.module:function"``.
    preset : Preset
        How much to compute.
    at_once : container of str
        Methods whose cells are for all points: those that are quick, or the same everywhere.

    Returns
    -------
    list of Cell
        By method, then by seed, then by point.

    Examples
    --------
    >>> from bayeslista.experiments.description import Preset, sweep_cells
    >>> preset = Preset((2, 4), {"ISTA": 1, "LISTA": 1}, {"LISTA": 5}, {})
    >>> [(cell.method, cell.point) for cell in sweep_cells("layers", "module:function", preset, {"ISTA"})]
    [('ISTA', None), ('LISTA', 2), ('LISTA', 4)]
    """
    cells = []
    for method, n_seeds in preset.seeds.items():
        whole: list[tuple[int | None, Sequence[int]]] = [(None, preset.points)]
        parts = whole if method in at_once else [(point, [point]) for point in preset.points]
        for seed in range(n_seeds):
            for point, points in parts:
                cells.append(Cell(figure, method, point, seed, task, settings(method, preset, points)))
    return cells


def settings(method: str, preset: Preset, points: Sequence[int]) -> dict[str, Any]:
    """What a cell needs to know beside its names.

    Parameters
    ----------
    method : str
        The method.
    preset : Preset
        How much to compute.
    points : sequence of int
        The points this cell is for.

    Returns
    -------
    dict
        ``points``, ``passes`` (None for the method's default) and ``sizes``.

    Examples
    --------
    >>> from bayeslista.experiments.description import Preset, settings
    >>> settings("LISTA", Preset((2, 4), {"LISTA": 1}, {"LISTA": 5}, {}), [2])
    {'points': [2], 'passes': 5, 'sizes': {}}
    """
    return {"points": list(points), "passes": preset.passes.get(method), "sizes": dict(preset.sizes)}
