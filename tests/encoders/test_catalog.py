"""Encoders by name: their features, and errors for invalid names and missing packages."""

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


class TestBuiltIn:
    def test_pixels_by_hand(self) -> None:
        image = Image.new("RGB", (4, 4), (255, 0, 51))
        found = open_encoder("pixels:2", "images", None).encode([image])
        np.testing.assert_allclose(found, [[1, 0, 0.2] * 4], rtol=1e-6)
        assert open_encoder("pixels", "images", None).encode(images(2)).shape == (2, 32 * 32 * 3)

    def test_hashing_counts_words_and_word_pairs(self) -> None:
        encoder = open_encoder("hashing:4096", "texts", None)
        a, b, c = encoder.encode(["red cat", "red cat", "blue dog"])
        np.testing.assert_array_equal(a, b)
        assert a.dtype == np.float32
        # "red", "cat" and their pair, scaled to unit length
        np.testing.assert_allclose(np.sort(np.abs(a[a != 0])), [3**-0.5] * 3, rtol=1e-6)
        assert abs(float(a @ c)) < 1e-6
        assert open_encoder("hashing", "texts", None).encode(["a"]).shape == (1, 512)

    @pytest.mark.parametrize("name", ["pixels:0", "pixels:x", "hashing:-1", "hashing:1e9"])
    def test_invalid_sizes(self, name: str) -> None:
        kind: Any = "images" if name.startswith("pixels") else "texts"
        with pytest.raises(InputError, match=rf"(?=.*{name})(?=.*'{name.split(':')[1]}')"):
            open_encoder(name, kind, None)


class TestUserFunction:
    def test_function_of_a_file_and_of_a_module(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
        ("name", "facts"),
        [
            ("gone_module:encode", r"(?=.*ModuleNotFoundError)(?=.*file\.py:function)"),
            ("gone.py:encode", r"gone\.py(?!:)"),
            ("math:nothing", r"(?=.*math:nothing)(?=.*'nothing')"),
            ("math:pi", r"(?=.*math:pi)(?=.*'pi')"),
        ],
    )
    def test_missing_functions(self, name: str, facts: str) -> None:
        with pytest.raises(InputError, match=facts):
            open_encoder(name, "texts", None)

    def test_file_that_fails_to_load(self, tmp_path: Path) -> None:
        (tmp_path / "bad.py").write_text("raise RuntimeError('no GPU today')")
        with pytest.raises(InputError, match=r"(?=.*bad\.py:encode)(?=.*no GPU today)"):
            open_encoder(f"{tmp_path}/bad.py:encode", "texts", None)


class TestRejected:
    @pytest.mark.parametrize("name", ["pixel", "sentence-transformers", "torchvision:", ""])
    def test_unknown(self, name: str) -> None:
        with pytest.raises(InputError, match=f"(?=.*{name!r})(?=.*open_clip:)(?=.*torchvision:)"):
            open_encoder(name, "images", None)

    def test_wrong_kind_of_input(self) -> None:
        with pytest.raises(InputError, match=r"(?=.*pixels)(?=.*images)(?=.*texts)(?=.*hashing)"):
            open_encoder("pixels", "texts", None)
        facts = "(?=.*sentence-transformers:x)(?=.*pixels, open_clip, torchvision)"
        with pytest.raises(InputError, match=facts):
            open_encoder("sentence-transformers:x", "images", None)

    def test_device_without_effect(self) -> None:
        with pytest.raises(InputError, match=r"(?=.*--device)(?=.*hashing)"):
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
    def test_missing_package(
        self, monkeypatch: pytest.MonkeyPatch, name: str, kind: Any, package: str, extra: str
    ) -> None:
        for module in (package, "torchvision.models", "PIL.Image"):
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(InputError, match=rf"(?=.*{package})(?=.*scrlm-dask\[{extra}\])"):
            open_encoder(name, kind, None)
