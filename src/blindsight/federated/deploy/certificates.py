"""A certificate authority for one federation, the aggregator's TLS certificate, and a key pair a
node.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["ServerFiles", "make_server_files"]

_YEARS = 2


@dataclass(frozen=True)
class ServerFiles:
    """PEM bytes: the authority's certificate, the server's certificate and the server's private
    key.
    """

    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "ServerFiles(secret)"


def make_server_files(host: str) -> ServerFiles:
    """A fresh authority that signs one certificate, for `host` and for loopback, and is then
    forgotten.
    """
    authority = ec.generate_private_key(ec.SECP384R1())
    root = _name("Blindsight federation")
    ca = _certificate(root, root, authority.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(_usage(signs_certificates=True), critical=True)
    ca = ca.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
    )
    signed_ca = ca.sign(authority, hashes.SHA384())
    server = ec.generate_private_key(ec.SECP384R1())
    names = [_alternative(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    leaf = _certificate(_name(host), root, server.public_key())
    leaf = leaf.add_extension(x509.SubjectAlternativeName(names), critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf = leaf.add_extension(_usage(signs_certificates=False), critical=True)
    leaf = leaf.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
    )
    leaf = leaf.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        critical=False,
    )
    pem = serialization.Encoding.PEM
    key = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ServerFiles(
        signed_ca.public_bytes(pem), leaf.sign(authority, hashes.SHA384()).public_bytes(pem), key
    )


def _name(common: str) -> Any:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(subject: Any, issuer: Any, public: Any) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
    )


def _usage(*, signs_certificates: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
