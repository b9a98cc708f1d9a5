"""The commands of the documentation: each works as it is printed, in the order in which it is."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import bayeslista
from bayeslista import SpikeSlabNet
from bayeslista.cli import app
from bayeslista.datasets import make_sparse_codes

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/command_line.md")
FENCED = re.compile(r"^```(?:bash|console|sh|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    (.*)$", re.MULTILINE)


def commands(document):
    """Every call of bayeslista in fenced and indented blocks, as lists of words."""
    text = (ROOT / document).read_text(encoding="utf-8")
    lines = "\n".join([*FENCED.findall(text), *INDENTED.findall(re.sub(r"(?ms)^```.*?^```", "", text))]).splitlines()
    calls = [shlex.split(call.removeprefix("$ "), comments=True) for line in lines for call in line.split(" && ")]
    return [words for words in calls if words[:1] == ["bayeslista"]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The tables that the documentation names, small; calibration by simulation, the longest part, is left out."""
    monkeypatch.setitem(SpikeSlabNet.__init__.__kwdefaults__, "training", "none")
    data = make_sparse_codes(n_train=60, n_test=30, n_observed=8, n_components=10, random_state=0)
    tables = {
        "observations": data.Y_train,
        "codes": data.B_train,
        "new": data.Y_test,
        "test_observations": data.Y_test,
        "test_codes": data.B_test,
        "held_out": data.Y_test,
        "held_out_codes": data.B_test,
        "design_matrix": data.design_matrix,
        "days/monday": data.Y_test[:3],
        "days/tuesday": data.Y_test[3:5],
    }
    monkeypatch.chdir(tmp_path)
    Path("days").mkdir()
    for name, values in tables.items():
        np.save(f"{name}.npy", values)
        np.savetxt(f"{name}.csv", values, delimiter=",")
    pd.DataFrame(data.Y_train[:, :4], columns=["a", "b", "c", "response"]).to_csv("table.csv", index=False)
    np.savez("data.npz", Y_train=data.Y_train, B_train=data.B_train)
    return tmp_path


@pytest.mark.no_cover
@pytest.mark.parametrize("document", DOCUMENTS)
def test_printed_commands_work(document, folder):
    for words in commands(document):
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, (words, done.output)
        for option in ("--out", "--model"):
            if option in words and "{name}" not in " ".join(words):
                assert Path(words[words.index(option) + 1]).exists(), words


def test_the_example_with_own_tables_runs_as_printed(folder):
    page = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    (script,) = [each for each in re.findall(r"(?ms)^```python\n(.*?)^```", page) if "read_csv" in each]
    data = make_sparse_codes(n_train=60, n_test=5, n_observed=8, n_components=10, random_state=0)
    sources = [f"source {d}" for d in range(10)]
    for name, values in {"observations": data.Y_train, "new": data.Y_test}.items():
        pd.DataFrame(values, columns=[f"sensor {k}" for k in range(8)]).to_csv(f"{name}.csv", index=False)
    pd.DataFrame(data.B_train, columns=sources).to_csv("codes.csv", index=False)
    exec(script, {})
    mean, std = pd.read_csv("mean.csv"), pd.read_csv("std.csv")
    assert list(mean) == list(std) == sources
    assert (std.to_numpy() > 0).all()
    np.testing.assert_allclose(bayeslista.load("model.safetensors").predict(pd.read_csv("new.csv")), mean, rtol=1e-12)


def test_the_whole_story_is_printed():
    printed = [words[1] for words in commands("docs/command_line.md")]
    assert printed[:2] == ["fit", "predict"]
    assert set(printed) == {command.name for command in app.registered_commands}
