"""Read the settings of a cluster's operator from the ConfigMap of its Helm chart, or from a file."""

from pathlib import Path

from tangram.catalog import InputError
from tangram.kube.client import ApiClient, ApiError
from tangram.kube.kinds import CONFIG_MAPS, key_of
from tangram.shell.settings import Settings, SettingsError, load_settings, parse_settings

CONFIG_KEY = "config.yaml"
CONFIG_SELECTOR = "app.kubernetes.io/part-of=tangram,app.kubernetes.io/component=operator"
_FIELD = "operator's settings"


async def operator_settings(client: ApiClient, namespace: str | None, file: str | None) -> Settings:
    """Return the settings in `file`, else those of the one operator in `namespace` (None: anywhere).

    Raises `InputError` where there is none, or more than one, and `ApiError`.
    """
    try:
        if file is not None:
            return load_settings(Path(file))
        where, text = await _config_map(client, namespace)
        return parse_settings(text, f"ConfigMap {where}: {CONFIG_KEY}")
    except SettingsError as error:
        raise InputError(_FIELD, str(error)) from error


async def _config_map(client: ApiClient, namespace: str | None) -> tuple[str, str]:
    try:
        listing = await client.list(CONFIG_MAPS, namespace or "", CONFIG_SELECTOR)
    except ApiError as error:
        if error.status != 403:
            raise
        where = f"in namespace {namespace}" if namespace else "in all namespaces: give --operator-namespace"
        raise InputError(
            _FIELD, f"you may not list configmaps {where}, or give the settings with --config FILE"
        ) from error
    settings = {
        "/".join(key_of(obj)): obj["data"][CONFIG_KEY]
        for obj in listing.items
        if CONFIG_KEY in (obj.get("data") or {})
    }
    if len(settings) == 1:
        return next(iter(settings.items()))
    if settings:
        raise InputError(
            _FIELD,
            f"there are {len(settings)} operators: {', '.join(sorted(settings))}; choose with"
            " --operator-namespace or --config",
        )
    where = f"namespace {namespace}" if namespace else "this cluster"
    raise InputError(
        _FIELD,
        f"{where} has no ConfigMap with the labels {CONFIG_SELECTOR}: is Tangram installed?"
        " Else give --config FILE",
    )
