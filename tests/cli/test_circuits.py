"""The experiments on known circuits: indirect objects and greater-than."""
import json
import shutil
import struct

import pytest
from conftest import ROOT

SHARED = ROOT.parent / "shared" / "tokenizers"
ROLES = "# role | root | heads\nmover | END | A7.H3\nfeeder | - | A5.H4 A6.H4\nearly | S2 | A3.H0\n"
CLAIMS = "late | MLP7 A3.H7 | MLP6 A1.H1 | all | END\nvalues | A3.H7 | MLP1 MLP2 | V | YY\n"


def summary_of(folder, model="pocket-gpt2"):
    return json.loads((folder / "summary.json").read_text())["models"][model]


def records_of(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()][1:]


@pytest.fixture(scope="module")
def ioi(unpack, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ioi")
    (folder / "roles.txt").write_text(ROLES)
    unpack.ok(
        "experiment", "ioi", "--n", "2", "--roles", folder / "roles.txt", "--out", folder / "out"
    )
    return folder


def test_ioi_ranks_are_those_of_the_composition_that_trace_gives(unpack, ioi):
    for record in (r for r in records_of(ioi / "out") if "roots" in r):
        names = [
            word
            for word in record["text"].replace(".", " ").replace(",", " ").split()
            if word[0].isupper() and record["text"].count(word) == 1
        ]
        io = next(n for n in names if n not in ("When", "Then", "After", "While"))
        got = unpack.json(
            "trace", record["text"], "--preset", "paper", "--root", "A7.H3@-1", "--target", " " + io
        )
        for branch in ("all", "K", "Q", "V"):
            heads = [
                e
                for e in got["composition"][branch]
                if e["component"].startswith("A") and not e["component"].startswith("A0.")
            ]
            best = next(i for i, e in enumerate(heads) if e["component"] in ("A5.H4", "A6.H4"))
            rank, mass = record["roots"]["mover"]["A7.H3"][branch]["mass"][1]
            assert rank == best + 1 and mass == pytest.approx(heads[best]["mass"], rel=1e-4)


def test_ioi_roles_are_rerooted_where_the_table_says(ioi):
    summary = summary_of(ioi / "out")
    assert [r["name"] for r in summary["roles"]] == ["mover", "feeder", "early"] and summary[
        "search"
    ] is None
    assert set(summary["tables"]["mass"]["Q"]) == {"mover", "early"}
    assert (
        summary["tables"]["mass"]["K"]["early"]["feeder"] is None
    )  # later than what is rerooted at
    assert summary["tables"]["mass"]["all"]["mover"]["feeder"]["found_percent"] == 100
    assert summary["top_percent"] == 100


def test_ioi_draws_no_empty_picture(unpack, ioi, tmp_path):
    assert (ioi / "out" / "ioi-pocket-gpt2.svg").exists() and "ioi-pocket-gpt2.svg" in (
        ioi / "out" / "report.md"
    ).read_text()
    (tmp_path / "roles.txt").write_text(
        "mover | END | A4.H1\nother | END | A4.H2\n"
    )  # neither can read the other
    unpack.ok(
        "experiment", "ioi", "--n", "1", "--roles", tmp_path / "roles.txt", "--out",
        tmp_path / "out"
    )
    report = (tmp_path / "out" / "report.md").read_text()
    assert "nothing can be ranked" in report and ".svg" not in report
    assert not list((tmp_path / "out").glob("*.svg"))


def test_ioi_finds_heads_that_the_answer_depends_on(unpack, tmp_path):
    unpack.ok("experiment", "ioi", "--n", "2", "--out", tmp_path / "out")
    summary = summary_of(tmp_path / "out")
    heads = {r["name"]: r["heads"] for r in summary["roles"]}
    assert {"name mover", "S-inhibition", "induction", "duplicate token", "previous token"} <= set(
        heads
    )
    taken = [h for list_ in heads.values() for h in list_]
    assert len(taken) == len(set(taken)) and taken
    strongest = max(summary["search"], key=lambda row: row["logits"][0])
    assert strongest["role"] is not None and strongest["logits"][0] > 0.1
    for row in summary["search"]:  # an effect whose interval holds 0 makes no role
        effects = [
            row[stage]
            for stage in ("logits", "name-mover queries", "S-inhibition values", "induction keys")
        ]
        assert all(low <= share <= high for share, low, high in effects)
        assert row["role"] is None or any(share >= 0.02 and low > 0 for share, low, _ in effects)
    first = next(
        r for r in records_of(tmp_path / "out") if r["key"].endswith("search|logits|prompt 0")
    )
    assert len(first["effects"]) == len(first["previous"]) == 74 and first["clean"] > 1


def test_without_a_name_mover_its_candidates_are_read_and_give_nobody_a_role(unpack, tmp_path):
    unpack.ok("experiment", "ioi", "--n", "5", "--model", "pocket-neox", "--out", tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["models"]["pocket-neox"]
    heads = {r["name"]: r["heads"] for r in summary["roles"]}
    stages = {
        r["key"].split("|")[2] for r in records_of(tmp_path / "out") if "|search|" in r["key"]
    }
    report = (tmp_path / "out" / "report.md").read_text()
    assert heads["name mover"] == heads["S-inhibition"] == [] and heads["S-suppressor"]
    assert "queries of candidates" in stages and "name-mover queries" not in stages
    assert (
        summary["candidates"]
        and f"to those of {', '.join(summary['candidates'])}, which look" in report
    )
    assert "--seed 0 --preset paper\n" in report and "(2,000 resamples)" in report


def test_paths_go_through_mlps_unless_they_are_narrow(unpack, tmp_path):
    unpack.ok("experiment", "ioi", "--n", "2", "--out", tmp_path / "wide")
    unpack.ok("experiment", "ioi", "--n", "2", "--narrow-paths", "--out", tmp_path / "narrow")
    wide, narrow = (
        {r["key"]: r["effects"] for r in records_of(tmp_path / name) if "effects" in r}
        for name in ("wide", "narrow")
    )
    for i in (0, 1):
        logits, values = (
            f"pocket-gpt2|search|{stage}|prompt {i}" for stage in ("logits", "S-inhibition values")
        )
        assert wide[logits] == narrow[logits] and wide[values] != narrow[values]
    assert "--narrow-paths" in (tmp_path / "narrow" / "report.md").read_text()


def test_ioi_counts_the_signs_of_token_credit(unpack, ioi):
    summary = summary_of(ioi / "out")
    records = [r for r in records_of(ioi / "out") if "roots" in r]
    for setting in ("credit", "credit_best"):
        for name, sign in (("IO", 1), ("S1", -1), ("S2", 1)):
            want = 100 * sum(r[setting][name] * sign > 0 for r in records) / len(records)
            assert summary["signs"][setting][name]["percent"] == want
    text, io = records[0]["text"], records[0]["credit"]["IO"]
    names = [word.strip(",.") for word in text.split() if word[0].isupper()]
    subject = next(n for n in names if names.count(n) == 2)
    other = next(
        n for n in names if names.count(n) == 1 and n not in ("When", "Then", "After", "While")
    )
    got = unpack.json(
        "trace", text, "--preset", "paper", "--target", " " + other, "--versus", " " + subject
    )
    position = next(t["position"] for t in got["tokens"] if t["text"].strip() == other)
    assert io == pytest.approx(got["token_credit"][position], rel=1e-4)


def test_a_path_patch_of_the_search_is_an_edge_patched_by_hand(unpack, tmp_path):
    unpack.ok(
        "experiment", "greater-than", "--n", "1", "--claims", "find", "--out", tmp_path / "out"
    )
    records = records_of(tmp_path / "out")
    text = next(r for r in records if "text" in r)["text"]
    year, century = text.split()[6], text.split()[-1]
    search = next(r for r in records if r["key"].endswith("search|the logits|prompt 0"))
    rows = unpack.ok(
        "tokenize", "--jsonl", "-", stdin="".join(json.dumps(f"{y:02d}") + "\n" for y in range(100))
    ).splitlines()
    digits = [json.loads(row)[0] for row in rows]
    above = ",".join(str(digits[y]) for y in range(int(year[2:]) + 1, 100))
    below = ",".join(str(digits[y]) for y in range(int(year[2:]) + 1))
    got = unpack.json(
        "intervene", text, "--edge", "MLP7@-1 -> target", "--patch-from",
        text.replace(year, century + "01", 1), "--target-id", above, "--versus-id", below
    )
    assert search["clean"] == pytest.approx(got["clean"]["target"], rel=1e-4)
    mlp7 = 2 + 7 * 9 + 8  # emb, pos, then eight heads and an MLP a layer
    assert search["effects"][mlp7] == pytest.approx(
        got["cut"]["target"] - got["clean"]["target"], rel=1e-3
    )


@pytest.fixture(scope="module")
def years(unpack, tmp_path_factory):
    folder = tmp_path_factory.mktemp("years")
    (folder / "claims.txt").write_text(CLAIMS)
    unpack.ok(
        "experiment", "greater-than", "--n", "4", "--claims", folder / "claims.txt", "--out",
        folder / "out"
    )
    return folder


def test_greater_than_sweeps_the_year_and_measures_the_task(years):
    records = records_of(years / "out")
    endings = [r["year"] % 100 for r in records]
    assert (
        endings == sorted(endings)
        and endings[0] < 5
        and endings[-1] > 94
        and len(set(endings)) == 4
    )
    assert all(
        r["text"].endswith(f"from the year {r['year']} to the year {r['year'] // 100}")
        for r in records
    )
    summary = summary_of(years / "out")
    assert summary["probability_difference"] > 0.5 and summary["years"] == 882
    assert summary["probability_difference"] == pytest.approx(
        sum(r["probability_difference"] for r in records) / 4
    )


def test_greater_than_ranks_are_those_of_the_composition_that_trace_gives(unpack, years):
    records = records_of(years / "out")
    got = unpack.json("trace", records[2]["text"], "--root", "MLP7@-1", "--preset", "paper")
    names = ["emb", "pos"] + [
        name
        for layer in range(8)
        for name in [f"A{layer}.H{h}" for h in range(8)] + [f"MLP{layer}"]
    ]
    order = [names[w] for w in records[2]["rankings"]["MLP7|all|END"]["order"]]
    want = [e["component"] for e in got["composition"]["all"]]
    assert order[:20] == want[:20]
    assert records[2]["rankings"]["MLP7|all|END"]["found"] == sum(
        e["mass"] >= 1e-3 for e in got["composition"]["all"]
    )
    best = unpack.json("trace", records[2]["text"], "--root", "MLP7@-1", "--preset", "best")[
        "composition"
    ]["all"]
    assert [names[w] for w in records[2]["rankings_best"]["MLP7|all|END"]["order"]][:20] == [
        e["component"] for e in best[:20]
    ]
    claim = summary_of(years / "out")["claims"][0]
    detail = {(d["receiver"], d["source"]): d for d in claim["detail"]}
    ranks = sorted(
        r["rankings"]["MLP7|all|END"]["order"].index(names.index("MLP6")) + 1 for r in records
    )
    assert detail["MLP7", "MLP6"]["all"] == (ranks[1] + ranks[2]) / 2
    assert ("A3.H7", "MLP6") not in detail and claim["receivers"] == 2


@pytest.mark.parametrize(
    "name, option, table, line, why",
    [
        ("ioi", "--roles", "mover | END | A7.H3\nother | END | A99.H0\n", 2, "A99.H0"),
        ("ioi", "--roles", "mover | S9 | A7.H3\n", 1, "S9"),
        ("ioi", "--roles", "# remark\nmover | END\n", 2, "written"),
        ("ioi", "--roles", "mover | END | MLP3\n", 1, "no head"),
        (
            "greater-than",
            "--claims",
            "a | MLP7 | MLP6 | all | END\nb | MLP9 | MLP6 | all | END\n",
            2,
            "MLP9",
        ),
        ("greater-than", "--claims", "a | MLP7 | MLP6 | V | END\n", 1, "branch"),
        ("greater-than", "--claims", "a | MLP3 | MLP6 | all | END\n", 1, "before"),
        ("greater-than", "--claims", "a | MLP7 | MLP6 | all | XX\n", 1, "XX"),
    ],
)
def test_a_bad_line_of_a_table_is_named(unpack, tmp_path, name, option, table, line, why):
    (tmp_path / "table.txt").write_text(table)
    message = unpack.fails(
        1, "experiment", name, "--n", "1", option, tmp_path / "table.txt", "--out", tmp_path / "out"
    )
    assert f"line {line}" in message and why in message


@pytest.mark.parametrize(
    "name, args",
    [
        ("ioi", ["--n", "2"]),
        ("greater-than", ["--n", "2"]),
        ("faithfulness", ["--n", "2"]),
        ("beta", ["--n", "1"]),
        ("sink", ["--n", "2"]),
        ("suppression", ["--n", "2"]),
    ],
)
def test_an_interrupted_run_ends_in_the_same_bytes(unpack, tmp_path, name, args):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    report = unpack.ok("experiment", name, *args, "--out", whole)
    records = (whole / "results.jsonl").read_bytes()
    lines = records.split(b"\n")
    resumed.mkdir()
    keep = max(2, len(lines) // 2)
    (resumed / "results.jsonl").write_bytes(b"\n".join(lines[:keep]) + b"\n" + lines[keep][:30])
    assert unpack.ok("experiment", name, *args, "--out", resumed) == report
    for file in whole.iterdir():
        assert (resumed / file.name).read_bytes() == file.read_bytes(), file.name


def with_tokenizer(tmp_path, family, files, vocabulary):
    """A model of random weights that has a well-known tokenizer."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    if not (SHARED / family).is_dir():
        pytest.skip(f"{SHARED / family} is not here")
    folder = tmp_path / family
    folder.mkdir()
    for file in files:
        shutil.copy(SHARED / family / file, folder / file)
    d, layers = 16, 3
    config = {
        "model_type": "gpt2",
        "n_embd": d,
        "n_head": 2,
        "n_layer": layers,
        "n_inner": 24,
        "n_ctx": 64,
        "n_positions": 64,
        "vocab_size": vocabulary,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    draw = numpy.random.default_rng(1)
    tensors = {
        "wte.weight": (vocabulary, d),
        "wpe.weight": (64, d),
        "ln_f.weight": (d,),
        "ln_f.bias": (d,),
    }
    for i in range(layers):
        tensors.update(
            {
                f"h.{i}.ln_1.weight": (d,),
                f"h.{i}.ln_1.bias": (d,),
                f"h.{i}.ln_2.weight": (d,),
                f"h.{i}.ln_2.bias": (d,),
                f"h.{i}.attn.c_attn.weight": (d, 3 * d),
                f"h.{i}.attn.c_attn.bias": (3 * d,),
                f"h.{i}.attn.c_proj.weight": (d, d),
                f"h.{i}.attn.c_proj.bias": (d,),
                f"h.{i}.mlp.c_fc.weight": (d, 24),
                f"h.{i}.mlp.c_fc.bias": (24,),
                f"h.{i}.mlp.c_proj.weight": (24, d),
                f"h.{i}.mlp.c_proj.bias": (d,),
            }
        )
    header, body = {}, b""
    for name, shape in tensors.items():
        values = draw.normal(size=shape).astype("<f4") * 0.4 + (
            1 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) else 0
        )
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [len(body), len(body) + values.nbytes],
        }
        body += values.astype("<f4").tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    return folder


def test_greater_than_uses_the_768_years_that_gpt2_splits_in_two(unpack, tmp_path):
    folder = with_tokenizer(tmp_path, "gpt2", ["vocab.json", "merges.txt"], 50257)
    report = unpack.ok(
        "experiment", "greater-than", "--model", folder, "--n", "3", "--out", tmp_path / "out"
    )
    (summary,) = json.loads((tmp_path / "out" / "summary.json").read_text())["models"].values()
    assert summary["years"] == 768 and -1 <= summary["probability_difference"] <= 1
    assert "768 years" in report


def test_the_published_tables_belong_to_gpt2_small(unpack, tmp_path):
    folder = with_tokenizer(tmp_path, "gpt2", ["vocab.json", "merges.txt"], 50257)
    assert "A9.H6" in unpack.fails(
        1, "experiment", "ioi", "--model", folder, "--roles", "gpt2", "--n", "1", "--out",
        tmp_path / "a"
    )
    assert "line 3" in unpack.fails(
        1, "experiment", "greater-than", "--model", folder, "--claims", "gpt2", "--n", "1", "--out",
        tmp_path / "b"
    )


def test_edges_rank_what_patching_shows_and_chance_does_not(unpack, tmp_path):
    folder = with_tokenizer(tmp_path, "gpt2", ["vocab.json", "merges.txt"], 50257)
    report = unpack.ok(
        "experiment", "edges", "--model", folder, "--n", "2", "--out", tmp_path / "out"
    )
    ((name, summary),) = json.loads((tmp_path / "out" / "summary.json").read_text())[
        "models"
    ].items()
    assert summary["tasks"] == {"ioi": 2, "greater-than": 2, "induction": 2}
    # Writers that K, Q and V of two heads see in each of three layers, that the MLPs see, and the
    # target.
    assert summary["edges_in_all"] == 6 * (2 + 5 + 8) + (4 + 7 + 10) + 11
    records = records_of(tmp_path / "out")
    assert len(records) == 6
    for pools in (summary["all"], summary["within"]):
        assert set(pools["edge credit, best"]) == {"K", "Q", "V", "MLP", "target", "all"}
        assert {pool for pool, value in pools["interaction score"].items() if value} == {
            "K",
            "MLP",
            "all",
        }
    mean, low, high = summary["all"]["gradient x change (EAP)"]["all"]
    values = [r["edges"]["gradient x change (EAP)"]["all"][0] for r in records]
    assert mean == pytest.approx(sum(values) / 6) and min(values) <= low <= mean <= high <= max(
        values
    )
    assert mean > 0.5 > abs(summary["all"]["random"]["all"][0])
    assert "### Within readers" in report and list((tmp_path / "out").glob("edges-*.svg"))


def test_a_tokenizer_that_splits_years_otherwise_is_told_in_a_line(unpack, tmp_path):
    folder = with_tokenizer(tmp_path, "llama2", ["tokenizer.json", "tokenizer_config.json"], 32000)
    assert "does not split years" in unpack.fails(
        1, "experiment", "greater-than", "--model", folder, "--n", "1", "--out", tmp_path / "out"
    )


def test_prompt_files_with_bad_lines_are_named(unpack, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_bytes(b"# facts\nThe capital of France is\nbad \xff\nThe capital of Italy is\n")
    args = ["experiment", "sink", "--n", "1", "--prompts", prompts, "--out", tmp_path / "out"]
    assert "line 3" in unpack.fails(1, *args, "--stop-at-bad-line")
    result = unpack(*args)
    assert result.returncode == 0 and "line 3" in result.stderr and "line 3" in result.stdout
