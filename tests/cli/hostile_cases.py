"""What the tests of hostile input share: a small model, a batch and the reasons of its bad lines,
time that was computed.
"""
import json
import resource

from conftest import GOLDEN

TINY = ["--model", str(GOLDEN / "tiny-gpt2")]
IDS = ["--ids", "1,2,3"]


class processor_time:
    """Seconds that the programs started inside have computed: a busy machine makes them wait, which
    is not what is measured.
    """

    def __enter__(self):
        self.before = resource.getrusage(resource.RUSAGE_CHILDREN)
        return self

    def __exit__(self, *_):
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds = after.ru_utime + after.ru_stime - self.before.ru_utime - self.before.ru_stime


def batch(unpack, place, text, *options, name="p.jsonl"):
    (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return unpack(
        "batch", place / name, *TINY, "--out", place / "out", "--top-paths", "1", *options
    )


def reasons(place):
    return [
        json.loads(line)["reason"]
        for line in (place / "out" / "errors.jsonl").read_text().splitlines()
    ]
