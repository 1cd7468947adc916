"""Does all that facerec offers, one after the other, in the folder it is started in.

    python every_command.py [COMMAND …]

Without names, every command and then the service; with names, these alone.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import facerec  # first, as in every program that uses it
from facerec.commands.main import COMMANDS, main
from facerec.export import parity

REPOSITORY = Path(__file__).parents[2]

TRAINING = """
from pathlib import Path
from facerec.backbones import Backbone
from facerec.heads import SEC, ArcFace
from facerec.records import Data
from facerec.training import SGD, Checkpoints, Recipe
recipe = small = Recipe(
    data=Data(path=Path("data")),
    backbone=Backbone(name="iresnet18", embedding_size=16, width=0.125),
    margin=ArcFace(scale=16.0, margin=0.2),
    regularizer=SEC(weight=0.5),
    optimizer=SGD(lr=0.05),
    checkpoints=Checkpoints(every_steps=1),
    batch_size=8,
    epochs=1,
    precision="fp32",
    workers=0,
)
"""

COMPARISON = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from helpers.tiny_comparison import comparison
recipe = comparison(Path("classes"), trials=2)
"""

FACES = "--subjects 6 --images-per-subject 4 --pairs-per-fold 4"
FAST = "--group group --permutations 99 --replicates 40 --fmr 1e-1"
OVERLAP = "--csv overlap.csv --page overlap.html"

LINES = {
    "demo --data-only": f"--out data --processes 1 {FACES}",
    "make-records --unpack": "data/train.rec --out images",
    "make-records": "images --out records",
    "make-records --repair": "records/train.rec --out whole.rec",
    "plan": "recipe.py --device cpu",
    "train": "recipe.py --name run --runs runs --device cpu",
    "embed": "--model runs/run --images images --out e.npz",
    "all-pairs": "--embeddings e.npz --fpr 1e-1",
    "clean": "images --embeddings e.npz --out proposals.csv --device cpu",
    "overlap": f"images data/lfw.bin --model runs/run {OVERLAP} --device cpu",
    "enroll": "images --model runs/run --gallery gallery.npz",
    "identify": "images --model runs/run --gallery gallery.npz --threshold 0.3",
    "translate": "theirs_old.npz theirs_new.npz --gallery gallery.npz --out bridge.npz",
    "verify": "--model runs/run --bench data/lfw.bin --json lfw.json --out lfw",
    "verify-scores": "scores.csv",
    "same": "a.png b.png --model runs/run",
    "convert": "--bench data/lfw.bin --out lfw_copy.npz",
    "audit": f"--embeddings lfw.npz --attributes data/attributes.csv --out audit {FAST}",
    "export-onnx": "runs/run --out bundle",
    "import-weights": "theirs.pth --backbone iresnet18 --embedding-size 16 --width 0.125",
    "compare": "comparison.py --out comparison",
    "demo": f"--out demo --recipe recipe.py --processes 1 --seed 3 {FACES}",
}
"""What is done with each command, in an order in which each finds what it needs."""


def prepare() -> None:
    """Write what the commands start from."""
    Path("recipe.py").write_text(TRAINING)
    Path("comparison.py").write_text(COMPARISON.format(folder=str(REPOSITORY / "tests")))


def before_compare() -> None:
    """Write the images of the comparison."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from helpers.tiny_comparison import write_images

    write_images(Path("classes"))


def before_import_weights() -> None:
    """Write a state dict as InsightFace publishes them."""
    import torch

    from facerec.embedding import load_model

    torch.save(load_model("runs/run").backbone.state_dict(), "theirs.pth")


def before_verify_scores() -> None:
    """Write scores of four pairs."""
    Path("scores.csv").write_text("label,score\n1,0.9\n1,0.8\n0,0.1\n0,0.2\n")


def before_translate() -> None:
    """Write what two networks see of photos of a hundred people."""
    from dataclasses import replace

    import numpy as np

    from facerec.embedding import read_embeddings, write_embeddings

    known, rng = read_embeddings("e.npz"), np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(100, 16)), 2, axis=0)
    who = np.repeat(np.arange(100), 2).astype(np.str_)
    ids = np.arange(200).astype(np.str_)
    for name, note in (("old", known.note), ("new", {})):
        seen = (vectors + 0.3 * rng.normal(size=vectors.shape)).astype(np.float32)
        norms = np.linalg.norm(seen, axis=1)
        parts = {"vectors": seen, "norms": norms, "ids": ids, "subjects": who, "note": note}
        none = {"failures": {}, "several": {}, "digests": None, "face_scores": None}
        write_embeddings(f"theirs_{name}.npz", replace(known, **parts, **none))


def before_same() -> None:
    """Copy two photos."""
    photos = sorted(path for path in Path("images").rglob("*") if path.is_file())
    for name, photo in zip(("a.png", "b.png"), photos, strict=False):
        Path(name).write_bytes(photo.read_bytes())


def before_audit() -> None:
    """Embed what is audited."""
    line = "embed --model runs/run --bench data/lfw.bin --out lfw.npz"
    sys.argv = ["facerec", *line.split()]
    main()


BEFORE: dict[str, Callable[[], None]] = {
    "audit": before_audit,
    "same": before_same,
    "translate": before_translate,
    "verify-scores": before_verify_scores,
    "compare": before_compare,
    "import-weights": before_import_weights,
}


def use_api() -> None:
    """Load the bundle as a library does."""
    import numpy as np

    faces = np.zeros((2, 112, 112, 3), np.uint8)
    for engine in ("onnxruntime", "openvino"):
        facerec.load("bundle", engine=engine).embed(faces)  # type: ignore[arg-type]


def use_service() -> None:
    """Start the service as its users do, embed a face, and load it."""
    service = subprocess.Popen(
        [sys.executable, "-m", "facerec", "serve", "bundle", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = []
    for line in service.stdout:
        lines.append(line)
        if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
            break
    else:
        raise RuntimeError(f"the service did not start: {lines}")
    client = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
    client.request("GET", "/healthz")
    answer = client.getresponse()
    assert answer.status == 200, answer.read()
    image = next(iter(sorted(Path("images").rglob("*.*g"))))
    load = [sys.executable, str(REPOSITORY / "examples" / "load_service.py")]
    given = [f"http://127.0.0.1:{found[1]}", str(image), "--clients", "2", "--requests", "2"]
    subprocess.run([*load, *given], check=True)
    service.send_signal(signal.SIGTERM)
    assert service.wait(60) in (0, 143, -signal.SIGTERM)


def run(name: str) -> None:
    """Run one command as the console script does."""
    print(f"## {name}", flush=True)
    BEFORE.get(name, lambda: None)()
    sys.argv = ["facerec", *name.split(), *LINES[name].split()]
    try:
        main()
    except SystemExit as exit_:
        if exit_.code:
            raise


def main_job(folder: Path) -> None:
    """Do in a folder what takes seconds: every command, without those that train several times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "160")
        patch.delenv("FACEREC_DATA", raising=False)
        patch.setattr(sys, "argv", [])
        # What is checked and timed in bundles, over again, takes most of an export's time.
        patch.setattr(parity, "BATCHES", (1, 5))
        prepare()
        for name in LINES:
            if name not in ("compare", "demo"):
                run(name)


if __name__ == "__main__":
    if sys.argv[1:]:
        chosen = sys.argv[1:]
    else:
        chosen = list(LINES)
        done = {name.split()[0] for name in chosen}
        assert done == set(COMMANDS) - {"serve"}, done ^ set(COMMANDS)
    os.environ.pop("FACEREC_DATA", None)
    prepare()
    for name in chosen:
        run(name)
    if "export-onnx" in chosen:
        print("## api", flush=True)
        use_api()
        print("## service", flush=True)
        use_service()
    print("## all done", flush=True)
