"""Folders of images: order, selection of files, and conversion to RGB."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scrlm_dask.errors import DamagedItemError, InputError
from scrlm_dask.sources.image_folder import load_image, open_image_folder
from scrlm_dask.sources.sharded import numeric_order


def write_image(path: Path, colour: tuple[int, int, int] = (10, 20, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), colour).save(path)
    return path


def test_folders_and_files_are_ordered_by_number() -> None:
    given = ["b10/1.png", "b2/10.png", "b2/9.png", "b2/x/1.png", "a.png", "b2/1.png", "b2/01.png"]
    assert numeric_order(given) == [
        *("a.png", "b2/01.png", "b2/1.png", "b2/9.png", "b2/10.png", "b2/x/1.png", "b10/1.png")
    ]


def test_images_in_subfolders(tmp_path: Path) -> None:
    names = ["c2/1.png", "c2/deep/2.JPG", "c10/3.webp"]
    for name in names:
        write_image(tmp_path / name)
    (tmp_path / "c2" / "notes.txt").write_text("x")
    (tmp_path / "c2" / ".hidden.png").write_text("x")
    (tmp_path / "again").symlink_to(tmp_path)
    images = open_image_folder(str(tmp_path))
    assert images.read(0, 3).tolist() == names
    assert images.locate(1) == str(tmp_path / "c2/deep/2.JPG")
    assert images.column("folder").read(0, 3).tolist() == ["c2", "c2", "c10"]
    assert images.column("path").read(2, 3).tolist() == ["c10/3.webp"]
    (note,) = images.notes()
    assert re.search(r"\b2\b", note)
    assert ".txt" in note
    assert "link" in note


def digests(folder: Path) -> tuple[str, str]:
    """Return the digest of a folder when it is opened, and again when it is compared."""
    images = open_image_folder(str(folder))
    (source,) = images.inputs()
    return images.files[0].digest, source.trace(source.location)


def test_digest_of_the_listing_detects_changes(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a/1.png")
    before = digests(tmp_path)
    assert before[0] == before[1]
    assert digests(tmp_path) == before
    (tmp_path / "out.zarr").mkdir()  # an output inside the folder is ignored
    assert digests(tmp_path) == before
    os.utime(path, ns=(1, 1))
    after = digests(tmp_path)
    assert after[0] == after[1] != before[0]


def test_rejected_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path})(?=.*\.jpg)"):
        open_image_folder(str(tmp_path))
    write_image(tmp_path / "1.png")
    images = open_image_folder(str(tmp_path))
    with pytest.raises(InputError, match=rf"{tmp_path}/1\.png"):
        images.column("folder")
    with pytest.raises(InputError, match=r"(?=.*column 'kind')(?=.*\bfolder\b)(?=.*\bpath\b)"):
        images.column("kind")


class TestLoading:
    def test_every_mode_becomes_rgb(self, tmp_path: Path) -> None:
        rgb = Image.new("RGB", (2, 2), (200, 100, 50))
        transparent = Image.new("P", (2, 2), 1)
        transparent.putpalette([0, 0, 0, 200, 100, 50])
        transparent.info["transparency"] = b"\xff\x80"
        saved = {"rgb.png": rgb, "p.png": transparent, "a.png": rgb.convert("RGBA")}
        for name, image in saved.items():
            image.save(tmp_path / name)
            found = load_image(str(tmp_path), name)
            assert found.mode == "RGB"
            assert found.getpixel((0, 0)) == (200, 100, 50)

    def test_sixteen_bits_are_scaled(self, tmp_path: Path) -> None:
        deep = np.array([[0, 256, 32768, 65535]], np.uint16)
        Image.fromarray(deep).save(tmp_path / "x.png")
        found = np.asarray(load_image(str(tmp_path), "x.png"))
        assert found[0, :, 0].tolist() == [0, 1, 128, 255]

    def test_damaged_images(self, tmp_path: Path) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / "x.png")
        (tmp_path / "cut.png").write_bytes((tmp_path / "x.png").read_bytes()[:2000])
        (tmp_path / "text.jpg").write_text("not an image")
        (tmp_path / "empty.jpg").touch()
        Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "f.tiff")
        for name in ("cut.png", "text.jpg", "empty.jpg", "gone.png"):
            with pytest.raises(DamagedItemError) as caught:
                load_image(str(tmp_path), name)
            assert type(caught.value.__cause__).__name__ in str(caught.value)
        with pytest.raises(DamagedItemError, match=r"\bF\b"):
            load_image(str(tmp_path), "f.tiff")
