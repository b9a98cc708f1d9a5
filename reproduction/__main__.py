"""Compute the figures of the paper: ``python -m reproduction --preset quick --out folder --jobs 2 layers``."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Every process has one thread. This has to be set before JAX and NumPy are imported; workers inherit it.
_ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Compute, print and write figures; return 1 if a cell or the folder failed, 130 after an interrupt, else 0."""
    # Deferred: the environment has to be set first.
    from reproduction.figures import summary
    from reproduction.page import NO_PLOTLY, can_draw_charts, count_reasons
    from reproduction.reproduce import FIGURES, reproduce

    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Compute the figures of the paper. Finished cells are kept: the same command goes on.",
    )
    parser.add_argument("figure", nargs="*", help=f"of {', '.join(FIGURES)}; by default all of them")
    parser.add_argument("--preset", choices=("quick", "standard", "paper"), default="quick", help="how much to compute")
    parser.add_argument("--out", type=Path, default=Path("reproduction_output"), help="folder (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each (%(default)s)")
    parser.add_argument("--point", type=int, action="append", default=[], help="only this point; may be repeated")
    asked = parser.parse_args(argv)
    if unknown := set(asked.figure) - FIGURES.keys():
        parser.error(f"no figure {sorted(unknown)[0]}: choose from {', '.join(FIGURES)}")
    if asked.jobs < 1:
        parser.error("--jobs has to be at least 1")
    figures = [figure for name in asked.figure or FIGURES for figure in FIGURES[name]]
    try:
        for figure in figures:
            figure.cells(asked.preset, asked.point)
    except ValueError as error:
        parser.error(str(error))
    if not can_draw_charts():
        print(NO_PLOTLY, file=sys.stderr)
    try:
        results = reproduce(figures, asked.preset, asked.out, asked.jobs, asked.point)
    except OSError as error:
        print(f"Cannot write to {asked.out}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Finished cells are kept; the same command goes on from there.", file=sys.stderr)
        return 130
    for figure in figures:
        print(f"\n{summary(figure, results.table(figure.name))}")
    print(f"\nOpen {asked.out / 'report.html'} for all of it; tables (.csv) and figures (.svg, .png) are beside it.")
    for (name, method, reason), n in count_reasons(results.failures).items():
        print(f"{n} of {name}, {method}: {reason}", file=sys.stderr)
    if results.failures:
        print(f"{len(results.failures)} cells failed: see {asked.out / 'failures.txt'}", file=sys.stderr)
    return int(bool(results.failures))


if __name__ == "__main__":
    os.environ.update(_ONE_THREAD)
    sys.exit(main())
