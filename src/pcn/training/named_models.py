"""Models by name: a network of the paper, a factory of one's own, a Hugging Face configuration, a timm model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from pcn import models
from pcn.errors import ConfigError, FileError, suggest

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def build_named(name: str, options: Mapping[str, Any] | None = None) -> nn.Module:
    """Build ``conv4``, ``package.module:factory``, ``hf:bert``, ``hf:folder`` or ``timm:resnet50``.

    ``options`` are keyword arguments: of the factory, of timm's model, or of the Hugging Face configuration.

    >>> build_named("torch.nn:Linear", {"in_features": 3, "out_features": 2})
    Linear(in_features=3, out_features=2, bias=True)
    """
    options = dict(options or {})
    kind, sign, rest = name.partition(":")
    if not sign:
        if options:
            raise ConfigError(f"{name!r} takes no model_options: they belong to package.module:factory, hf: and timm:")
        return models.build(name)
    makers: dict[str, Callable[[str, dict[str, Any]], Any]] = {"hf": _hugging_face, "timm": _timm}
    made = makers[kind](rest, options) if kind in makers else import_factory(name)(**options)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"{name!r} made a {type(made).__name__}, not a torch.nn.Module")
    return made


def import_factory(path: str) -> Callable[..., Any]:
    """Import ``package.module:factory``; modules in the current folder are found too."""
    module_name, _, name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{path!r}: cannot import {module_name!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{path!r}: {module_name!r} has no function or class {name!r}")
    return found  # type: ignore[no-any-return]


def _timm(name: str, options: dict[str, Any]) -> Any:
    timm = _imported("timm", f"timm:{name}")
    if not timm.is_model(name):
        raise ConfigError(f"timm has no model {name!r}{suggest(name, timm.list_models())}")
    return timm.create_model(name, **options)


def _hugging_face(source: str, options: dict[str, Any]) -> Any:
    """Build from a configuration: of a model type such as ``bert``, a config.json, or a folder with weights too."""
    transformers = _imported("transformers", f"hf:{source}")
    if isinstance(options.get("architectures"), str):
        options["architectures"] = [options["architectures"]]
    folder = Path(source).expanduser()
    config = _configuration(transformers, source, folder, options)
    if not config.architectures:
        model_class = transformers.AutoModel
    else:
        model_class = getattr(transformers, config.architectures[0], None)
        if model_class is None:
            raise ConfigError(f"hf:{source}: transformers has no class {config.architectures[0]!r}")
    if any((folder / file).exists() for file in WEIGHTS):
        with _quiet(transformers.utils.logging):
            return _with_weights(model_class, folder, config)
    return model_class.from_config(config) if model_class is transformers.AutoModel else model_class(config)


def _configuration(transformers: Any, source: str, path: Path, options: dict[str, Any]) -> Any:
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if path.is_file() or (path / "config.json").is_file():
        config = transformers.AutoConfig.from_pretrained(path)
        _check_options(source, config, options)
        return transformers.AutoConfig.from_pretrained(path, **options)
    if source not in known:
        raise ConfigError(
            f"hf:{source}: there is no such config.json, folder with one or model type; a model of the hub is fetched "
            f"by: hf download {source} --local-dir DIR{suggest(source, known)}"
        )
    _check_options(source, transformers.AutoConfig.for_model(source), options)
    return transformers.AutoConfig.for_model(source, **options)


def _check_options(source: str, config: Any, options: dict[str, Any]) -> None:
    for name in options:
        if not hasattr(config, name):
            raise ConfigError(f"hf:{source}: {type(config).__name__} has no {name!r}{suggest(name, config.to_dict())}")


def _with_weights(model_class: Any, folder: Path, config: Any) -> Any:
    model, told = model_class.from_pretrained(
        folder, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    wrong = [*told["missing_keys"], *told["mismatched_keys"]]
    if wrong:
        raise FileError(
            f"the weights in {folder} do not fit its config.json: {len(wrong)} tensors are missing or of another "
            f"shape, {wrong[0]!r} among them"
        )
    return model


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Keep bars and reports away: what is wrong is said by an error."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _imported(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"{name!r} needs {package}, which is not installed: pip install {package}") from error
