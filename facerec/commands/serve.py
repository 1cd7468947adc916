"""``facerec serve``: embeddings, comparisons and a gallery over HTTP."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import tyro

from facerec.base.libraries import needed
from facerec.base.limits import Cosine
from facerec.commands.cli import refuse, run_command
from facerec.commands.same import FOUND, Runtime
from facerec.service.limits import ANYBODY, BOUNDS, LOOPBACK, Access, Bounds


def serve(
    model: tyro.conf.Positional[Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    threshold: Cosine | None = None,
    fpr: str | None = None,
    bench: str | None = None,
    gallery: Path | None = None,
    fpir: str = "1e-2",
    identify_threshold: Cosine | None = None,
    network: tyro.conf.OmitArgPrefixes[Runtime] = FOUND,
    access: tyro.conf.OmitArgPrefixes[Access] = ANYBODY,
    bounds: tyro.conf.OmitArgPrefixes[Bounds] = BOUNDS,
) -> None:
    """Serve embeddings and comparisons of faces over HTTP, and a gallery.

    POST /v1/embed, /v1/faces and /v1/verify take multipart forms or JSON, with a gallery also
    /v1/enroll, /v1/identify, /v1/rename and /v1/delete; GET /v1/people lists it; GET /healthz and
    /metrics tell the state. Every request is a line on stderr, without images or names. Pages of
    other sites are refused, and changes of the gallery may take a token. There is no other access
    control: put the service behind a proxy that has one.

    Args:
        model: a bundle, an .onnx or .safetensors file, the folder of a run, or hf://OWNER/NAME.
        host: address to listen on; 0.0.0.0 takes all.
        port: port to listen on; 0 takes a free one.
        threshold: cosine (−1 to 1) from which on two faces are one person's; by default that of
            the model's calibration.
        fpr: false positive rate (a share) whose threshold in the calibration is taken; by default
            1e-3, or the lowest that it knows.
        bench: verification set whose threshold in the calibration is taken, if there are several.
        gallery: file of enrolled people, as facerec enroll writes it; made if it is not there.
        fpir: chance, from 0 to 1, that a stranger is taken for somebody in the gallery, at its
            size.
        identify_threshold: cosine (−1 to 1) from which on somebody is identified, in place of
            --fpir.
        network: how the model is loaded, and what finds faces.
        access: whose requests are answered.
        bounds: what the service takes.
    """
    with needed("'facerec[serve]'", "facerec serve"):
        from facerec.service.app import Service, create_server, listen
    from facerec.galleries.gallery import Gallery
    from facerec.service.gallery import GalleryFile

    how = "give a --token-file, or listen on 127.0.0.1"
    seen = gallery and access.token is None and host not in LOOPBACK
    refuse({f"--host {host}: whoever reaches it could change {gallery}; {how}": seen})
    flip = None
    if gallery is not None and gallery.exists():
        flip = Gallery.read(gallery).space.flip
    recognizer = network.recognizer(model, flip, batch_size=bounds.max_batch)
    with contextlib.ExitStack() as claims:
        opened = None
        if gallery is not None:
            claims.enter_context(Gallery.claim(gallery))  # as long as the service runs
            opened = GalleryFile(gallery, recognizer, bounds.max_people, fpir, identify_threshold)
        service = Service(recognizer, bounds, opened, threshold=threshold, fpr=fpr, bench=bench)
        listener = claims.enter_context(listen(host, port))
        address, port = listener.getsockname()[:2]
        found = "no detector" if recognizer.detector is None else "photos' faces are found"
        print(f"{recognizer!r}, {found}\ncontract {service.contract}")
        for note in recognizer.model.notes:
            print(f"note: {note}")
        if fpr is not None or bench is not None:  # one that is not known is refused here
            print(f"threshold {recognizer.threshold(fpr, bench)}")
        if opened is not None:
            print(f"gallery {gallery}: {len(opened.gallery):,} people")
        address = f"[{address}]" if ":" in address else address
        print(f"listening on http://{address}:{port}", flush=True)
        log_requests()
        own = replace(access, allow_host=(host, *access.allow_host))
        create_server(service, own).run([listener])


def log_requests() -> None:
    """Write a line a request to stderr, and leave stderr to Python, whose log no C library mixes.

    Decoders write a line or more for every damaged image there, and anybody can send many.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", 1, errors="replace")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    faulthandler.enable(sys.stderr)  # a crash of a library stays in the log
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    log = logging.getLogger("facerec.service")
    log.addHandler(handler)
    log.setLevel(logging.INFO)


main = partial(run_command, serve)
