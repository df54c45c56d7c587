"""Categories, dates and missing values are taken by the estimators, for training and for prediction."""

from __future__ import annotations

import pickle
import re
import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

from gnvpro import GNvproClassifier, GNvproRegressor
from gnvpro.sklearn.encoding import Encoding, shrunk_means

pandas = pytest.importorskip("pandas")
QUICK = {"hidden": 4, "work": 60, "random_state": 0}
TOWNS = [f"t{k}" for k in range(40)]


def table(n: int = 400, seed: int = 0) -> tuple[pandas.DataFrame, NDArray[np.float64]]:
    """A table with a column of every kind, and what can be learnt of it."""
    random = np.random.default_rng(seed)
    days = random.integers(0, 900, n)
    frame = pandas.DataFrame(
        {
            "size": random.normal(size=n),
            "colour": pandas.Categorical(random.choice(["red", "green", "blue"], n)),
            "town": random.choice(TOWNS, n),
            "new": random.random(n) > 0.5,
            "sold": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(days, "D"),
            "doors": pandas.array(random.integers(2, 6, n), dtype="Int64"),
        }
    )
    y = 2.0 * (frame["colour"] == "red") + np.sin(2 * np.pi * days / 365.2425) + frame["new"] + frame["size"]
    y = y.to_numpy() + (np.arange(40) % 5)[[TOWNS.index(town) for town in frame["town"]]]
    frame.loc[random.random(n) < 0.1, "size"] = np.nan
    frame.loc[random.random(n) < 0.1, "colour"] = None
    frame.loc[::50, "doors"] = pandas.NA
    return frame, y


def test_a_regressor_takes_columns_of_every_kind() -> None:
    frame, y = table()
    rest, y_rest = table(200, seed=1)
    model = GNvproRegressor(**QUICK).fit(frame, y)
    assert model.score(rest, y_rest) > 0.8
    assert model.n_features_in_ == 6
    names = [*model.get_feature_names_out()]
    assert names[:6] == ["size", "size is missing", "colour=blue", "colour=green", "colour=red", "colour is missing"]
    assert {"town (mean of the target)", "new", "sine of the year of sold", "doors is missing"} < set(names)
    assert len(names) == model.encoding_.expand(model.encoding_.codes(rest)).shape[1]
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(rest), model.predict(rest))


def test_a_classifier_takes_columns_of_every_kind() -> None:
    frame, y = table()
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [2.0, 4.0])]
    rest, y_rest = table(200, seed=1)
    model = GNvproClassifier(**QUICK).fit(frame, labels)
    assert model.score(rest, np.array(["low", "middle", "high"])[np.digitize(y_rest, [2.0, 4.0])]) > 0.6
    assert sum("town" in name for name in model.get_feature_names_out()) == 3  # a share of each class


@pytest.mark.parametrize("change", ["text", "objects", "whole numbers", "strings of arrow"])
def test_the_type_of_a_column_of_text_does_not_matter(change: str) -> None:
    frame, y = table(100)
    other = frame.copy()
    if change == "text":
        other["colour"] = other["colour"].astype(str).where(frame["colour"].notna(), None)
    elif change == "objects":
        other = other.astype({"colour": object, "town": object})
    elif change == "whole numbers":  # a category of numbers, which missing values make fractions
        frame["colour"] = pandas.Categorical(np.arange(100) % 3)
        other["colour"] = pandas.Categorical((np.arange(100) % 3).astype(float))
    else:
        pytest.importorskip("pyarrow")
        other["town"] = other["town"].astype("string[pyarrow]")
    first, second = GNvproRegressor(**QUICK).fit(frame, y), GNvproRegressor(**QUICK).fit(other, y)
    assert np.array_equal(first.predict(frame), second.predict(other))


def test_numbers_may_be_missing_in_an_array() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 2))
    blank = random.random(300) < 0.3
    y = np.where(blank, 3.0, X[:, 0])
    X[blank, 0] = np.nan
    model = GNvproRegressor(**QUICK).fit(X, y)
    assert model.score(X, y) > 0.99
    assert [*model.get_feature_names_out()] == ["x0", "x0 is missing", "x1"]
    with pytest.raises(ValueError, match="infinity"):
        model.predict(np.array([[np.inf, 0.0]]))


def test_what_was_not_in_training_is_predicted_and_said() -> None:
    frame, y = table()
    model = GNvproRegressor(**QUICK).fit(frame, y)
    new = frame.iloc[100:103].copy()
    new["colour"] = ["violet", "red", "green"]
    new["town"] = ["nowhere", "t1", "t2"]
    new["sold"] = [pandas.NaT, *frame["sold"].iloc[:2]]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        predicted = model.predict(new)
    assert np.isfinite(predicted).all()
    for words in (
        "'colour' holds 'violet'",
        "'town' holds 'nowhere'.*mean of all rows",
        "'sold' has 1 missing.*median",
    ):
        assert any(re.search(words, str(each.message)) for each in said), words
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(frame)


WRONG = {
    "a column less": (lambda frame: frame.drop(columns="town"), "now missing:\n- town"),
    "words among numbers": (
        lambda frame: frame.assign(size="large"),
        "column 'size' of X holds 'large', which is no number",
    ),
    "numbers for dates": (lambda frame: frame.assign(sold=3), "column 'sold' of X holds 3, which is no date"),
}


@pytest.mark.parametrize("what", WRONG)
def test_other_columns_than_in_training_are_named(what: str) -> None:
    change, message = WRONG[what]
    frame, y = table(60)
    model = GNvproRegressor(**QUICK).fit(frame, y)
    with pytest.raises(ValueError, match=message):
        model.predict(change(frame))


def test_a_column_of_numbers_and_text_is_refused() -> None:
    frame = pandas.DataFrame({"a": [1, "x"] * 10})
    with pytest.raises(ValueError, match=r"column 'a' of X holds 1 and 'x': make it all numbers, or all text"):
        GNvproRegressor(**QUICK).fit(frame, np.arange(20.0))


@pytest.mark.parametrize("kind", [GNvproRegressor, GNvproClassifier])
def test_a_weight_of_two_is_a_row_twice_in_encodings_too(kind) -> None:
    frame, y = table(120)
    y = y if kind is GNvproRegressor else y > np.median(y)
    random = np.random.default_rng(3)
    counts = random.integers(0, 4, 120)
    twice = random.permutation(np.repeat(np.arange(120), counts))
    weighted = kind(**QUICK).fit(frame, y, sample_weight=counts)
    repeated = kind(**QUICK).fit(frame.iloc[twice], y[twice])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # towns of weight zero
        assert np.array_equal(weighted.predict(frame), repeated.predict(frame))


def test_levels_without_influence_tell_nothing_and_training_rows_do_not_see_their_own_target() -> None:
    random = np.random.default_rng(0)
    n = 2000
    frame = pandas.DataFrame({"town": random.choice([f"t{k}" for k in range(400)], n)})
    y = random.normal(size=(n, 1))
    encoding = Encoding.of(frame)
    settled, inputs = encoding.learn(encoding.codes(frame), y, np.ones(n), 20)
    assert abs(np.corrcoef(inputs[:, 0], y[:, 0])[0, 1]) < 0.1  # plain means of five rows each: about 0.45
    assert np.std(settled.expand(settled.codes(frame))) < 0.2  # plain means: 0.45


def test_means_are_shrunk_as_in_the_model_of_random_effects() -> None:
    random = np.random.default_rng(0)
    places, effects = np.repeat(np.arange(300), 4), 2.0 * random.normal(size=300)
    y = (effects[places] + random.normal(size=1200))[:, None]
    found = shrunk_means(places, y, np.ones(1200), 301)
    means = y.reshape(300, 4).mean(1)
    share = 4 * 4.0 / (4 * 4.0 + 1.0)  # n t / (n t + s) of the true variances
    assert found[:300, 0] == pytest.approx(y.mean() + share * (means - y.mean()), abs=0.05)
    assert found[300, 0] == pytest.approx(y.mean())
