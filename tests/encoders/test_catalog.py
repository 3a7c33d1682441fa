"""Encoders by their names: what they give, and what is said of those that cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scrlm_dask.encoders.catalog import open_encoder
from scrlm_dask.errors import InputError


def images(n: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (5, 7, 3), np.uint8)) for _ in range(n)]


class TestLight:
    def test_pixels_by_hand(self) -> None:
        image = Image.new("RGB", (4, 4), (255, 0, 51))
        found = open_encoder("pixels:2", "images", None).encode([image])
        np.testing.assert_allclose(found, [[1, 0, 0.2] * 4], rtol=1e-6)
        assert open_encoder("pixels", "images", None).encode(images(2)).shape == (2, 32 * 32 * 3)

    def test_hashing_counts_words_and_pairs(self) -> None:
        encoder = open_encoder("hashing:4096", "texts", None)
        a, b, c = encoder.encode(["red cat", "red cat", "blue dog"])
        np.testing.assert_array_equal(a, b)
        assert a.dtype == np.float32
        # red, cat and the pair of them, at unit length
        np.testing.assert_allclose(np.sort(np.abs(a[a != 0])), [3**-0.5] * 3, rtol=1e-6)
        assert abs(float(a @ c)) < 1e-6
        assert open_encoder("hashing", "texts", None).encode(["a"]).shape == (1, 512)

    @pytest.mark.parametrize("name", ["pixels:0", "pixels:x", "hashing:-1", "hashing:1e9"])
    def test_numbers(self, name: str) -> None:
        kind: Any = "images" if name.startswith("pixels") else "texts"
        with pytest.raises(InputError, match=f"{name} asks for .* a number from 1 to"):
            open_encoder(name, kind, None)


class TestNamed:
    def test_a_file_and_a_module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "lengths.py").write_text(
            "def encode(texts):\n    return [[len(t)] for t in texts]"
        )
        by_file = open_encoder(f"{tmp_path}/lengths.py:encode", "texts", None)
        assert by_file.encode(["a", "bcd"]).tolist() == [[1], [3]]
        assert "SHA-256" in by_file.made_by
        monkeypatch.syspath_prepend(tmp_path)
        assert open_encoder("lengths:encode", "texts", None).encode(["ab"]).tolist() == [[2]]
        sys.modules.pop("lengths")

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("gone_module:encode", r"cannot be loaded \(ModuleNotFoundError.*file\.py:function"),
            ("gone.py:encode", r"gone\.py does not exist"),
            ("math:nothing", "math has no 'nothing' to be called"),
            ("math:pi", "math has no 'pi' to be called"),
        ],
    )
    def test_what_is_no_function(self, name: str, words: str) -> None:
        with pytest.raises(InputError, match=words):
            open_encoder(name, "texts", None)

    def test_a_file_that_fails(self, tmp_path: Path) -> None:
        (tmp_path / "bad.py").write_text("raise RuntimeError('no GPU today')")
        with pytest.raises(InputError, match=r"cannot be loaded .*no GPU today"):
            open_encoder(f"{tmp_path}/bad.py:encode", "texts", None)


class TestRefused:
    @pytest.mark.parametrize("name", ["pixel", "sentence-transformers", "torchvision:", ""])
    def test_unknown(self, name: str) -> None:
        with pytest.raises(InputError, match="is not known; give pixels, hashing"):
            open_encoder(name, "images", None)

    def test_the_wrong_kind(self) -> None:
        with pytest.raises(InputError, match="pixels takes images and the input holds texts"):
            open_encoder("pixels", "texts", None)
        with pytest.raises(InputError, match="for these there are pixels, open_clip, torchvision"):
            open_encoder("sentence-transformers:x", "images", None)

    def test_a_device_without_effect(self) -> None:
        with pytest.raises(InputError, match="--device says nothing to the encoder hashing"):
            open_encoder("hashing", "texts", "cuda")

    @pytest.mark.parametrize(
        ("name", "kind", "package", "extra"),
        [
            ("sentence-transformers:x", "texts", "sentence_transformers", "embed-text"),
            ("open_clip:ViT-B-32/x", "images", "open_clip", "embed-images"),
            ("torchvision:resnet50", "images", "torchvision", "embed-images"),
            ("pixels", "images", "PIL", "embed-images"),
        ],
    )
    def test_a_missing_package(
        self, monkeypatch: pytest.MonkeyPatch, name: str, kind: Any, package: str, extra: str
    ) -> None:
        for module in (package, "torchvision.models", "PIL.Image"):
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(InputError, match=rf"{package}.*install scrlm-dask\[{extra}\]"):
            open_encoder(name, kind, None)
