"""Every stored value of every golden case, through Python. The tolerances are those of
tests/golden/README.md.
"""
import numpy as np
import pytest
from conftest import CASES, EXPECTED

TOLERANCE = 1e-4
RUNS = [(case, run) for case in CASES for run in EXPECTED[case]["runs"]]


def limit_of(run):
    return (
        5e-3 if run.startswith("beta0/") else TOLERANCE
    )  # without a floor small sums blow rounding up


def close(got, want, limit=TOLERANCE):
    got, want = np.asarray(got, float), np.asarray(want, float)
    assert got.shape == want.shape
    if want.size:
        assert np.abs(got - want).max() <= limit * (np.abs(want).max() or 1)


def close_tables(got, want, limit=TOLERANCE):
    """What one side leaves out is zero."""
    names = sorted(set(got) | set(want))
    shapes = [np.shape(got[name] if name in got else want[name]) for name in names]
    flat = lambda table: np.concatenate(
        [np.ravel(table.get(name, np.zeros(shape))) for name, shape in zip(names, shapes)] or [[]]
    )
    close(flat(got), flat(want), limit)


def close_paths(got, want, limit):
    assert len(got) == len(want)
    scale = limit * max([abs(path["credit"]) for path in want], default=1)
    by_name = {(*path["nodes"], *path["branches"]): path["credit"] for path in want}
    for mine, theirs in zip(got, want):
        assert abs(abs(mine.credit) - abs(theirs["credit"])) <= scale
        assert abs(mine.credit - by_name.get((*mine.nodes, *mine.branches), mine.credit)) <= scale


def assert_experts(got, want, limit):
    """Those in use; the others have neither weight nor credit."""
    used = {use["expert"]: use for use in got}
    for expert in want:
        mine = used.get(expert["expert"], {"weight": 0, "credit": 0})
        assert abs(mine["weight"] - expert["weight"]) <= 1e-5
        assert abs(mine["credit"] - expert["credit"]) <= limit * max(abs(e["credit"]) for e in want)


def question(case, run):
    want, all_of = EXPECTED[case]["runs"][run], EXPECTED[case]
    versus = want["versus_ids"] if "versus_ids" in want else all_of["versus_ids"]
    asked = {
        "preset": "paper",
        **want["options"],
        "target": all_of["target_ids"],
        "versus": versus or None,
    }
    if want.get("raw"):
        asked.update(raw_logit=True, versus=None)
    if "root" in want:
        return {**asked, "root": want["root"], "reroot": want["reroot"]}
    return {**asked, "position": want["position"]}


@pytest.mark.parametrize("case", CASES)
def test_logits_and_log_probabilities(golden, case):
    want = EXPECTED[case]
    got = golden(case)[0].predict(want["ids"], top=len(want["logits_last"]))
    logits = np.zeros(len(want["logits_last"]))
    for prediction in got.predictions:
        logits[prediction.id] = prediction.logit
    close(logits, want["logits_last"])
    assert np.isnan(got.log_probability[0])
    close(got.log_probability[1:], want["log_probability"][1:])


@pytest.mark.parametrize("case,run", RUNS)
def test_credit_reaches_the_expected_tokens_and_nodes(golden, case, run):
    want, limit = EXPECTED[case]["runs"][run], limit_of(run)
    got = golden(case)[1].trace(**question(case, run))
    close(got.token_credit, want["token_credit"], limit)
    close_tables(got.node_credit, want["node_credit"], limit)
    tokens = np.array(want["token_credit"])
    if tokens[tokens > 0].sum() > 0.2 * np.abs(tokens).sum():
        close(got.token_percent, want["token_percent"], limit)
    if "root" not in want:
        close_tables(got.importance, want["importance"], limit)
        return
    if isinstance(want["entries"], dict):  # a mixture: [experts, N] as one row, and every expert
        close(np.ravel(got.entries), want["entries"]["neurons"], limit)
        assert_experts(got.to_dict()["entries"]["experts"], want["entries"]["experts"], limit)
    else:
        close(got.entries, want["entries"], limit)
    for branch, rows in want["incoming"].items():
        close_tables(got.incoming.get(branch, {}), rows, limit)
    for branch, rows in want["composition"].items():
        mine = {
            row["component"]: [row["mass"], row["credit"]]
            for row in got.composition.get(branch, [])
        }
        close_tables(mine, {name: [x["mass"], x["credit"]] for name, x in rows.items()}, limit)


@pytest.mark.parametrize(
    "case,run", [(case, run) for case, run in RUNS if "paths" in EXPECTED[case]["runs"][run]]
)
def test_the_strongest_paths_and_their_filters(golden, case, run):
    want, limit, prepared = EXPECTED[case]["runs"][run], limit_of(run), golden(case)[1]
    top = want["paths"]["top"]
    got = prepared.trace(**question(case, run), top_paths=max(len(top), 1))
    close_paths(got.paths, top, limit)
    close(got.coverage.absolute_total, want["paths"]["absolute_total"], limit)
    for one in want.get("filtered", []):
        filters = {
            ("from_" if name == "from" else name): value for name, value in one["filter"].items()
        }
        got = prepared.trace(**question(case, run), **filters, top_paths=max(len(one["top"]), 1))
        close_paths(got.paths, one["top"], limit)
        close(got.coverage.absolute_matching, one["absolute_matching"], limit)
    for one in want.get("threshold", []):
        got = prepared.trace(**question(case, run), tau=one["tau"], tau_rule=one["rule"])
        assert got.coverage.paths == one["count"]
        close(got.coverage.absolute, one["absolute"], limit)


@pytest.mark.parametrize("case", CASES)
def test_interactions(golden, case):
    want, prepared = EXPECTED[case], golden(case)[1]
    every, mean = prepared.interactions(all=True), prepared.interactions()
    for part in ("attention", "mlp"):
        key = lambda x: f"{x['reader']}|{x['query']}|{x['writer']}"
        close_tables(
            {key(x): x["score"] for x in getattr(every, part)},
            {key(x): x["score"] for x in want["interactions"][part]},
        )
        close_tables(
            {f"{x['reader']}|{x['writer']}": x["score"] for x in getattr(mean, part)},
            want["interactions_mean"][part],
        )


@pytest.mark.parametrize("case", [case for case in CASES if EXPECTED[case].get("scores")])
def test_scores(golden, case):
    prepared = golden(case)[1]
    for want in EXPECTED[case]["scores"]:
        for branch in set(want) & {"K", "Q", "V", "M", "G", "U", "R"}:
            close(prepared.scores(want["layer"], "MLP" if branch == "M" else branch), want[branch])


@pytest.mark.parametrize("method", ["ifr", "attnlrp", "cplrp"])
@pytest.mark.parametrize("case", [case for case in CASES if EXPECTED[case].get("baselines")])
def test_baselines(golden, case, method):
    for kind in ("contrast", "single"):
        want = EXPECTED[case]["baselines"][kind][method]
        versus = EXPECTED[case]["versus_ids"] if kind == "contrast" else None
        ask = {"target": EXPECTED[case]["target_ids"], "versus": versus or None, "method": method}
        if want is None:  # not defined for this family
            with pytest.raises(ValueError, match="not defined"):
                golden(case)[1].trace(**ask)
            continue
        got = golden(case)[1].trace(**ask)
        assert got.method == method
        close(got.token_credit, want if method == "ifr" else want["token"])


@pytest.mark.parametrize("case", [case for case in CASES if EXPECTED[case].get("knockout")])
def test_knockout(golden, case):
    want, model = EXPECTED[case]["knockout"], golden(case)[0]
    ask = {"target": EXPECTED[case]["target_ids"], "versus": EXPECTED[case]["versus_ids"] or None}
    got, expected = [], []
    for component, channels in want["cut"].items():
        for channel, after in channels.items():
            result = model.intervene(EXPECTED[case]["ids"], cut=component, channel=channel, **ask)
            assert result.clean["nll"] == pytest.approx(want["clean"]["nll"], rel=1e-4)
            got.append([result.cut["nll"], result.cut["target"]])
            expected.append([after["nll"], after["target"]])
    for column in range(2):
        close(np.array(got)[:, column], np.array(expected)[:, column])


@pytest.mark.parametrize("case", CASES)
def test_the_parts_add_up(golden, case):
    assert all(check.passed for check in golden(case)[1].validate())
