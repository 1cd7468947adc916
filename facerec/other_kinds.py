"""What a file is that somebody gives for pictures or for embeddings, and what makes these of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

_SIGNS = {
    b"PAR1": ".parquet",
    b"PK\3\4": ".zip",
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"\x93NUMPY": ".npy",
    b"MATLAB 5": ".mat",
    b"\x80\x04": ".pkl",
}
"""How files begin, whatever their names are."""

_PICTURES = (
    'import pandas as pd, pathlib as p; [(f := p.Path("photos", str(r.label), f"{i}.jpg"))'
    '.parent.mkdir(parents=True, exist_ok=True) or f.write_bytes(r.image["bytes"]) '
    'for i, r in pd.read_parquet("PATH").iterrows()]'
)
_ROWS = "np.savez('STEM.npz', ids=t[:, 0], vectors=t[:, 1:].astype('f4'))`"
_LINES = (
    f"text; embeddings, if a line is a name and numbers, by `t = np.loadtxt('PATH', str); {_ROWS}"
)

_KINDS = {
    **{
        suffix: f"compressed; `{command} PATH`, and name what that makes of it"
        for suffix, command in {
            ".gz": "gunzip -k",
            ".bz2": "bunzip2 -k",
            ".xz": "xz -dk",
            ".zst": "zstd -d",
        }.items()
    },
    ".parquet": f"a Parquet table; its pictures are written by `{_PICTURES}` (of the columns image "
    "and label); name the folder photos then",
    ".zip": "a .zip archive; `unzip PATH -d FOLDER`, and name that folder",
    ".lst": "the list of a record file; name that, STEM.rec",
    ".idx": "an index; name the record file, STEM.rec",
    ".bin": "a verification set; name it by --bench",
    ".npy": "an array without names; embeddings by `np.savez('STEM.npz', vectors=np.load('PATH'), "
    "ids=open('NAMES.txt').read().splitlines())`",
    ".csv": _LINES.replace("str)", "str, delimiter=',', skiprows=1)"),
    ".txt": _LINES,
    ".list": _LINES,
    ".json": "JSON; embeddings, if it names vectors, by `d = json.load(open('PATH')); "
    "np.savez('STEM.npz', ids=list(d), vectors=list(d.values()))`",
    ".mat": "a MATLAB file; embeddings, by the names of its arrays, as by `m = scipy.io.loadmat("
    "'PATH', simplify_cells=True); np.savez('STEM.npz', ids=m['names'].astype(str), "
    "vectors=m['features'])`",
    ".pkl": "a pickle, which is never opened here, as it may run any code; save its arrays by "
    "`np.savez('STEM.npz', vectors=…, ids=…)`",
}


def other_kind(path: Path) -> str:
    """Return a sentence on a file that is neither; an empty one where its kind is not known."""
    head = b""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(8)
    begun = next((kind for sign, kind in _SIGNS.items() if head.startswith(sign)), "")
    suffix = path.suffix.lower()
    kind = suffix if suffix in _KINDS else begun
    if not head or kind not in _KINDS or (suffix, kind) == (".npz", ".zip"):
        return ""
    text = _KINDS[kind].replace("PATH", str(path)).replace("STEM", str(path.with_suffix("")))
    return f"{path}: {text}"
