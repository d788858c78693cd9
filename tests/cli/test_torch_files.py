"""PyTorch's .bin files: tensors are read, everything else in the pickle is refused, nothing is
executed.
"""
import io
import json
import pickle
import pickletools
import shutil
import struct
import zipfile

import numpy as np
import pytest

import gguf_files as files
from conftest import GOLDEN

STORAGE = {
    "F32": ("FloatStorage", "<f4"),
    "F16": ("HalfStorage", "<f2"),
    "F64": ("DoubleStorage", "<f8"),
    "I64": ("LongStorage", "<i8"),
}


def text(s):
    b = s.encode()
    return b"X" + struct.pack("<I", len(b)) + b


def number(n):
    return b"J" + struct.pack("<i", n)


def tensor(key, kind, shape, strides=None):
    """The opcodes that torch.save writes for a tensor."""
    if strides is None:
        strides, n = [], 1
        for size in reversed(shape):
            strides.insert(0, n)
            n *= size
    count = min(int(np.prod(shape)) if shape else 1, 2**31 - 1)
    out = (
        b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + text("storage")
        + f"ctorch\n{STORAGE[kind][0]}\n".encode()
        + text(key)
        + text("cpu")
        + number(count)
        + b"tQ"
    )
    out += (
        number(0)
        + b"("
        + b"".join(map(number, shape))
        + b"t("
        + b"".join(map(number, strides))
        + b"t\x89ccollections\nOrderedDict\n)Rt"
    )
    return out + b"R"


def state(entries):
    return (
        b"\x80\x02ccollections\nOrderedDict\n)R("
        + b"".join(text(n) + v for n, v in entries)
        + b"u."
    )


def save(path, body, members, **zip_options):
    with zipfile.ZipFile(path, "w", **zip_options) as z:
        z.writestr("archive/data.pkl", body)
        for key, data in members.items():
            z.writestr(f"archive/data/{key}", data)
        z.writestr("archive/version", "3\n")


def as_torch(tmp_path, kind="F32", body=None, shards=1):
    source = GOLDEN / "tiny-neox"
    folder = tmp_path / "torch"
    folder.mkdir(parents=True)
    shutil.copy(source / "config.json", folder)
    _, tensors = files.load_folder(source)
    names = list(tensors)
    weight_map = {}
    for s in range(shards):
        entries, members = [], {}
        for i, name in enumerate(names[s::shards]):
            array = tensors[name].astype(STORAGE[kind][1])
            entries.append((name, tensor(str(i), kind, array.shape)))
            members[str(i)] = array.tobytes()
        file = (
            "pytorch_model.bin" if shards == 1 else f"pytorch_model-{s + 1:05}-of-{shards:05}.bin"
        )
        weight_map.update(dict.fromkeys(names[s::shards], file))
        save(folder / file, body if body is not None else state(entries), members)
    if shards > 1:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("kind, shards", [("F32", 1), ("F32", 2), ("F64", 1), ("F16", 1)])
def test_a_bin_file_gives_what_the_safetensors_file_gives(unpack, tmp_path, kind, shards):
    a = unpack.json("predict", "--ids", "3,4,5", "--model", as_torch(tmp_path, kind, shards=shards))
    b = unpack.json("predict", "--ids", "3,4,5", "--model", GOLDEN / "tiny-neox")
    for x, y in zip(a["predictions"][:3], b["predictions"][:3], strict=True):
        assert abs(x["logit"] - y["logit"]) < (1e-6 if kind != "F16" else 0.05)


class Evil:
    def __reduce__(self):
        return (exec, ("open('/tmp/unpack-was-here', 'w')",))


@pytest.mark.parametrize(
    "body, word",
    [
        (pickle.dumps({"a": Evil()}, 2), "exec"),
        (b"\x80\x02cos\nsystem\n(" + text("true") + b"tR.", "system"),
        (b"\x80\x02cposix\nsystem\n" + text("x") + b"\x85R.", "system"),
        (state([("a", b"N")]), "no tensor"),
        (state([("a", number(3))]), "no tensor"),
        (state([]), "no tensors"),
        (b"\x80\x02].", "no dict"),
        (b"\x80\x02N.", "no dict"),
        (b"", "cut short"),
        (b"\x80\x02}", "cut short"),
        (b"\x80\x02" + b")" + b"\x85" * 5000 + b".", "deeply"),
        (b"\x80\x02X" + struct.pack("<I", 1 << 31) + b"a.", "cut short"),
        (b"\x80\x02h\x07.", "reference"),
        (b"\x80\x02r" + struct.pack("<I", 1 << 31) + b".", "reference"),
        (b"\x80\x02u.", "mark"),
        (b"\x80\x02I5\n.", "0x49"),
        (b"\x80\x02}i.", "0x69"),
        (b"\x80\x09.", "protocol"),
        (
            state([("gpt_neox.embed_in.weight", tensor("0", "F32", (99999, 99999)))]),
            "leaves its storage",
        ),
        (state([("gpt_neox.embed_in.weight", tensor("77", "F32", (2,)))]), "77"),
        (state([("gpt_neox.embed_in.weight", tensor("0", "F32", (4, 2), (1, 4)))]), "not in order"),
        (state([("gpt_neox.embed_in.weight", tensor("0", "I64", (2,)))]), "I64"),
    ],
)
def test_a_pickle_with_anything_else_is_refused(unpack, tmp_path, body, word):
    line = unpack.fails(1, "predict", "--ids", "3", "--model", as_torch(tmp_path, body=body))
    assert word in line and "pytorch_model.bin" in line, line
    assert not __import__("os").path.exists("/tmp/unpack-was-here")


def test_archives_that_are_damaged_or_old_are_refused(unpack, tmp_path):
    folder = as_torch(tmp_path)
    file = folder / "pytorch_model.bin"
    data = file.read_bytes()
    for bad, word in (
        (b"", "zip"),
        (pickle.dumps(1), "1.6"),
        (data[: len(data) // 2], "zip"),
        (data[:-30], ""),
        (data[:40] + data[60:], ""),
    ):
        file.write_bytes(bad)
        assert word in unpack.fails(1, "predict", "--ids", "3", "--model", folder)
    save(file, state([]), {}, compression=zipfile.ZIP_DEFLATED)
    assert "data.pkl" in unpack.fails(1, "predict", "--ids", "3", "--model", folder)
