"""Checkpoints of `fit`: wherever it is stopped, the same call ends with the same bits; other fits are refused."""

import os
import warnings

import numpy as np
import pytest
from sklearn.base import clone

import bayeslista
from bayeslista import ISTA, BayesLISTA
from bayeslista.datasets import make_sparse_codes
from bayeslista.estimators.saving import RECORDS
from bayeslista.io import checkpoints
from bayeslista.io.checkpoints import Checkpoint, FitRecord
from bayeslista.io.records import read_record, write_record

K, D, N = 6, 8, 60
DATA = make_sparse_codes(N, 20, K, D, random_state=0)
PAIRS = DATA.Y_train, DATA.B_train
GIVEN = {"design_matrix": DATA.design_matrix, "random_state": 0}
MODELS = {
    "variational": BayesLISTA(2, max_iter=6, **GIVEN),
    "one network": BayesLISTA(2, max_iter=6, dtype="float32", random_state=0),
    "published": BayesLISTA.published(2, max_iter=6, **GIVEN),
}
every_model = pytest.mark.parametrize("name", list(MODELS))


class StoppedError(Exception):
    """As whatever may happen between two epochs."""


@pytest.fixture(autouse=True)
def _written_after_every_epoch(monkeypatch):
    monkeypatch.setattr(checkpoints, "_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "_RATIO", 0.0)


def fit(model, path, n_epochs=None, pairs=PAIRS):
    """Fit a copy of a model, or be stopped after so many epochs."""
    if n_epochs is None:
        return clone(model).fit(*pairs, checkpoint=path)
    remember = Checkpoint.append

    def append(self, row, state, random):
        stop = remember(self, row, state, random)
        nonlocal n_epochs
        n_epochs -= 1
        if n_epochs == 0:
            raise StoppedError
        return stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "append", append)
        return clone(model).fit(*pairs, checkpoint=path)


def bits(model):
    """All that a fit leaves behind."""
    kept = {name: value for name, value in sorted(vars(model).items()) if name.endswith("_") and name != "dtype_"}
    numbers = [value for value in kept.values() if isinstance(value, np.ndarray | float | int)]
    history = [*model.history_.values(), *model.diagnostics_.values()]
    return [np.asarray(part).tobytes() for part in (*numbers, *history, model.predict(DATA.Y_test))]


@pytest.fixture(scope="module")
def uninterrupted():
    return {name: bits(clone(model).fit(*PAIRS)) for name, model in MODELS.items()}


@every_model
def test_a_fit_that_is_stopped_again_and_again_ends_with_the_same_bits(tmp_path, uninterrupted, name):
    path, n_stops = tmp_path / "checkpoint", 0
    while True:
        try:
            model = fit(MODELS[name], path, 2)
            break
        except StoppedError:
            n_stops += 1
            with pytest.raises(ValueError, match=f"{path} is the checkpoint of a fit that has not ended"):
                bayeslista.load(path)
    assert n_stops >= 2
    assert bits(model) == uninterrupted[name]
    assert os.listdir(tmp_path) == ["checkpoint"]


@every_model
def test_a_fit_that_has_ended_is_returned_at_once_and_is_a_model(tmp_path, uninterrupted, name, monkeypatch):
    path = tmp_path / "checkpoint"
    assert bits(fit(MODELS[name], path)) == uninterrupted[name]
    assert bits(bayeslista.load(path)) == uninterrupted[name]
    monkeypatch.setattr(Checkpoint, "append", None)
    before = path.read_bytes()
    model = clone(MODELS[name])
    assert model.fit(*PAIRS, checkpoint=str(path)) is model
    assert bits(model) == uninterrupted[name]
    assert path.read_bytes() == before


def test_a_resumed_fit_that_was_about_to_stop_stops_there(tmp_path):
    model, path = BayesLISTA(2, inference="adf", tol=0.9, **GIVEN), tmp_path / "checkpoint"
    plain = clone(model).fit(*PAIRS)
    with pytest.raises(StoppedError):
        fit(model, path, plain.n_iter_)
    assert plain.n_iter_ < model.max_iter
    assert bits(fit(model, path)) == bits(plain)


def test_fresh_randomness_is_kept(tmp_path):
    model, path = BayesLISTA(2, max_iter=4), tmp_path / "checkpoint"
    with pytest.raises(StoppedError):
        fit(model, path, 2)
    np.random.default_rng().random()
    first = path.read_bytes()
    resumed = fit(model, path)
    path.write_bytes(first)
    assert bits(fit(model, path)) == bits(resumed)


def test_removing_the_file_starts_anew(tmp_path, uninterrupted):
    path = tmp_path / "checkpoint"
    fit(BayesLISTA(3, max_iter=1), path)
    path.unlink()
    assert bits(fit(MODELS["variational"], path)) == uninterrupted["variational"]


def test_an_interrupt_writes_the_last_epoch_though_it_was_not_due(tmp_path, monkeypatch, uninterrupted):
    monkeypatch.setattr(checkpoints, "_SECONDS", 1e6)
    path = tmp_path / "checkpoint"
    with pytest.raises(StoppedError):
        fit(MODELS["variational"], path, 4)
    assert len(told(path).rows) == 4
    assert bits(fit(MODELS["variational"], path)) == uninterrupted["variational"]


def told(path):
    return read_record(path, RECORDS)["checkpoint"]


class TestRefusals:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "checkpoint"
        with pytest.raises(StoppedError):
            fit(MODELS["variational"], path, 2)
        return path

    def refused(self, path, model, pairs=PAIRS):
        before = path.read_bytes()
        with pytest.raises(ValueError, match=str(path)) as caught:
            clone(model).fit(*pairs, checkpoint=path)
        assert path.read_bytes() == before
        return str(caught.value)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"n_layers": 3}, "is of another fit: n_layers (2 there, 3 here). Pass the same, remove the file"),
            ({"inference": "adf"}, "inference ('variational' there, 'adf' here)"),
            ({"design_matrix": None}, "design_matrix (an array of shape (6, 8) there, None here)"),
            ({"design_matrix": 2 * DATA.design_matrix}, "design_matrix (an array of shape (6, 8) there, an array"),
            ({"random_state": 1}, "random_state (0 there, 1 here)"),
            ({"random_state": np.random.RandomState(0)}, "random_state (0 there, RandomState"),
        ],
    )
    def test_other_parameters_are_told(self, path, change, said):
        assert said in self.refused(path, clone(MODELS["variational"]).set_params(**change))

    def test_other_data_are_told(self, path):
        X, y = PAIRS
        changed = np.array(y)
        changed[-1, -1] += 1e-12
        said = self.refused(path, MODELS["variational"], (X, changed))
        assert "y ('float64 of shape (60, 8), digest " in said
        assert "X (" not in said
        said = self.refused(path, MODELS["variational"], (X[:-1], y[:-1]))
        assert "X ('float64 of shape (60, 6)" in said
        assert "'float64 of shape (59, 6)" in said
        assert "X ('float64" in self.refused(path, MODELS["variational"], (X.astype(np.float32), y.astype(np.float32)))

    def test_codes_of_another_dimension_are_told(self, tmp_path):
        path = tmp_path / "column"
        fit(BayesLISTA(2, max_iter=1), path, None, (PAIRS[0], PAIRS[1][:, :1]))
        assert "of shape (60, 1)" in self.refused(path, BayesLISTA(2, max_iter=1), (PAIRS[0], PAIRS[1][:, 0]))

    def test_other_files_are_told(self, path):
        ISTA().save(path)
        assert "is no checkpoint of a fit" in self.refused(path, MODELS["variational"])
        write_record(path, [1, 2])
        assert "is no checkpoint of a fit" in self.refused(path, MODELS["variational"])
        write_record(path, {"checkpoint": FitRecord(2, {}, {})})
        assert "of another version" in self.refused(path, MODELS["variational"])

    def test_a_random_state_that_has_moved_on_is_told(self, tmp_path):
        model, path = BayesLISTA(2, max_iter=2, random_state=np.random.RandomState(0)), tmp_path / "checkpoint"
        first = fit(model, path)  # which copies the model, and its random state
        assert bits(fit(model, path)) == bits(first)
        model.random_state.rand()
        assert "random_state (RandomState" in self.refused(path, model)

    @pytest.mark.parametrize("damage", ["empty", "cut", "changed", "text"])
    def test_a_damaged_checkpoint_is_told_by_its_name(self, path, damage):
        content = path.read_bytes()
        spoiled = {
            "empty": b"",
            "cut": content[:-9],
            "changed": content[:-1] + bytes([content[-1] ^ 1]),
            "text": b"a,b",
        }
        path.write_bytes(spoiled[damage])
        assert "Remove the file to start anew" in self.refused(path, MODELS["variational"])

    def test_a_state_of_other_shapes_is_refused(self, path):
        record = told(path)
        leaves, drawn = record.kept
        for changed in (leaves[1:], [leaves[0][1:], *leaves[1:]], [leaves[0].astype(np.float32), *leaves[1:]]):
            write_record(path, {"checkpoint": record._replace(kept=(changed, drawn))})
            assert "does not hold the state of this fit" in self.refused(path, MODELS["variational"])

    def test_what_cannot_be_written_is_told_before_anything_is_learned(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Checkpoint, "append", None)
        with pytest.raises(FileNotFoundError):
            BayesLISTA().fit(*PAIRS, checkpoint=tmp_path / "none" / "checkpoint")
        with pytest.raises(ValueError, match="cannot be saved"):
            BayesLISTA(random_state=np.random.default_rng(0)).fit(*PAIRS, checkpoint=tmp_path / "checkpoint")
        with pytest.raises(TypeError, match="int"):
            BayesLISTA().fit(*PAIRS, checkpoint=1)
        assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up_later_stops_no_fit(tmp_path, uninterrupted, monkeypatch):
    path, write, n_written = tmp_path / "checkpoint", checkpoints.write_record, 0

    def fails(*arguments):
        nonlocal n_written
        n_written += 1
        if n_written > 2:
            raise OSError(28, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(checkpoints, "write_record", fails)
    with pytest.warns(UserWarning, match="cannot be written, and the fit goes on without.*No space") as caught:
        model = fit(MODELS["variational"], path)
    assert len(caught) == 1
    assert bits(model) == uninterrupted["variational"]
    monkeypatch.undo()
    assert bits(fit(MODELS["variational"], path)) == uninterrupted["variational"]


def test_checkpoints_are_written_now_and_then_only(tmp_path, monkeypatch):
    n_written, write = 0, checkpoints.write_record

    def counted(*arguments):
        nonlocal n_written
        n_written += 1
        write(*arguments)

    monkeypatch.setattr(checkpoints, "write_record", counted)
    monkeypatch.setattr(checkpoints, "_SECONDS", 1e6)
    fit(MODELS["variational"], tmp_path / "checkpoint")
    assert n_written == 3, "at the start, after the first epoch and in the end"


def test_the_progress_bar_goes_on_where_it_was(tmp_path, capsys):
    path = tmp_path / "checkpoint"
    with pytest.raises(StoppedError):
        fit(MODELS["variational"], path, 4)
    capsys.readouterr()
    clone(MODELS["variational"]).set_params(verbose=1).fit(*PAIRS, checkpoint=path)
    shown = capsys.readouterr().err
    assert "4/6" in shown
    assert "6/6" in shown
    assert "1/6" not in shown


def test_no_warning_and_no_file_without_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(MODELS["variational"]).fit(*PAIRS)
    assert os.listdir(tmp_path) == []


def test_a_pipeline_can_hand_the_path_on(tmp_path):
    import sklearn
    from sklearn.pipeline import make_pipeline

    with sklearn.config_context(enable_metadata_routing=True):
        model = clone(MODELS["variational"]).set_fit_request(checkpoint=True)
        make_pipeline(model).fit(*PAIRS, checkpoint=tmp_path / "checkpoint")
    assert bayeslista.load(tmp_path / "checkpoint").n_iter_ == 6
    model.save(tmp_path / "model")
    assert not hasattr(bayeslista.load(tmp_path / "model"), "_metadata_request")
