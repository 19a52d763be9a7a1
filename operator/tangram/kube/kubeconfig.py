"""Kubeconfigs, read by the official client: it runs credential plug-ins, and renews their tokens.

It takes 20 MiB, and the image of the node agent lacks it: it is loaded where there is a kubeconfig to read.
"""

from dataclasses import dataclass
from typing import Any

import yaml

from tangram.kube.credentials import AuthError, Credentials, in_cluster_credentials


@dataclass(slots=True)
class KubeconfigCredentials:
    """A kubeconfig parsed by the official client, exec plug-ins and OIDC included."""

    configuration: Any  # kubernetes.client.Configuration
    server: str
    ca_path: str | None
    cert_path: str | None
    key_path: str | None
    insecure: bool

    def token(self, *, fresh: bool = False) -> str | None:
        """Return the bearer token; the official client renews it when it expires."""
        del fresh  # the official client renews the token by its expiry
        # `BearerToken` since version 36 of the client, `authorization` before.
        value: str | None = self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return value.removeprefix("Bearer ") if value else None


def load_kubeconfig(path: str | None = None, context: str | None = None) -> KubeconfigCredentials:
    """Parse a kubeconfig (default: $KUBECONFIG, then ~/.kube/config) and take `context` of it (default: the
    current one). Raises AuthError, and ModuleNotFoundError without the official client.
    """
    from kubernetes import client, config  # noqa: PLC0415 - see the module

    where = path or "from $KUBECONFIG or ~/.kube/config"
    configuration = client.Configuration()
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, context=context, client_configuration=configuration
        )
    except (config.ConfigException, OSError) as error:
        raise AuthError(f"kubeconfig {where}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:  # invalid contents
        raise AuthError(f"kubeconfig {where} is invalid: {' '.join(str(error).split())}") from error
    return KubeconfigCredentials(
        configuration=configuration,
        server=str(configuration.host).rstrip("/"),
        ca_path=configuration.ssl_ca_cert,
        cert_path=configuration.cert_file,
        key_path=configuration.key_file,
        insecure=not configuration.verify_ssl,
    )


def context_namespace(path: str | None, context: str | None) -> str:
    """Return the namespace of a context, by default of the current one. Raises AuthError."""
    from kubernetes import config  # noqa: PLC0415 - see the module

    try:
        contexts, current = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise AuthError(f"the kubeconfig cannot be read: {error}") from error
    named = (each for each in contexts if each["name"] == context)
    chosen = current if context is None else next(named, {})
    return str((chosen or {}).get("context", {}).get("namespace") or "default")


def find_credentials(kubeconfig: str | None = None) -> Credentials:
    """Return the credentials of `--kubeconfig`, else of the pod, else of the default kubeconfig."""
    of_pod = in_cluster_credentials() if kubeconfig is None else None
    return of_pod or load_kubeconfig(kubeconfig)
