"""What the package itself promises: arrays, names, frames, pictures, models from memory, threads,
memory, interruptions.
"""
import ast
import doctest
import gc
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
from conftest import EXPECTED, GOLDEN, MARY, PACKAGE, ROOT

MODULES = [
    "unpack_engine", "unpack_engine.experiments", "unpack_engine.model", "unpack_engine.prepared",
    "unpack_engine.results", "unpack_engine.loading", "unpack_engine.compat",
    "unpack_engine.batches", "unpack_engine.circuits"
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(up, name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0 and result.attempted > 0


def test_examples_in_the_documentation(up):
    result = doctest.testfile(
        str(ROOT / "docs" / "python.md"),
        module_relative=False,
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.failed == 0 and result.attempted > 8


def test_the_types_pass_mypy(up, tmp_path):
    mypy = [sys.executable, "-m", "mypy"]
    if subprocess.run([*mypy, "--version"], capture_output=True).returncode:
        pytest.skip("mypy is not installed")
    use = tmp_path / "use.py"
    use.write_text(
        "import numpy as np\nimport unpack_engine as up\nimport unpack_engine.compat\nfrom"
        " numpy.typing import NDArray\nr: up.Trace = up.load(\"pocket-gpt2\").prepare([1,"
        " 2]).trace(target=3)\ncredit: NDArray[np.float64] = r.token_credit\n"
    )
    run = lambda: subprocess.run(
        [*mypy, "--strict", "use.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(PACKAGE)},
    )
    checked = run()
    assert checked.returncode == 0, checked.stdout
    use.write_text(use.read_text() + "wrong: int = r.token_credit\n")
    assert "Incompatible types" in run().stdout  # the types are seen, not taken for Any


def test_the_stub_names_what_the_compiled_module_has():
    from unpack_engine import _native

    public = lambda thing: {name for name in vars(thing) if not name.startswith("_")}
    stub = ast.parse((PACKAGE / "unpack_engine" / "_native.pyi").read_text())
    classes = {
        node.name: {x.name for x in node.body if not x.name.startswith("_")}
        for node in stub.body
        if isinstance(node, ast.ClassDef)
    }
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    values = {
        node.target.id
        for node in stub.body
        if isinstance(node, ast.AnnAssign) and not node.target.id.startswith("_")
    }
    assert functions | values | set(classes) == public(_native)
    for name, members in classes.items():
        assert members == public(getattr(_native, name)), name


def test_every_public_thing_is_documented(up):
    for name in up.__all__:
        thing = getattr(up, name)
        assert thing.__doc__, name
        for member in vars(thing).values() if isinstance(thing, type) else []:
            if isinstance(member, (types.FunctionType, property)):
                written = member.fget if isinstance(member, property) else member
                assert member.__doc__ or written.__name__.startswith(
                    "_"
                ), f"{name}.{written.__name__}"


def test_credit_is_read_in_place(mary):
    result = mary.trace(target=" Mary")
    first, second = result.token_credit, result.token_credit
    assert np.shares_memory(first, second) and not first.flags.writeable and not first.flags.owndata
    del result
    gc.collect()
    assert np.isfinite(first).all()  # the array keeps its result alive


def test_the_cache_agrees_with_itself(up, pocket, mary):
    cache = mary.cache
    assert len(list(cache)) == len(cache)
    for layer in range(pocket.config["n_layers"]):
        pattern = cache["pattern", layer]
        np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(pattern, cache[f"blocks.{layer}.attn.hook_pattern"])
    np.testing.assert_array_equal(cache["resid_post", -1], cache["resid_final"])
    np.testing.assert_array_equal(cache["resid_post", 0], cache["resid_pre", 1])
    np.testing.assert_allclose(
        cache["embed"] + cache["hook_pos_embed"], cache["resid_pre", 0], atol=1e-5
    )
    best = int(cache["logits"][-1].argmax())
    assert best == pocket.predict(MARY).predictions[0].id
    assert all(np.isfinite(cache[key]).all() for key in cache)
    with pytest.raises(KeyError, match="resid_pre"):
        cache["residual", 0]
    with pytest.raises(KeyError):
        cache["resid_pre", 99]
    assert "up" in repr(up.load("pocket-llama").prepare("Mary").cache) and (
        "pos_embed" not in up.load("pocket-llama").prepare("Mary").cache
    )


def test_frames(mary, pocket):
    pandas = pytest.importorskip("pandas")
    result = mary.trace(target=" Mary", versus=" John")
    tokens = result.to_pandas()
    assert (
        isinstance(tokens, pandas.DataFrame)
        and tokens["credit"].tolist() == result.token_credit.tolist()
    )
    assert result.to_pandas("paths")["credit"].tolist() == [path.credit for path in result.paths]
    assert result.to_pandas("nodes").shape == result.node_array.shape
    assert list(result.to_pandas("importance")["writer"]) == result.writers
    assert result.to_pandas("words")["credit"].sum() == pytest.approx(result.token_credit.sum())
    assert len(mary.interactions().to_pandas()) > 0
    assert pocket.attribute(MARY, generate=2).to_pandas().shape[0] == 2
    assert len(pocket.predict(MARY, top=3).to_pandas()) == 3
    with pytest.raises(ValueError, match="what must be"):
        result.to_pandas("colours")


def test_rich_display_is_well_formed(mary, pocket):
    from xml.etree import ElementTree

    for result in (
        mary.trace(),
        mary.interactions(),
        pocket.attribute(MARY, generate=2),
        pocket.predict(MARY, top=2),
    ):
        ElementTree.fromstring(result._repr_html_().replace("&nbsp;", " "))
        assert repr(result) and "\n" not in repr(result)


def read_safetensors(folder):
    """name -> numpy array, or (bytes as uint16, shape) for bfloat16."""
    blob = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        dtype = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[entry["dtype"]]
        tensors[name] = (
            entry["dtype"],
            np.frombuffer(blob[begin:end], dtype).reshape(entry["shape"]).copy(),
        )
    return tensors


class LikeTorch:
    """What the package uses of a torch tensor."""

    def __init__(self, values, dtype):
        self.values, self.dtype, self.shape = (
            np.ascontiguousarray(values),
            f"torch.{dtype}",
            values.shape,
        )

    detach = cpu = contiguous = lambda self: self

    def clone(self):
        return LikeTorch(self.values.copy(), self.dtype.removeprefix("torch."))

    def data_ptr(self):
        return self.values.ctypes.data


@pytest.mark.parametrize("case", ["tiny-gpt2", "tiny-neox", "tiny-qwen3", "small-llama"])
def test_a_model_from_memory_is_the_model_from_files(up, golden, case):
    config = json.loads((GOLDEN / case / "config.json").read_text())
    stored = read_safetensors(GOLDEN / case)
    if any(dtype == "BF16" for dtype, _ in stored.values()):
        tensors = {
            name: LikeTorch(values, {"BF16": "bfloat16", "F32": "float32"}[dtype])
            for name, (dtype, values) in stored.items()
        }
    else:
        tensors = {name: values for name, (_, values) in stored.items()}
    tensors["h.0.attn.bias"] = np.ones((1, 1, 4, 4), bool)  # a buffer, as live models have
    model = up.from_state_dict(config, tensors)
    del tensors, stored
    gc.collect()
    want = golden(case)[1].trace(target=EXPECTED[case]["target_ids"])
    got = model.prepare(EXPECTED[case]["ids"]).trace(target=EXPECTED[case]["target_ids"])
    np.testing.assert_array_equal(got.token_credit, want.token_credit)
    assert not model.has_tokenizer and model.generate([1, 2], max_tokens=2).text is None


def test_torch_tensors(up, golden):
    torch = pytest.importorskip("torch")
    config = (GOLDEN / "tiny-gpt2" / "config.json").read_text()
    tensors = {
        name: torch.nn.Parameter(torch.from_numpy(values))
        for name, (_, values) in read_safetensors(GOLDEN / "tiny-gpt2").items()
    }
    got = up.from_state_dict(config, tensors).prepare(EXPECTED["tiny-gpt2"]["ids"]).trace(target=9)
    np.testing.assert_array_equal(
        got.token_credit, golden("tiny-gpt2")[1].trace(target=9).token_credit
    )


def test_many_prompts_at_once_are_the_prompts_one_by_one(pocket):
    prompts = [MARY, "The cat sat on the", [1, 2, 3]]
    for many, prompt in zip(pocket.prepare_many(prompts), prompts):
        np.testing.assert_allclose(
            many.trace().token_credit, pocket.trace(prompt).token_credit, rtol=1e-4, atol=1e-5
        )


def test_generation_is_seeded_and_can_be_stopped(pocket):
    heat = {"max_tokens": 12, "temperature": 1.0, "top_k": 20}
    assert pocket.generate(MARY, seed=3, **heat) == pocket.generate(MARY, seed=3, **heat)
    assert len({pocket.generate(MARY, seed=seed, **heat).text for seed in range(4)}) > 1
    seen = []
    new = pocket.generate(
        MARY, max_tokens=10, on_token=lambda token: seen.append(token) or len(seen) < 3
    )
    assert new.ids == seen and len(seen) == 3

    def fail(token):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pocket.generate(MARY, max_tokens=3, on_token=fail)


def test_progress_reaches_the_callback_and_its_exception_comes_back(pocket):
    calls = []
    pocket.attribute(
        MARY, generate=5, progress=lambda *news: calls.append((threading.current_thread(), news))
    )
    assert calls and all(
        thread is threading.current_thread() and isinstance(news[0], str) for thread, news in calls
    )

    def fail(what, done, total):
        raise ZeroDivisionError(what)

    with pytest.raises(ZeroDivisionError):
        pocket.attribute(MARY, generate=5, progress=fail)
    pocket.prepare(MARY, progress=True)


def test_ctrl_c_stops_a_long_call(up):
    script = (
        "import sys, unpack_engine as up\nm = up.random('gpt2-small', threads=1)\nprint('ready',"
        " flush=True)\ntry:\n    m.prepare(list(range(600)))\nexcept KeyboardInterrupt:\n   "
        " print('interrupted', flush=True)\nprint(m.config['n_layers'], flush=True)\n"
    )
    # A shell that runs tests in the background lets its children ignore the signal, and Python
    # would go on ignoring it.
    listen = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        preexec_fn=listen,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert out == "interrupted\n12\n" and process.returncode == 0
    assert time.monotonic() - begin < 60


def test_two_threads_trace_at_once_on_one_model(pocket, mary):
    want = [
        mary.trace(target=" Mary", versus=" John").token_credit.copy(),
        mary.trace(target=" John", root="A3.H0@-1").token_credit.copy(),
    ]
    failures = []

    def work(which):
        try:
            for _ in range(15):
                prepared = mary if which == 0 else pocket.prepare(MARY)
                got = (
                    prepared.trace(target=" Mary", versus=" John")
                    if which == 0
                    else prepared.trace(target=" John", root="A3.H0@-1")
                )
                np.testing.assert_allclose(got.token_credit, want[which], rtol=1e-6, atol=1e-9)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures, failures[0]


def test_the_interpreter_runs_on_while_the_engine_works(up):
    shape = {
        "model_type": "gpt2",
        "n_layer": 4,
        "n_head": 8,
        "n_embd": 512,
        "n_positions": 512,
        "vocab_size": 2000,
        "activation_function": "gelu_new",
    }
    model = up.random(shape, threads=1)
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        before = ticks[0]
        model.prepare(list(range(400)))
        assert ticks[0] - before > 20
    finally:
        stop.set()
        ticker.join()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_ten_thousand_traces_leak_no_memory(up):
    model = up.load(GOLDEN / "tiny-gpt2", threads=1)
    ids = EXPECTED["tiny-gpt2"]["ids"]

    def work(count):
        for i in range(count):
            result = model.prepare(ids).trace(
                target=9,
                versus=11 if i % 2 else None,
                root="A1.H0@-1" if i % 3 == 0 else None,
                top_paths=5,
            )
            assert (
                len(result.token_credit) == len(ids)
                and result.node_array.shape
                and result.paths is not None
            )

    work(2000)
    gc.collect()
    before = resident()
    work(10_000)
    gc.collect()
    grown = resident() - before
    assert grown < 8 << 20, f"{grown / 2**20:.1f} MiB more after 10,000 traces"


def test_values_survive_pickling(mary):
    result = mary.trace(top_paths=2)
    for value in (result.paths, result.tokens, result.coverage, result.to_dict()):
        assert pickle.loads(pickle.dumps(value)) == value


def test_an_import_opens_neither_the_gpu_nor_the_products(up):
    script = "import unpack_engine as up; up.about(); print(open('/proc/self/maps').read())"
    maps = subprocess.run(
        [sys.executable, "-c", "import unpack_engine; print(open('/proc/self/maps').read())"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        check=True,
    ).stdout
    assert (
        "_native" in maps
        and "libdnnl" not in maps
        and "libcuda" not in maps
        and "libunpack_cuda" not in maps
    )
    maps = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        check=True,
    ).stdout
    assert "libcuda" not in maps and "libunpack_cuda" not in maps


def test_an_import_leaves_threads_and_instructions_of_the_products_open(up):
    """What is decided once for a process is decided by its first product, not by an import or by
    who asks what there is.
    """
    script = """
import ctypes, os
import numpy
tasks = len(os.listdir("/proc/self/task"))
import unpack_engine as up
up.about()
assert len(os.listdir("/proc/self/task")) == tasks, "threads were started"
files = {line.split()[-1] for line in open("/proc/self/maps") if "libdnnl" in line}
if files:
    library = ctypes.CDLL(files.pop())
    avx2 = 7
    assert library.dnnl_set_max_cpu_isa(avx2) == 0, "the instruction set was chosen"
    assert library.dnnl_get_effective_cpu_isa() <= avx2
print("open")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
    )
    assert done.stdout == "open\n", done.stderr


def test_defaults_are_those_of_the_library(up):
    import inspect

    import unpack_engine._native as native

    default = {
        (name, argument): inspect.signature(getattr(up.Model, name)).parameters[argument].default
        for name, argument in [
            ("predict", "top"),
            ("generate", "max_tokens"),
            ("attribute", "generate"),
            ("sources", "generate"),
            ("sources_cost", "generate"),
        ]
    }
    assert list(default.values()) == [
        native.defaults[name] for name in ("top", "max_tokens", "attribute", "generate", "generate")
    ]
    options = set(native.option_fields) - {"reroot"} | {"preset"}
    for call in (up.Prepared.trace, up.Prepared.edge_credit, up.Model.attribute, up.experiment):
        assert options <= set(inspect.signature(call).parameters), call


def test_the_doctor_says_what_it_found(up):
    found = {row["subject"]: row for row in up.doctor()}
    assert "pocket-gpt2" in found["bundled models"]["found"] and not found["products"]["fatal"]


def test_models_are_listed(up):
    assert {"pocket-gpt2", "pocket-neox", "pocket-llama"} <= {
        model["name"] for model in up.models()
    }
    assert "gpt2" in up.families() and up.about()["version"] == up.__version__


@pytest.fixture
def sink(tmp_path):
    """Arguments of a small experiment."""
    corpus = tmp_path / "sentences.txt"
    corpus.write_text(
        "".join(
            f"{a} and {b} went to the store. {b} gave a drink to {a}.\n"
            for a in ("Mary", "Kate", "Alice")
            for b in ("John", "Mark")
        )
    )
    return {"name": "sink", "n": 3, "corpus": corpus, "out": tmp_path / "sink"}


def test_an_experiment_keeps_what_it_found(up, sink):
    result = up.experiment(**sink)
    assert result.records and all("key" in record for record in result.records)
    assert result.summary["settings"]["n"] == 3 and str(result) == result.report
    assert (sink["out"] / "report.md").read_text() == result.report
    assert up.experiment(**{**sink, "out": None}).records == result.records
    with pytest.raises(ValueError, match="settings"):
        up.experiment(**{**sink, "n": 2})  # the folder holds a run with other settings
    for wrong, named in [
        ({"name": "nothing"}, "name"),
        ({"n": 0}, "n takes"),
        ({"readout": "colour"}, "readout"),
        ({"seed": -1}, "seed"),
    ]:
        with pytest.raises(ValueError, match=named):
            up.experiment(**{**sink, **wrong})


def test_an_experiment_resumes(up, sink):
    first, again = up.experiment(**sink), up.experiment(**sink)
    assert again.records == first.records and again.summary == first.summary


@pytest.mark.parametrize("name", ["ioi", "own_metric"])
def test_notebooks_are_made_from_their_scripts_and_ran_through(name):
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text())
    script = (ROOT / "examples" / f"{name}.py").read_text().replace("  # fmt: skip", "")
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        lines = (
            text.splitlines()
            if cell["cell_type"] == "code"
            else [f"# {line}".rstrip() for line in text.splitlines()]
        )
        assert "\n".join(lines) in script
        assert not any(output["output_type"] == "error" for output in cell.get("outputs", []))
    assert "<svg" in json.dumps(notebook)
