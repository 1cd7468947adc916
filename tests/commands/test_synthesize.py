from __future__ import annotations

from pathlib import Path

import pytest

from facerec.commands.synthesize import main

SMALL = ["--identities", "2", "--images-per-identity", "2", "--pairs-per-fold", "4"]


def test_records_of_others_are_not_replaced_and_generated_ones_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "train.rec"
    records.write_bytes(b"photos")
    arguments = ["--out", str(tmp_path), "--processes", "1", *SMALL]
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "train.rec that was not generated" in capsys.readouterr().err
    assert records.read_bytes() == b"photos" and list(tmp_path.iterdir()) == [records]
    records.unlink()
    main(arguments)
    first = records.read_bytes()
    main(arguments)
    assert records.read_bytes() == first
