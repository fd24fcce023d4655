import json
import time

import pytest

from benchmarks import malloc
from benchmarks.timer import Timing, paired


def test_contestants_take_turns_and_start_in_turn() -> None:
    calls: list[str] = []
    timings = paired({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=3, warmup=1)
    assert "".join(calls) == "cab" + "abc" + "bca" + "cab"
    assert all(len(timing.seconds) == 3 for timing in timings.values())


def test_times_are_those_of_the_call() -> None:
    timings = paired({"fast": lambda: None, "slow": lambda: time.sleep(0.02)}, rounds=3, warmup=0)
    assert timings["slow"].median >= 0.02
    assert timings["fast"].median < 0.02
    assert timings["fast"].speedup_over(timings["slow"]) > 1
    timings = paired({"slow": lambda: time.sleep(0.02)}, rounds=3, warmup=0, clock=time.process_time)
    assert timings["slow"].median < 0.02  # sleep takes no time of the processor


def test_statistics() -> None:
    timing = Timing((4.0, 1.0, 2.0, 3.0, 100.0))
    assert timing.median == 3
    assert timing.quartiles == (2, 4)
    # Ratios within a round: a slow round that hits both does not change the speed-up.
    assert timing.speedup_over(Timing((8.0, 2.0, 4.0, 6.0, 200.0))) == 2
    assert Timing((5.0,)).quartiles == (5, 5)


def test_a_child_gets_the_setting_that_was_asked_for(monkeypatch, tmp_path) -> None:
    probe = "import json, os, sys\nwith open(sys.argv[1], 'w') as file:\n    json.dump(dict(os.environ), file)\n"
    (tmp_path / "probe.py").write_text(probe)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "7")
    for setting, values in malloc.SETTINGS.items():
        malloc.run_module("probe", [str(tmp_path / "seen")], setting)
        seen = json.loads((tmp_path / "seen").read_text())
        assert {name: seen[name] for name in malloc.SETTINGS["tuned"] if name in seen} == values


@pytest.mark.parametrize("setting", malloc.SETTINGS)
def test_current_recognises_its_environment(setting: str, monkeypatch) -> None:
    for name in malloc.SETTINGS["tuned"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in malloc.SETTINGS[setting].items():
        monkeypatch.setenv(name, value)
    assert malloc.current() == setting
