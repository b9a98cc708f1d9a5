"""The demonstration: all estimators on the paper's synthetic problem, with a table, figures and a page.

Run it with ``make demo`` or ``python -m reproduction.demo --out demo_output``.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pandas as pd
from sklearn.utils import Bunch
from tqdm import tqdm

from bayeslista.datasets import make_sparse_codes
from bayeslista.distributions import SpikeSlab
from bayeslista.estimators import FISTA, ISTA, LISTA, BayesLISTA, NumericalWarning, SpikeSlabNet
from bayeslista.metrics import coverage, nmse, support_coverage, support_f_measure
from bayeslista.plots import plot_code, plot_nmse
from bayeslista.reports.page import Block, Figure, Paragraph, Section, Table, svg_bytes, write_page
from reproduction.figures import aligned

if TYPE_CHECKING:
    import matplotlib.figure

_LEVEL = 0.9
_SHRINKAGES = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
_CHOICE_PAIRS = 200
_LARGEST_SEED = 2**32 - 1
_HEADER = ("method", "NMSE", "F-measure", "fit (s)", "predict (s)")


class DemoSizes(NamedTuple):
    """Sizes of the data and lengths of the fits; the defaults are the paper's problem."""

    n_train: int = 1000
    n_test: int = 100
    n_observed: int = 50
    n_components: int = 100
    n_layers: int = 10
    converged_steps: int = 2000
    max_iter: int = 50


_PAPER = DemoSizes()


class _Result(NamedTuple):
    """Scores of one method on the test pairs; the last four for predictive distributions only."""

    method: str
    nmse: float
    f_measure: float
    fit_seconds: float
    predict_seconds: float
    coverage_90: float | None = None  # of all coefficients
    coverage_90_active: float | None = None  # of those that are not zero
    coverage_90_given_active: float | None = None  # of the same, by intervals given that a coefficient is active
    variance_ratio: float | None = None  # predicted variance over squared error

    @property
    def name(self) -> str:
        """The method without its number of layers or steps."""
        return self.method.partition(",")[0]

    def texts(self) -> tuple[str, ...]:
        seconds = (f"{self.fit_seconds:.1f}", f"{self.predict_seconds:.3f}")
        return (self.method, f"{self.nmse:.3f}", f"{self.f_measure:.3f}", *seconds)


class _Outcome(NamedTuple):
    """All results, a test code with its predicted distribution, and warnings."""

    results: list[_Result]
    code: np.ndarray
    distribution: SpikeSlab
    notes: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; return 1 if the folder cannot be written to, 130 after an interrupt, else 0."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="folder to write to (%(default)s)")
    parser.add_argument("--seed", type=_seed, default=0, help="seed of the data and the fits (%(default)s)")
    asked = parser.parse_args(argv)
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
        outcome = _run(_PAPER, asked.seed)
        _write(outcome, _PAPER, asked.seed, asked.out)
    except OSError as error:
        print(f"Cannot write the demonstration to {asked.out}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        return 130
    lines = aligned([_HEADER, *(result.texts() for result in outcome.results)])
    print("", *lines, "", *_coverage_lines(outcome), *outcome.notes, sep="\n")
    print(f"\nOpen {asked.out / 'index.html'} for the figures; {asked.out / 'results.csv'} has the numbers.")
    return 0


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"must lie between 0 and {_LARGEST_SEED}, got {value}")
    return value


def _run(sizes: DemoSizes, seed: int) -> _Outcome:
    """Fit and score every method."""
    data = make_sparse_codes(sizes.n_train, sizes.n_test, sizes.n_observed, sizes.n_components, random_state=seed)
    design, depth, steps = data.design_matrix, sizes.n_layers, sizes.converged_steps
    results = [
        _score_proximal(f"ISTA, {depth} steps", ISTA(depth, design_matrix=design), data),
        _score_proximal(f"FISTA, {depth} steps", FISTA(depth, design_matrix=design), data),
        _score_proximal(f"Lasso (FISTA, {steps} steps)", FISTA(steps, design_matrix=design), data),
    ]
    notes: list[str] = []
    lista = LISTA(depth, design_matrix=design, random_state=seed, verbose=1)
    results.append(_score(f"LISTA, {depth} layers", lista, data, _fit(lista, data, notes)))

    bayesian = {
        f"BayesLISTA, {depth} layers": BayesLISTA(
            depth, design_matrix=design, max_iter=sizes.max_iter, random_state=seed, verbose=1
        ),
        "SpikeSlabNet": SpikeSlabNet(design_matrix=design, random_state=seed, verbose=1),
    }
    for method, model in bayesian.items():
        result = _score(method, model, data, _fit(model, data, notes))
        posterior = model.predict_dist(data.Y_test)
        ratio = posterior.var().mean() / np.mean((posterior.mean() - data.B_test) ** 2)
        results.append(
            result._replace(
                f_measure=support_f_measure(data.B_test, (posterior.prob_active > 0.5).astype(float)),
                coverage_90=coverage(posterior, data.B_test, _LEVEL),
                coverage_90_active=support_coverage(posterior, data.B_test, _LEVEL),
                coverage_90_given_active=support_coverage(posterior, data.B_test, _LEVEL, given_active=True),
                variance_ratio=float(ratio),
            )
        )
    errors = np.linalg.norm(posterior.mean() - data.B_test, axis=1)
    typical = int(np.argsort(errors)[len(errors) // 2])
    return _Outcome(results, data.B_test[typical], posterior[typical], notes)


def _score_proximal(method: str, model: ISTA | FISTA, data: Bunch) -> _Result:
    """Score a solver that learns nothing, with the best of a few thresholds on the first training pairs."""
    start = time.perf_counter()
    observations, codes = data.Y_train[:_CHOICE_PAIRS], data.B_train[:_CHOICE_PAIRS]
    errors = []
    for shrinkage in tqdm(_SHRINKAGES, desc=method, unit="threshold"):
        model.set_params(shrinkage=shrinkage).fit(observations, codes)
        errors.append(nmse(codes, model.predict(observations)))
    model.set_params(shrinkage=_SHRINKAGES[int(np.argmin(errors))]).fit(data.Y_train, data.B_train)
    return _score(method, model, data, time.perf_counter() - start)


def _score(
    method: str, model: ISTA | FISTA | LISTA | BayesLISTA | SpikeSlabNet, data: Bunch, fit_seconds: float
) -> _Result:
    codes = model.predict(data.Y_test)  # the first call compiles, the second is measured
    start = time.perf_counter()
    model.predict(data.Y_test)
    predict_seconds = time.perf_counter() - start
    f_measure = support_f_measure(data.B_test, codes)
    return _Result(method, nmse(data.B_test, codes), f_measure, fit_seconds, predict_seconds)


def _fit(model: LISTA | BayesLISTA | SpikeSlabNet, data: Bunch, notes: list[str]) -> float:
    """Fit, append warnings to the notes, and return the seconds, compilation included."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericalWarning)
        model.fit(data.Y_train, data.B_train)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        notes.append(f"Note on {type(model).__name__}: {message}")
    return time.perf_counter() - start


def _coverage_lines(outcome: _Outcome) -> list[str]:
    return [
        f"{result.name}'s {_LEVEL:.0%} intervals hold {result.coverage_90:.1%} of all true coefficients and "
        f"{result.coverage_90_active:.1%} of those that are not zero, intervals given that a coefficient is active "
        f"{result.coverage_90_given_active:.1%} of these; the variance it predicts is "
        f"{result.variance_ratio:.2f} of its squared error, on average."
        for result in outcome.results
        if result.coverage_90 is not None
    ]


def _write(outcome: _Outcome, sizes: DemoSizes, seed: int, folder: Path) -> None:
    """Write figures, results and page into a folder."""
    title = "A test code of median error: the truth and the prediction of SpikeSlabNet"
    scores = {result.method: result.nmse for result in outcome.results}
    axes = plot_code(outcome.code, outcome.distribution, title=title), plot_nmse(scores)
    code_figure, nmse_figure = (cast("matplotlib.figure.Figure", each.figure) for each in axes)
    for name, figure in (("code", code_figure), ("nmse", nmse_figure)):
        figure.savefig(folder / f"{name}.png", dpi=150)
        (folder / f"{name}.svg").write_bytes(svg_bytes(figure))
    pd.DataFrame(outcome.results).to_csv(folder / "results.csv", index=False)
    best = min(outcome.results, key=lambda result: result.nmse)
    problem = Paragraph(
        f"Codes of {sizes.n_components} coefficients, a fifth of them not zero, are observed through "
        f"{sizes.n_observed} random projections with noise. The learned methods see {sizes.n_train} pairs of "
        f"observation and code; all are scored on {sizes.n_test} others. Seed {seed}; "
        f"python -m reproduction.demo --seed {seed} makes this page again."
    )
    errors: list[Block] = [
        Table(
            _HEADER,
            [result.texts() for result in outcome.results],
            "NMSE: mean of the error's norm over the code's. F-measure: of the coefficients found not to be zero, for "
            "the last two those with P(active) above one half. Fitting includes compilation and, for ISTA and FISTA, "
            "the choice of a threshold on training pairs; predicting is for all test pairs, once compiled.",
        ),
        Figure(
            nmse_figure,
            "Bars of NMSE. " + ", ".join(f"{result.method}: {result.nmse:.3f}" for result in outcome.results) + ".",
            "Error of the codes by method, averaged over the test pairs; lower is better.",
        ),
        Paragraph(
            f"On this run {best.name} has the lowest NMSE. BayesLISTA and LISTA learn from the pairs, thresholds "
            f"included, for at most {sizes.max_iter} and 200 epochs; those of ISTA, FISTA and the Lasso were chosen on "
            "training pairs. The Lasso takes two hundred times as many steps as these networks have layers. "
            "SpikeSlabNet learns noise, sparsity and slab from the pairs and samples the posterior of each code. The "
            "last two predict a distribution for every coefficient."
        ),
    ]
    uncertainty: list[Block] = [
        Figure(
            code_figure,
            "Above, true coefficients that are not zero, each joined to its predicted mean, over bars of two standard "
            "deviations. Below, the predicted probability that each coefficient is not zero.",
            "The test code whose error is the median. Circles: true coefficients that are not zero. Dots and bars: "
            "predicted mean and two standard deviations. Below: probability of not being zero, in colour where that "
            "is true.",
        ),
        Paragraph(" ".join(_coverage_lines(outcome))),
        Paragraph(
            "BayesLISTA calibrates its distributions on a tenth of the pairs; the posterior needs no calibration. Most "
            "true coefficients are exactly zero and most intervals contain zero, so intervals hold more of all "
            "coefficients than their level says, and less of those that are not zero: a small coefficient is easily "
            "taken for none."
        ),
        *(Paragraph(note) for note in outcome.notes),
    ]
    write_page(
        folder / "index.html",
        "bayeslista: sparse codes and their uncertainty",
        [Section("The problem", [problem]), Section("Errors", errors), Section("Uncertainty", uncertainty)],
    )


if __name__ == "__main__":
    sys.exit(main())
