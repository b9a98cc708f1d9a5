"""How many times as long one thing takes as another, on one core: both take turns, and the best of each counts.

    python benchmarks/speed/ratios.py results/bench_ratios.json

A slow spell of the machine, which may last for minutes, meets both sides of a ratio.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _peers import autodiff_pass, torch_pass, weight_draws
from _problems import PASSES, SIZES, Problem, fitted, prediction

_SECONDS, _LEAST = 4.0, 7  # to take turns for, and turns at least
_DRAWN = SIZES[:2] + SIZES[3:4]  # of others a hundred draws take minutes


def turns(*calls: Callable[[], float], least: int = _LEAST) -> list[float]:
    """The best of every call, each of which tells what it took."""
    for call in calls:
        call()
    best, end, n = [float("inf")] * len(calls), time.perf_counter() + _SECONDS, 0
    while n < least or time.perf_counter() < end:
        best = [min(so_far, call()) for so_far, call in zip(best, calls, strict=True)]
        n += 1
    return best


def timed(call: Callable[[], Any], n: int) -> Callable[[], float]:
    """What a call takes for one of `n` signals or pairs."""

    def run() -> float:
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) / n

    return run


def ratios() -> Iterator[dict[str, Any]]:
    """What is compared, its value, and what is asked of it."""

    def told(what: str, value: float, bar: float, at_most: bool = True) -> dict[str, Any]:
        return {"what": what, "value": value, "bar": bar, "at_most": at_most}

    small, large = SIZES[0], SIZES[3]
    for size, floors, times in ((large, 3, 1.8), (small, 5, 1.4)):
        problem, named = Problem(*size, "float64"), ", ".join(map(str, size))
        call, n, work = PASSES["BayesLISTA.published"](problem)
        own, by_autodiff, floor = turns(
            timed(call, n), timed(*autodiff_pass(problem, "jax.grad")), lambda work=work, n=n: work.floor() / n
        )
        yield told(f"ADF pass / floor, {named}", own / floor, floors)
        yield told(f"ADF pass by `jax.grad` / by hand, {named}", by_autodiff / own, times, at_most=False)
    for size in SIZES:
        for dtype in ("float64", "float32"):
            problem, named = Problem(*size, dtype), f"{', '.join(map(str, size))}, {dtype}"
            own, torch = turns(timed(*PASSES["BayesLISTA"](problem)[:2]), timed(*torch_pass(problem)))
            yield told(f"pass of BayesLISTA / of PyTorch's LISTA, {named}", own / torch, 4)
            certain, uncertain = (timed(*prediction(name, problem)[:2]) for name in ("LISTA", "BayesLISTA"))
            plain, own = turns(certain, uncertain)
            yield told(f"prediction with std / LISTA's, {named}", own / plain, 4)
            if size in _DRAWN:
                own, drawn = turns(uncertain, timed(*weight_draws(problem)), least=2)
                what = f"100 draws of the weights / prediction with std, {named}"
                yield told(what, drawn / own, 20, at_most=False)
            fitted.cache_clear()
    (double, n, work), (single, *_) = (PASSES["BayesLISTA"](Problem(*large, dtype)) for dtype in ("float64", "float32"))
    own, shorter, floor = turns(timed(double, n), timed(single, n), lambda: work.floor() / n)
    named = ", ".join(map(str, large))
    yield told(f"pass of BayesLISTA / floor, {named}", own / floor, 3)
    yield told(f"pass of BayesLISTA, float64 / float32, {named}", own / shorter, 1.6, at_most=False)


def main() -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few epochs warn of what does not matter here
        for row in ratios():
            print(f"{row['value']:8.2f}  {row['what']}", flush=True)
            found.append(row)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
