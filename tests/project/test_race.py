import contextlib
import json
import math

import numpy as np
import pytest
import torch
from benchmarks.race import contenders, problems, referee, report, runner, search

SPEC = problems.SPECS["regression"]


def record(contender, seed, looks, **more):
    return {
        "problem": "regression",
        "contender": contender,
        "seed": seed,
        "settings": {},
        "limit": 1.0,
        "seconds": 1.0,
        "looks": looks,
        **more,
    }


@pytest.fixture
def records():
    """Ours is at 1e-3 after 0.1 ... 0.5 s; the peer after 1 s and on three seeds of five, and never at 1e-4."""
    mine = [record("gnvpro", s, [[0.1 * (s + 1), 0.2, 1e-3, 10.0], [0.9, 1.0, 1e-6, 80.0]]) for s in range(5)]
    peer = [record("adam", s, [[1.0, 1.0, 1e-3 if s < 3 else 1e-2, 50.0]]) for s in range(5)]
    lost = [record("torch_lm", s, [[1.0, 1.0, 1e-3 if s < 2 else 1e-2, 5.0]]) for s in range(5)]
    return mine + peer + lost


def cells(text, title):
    """The cells of a contender in the first table of a text."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_a_cell_holds_the_median_and_the_spread_of_the_seconds(records):
    assert cells(report.markdown(records), "**gnvpro**")[:2] == ["0.30 (0.10 to 0.50)", "0.90 (0.90 to 0.90)"]


def test_an_accuracy_counts_as_reached_where_three_of_five_seeds_reach_it(records):
    text = report.markdown(records)
    assert cells(text, "ADAM")[:2] == ["1.00 (1.00 to never)", "-"]
    assert cells(text, "torch-levenberg-marquardt")[0] == "-"


def test_the_verdict_compares_with_the_fastest_peer_and_names_what_only_gnvpro_reaches(records):
    seconds, lowest = report.verdict(SPEC, report.grouped(records))
    assert "0.001: 0.30 (ADAM)" in seconds
    assert "0.0001: reached by gnvpro only" in seconds
    assert "0.00 (ADAM" in lowest


def test_the_verdict_says_where_we_lose(records):
    late = [record("gnvpro", s, [[3.0, 3.0, 1e-3, 10.0]]) for s in range(5)]
    peers = [r for r in records if r["contender"] != "gnvpro"]
    assert "0.001: 3.00 (ADAM)" in report.verdict(SPEC, report.grouped(late + peers))[0]


def test_a_run_that_failed_is_told_and_counts_as_never(records):
    failed = [record("optimistix_qr", s, [], failure="out of memory") for s in range(5)]
    text = report.markdown(records + failed)
    assert cells(text, "optimistix LM, QR")[0] == "-"
    assert "optimistix LM, QR: out of memory" in text


def test_the_curve_of_a_run_is_its_lowest_error_so_far():
    run = record("adam", 0, [[0.1, 0.1, 1.0, 1], [0.2, 0.2, 0.5, 2], [0.3, 0.3, 0.8, 3]])
    (row,) = report.curve([run], [0.05, 0.15, 0.25, 0.35])
    assert math.isnan(row[0])
    assert row[1:] == [1.0, 0.5, 0.5]


def test_the_report_writes_tables_and_a_plot(records, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib: pip install 'gnvpro[plot]'")
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, records)))
    docs = tmp_path / "docs"
    (docs / "images").mkdir(parents=True)
    (docs / "lab").mkdir()
    (docs / "lab" / "race.md").write_text(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n")
    report.report(tmp_path, docs)
    page = (docs / "lab" / "race.md").read_text()
    assert page.startswith("above\n")
    assert page.endswith("below\n")
    assert "old" not in page
    assert "(../images/race.png)" in page
    assert "0.30 (0.10 to 0.50)" in page
    assert (docs / "images" / "race.png").stat().st_size > 10_000
    assert capsys.readouterr().out.startswith("###")


def test_an_interrupted_race_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    path = tmp_path / "records.jsonl"
    jobs = [{"problem": "p", "contender": "c", "seed": s, "settings": {}, "limit": 1.0} for s in range(3)]
    path.write_text(json.dumps({**jobs[0], "seconds": 1.0, "looks": []}) + "\n" + '{"problem": "p", "cont')
    run = []
    monkeypatch.setattr(runner, "run", lambda job, core: run.append(job) or {**job, "seconds": 1.0, "looks": []})
    records = runner.race(jobs, path, [0])
    assert [job["seed"] for job in run] == [1, 2]
    assert sorted(r["seed"] for r in records) == [0, 1, 2]


def test_the_search_prefers_more_accuracies_then_less_time():
    slow_far = record("adam", 0, [[1.0, 1.0, 1e-3, 1], [5.0, 5.0, 1e-4, 1]])
    fast_near = record("adam", 0, [[0.1, 0.1, 1e-3, 1]])
    fast_far = record("adam", 0, [[1.0, 1.0, 1e-3, 1], [4.0, 4.0, 1e-4, 1]])
    order = sorted((fast_far, slow_far, fast_near), key=lambda r: search.merit(r, (1e-3, 1e-4)))
    assert order == [fast_near, slow_far, fast_far]


def test_looks_do_not_count_and_the_referee_ends_the_run(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(referee.time, "process_time", lambda: now[0])
    monkeypatch.setattr(referee.time, "perf_counter", lambda: now[0])

    class Slow:
        def error(self, outputs):
            now[0] += 100.0
            return 0.5

    judge = referee.Referee(Slow(), limit=1.0)
    judge.start()
    now[0] += 0.4
    judge.look(lambda: None, 2)
    now[0] += 0.4
    judge.look(lambda: None, 4)
    now[0] += 0.4
    with pytest.raises(referee.TimeUp):
        judge.look(lambda: None, 6)
    assert np.allclose(judge.looks, [[0.4, 0.4, 0.5, 2], [0.8, 0.8, 0.5, 4], [1.2, 1.2, 0.5, 6]])


def test_compiling_counts_but_does_not_use_up_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(referee.time, "process_time", lambda: now[0])
    monkeypatch.setattr(referee.time, "perf_counter", lambda: now[0])
    judge = referee.Referee(problems.make("regression", 0), limit=1.0)
    judge.start()
    now[0] += 5.0
    judge.compiled()
    now[0] += 0.5
    judge.look(lambda: judge.problem.model)
    assert judge.looks[0][0] == 5.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "cdr", "peaks"])
def test_the_networks_in_jax_are_those_in_torch(name):
    pytest.importorskip("jax", reason="the race's JAX contenders need jax: pip install 'gnvpro[bench]'")
    from benchmarks.race import in_jax

    problem = problems.make(name, 0)
    weights = problem.weights + 0.1 * torch.randn(
        problem.weights.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    inputs = problem.train[0][:20]
    expected = problem.outputs_at(weights)(inputs).detach().numpy()
    got = np.asarray(in_jax.outputs(problem)(weights.numpy(), inputs.numpy()))
    assert np.abs(got - expected).max() <= 1e-12 * np.abs(expected).max()


NEEDS = {
    "sklearn_mlp": "sklearn",
    "torch_lm": "torch_levenberg_marquardt",
    "optimistix_cg": "optimistix",
    "optimistix_qr": "optimistix",
    "pytorch_minimize": "torchmin",
    "optax_lbfgs": "optax",
}


class TwentyLooks(referee.Referee):
    """Ends a run by its looks, not by the clock, so that the outcome does not depend on the machine."""

    def look(self, outputs, work=None, last=False):
        self.looks.append((0.0, 0.0, self.problem.error(outputs()), work))
        if len(self.looks) == 20:
            raise referee.TimeUp


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the peers' own
@pytest.mark.parametrize("name", list(contenders.TITLES))
def test_a_contender_makes_the_error_smaller(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{name} is a peer of the race: pip install 'gnvpro[bench]'")
    module = contenders.module(name)
    grids = {problem: module.grid(problems.SPECS[problem]) for problem in ("regression", "peaks")}
    problem_name = next((problem for problem, grid in grids.items() if grid), None)
    if problem_name is None:
        pytest.skip(f"this version of gnvpro has no {name}")
    problem = problems.make(problem_name, 0)
    few = problem.on(*(part[:60] for part in problem.train))  # so that every peer takes some steps
    before = few.error(few.model)
    judge = TwentyLooks(few, math.inf)
    with contextlib.suppress(referee.TimeUp):
        module.fit(few, grids[problem_name][-1], judge)
    assert min(look[2] for look in judge.looks) < 0.8 * before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the peers' own
def test_every_peer_has_settings_for_every_problem_it_runs():
    for name in contenders.PEERS:
        try:
            module = contenders.module(name)
        except ImportError:
            continue
        for problem, spec in problems.SPECS.items():
            grid = module.grid(spec)
            assert search.settings_for(problem, name) in grid if grid else True


def test_missing_data_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("GNVPRO_DATA", str(tmp_path))
    monkeypatch.setattr("gnvpro.data.indian_pines.find_spec", lambda name: None)
    assert "indian-pines" in problems.missing("indian-pines")
    assert problems.missing("cdr") is None
