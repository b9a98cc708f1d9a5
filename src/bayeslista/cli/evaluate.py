"""``bayeslista evaluate``: scores of a model on test pairs."""

from bayeslista.cli._model_files import describe, file_errors, load_model, read_pairs
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
    header: Header = Choice.auto,
    as_json: Json = False,
) -> None:
    """Score a model on test pairs, which it was not fitted to.

        bayeslista evaluate test_observations.npy test_codes.npy --model m.safetensors

    NMSE and F-measure for all models; log score, CRPS, coverage (of all coefficients, and of those that are not zero),
    variance ratio and Brier score for those with distributions. The seed is that of the randomised PIT at exact zeros.
    """
    made = load_model(model)
    X, y = read_pairs(observations, codes, header, made)
    with file_errors(observations, codes, model):
        scores = score(made, X.values, y.values, level, seed)
    result = {
        "model": str(model),
        "estimator": type(made).__name__,
        "n_pairs": len(y.values),
        "level": level,
        "scores": scores,
    }
    tell(result, [f"{model}: {describe(made)}, on {len(y.values)} pairs.", *score_lines(scores, level)], as_json)
