"""Results on stdout, everything else on stderr; bars on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import logging
import re

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text
from scrlm_cli.options.shared import session
from scrlm_cli.tables.summaries import facts
from scrlm_cli.terminal.console import Console, exit_on_errors
from scrlm_cli.terminal.progress import bars

from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.errors import InputError
from scrlm_dask.events import Note

COMMANDS = ("synth", "fit", "evaluate", "predict", "theory")
PHASES = {
    "synth": ["synth"],
    "fit": ["survey", "loss", "extract", "assign"],
    "evaluate": ["evaluate"],
    "predict": ["assign"],
    "theory": [],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_one_object_and_alone_on_stdout(round_trip, command):
    outcome = round_trip.outcomes[command]
    assert outcome.json()
    assert outcome.stdout.startswith("{")
    assert outcome.stdout.endswith("}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_terminal_each_phase_is_a_line(round_trip, command):
    stderr = round_trip.outcomes[command].stderr
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f━█]", stderr)
    phases = PHASES[command]
    lines = stderr.splitlines()
    steps = [line for line in lines if re.match(r"\w+: [\d,]+ rows\b.*\b[\d.]+ s\b", line)]
    assert [step.split(":")[0] for step in steps] == phases
    assert all(re.search(r"[\d,]+ rows/s\b.*[\d.]+ MB", step) for step in steps)
    if phases:
        assert re.search(r"\b\d+ threads?\b", lines[0])


@pytest.mark.parametrize("command", COMMANDS)
def test_without_json_a_table_is_printed(invoke, round_trip, tmp_path, command):
    features, run = round_trip.features, round_trip.run
    args, shown = {
        "synth": ((tmp_path / "x.zarr", "--rows", 50, "--features", 3), "30.00 %"),
        "fit": ((features, "--out", tmp_path / "x", "--clusters", 10), "Clusters"),
        "evaluate": ((run,), "100.00 %"),
        "predict": ((run, features, "--out", tmp_path / "x.zarr"), "outlier share"),
        "theory": (("--rows", 9, "--features", 3, "--clusters", 2), "required candidates"),
    }[command]
    if command == "synth":
        args += ("--clusters", 2, "--outliers", 0.3)
    group = ("paper",) if command == "theory" else ()
    done = invoke(*group, command, *args).ok()
    assert shown in done.stdout
    assert "{" not in done.stdout
    assert "\x1b" not in done.stdout
    assert shown not in done.stderr


def test_fit_prints_the_numbers_that_it_wrote(invoke, features, tmp_path, record_of):
    run = tmp_path / "run"
    done = invoke("fit", features, "--rho", 0.5, "--out", run, "--clusters", 10).ok()
    record = record_of(run)
    assert f"{100 * record['outlier_share']:.2f} %" in done.stdout
    for count in record["counts"]:
        assert str(count) in done.stdout
    assert str(run) in done.stderr


def test_json_and_run_json_agree(round_trip, record_of):
    printed, written = round_trip.outcomes["fit"].json(), record_of(round_trip.run)
    for name in ("outliers", "outlier_share", "clusters", "radius", "phases", "seconds"):
        assert printed[name] == written[name]
    assert printed["candidates"] == written["config"]["n_candidates"]


def test_verbose_prints_more(invoke, features, tmp_path):
    quiet = invoke("fit", features, "--rho", 0.5, "--out", tmp_path / "a").ok().stderr.splitlines()
    verbose = (
        invoke("fit", features, "--rho", 0.5, "--out", tmp_path / "b", "-v")
        .ok()
        .stderr.splitlines()
    )
    assert len(verbose) == len(quiet) + 4
    assert any(re.match(r"loss: 4,000 rows\b.*\b1 block", line) for line in verbose)


def test_verbose_adds_the_traceback_to_an_error(invoke, tmp_path):
    args = ("fit", tmp_path / "missing", "--out", tmp_path / "run")
    verbose = invoke(*args, "-v")
    assert verbose.code == 3
    assert "Traceback" in verbose.stderr
    assert verbose.stderr.splitlines()[-1] == invoke(*args).rejected(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("on_cluster", "code", "fact"), [(False, 1, "read timed out"), (True, 4, "TimeoutError")]
)
def test_timeout_is_a_lost_cluster_only_on_a_cluster(capsys, on_cluster, code, fact):
    console = Console(as_json=False, verbose=False)
    console.on_cluster = on_cluster
    with pytest.raises(SystemExit) as ended, exit_on_errors(console):
        raise TimeoutError("read timed out")
    assert ended.value.code == code
    assert fact in capsys.readouterr().err


@pytest.mark.parametrize("name", ["asyncio", "distributed", "distributed.client"])
def test_only_verbose_commands_show_logs_of_dask(monkeypatch, name):
    logger = logging.getLogger(name)
    monkeypatch.setattr(logger, "level", logging.WARNING)
    for verbose, level in ((True, logging.WARNING), (False, logging.CRITICAL)):
        with session(Console(as_json=False, verbose=verbose), ClusterOptions(nworkers=0)):
            assert logger.level == level


def test_events_as_lines_of_json(invoke, features, tmp_path):
    options = ("--rho", 0.5, "--clusters", 10)
    done = invoke("fit", features, "--out", tmp_path / "run", *options, "--log-json").ok()
    events = [json.loads(line) for line in done.stderr.splitlines()]
    names = [event["event"] for event in events]
    assert names[0] == "Note"  # the connection
    finished = [event["name"] for event in events if event["event"] == "PhaseFinished"]
    assert finished == PHASES["fit"]
    logged = [json.loads(x) for x in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in logged] == names[names.index("RunStarted") : -1]
    rejected = invoke("fit", tmp_path / "no", "--out", tmp_path / "x", "--log-json")
    assert rejected.code == 3
    assert str(tmp_path / "no") in json.loads(rejected.stderr)["text"]


def test_performance_report_requires_a_cluster_and_a_valid_path(invoke, features, tmp_path):
    fit = ("fit", features, "--out", tmp_path / "x", "--performance-report")
    invoke(*fit, tmp_path / "p.html").rejected("--performance-report", "--nworkers 0", code=2)
    invoke(*fit, tmp_path / "p.txt", threads=False).rejected("p.txt", ".html", code=2)
    path = tmp_path / "no" / "p.html"
    invoke(*fit, path, threads=False).rejected(str(path), code=2)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.cluster
def test_performance_report_needs_no_network(scrlm, features, tmp_path):
    report = tmp_path / "p.html"
    args = ("--out", tmp_path / "x", "--clusters", 10, "--performance-report", report)
    scrlm("fit", features, *args, "--nworkers", 1).ok()
    page = report.read_text()
    assert "Dask Performance Report" in page
    assert not re.search(r"<script[^>]* src=|<link[^>]*stylesheet", page)  # except the icon
    assert "loss" in page


# --- hostile names -------------------------------------------------------------------------------

HOSTILE = "\x1b[2J\x1b]0;t\x07\x9b31m\u202e\r[red][link=http:x]:boom:"
SHOWN = r"\x1b[2J\x1b]0;t\x07\x9b31m\u202e\r[red][link=http:x]:boom:"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")  # without line breaks


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("kind", [InputError, OSError])
def test_errors_and_notes_contain_no_control_characters(capsys, kind, verbose):
    console = Console(as_json=False, verbose=verbose)
    console(Note(f"{HOSTILE}\nError: forged", warning=True))
    with pytest.raises(SystemExit), exit_on_errors(console):
        raise kind(f"{HOSTILE}\nError: forged")
    stderr = capsys.readouterr().err
    assert not CONTROLS.search(stderr)
    assert stderr.count(SHOWN) >= 2
    # A traceback with -v shows the lines of an error of another library.
    forged = int(verbose and kind is OSError)
    assert sum(line.startswith("Error: ") for line in stderr.splitlines()) == 1 + forged


def test_tables_contain_no_control_characters_and_no_markup(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    console = Console(as_json=False, verbose=False)
    forged = "cat\n│ rows │ forged │"
    tables = (facts("[bold]T\x1b\nx", {HOSTILE: HOSTILE}), facts(forged, {"a": forged}))
    console.result({}, Group(*tables))
    stdout = capsys.readouterr().out
    assert not CONTROLS.search(stdout)
    assert stdout.count(SHOWN) == 2
    assert r"[bold]T\x1b\nx" in stdout
    assert stdout.count(r"cat\n│ rows │ forged │") == 2


def test_all_parts_of_tables_are_escaped_except_layout(capsys):
    console = Console(as_json=False, verbose=False)
    layout = Text("first\nsecond", justify="left")
    table = Table("head\ner", title=layout, caption="cap\x07tion", show_footer=True)
    table.columns[0].footer = "foot\rer"
    table.add_row("ce\nll")
    console.result({}, table)
    console.result({}, Group("te\nxt", "rest"))
    stdout = capsys.readouterr().out
    for text in (r"head\ner", r"cap\x07tion", r"foot\rer", r"ce\nll"):
        assert text in stdout
    lines = [line.strip() for line in stdout.splitlines()]
    assert [*lines[:2], *lines[-2:]] == ["first", "second", r"te\nxt", "rest"]


def test_json_contains_no_control_characters(capsys):
    Console(as_json=True, verbose=False).result({HOSTILE: HOSTILE}, None)
    console = Console(as_json=False, verbose=False, log_json=True)
    console(Note(HOSTILE))
    console.fail(HOSTILE)
    written = capsys.readouterr()
    assert not CONTROLS.search(written.out + written.err)
    assert json.loads(written.out) == {HOSTILE: HOSTILE}


def test_progress_bars_show_no_control_characters(capsys):
    console = Console(as_json=False, verbose=False)
    with bars() as console._bars:
        console.say(HOSTILE)
    assert SHOWN in capsys.readouterr().err


def test_commands_print_hostile_file_names_as_text(invoke, tmp_path):
    path = tmp_path / HOSTILE.replace("/", "") / "x.zarr"
    synth = ("synth", path, "--rows", 40, "--features", 3, "--clusters", 2)
    done = [
        invoke(*synth).ok(),
        invoke("inspect", path).ok(),
        invoke("inspect", path.parent / "none"),
        invoke("verify", path),
        invoke("fit", path, path),  # an error of usage
        invoke("fit", path, "--out", path.parent / "run", "--rho", 1).ok(),
        invoke("export", path.parent / "run", "--out", path.parent / "table", threads=False).ok(),
    ]
    assert [outcome.code for outcome in done[2:5]] == [3, 3, 2]
    for outcome in done:
        assert not CONTROLS.search(outcome.stdout + outcome.stderr)
