"""Pretrained encoders of the optional packages sentence-transformers, open_clip and torchvision.

The packages download models that are not in their local cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scrlm_dask.encoders.encoder import Encoder, Kind, explain_failure, version_of
from scrlm_dask.errors import InputError
from scrlm_dask.optional import import_optional
from scrlm_dask.text import plural

_HEADS = ("fc", "head", "heads", "classifier")  # names of the last layer of torchvision models
# In earlier versions of PyTorch, a weights file can run code in spite of `weights_only`
# (CVE-2025-32434, CVE-2026-24747).
_SAFE_TORCH = (2, 10)
_OFFLINE = (
    "check the name, give the path of a local model, or load the model once with network access so "
    "that it is cached"
)


def open_sentence_transformer(name: str, argument: str, kind: Kind, device: str | None) -> Encoder:
    """Open `sentence-transformers:NAME_OR_PATH`."""
    _check_path(name, argument)
    with explain_failure(name, _OFFLINE):
        library = import_optional("sentence_transformers", f"the encoder {name}", "embed-text")
        model = library.SentenceTransformer(argument, device=device)

    def encode(texts: list[Any]) -> Any:
        return model.encode(
            texts, batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True
        )

    return Encoder(name, version_of("sentence-transformers"), encode)


def open_clip_model(name: str, argument: str, kind: Kind, device: str | None) -> Encoder:
    """Open `open_clip:MODEL/PRETRAINED_OR_PATH`, for images or texts."""
    architecture, _, pretrained = argument.partition("/")
    if not pretrained:
        raise InputError(
            f"the encoder {name} has no weights; give open_clip:MODEL/PRETRAINED, such as "
            "open_clip:ViT-B-32/laion2b_s34b_b79k, or a path instead of PRETRAINED"
        )
    _check_path(name, pretrained)
    with explain_failure(name, _OFFLINE):
        library = import_optional("open_clip", f"the encoder {name}", "embed-images")
        torch, torch_device = _import_torch(device)
        _is_weights_file(name, pretrained, torch)
        model, _, transform = library.create_model_and_transforms(
            architecture, pretrained=pretrained, device=torch_device
        )
        tokenizer = library.get_tokenizer(architecture) if kind == "texts" else None
    model.eval()

    def encode(items: list[Any]) -> Any:
        if tokenizer is not None:
            return model.encode_text(tokenizer(items).to(torch_device))
        return model.encode_image(torch.stack([*map(transform, items)]).to(torch_device))

    return Encoder(name, version_of("open-clip-torch"), _run_inference(torch, encode))


def open_torchvision(name: str, argument: str, kind: Kind, device: str | None) -> Encoder:
    """Open `torchvision:MODEL[/WEIGHTS_OR_PATH]`: the output of the layer before the classifier."""
    model_name, _, weights = argument.partition("/")
    _check_path(name, weights)
    with explain_failure(name, _OFFLINE):
        models = import_optional("torchvision.models", f"the encoder {name}", "embed-images")
        torch, torch_device = _import_torch(device)
        is_file = _is_weights_file(name, weights, torch)
        known = models.get_model_weights(model_name)
        chosen = known["DEFAULT" if is_file or not weights else weights]
        model = models.get_model(model_name, weights=None if is_file else chosen)
        head = _remove_head(name, model, torch.nn)
        if is_file:
            # load tensors only, because a pickle can run arbitrary code
            state = torch.load(weights, map_location="cpu", weights_only=True)
            _load_state(name, model, state, head)
        model.to(torch_device).eval()
        transform = chosen.transforms()

    def encode(images: list[Any]) -> Any:
        return model(torch.stack([*map(transform, images)]).to(torch_device))

    return Encoder(name, version_of("torchvision"), _run_inference(torch, encode))


def _remove_head(name: str, model: Any, nn: Any) -> str:
    """Remove the layer that maps features to classes, and return its name."""
    head = next((head for head in _HEADS if hasattr(model, head)), None)
    layer = getattr(model, head, None) if head is not None else None
    if head is not None and isinstance(layer, nn.Linear):
        setattr(model, head, nn.Identity())
        return head
    if isinstance(layer, nn.Sequential) and isinstance(layer[-1], nn.Linear):
        last = [child for child, _ in layer.named_children()][-1]
        setattr(layer, last, nn.Identity())
        return f"{head}.{last}"
    raise InputError(
        f"the encoder {name} does not end with a linear layer that can be removed; use another "
        "model, or your own function as module:function"
    )


def _load_state(name: str, model: Any, state: Any, head: str) -> None:
    """Load weights into the model, except the weights of the head, whose classes may differ."""
    kept = {key: value for key, value in state.items() if not key.startswith(f"{head}.")}
    result = model.load_state_dict(kept, strict=False)
    wrong = [*result.missing_keys, *result.unexpected_keys]
    if wrong:
        raise InputError(
            f"the weights file in the encoder {name} belongs to another model "
            f"({plural(len(wrong), 'key')} without a match, the first is {wrong[0]}); check the "
            "path of the file, after torchvision:MODEL/"
        )


def _run_inference(torch: Any, function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Wrap a function to run without gradients and return a float32 array on the host."""

    def encode(items: list[Any]) -> Any:
        with torch.inference_mode():
            return function(items).float().cpu().numpy()

    return encode


def _import_torch(device: str | None) -> tuple[Any, Any]:
    """Import PyTorch and choose the device: the given device, a GPU if available, or the CPU."""
    torch = import_optional("torch", "a model", "embed-images")
    return torch, torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _is_weights_file(name: str, path: str, torch: Any) -> bool:
    """Return whether `path` is a file; raise if the installed PyTorch could run code in it."""
    if not Path(path).is_file():
        return False
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < _SAFE_TORCH:
        raise InputError(
            f"the encoder {name} loads a weights file, which before PyTorch "
            f"{'.'.join(map(str, _SAFE_TORCH))} can run arbitrary code, and the installed version "
            f"is {torch.__version__}; install a newer torch"
        )
    return True


def _check_path(name: str, path: str) -> None:
    """Raise if a path does not exist, before a library treats it as a name to download."""
    if path.startswith((".", "/", "~")) and not Path(path).exists():
        raise InputError(f"{path}, given in the encoder {name}, does not exist; check the path")
