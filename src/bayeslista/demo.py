"""The demonstration: all estimators on the paper's synthetic problem, with a table, figures and a page.

Run it with ``make demo`` or ``python -m bayeslista.demo --out demo_output``.
"""

import argparse
import csv
import os
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from sklearn.utils import Bunch
from tqdm import tqdm

from bayeslista.datasets import make_sparse_codes
from bayeslista.distributions import SpikeSlab
from bayeslista.estimators import FISTA, ISTA, LISTA, BayesLISTA, NumericalWarning, SpikeSlabNet
from bayeslista.metrics import nmse, support_f_measure
from bayeslista.plots import plot_code, plot_nmse
from bayeslista.report import Figure, Paragraph, Section, Table, write_page

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["main"]

_LEVEL = 0.9
_SHRINKAGES = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
_CHOICE_PAIRS = 200
_LARGEST_SEED = 2**32 - 1
_HEADER = ("method", "NMSE", "F-measure", "fit (s)", "predict (s)")
_INTERRUPTED = 130


_Estimator = ISTA | FISTA | LISTA | BayesLISTA | SpikeSlabNet


class Problem(NamedTuple):
    """How much data there are and how long each method runs; the defaults are the paper's problem.

    Examples
    --------
    >>> from bayeslista.demo import Problem
    >>> Problem().n_layers
    10
    """

    n_train: int = 1000
    n_test: int = 100
    n_observed: int = 50
    n_components: int = 100
    n_layers: int = 10
    converged_steps: int = 2000
    max_iter: int = 50
    calibration_steps: int = 60


_PAPER = Problem()


class _Result(NamedTuple):
    """Scores of one method on the test pairs."""

    method: str
    nmse: float
    f_measure: float
    fit_seconds: float
    predict_seconds: float

    def cells(self) -> tuple[str, ...]:
        seconds = (f"{self.fit_seconds:.1f}", f"{self.predict_seconds:.3f}")
        return (self.method, f"{self.nmse:.3f}", f"{self.f_measure:.3f}", *seconds)


class _Coverage(NamedTuple):
    """Shares of true coefficients inside their intervals, and the predicted variance over the squared error."""

    overall: float
    active: float
    variance_ratio: float


class _Outcome(NamedTuple):
    """All that the demonstration found out."""

    results: list[_Result]
    coverage: dict[str, _Coverage]  # by method
    code: np.ndarray
    distribution: SpikeSlab
    notes: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration from the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        ``--out FOLDER`` and ``--seed NUMBER``; by default those of the process.

    Returns
    -------
    int
        0, or 1 where the folder cannot be written to, or 130 after an interrupt. Figures, table and page appear
        together at the end or not at all.

    Examples
    --------
    >>> from bayeslista.demo import main
    >>> main(["--seed", "minus one"])
    Traceback (most recent call last):
    SystemExit: 2
    """
    parser = argparse.ArgumentParser(prog="python -m bayeslista.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="folder to write to (%(default)s)")
    parser.add_argument("--seed", type=_seed, default=0, help="seed of the data and the fits (%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        _demonstrate(arguments.out, arguments.seed, _PAPER)
    except OSError as error:
        print(f"Cannot write the demonstration to {arguments.out}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"must lie between 0 and {_LARGEST_SEED}, got {value}")
    return value


def _demonstrate(out: Path, seed: int, problem: Problem) -> None:
    """Run everything and put the files in place, all at the end."""
    fresh = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        # The staging folder shows, before minutes are spent, that there is a place to write to.
        with TemporaryDirectory(prefix=".unfinished-", dir=out) as staging:
            outcome = _run(problem, seed)
            _write(outcome, problem, seed, Path(staging))
            for file in sorted(Path(staging).iterdir()):
                os.replace(file, out / file.name)
    except BaseException:
        if fresh:
            with suppress(OSError):
                out.rmdir()
        raise
    print()
    print(_text_table(outcome.results))
    print()
    print("\n".join([*_coverage_lines(outcome), *outcome.notes]))
    print(f"\nOpen {out / 'index.html'} for the figures; {out / 'results.csv'} has the numbers.")


def _run(problem: Problem, seed: int) -> _Outcome:
    """Fit and score every method."""
    data = make_sparse_codes(
        problem.n_train, problem.n_test, problem.n_observed, problem.n_components, random_state=seed
    )
    design, depth = data.design_matrix, problem.n_layers
    results = [
        _score_proximal(f"ISTA, {depth} steps", ISTA(depth, design_matrix=design), data),
        _score_proximal(f"FISTA, {depth} steps", FISTA(depth, design_matrix=design), data),
        _score_proximal(
            f"Lasso (FISTA, {problem.converged_steps} steps)",
            FISTA(problem.converged_steps, design_matrix=design),
            data,
        ),
    ]
    notes: list[str] = []
    lista = LISTA(depth, design_matrix=design, random_state=seed, verbose=1)
    seconds = _fit(lista, data, notes)
    results.append(_score(f"LISTA, {depth} layers", lista, data, seconds))

    bayesian = {
        f"BayesLISTA, {depth} layers": BayesLISTA(
            depth, design_matrix=design, max_iter=problem.max_iter, random_state=seed, verbose=1
        ),
        f"SpikeSlabNet, {2 * depth} layers": SpikeSlabNet(
            2 * depth, design_matrix=design, calibration_steps=problem.calibration_steps, random_state=seed
        ),
    }
    coverage = {}
    for method, model in bayesian.items():
        if isinstance(model, SpikeSlabNet):  # which trains in a single call
            print(f"{method}: trained on simulated pairs, in silence; the longest of all …", file=sys.stderr)
        seconds = _fit(model, data, notes)
        posterior = model.predict_dist(data.Y_test)
        believed_active = (posterior.prob_active > 0.5).astype(float)
        result = _score(method, model, data, seconds)
        results.append(result._replace(f_measure=support_f_measure(data.B_test, believed_active)))
        inside = _inside(posterior, data.B_test)
        ratio = posterior.var().mean() / np.mean((posterior.mean() - data.B_test) ** 2)
        shares = float(inside.mean()), float(inside[data.B_test != 0.0].mean())
        coverage[method] = _Coverage(*shares, float(ratio))

    errors = np.linalg.norm(posterior.mean() - data.B_test, axis=1)
    typical = int(np.argsort(errors)[len(errors) // 2])
    return _Outcome(results, coverage, data.B_test[typical], posterior[typical], notes)


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


def _score(method: str, model: _Estimator, data: Bunch, fit_seconds: float) -> _Result:
    codes = model.predict(data.Y_test)  # the first call compiles; the second is what a user waits for
    start = time.perf_counter()
    model.predict(data.Y_test)
    predict_seconds = time.perf_counter() - start
    f_measure = support_f_measure(data.B_test, codes)
    return _Result(method, nmse(data.B_test, codes), f_measure, fit_seconds, predict_seconds)


def _fit(model: LISTA | BayesLISTA | SpikeSlabNet, data: Bunch, notes: list[str]) -> float:
    """Fit, add what it warned of to the notes, and return the seconds it took, compilation included."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericalWarning)
        model.fit(data.Y_train, data.B_train)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        notes.append(f"Note on {type(model).__name__}: {message}")
    return time.perf_counter() - start


def _inside(belief: SpikeSlab, codes: np.ndarray) -> np.ndarray:
    low, high = belief.interval(_LEVEL)
    return (low <= codes) & (codes <= high)


def _text_table(results: Sequence[_Result]) -> str:
    """The results in columns, numbers flush right."""
    rows = [_HEADER, *(result.cells() for result in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _coverage_lines(outcome: _Outcome) -> list[str]:
    return [
        f"{_name(method)}'s {_LEVEL:.0%} intervals hold {coverage.overall:.1%} of all true coefficients and "
        f"{coverage.active:.1%} of those that are not zero; the variance it predicts is {coverage.variance_ratio:.2f} "
        "of the squared error it makes, on average."
        for method, coverage in outcome.coverage.items()
    ]


def _name(method: str) -> str:
    """A method without the number of its layers or steps."""
    return method.partition(",")[0]


def _write(outcome: _Outcome, problem: Problem, seed: int, folder: Path) -> None:
    """Write figures, results and page into a folder."""
    title = "A test code of median error: the truth and what SpikeSlabNet believes"
    scores = {result.method: result.nmse for result in outcome.results}
    axes = plot_code(outcome.code, outcome.distribution, title=title), plot_nmse(scores)
    code_figure, nmse_figure = (cast("matplotlib.figure.Figure", each.figure) for each in axes)
    for name, figure in (("code", code_figure), ("nmse", nmse_figure)):
        figure.savefig(folder / f"{name}.png", dpi=150)
        figure.savefig(folder / f"{name}.svg")
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([*_Result._fields, "coverage_90", "coverage_90_active"])
        for result in outcome.results:
            coverage = outcome.coverage.get(result.method)
            writer.writerow([*result, *((coverage.overall, coverage.active) if coverage else ("", ""))])
    pictures = (
        Figure(
            nmse_figure,
            "Bars of NMSE. " + ", ".join(f"{result.method}: {result.nmse:.3f}" for result in outcome.results) + ".",
            "Error of the codes by method, averaged over the test pairs; lower is better.",
        ),
        Figure(
            code_figure,
            "Above, true coefficients that are not zero, each joined to its predicted mean, over bars of two standard "
            "deviations. Below, the predicted probability that each coefficient is not zero.",
            "The test code whose error is the median. Circles: true coefficients that are not zero. Dots and bars: "
            "predicted mean and two standard deviations. Below: probability of not being zero, in colour where that "
            "is true.",
        ),
    )
    write_page(
        folder / "index.html",
        "bayeslista: sparse codes and how sure they are",
        _story(outcome, problem, seed, pictures),
    )


def _story(outcome: _Outcome, problem: Problem, seed: int, pictures: tuple[Figure, Figure]) -> list[Section]:
    """The page, with no claim that the numbers of this run do not carry."""
    best = min(outcome.results, key=lambda result: result.nmse)
    standing = f"On this run {_name(best.method)} has the lowest NMSE."
    errors, belief = pictures
    return [
        Section(
            "The problem",
            [
                Paragraph(
                    f"Codes of {problem.n_components} coefficients, a fifth of them not zero, are observed through "
                    f"{problem.n_observed} random projections with noise. The learned methods see {problem.n_train} "
                    f"pairs of observation and code; all are scored on {problem.n_test} others. Seed {seed}; "
                    f"python -m bayeslista.demo --seed {seed} makes this page again."
                ),
            ],
        ),
        Section(
            "Errors",
            [
                Table(
                    _HEADER,
                    [result.cells() for result in outcome.results],
                    "NMSE: mean of the error's norm over the code's. F-measure: of the coefficients found not to be "
                    "zero, for the last two those with P(active) above one half. Fitting includes compilation and, for "
                    "ISTA and FISTA, the choice of a threshold on training pairs; predicting is for all test pairs, "
                    "once compiled.",
                ),
                errors,
                Paragraph(
                    f"{standing} BayesLISTA and LISTA learn from the pairs, thresholds included, for at most "
                    f"{problem.max_iter} and 200 passes; those of ISTA, FISTA and the Lasso were chosen on training "
                    "pairs. The Lasso takes two hundred times as many steps as these networks have layers. "
                    "SpikeSlabNet learns noise, sparsity and slab, and a few scalars from pairs that it simulates. The "
                    "last two predict a distribution for every coefficient."
                ),
            ],
        ),
        Section(
            "Beliefs",
            [
                belief,
                Paragraph(" ".join(_coverage_lines(outcome))),
                Paragraph(
                    "BayesLISTA calibrates its distributions on a tenth of the pairs, SpikeSlabNet by simulation. Most "
                    "true coefficients are exactly zero and most intervals contain zero, so intervals hold more of all "
                    "coefficients than their level says, and less of those that are not zero: a small coefficient is "
                    "easily taken for none."
                ),
                *(Paragraph(note) for note in outcome.notes),
            ],
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
