"""Sign-in with an identity provider, by OpenID Connect's authorization code flow with PKCE.

authlib implements the protocol. This module decides what is trusted: the configured provider,
tokens that its published keys signed for this client and this sign-in, and a name that the provider
has verified.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx
from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.settings import WorkbenchSettings

__all__ = ["Person", "SignOn"]

# Only signatures by the provider's private key: not "none", and none with a shared secret.
_ALGORITHMS = [
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
]
_SCOPE = "openid profile email"
_TIMEOUT = 10.0  # seconds for each request to the provider
_FRESH_SECONDS = 3600.0  # how long the provider's description and keys are used
_LEEWAY = 60  # seconds by which the provider's clock may differ
_MAX_GROUPS, _MAX_LETTERS = 500, 100


@dataclass(frozen=True)
class Person:
    """A person whom the provider has authenticated.

    Parameters:
        issuer: the address of the provider.
        subject: the person's identifier there, which is never given to somebody else.
        name: the name to which rights are granted here.
        label: the person's display name.
        groups: names of the person's groups.
        id_token: the token that the provider expects at sign-out.
    """

    issuer: str
    subject: str
    name: str
    label: str
    groups: tuple[str, ...]
    id_token: str


class SignOn:
    """Sign-in with one identity provider.

    Parameters:
        settings: its address, and this workbench's client id there.
    """

    def __init__(self, settings: WorkbenchSettings) -> None:
        self._settings = settings
        self._description: dict[str, Any] = {}
        self._keys: KeySet | None = None
        self._read_at = -_FRESH_SECONDS

    async def begin(self, redirect: str) -> tuple[str, str]:
        """Return the address to send the browser to, and the cookie to set until it comes back."""
        description = await self._describe()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        async with self._client(redirect) as client:
            address, _ = client.create_authorization_url(
                description["authorization_endpoint"],
                state=state,
                nonce=nonce,
                code_verifier=verifier,
            )
        fields = {"state": state, "nonce": nonce, "verifier": verifier, "redirect": redirect}
        return str(address), base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()

    async def finish(self, answer: Mapping[str, str], cookie: str) -> Person:
        """Complete a sign-in, and return the person.

        Parameters:
            answer: the query of the address to which the provider sent the browser.
            cookie: what `begin` put into the browser's cookie.

        Raises:
            Problem: "cross_site", if the answer belongs to no sign-in of this browser; "sign_on",
                if the provider refuses or its token is not valid.
        """
        begun = _read_cookie(cookie)
        state = answer.get("state", "")
        if begun is None or not hmac.compare_digest(begun["state"].encode(), state.encode()):
            raise Problem("cross_site")
        if "error" in answer or not answer.get("code"):
            raise Problem("sign_on")
        description = await self._describe()
        try:
            async with self._client(begun["redirect"]) as client:
                token = await client.fetch_token(
                    description["token_endpoint"],
                    code=answer["code"],
                    code_verifier=begun["verifier"],
                )
                claims = await self._claims(str(token["id_token"]), begun["nonce"], token)
                if self._settings.oidc_groups not in claims and "userinfo_endpoint" in description:
                    further = (await client.get(description["userinfo_endpoint"])).json()
                    if isinstance(further, dict) and further.get("sub") == claims["sub"]:
                        claims = {**further, **claims}
        except (OAuthError, JoseError, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise Problem("sign_on") from error
        return self._person(claims, str(token["id_token"]))

    async def sign_out_address(self, id_token: str, back: str) -> str | None:
        """Return the address that ends the session at the provider; None if it has none."""
        if not id_token:
            return None
        try:
            endpoint = (await self._describe()).get("end_session_endpoint")
        except Problem:
            return None
        if not isinstance(endpoint, str):
            return None
        query = urlencode({"id_token_hint": id_token, "post_logout_redirect_uri": back})
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"

    def _client(self, redirect: str) -> AsyncOAuth2Client:
        settings = self._settings
        return AsyncOAuth2Client(
            client_id=settings.oidc_client,
            client_secret=settings.oidc_secret,
            token_endpoint_auth_method="client_secret_basic" if settings.oidc_secret else "none",
            scope=_SCOPE,
            redirect_uri=redirect,
            code_challenge_method="S256",
            timeout=_TIMEOUT,
            follow_redirects=False,
        )

    async def _describe(self, *, again: bool = False) -> dict[str, Any]:
        """Return the provider's description, read with its keys once per hour."""
        if not again and time.monotonic() - self._read_at < _FRESH_SECONDS:
            return self._description
        issuer = str(self._settings.oidc_issuer)
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) as client:
                address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
                description = (await client.get(address)).raise_for_status().json()
                if description["issuer"] != issuer:
                    raise ValueError
                keys = (await client.get(description["jwks_uri"])).raise_for_status().json()
                self._keys = KeySet.import_key_set(keys)
        except (httpx.HTTPError, JoseError, ValueError, KeyError, TypeError) as error:
            raise Problem("sign_on") from error
        self._description, self._read_at = description, time.monotonic()
        return self._description

    async def _claims(self, id_token: str, nonce: str, token: Mapping[str, Any]) -> dict[str, Any]:
        """Return the claims of the ID token after checking its signature, receiver and time."""
        assert self._keys is not None  # noqa: S101  (read by _describe)
        try:
            decoded = jwt.decode(id_token, self._keys, algorithms=_ALGORITHMS)
        except (JoseError, ValueError):
            await self._describe(again=True)  # the provider may have changed its keys
            decoded = jwt.decode(id_token, self._keys, algorithms=_ALGORITHMS)
        client = self._settings.oidc_client
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            options={
                "iss": {"essential": True, "value": self._settings.oidc_issuer},
                "aud": {"essential": True, "value": client},
            },
            params={
                "nonce": nonce,
                "client_id": client,
                "access_token": token.get("access_token"),
            },
        )
        claims.validate(leeway=_LEEWAY)
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise ValueError("the token belongs to another sign-in")
        return dict(claims)

    def _person(self, claims: dict[str, Any], id_token: str) -> Person:
        subject, wanted = str(claims["sub"]), self._settings.oidc_name
        name = claims.get(wanted)
        # An address that was not verified could be anybody's.
        vouched = wanted != "email" or claims.get("email_verified") is True
        if not (vouched and isinstance(name, str) and name.isprintable() and name.strip()):
            name = f"person {subject}"
        label = claims.get("name")
        groups = claims.get(self._settings.oidc_groups)
        listed = groups if isinstance(groups, list) else [groups]
        return Person(
            issuer=str(self._settings.oidc_issuer),
            subject=subject,
            name=_printable(name),
            label=_printable(label if isinstance(label, str) else name),
            groups=tuple(
                dict.fromkeys(
                    group
                    for group in listed[:_MAX_GROUPS]
                    if isinstance(group, str)
                    and 0 < len(group) <= _MAX_LETTERS
                    and group.isprintable()
                )
            ),
            id_token=id_token,
        )


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:_MAX_LETTERS].strip() or "?"


def _read_cookie(cookie: str) -> dict[str, str] | None:
    try:
        fields = json.loads(base64.urlsafe_b64decode(cookie.encode()))
    except (ValueError, binascii.Error):
        return None
    names = {"state", "nonce", "verifier", "redirect"}
    if not isinstance(fields, dict) or set(fields) != names:
        return None
    return fields if all(isinstance(value, str) and value for value in fields.values()) else None
