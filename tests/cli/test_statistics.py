"""What experiments report, computed again with scipy from the records and points they wrote."""
import json
import math

import pytest
from conftest import ROOT

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
stats = pytest.importorskip(
    "scipy.stats", reason="scipy is not installed: apt-get install python3-scipy"
)
MODEL = "pocket-gpt2"


def run(unpack, folder, name, *args):
    unpack.ok("experiment", name, "--model", MODEL, "--out", folder, "--threads", "2", *args)
    records = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()][1:]
    return json.loads((folder / "summary.json").read_text())["models"][MODEL], records


def test_rank_correlations_are_those_of_scipy(unpack, tmp_path):
    summary, _ = run(
        unpack, tmp_path / "out", "knockout", "--n", "3", "--all", "--corpus", tiny_corpus(tmp_path)
    )
    for channel in ("attention", "mlp"):
        points = summary[channel]["points"]
        spearman = summary[channel]["spearman"]
        assert spearman["cross"] == pytest.approx(
            stats.spearmanr(
                [p["score"] for p in points], [p["change"] for p in points]
            ).correlation,
            abs=1e-12,
        )
        within = []
        for layer in sorted({p["layer"] for p in points}):
            here = [p for p in points if p["layer"] == layer]
            if len(here) > 2:
                within.append(
                    stats.spearmanr(
                        [p["score"] for p in here], [p["change"] for p in here]
                    ).correlation
                )
                assert spearman["layers"][str(layer)] == pytest.approx(within[-1], abs=1e-12)
        assert (
            spearman["within"] == pytest.approx(numpy.mean(within), abs=1e-12) and len(within) >= 6
        )
        signed = stats.spearmanr(
            [p["score_signed"] for p in points], [p["change"] for p in points]
        ).correlation
        assert summary[channel]["spearman_signed"]["cross"] == pytest.approx(signed, abs=1e-12)
        size = stats.spearmanr(
            [p["score"] for p in points], [abs(p["change"]) for p in points]
        ).correlation
        assert summary[channel]["spearman_change_size"]["cross"] == pytest.approx(size, abs=1e-12)
        for name, some in (
            ("raising", [p for p in points if p["change"] > 0]),
            ("heads", [p for p in points if p["writer"].startswith("A")]),
        ):
            assert 2 < len(some) < len(points)
            want = stats.spearmanr(
                [p["score"] for p in some], [p["change"] for p in some]
            ).correlation
            assert summary[channel]["spearman_" + name]["cross"] == pytest.approx(want, abs=1e-12)


@pytest.fixture(scope="module")
def flipped(unpack, tmp_path_factory):
    return run(
        unpack,
        tmp_path_factory.mktemp("flipped") / "out",
        "faithfulness",
        "--n",
        "8",
        "--seed",
        "3",
    )


def test_areas_and_intervals_are_those_of_scipy(flipped):
    summary, records = flipped
    used = [r for r in records if r["used"] and "|content|" in r["key"]]
    assert len(used) == 8 and summary["kinds"]["content"]["prompts"] == 8
    base = {
        name: numpy.array([r["methods"][name]["area"] for r in used])
        for name in ("unpack", "unpack, best")
    }
    for name, method in summary["kinds"]["content"]["methods"].items():
        areas = numpy.array([r["methods"][name]["area"] for r in used])
        assert method["area"] == pytest.approx(areas.mean(), abs=1e-12)
        assert method["interval"] == pytest.approx(
            stats.norm.interval(0.95, loc=areas.mean(), scale=stats.sem(areas)), abs=1e-12
        )
        assert method["faithful_percent"] == pytest.approx(100 * (areas > 0).mean())
        for values, got in (
            (areas, method["bootstrap"]),
            *(
                (areas - areas_there, method["less"][other]["bootstrap"])
                for other, areas_there in base.items()
            ),
        ):
            if values.std() == 0:
                assert got == pytest.approx([values[0]] * 2, abs=1e-12)
                continue
            want = stats.bootstrap(
                (values,), numpy.mean, n_resamples=20000, method="percentile", random_state=1
            ).confidence_interval
            # 2,000 resamples against 20,000 others: the ends of an interval differ by a few
            # hundredths of its width.
            width = want.high - want.low
            assert abs(got[0] - want.low) < 0.12 * width and abs(got[1] - want.high) < 0.12 * width


def test_an_area_is_the_mean_gap_of_the_curves_it_comes_with(unpack, tmp_path):
    # Curves are kept at 21 points: those of prompts with 20 tokens after the first are kept as they
    # are.
    _, records = run(
        unpack, tmp_path / "out", "faithfulness", "--n", "4", "--whole-sentences", "--corpus",
        corpus_of_twenty(unpack, tmp_path)
    )
    seen = 0
    for record in records:
        if not record["used"]:
            continue
        assert record["tokens"] == 21
        for method in record["methods"].values():
            lerf, morf = numpy.array(method["lerf"]), numpy.array(method["morf"])
            assert (
                len(lerf) == len(morf) == 21
                and lerf[0] == morf[0]
                and math.isclose(lerf[-1], morf[-1], rel_tol=1e-5)
            )
            assert method["area"] == pytest.approx((lerf - morf)[1:].mean(), abs=1e-12)
            seen += 1
    assert seen >= 10


def test_prompts_are_cut_before_words_of_the_kind_they_are_listed_under(flipped):
    summary, records = flipped
    function_words = {
        line
        for line in (ROOT / "data" / "function_words.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    lines = (ROOT / "data" / "pocket_text.txt").read_text(encoding="utf-8").splitlines()
    seen = {"content": 0, "function": 0}
    for record in records:
        _, kind, line = record["key"].split("|")
        if not record["used"]:
            assert kind not in record["tried"]
            continue
        seen[kind] += 1
        word = record["target"]
        assert (
            word[0] == " "
            and word[1:].isalpha()
            and record["probability"] >= 0.1
            and 8 <= record["tokens"] - 1 <= 24
        )
        assert (word[1:].lower() in function_words) == (kind == "function")
        assert record["tokens"] < len(lines[int(line.split()[1]) - 1])  # a part of the sentence
    assert seen == {"content": 8, "function": 2}
    assert {kind: part["prompts"] for kind, part in summary["kinds"].items()} == seen
    assert sum(count for _, count in summary["kinds"]["content"]["targets"]) == 8


def test_an_interval_of_a_knockout_correlation_holds_it_and_narrows_with_more_text(
    unpack, tmp_path
):
    lines = [
        line
        for line in (ROOT / "data" / "pocket_text.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#") and len(line) < 70
    ]
    widths = []
    for count in (10, 60):
        corpus = tmp_path / f"corpus{count}.txt"
        corpus.write_text("\n".join(lines[:count]) + "\n", encoding="utf-8")
        summary, _ = run(
            unpack, tmp_path / f"out{count}", "knockout", "--n", "10", "--corpus", corpus
        )
        rho = summary["attention"]["spearman"]
        low, high = rho["cross_interval"]
        assert low < high and low - 0.1 < rho["cross"] < high + 0.1
        widths.append(high - low)
    assert widths[1] < widths[0]


def tiny_corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(
        "".join(
            f"The old man looked at the {what} and said that he would not go there again\n"
            for what in ("sea", "house", "door", "road", "fire")
        )
    )
    return path


def corpus_of_twenty(unpack, tmp_path):
    lines = [
        line
        for line in (ROOT / "data" / "pocket_text.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    ids = unpack.ok(
        "tokenize",
        "--model",
        MODEL,
        "--jsonl",
        "-",
        stdin="".join(json.dumps(line) + "\n" for line in lines),
    ).splitlines()
    path = tmp_path / "twenty.txt"
    path.write_text(
        "".join(line + "\n" for line, row in zip(lines, ids) if len(json.loads(row)) == 20),
        encoding="utf-8",
    )
    return path
