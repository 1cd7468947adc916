"""Write the frozen figures anew: ``python -m tests.golden.make [CASE …]``, by default all."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden import cases


def main(names: list[str]) -> None:
    beside = Path(__file__).parents[3] / "shared" / "data"
    data = Path(os.environ.get("FACEREC_TEST_DATA", beside))
    with tempfile.TemporaryDirectory() as folder:
        for name in names or (*cases.EXACT, *cases.NETWORK):
            found = cases.compute(name, Path(folder) / name, data)
            points = {key: value for key, value in found.items() if not cases.is_interval(key)}
            intervals = {key: value for key, value in found.items() if cases.is_interval(key)}
            stored = {"written_on": cases.written_on()} if name in cases.NETWORK else {}
            stored |= {"points": points, "intervals": intervals}
            text = json.dumps(stored, indent=1, ensure_ascii=False)
            (cases.FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            print(f"{name}: {len(points)} points, {len(intervals)} limits")


if __name__ == "__main__":
    main(sys.argv[1:])
