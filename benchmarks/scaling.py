"""Beyond one machine: memory and throughput of prediction, training on shards, and where it would stop scaling.

    python benchmarks/scaling.py [--signals 2000000] [--some 200000] [--seeds 3] [--out results/scaling.md]

Workers are processes of one thread on this machine, each on a core of its own. Throughputs of one and two workers are
measured in turns, the best of several; processor time and the load of the machine stand beside them. The last tables
are a simulation from the costs measured before them.
"""

import argparse
import os
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import dask
import dask.array as da
import jax
import numpy as np
import psutil
import zarr
from distributed import Client, LocalCluster
from sklearn.base import clone

from bayeslista import BayesLISTA, SpikeSlabNet
from bayeslista.bayes_lista import early_stopping, variational, variational_fit
from bayeslista.bayes_lista.ascent import VariationalAscent
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import log_score, nmse, pit_coverage
from bayeslista.numerics.epochs import Epoch
from bayeslista.out_of_core.dask import fit, predict_to_zarr
from bayeslista.spike_slab.empirical_bayes import gather_statistics

N_COMPONENTS, N_OBSERVED, N_LAYERS = 100, 50, 10
N_SHARDS, REPEATS = 4, 5


@contextmanager
def cluster(n_workers):
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit=0
        ) as local,
        Client(local) as client,
    ):
        for core, worker in enumerate(client.run(os.getpid)):
            client.run(pin, core % os.cpu_count(), workers=[worker])
        yield client


def pin(core):
    """Keep all threads of this process on a core: XLA would use others, too."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})


def processor_seconds(client):
    """Of all workers together."""
    return sum(sum(psutil.Process(process).cpu_times()[:2]) for process in client.run(os.getpid).values())


class PeakMemory:
    """The largest sum of what this process and all its children hold, looked at ten times a second."""

    def __enter__(self):
        self.bytes, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _watch(self):
        me = psutil.Process()
        while not self._over.wait(0.1):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.bytes = max(self.bytes, total)


def observations(path, rows, n_signals):
    """A zarr array of as many observations as asked for, the same again and again."""
    array = zarr.create_array(path, shape=(n_signals, N_OBSERVED), chunks=(len(rows), N_OBSERVED), dtype="float32")
    for begin in range(0, n_signals, len(rows)):
        array[begin : begin + len(rows)] = rows[: n_signals - begin]
    return array


def load():
    return f"{os.getloadavg()[0]:.1f}"


def prediction(n_signals, n_some):
    data = make_sparse_codes(
        n_train=200, n_test=20_000, n_observed=N_OBSERVED, n_components=N_COMPONENTS, random_state=0
    )
    Y, B = data.Y_train.astype(np.float32), data.B_train.astype(np.float32)
    model = BayesLISTA(N_LAYERS, design_matrix=data.design_matrix, max_iter=5, random_state=0).fit(Y, B)
    rows = data.Y_test.astype(np.float32)
    lines = [
        "## Prediction",
        "",
        f"`predict_to_zarr`: mean, std and P(active), D = {N_COMPONENTS}, K = {N_OBSERVED}, {N_LAYERS} layers of "
        "`BayesLISTA`, float32, from zarr to zarr. Memory is that of client, scheduler and workers together.",
        "",
        "| signals | workers | seconds | processor seconds of workers | signals a second | peak memory | load before |",
        "|---|---|---|---|---|---|---|",
    ]

    def measure(client, X):
        begin, processor = time.perf_counter(), processor_seconds(client)
        group = predict_to_zarr(model, X, out, overwrite=True)
        return time.perf_counter() - begin, processor_seconds(client) - processor, group

    def row(n, n_workers, seconds, processor, memory, before):
        return f"| {n:,} | {n_workers} | {seconds:.1f} | {processor:.1f} | {n / seconds:,.0f} | {memory} | {before} |"

    found = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        few, some = (observations(Path(folder) / str(n), rows, n) for n in (60_000, n_some))
        out = Path(folder) / "codes"
        before = load()
        for _ in range(REPEATS):
            for n_workers, told in found.items():
                with cluster(n_workers) as client:
                    measure(client, few)  # every worker compiles
                    told.append(measure(client, some)[:2])
        lines += [row(n_some, n_workers, *np.min(told, axis=0), "", before) for n_workers, told in found.items()]
        whole = observations(Path(folder) / "all", rows, n_signals)
        before = load()
        with PeakMemory() as peak, cluster(2) as client:
            *taken, group = measure(client, whole)
        ends = [np.concatenate([each[:3], each[-3:]]) for each in (whole, group["mean"])]
        assert np.allclose(model.predict(ends[0]), ends[1], atol=1e-4)
        lines.append(row(n_signals, 2, *taken, f"{peak.bytes / 1e9:.2f} GB", before))
    one, two = (np.array(told) for told in found.values())
    each = ", ".join(f"{ratio:.2f}" for ratio in one[:, 0] / two[:, 0])
    lines += [
        "",
        f"By the clock two workers are {one[:, 0].min() / two[:, 0].min():.2f} times as fast as one (best of {REPEATS} "
        f"each; in turns: {each}), on {os.cpu_count()} cores that they share with that load. They take "
        f"{two[:, 1].min() / one[:, 1].min():.2f} times the processor time of one for the same signals.",
        "",
    ]
    return lines


def merging_every_step(n_shards, batch):
    """An ascent on shards, simulated here, that averages after every step in place of every epoch."""

    class EveryStep(VariationalAscent):
        def advance(self, n_epoch, random, max_iter):
            shards, dtype = np.array_split(np.sort(self._chosen), n_shards), self.problem.codes.dtype
            n_steps = -(-max(map(len, shards)) // batch)
            rates = variational.schedule(n_epoch, n_steps, max_iter).astype(dtype)
            orders = [np.resize(random.permutation(shard), (n_steps, batch)) for shard in shards]
            for step in range(n_steps):
                cut = slice(step, step + 1)
                weights = np.full((1, batch), len(self._chosen) / batch, dtype)
                found = [
                    variational.step(self.state, self.problem, order[cut], weights, rates[cut])[0] for order in orders
                ]
                self.state = jax.tree.map(lambda *parts: sum(parts) / len(parts), *found)
            self.state, score = early_stopping.validate(self.state, self.problem)
            self.error = float(score.error)
            values = {"n_pairs": len(self._chosen), "training_nmse": float(score.nmse)}
            return Epoch(values, {"skipped": 0}, {"skipped": 1})

    return EveryStep


def training(n_seeds):
    lines = [
        "## Training",
        "",
        f"`BayesLISTA`, 1,000 pairs in {N_SHARDS} shards on 2 workers, D = {N_COMPONENTS}, K = {N_OBSERVED}, "
        f"{N_LAYERS} layers, float64; means over {n_seeds} seeds, on 1,000 test signals. Averaging after every step is "
        "simulated in one process.",
        "",
        "| | NMSE | coverage of 90 % | log score | epochs | messages a worker and epoch |",
        "|---|---|---|---|---|---|",
    ]
    names = "one process, `fit`", "averaged every epoch, `out_of_core.dask.fit`", "averaged every step"
    found, differences, seconds = ([], [], []), [], []
    with cluster(2) as client:
        for seed in range(n_seeds):
            data = make_sparse_codes(
                n_train=1000, n_test=1000, n_observed=N_OBSERVED, n_components=N_COMPONENTS, random_state=seed
            )
            pairs = data.Y_train, data.B_train
            shards = [da.from_array(side, chunks=(1000 // N_SHARDS, -1)) for side in pairs]
            network = BayesLISTA(N_LAYERS, design_matrix=data.design_matrix, random_state=seed)
            begin = time.process_time()
            plain = clone(network).fit(*pairs)
            seconds.append((time.process_time() - begin) / (plain.n_iter_ * len(data.B_train)))
            apart = fit(clone(network), *shards, client=client)
            usual = variational_fit.VariationalAscent
            variational_fit.VariationalAscent = merging_every_step(N_SHARDS, 8)
            often = clone(network).fit(*pairs)
            variational_fit.VariationalAscent = usual
            for told, model in zip(found, (plain, apart, often), strict=True):
                dist = model.predict_dist(data.Y_test)
                scores = nmse(data.B_test, dist.mean()), pit_coverage(dist, data.B_test, 0.9, 0)
                told.append((*scores, log_score(dist, data.B_test), model.n_iter_))
            nets = [SpikeSlabNet(mode="accurate", training="none", random_state=seed) for _ in range(2)]
            fit(nets[0], *shards, client=client)
            nets[1].fit(*pairs)
            differences += [
                np.max(np.abs(mine - theirs)) / np.max(np.abs(theirs))
                for folds in zip(nets[0]._learner.folds, nets[1]._learner.folds, strict=True)
                for mine, theirs in zip(*folds, strict=True)
            ]
    means = [np.mean(told, axis=0) for told in found]
    for name, (error, covered, score, epochs), messages in zip(names, means, (0, 1, 29), strict=True):
        lines.append(f"| {name} | {error:.4f} | {covered:.3f} | {score:.3f} | {epochs:.0f} | {messages} |")
    lines += [
        "",
        f"On shards the NMSE is {means[1][0] - means[0][0]:+.4f} from that of one process. The sums that "
        f"`SpikeSlabNet` learns from differ by at most {max(differences):.0e} of their size.",
        "",
    ]
    return lines, min(seconds)


def seconds_to_add_up():
    """What the sums of `SpikeSlabNet` take for a pair."""
    random = np.random.default_rng(0)
    pairs = random.standard_normal((20_000, N_OBSERVED)), random.standard_normal((20_000, N_COMPONENTS))
    taken = []
    for _ in range(REPEATS):
        begin = time.process_time()
        gather_statistics(*pairs)
        taken.append((time.process_time() - begin) / len(pairs[0]))
    return min(taken)


def seconds_a_task():
    """What the scheduler takes for a task that does nothing, at its best."""
    taken = []
    with cluster(2):
        for _ in range(REPEATS):
            tasks = [dask.delayed(int, pure=False)(i) for i in range(1000)]
            begin = time.perf_counter()
            dask.compute(*tasks)
            taken.append((time.perf_counter() - begin) / len(tasks))
    return min(taken)


class Costs(NamedTuple):
    """What was measured, at D = 100 and K = 50, and what is assumed of the network."""

    pair: float
    pair_in_sums: float
    task: float
    bandwidth: float = 1.25e9
    spread: float = 0.1


def simulated(n_pairs, n_workers, costs, random, pair, n_bytes, sends):
    """Seconds of a round: sending what is common, the slowest shard, the tree of sums, and the scheduler."""
    slowest = n_pairs / n_workers * pair
    if n_workers > 1:
        slowest *= np.max(random.lognormal(0.0, costs.spread, n_workers))
    merges, left = 0.0, n_workers
    while left > 1:
        merges += (min(left, 8) - 1) * n_bytes / costs.bandwidth
        left = -(-left // 8)
    copies = np.ceil(np.log2(n_workers)) * n_bytes / costs.bandwidth if sends else 0.0
    return np.array([copies, slowest, merges, costs.task * n_workers * 8 / 7])


def simulation(costs):
    random = np.random.default_rng(0)
    lines = [
        "## Where it would stop",
        "",
        "Simulated, not measured: as many shards as workers, K = D / 2, 10 Gbit/s between workers, shards that take "
        "10 % more or less by chance, one after the other through the scheduler, sums in a tree of eights. Measured "
        f"here, for D = 100: {1e6 * costs.pair:.0f} µs a pair in a round of `BayesLISTA`, "
        f"{1e6 * costs.pair_in_sums:.1f} µs in the sums of `SpikeSlabNet`, {1e3 * costs.task:.2f} ms a task in the "
        "scheduler. Work a pair grows as D².",
        "",
        "| | pairs | D | workers | hours | faster than one | efficiency | most of it is | held by each task |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    kinds = ("sending parameters", "work on pairs", "adding up", "the scheduler")
    for n_pairs, d in ((10**6, 100), (10**9, 100), (10**6, 10**4), (10**9, 10**4)):
        k, growth = d // 2, (d / N_COMPONENTS) ** 2
        # Means and variances of W and R with both moments, in single precision; five folds of sums in double.
        ways = {
            "a round of `BayesLISTA`": (costs.pair * growth, 3 * 2 * d * (k + d) * 4, True),
            "sums of `SpikeSlabNet`": (costs.pair_in_sums * growth, 5 * (k * k + k * d + d * d) * 8, False),
        }
        for name, way in ways.items():
            alone = simulated(n_pairs, 1, costs, random, *way).sum()
            for n_workers in (8, 64, 512, 4096):
                parts = simulated(n_pairs, n_workers, costs, random, *way)
                speed = alone / parts.sum()
                lines.append(
                    f"| {name} | {n_pairs:.0e} | {d} | {n_workers} | {parts.sum() / 3600:.2g} | {speed:.3g} | "
                    f"{speed / n_workers:.0%} | {kinds[int(np.argmax(parts))]} | {way[1] / 1e9:.2g} GB |"
                )
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=2_000_000)
    parser.add_argument("--some", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    lines = ["# Beyond one machine", "", f"Made by `python benchmarks/scaling.py` on {os.cpu_count()} cores.", ""]
    lines += prediction(options.signals, options.some)
    trained, pair = training(options.seeds)
    lines += trained + simulation(Costs(pair, seconds_to_add_up(), seconds_a_task()))
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
