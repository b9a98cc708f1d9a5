"""``bayeslista evaluate``: how good a model is on pairs that it did not learn from."""

from bayeslista.cli._files import check_pairs, describe, load_model, naming, read_pairs, using
from bayeslista.cli._options import Choice, Codes, Header, Json, Level, Model, Observations, Seed
from bayeslista.cli._running import reported, tell
from bayeslista.cli._scores import score, score_lines


@reported
def evaluate(
    observations: Observations,
    codes: Codes,
    model: Model,
    level: Level = 0.9,
    seed: Seed = 0,
    header: Header = Choice.AUTO,
    as_json: Json = False,
) -> None:
    """Score a model on pairs that it did not learn from.

        bayeslista evaluate test_observations.npy test_codes.npy --model m.safetensors

    NMSE and F-measure for all models; log score, CRPS, coverage, variance ratio and Brier score for those with
    distributions. The seed breaks ties of the PIT at exact zeros.
    """
    made = load_model(model)
    X, y = read_pairs(observations, codes, header)
    check_pairs(made, X, y, observations, codes)
    with using(model), naming(observations, codes):
        scores = score(made, X.values, y.values, level, seed)
    result = {
        "model": str(model),
        "estimator": type(made).__name__,
        "n_pairs": len(y.values),
        "level": level,
        "scores": scores,
    }
    tell(result, [f"{model}: {describe(made)}, on {len(y.values)} pairs.", *score_lines(scores, level)], as_json)
