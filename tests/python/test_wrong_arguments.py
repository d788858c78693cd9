"""A wrong argument is named, in one line, and the right kind of exception is raised."""
import json
import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
from conftest import GOLDEN, MARY, PROGRAM

SENTENCES = [
    ({"count": 0}, ValueError, "count"),
    ({"count": "two"}, TypeError, "count"),
    ({"target": "Mary Mary"}, ValueError, "target"),
    ({"root": "emb@1"}, ValueError, "emb@1"),
    ({"preset": "worst"}, ValueError, "preset"),
]

TRACE = [
    ({"target": "Mary Mary"}, ValueError, "target"),
    ({"target": 10**6}, ValueError, "target"),
    ({"target": -1}, ValueError, "target"),
    ({"target": 1.5}, TypeError, "target"),
    ({"target": []}, ValueError, "target"),
    ({"versus": [3, "x y z"]}, ValueError, "versus"),
    ({"versus": " John", "raw_logit": True}, ValueError, "raw_logit"),
    ({"raw_logit": 1}, TypeError, "raw_logit"),
    ({"position": 99}, ValueError, "position"),
    ({"position": "last"}, TypeError, "position"),
    ({"root": "A99.H0@1"}, ValueError, "root"),
    ({"root": "A1.H0@99"}, ValueError, "root"),
    ({"root": "emb@1"}, ValueError, "emb@1"),
    ({"root": 5}, TypeError, "root"),
    ({"reroot": "sideways"}, ValueError, "reroot"),
    ({"top_paths": -1}, ValueError, "top_paths"),
    ({"top_paths": 2.5}, TypeError, "top_paths"),
    ({"top_paths": True}, TypeError, "top_paths"),
    ({"tau": 0}, ValueError, "tau"),
    ({"tau": "small"}, TypeError, "tau"),
    ({"tau_rule": "x"}, ValueError, "tau_rule"),
    ({"branch": "W"}, ValueError, "branch"),
    ({"through": "B1"}, ValueError, "through"),
    ({"from_": "start"}, TypeError, "from"),
    ({"min_layer": -2}, ValueError, "min_layer"),
    ({"sign": 1}, TypeError, "sign"),
    ({"sign": "up"}, ValueError, "sign"),
    ({"beta": -0.5}, ValueError, "beta"),
    ({"beta": float("nan")}, ValueError, "beta"),
    ({"beta": "much"}, TypeError, "beta"),
    ({"preset": "x"}, ValueError, "preset"),
    ({"preset": 5}, TypeError, "preset"),
    ({"floor": -1}, ValueError, "floor"),
    ({"direction": "x"}, ValueError, "direction"),
    ({"keys": "x"}, ValueError, "keys"),
    ({"weights": (1, 2)}, ValueError, "weights"),
    ({"weights": 1}, TypeError, "weights"),
    ({"mlp_weights": "ab"}, (TypeError, ValueError), "mlp_weights"),
    ({"dispatch": "x"}, ValueError, "dispatch"),
    ({"mlp": "x"}, ValueError, "mlp"),
    ({"scores": "x"}, ValueError, "scores"),
    ({"method": "x"}, ValueError, "method"),
    ({"progress": 5}, TypeError, "progress"),
    ({"colour": "red"}, TypeError, "colour"),
    ({"top_paths": 10**400}, ValueError, "top_paths"),
    ({"position": 10**400}, ValueError, "position"),
    ({"beta": 1e300}, ValueError, "beta"),
    ({"weights": (0, 0, 0)}, ValueError, "weights"),
    ({"target": "\ud800"}, ValueError, "target"),
    ({"target": b"Mary"}, TypeError, "target"),
]


@pytest.mark.parametrize("wrong,kind,named", SENTENCES)
def test_sentences(mary, wrong, kind, named):
    with pytest.raises(kind, match=re.escape(named)) as caught:
        mary.sentences(**wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong,kind,named", TRACE)
def test_trace(mary, wrong, kind, named):
    with pytest.raises(kind, match=re.escape(named)) as caught:
        mary.trace(**wrong)
    message = str(caught.value)
    assert "\n" not in message and "--" not in message


@pytest.mark.parametrize(
    "call,kind,named",
    [
        (lambda m: m.predict("", bos=False), ValueError, "prompt"),
        (lambda m: m.predict(None), TypeError, "prompt"),
        (lambda m: m.prepare(b"Mary"), TypeError, "prompt"),
        (lambda m: m.prepare(bytearray(b"Mary")), TypeError, "prompt"),
        (lambda m: m.prepare("\ud800"), ValueError, "prompt"),
        (lambda m: m.prepare([10**400]), ValueError, "prompt[0]"),
        (lambda m: m.tokenize("\ud800"), ValueError, "text"),
        (lambda m: m.predict([1, -2]), ValueError, "prompt[1]"),
        (lambda m: m.predict([1, 10**7]), ValueError, "prompt[1]"),
        (lambda m: m.predict([1.5]), TypeError, "prompt[0]"),
        (lambda m: m.predict([]), ValueError, "prompt"),
        (lambda m: m.predict(MARY, top=0), ValueError, "top"),
        (lambda m: m.predict(MARY, lens="yes"), TypeError, "lens"),
        (lambda m: m.predict(MARY, bos=3), TypeError, "bos"),
        (lambda m: m.predict([1] * 100_000), ValueError, "100000"),
        (lambda m: m.generate(MARY, temperature=-1), ValueError, "temperature"),
        (lambda m: m.generate(MARY, max_tokens=-1), ValueError, "max_tokens"),
        (lambda m: m.generate(MARY, on_token=1), TypeError, "on_token"),
        (lambda m: m.generate(MARY, seed=-1), ValueError, "seed"),
        (lambda m: m.tokenize(3), TypeError, "text"),
        (lambda m: m.decode("abc"), TypeError, "ids"),
        (lambda m: m.prepare(MARY, memory_budget=-1), ValueError, "memory_budget"),
        (lambda m: m.prepare_many(MARY), TypeError, "prompts"),
        (lambda m: m.prepare_many([MARY, [10**7]]), ValueError, "prompts[1]"),
        (lambda m: m.attribute(MARY, ""), ValueError, "continuation"),
        (lambda m: m.attribute(MARY, generate=0), ValueError, "generate"),
        (lambda m: m.intervene(MARY, cut="Z9"), ValueError, "cut"),
        (lambda m: m.intervene(MARY, cut="MLP0", channel="tv"), ValueError, "channel"),
        (
            lambda m: m.intervene(MARY, edges="MLP0@1 -> MLP1@1", patch_from=[1, 2]),
            ValueError,
            "patch_from",
        ),
        (lambda m: m.intervene(MARY, zero=[99]), ValueError, "zero[0]"),
    ],
)
def test_models(pocket, call, kind, named):
    with pytest.raises(kind, match=re.escape(named)) as caught:
        call(pocket)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_prepared(mary):
    for call, named in [
        (lambda: mary.interactions(99), "query"),
        (lambda: mary.interactions(1, all=True), "query"),
        (lambda: mary.scores(99, "K"), "layer"),
        (lambda: mary.scores(0, "Z"), "branch"),
        (lambda: mary.scores(0, "G"), "branch"),
    ]:
        with pytest.raises(ValueError, match=named):
            call()


def test_words_are_refused_as_on_the_command_line(pocket):
    for field, wrong, option in [
        ("ablate", {"components": "A0.H0", "ablate": "x"}, ["--component", "A0.H0"]),
        ("channel", {"cut": "MLP0", "channel": "x"}, ["--cut", "MLP0"]),
    ]:
        with pytest.raises(ValueError) as caught:
            pocket.intervene(MARY, **wrong)
        said = subprocess.run(
            [PROGRAM, "intervene", MARY, *option, f"--{field}", "x"], capture_output=True, text=True
        )
        assert said.returncode == 2 and said.stderr == f"unpack: {caught.value}\n"


def test_loading(up, tmp_path):
    with pytest.raises(FileNotFoundError, match="no-such-model"):
        up.load("no-such-model")
    with pytest.raises(FileNotFoundError):
        up.load(tmp_path / "nothing")
    with pytest.raises(TypeError, match="name"):
        up.load(b"pocket-gpt2")
    with pytest.raises(ValueError, match="device"):
        up.load("pocket-gpt2", device="tpu")
    with pytest.raises(ValueError, match="threads"):
        up.load("pocket-gpt2", threads=0)
    with pytest.raises(ValueError, match="seed"):
        up.random("gpt2-small", seed=-1)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    with pytest.raises((ValueError, FileNotFoundError), match="broken"):
        up.load(broken)


def test_a_state_dict_with_a_bad_tensor(up):
    config = (GOLDEN / "tiny-gpt2" / "config.json").read_text()
    with pytest.raises(TypeError, match="wte.weight"):
        up.from_state_dict(config, {"wte.weight": np.ones((2, 2), int)})
    with pytest.raises(ValueError):
        up.from_state_dict(config, {"wte.weight": np.ones((2, 2), np.float32)})
    with pytest.raises(TypeError, match="tensors"):
        up.from_state_dict(config, [1])
    with pytest.raises(TypeError, match="config"):
        up.from_state_dict(5, {})


def test_a_model_without_a_tokenizer_says_so(golden):
    with pytest.raises(ValueError, match="tokenizer"):
        golden("tiny-gpt2")[0].prepare("Mary")


def test_arrays_that_are_changed_later_change_nothing(up):
    config = json.loads((GOLDEN / "tiny-gpt2" / "config.json").read_text())
    tensors = {name: np.array(value) for name, value in golden_tensors().items()}
    model = up.from_state_dict(config, tensors)
    before = model.predict([1, 2, 3]).predictions[0]
    for value in tensors.values():
        value[...] = 0
    assert model.predict([1, 2, 3]).predictions[0] == before


def golden_tensors():
    data = (GOLDEN / "tiny-gpt2" / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    kinds = {"F32": np.float32, "F16": np.float16}
    return {
        n: np.frombuffer(
            data[8 + size :],
            kinds[e["dtype"]],
            count=int(np.prod(e["shape"])),
            offset=e["data_offsets"][0],
        ).reshape(e["shape"])
        for n, e in header.items()
        if n != "__metadata__"
    }


def test_leaving_while_daemon_threads_trace_is_no_crash(up):
    """The interpreter ends while threads are inside the engine."""
    code = (
        "import threading, time, unpack_engine as up\n"
        "m = up.load('pocket-gpt2')\n"
        "def work():\n"
        "    while True:\n"
        "        m.trace('Mary and John went to the store. John gave a drink to', top_paths=5)\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.5)\n"
    )
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0 and "terminate" not in done.stderr, done.stderr[-500:]


@pytest.mark.parametrize(
    "wrong",
    ["\ud800", "x" * 100_000, b"x", 5, "/a\0b"],
    ids=["surrogate", "long", "bytes", "int", "nul"],
)
def test_paths_and_names_are_refused_in_one_line(up, pocket, tmp_path, wrong):
    calls = [
        lambda: up.load(wrong),
        lambda: up.random(wrong),
        lambda: up.merge([wrong], tmp_path),
        lambda: up.merge([tmp_path], wrong),
        lambda: up.batch(wrong, tmp_path),
        lambda: up.batch(tmp_path / "none", wrong),
        lambda: up.experiment(wrong),
        lambda: up.experiment("sink", models=wrong),
        lambda: up.experiment("faithfulness", corpus=wrong, n=1),
        lambda: up.circuit(wrong),
        lambda: up.load(device=wrong),
        lambda: up.from_state_dict(wrong, {}),
        lambda: pocket.trace("Mary", preset=wrong),
        lambda: pocket.prepare("Mary").scores(0, wrong),
    ]
    for i, call in enumerate(calls):
        with pytest.raises((TypeError, ValueError, OSError)) as caught:
            call()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500, (
            i,
            str(caught.value)[:600],
        )
