"""A certificate authority of our own, by the openssl program, and kubeconfigs with its certificates."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.base import ClusterError, run, which, write_atomically

VALID_DAYS = "3650"


@dataclass(frozen=True, slots=True)
class Authority:
    """A folder with ca.crt, ca.key and the issued pairs NAME.crt, NAME.key. Existing files are kept."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def cert(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def ensure(self) -> None:
        """Make the authority if it is not there."""
        if which("openssl") is None:
            raise ClusterError("openssl is not installed", "apt-get install openssl")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.certificate.exists():
            return
        self.ensure_key("ca")
        _openssl(
            *("req", "-x509", "-new", "-key", self.key("ca"), "-days", VALID_DAYS, "-out", self.certificate),
            *("-subj", "/CN=tangram-local-ca", "-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign"),
        )

    def ensure_key(self, name: str) -> Path:
        """A P-256 key (RSA keys take a hundred times as long to make)."""
        path = self.key(name)
        if not path.exists():
            made = _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout")
            write_atomically(path, made, mode=0o600)
        return path

    def ensure_pair(
        self,
        name: str,
        *,
        user: str,
        groups: Iterable[str] = (),
        addresses: Iterable[str] = (),
        dns: Iterable[str] = (),
    ) -> None:
        """A certificate for ``user`` (CN) in ``groups`` (O); with addresses or names it serves as well."""
        if self.cert(name).exists():
            return
        names = [f"IP:{address}" for address in addresses] + [f"DNS:{host}" for host in dns]
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            f"extendedKeyUsage=clientAuth{',serverAuth' if names else ''}",
            *([f"subjectAltName={','.join(names)}"] if names else []),
        ]
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        request = _openssl("req", "-new", "-key", self.ensure_key(name), "-subj", subject)
        extension_file = self.folder / f"{name}.ext"
        extension_file.write_text("\n".join(extensions))
        # A random serial: two certificates issued at the same moment do not fight over a serial file.
        issued = run(
            [
                *("openssl", "x509", "-req", "-CA", self.certificate, "-CAkey", self.key("ca")),
                *("-days", VALID_DAYS, "-extfile", extension_file, "-set_serial", str(secrets.randbits(120))),
            ],
            stdin=request,
            timeout_s=20,
        )
        extension_file.unlink()
        write_atomically(self.cert(name), issued.stdout)

    def kubeconfig(self, path: Path, *, server: str, name: str) -> Path:
        """Write a kubeconfig for the pair ``name``, self-contained, readable by its owner only."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tangram",
            "contexts": [{"name": "tangram", "context": {"cluster": "tangram", "user": name}}],
            "clusters": [
                {
                    "name": "tangram",
                    "cluster": {"server": server, "certificate-authority-data": _b64(self.certificate)},
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": _b64(self.cert(name)),
                        "client-key-data": _b64(self.key(name)),
                    },
                }
            ],
        }
        # JSON is YAML; the standard library writes only the former.
        write_atomically(path, json.dumps(content, indent=1), mode=0o600)
        return path


def _b64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str | Path) -> str:
    return run(["openssl", *arguments], timeout_s=20).stdout
