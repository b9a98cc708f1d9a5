"""``bayeslista regress``: which columns of a table matter for one of them."""

from pathlib import Path
from typing import Annotated

import typer

from bayeslista.cli._model_files import check_place, file_errors, writing
from bayeslista.cli._options import Choice, Header, Json, Level, Quiet, Seed
from bayeslista.cli._running import reported, shows_progress, tell

_SHOWN = 20


@reported
def regress(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Table with one row for every sample.", show_default=False)
    ],
    target: Annotated[str, typer.Option(help="Column to explain by all others: its name.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Inclusion table to write, .csv.", show_default=False)] = None,
    model: Annotated[Path | None, typer.Option(help="File to write the model to.", show_default=False)] = None,
    level: Level = 0.9,
    fdr: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Expected share of false discoveries of the selection.")
    ] = 0.1,
    seed: Seed = 0,
    header: Header = Choice.auto,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Regress one column of a table on all others, with the probability that each matters.

        bayeslista regress table.csv --target y --out inclusion.csv

    The inclusion table has, for every feature, the probability that its coefficient is not zero, the coefficient's
    mean and standard deviation, its interval given that it is not zero, and the probability that it is positive.
    """
    import pandas as pd

    from bayeslista import SpikeSlabRegressor
    from bayeslista.io.tables import read_table

    for place in (out, model):
        if place is not None:
            check_place(place)
    read = read_table(table, header, (target,))
    if target not in read.names:
        known = f"; it has {', '.join(read.names[:_SHOWN])}" if read.names else ", as it has no line of names"
        raise ValueError(f"{table} has no column {target!r}{known}. Pass --target with the name of a column.")
    frame = pd.DataFrame(read.values, columns=list(read.names))
    with file_errors(table):
        fitted = SpikeSlabRegressor(random_state=seed, verbose=shows_progress(quiet))
        fitted.fit(frame.drop(columns=target), frame[target])
    found = fitted.inclusion_table(level)
    selected = fitted.select(fdr)
    if out is not None:
        with writing(out):
            found.to_csv(out, index=False)
    if model is not None:
        with writing(model):
            fitted.save(model)
    r2 = fitted.score(frame.drop(columns=target), frame[target])
    names = fitted.feature_names_in_[selected].tolist()
    rest = [f"… and {len(found) - _SHOWN} more features"] if len(found) > _SHOWN else []
    lines = [
        f"{table}: {len(frame)} samples, {len(found)} features; R² {r2:.3f} on them, noise {fitted.noise_std_:.4g}.",
        found.head(_SHOWN).to_string(index=False, float_format=lambda value: f"{value:.3g}"),
        *rest,
        f"Selected, with an expected share of false discoveries of at most {fdr:g}: {', '.join(names) or 'none'}.",
    ]
    result = {"n_samples": len(frame), "r2": float(r2), "noise_std": float(fitted.noise_std_), "selected": names}
    tell({**result, "features": found.to_dict("records")}, lines, as_json)
