"""Who is in two sets: on generated clusters, and on real faces where they are."""

import numpy as np
import pytest
from helpers.toy_embeddings import made

from facerec.embedding.extraction import Embeddings
from facerec.galleries import Overlap, find_overlap

DIMENSIONS = 64


def two_sets(
    seed: int,
    sizes: tuple[int, int],
    shared: int,
    images: int = 4,
    noise: float = 0.8,
    named: tuple[bool, bool] = (True, True),
) -> tuple[Embeddings, Embeddings]:
    """People 0 … shared − 1 are in both sets, under other names, among others.

    Images lie about centres on a sphere, with norms from 5 to 20; noise is against length 1.
    """
    rng = np.random.default_rng(seed)
    total = sum(sizes) - shared
    centres = rng.normal(size=(total, DIMENSIONS))
    centres += 0.5 * rng.normal(size=DIMENSIONS)  # no network's mean is zero
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)

    def photos(people: np.ndarray, known: bool, prefix: str) -> Embeddings:
        who = np.repeat(people, images)
        vectors = centres[who] + rng.normal(size=(len(who), DIMENSIONS)) * noise / DIMENSIONS**0.5
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors *= rng.uniform(5, 20, (len(who), 1)) / lengths
        ids = np.array([f"{prefix}{person}/{i}" for i, person in enumerate(who)])
        return made(vectors, [f"{prefix}{person}" for person in who] if known else None, ids=ids)

    second = np.append(np.arange(shared), np.arange(sizes[0], total))
    return photos(np.arange(sizes[0]), named[0], ""), photos(second, named[1], "b")


def person_of(name: str) -> str:
    return name.removeprefix("b").split("/")[0]


def scores(found: Overlap, shared: int) -> tuple[float, float]:
    """Recall and precision over persons of A; a proposal counts with the right person of B."""
    both = found.a.names[found.matches["subject"]], found.b.names[found.matches["other"]]
    right = sum(person_of(one) == person_of(other) for one, other in zip(*both, strict=True))
    wanted = sum(int(person_of(str(name))) < shared for name in found.a.names)
    return right / max(wanted, 1), right / max(len(found.matches), 1)


@pytest.mark.parametrize("named", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(
    ("sizes", "shared", "images"),
    [((60, 80), 20, 4), ((60, 60), 60, 4), ((8, 100), 4, 4), ((6, 6), 3, 5), ((50, 60), 20, 1)],
)
def test_people_in_both_sets_are_proposed(sizes, shared, images, named) -> None:
    a, b = two_sets(1, sizes, shared, images, noise=0.5, named=named)
    # A share of 2 % is one false proposal now and then; here none is expected.
    recall, precision = scores(find_overlap(a, b, share=0.0005), shared)
    assert recall >= 0.95 and precision >= 0.95


def test_sets_without_a_shared_person_give_hardly_a_proposal() -> None:
    lists = [find_overlap(*two_sets(seed, (60, 40), 0)).matches for seed in range(30)]
    # A list is empty but for a chance of 2 %, a little more for the tail being estimated.
    assert sum(map(len, lists)) <= 3


def test_no_more_false_proposals_than_were_allowed() -> None:
    """With weak evidence, where the threshold decides."""
    proposed = right = expected = 0.0
    for seed in range(12):
        a, b = two_sets(seed, (150, 150), 75, images=1, noise=0.85)
        found = find_overlap(a, b, share=0.1)
        proposed += len(found.matches)
        right += scores(found, 75)[1] * len(found.matches)
        expected += found.expected_false
    assert proposed > 12 * 30
    assert (proposed - right) / proposed <= 0.13
    assert 0.3 * expected <= proposed - right <= 1.5 * expected


def test_images_named_are_those_that_resemble_most() -> None:
    a, b = two_sets(4, (20, 20), 5)
    found = find_overlap(a, b)
    units = [side.vectors / np.linalg.norm(side.vectors, axis=1, keepdims=True) for side in (a, b)]
    for match in found.matches.itertuples():
        one = a.subjects == found.a.names[match.subject]
        other = b.subjects == found.b.names[match.other]
        cosines = np.where(np.outer(one, other), units[0] @ units[1].T, -2)
        images = np.unravel_index(cosines.argmax(), cosines.shape)
        assert (match.image, match.other_image) == images
        templates = a.vectors[one].sum(axis=0), b.vectors[other].sum(axis=0)
        cosine = templates[0] @ templates[1] / np.prod([np.linalg.norm(t) for t in templates])
        assert match.cosine == pytest.approx(cosine, abs=1e-5)
