"""``bayeslista report``: a page about a model."""

from pathlib import Path
from typing import Annotated

import typer

from bayeslista.cli._model_files import check_place, file_errors, load_model, read_pairs, writing
from bayeslista.cli._options import Choice, Codes, Header, Json, Model, Observations
from bayeslista.cli._running import reported, tell


@reported
def report(
    observations: Observations,
    codes: Codes,
    model: Model,
    out: Annotated[Path, typer.Option(help="The page to write, .html.", show_default=False)],
    header: Header = Choice.auto,
    as_json: Json = False,
) -> None:
    """Write a page about a model and its predictions.

        bayeslista report test_observations.npy test_codes.npy --model m.safetensors --out page.html

    The pairs should be ones that it was not fitted to.
    """
    from bayeslista.reports.model_report import write_model_report

    check_place(out)
    made = load_model(model)
    X, y = read_pairs(observations, codes, header, made)
    with file_errors(observations, codes, model), writing(out):
        write_model_report(made, X.values, y.values, out)
    tell({"model": str(model), "out": str(out), "n_pairs": len(y.values)}, [f"Open {out} for the report."], as_json)
