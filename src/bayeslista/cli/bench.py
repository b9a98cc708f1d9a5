"""``bayeslista bench``: how fast the estimators are on this machine."""

from enum import StrEnum
from typing import Annotated

import typer

from bayeslista.cli._options import Json
from bayeslista.cli._running import reported, say, tell


class FloatingType(StrEnum):
    """Of the data."""

    DOUBLE = "float64"
    SINGLE = "float32"


@reported
def bench(
    components: Annotated[int, typer.Option(min=1, help="Coefficients, D.")] = 100,
    observed: Annotated[int, typer.Option(min=1, help="Observed values, K.")] = 50,
    layers: Annotated[int, typer.Option(min=1, help="Layers, L.")] = 10,
    signals: Annotated[int, typer.Option(min=1, help="Signals to predict.")] = 4096,
    dtype: Annotated[FloatingType, typer.Option(help="Floating type of the data.")] = FloatingType.DOUBLE,
    as_json: Json = False,
) -> None:
    """Measure fits and predictions of all estimators on this machine.

        bayeslista bench --components 784 --observed 100 --layers 20 --dtype float32

    Fits are short ones, of five passes, or without calibration. The defaults take about a minute.
    """
    from bayeslista.experiments.speed import measure_speed

    lines = [f"{'':20}{'first fit':>12}{'fit':>12}{'a signal':>14}"]
    rows = []
    for row in measure_speed(components, observed, layers, n_signals=signals, dtype=dtype.value):
        say(f"{row.estimator}: {1e6 * row.predict:.2f} µs a signal.")
        rows.append(row._asdict())
        lines.append(f"{row.estimator:20}{row.first_fit:10.2f} s{row.fit:10.2f} s{1e6 * row.predict:11.2f} µs")
    tell({"seconds": rows}, lines, as_json)
