"""The commands that work on tables and models: what they write, print and promise."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from progress_lines import without_progress
from typer.testing import CliRunner

import bayeslista
from bayeslista import ISTA, LISTA, BayesLISTA, NumericalWarning, SpikeSlabNet, metrics
from bayeslista.cli import app
from bayeslista.datasets import make_sparse_codes

KEPT = Path(__file__).parents[1] / "data"
SEEN_PARTS = ["mean", "std", "prob_active", "low", "high"]

runner = CliRunner()


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(n_train=60, n_test=30, n_observed=8, n_components=10, random_state=0)


@pytest.fixture
def folder(tmp_path, monkeypatch, data):
    """A folder to work in, with tables and two models that suit them."""
    monkeypatch.chdir(tmp_path)
    tables = {"y": data.Y_train, "b": data.B_train, "new": data.Y_test, "true": data.B_test, "x": data.design_matrix}
    for name, values in tables.items():
        np.save(f"{name}.npy", values)
    shutil.copy(KEPT / "spike_slab_net.safetensors", "net.safetensors")
    shutil.copy(KEPT / "ista.safetensors", "ista.safetensors")
    return tmp_path


def run(*words, code=0):
    """Run a command that is to end with an exit code, and never with a traceback."""
    done = without_progress(runner.invoke(app, [str(word) for word in words]))
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def told(*words):
    """The result of a command as a program sees it."""
    done = run(*words, "--json")
    assert re.fullmatch(r"(Warning: \d+ of \d+ answers leave more .*\n)?", done.stderr)  # small untrained networks
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


FIT = ("fit", "y.npy", "b.npy", "--model", "m.safetensors")
ISTA_FIT = (*FIT, "--estimator", "ista", "--layers", 3)


class TestFit:
    def test_the_default_is_a_net_of_spikes_and_slabs_as_in_python(self, folder, data):
        options = ["--layers", 2, "--mode", "fast", "--training", "none", "--design-matrix", "x.npy"]
        result = told(*FIT, *options)
        assert (result["estimator"], result["n_fitted"], result["n_observed"], result["n_components"]) == (
            ("SpikeSlabNet", 60, 8, 10)
        )
        mine = SpikeSlabNet(2, mode="fast", training="none", design_matrix=data.design_matrix, random_state=0).fit(
            data.Y_train, data.B_train
        )
        mine.save("mine.safetensors")
        assert Path("m.safetensors").read_bytes() == Path("mine.safetensors").read_bytes()

    def test_it_learns_from_observations_alone_where_there_is_a_design_matrix(self, folder):
        options = ["--layers", 2, "--mode", "fast", "--training", "none", "--design-matrix", "x.npy"]
        done = run("fit", "y.npy", "--model", "m.safetensors", *options)
        assert "fitted to 60 observations" in done.stdout
        assert bayeslista.load("m.safetensors").n_components_ == 10

    @pytest.mark.parametrize("name", ["ista", "ISTA", "Ista"])
    def test_estimators_go_by_their_class_as_well(self, folder, name):
        assert told(*FIT, "--estimator", name)["estimator"] == "ISTA"

    def test_parameters_are_read_as_json_or_text(self, folder):
        texts = [
            "optimizer=sgd",
            "coupled_weights=false",
            "learn_shrinkage=False",
            "learning-rate=1e-3",
            "random_state=None",
        ]
        run(*FIT, "--estimator", "lista", "--layers", 2, "--max-iter", 1, *(w for t in texts for w in ("--param", t)))
        model = bayeslista.load("m.safetensors")
        assert (model.optimizer, model.coupled_weights, model.learn_shrinkage) == ("sgd", False, False)
        assert (model.learning_rate, model.random_state, model.verbose) == (1e-3, None, 0)

    def test_held_out_pairs_score_the_model_and_do_not_teach_it(self, folder, data):
        result = told(*ISTA_FIT, "--test-fraction", 0.25, "--seed", 3)
        assert (result["n_fitted"], result["n_test"]) == (45, 15)
        order = np.random.default_rng(3).permutation(60)
        mine = ISTA(3).fit(data.Y_train[np.sort(order[15:])], data.B_train[np.sort(order[15:])])
        expected = metrics.nmse(data.B_train[order[:15]], mine.predict(data.Y_train[order[:15]]))
        assert result["scores"]["nmse"] == pytest.approx(expected)
        assert "On 15 pairs held out:" in run(*ISTA_FIT, "--test-fraction", 0.25).stdout

    def test_tables_of_every_kind_give_the_same_model(self, folder, data):
        pd.DataFrame(data.Y_train).rename(columns=str).to_parquet("y.parquet")
        np.savez("pairs.npz", y=data.Y_train, b=data.B_train)
        pd.DataFrame(data.B_train).to_csv("b.csv", index=False)
        run(*ISTA_FIT)
        for tables in (("y.parquet", "b.csv"), ("pairs.npz:y", "pairs.npz:b")):
            run("fit", *tables, "--estimator", "ista", "--layers", 3, "--model", "other.safetensors")
            assert Path("other.safetensors").read_bytes() == Path("m.safetensors").read_bytes()

    def test_codes_of_one_coefficient_may_be_a_plain_list(self, folder, data):
        np.save("one.npy", data.B_train[:, 0])
        run("fit", "y.npy", "one.npy", "--estimator", "ista", "--model", "m.safetensors", "--test-fraction", 0.1)
        run("predict", "new.npy", "--model", "m.safetensors", "--out", "out.npz")
        assert np.load("out.npz")["mean"].shape == (30,)
        np.save("one.npy", data.B_test[:, 0])
        assert "nmse" in told("evaluate", "new.npy", "one.npy", "--model", "m.safetensors")["scores"]


class TestPredict:
    def test_distributions_are_written_with_the_ends_of_intervals(self, folder, data):
        result = told("predict", "new.npy", "--model", "net.safetensors", "--out", "out.npz", "--level", 0.8)
        assert result["files"] == [{"observations": "new.npy", "out": "out.npz", "n_rows": 30, "columns": SEEN_PARTS}]
        dist = bayeslista.load("net.safetensors").predict_dist(data.Y_test)
        low, high = dist.interval(0.8)
        with np.load("out.npz") as found:
            for name, part in zip(SEEN_PARTS, (dist.mean(), dist.std(), dist.prob_active, low, high), strict=True):
                np.testing.assert_array_equal(found[name], part)

    @pytest.mark.parametrize(("kind", "read"), [("csv", pd.read_csv), ("parquet", pd.read_parquet)])
    def test_columns_are_named_and_hold_the_same_numbers(self, folder, data, kind, read):
        run("predict", "new.npy", "--model", "net.safetensors", "--out", f"out.{kind}")
        frame = read(f"out.{kind}")
        assert list(frame) == [f"{name}_{i}" for name in SEEN_PARTS for i in range(10)]
        expected = bayeslista.load("net.safetensors").predict_dist(data.Y_test)
        np.testing.assert_array_equal(frame.filter(regex="^prob_active"), expected.prob_active)

    def test_models_without_distributions_give_the_mean_alone(self, folder, data):
        done = run("predict", "new.npy", "--model", "ista.safetensors", "--out", "out.npz")
        assert done.stdout == "out.npz: mean of 30 signals.\n"
        with np.load("out.npz") as found:
            assert found.files == ["mean"]
            np.testing.assert_array_equal(found["mean"], bayeslista.load("ista.safetensors").predict(data.Y_test))

    def test_conformal_intervals_are_those_of_the_calibration(self, folder, data):
        options = ["--intervals", "conformal", "--level", 0.5]
        run("predict", "new.npy", "--model", "net.safetensors", "--out", "out.npz", *options)
        low, high = bayeslista.load("net.safetensors").predict_interval(data.Y_test, 0.5, method="conformal")
        with np.load("out.npz") as found:
            np.testing.assert_array_equal((found["low"], found["high"]), (low, high))
        done = run("predict", "new.npy", "--model", "ista.safetensors", "--out", "out.npz", *options, code=1)
        assert "ISTA predicts no distributions" in done.stderr

    def test_conformal_intervals_of_a_model_that_is_not_calibrated_are_refused_at_once(self, folder, monkeypatch):
        model = bayeslista.load("net.safetensors")
        model.recalibration_ = None
        model.save("raw.safetensors")
        monkeypatch.setattr(type(model), "predict_dist", None)
        words = ["predict", "new.npy", "--model", "raw.safetensors", "--out", "out.npz", "--intervals", "conformal"]
        done = run(*words, code=1)
        assert "run bayeslista calibrate OBSERVATIONS CODES --model raw.safetensors" in done.stderr
        assert not Path("out.npz").exists()

    def test_batches_change_nothing(self, folder, data, monkeypatch):
        run("predict", "new.npy", "--model", "ista.safetensors", "--out", "whole.npz")
        module = sys.modules["bayeslista.cli.predict"]
        monkeypatch.setattr(module, "_LEAST_BATCH", 8)
        monkeypatch.setattr(module, "_BATCH_NUMBERS", 8 * 10)
        run("predict", "new.npy", "--model", "ista.safetensors", "--out", "batches.npz")
        assert Path("whole.npz").read_bytes() == Path("batches.npz").read_bytes()

    def test_several_tables_are_predicted_file_by_file(self, folder, data):
        Path("days").mkdir()
        for i in (1, 2):
            np.savetxt(f"days/{i}.csv", data.Y_test[:i], delimiter=",")
        run("predict", "days/*.csv", "--model", "ista.safetensors", "--out", "out")
        assert sorted(path.name for path in Path("out").iterdir()) == ["1.npz", "2.npz"]
        run("predict", "days/1.csv", "days/2.csv", "--model", "ista.safetensors", "--out", "made/day-{name}.csv")
        assert [len(pd.read_csv(f"made/day-{i}.csv")) for i in (1, 2)] == [1, 2]
        np.savez("both.npz", a=data.Y_test, b=data.Y_test)
        run("predict", "both.npz:a", "both.npz:b", "new.npy", "--model", "ista.safetensors", "--out", "out")
        assert {"both-a.npz", "both-b.npz", "new.npz"} < {path.name for path in Path("out").iterdir()}

    def test_a_single_table_can_go_to_a_folder(self, folder):
        Path("out").mkdir()
        run("predict", "new.npy", "--model", "ista.safetensors", "--out", "out")
        assert Path("out/new.npz").exists()

    def test_a_file_with_the_name_of_a_pattern_is_that_file(self, folder):
        shutil.copy("new.npy", "new[1].npy")
        run("predict", "new[1].npy", "--model", "ista.safetensors", "--out", "out.npz")


class TestEvaluate:
    def test_distributions_get_all_scores(self, folder, data):
        result = told("evaluate", "new.npy", "true.npy", "--model", "net.safetensors", "--level", 0.5, "--seed", 4)
        dist = bayeslista.load("net.safetensors").predict_dist(data.Y_test)
        assert result["scores"] == {
            "nmse": metrics.nmse(data.B_test, dist.mean()),
            "f_measure": metrics.support_scores(dist, data.B_test).f_measure,
            "log_score": metrics.log_score(dist, data.B_test),
            "crps": metrics.crps(dist, data.B_test),
            "pit_coverage": metrics.pit_coverage(dist, data.B_test, 0.5, random_state=4),
            "support_coverage": metrics.support_coverage(dist, data.B_test, 0.5),
            "support_coverage_given_active": metrics.support_coverage(dist, data.B_test, 0.5, given_active=True),
            "variance_ratio": metrics.variance_ratio(dist, data.B_test),
            "brier_score": metrics.brier_score(dist, data.B_test),
        }

    def test_points_get_two_and_a_person_reads_them(self, folder, data):
        done = run("evaluate", "new.npy", "true.npy", "--model", "ista.safetensors")
        error = metrics.nmse(data.B_test, bayeslista.load("ista.safetensors").predict(data.Y_test))
        assert f"{error:.4f}" in done.stdout
        assert "CRPS" not in done.stdout

    def test_a_model_of_a_given_prior_is_scored_without_a_fit(self, folder, data):
        prior = {"prob_active": 0.2, "slab_var": 1.0, "noise_std": 0.5}
        SpikeSlabNet(2, mode="fast", design_matrix=data.design_matrix, **prior).save("m.safetensors")
        done = run("evaluate", "new.npy", "true.npy", "--model", "m.safetensors")
        assert "SpikeSlabNet, not fitted, on 30 pairs" in done.stdout

    def test_a_score_that_is_not_finite_is_null_for_programs(self, folder, monkeypatch):
        monkeypatch.setattr(metrics, "nmse", lambda *_: float("inf"))
        result = told("evaluate", "new.npy", "true.npy", "--model", "ista.safetensors")
        assert result["scores"]["nmse"] is None


class TestCalibrate:
    def test_the_file_holds_what_python_would_have_learned(self, folder, data):
        words = ["calibrate", "y.npy", "b.npy", "--model", "net.safetensors", "--method", "logistic"]
        before = Path("net.safetensors").read_bytes()
        result = told(*words, "--out", "new.safetensors")
        assert (result["model"], result["method"], result["n_pairs"]) == ("new.safetensors", "logistic", 60)
        assert Path("net.safetensors").read_bytes() == before
        mine = bayeslista.load("net.safetensors").calibrate(data.Y_train, data.B_train, method="logistic")
        mine.save("mine.safetensors")
        assert Path("mine.safetensors").read_bytes() == Path("new.safetensors").read_bytes()
        run(*words)
        assert Path("mine.safetensors").read_bytes() == Path("net.safetensors").read_bytes()

    def test_models_without_distributions_are_refused(self, folder):
        done = run("calibrate", "y.npy", "b.npy", "--model", "ista.safetensors", code=1)
        assert "nothing to calibrate" in done.stderr


class TestInspect:
    def test_a_calibrated_network_shows_all_it_has(self, folder):
        found = told("inspect", "net.safetensors")
        assert (found["estimator"], found["fitted"]) == ("SpikeSlabNet", True)
        assert found["parameters"]["mode"] == "fast"
        assert found["parameters"]["design_matrix"] == "float64 array of shape (8, 10)"
        assert found["fitted_values"]["n_components_"] == 10
        assert found["recalibrated"] == {"method": "isotonic", "n_pairs": 30}
        assert "jax" in found["versions"]
        assert found["training"] == {"objective": {"n": 0}}
        text = run("inspect", "net.safetensors").stdout
        assert "SpikeSlabNet, fitted, recalibrated on 30 pairs (isotonic)" in text
        assert "no values" in text

    def test_the_history_is_summed_up(self, folder, data):
        model = LISTA(2, max_iter=2, random_state=0).fit(data.Y_train, data.B_train)
        model.save("m.safetensors")
        found = told("inspect", "m.safetensors")
        errors = model.history_["training_error"]
        assert found["training"]["training_error"] == {"n": 2, "first": errors[0], "last": errors[1]}
        assert found["recalibrated"] is None
        assert f"{errors[0]:.4g} → {errors[1]:.4g} (2 values)" in run("inspect", "m.safetensors").stdout

    @pytest.mark.parametrize(
        ("model", "better"),
        [
            (BayesLISTA(2, max_iter=2, random_state=0), "elbo is the evidence lower bound of a pair; larger is better"),
            (BayesLISTA(2, inference="adf", max_iter=2, random_state=0), "log_evidence is the log evidence of a pair"),
            pytest.param(
                SpikeSlabNet(2, mode="fast", training=2, random_state=0),
                "simulated pairs; smaller is better",
                marks=pytest.mark.slow,
            ),
        ],
    )
    def test_an_objective_is_explained(self, folder, data, model, better):
        model.fit(data.Y_train, data.B_train).save("m.safetensors")
        assert better in run("inspect", "m.safetensors").stdout

    def test_one_that_is_not_fitted_shows_its_parameters(self, folder):
        LISTA(7, shrinkage=np.float64(0.25), random_state=np.random.RandomState(0)).save("m.safetensors")
        found = told("inspect", "m.safetensors")
        assert (found["fitted"], found["fitted_values"], found["parameters"]["shrinkage"]) == (False, {}, 0.25)
        assert found["parameters"]["random_state"] == "RandomState"
        assert "LISTA, not fitted, not recalibrated" in run("inspect", "m.safetensors").stdout


class TestReport:
    def test_a_page_is_asked_for_with_the_model_and_the_pairs(self, folder, data, monkeypatch):
        asked = []

        def write_model_report(model, X, y, path):
            asked.append((type(model).__name__, np.array_equal(X, data.Y_test), np.array_equal(y, data.B_test), path))

        monkeypatch.setattr("bayeslista.reports.model_report.write_model_report", write_model_report)
        result = told("report", "new.npy", "true.npy", "--model", "ista.safetensors", "--out", "page.html")
        assert result["out"] == "page.html"
        assert asked == [("ISTA", True, True, Path("page.html"))]


@pytest.fixture
def terminal(monkeypatch):
    """As if the standard error were a terminal."""
    for name in ("fit", "predict"):
        monkeypatch.setattr(sys.modules[f"bayeslista.cli.{name}"], "shows_progress", lambda quiet: not quiet)


class TestCheckpoints:
    WORDS = (*FIT, "--estimator", "bayes-lista", "--layers", 2, "--max-iter", 3, "--checkpoint", "c.safetensors")

    def test_an_interrupted_fit_is_resumed_by_the_same_command(self, folder, terminal, monkeypatch):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("tqdm.tqdm.update", interrupted)
            done = run(*self.WORDS, code=130)
        assert done.stderr.endswith("\nInterrupted; the same command resumes from c.safetensors\n")
        assert not Path("m.safetensors").exists()
        words = (*self.WORDS, "--quiet")
        assert "The fit was resumed from c.safetensors." in run(*words).stdout.splitlines()
        learned = Path("m.safetensors").read_bytes()
        assert "The fit had ended before: the model is that in c.safetensors." in run(*words).stdout.splitlines()
        assert Path("m.safetensors").read_bytes() == learned
        assert told(*words)["checkpoint"] == {"path": "c.safetensors", "before": "ended"}

    def test_a_fit_from_the_start_says_nothing_of_it(self, folder):
        assert run(*self.WORDS).stdout.count("\n") == 1


class TestProgress:
    def test_progress_is_shown_and_the_file_is_the_same(self, folder, terminal):
        words = [*FIT, "--estimator", "lista", "--layers", 2, "--max-iter", 2]
        done = runner.invoke(app, [str(word) for word in (*words, "--json")])
        assert "Fitting LISTA to 60 pairs.\n" in done.stderr
        assert "2/2" in done.stderr
        assert json.loads(done.stdout)["estimator"] == "LISTA"
        seen = Path("m.safetensors").read_bytes()
        assert run(*words, "--quiet").stderr == ""
        assert Path("m.safetensors").read_bytes() == seen
        assert "30/30" in run("predict", "new.npy", "--model", "ista.safetensors", "--out", "o.npz").stderr

    @pytest.mark.parametrize(
        ("quiet", "terminal", "shown"), [(False, True, True), (True, True, False), (False, False, False)]
    )
    def test_a_terminal_shows_it_unless_told_not_to(self, monkeypatch, quiet, terminal, shown):
        from bayeslista.cli import _running

        monkeypatch.setattr(_running.sys, "stderr", SimpleNamespace(isatty=lambda: terminal))
        assert _running.shows_progress(quiet) is shown

    def test_what_is_no_terminal_gets_plain_lines(self, folder):
        done = runner.invoke(app, [str(word) for word in ISTA_FIT])
        assert done.stderr == "Fitting ISTA to 60 pairs.\n"
        words = ["predict", "new.npy", "--model", "ista.safetensors", "--out", "o.npz"]
        assert runner.invoke(app, words).stderr == "Predicting 30 signals of new.npy.\n"
        assert runner.invoke(app, [*words, "--quiet"]).stderr == ""

    def test_warnings_are_single_plain_lines(self, folder, monkeypatch):
        import warnings

        fit = ISTA.fit

        def warned(self, X, y):
            warnings.warn("numbers were\nclipped", NumericalWarning, stacklevel=2)
            warnings.warn("nothing for users", DeprecationWarning, stacklevel=2)
            return fit(self, X, y)

        monkeypatch.setattr(ISTA, "fit", warned)
        assert run(*ISTA_FIT).stderr == "Warning: numbers were clipped\n"
