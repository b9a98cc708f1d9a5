"""Tables of what the benchmarks measured, and the bars that are set for them.

    python benchmarks/speed/render.py results/bench.md results/bench_1.json results/bench_2.json \
        results/bench_ratios.json results/bench_first.json results/bench_growth.json
"""

import json
import sys
from pathlib import Path
from typing import Any

SIZES = ["100, 50, 4", "100, 50, 20", "500, 250, 16", "784, 100, 20", "784, 250, 20"]
Times = dict[tuple[str, str, str, str, int], tuple[float, float | None]]


def read(paths: list[str]) -> Times:
    """Seconds a signal and floor, by kind, name, size, floating type and cores."""
    times: Times = {}
    for path in filter(lambda path: Path(path).exists(), paths):
        told = json.loads(Path(path).read_text())
        for each in told["benchmarks"]:
            info = each["extra_info"]
            key = info["kind"], info["name"], each["group"], info["dtype"], told["cores"]
            floor = info.get("floor")
            times[key] = each["stats"]["min"] / info["n"], None if floor is None else floor / info["n"]
    return times


def number(seconds: float) -> str:
    """Microseconds in three digits."""
    value = 1e6 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(times: Times, kind: str, cores: int) -> list[str]:
    """One kind of work: a row for each method and floating type, a column for each size."""
    names = dict.fromkeys((name, dtype) for k, name, _, dtype, c in times if k == kind and c == cores)
    lines = ["| | | " + " | ".join(SIZES) + " |", "|---|---|" + "---|" * len(SIZES)]
    for name, dtype in names:
        cells = []
        for size in SIZES:
            seconds, floor = times.get((kind, name, size, dtype, cores), (None, None))
            ratio = f" ({seconds / floor:.1f})" if seconds and floor else ""
            cells.append(number(seconds) + ratio if seconds else "")
        lines.append(f"| {name} | {dtype} | " + " | ".join(cells) + " |")
    return lines


def bars(ratios: list[dict[str, Any]], first: dict[str, Any], growth: dict[str, Any]) -> list[str]:
    """What must be true, what was measured, and whether it is."""
    lines = ["| bar | measured | asked for | |", "|---|---|---|---|"]

    def say(what: str, value: float, bar: float, at_most: bool = True) -> None:
        met = value <= bar if at_most else value >= bar
        lines.append(f"| {what} | {value:.2f} | {'≤' if at_most else '≥'} {bar:g} | {'met' if met else '**missed**'} |")

    for row in ratios:
        say(**row)
    fits = first["fit"]
    torch = next(value for name, value in fits.items() if "PyTorch" in name)
    say("default fit, BayesLISTA / LISTA (compilation included)", fits["BayesLISTA"] / fits["LISTA"], 3)
    say("default fit, BayesLISTA / PyTorch's LISTA to its best", fits["BayesLISTA"] / torch, 1)
    for name, seconds in first["cold"].items():
        say(f"first call, cold, seconds: {name}", seconds, 5)
    for name, seconds in first["warm"].items():
        say(f"first call, compiled before, seconds: {name}", seconds, 1.5)
    plain, ours = first["import"].values()
    say("import of all estimators / of jax, sklearn.base and scipy.special", ours / plain, 1.3)
    for name, sweep in growth["sweeps"].items():
        for part in ("pass", "prediction"):
            exponent = sweep[f"{part}_exponent"]
            what = f"exponent of a {part} in {name}"
            if name in "NL":
                met = 0.9 <= exponent <= 1.1
                lines.append(f"| {what} | {exponent:.2f} | 0.9 to 1.1 | {'met' if met else '**missed**'} |")
            else:
                say(what, exponent, 2 if name == "D" else 1.1)
    for row in growth["memory"]:
        value = (row["peak"] - row["data"]) / row["weights"]
        say(f"peak of a fit less the data / bytes of weights, N, D, K, L = {row['size']}", value, 12)
    million = growth["million"]
    say("a million signals: peak less what is returned, MB", (million["peak"] - million["returned"]) / 1e6, 200)
    return lines


def main() -> None:
    out, one, two, *others = sys.argv[1:]
    times = read([one, two])
    ratios, told, grown = (json.loads(Path(path).read_text()) for path in others)
    lines = [
        "# Speed",
        "",
        "Made by `make bench`. Microseconds for a signal, or a pair, in the best of several calls; in brackets, how",
        "many times that is the floor: bytes that have to move over the copy bandwidth at that working set, or",
        "operations over the rate of a product of matrices, whichever takes longer, both measured in the same run.",
        "Sizes are D, K, L. Training passes are in mini-batches of 32 and of the compiled part alone; that of",
        "SpikeSlabNet is all that it learns from pairs. Predictions are of whole estimators, with standard deviations",
        "where there are any. Read ratios, not times.",
    ]
    for cores in (1, 2):
        for kind in ("training pass", "prediction"):
            if any(key[0] == kind and key[-1] == cores for key in times):
                lines += ["", f"## {kind.capitalize()}, {'one core' if cores == 1 else 'two cores'}", ""]
                lines += table(times, kind, cores)
    lines += [
        "",
        "## A new process, and whole fits",
        "",
        "First calls begin after the import, except in the last column.",
        "",
        "| seconds | cold, on one core | compiled, on one core | cold, on all | compiled, on all | import too |",
        "|---|---|---|---|---|---|",
    ]
    kinds = "cold on one core", "warm on one core", "cold", "warm", "warm with import"
    lines += [f"| {name} | " + " | ".join(f"{told[kind][name]:.2f}" for kind in kinds) + " |" for name in told["cold"]]
    lines += [f"| {name}: a whole fit | {value:.2f} | | | | |" for name, value in told["fit"].items()]
    lines += [f"| import {name} | {value:.2f} | | | | |" for name, value in told["import"].items()]
    lines += ["", "## Growth", "", "![Time by pairs, coefficients, observations and layers](bench_growth.png)", ""]
    note = "Ratios are of best times that took turns; what the tables show was measured minutes apart."
    lines += ["## The bars", "", note, "", *bars(ratios, told, grown)]
    Path(out).write_text("\n".join(lines) + "\n")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
