"""Blocks of rows on Dask give what one process gives."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from joblib import parallel_config
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from bayeslista import ISTA, LISTA, BayesLISTA, SpikeSlab, SpikeSlabNet, load
from bayeslista.datasets import make_sparse_codes
from bayeslista.out_of_core.dask import _rounds, fit, predict, predict_dist, predict_to_zarr

N_OBSERVED, N_COMPONENTS, N_TEST = 6, 8, 2500


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(
        n_train=203, n_test=N_TEST, n_observed=N_OBSERVED, n_components=N_COMPONENTS, random_state=0
    )


@pytest.fixture(scope="module")
def coder(data):
    return ISTA(3, design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)


@pytest.fixture(scope="module")
def model(data):
    net = SpikeSlabNet(2, mode="fast", training="none", random_state=0)
    return net.fit(data.Y_train, data.B_train)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two processes on this machine, with nothing open to others."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit=0) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


class TestPrediction:
    def test_blocks_are_lazy_and_know_what_they_will_be(self, data, model):
        observations = da.map_blocks(
            pytest.fail, dtype="float64", chunks=((100, 50), (N_OBSERVED,)), meta=np.zeros((0, 0))
        )
        for part in predict(model, observations, return_std=True, prob_active=True):
            assert part.chunks == ((100, 50), (N_COMPONENTS,))
            assert part.dtype == part._meta.dtype == np.float64

    def test_arrays_give_the_bits_of_the_model(self, data, model):
        mean, std, prob_active = dask.compute(*predict(model, data.Y_test, True, True, batch_size=1))
        np.testing.assert_array_equal([mean, std], model.predict(data.Y_test, return_std=True))
        np.testing.assert_array_equal(prob_active, model.predict_dist(data.Y_test).prob_active)

    def test_blocks_of_any_sizes_and_columns_give_the_same_numbers(self, data, model):
        blocks = da.from_array(data.Y_test, chunks=((1, 2000, 499), (4, 2)))
        np.testing.assert_allclose(predict(model, blocks).compute(), model.predict(data.Y_test), rtol=1e-10, atol=1e-12)

    def test_blocks_of_unknown_sizes_are_predicted(self, data, coder):
        blocks = da.from_array(data.Y_test, chunks=(500, N_OBSERVED))
        positive = blocks[blocks[:, 0] > 0]
        expected = coder.predict(data.Y_test[data.Y_test[:, 0] > 0])
        np.testing.assert_allclose(predict(coder, positive).compute(), expected, rtol=1e-12)
        np.testing.assert_allclose(predict(coder, positive, batch_size=1024).compute(), expected, rtol=1e-12)
        assert np.isnan(positive.shape[0])  # what was passed is as it was

    def test_distributions_are_those_of_the_model(self, data, model):
        blocks = predict_dist(model, data.Y_test)
        dist = SpikeSlab(*dask.compute(*blocks))
        np.testing.assert_array_equal(dist.slab_var, model.predict_dist(data.Y_test).slab_var)

    def test_single_coefficients_stay_one_dimensional(self, data):
        single = ISTA(3).fit(data.Y_train.astype(np.float32), data.B_train[:, 0].astype(np.float32))
        blocks = predict(single, data.Y_test.astype(np.float32))
        assert (blocks.shape, blocks.dtype) == ((N_TEST,), np.float32)
        np.testing.assert_array_equal(blocks.compute(), single.predict(data.Y_test))

    def test_a_model_is_once_in_the_graph(self, data, coder):
        sizes = [len(pickle.dumps(dict(predict(coder, da.zeros((n, N_OBSERVED), chunks=1)).dask))) for n in (1, 40)]
        assert sizes[1] < sizes[0] + 39 * len(pickle.dumps(coder))

    def test_a_file_travels_by_name(self, data, coder, tmp_path):
        np.save(tmp_path / "X.npy", data.Y_test)
        mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
        for rows in (mapped, mapped[7:]):
            blocks = predict(coder, rows)
            assert len(pickle.dumps(dict(blocks.dask))) < data.Y_test.nbytes / 4
            np.testing.assert_array_equal(blocks.compute(), coder.predict(rows))
        for rows in (mapped[::2], np.load(tmp_path / "X.npy", mmap_mode="c")):
            np.testing.assert_array_equal(predict(coder, rows).compute(), coder.predict(rows))

    def test_a_bad_block_is_told_by_its_place(self, data, coder):
        observations = data.Y_test.copy()
        observations[2049, 3] = np.inf
        blocks = predict(coder, observations, batch_size=1024)
        with pytest.raises(ValueError, match=r"Block 1 of X: Input X contains infinity, first in row 1025, column 3"):
            blocks.compute()

    @pytest.mark.parametrize(
        ("X", "options", "message"),
        [
            ([[1.0]], {}, "X is a list; pass a dask array"),
            (np.zeros((5, 3)), {}, r"X has shape \(5, 3\), expected \(n_samples, 6\) as in fit"),
            (np.zeros(6), {}, r"X has shape \(6,\)"),
            (np.zeros((0, 6)), {}, "X has no rows"),
            (np.zeros((5, 6)), {"batch_size": 0}, "'batch_size' parameter of .* must be"),
            (np.zeros((5, 6)), {"return_std": 1}, "'return_std' parameter of .* must be"),
            (np.zeros((5, 6)), {"prob_active": True}, "ISTA predicts codes without distributions"),
        ],
    )
    def test_what_cannot_be_predicted_is_refused_at_once(self, coder, X, options, message):
        with pytest.raises(ValueError, match=message):
            predict(coder, X, **options)

    def test_models_that_are_none_or_not_fitted_are_refused(self, data):
        with pytest.raises(ValueError, match="The model is a str"):
            predict("model", data.Y_test)
        with pytest.raises(NotFittedError):
            predict(ISTA(), data.Y_test)


class TestFiles:
    @pytest.mark.slow
    def test_zarr_to_zarr_on_workers(self, data, coder, tmp_path, client):
        source = zarr.create_array(tmp_path / "X.zarr", data=data.Y_test, chunks=(700, N_OBSERVED))
        with client.as_current():
            group = predict_to_zarr(
                coder, source, tmp_path / "codes.zarr", return_std=False, prob_active=False, batch_size=1
            )
        # Other processes compile for themselves: the last digits are theirs.
        np.testing.assert_allclose(group["mean"][:], coder.predict(data.Y_test), rtol=1e-10, atol=1e-13)

    def test_all_that_is_predicted_is_written(self, data, model, tmp_path):
        group = predict_to_zarr(model, data.Y_test, tmp_path / "codes.zarr", batch_size=1)
        mean, std = model.predict(data.Y_test, return_std=True)
        np.testing.assert_array_equal(group["mean"][:], mean)
        np.testing.assert_array_equal(group["std"][:], std)
        np.testing.assert_array_equal(group["prob_active"][:], model.predict_dist(data.Y_test).prob_active)

    def test_blocks_of_any_sizes_are_written(self, data, coder, tmp_path):
        blocks = da.from_array(data.Y_test, chunks=((1, 2000, 499), N_OBSERVED))
        group = predict_to_zarr(
            coder, blocks[blocks[:, 0] < 9], tmp_path / "codes", return_std=False, prob_active=False
        )
        np.testing.assert_array_equal(group["mean"][:], coder.predict(data.Y_test[data.Y_test[:, 0] < 9]))
        assert list(group) == ["mean"]

    def test_what_is_there_is_replaced_only_if_asked(self, data, coder, tmp_path):
        plain = {"return_std": False, "prob_active": False}
        predict_to_zarr(coder, data.Y_test[:1], tmp_path / "codes", **plain)
        with pytest.raises(FileExistsError, match="overwrite=True"):
            predict_to_zarr(coder, data.Y_test, tmp_path / "codes", **plain)
        group = predict_to_zarr(coder, data.Y_test, tmp_path / "codes", overwrite=True, **plain)
        assert group["mean"].shape == (N_TEST, N_COMPONENTS)
        assert [path.name for path in tmp_path.iterdir()] == ["codes"]

    def test_nothing_is_left_of_a_failure(self, data, coder, tmp_path):
        observations = data.Y_test.copy()
        observations[-1] = np.nan
        with pytest.raises(ValueError, match="contains NaN"):
            predict_to_zarr(coder, observations, tmp_path / "codes", return_std=False, prob_active=False)
        assert list(tmp_path.iterdir()) == []


def shards(data, sizes=((50, 0, 3, 150), -1)):
    return [da.from_array(side, chunks=sizes) for side in (data.Y_train, data.B_train)]


NET = SpikeSlabNet(2, mode="fast", training="none", random_state=0)
NETWORK = BayesLISTA(2, max_iter=4, random_state=0)


class TestTraining:
    @pytest.mark.parametrize("given", [True, False])
    def test_sums_over_blocks_are_those_over_all_pairs(self, data, given):
        net = clone(NET).set_params(design_matrix=data.design_matrix if given else None)
        apart, together = fit(clone(net), *shards(data)), clone(net).fit(data.Y_train, data.B_train)
        for mine, theirs in zip(apart._learner.folds, together._learner.folds, strict=True):
            for part, same in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(part, same, rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(apart._learner.kept[1], together._learner.kept[1])
        assert apart._learner.n_seen == together._learner.n_seen
        assert apart._learner.units == together._learner.units
        np.testing.assert_allclose(apart.predict(data.Y_test), together.predict(data.Y_test), rtol=1e-8, atol=1e-10)

    def test_the_size_of_all_pairs_counts_and_not_that_of_the_first(self, data):
        X, y = (np.tile(side, (8, 1)) for side in (data.Y_train, data.B_train))
        X[1200:], y[1200:] = 64 * X[1200:], 64 * y[1200:]
        apart = fit(clone(NET), X, y, batch_size=1024)
        together = clone(NET).fit(X, y)
        assert apart._learner.units == together._learner.units
        np.testing.assert_allclose(apart.design_matrix_, together.design_matrix_, rtol=1e-10)

    def test_codes_that_are_all_zero_are_learned(self, data):
        X = data.Y_train[:40]
        nothing = fit(clone(NET), X, np.zeros((40, 2)))
        np.testing.assert_array_equal(nothing.design_matrix_, clone(NET).fit(X, np.zeros((40, 2))).design_matrix_)

    def test_rounds_over_shards_learn_what_a_single_process_learns(self, data, tmp_path):
        network = clone(NETWORK).set_params(design_matrix=data.design_matrix, max_iter=15)
        apart = fit(clone(network), *shards(data))
        alone = clone(network).fit(data.Y_train, data.B_train)
        errors = [np.mean((one.predict(data.Y_test) - data.B_test) ** 2) for one in (apart, alone)]
        assert errors[0] < 1.02 * errors[1]
        assert errors[0] < 0.5 * np.mean(data.B_test**2)
        deviations = [np.mean(one.predict(data.Y_test, return_std=True)[1] ** 2) for one in (apart, alone)]
        assert 0.9 < deviations[0] / deviations[1] < 1.1
        assert apart.history_.keys() == alone.history_.keys()
        apart.save(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(
            load(tmp_path / "model.safetensors").predict(data.Y_test), apart.predict(data.Y_test)
        )

    def test_every_pair_counts_once_however_many_shards_there_are(self, data):
        # The prior of the weights is weighed against all pairs: in the end their variances tell how many were counted.
        network = clone(NETWORK).set_params(design_matrix=data.design_matrix, max_iter=30, tol=0)
        alone = clone(network).fit(data.Y_train, data.B_train).history_["encoder_var"]
        few = clone(network).fit(data.Y_train[:68], data.B_train[:68]).history_["encoder_var"]
        for size in (203, 68):
            apart = fit(clone(network), *shards(data, (size, -1))).history_["encoder_var"]
            assert abs(np.log(apart[-1] / alone[-1])) < 0.25 * np.log(few[-1] / alone[-1])

    def test_pairs_beyond_the_sample_are_learned_from(self, data, monkeypatch):
        monkeypatch.setattr(_rounds, "_SAMPLE", 100)
        network = fit(clone(NETWORK), *shards(data, ((2, 101, 100), -1)))
        again = fit(clone(NETWORK), *shards(data, ((2, 101, 100), -1)))
        assert network.history_["n_pairs"][0] == 203 - 10  # a tenth of the sample, twice: two networks side by side
        np.testing.assert_array_equal(network.encoder_, again.encoder_)

    def test_a_lost_worker_changes_nothing(self, data, client, monkeypatch):
        undisturbed = fit(clone(NETWORK), *shards(data), client=client)
        assert any(client.run(lambda: "bayeslista.out_of_core.dask._rounds" in sys.modules).values())
        processes = set(client.run(os.getpid).values())
        validate, calls = _rounds.early_stopping.validate, []

        def validate_and_strike(*args):
            calls.append(args)
            if len(calls) == 3:
                os.kill(min(processes), signal.SIGKILL)
            return validate(*args)

        monkeypatch.setattr(_rounds.early_stopping, "validate", validate_and_strike)
        disturbed = fit(clone(NETWORK), *shards(data), client=client)
        assert len(calls) > 3
        assert min(processes) not in client.run(os.getpid).values()
        np.testing.assert_array_equal(disturbed.predict(data.Y_test), undisturbed.predict(data.Y_test))
        np.testing.assert_array_equal(disturbed.history_["elbo"], undisturbed.history_["elbo"])
        client.wait_for_workers(2)

    def test_progress_is_shown_when_asked(self, data, capsys):
        fit(clone(NETWORK).set_params(verbose=1), *shards(data))
        assert "4/4" in capsys.readouterr().err

    @pytest.mark.parametrize("learner", [NET, NETWORK], ids=["SpikeSlabNet", "BayesLISTA"])
    def test_a_bad_block_is_told_and_leaves_the_model_as_it_was(self, data, learner):
        X = data.Y_train.copy()
        X[60, 2] = np.inf  # SpikeSlabNet takes NaN for a missing sensor
        model = clone(learner)
        with pytest.raises(
            ValueError, match="Block 2 of the pairs: Input X contains infinity, first in row 7, column 2"
        ):
            fit(model, da.from_array(X, chunks=((50, 3, 150), -1)), data.B_train)
        assert vars(model).keys() == vars(clone(learner)).keys()

    @pytest.mark.parametrize(
        ("learner", "shapes", "message"),
        [
            (LISTA(), ((5, 3), (5, 2)), "The model is a LISTA; pass a BayesLISTA or a SpikeSlabNet"),
            (BayesLISTA.published(), ((5, 3), (5, 2)), "inference='adf' is sequential"),
            (BayesLISTA(0), ((5, 3), (5, 2)), "'n_layers' parameter of .* must be"),
            (BayesLISTA(), ((5, 3), (4, 2)), "X has 5 samples and y has 4"),
            (BayesLISTA(), ((5, 3), ()), r"y has shape \(\)"),
            (BayesLISTA(), ((0, 3), (0, 2)), "at least one pair"),
        ],
    )
    def test_what_cannot_be_learned_from_is_refused_at_once(self, learner, shapes, message):
        with pytest.raises(ValueError, match=message):
            fit(learner, *map(np.zeros, shapes))


def test_cross_validation_runs_on_workers(data, client):
    coder = ISTA(3, design_matrix=data.design_matrix)
    with client.as_current(), parallel_config("dask", wait_for_workers_timeout=30):
        scores = cross_val_score(coder, data.Y_train, data.B_train, cv=2, n_jobs=2)
    np.testing.assert_allclose(scores, cross_val_score(coder, data.Y_train, data.B_train, cv=2), rtol=1e-10)


@pytest.mark.parametrize(("module", "name"), [("dask.array", "Dask"), ("zarr", "zarr")])
def test_what_is_not_installed_is_named(module, name, data, coder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"needs {name}; pip install"):
        predict_to_zarr(coder, data.Y_test, tmp_path / "codes", return_std=False, prob_active=False)
    if name == "Dask":
        with pytest.raises(ImportError, match="needs Dask; pip install"):
            fit(clone(NET), data.Y_train, data.B_train)


BOUNDED = """
import resource, sys
from pathlib import Path
import dask, numpy as np, zarr
from bayeslista import ISTA, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.out_of_core.dask import predict_to_zarr
from bayeslista.out_of_core import fit_stream

LIMIT, TIMES = 24 * 2**20, 20
folder = Path(sys.argv[1])
dask.config.set(scheduler="synchronous")
zarr.config.set({"threading.max_workers": 1})  # the room for the stack of a thread would count

def on_disk(rows, n_bytes):
    # Some numbers and then zeros, for which the file takes no room.
    path, rows = folder / str(len(list(folder.iterdir()))), rows.astype("f4")
    shape = max(int(n_bytes) // rows[0].nbytes, len(rows)), rows.shape[1]
    np.memmap(path, rows.dtype, "w+", shape=shape)[: len(rows)] = rows
    return np.memmap(path, rows.dtype, "r", shape=shape)

def work(X, Y, B):
    assert coder.predict(X, batch_size=1024).shape == (len(X), 2)
    predict_to_zarr(coder, X, folder / "codes", return_std=False, prob_active=False, batch_size=1024, overwrite=True)
    fit_stream(SpikeSlabNet(2, mode="fast", training="none"), (Y, B), batch_size=8192)

wide = make_sparse_codes(n_train=60, n_test=2048, n_observed=250, n_components=2, random_state=0)
coder = ISTA(2, dtype="float32", design_matrix=wide.design_matrix).fit(wide.Y_train, wide.B_train)
pairs = make_sparse_codes(n_train=9000, n_test=1, n_observed=40, n_components=40, random_state=0)
small, large = (
    [on_disk(wide.Y_test, n), on_disk(pairs.Y_train, n / 2), on_disk(pairs.B_train, n / 2)] for n in (0, TIMES * LIMIT)
)
work(*small)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
held = int(status["VmData"].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (held + LIMIT, held + LIMIT))
try:
    np.ones(2 * LIMIT, np.uint8)
except MemoryError:
    print("bounded")
work(*large)
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is that of Linux")
@pytest.mark.slow
def test_inputs_twenty_times_as_large_as_memory_are_read(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["bounded", "done"], done.stderr
