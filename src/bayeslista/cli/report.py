"""``bayeslista report``: a page about a model."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from bayeslista.cli._files import check_pairs, check_place, load_model, naming, read_pairs, using, writing
from bayeslista.cli._options import Choice, Codes, Header, Json, Model, Observations
from bayeslista.cli._running import reported, tell


@reported
def report(
    observations: Observations,
    codes: Codes,
    model: Model,
    out: Annotated[Path, typer.Option(help="The page to write, .html.", show_default=False)],
    header: Header = Choice.AUTO,
    as_json: Json = False,
) -> None:
    """Write a page about a model and its predictions.

    bayeslista report test_observations.npy test_codes.npy --model m.safetensors --out page.html

    The pairs are to be such as it did not learn from.
    """
    check_place(out)
    made = load_model(model)
    X, y = read_pairs(observations, codes, header)
    check_pairs(made, X, y, observations, codes)
    write = import_module("bayeslista.model_report").write_model_report
    with using(model), naming(observations, codes), writing(out):
        write(made, X.values, y.values, out)
    tell({"model": str(model), "out": str(out), "n_pairs": len(y.values)}, [f"Open {out} for the report."], as_json)
