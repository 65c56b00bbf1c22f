"""What goes wrong with real engines: said in their own words, with the exit code of the contract, and not repeated."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.bench.instance import Instance, gone
from launcher.supervise.spec import Expected

Launch = Callable[..., Instance]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--nonsense",), 13, "bad-option: error: invalid argument: --nonsense"),
        (("-n", "notanum"), 13, 'bad-option: error while handling argument "-n"'),
        (("-fa", "off", "-ctv", "q8_0"), 13, "bad-option: llama_init_from_model: quantized V cache requires"),
        (("-m", "/nowhere/model.gguf"), 10, "model-missing: gguf_init_from_file: failed to open GGUF file"),
    ],
)
def test_a_start_that_cannot_work_is_tried_once(
    launch: Launch, options: tuple[str, ...], code: int, words: str
) -> None:
    plain = launch(name="plain")
    argv = (*plain.spec.argv, *options)
    plain.close()
    instance = launch(argv=argv)
    assert instance.ended() == code
    assert words in instance.output.read_text()
    assert instance.output.read_text().count('"starting -> loading') <= 1


def test_a_page_saved_as_a_model(launch: Launch, tmp_path: Path) -> None:
    page = tmp_path / "model.gguf"
    page.write_text("<html>not found</html>")
    instance = launch(argv=("-m", str(page)))
    assert instance.ended() == 13
    assert "model-corrupt: gguf_init_from_reader: invalid magic characters: '<htm'" in instance.output.read_text()


def test_an_engine_that_is_not_there(launch: Launch) -> None:
    instance = launch(binary="/nowhere/llama-server")
    assert instance.ended() == 13
    assert "not-executable: error: cannot execute /nowhere/llama-server" in instance.output.read_text()


def test_memory_at_load_is_11(launch: Launch, tmp_path: Path, engine_server: Path) -> None:
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -v 600000\nexec "{engine_server}" "$@"\n')
    limited.chmod(0o755)
    plain = launch(name="plain")
    argv = (*plain.spec.argv, "-c", "60000")
    plain.close()
    instance = launch(binary=str(limited), argv=argv, expected=Expected())
    assert instance.ended() == 11
    assert "error: oom-load: " in instance.output.read_text()


def test_kill_9_of_the_engine(launch: Launch) -> None:
    instance = launch()
    instance.ready()
    first = instance.engine
    os.kill(first, signal.SIGKILL)
    status = instance.ready(but_not=first)
    assert status["restarts"] == 1
    assert status["last_exit"]["class"] == "crash"
    assert status["last_exit"]["signal"] == 9
    second = instance.engine
    begin = time.monotonic()
    os.kill(second, signal.SIGKILL)
    status = instance.until("backoff", limit=2)
    assert status["next_try"] is not None
    instance.ready(but_not=second)
    assert time.monotonic() - begin >= 0.9  # the second step is a second, less a tenth of jitter
    post_mortem = instance.client.last_exit()
    assert post_mortem is not None
    assert any("model loaded" in record["text"] for record in post_mortem["log"])


def test_somebody_elses_term_is_not_a_failure(launch: Launch) -> None:
    instance = launch()
    instance.ready()
    os.kill(instance.engine, signal.SIGTERM)
    assert instance.ended(10) == 0


def test_a_long_prefill_is_no_hang(launch: Launch) -> None:
    """One batch of 1500 tokens: the counters stand still for many hang limits, the engine works."""
    plain = launch(name="plain")
    argv = plain.spec.argv
    plain.close()
    instance = launch(argv=(*argv, "-b", "2048", "-ub", "2048"), hang_timeout=1.0)
    instance.ready()
    engine = instance.engine
    code, answer = instance.http("POST", "/completion", {"prompt": "word " * 1500, "n_predict": 1}, limit=200)
    assert code == 200
    assert answer["tokens_evaluated"] >= 1500
    assert instance.engine == engine
    assert instance.status["restarts"] == 0


def test_a_stopped_engine_is_hung_in_the_end(launch: Launch) -> None:
    instance = launch(stop_timeout=1.0, hang_timeout=3.0)
    instance.ready()
    first = instance.engine
    os.kill(first, signal.SIGSTOP)
    status = instance.until("ready", limit=60, but_not=first)
    assert status["last_exit"]["class"] == "hung"
    assert gone(first)


def test_a_stalled_start(launch: Launch, tmp_path: Path) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    instance = launch(binary=str(sleeper), start_stall=1.5, stop_timeout=1.0, restart="never")
    assert instance.ended(15) == 14
    assert "start-stalled: nothing has moved for" in instance.output.read_text()


def test_a_leftover_is_ours_alone(launch: Launch, tmp_path: Path) -> None:
    """The engine of a supervisor that was killed together with its keeper is ended by the next; nobody else's is."""
    instance = launch()
    instance.ready()
    record = Path(instance.spec.state_dir) / "engine.json"
    kept = record.read_text()
    engine = instance.engine
    instance.client.stop()
    instance.ended()
    record.write_text(kept.replace(str(engine), str(os.getpid())))  # a pid that another process has by now
    again = launch()
    again.ready()
    assert again.engine != os.getpid()


def test_a_flood_in_the_log_stops_nothing(launch: Launch, engine_server: Path, tmp_path: Path) -> None:
    noisy = tmp_path / "noisy"
    noisy.write_text(f'#!/bin/sh\n(seq 1 300000; yes same | head -n 300000) &\nexec "{engine_server}" "$@"\n')
    noisy.chmod(0o755)
    instance = launch(binary=str(noisy), start_stall=30.0)
    instance.until("ready", limit=60)
    begin = time.monotonic()
    instance.status  # noqa: B018
    assert time.monotonic() - begin < 0.5
    files = sorted(Path(instance.spec.log_dir).glob("log.jsonl*"))
    assert sum(file.stat().st_size for file in files) <= 5 * (10 << 20) + (1 << 20)


def test_a_full_disk_stops_nothing(launch: Launch) -> None:
    """The log's disk takes nothing (a file size limit stands for it): the instance lives, and counts what it lost."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        instance = launch()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert instance.ready()["state"] == "ready"
    assert instance.complete()[0] == 200
