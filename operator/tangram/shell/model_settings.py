"""Settings of the places that checkpoints are fetched from."""

from typing import Annotated

from pydantic import Field, StrictBool

from tangram.shell.setting_types import SettingsSection

_Registry = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?$")]


class ModelSettings(SettingsSection):
    """Where checkpoints are that pods fetch."""

    hub_endpoint: str = Field(default="https://huggingface.co", pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$")
    """Address of the hub of hf:// models, or of a mirror of it."""
    s3_endpoint: str = Field(default="", alias="s3Endpoint", pattern=r"^(https?://[^\s/@?#]+(/[^\s@?#]*)?)?$")
    """Address of the store of s3:// models; empty: AWS, in the region."""
    s3_region: str = Field(default="us-east-1", alias="s3Region", pattern=r"^[a-z0-9-]{1,64}$")
    """Region of the store."""
    proxy: str = Field(default="", pattern=r"^(https?://[^\s/@?#]+)?$")
    """Address of the HTTP proxy through which pods fetch; empty: none."""
    no_proxy: str = Field(default="", pattern=r"^[A-Za-z0-9.,:*/_-]*$", max_length=4096)
    """Hosts and domains that pods reach without the proxy, separated by commas."""
    ca_bundle: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")
    """ConfigMap of the namespace of pods with certificate authorities to trust, too, below the key ca.crt."""
    volume_claims: StrictBool = False
    """Whether the operator keeps checkpoints on PersistentVolumeClaims, of the StorageClasses of GPUPools."""
    plain_http_registries: tuple[_Registry, ...] = ()
    """Registries of oci:// models that speak HTTP without TLS, as host or host:port."""
