"""Every stored value of every golden case, through the command line. The tolerances are those of
tests/golden/README.md.
"""
import json

import numpy as np
import pytest
from conftest import GOLDEN

CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))
EXPECTED = {case: json.loads((GOLDEN / case / "expected.json").read_text()) for case in CASES}
RUNS = [(case, run) for case in CASES for run in EXPECTED[case]["runs"]]
TOLERANCE = 1e-4
TOLERANCE_WITHOUT_FLOOR = 5e-3  # beta = 0: small sums blow rounding up


def commas(values):
    return ",".join(map(repr, values))


def inputs(case):
    want = EXPECTED[case]
    return ["--model", GOLDEN / case, "--ids", commas(want["ids"])]


def trace(unpack, case, run, *more):
    want, options = EXPECTED[case]["runs"][run], EXPECTED[case]["runs"][run]["options"]
    args = [
        "trace",
        *inputs(case),
        "--preset",
        "paper",
        "--target-id",
        commas(EXPECTED[case]["target_ids"]),
    ]
    versus = want["versus_ids"] if "versus_ids" in want else EXPECTED[case]["versus_ids"]
    if want.get("raw"):
        args.append("--raw-logit")
    elif versus:
        args += ["--versus-id", commas(versus)]
    if "root" in want:
        args += ["--root", want["root"], "--reroot", want["reroot"]]
    else:
        args += ["--position", want["position"]]
    for name in ("beta", "dispatch", "mlp", "scores"):
        args += [f"--{name}", options[name]]
    args += [
        "--weights",
        commas(options["weights"]),
        "--mlp-weights",
        commas(options["mlp_weights"]),
    ]
    if "expert_weights" in options:
        args += ["--expert-weights", commas(options["expert_weights"])]
    return unpack.json(*args, *more)


def tolerance(run):
    return TOLERANCE_WITHOUT_FLOOR if run.startswith("beta0/") else TOLERANCE


def close(got, want, limit=TOLERANCE):
    """Arrays of one shape; the largest difference against the largest value."""
    got, want = np.asarray(got, float), np.asarray(want, float)
    assert got.shape == want.shape
    if want.size:
        scale = np.abs(want).max()
        error = np.abs(got - want).max() / (scale if scale > 0 else 1)
        assert error <= limit, f"off by {error:.2e} of the largest"


def close_tables(got, want, limit=TOLERANCE):
    """The same over dictionaries; what one side leaves out is zero."""
    names = sorted(set(got) | set(want))
    shape = {name: np.shape(got[name] if name in got else want[name]) for name in names}
    flat = lambda table: np.concatenate(
        [np.ravel(table.get(name, np.zeros(shape[name]))) for name in names] or [[]]
    )
    close(flat(got), flat(want), limit)


def close_paths(got, want, limit):
    """Credits by rank, and by name where both lists have the path: equal credits may come in any
    order.
    """
    assert len(got) == len(want)
    if not want:
        return
    scale = max(abs(path["credit"]) for path in want) * limit
    name = lambda path: (*path["nodes"], *path["branches"])
    by_name = {name(path): path["credit"] for path in want}
    for mine, theirs in zip(got, want):
        assert abs(abs(mine["credit"]) - abs(theirs["credit"])) <= scale
        assert abs(mine["credit"] - by_name.get(name(mine), mine["credit"])) <= scale
    # A path may be missing here only where the cut runs through equal credits.
    missing = set(by_name) - {name(path) for path in got}
    assert all(abs(abs(by_name[path]) - abs(want[-1]["credit"])) <= 2 * scale for path in missing)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_log_probabilities(unpack, case):
    want = EXPECTED[case]
    got = unpack.json("predict", *inputs(case), "--top", len(want["logits_last"]))
    logits = {p["id"]: p["logit"] for p in got["predictions"]}
    close([logits[i] for i in range(len(want["logits_last"]))], want["logits_last"], 1e-5)
    close([t["log_probability"] for t in got["tokens"][1:]], want["log_probability"][1:], 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_interactions(unpack, case):
    want = EXPECTED[case]
    every, mean = unpack.json("interactions", *inputs(case), "--all"), unpack.json(
        "interactions", *inputs(case)
    )
    for part in ("attention", "mlp"):
        by_query = lambda rows: {(r["reader"], r["query"], r["writer"]): r["score"] for r in rows}
        close_tables(by_query(every[part]), by_query(want["interactions"][part]))
        close_tables(
            {f"{r['reader']}|{r['writer']}": r["score"] for r in mean[part]},
            want["interactions_mean"][part],
        )


@pytest.mark.parametrize("case,run", RUNS, ids=lambda x: x)
def test_credit(unpack, case, run):
    want, limit = EXPECTED[case]["runs"][run], tolerance(run)
    got = trace(unpack, case, run, "--top-paths", 0)
    close(got["token_credit"], want["token_credit"], limit)
    close_tables(got["node_credit"], want["node_credit"], limit)
    credit = np.array(want["token_credit"])
    if credit.clip(0).sum() > np.abs(credit).sum() / 5:
        close(got["token_percent"], want["token_percent"], limit)
    if "root" not in want:
        close_tables(got["importance"], want["importance"], limit)
        return
    assert got["importance"] == {
        name: float(name == want["root"].split("@")[0]) for name in EXPECTED[case]["writers"]
    }
    if isinstance(got["entries"], dict):
        mixture = isinstance(want["entries"], dict)
        entries = np.array(want["entries"]["neurons"] if mixture else want["entries"])
        each = (
            len(entries) // len(want["entries"]["experts"]) if mixture else 0
        )  # neurons of an expert
        largest = sorted(np.abs(entries), reverse=True)[:20]
        close([abs(x["credit"]) for x in got["entries"]["neurons"]], largest, limit)
        close(
            [x["credit"] for x in got["entries"]["neurons"]],
            [entries[x.get("expert", 0) * each + x["neuron"]] for x in got["entries"]["neurons"]],
            limit,
        )
        for expert in want["entries"]["experts"] if mixture else []:
            mine = next(
                (x for x in got["entries"]["experts"] if x["expert"] == expert["expert"]),
                {"weight": 0, "credit": 0},
            )
            close(mine["weight"], expert["weight"], 1e-5)
            assert abs(mine["credit"] - expert["credit"]) <= limit * max(
                abs(x["credit"]) for x in want["entries"]["experts"]
            )
    else:
        close(got["entries"][: len(want["entries"])], want["entries"], limit)
        assert not np.any(got["entries"][len(want["entries"]) :])
    for branch, table in want["incoming"].items():
        close_tables(got["incoming"].get(branch, {}), table, limit)
    for branch, table in want["composition"].items():
        ranked = got["composition"].get(branch, [])
        assert ranked == sorted(ranked, key=lambda x: -x["mass"])
        for measure in ("mass", "credit"):
            close_tables(
                {x["component"]: x[measure] for x in ranked},
                {name: x[measure] for name, x in table.items()},
                limit,
            )


@pytest.mark.parametrize(
    "case,run", [(c, r) for c, r in RUNS if "paths" in EXPECTED[c]["runs"][r]], ids=lambda x: x
)
def test_paths(unpack, case, run):
    want, limit = EXPECTED[case]["runs"][run], tolerance(run)
    got = trace(unpack, case, run, "--top-paths", max(1, len(want["paths"]["top"])))
    close_paths(got["paths"], want["paths"]["top"], limit)
    close([got["coverage"]["absolute_total"]], [want["paths"]["absolute_total"]], limit)
    for filtered in want.get("filtered", []):
        options = [
            x
            for name, value in filtered["filter"].items()
            for x in ("--" + name.replace("_", "-"), value)
        ]
        got = trace(unpack, case, run, "--top-paths", max(1, len(filtered["top"])), *options)
        close_paths(got["paths"], filtered["top"], limit)
        close([got["coverage"]["absolute_matching"]], [filtered["absolute_matching"]], limit)
        close([got["coverage"]["absolute_total"]], [want["paths"]["absolute_total"]], limit)
    for threshold in want.get("threshold", []):
        got = trace(
            unpack, case, run, "--tau", repr(threshold["tau"]), "--tau-rule", threshold["rule"]
        )
        assert got["coverage"]["paths"] == len(got["paths"]) == threshold["count"]
        close([got["coverage"]["absolute"]], [threshold["absolute"]], limit)
        by_source = np.zeros(len(threshold["by_source"]))
        for path in got["paths"]:
            by_source[int(path["nodes"][0].split("@")[1])] += path["credit"]
        close(by_source, threshold["by_source"], limit)
