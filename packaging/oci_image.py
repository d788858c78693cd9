#!/usr/bin/env python3
"""oci_image.py ROOT ARCHIVE NAME:TAG: a root folder as a container image of one layer, in the
layout of the OCI, which podman, buildah and docker load.
"""
import gzip
import hashlib
import io
import json
import os
import platform
import sys
import tarfile

CONFIG = {
    "User": "unpack",
    "WorkingDir": "/home/unpack",
    "ExposedPorts": {"7860/tcp": {}},
    "Env": ["PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"],
    "Entrypoint": ["/usr/bin/unpack"],
    "Cmd": ["serve", "--host", "0.0.0.0", "--port", "7860"],
}


def layer_of(root):
    """The folder as a tar file with names in order and no times: the same bytes from the same
    files.
    """
    raw = io.BytesIO()

    def plain(entry):
        entry.mtime = 0
        return entry

    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name in sorted(os.listdir(root)):
            tar.add(os.path.join(root, name), arcname=name, filter=plain)
    return raw.getvalue()


def main():
    root, archive, name = sys.argv[1:]
    layer = layer_of(root)
    packed = gzip.compress(layer, 6, mtime=0)
    blobs = {}

    def blob(data, media):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media, "digest": digest, "size": len(data)}

    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = {
        "architecture": machine,
        "os": "linux",
        "config": CONFIG,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created_by": "packaging/container.sh"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [blob(packed, "application/vnd.oci.image.layer.v1.tar+gzip")],
    }
    entry = blob(json.dumps(manifest).encode(), manifest["mediaType"])
    entry["annotations"] = {"org.opencontainers.image.ref.name": name}
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
        **{f"blobs/{digest.replace(':', '/')}": data for digest, data in blobs.items()},
    }
    with tarfile.open(archive, "w") as tar:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    print(f"image: {len(layer) / 2**20:.0f} MiB unpacked, {len(packed) / 2**20:.0f} MiB packed")


if __name__ == "__main__":
    main()
