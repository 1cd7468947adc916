"""A finished bundle on the Hugging Face Hub; see `facerec.embedding.hub`."""

from __future__ import annotations

from pathlib import Path

import facerec
from facerec.base.errors import ExportError
from facerec.base.files import reading
from facerec.embedding.bundle import EVALUATIONS_FILE
from facerec.embedding.hub import PATTERNS, REPOSITORY, hub_library


def check_push(repository: str, license: str | None) -> None:
    """Refuse what cannot be published, before the work that it would take and without a network.

    Args:
        repository: ``OWNER/NAME``.
        license: the terms of the weights.

    Raises:
        FacerecError: a malformed name, no licence, no huggingface_hub or no token.
    """
    needs = {
        "give OWNER/NAME, without a revision": REPOSITORY.fullmatch(repository),
        "a card needs a licence; say it, as in --license cc-by-nc-4.0": (license or "").strip(),
        "no token; run hf auth login, or set HF_TOKEN": hub_library().get_token(),
    }
    if missing := next((advice for advice, found in needs.items() if not found), None):
        raise ExportError(f"--push {repository}: {missing}")


def push_bundle(folder: Path, repository: str) -> str:
    """Upload a bundle; a repository that is not there is made, and private.

    What an earlier bundle left there goes, and files of others stay.

    Returns:
        The name to load it by, with the commit.

    Raises:
        ExportError: the Hub was not reached or refuses; the folder is as it was.
    """
    hub = hub_library()
    api = hub.HfApi(library_name="facerec", library_version=facerec.__version__)
    advice = f"the bundle {folder} is whole, and the same command with --force tries again"
    # Errors are those of whichever HTTP library this release has.
    with reading(f"--push {repository}", ExportError, advice, Exception, "done"):
        # Whoever wants weights of faces in public opens them; what was public stays known.
        api.create_repo(repository, private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            delete_patterns=[*PATTERNS, EVALUATIONS_FILE],
            commit_message=f"Bundle of facerec {facerec.__version__}",
        )
    return f"hf://{repository}@{commit.oid}"
