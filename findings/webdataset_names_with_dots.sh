#!/usr/bin/env bash
# webdataset 1.0.2 takes what stands before the first dot of a file's name as the key of its sample, so
# that images named by MS-Celeb's identifiers of people (m.0 and some letters), which start every name
# with "m.", are one sample: six images of two people, each with its label, come as one sample of
# twelve fields, of which none is called jpg or cls. In folders so named they are six.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 webdataset==1.0.2
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import io
import sys
import tarfile

import webdataset

print("webdataset", webdataset.__version__)
found = {}
for kind, pattern in {"names": "m.0{}_{}", "folders": "m.0{}/{}"}.items():
    shard = f"{kind}.tar"
    with tarfile.open(shard, "w") as file:
        for label, person in enumerate(("aaa", "bbb")):
            for number in range(3):
                for suffix, content in {"jpg": b"image", "cls": b"%d" % label}.items():
                    member = tarfile.TarInfo(f"{pattern.format(person, number)}.{suffix}")
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))
    samples = list(webdataset.WebDataset(shard, shardshuffle=False))
    fields = [name for name in samples[0] if not name.startswith("__")]
    found[kind] = len(samples), len(fields), "jpg" in fields
    print(f"people in {kind}: {len(samples)} samples, the first called {samples[0]['__key__']!r} with", fields)
sys.exit(0 if found == {"names": (1, 12, False), "folders": (6, 2, True)} else "the behaviour has changed")
PYTHON
