"""Copies of a small checkpoint with something wrong in them."""
import json
import shutil
import struct

from conftest import GOLDEN


def read(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write(path, header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def copy(tmp_path, case="tiny-gpt2"):
    folder = tmp_path / case
    shutil.copytree(GOLDEN / case, folder)
    return folder


def edit_header(folder, change):
    path = folder / "model.safetensors"
    header, body = read(path)
    change(header)
    write(path, header, body)
    return folder


def edit_config(folder, **values):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(values)
    path.write_text(json.dumps(config))
    return folder


def poison(folder, value):
    """Puts a float into the middle of the first float32 tensor that is not tiny."""
    path = folder / "model.safetensors"
    header, body = read(path)
    name, entry = next(
        (n, e)
        for n, e in header.items()
        if n != "__metadata__"
        and e["dtype"] == "F32"
        and e["data_offsets"][1] - e["data_offsets"][0] > 64
    )
    at = entry["data_offsets"][0] + 32
    write(path, header, body[:at] + struct.pack("<f", value) + body[at + 4 :])
    return name
