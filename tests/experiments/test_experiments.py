"""Experiments: the catalogue agrees with the paper, and a run leaves the promised files."""

import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import gnvpro
from gnvpro.data import cdr, data_directory
from gnvpro.experiments import experiment_run as running
from gnvpro.experiments.catalogue import EXPERIMENTS, scaled
from gnvpro.experiments.experiment_run import Order, run
from gnvpro.experiments.metrics import scores
from gnvpro.experiments.style import LOOKS
from small_experiments import LOADERS, make_small

FILES = {"config.json", "history.csv", "metrics.json", "model.safetensors.md", "model.safetensors", "predictions.npz"}


@pytest.fixture
def small(monkeypatch):
    make_small(monkeypatch)


def read(path):
    return json.loads(path.read_text())


# -- the catalogue


def test_the_paper_has_six_experiments():
    assert list(EXPERIMENTS) == ["ellipse", "cdr", "dcr", "indian-pines", "cifar10", "peaks"]


def test_a_setting_that_no_method_has_is_an_error():
    with pytest.raises(TypeError, match="eliminater"):
        EXPERIMENTS["cdr"].recommended.adjusted(eliminater=gnvpro.heads.Newton())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_are_known_and_the_papers_solver_is_krylov(name):
    experiment = EXPERIMENTS[name]
    for settings in (experiment.paper, experiment.recommended):
        assert set(settings.methods) <= set(LOOKS)
        for training in settings.methods.values():
            assert training.work >= running.LEAST_WORK * training.levels
    paper = running.adjusted(experiment, Order(name, paper=True))
    assert type(paper.methods["gnvpro"].method.solver) is gnvpro.solvers.Krylov


def test_the_least_budget_is_that_of_one_iteration():
    torch.manual_seed(0)
    inputs = torch.rand(20, 3, dtype=torch.float64)
    for work, iterations in ((running.LEAST_WORK, 1), (running.LEAST_WORK - 1, 0)):
        model = EXPERIMENTS["ellipse"].network(3, 2)
        result = gnvpro.train(model, inputs, inputs[:, 0] > 0.5, loss="logistic", work=work, solver="krylov")
        assert len(result.history) == 1 + iterations
        assert result.work <= work


def test_budgets_are_those_of_the_paper():
    budgets = {
        name: {method: t.work for method, t in e.paper.methods.items()}
        for name, e in EXPERIMENTS.items()
        if name in ("cdr", "dcr", "indian-pines")
    }
    for name, work in (("cdr", 600), ("dcr", 1200), ("indian-pines", 1500)):
        assert budgets[name] == {"gnvpro": work, "gauss-newton": work, "lbfgs-vpro": work, "adam": 2 * work}


@pytest.mark.parametrize(
    ("name", "n_inputs", "depth", "weights", "head"),
    [
        ("ellipse", 2, None, 42, 3),
        ("cdr", 55, 8, 55 * 8 + 8 + 9 * (64 + 8), 72 * 9),
        ("dcr", 3, 8, 3 * 16 + 16 + 9 * (256 + 16), 882 * 17),
        ("indian-pines", 220, 4, 220 * 32 + 32 + 5 * (1024 + 32), 16 * 33),
        ("cifar10", 3, None, 53_600, 650),
        ("peaks", 2, None, 2 * 4 + 4 + 8 * (16 + 4), 5 * 5),
    ],
)
def test_networks_have_the_weights_of_the_paper(name, n_inputs, depth, weights, head):
    model = EXPERIMENTS[name].network(n_inputs, depth)
    assert sum(p.numel() for p in model.parameters()) == weights + head


def test_inputs_are_spread_by_one_constant():
    loaded = LOADERS["cdr"](0, None)
    inputs = scaled(loaded, EXPERIMENTS["cdr"].recommended).split.train[0]
    before = loaded.split.train[0]
    assert inputs.mean() == pytest.approx(0, abs=1e-12)
    assert inputs.std() == pytest.approx(0.1)
    ratio = (inputs - inputs[0, 0]) / (before - before[0, 0])
    assert torch.allclose(ratio[1:], ratio[1, 1].expand_as(ratio[1:]))


# -- a run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the validation loss was")  # there is nothing to learn in these few samples
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_by_all_its_methods(name, small, tmp_path):
    results = run(Order(name, work=18, out=tmp_path))
    assert [r["method"] for r in results] == list(EXPERIMENTS[name].recommended.methods)
    for result in results:
        folder = tmp_path / name / f"{result['method']}-seed0"
        assert {path.name for path in folder.iterdir()} - {"snapshots.npz"} == {*FILES, "checkpoint.pt"}
        assert read(folder / "metrics.json") == result
        line_search = 8 if result["method"] == "lbfgs-vpro" else 0  # is not cut short
        assert result["work"] <= 18 + line_search
        assert result["data"] == LOADERS[name](0, None).source
        with open(folder / "history.csv") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) > 1
        assert float(rows[-1]["work"]) == result["work"]


def test_metrics_are_those_of_the_saved_model(small, tmp_path):
    run(Order("cdr", ["gnvpro"], [3], work=18, out=tmp_path, paper=True))
    folder = tmp_path / "cdr" / "gnvpro-seed3"
    metrics, config = read(folder / "metrics.json"), read(folder / "config.json")
    assert (config["levels"], config["depth"]) == (3, 2)
    model = EXPERIMENTS["cdr"].network(55, 8)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    split = LOADERS["cdr"](3, None).split
    with np.load(folder / "predictions.npz") as saved, torch.no_grad():
        for name in ("train", "validation", "test"):
            inputs, targets = getattr(split, name)
            outputs = model(inputs)
            errors = (outputs - targets).norm(dim=1) / targets.norm(dim=1)
            assert metrics[name]["relative_error"]["mean"] == pytest.approx(float(errors.mean()), rel=1e-12)
            assert metrics[name]["relative_error"]["std"] == pytest.approx(float(errors.std(correction=0)), rel=1e-12)
            loss = float((outputs - targets).square().sum() / (2 * len(inputs)))
            assert metrics[name]["loss"] == pytest.approx(loss, rel=1e-12)
            assert saved[f"outputs_{name}"] == pytest.approx(outputs.numpy(), rel=1e-5, abs=1e-6)


def test_class_accuracies_average_to_the_accuracy():
    outputs = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 3.0], [5.0, 0.0, 0.0]], dtype=torch.float64)
    result = scores("multinomial", outputs, torch.tensor([0, 0, 2, 0]))
    assert result["accuracy"] == 0.75
    assert result["class_accuracy"] == {"0": pytest.approx(2 / 3), "2": 1.0}


def test_a_single_logit_is_a_class_by_its_sign():
    result = scores("logistic", torch.tensor([[-1.0], [2.0]], dtype=torch.float64), torch.tensor([0, 0]))
    assert result["accuracy"] == 0.5


def test_a_seed_gives_the_same_numbers_and_methods_start_alike(small, tmp_path):
    first, second = (run(Order("ellipse", out=tmp_path / name, work=20, seeds=[1])) for name in ("a", "b"))
    for a, b in zip(first, second, strict=True):
        assert a["test"] == b["test"]
    losses = []
    for method in ("gnvpro", "gauss-newton"):
        with open(tmp_path / "a" / "ellipse" / f"{method}-seed1" / "history.csv") as file:
            losses.append(float(next(csv.DictReader(file))["loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_tuned_runs_have_directories_of_their_own(small, tmp_path):
    run(Order("cdr", ["gnvpro"], work=12, out=tmp_path, theta_penalty=1e-3))
    run(Order("cdr", ["adam"], work=12, out=tmp_path, learning_rate=5e-3))
    names = {path.name for path in (tmp_path / "cdr").iterdir()}
    assert names == {"gnvpro-theta-penalty0.001-seed0", "adam-learning-rate0.005-seed0"}
    assert read(tmp_path / "cdr" / "gnvpro-theta-penalty0.001-seed0" / "config.json")["theta_penalty"] == 1e-3


def test_the_authors_data_is_taken_where_it_is(tmp_path):
    if not (data_directory() / cdr.AUTHORS).is_file():
        pytest.skip(f"{cdr.AUTHORS} is not in the data directory")
    assert EXPERIMENTS["cdr"].load(0, None).source.startswith("authors")


def test_without_it_the_shipped_set_is(tmp_path):
    loaded = EXPERIMENTS["cdr"].load(0, tmp_path)
    assert loaded.source.startswith("shipped")
    assert [len(part[0]) for part in (loaded.split.train, loaded.split.validation, loaded.split.test)] == [
        400,
        200,
        200,
    ]


# -- what may go wrong


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Order("cdrr"), "did you mean 'cdr'"),
        (Order("cdr", ["gnvpo"]), "did you mean 'gnvpro'"),
        (Order("ellipse", ["adam"]), "method='adam' is not known"),
        (Order("cdr", work=5), "give at least 6"),
        (Order("cdr", paper=True, work=17), "give at least 18"),
        (Order("cdr", work=float("nan")), "work"),
        (Order("cdr", seeds=[-1]), "seed"),
        (Order("cdr", solver="krilov"), "did you mean 'krylov'"),
        (Order("cdr", learning_rate=0.0), "learning_rate"),
    ],
)
def test_bad_orders_are_refused_before_anything_is_written(order, message, small, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(running.dataclasses.replace(order, out=tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_directory_with_another_configuration_is_refused_unless_told(small, tmp_path):
    order = Order("cdr", ["gnvpro"], work=12, out=tmp_path)
    run(order)
    before = read(tmp_path / "cdr" / "gnvpro-seed0" / "metrics.json")
    other = running.dataclasses.replace(order, work=14.0)
    with pytest.raises(ValueError, match=r"another configuration: work was 12.*now it is 14.*--overwrite"):
        run(other)
    assert read(tmp_path / "cdr" / "gnvpro-seed0" / "metrics.json") == before
    run(running.dataclasses.replace(other, overwrite=True))
    assert read(tmp_path / "cdr" / "gnvpro-seed0" / "config.json")["work"] == 14


@pytest.mark.parametrize("name", ["cdr", "ellipse"])
def test_an_interrupted_run_goes_on(name, small, tmp_path, monkeypatch):
    order = Order(name, ["gnvpro"], work=80, out=tmp_path / "stopped")
    whole = run(running.dataclasses.replace(order, out=tmp_path / "whole"))[0]

    class Stops(gnvpro.listeners.CSVFile):
        def record(self, record):
            super().record(record)
            if record.iteration == 2:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "CSVFile", Stops)
        with pytest.raises(KeyboardInterrupt):
            run(order)
    folder = tmp_path / "stopped" / name / "gnvpro-seed0"
    assert (folder / "checkpoint.pt").is_file()
    assert not (folder / "metrics.json").exists()
    with pytest.raises(ValueError, match="interrupted run; go on with --resume"):
        run(order)
    resumed = run(running.dataclasses.replace(order, resume=True))[0]
    assert resumed["test"] == whole["test"]
    assert resumed["work"] == whole["work"]
    if name == "ellipse":
        with np.load(folder / "snapshots.npz") as file, open(folder / "history.csv") as rows:
            assert len(file["features"]) == len(list(csv.DictReader(rows)))


def test_a_finished_run_goes_on_with_a_larger_budget(small, tmp_path):
    order = Order("cdr", ["gnvpro"], work=40, out=tmp_path)
    first = run(order)[0]
    folder = tmp_path / "cdr" / "gnvpro-seed0"
    before = (folder / "history.csv").read_text()
    with pytest.raises(ValueError, match=r"work was 40.*now it is 90.*--resume goes on with a larger budget"):
        run(running.dataclasses.replace(order, work=90.0))
    longer = run(running.dataclasses.replace(order, work=90.0, resume=True))[0]
    assert first["work"] <= 40 < longer["work"] <= 90
    assert longer["objective"] < first["objective"]
    assert (folder / "history.csv").read_text().startswith(before)
    assert read(folder / "config.json")["work"] == 90
    with pytest.raises(ValueError, match=r"work was 90.*now it is 40"):
        run(running.dataclasses.replace(order, resume=True))
    (folder / "checkpoint.pt").unlink()
    with pytest.raises(ValueError, match=r"work was 90.*now it is 120"):
        run(running.dataclasses.replace(order, work=120.0, resume=True))


def test_seconds_end_a_run_and_more_of_them_go_on(small, tmp_path):
    order = Order("cdr", ["gnvpro"], seconds=0.0, out=tmp_path, resume=True)
    assert run(order)[0]["status"] == str(gnvpro.Status.SECONDS_SPENT)
    longer = run(running.dataclasses.replace(order, seconds=100.0, work=600.0))[0]
    assert longer["work"] > 10


def test_more_of_one_budget_goes_on_within_a_new_cap_on_another(small, tmp_path):
    order = Order("cdr", ["gnvpro"], work=12, out=tmp_path, resume=True)
    first = run(order)[0]
    longer = run(running.dataclasses.replace(order, work=40.0, seconds=100.0))[0]
    assert first["work"] <= 12 < longer["work"] <= 40


def test_resume_keeps_finished_runs(small, tmp_path):
    order = Order("cdr", ["gnvpro"], work=12, out=tmp_path, resume=True)
    first = run(order)
    said = []
    assert run(order, said.append) == first
    assert said == [f"{tmp_path / 'cdr' / 'gnvpro-seed0'}: done before"]


def test_a_damaged_config_is_named(small, tmp_path):
    order = Order("cdr", ["gnvpro"], work=12, out=tmp_path)
    run(order)
    (tmp_path / "cdr" / "gnvpro-seed0" / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        run(order)


@pytest.mark.slow
def test_the_gradient_is_right_only_where_the_inner_problem_is_solved(small):
    experiment = EXPERIMENTS["peaks"]
    model = running.initial(experiment, 2, None, 0)
    found = experiment.study(model, experiment.load(0, None), experiment.paper, 0)
    errors = found["taylor_errors"]
    assert errors.shape == (2, 2, 3)
    exact = errors[1, 1]
    assert exact[1] / exact[2] == pytest.approx(100, rel=0.5)  # falls like h squared
    assert errors[0, 0, 2] > 10 * exact[2]


def test_a_study_before_training_is_announced(small, monkeypatch, tmp_path):
    said, before_training = [], []
    monkeypatch.setattr(running, "train", lambda *_: before_training.extend(said) or {})
    run(Order("peaks", ("gnvpro",), (0,), out=tmp_path), tell=said.append)
    assert any("study of the inner accuracy" in line for line in before_training)
    run(Order("ellipse", ("gnvpro",), (0,), out=tmp_path), tell=said.append)
    assert sum("study" in line for line in said) == 1


def test_columns_are_scaled_by_the_training_set_alone() -> None:
    loaded = EXPERIMENTS["cdr"].load(0, None)
    train, test = loaded.split.train[0], loaded.split.test[0]
    after = scaled(loaded, EXPERIMENTS["indian-pines"].recommended).split
    assert torch.allclose(after.train[0].mean(0), torch.zeros_like(train[0]), atol=1e-12)
    assert torch.allclose(after.train[0].std(0), torch.ones_like(train[0]))
    assert torch.allclose(after.test[0] * train.std(0) + train.mean(0), test)


def test_indian_pines_have_weights_that_change_slowly_from_band_to_band_unless_the_paper_is_asked_for() -> None:
    kinds = {}
    for paper in (False, True):
        job = running.plan(Order("indian-pines", ["gnvpro"], paper=paper))[0]
        assert job.settings.penalty() == gnvpro.Tikhonov(job.settings.theta_penalty, job.settings.operator())
        kinds[paper] = job.config["theta_penalty_operator"]
    assert kinds == {False: "InputDifferences(roughness=30.0)", True: "time differences"}


def test_indian_pines_are_scaled_band_by_band_unless_the_paper_is_asked_for(small) -> None:
    jobs = {paper: running.plan(Order("indian-pines", ["gnvpro"], paper=paper))[0] for paper in (False, True)}
    raw, ours, stated = (
        LOADERS["indian-pines"](0, None),
        *(running.load(jobs[paper], None) for paper in (False, True)),
    )
    assert torch.equal(stated.split.train[0], raw.split.train[0])
    assert torch.allclose(ours.split.train[0].std(0), torch.ones(20, dtype=torch.float64))
    kinds = [
        type(EXPERIMENTS["indian-pines"].network(20, jobs[paper].settings.methods["gnvpro"].depth)[0]).__name__
        for paper in (False, True)
    ]
    assert kinds == ["Linear", "NeuralODE"]
